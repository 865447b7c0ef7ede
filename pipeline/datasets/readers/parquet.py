"""Values of the columns of tables as arrays, by their roles."""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....storage.array_kinds import Mask
from ....storage.dataset import SPLITS
from ....storage.errors import InputError, nearest
from ..cleaning.arrow import pc
from ..cleaning.class_names import VALUES, numbered
from ..cleaning.filling import EXACT
from ..cleaning.kept import FeatureName
from ..cleaning.node_ids import is_text
from ..cleaning.raw import AnyArray, GivenLabels, UnequalListsError
from ..schema.columns import Columns, is_list
from ..schema.words import FLAGS, set_of


def numbers_of(column: pa.ChunkedArray, what: str) -> AnyArray:
    """Numbers [V], nulls as NaN. Raises InputError for a column of anything else."""
    if pa.types.is_decimal(column.type) or (is_text(column.type) and are_numbers(column)):
        column = column.cast(pa.float64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise NoNumbersError(f"column {what} is {column.type}; expected numbers")
    # Nulls become NaN through float64; the cleaner decides about NaN.
    if column.null_count or pa.types.is_boolean(column.type):
        column = column.cast(pa.float64())
    return column.to_numpy()


def are_numbers(column: pa.ChunkedArray) -> bool:
    """True for text that is numbers alone, such as 2.5; what is null does not count."""
    try:
        column.cast(pa.float64())
    except pa.ArrowException:
        return False
    return True


def times_of(table: pa.Table, key: str | None, stem: str) -> AnyArray | None:
    """Numbers of the column `key` of nodes or edges, nulls as NaN, or dates in the unit of the column; None without a
    key."""
    if key is None:
        return None
    column = table[key]
    if is_text(column.type):
        try:
            column = column.cast(pa.timestamp("us"))
        except pa.ArrowException:
            first = next((str(value) for value in column.unique().to_pylist() if value), "")[:40]
            said = f"column {stem}.{key} is {column.type} (first: '{first}')"
            utc = "dates in UTC without an offset such as 2026-01-31T12:00:00"
            raise InputError(f"{said}; expected numbers, or {utc}") from None
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.to_numpy()
    return numbers_of(column, f"{stem}.{key}")


class NoNumbersError(InputError):
    """A column holds something else than numbers."""


def matrix_of(column: pa.ChunkedArray, what: str) -> AnyArray:
    """[V, F] from a list column whose lists have one length; NaN for a null. Raises UnequalListsError."""
    width = list_width(column)
    check_lists(column, what, width)  # `flatten` alone would hide ragged rows
    flat = pa.chunked_array([c.flatten() for c in column.chunks], column.type.value_type)
    rows = numbers_of(flat, what).reshape(len(column) - column.null_count, width)
    if not column.null_count:
        return rows
    every = np.full((len(column), width), np.nan)
    every[column.is_valid().to_numpy()] = rows
    return every


def list_width(column: pa.ChunkedArray) -> int:
    """Length of the first list of a column that is not empty; 0 without one."""
    if pa.types.is_fixed_size_list(column.type):
        return column.type.list_size
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    first = pc.index(pc.not_equal(lengths, 0), True).as_py()
    return lengths[first].as_py() if first >= 0 else 0


def check_lists(column: pa.ChunkedArray, what: str, width: int, first: int = 0) -> None:
    """Raise UnequalListsError for a list of another length than `width`; `first` is the number of the first row."""
    other = pc.fill_null(pc.not_equal(pc.list_value_length(column), width), False)
    if (bad := pc.index(other, True).as_py()) >= 0:
        raise UnequalListsError(
            f"column {what} has lists of {width} and of {len(column[bad])} values (row {first + bad}); expected one "
            "length"
        )


def labels_of(table: pa.Table, columns: Sequence[str], stem: str = "nodes") -> GivenLabels:
    """Class numbers or targets [V] of one column, or [V, C] of several or of one of lists. Zeros if there are no
    columns."""
    if not columns:
        return GivenLabels(np.zeros(table.num_rows, np.int64))
    if len(columns) > 1:
        return GivenLabels(np.stack([numbers_of(table[c], f"{stem}.{c}") for c in columns], axis=1))
    (key,) = columns
    column = table[key]
    if is_list(column.type):
        return GivenLabels(matrix_of(column, f"{stem}.{key}"))
    if is_text(column.type):
        found = numbered(column)
        return GivenLabels(found.labels, found.class_names, stripped=found.stripped)
    if pa.types.is_null(column.type) or (column.null_count and pa.types.is_integer(column.type)):
        column = column.cast(pa.float64(), safe=False)
    return GivenLabels(numbers_of(column, f"{stem}.{key}"), nulls=column.null_count)


def feature_rows(table: pa.Table, wanted: Sequence[str], stem: str = "nodes") -> AnyArray | None:
    """[V, F] numbers from the columns `wanted` of nodes, or of edges; None without any."""
    if not wanted:
        return None
    if len(wanted) == 1 and is_list(table[wanted[0]].type):
        return matrix_of(table[wanted[0]], f"{stem}.{wanted[0]}")
    try:
        parts = [
            _as_float32((matrix_of if is_list(table[c].type) else numbers_of)(table[c], f"{stem}.{c}")) for c in wanted
        ]
    except NoNumbersError as e:
        text = ",".join(c for c in wanted if is_text(table[c].type))
        raise type(e)(f"{e}: one_hot={text} makes each value a feature" if text else str(e)) from e
    return np.concatenate([p if p.ndim == 2 else p[:, None] for p in parts], axis=1)


def feature_names(table: pa.Table, wanted: Sequence[str], width: int) -> Sequence[str]:
    """Names of the `width` columns of features that `feature_rows` has, such as age, city=Basel or embedding[3]; those
    of the table's columns where lists have no length."""
    names = list[str]()
    for c in wanted:
        kind, values = table.field(c).type, (table.field(c).metadata or {}).get(VALUES)
        if values is not None:
            names += [FeatureName(f"{c}={value}", c, value) for value in json.loads(values) or [""]]
        elif is_list(kind):
            length = width if len(wanted) == 1 else list_width(table[c])
            names += [FeatureName(f"{c}[{i}]", c) for i in range(length)]
        else:
            names.append(FeatureName(c, c))
    return names if len(names) == width else wanted


def _as_float32(values: AnyArray) -> AnyArray:
    """Values as float32, unless there may be whole numbers that it does not have, which the cleaner notes."""
    wide = values.dtype.itemsize > 4 and values.size and np.nanmax(np.abs(values), initial=0) > EXACT
    with np.errstate(over="ignore"):
        return values if wide else values.astype(np.float32)


def split_bits(table: pa.Table, columns: Columns, stem: str = "nodes") -> npt.NDArray[np.uint8] | None:
    """uint8 [V], for each row 1 if it is in the train set, 2 in val, 4 in test; None without a split. Raises
    InputError: a value names no set, or is no flag."""
    if columns.split is not None:
        return _bits_of_words(table[columns.split], f"{stem}.{columns.split}")
    bits = np.zeros(table.num_rows, np.uint8)
    for part, column in columns.masks.items():
        bits |= _flags(table[column], f"{stem}.{column}").astype(np.uint8) << SPLITS.index(part)
    return bits if columns.masks else None


def sets_of(bits: npt.NDArray[np.uint8] | None) -> dict[str, Mask]:
    """Masks of the sets by their names; empty without a split."""
    return {} if bits is None else {part: (bits >> i & 1).astype(bool) for i, part in enumerate(SPLITS)}


def _bits_of_words(column: pa.ChunkedArray, what: str) -> npt.NDArray[np.uint8]:
    if pa.types.is_nested(column.type):
        raise InputError(
            f"column {what} is {column.type}; expected train, val, test or null: set read.split=none if it is no split"
        )
    found = column.dictionary_encode().combine_chunks()
    values = found.dictionary.to_pylist()
    sets = [set_of(v) if isinstance(v, str) else None for v in values]
    strange = sorted(str(v) for v, part in zip(values, sets) if part is None and v is not None and str(v).strip())
    if strange:
        raise InputError(
            f"column {what} holds '{strange[0]}'; expected train, val, test or null{nearest(strange[0], SPLITS)}; "
            "set read.split=none if it is no split"
        )
    bit = np.array([*(0 if part is None else 1 << SPLITS.index(part) for part in sets), 0], np.uint8)
    return bit[found.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]


def _flags(column: pa.ChunkedArray, what: str) -> Mask:
    """bool [V]; null is false."""
    if is_text(column.type):
        folded = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), "")))
        yes, no = (pc.is_in(folded, value_set=pa.array(FLAGS[of])) for of in (True, False))
        other = folded.filter(pc.invert(pc.or_(yes, no)))
        if len(other):
            raise InputError(_no_flag(what, f"'{other[0].as_py()}'"))
        return yes.to_numpy()
    values = pc.fill_null(column.cast(pa.float64()), 0).to_numpy()
    if (strange := values[(values != 0) & (values != 1)]).size:
        raise InputError(_no_flag(what, f"{strange[0]:g}"))
    return values == 1


def _no_flag(what: str, shown: str) -> str:
    return (
        f"column {what} holds {shown[:40]}, and by its name flags the nodes of a set; expected true or false, or "
        "1 or 0: set read.split=none if it is no split, or feature_columns if it is a feature"
    )
