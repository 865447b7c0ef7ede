"""Numbering of classes whose names are text, and of the values of text columns."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....storage.array_kinds import AnyArray, IdArray
from ....storage.errors import InputError, nearest
from ....storage.plural import counted, were

if TYPE_CHECKING:
    import pyarrow as pa

NO_CLASS = {
    "unknown", "unk", "not known", "nan", "none", "null", "nil", "na", "n a", "missing", "undefined", "unspecified",
    "unlabeled", "unlabelled", "no label", "not available", "tbd", "?", "-", "--", ".",
}  # fmt: skip
"""Words in lower case, without punctuation unless they are nothing else, that often stand for a missing label."""

BELOW_ZERO = re.compile(r"-\d+$")


class Numbered(NamedTuple):
    """Classes by number."""

    labels: IdArray
    """int64 [V], -1 where the text is empty or null."""
    class_names: tuple[str, ...]
    """Sorted; whole numbers come first, by value."""
    stripped: int = 0
    """Labels with blanks around them, which are no part of the name."""


def numbered(labels: Any) -> Numbered:
    """The classes of labels [V] that are text: a pyarrow array or chunked array, or a sequence of strings and None."""
    import pyarrow as pa

    from .arrow import pc

    column: Any = labels if isinstance(labels, pa.Array | pa.ChunkedArray) else pa.array([*labels], pa.large_string())
    column = column.cast(pa.large_string())
    uses = pc.value_counts(column)
    seen, counts = uses.field("values"), uses.field("counts").to_numpy()
    bare = pc.utf8_trim_whitespace(seen)
    stripped = int(counts[pc.not_equal(seen, bare).fill_null(False).to_numpy(zero_copy_only=False)].sum())
    if stripped:
        column = pc.utf8_trim_whitespace(column)
    names = sorted({n for n in bare.to_pylist() if n}, key=by_value)
    at = pc.index_in(column, value_set=pa.array(names, pa.large_string()))
    return Numbered(at.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), tuple(names), stripped)


def by_value(name: str) -> tuple[bool, int, str]:
    """Key by which names of classes are sorted."""
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def without_ignored(found: Numbered, ignored: tuple[str, ...], notes: list[str], unit: str) -> Numbered:
    """The classes but those called one of `ignored`, whose labels are -1. Notes what was left out, blanks that were
    stripped, and names that may be no classes."""
    y, names, stripped = found
    if stripped:
        notes.append(f"Blanks around {counted(stripped, 'label')} were stripped.")
    counts = np.bincount(y[y >= 0], minlength=len(names)).tolist()
    of_name = dict(zip(names, counts))
    if ignored:
        each = ", ".join(f"'{name}' {of_name.get(name, 0):,}" for name in ignored)
        total = sum(of_name.get(name, 0) for name in ignored)
        meant = "".join(nearest(name, names) for name in ignored if name not in of_name)
        notes.append(f"{counted(total, 'label')} {were(total)} ignored (ignored_labels): {each}{meant}.")
        kept = [name for name in names if name not in ignored]
        place = {name: k for k, name in enumerate(kept)}
        y, names = np.array([*(place.get(name, -1) for name in names), -1])[y], tuple(kept)
    bare = [re.sub(r"[\W_]+", " ", name.lower()).strip() or name for name in names]
    if strange := [name for name, word in zip(names, bare) if word in NO_CLASS or BELOW_ZERO.match(name)]:
        some = " and ".join(f"'{name}' ({counted(of_name[name], unit)})" for name in strange)
        notes.append(
            f"{some} {'is read as a class' if len(strange) == 1 else 'are read as classes'}: if that means no label, "
            f"set ignored_labels={','.join(strange)}."
        )
    parts = {name: [part.strip() for part in re.split("[;|,]", name)] for name in names}
    uses = Counter(part for own in parts.values() for part in own)
    shared = {name for name, own in parts.items() if own[1:] and any(p in parts or uses[p] > 2 for p in own)}
    if joint := min(shared, default=None):
        said = f"'{joint}' is read as a class: if it is several labels of one {unit}"
        notes.append(f"{said}, give a column of 0 and 1 for each (label_columns).")
    alike = defaultdict(list)
    for name in names:
        alike[str(int(name)) if name.isdecimal() else name.casefold()].append(f"'{name}'")
    if several := next((group for group in alike.values() if len(group) > 1), None):
        how = "zeros before the number" if several[0].strip("'").isdecimal() else "upper and lower case"
        notes.append(f"The classes {' and '.join(several)} differ in {how} only.")
    return Numbered(y, names, stripped)


def numbered_text(labels: AnyArray) -> Numbered:
    """`numbered` for a NumPy array of text, or of objects that are all text or None. Raises InputError otherwise."""
    if labels.dtype.kind == "O" and not any(isinstance(v, str | bytes) for v in labels.flat):
        raise InputError("labels are Python objects; expected class numbers, or text for every class")
    values = labels.reshape(-1).tolist()
    values = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
    other = next((v for v in values if not (v is None or isinstance(v, str))), None)
    if other is not None:
        raise InputError(f"labels mix text and {type(other).__name__}; expected class numbers, or text for every class")
    return numbered(values)


MOST_VALUES = 1000
"""Most values of a column, each of which takes a feature of its own."""
VALUES, UNKNOWN = b"one_hot", b"unknown"
"""Keys of the values in the metadata of a field, and of a note on others."""
SAME = ((r"^(-?\d+(?:\.\d*[1-9])?)\.?0*$", r"\1"), (r"^-0$", "0"), ("^(?i:true)$", "true"), ("^(?i:false)$", "false"))
"""Patterns of numbers and flags, which files write in several ways, and the one way that stands for all."""
SHOWN_VALUES = 5
"""Most values that a note names."""


def one_hot_values(table: "pa.Table", named: Sequence[str], title: str) -> dict[str, tuple[str, ...]]:
    """The values that columns among `named` have in a piece of the table `title`, at most one more than there may be.
    Raises InputError: a column holds lists."""
    import pyarrow as pa

    for name in (n for n in named if n in table.column_names and pa.types.is_nested(table[n].type)):
        raise InputError(f"column {title}.{name} is {table[name].type}; expected text or numbers for read.one_hot")
    return {n: numbered(_as_values(table[n])).class_names[: MOST_VALUES + 1] for n in named if n in table.column_names}


def _as_values(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """A column as text, one for each value: ``1`` and ``1.0`` are one, ``1`` and ``01`` are two."""
    import pyarrow as pa

    from .arrow import pc

    text = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    for pattern, instead in SAME:
        text = pc.replace_substring_regex(text, pattern, instead)
    return text


def _note_unknown(text: "pa.ChunkedArray", what: str) -> str:
    """A note on values that are not known; empty without any but nulls and empty text."""
    uses = Counter(filter(None, text.to_pylist()))
    if not uses:
        return ""
    some = ", ".join(sorted(uses, key=by_value)[:SHOWN_VALUES]) + (", ..." if len(uses) > SHOWN_VALUES else "")
    values, rows = counted(len(uses), "value"), counted(uses.total(), "row")
    return f"Column {what} has {values} that the run does not know ({some}), in {rows}, whose features of it are all 0."


def with_one_hot(table: "pa.Table", values: Mapping[str, Sequence[str]], title: str) -> "pa.Table":
    """A piece of the table `title` with lists of 0 and 1 in the columns that have `values`; all 0 for a null or empty
    text. Values are in the order of class names, and in the metadata of the field. Raises InputError: a column has too
    many values."""
    import pyarrow as pa

    from .arrow import pc

    for name, names in values.items():
        if len(names) > MOST_VALUES:
            said = f"column {title}.{name} has more than {MOST_VALUES:,} values, each a feature with read.one_hot"
            raise InputError(f"{said}: join rare ones, or leave it out")
        if name not in table.column_names:
            continue
        text = _as_values(table[name])
        # Those of an earlier version's run may have 1.0.
        at = pc.index_in(text, value_set=_as_values(pa.chunked_array([names], pa.large_string())))
        note, codes = _note_unknown(text.filter(at.is_null()), f"{title}.{name}"), at.to_numpy(zero_copy_only=False)
        rows = (codes[:, None] == np.arange(max(1, len(names)))).astype(np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        field = pa.field(name, lists.type, metadata={VALUES: json.dumps([*names]).encode(), UNKNOWN: note.encode()})
        table = table.set_column(table.column_names.index(name), field, lists)
    return table
