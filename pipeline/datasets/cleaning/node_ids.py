"""Renumbering of a table's node ids, numbers or names, to 0 to V - 1."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ....storage.errors import InputError
from ....storage.node_names import NodeNames
from .arrow import pc, with_columns
from .options import ReadOptions
from .raw import AnyArray, Faults, about


def is_text(kind: pa.DataType) -> bool:
    """True for the type of a column that holds text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def signed(column: Any, what: str) -> Any:
    """Unsigned ids as int64, since numbers of both kinds meet as floating-point ones, which are not exact. Raises
    InputError: an id is beyond int64."""
    if not pa.types.is_uint64(column.type):
        return column
    try:
        return column.cast(pa.int64())
    except pa.ArrowException:
        largest = pc.max(column)
        raise InputError(f"column {what} holds {largest}; expected ids below 2**63: write them as text") from None


def given_ids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of ids, or of other text that may be missing, where what is empty is null."""
    return pc.if_else(pc.equal(column, ""), None, column) if is_text(column.type) else column


def check_id_kind(what: str, kind: pa.DataType) -> None:
    """Raise InputError unless a column holds ids."""
    if not (pa.types.is_integer(kind) or is_text(kind)):
        how = ": write them as int64, by .astype('int64') in pandas" if pa.types.is_floating(kind) else ""
        raise InputError(f"column {what} is {kind}; expected ids: whole numbers or text{how}")


def check_every_id(what: str, nulls: int, from_csv: bool) -> None:
    """Raise InputError unless a column has an id in every row."""
    if nulls:
        quoted = " (NA and null are nulls in CSV unless quoted)" if from_csv else " or empty texts"
        raise InputError(f"column {what} holds {nulls} nulls{quoted}; expected an id in every row: drop those rows")


class EndColumn(NamedTuple):
    """A column of ends of edges."""

    what: str
    """Its name in messages."""
    nulls: int
    from_csv: bool
    unknown: int
    """Ends that are no nodes."""
    first: str | None
    """The first of them, as it is shown."""


def faults_of_ends(columns: Sequence[EndColumn], of_type: str) -> Faults:
    """Faults of the ends of edges at the nodes of a type: those that are null, else those that are no nodes."""
    faults = Faults()
    for column in columns:
        with faults.noted(), about(of_type):
            check_every_id(column.what, column.nulls, column.from_csv)
    for column in columns if not faults else ():
        with faults.noted(), about(of_type):
            if column.unknown:
                raise unknown(column.unknown, column.what, str(column.first))
    return faults


def check_one_kind(types: Mapping[str, pa.DataType]) -> None:
    """Raise InputError if some columns of ids are text and others numbers."""
    kinds = {what: is_text(kind) for what, kind in types.items()}
    if not all(kinds.values()) and any(kinds.values()):
        text = next(what for what, is_ in kinds.items() if is_)
        number = next(what for what, is_ in kinds.items() if not is_)
        raise InputError(
            f"column {text} is text and column {number} is {types[number]}; expected one kind: convert one of them"
        )


def as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column of text as int64, if the numbers say the same: 007 is not a whole number here. A 1.0 is one, as tables
    have it whose ids were floating-point numbers once, since some were missing."""
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowException:
        ends = pc.any(pc.ends_with(column, ".0")).as_py()
        bare = pc.replace_substring_regex(column, r"^(-?\d+)\.0$", r"\1") if ends else column
        return None if bare.equals(column) else as_numbers(bare)
    return numbers if numbers.cast(column.type).equals(column) else None


def as_ids(column: pa.ChunkedArray, text: bool, what: str) -> pa.ChunkedArray:
    """A column of ids, whose name in messages is `what`: as text, or as int64 where all are whole numbers, or text that
    says the same."""
    if text:
        return column.cast(pa.large_string())
    whole = as_numbers(column) if is_text(column.type) else signed(column, what)
    assert whole is not None, "the import saw that all are numbers"
    return whole.cast(pa.int64())


def in_one_kind(*tables: tuple[pa.Table, Sequence[str]]) -> list[pa.Table]:
    """Tables whose columns of ids, which are named, are integers where all are whole numbers, written as text or not;
    else text."""
    columns = [table[name] for table, names in tables for name in names]
    numbers = [as_numbers(column) if is_text(column.type) else column for column in columns]
    whole = all(column is not None for column in numbers)
    found = iter(numbers if whole else [column.cast(pa.string()) for column in columns])
    return [with_columns(table, {name: next(found) for name in names}) for table, names in tables]


def as_names(ids: pa.ChunkedArray, what: str) -> NodeNames:
    """Names of nodes, text, in the order of their rows. Raises InputError: a name belongs to two nodes; `what` is their
    column."""
    if len(counted := pc.value_counts(ids)) < len(ids):
        raise repeated(next(f"'{c['values'].as_py()}'" for c in counted if c["counts"].as_py() > 1), what)
    return NodeNames.of_arrow(ids)


def with_gaps(ids: AnyArray, options: ReadOptions, notes: list[str], what: str) -> AnyArray | None:
    """The ascending `ids` if edges must be renumbered, which is noted; None if they are 0 to V - 1. Raises InputError:
    two are the same; or they have gaps, and that is an error."""
    if (ids[1:] == ids[:-1]).any():
        raise repeated(str(ids[1:][ids[1:] == ids[:-1]][0]), what)
    count = len(ids)
    if not count or (ids[0] == 0 and ids[-1] == count - 1):
        return None
    if options.missing_ids == "error":
        raise InputError(
            f"column {what} has gaps: {count} ids between {ids[0]} and {ids[-1]}; expected 0 to {count - 1}: set "
            "missing_ids=compact to renumber the nodes"
        )
    notes.append(f"Node ids had gaps: {count} nodes were renumbered from 0 in ascending order of id.")
    return ids


def repeated(shown: str, what: str) -> InputError:
    """Error for an id of several nodes."""
    return InputError(f"column {what} holds {shown} more than once; expected one row for each node")


def renumbered(ids: AnyArray, ends: AnyArray) -> AnyArray:
    """Edge ends as positions in the ascending `ids`, -1 where they are none of them."""
    at = np.minimum(np.searchsorted(ids, ends), len(ids) - 1)
    return np.where(ids[at] == ends, at, -1)


def unknown(count: int, what: str, first: str) -> InputError:
    """Error for ends of edges that are not nodes."""
    return InputError(
        f"{count} values of {what} (first: {str(first)[:80]}) are not the id of any node; give those nodes a row, or "
        "set dangling_edges=drop to leave these edges out, or dangling_edges=add to add the nodes"
    )
