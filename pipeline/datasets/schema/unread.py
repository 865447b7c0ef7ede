"""Guards that look at values: columns that are left unread although they look like the ids that edges use."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ....storage.errors import InputError
from .columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_ROWS = 1 << 16
"""Rows of each table of edges whose ends are compared with the columns of nodes."""
Rows = Callable[[Sequence[str]], Iterator["pa.Table"]]
"""Rows of a table in pieces, by names of columns."""


def check_unread(
    nodes: Columns, kinds: "pa.Schema", rows: Rows, ends: Sequence[tuple[Rows, str]], source: object
) -> None:
    """Check that no column of nodes that is not read has the ids that edges call nodes by.

    Args:
        nodes: of a table of nodes, whose ids no key names.
        kinds: the types of its columns.
        rows: of it.
        ends: tables of edges, each with a column whose values are nodes of this table.
        source: for the message.

    Raises:
        InputError: a column has all of them, and no value twice; names the key that settles it.
    """
    candidates = [c for c in nodes.unread if c and _may_be_ids(kinds.field(c).type)]
    used = _sample(ends) if candidates else []
    if not any(map(len, used)):
        return
    for column in candidates:
        values = _distinct(rows, column)
        if values is None or not all(_has_all(values, part) for part in used) or _is_same(rows, nodes.id, column):
            continue
        other = "read.id=none to number them by their rows"
        if nodes.id is not None:
            other = f"read.id={nodes.id} to keep that column"
        raise InputError(
            f"{source}: the column '{column}' of {nodes.table} is not read, but has all ids that edges use and no "
            f"value twice; set read.id={column} to number nodes by it, or {other}"
        )


def _may_be_ids(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _sample(ends: Sequence[tuple[Rows, str]]) -> list["pa.ChunkedArray"]:
    """Values of the first rows of each column."""
    found = []
    for rows, column in ends:
        pieces, count = [], 0
        for piece in rows((column,)):
            if not _may_be_ids(piece[column].type):
                return []
            pieces.append(piece[column].slice(0, SAMPLE_ROWS - count))
            count += len(pieces[-1])
            if count >= SAMPLE_ROWS:
                break
        found += [chunks.unique() for chunks in pieces]
    return found


def _distinct(rows: Rows, column: str) -> "pa.ChunkedArray | None":
    """The values of a column if no two are the same and none is null; else None, mostly after the first piece."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    chunks: list[Any] = []
    for piece in rows((column,)):
        values = piece[column]
        if values.null_count or pc.count_distinct(values).as_py() < len(values):
            return None
        chunks += values.chunks
    if not chunks:
        return None
    whole = pa.chunked_array(chunks)
    return whole if pc.count_distinct(whole).as_py() == len(whole) else None


def _has_all(values: "pa.ChunkedArray", used: Any) -> bool:
    """True if all that is `used` is among the values; a number and its digits are the same."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    try:
        used = used.cast(values.type)
    except pa.ArrowException:
        return False
    return bool(pc.all(pc.is_in(used, value_set=values)).as_py())


def _is_same(rows: Rows, known: str | None, column: str) -> bool:
    """True if a column says the same as the column of ids, or as the numbers of rows if there is none."""
    import numpy as np
    import pyarrow as pa

    first = 0
    for piece in rows((column,) if known is None else (known, column)):
        own = piece[column].cast(pa.large_string())
        numbers = pa.chunked_array([pa.array(np.arange(first, first + piece.num_rows))])
        if not (numbers if known is None else piece[known]).cast(pa.large_string()).equals(own):
            return False
        first += piece.num_rows
    return True
