"""Guards that look at values: columns that are left unread although they look like the ids that edges use, or like the
sets of a split.

A column of nodes that is not read is an error if it may hold their ids: hardly a value is missing or there twice, and
it has more of the ends of edges than the ids by which nodes are numbered (or the numbers of rows, without these), or as
many and most of them, and does not say the same. That values are unique is not enough: names and amounts are. Nor need
all ends be there, or ends alone: edges may be some of a graph's. Ends that are text need a column of ids in any case.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ....storage.optional import present
from ..cleaning.arrow import pc
from ..cleaning.node_ids import as_numbers, is_text
from . import words
from .columns import Columns

SAMPLE_ROWS = 1 << 16
"""Rows of each table of edges whose ends are compared with the columns of nodes."""
FEW = 0.1
"""Share of rows up to which values of a column of ids are missing, or those of other rows."""
MOST_CLASSES = 256
"""Most values of a column that is proposed for labels."""
Rows = Callable[[Sequence[str]], Iterator[pa.Table]]
"""Rows of a table in pieces, by names of columns."""


def unread_ids(
    nodes: Columns, kinds: pa.Schema, rows: Rows, ends: Sequence[tuple[Rows, str]]
) -> tuple[str, str] | None:
    """A column of a table of nodes, whose ids no key names, that is not read and may hold their ids, by the rule of the
    module, and a sentence on it. None: there is none. `kinds` and `rows` are those of the table; `ends` are tables of
    edges, each with a column whose values are nodes of it."""
    swept = nodes.swept if nodes.id is None else ()
    candidates = [c for c in (*nodes.unread, *swept) if c and _may_be_ids(kinds.field(c).type)]
    used = _sample(ends) if candidates else []
    total, held = sum(map(len, used)), list[tuple[int, str]]()
    for column in candidates if total else ():
        values = _distinct(rows, column)
        found = 0 if values is None else _found(values, used)
        by_id = _found_by_id(nodes, rows, used) if found else 0
        is_worse = found < by_id or (found == by_id and 2 * found <= total)
        if found > FEW * total and not is_worse and not _is_same(rows, nodes.id, column):
            held.append((found, column))
    if held:
        found, column = max(held, key=lambda of: of[0])
        other = "none to number them by their rows" if nodes.id is None else f"{nodes.id} to keep that column"
        share = "all" if found == total else "most" if 2 * found > total else "more"
        state = "a feature (feature_columns=*)" if column in swept else "not read"
        return column, (
            f"the column '{column}' of {nodes.table} is {state}, but has {share} ids that edges use and hardly a value "
            f"twice; set read.id={column} to number nodes by it, or read.id={other}"
        )
    return None


def unread_sets(nodes: Columns, kinds: pa.Schema, rows: Rows) -> tuple[str | None, str] | None:
    """A column that is not read and has the sets of a split, where one would be drawn, and a sentence on it; no column
    if its words are not those of the sets. None: there is none."""
    for column in () if nodes.of_split else nodes.unread:
        if words.is_split(column):
            return column, (
                f"the column '{column}' of {nodes.table} is not read, but its name is one of a split; set "
                f"read.split={column} if it holds train, val and test, or read.split=none to draw one"
            )
        if not is_text(kinds.field(column).type):
            continue
        seen = set[str]()
        for piece in rows((column,)):
            seen |= {v.strip() for v in present(piece[column].unique().to_pylist())} - {""}
            if len(seen) > MOST_CLASSES:
                break
        flags = sum(words.FLAGS.values(), ()) if words.mask_of(column) is not None else ()
        known = all(words.set_of(v) or v.lower() in flags for v in seen)
        if len({words.set_of(v) or v for v in seen}) > 1 and (known or words.are_sets(seen)):
            write = f"set read.split={column} to read the split" if known else "write train, val and test there"
            return column if known else None, (
                f"the column '{column}' of {nodes.table} is not read, but holds {', '.join(sorted(seen))}; {write}, or "
                "set read.split=none to draw one"
            )
    return None


def few_values(columns: Sequence[str], rows: Rows) -> list[str]:
    """The columns that may hold classes: with several values, each in two rows or more on average."""
    found = []
    for column in columns:
        values, count = set[Any](), 0
        for piece in rows((column,)):
            values |= set(pc.unique(piece[column]).to_pylist())
            count += piece.num_rows
            if len(values) > MOST_CLASSES:
                break
        if len(values - {None}) >= 2 and 2 * len(values) <= count and len(values) <= MOST_CLASSES:
            found.append(column)
    return found


def _may_be_ids(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or is_text(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _sample(ends: Sequence[tuple[Rows, str]]) -> list[pa.ChunkedArray]:
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


def _distinct(rows: Rows, column: str) -> pa.ChunkedArray | None:
    """The values of a column where hardly any is null or there twice; else None, mostly after the first piece."""
    chunks, count = list[Any](), 0
    for piece in rows((column,)):
        values = piece[column]
        if values.null_count + len(values) - pc.count_distinct(values).as_py() > FEW * len(values):
            return None
        chunks += values.chunks
        count += len(values)
    found = pa.chunked_array(chunks).unique().drop_null() if count else []
    return pa.chunked_array([found]) if count and count - len(found) <= FEW * count else None


def _found(values: pa.ChunkedArray, used: Sequence[Any]) -> int:
    """Count the values that are `used` and among `values`; a number and its digits are the same."""
    values, *used = map(_as_numbers, (values, *used))
    try:
        return sum(pc.sum(pc.is_in(part.cast(values.type), value_set=values)).as_py() or 0 for part in used)
    except pa.ArrowException:
        return 0


def _as_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    numbers = as_numbers(values) if is_text(values.type) else None
    return values if numbers is None else numbers


def _found_by_id(nodes: Columns, rows: Rows, used: Sequence[Any]) -> int:
    """Count the values that are `used` and are ids of the column that is read, or numbers of rows without one."""
    if nodes.id is not None:
        return _found(pa.chunked_array([c for piece in rows((nodes.id,)) for c in piece[nodes.id].chunks]), used)
    count = sum(piece.num_rows for piece in rows((*nodes.unread, *nodes.swept)[:1]))
    return _found(pa.chunked_array([pa.array(np.arange(count))]), used)


def _is_same(rows: Rows, known: str | None, column: str) -> bool:
    """True if a column says the same as the column of ids, or as the numbers of rows if there is none."""
    first = 0
    for piece in rows((column,) if known is None else (known, column)):
        own = piece[column].cast(pa.large_string())
        numbers = pa.chunked_array([pa.array(np.arange(first, first + piece.num_rows))])
        if not (numbers if known is None else piece[known]).cast(pa.large_string()).equals(own):
            return False
        first += piece.num_rows
    return True
