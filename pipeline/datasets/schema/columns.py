"""Columns of one table by their roles, and the assignment of these: by the user's keys, by what the format says, by
words; in this order, and each column has one role."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from ....storage.errors import nearest
from ..cleaning.kept import READ, Cautioned, as_other
from . import words
from .source import Problems, Role, SourceTable

if TYPE_CHECKING:
    import pyarrow as pa

    from ..cleaning.options import ReadOptions

NONE = "none"
"""Value of a key by which no column has its role; behind names: none has it if they are not there."""
SWEPT = "read.feature_columns=*"
SHOWN_COLUMNS = 8  # most columns named in a note


@dataclass(frozen=True)
class Columns:
    """Columns of one table, of nodes or of edges, by role."""

    table: str
    """Name of the table in messages."""
    id: str | None = None
    """None: nodes are numbered by their rows."""
    ends: tuple[str, str] = ("src", "dst")
    """Columns of the sources and of the destinations of edges."""
    weight: str | None = None
    time: str | None = None
    relation: str | None = None
    labels: tuple[str, ...] = ()
    split: str | None = None
    masks: Mapping[str, str] = field(default_factory=dict)
    """Columns of flags by the sets train, val, test."""
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was chosen in this table, and what is not read of it."""
    roles: Mapping[str, tuple[Role, str]] = field(default_factory=dict)
    """Role of each column of the table, and the reason."""

    @property
    def of_split(self) -> tuple[str, ...]:
        """Columns that the split is read from."""
        return (*(() if self.split is None else (self.split,)), *self.masks.values())

    @property
    def swept(self) -> tuple[str, ...]:
        """Columns that are features since all that are left are."""
        return tuple(name for name, role in self.roles.items() if role == ("feature", SWEPT))

    @property
    def unread(self) -> tuple[str, ...]:
        """Columns without a meaning."""
        return tuple(name for name, (role, _) in self.roles.items() if role == "not read")


def is_list(kind: "pa.DataType") -> bool:
    """True for the type of a column of lists."""
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_numeric(kind: "pa.DataType") -> bool:
    """True for the type of a column of numbers, flags, or lists of these."""
    import pyarrow as pa

    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(fits(kind.value_type if is_list(kind) else kind) for fits in known)


def listed(columns: Sequence[str]) -> str:
    """The first names of columns, and how many more there are."""
    more = f" and {len(columns) - SHOWN_COLUMNS} more" if len(columns) > SHOWN_COLUMNS else ""
    return ", ".join(columns[:SHOWN_COLUMNS]) + more


def no_column(source: object, table: str, key: str, names: Sequence[str]) -> str:
    """Fault of a table without a column."""
    shown = listed([n[:40] for n in names]) or "nothing"
    return f"{source}: {table} has no column '{key}'; it holds {shown}{nearest(key, names)}"


class Assignment:
    """The roles of one table's columns while they are being assigned."""

    def __init__(
        self, table: SourceTable, head: "pa.Schema", options: "ReadOptions", source: object, elsewhere: Collection[str]
    ) -> None:
        """Take the columns `head` of a table; `source` is for messages, and columns of keys `elsewhere` may be those of
        another table."""
        self.table, self.options, self.source, self.elsewhere = table, options, source, elsewhere
        self.head = head
        self.names, self.kinds = list(head.names), {f.name: f.type for f in head}
        self.roles: dict[str, tuple[Role, str]] = {}
        self.problems, self.notes = Problems(), list[str]()
        self.features = self._of_key("feature_columns" if table.kind == "nodes" else "edge_feature_columns")

    # -- the parts that both kinds of table share

    def _of_key(self, key: str) -> tuple[str, ...] | None:
        """Columns of this table that a key names; None if it names none, ("*",) for all."""
        named = self.options.names(key)
        if named is None or named == (NONE,) or (named == ("*",) and key not in ONE_OF_A_TABLE):
            return named
        absent = [c for c in named if c not in self.names]
        if NONE in absent:
            return tuple(c for c in named if c in self.names) or (NONE,)
        if key not in self.elsewhere:
            for c in absent:
                text = no_column(self.source, self.table.title, c, self.names)
                drawn = key == "split" and ": set read.split to the column of the sets, or read.split=none to draw them"
                self.problems.add(text + (drawn or ""))
        found = tuple(c for c in named if c in self.names)
        # If another table has it, words decide here.
        return found or (None if absent and key in ONE_OF_A_TABLE else ())

    def give(self, column: str, role: Role, why: str) -> None:
        """Give a column without a role one."""
        self.roles.setdefault(column, (role, why))

    def free(self) -> list[str]:
        """Columns without a role that no key makes features, nor the format leaves unread."""
        named = () if self.features in (None, ("*",)) else self.features or ()
        return [n for n in self.names if n not in (*self.roles, *named, *self.stated("not read"))]

    def stated(self, role: Role) -> list[str]:
        """Columns to which the format itself gives a role."""
        return [n for n, own in self.table.roles.items() if own == role and n in self.names and n not in self.roles]

    def one(self, key: str, role: Role, by_words: Sequence[str]) -> str | None:
        """The column with a role that one column has: of its key, of the format, or the first of `by_words`."""
        named = self._of_key(key)
        if named == (NONE,):
            return None
        if named:
            self.give(named[0], role, f"read.{key}={named[0]}")
            return named[0]
        if stated := self.stated(role):
            self.give(stated[0], role, "the format says so")
            return stated[0]
        if not by_words or named is not None:
            return None
        self.give(by_words[0], role, "by its name")
        return by_words[0]

    def of_labels(self, by_key: bool = True) -> tuple[str, ...]:
        """Columns of labels, which are read. The key may be about other tables."""
        named, found = self.options.names("label_columns") if by_key else None, words.label_columns(self.free())
        if named is not None:
            # A word for labels stands for the column that another one of them calls.
            named = tuple(
                found[0] if c not in self.names and found and words.first_of([c], words.LABELS) else c for c in named
            )
            if self.options.task == "link" and self.options.labels_of == "nodes":  # labels need not be there
                named = tuple(c for c in named if c in self.names)
            elif "label_columns" not in self.elsewhere:
                for c in named:
                    if c not in self.names:
                        self.problems.add(no_column(self.source, self.table.title, c, self.names))
            elif not all(c in self.names for c in named):
                return ()
            why = "read.label_columns"
        else:
            stated = tuple(self.stated("label"))
            named, why = (stated, "the format says so") if stated else (found, "by its name")
        for c in named:
            self.give(c, "label", why)
        return named

    def of_split(self, is_read: bool = True) -> tuple[str | None, dict[str, str]]:
        """The column of the split, or those of flags by set; several are a fault where one is read."""
        named = self._of_key("split")
        if named == (NONE,):
            for c in (*self._split_words(), *chain(*self._mask_words().values())):
                self.give(c, "not read", "read.split=none")
            return None, {}
        if named:
            masks = {part: c for c in named if (part := words.mask_of(c)) is not None}
            for c in named:
                self.give(c, "mask" if masks else "split", f"read.split={','.join(named)}")
            if masks and len(masks) < len(named):
                other = next(c for c in named if c not in masks.values())
                self.problems.add(
                    f"read.split has '{other}', which names no set; expected train_mask, val_mask, test_mask"
                )
            return (None, masks) if masks else (named[0], {})
        columns, flags = self.stated("split") or self._split_words(), self._mask_words()
        masks = {part: of[0] for part, of in flags.items()}
        if is_read and (more := [c for of in flags.values() for c in of[1:]]):
            first = ",".join(masks.values())
            said = f"{self.source}: {self.table.title} has several splits: {first}, and {', '.join(more)}"
            self.problems.add(f"{said}; set read.split={first}, or others", split=first)
        if is_read and len(columns) + bool(masks) > 1:
            both = [*columns, *masks.values()]
            self.problems.add(
                f"{self.source}: {self.table.title} has several splits: {', '.join(both)}; expected one: set "
                f"read.split={both[0]}, or read.split=none",
                split=both[0],
            )
        for c in columns[:1]:
            self.give(c, "split", "by its name")
        if columns:
            return columns[0], {}
        for part, c in masks.items():
            self.give(c, "mask", f"flags the {part} set by its name")
        return None, masks

    def _split_words(self) -> list[str]:
        texts = [n for n in self.free() if words.fold(n) == "mask" and not is_numeric(self.kinds[n])]
        return [n for n in self.free() if words.fold(n) in words.SPLIT_COLUMNS] + texts

    def _mask_words(self) -> dict[str, list[str]]:
        from ..cleaning.node_ids import is_text

        # Text in a column `test` may be anything; in one `test_mask` it flags.
        text = {n for n in self.free() if is_text(self.kinds[n]) and words.part_of(n) is None}
        free = [n for n in self.free() if n in text or (is_numeric(self.kinds[n]) and not is_list(self.kinds[n]))]
        found = {part: [n for n in free if words.mask_of(n) == part] for part in words.PARTS}
        return {part: of for part, of in found.items() if of}

    def of_features(self, key: str, skip: Iterable[str] = ()) -> tuple[str, ...]:
        """Columns of features: those of the key, or those of their names. The rest is noted as not read."""
        others = [n for n in self.names if n not in self.roles and n not in skip and n]
        wanted, why = self.features, f"read.{key}"
        if wanted == ("*",):
            wanted = tuple(n for n in others if is_numeric(self.kinds[n]) and not words.looks_like_id(n))
            why = f"read.{key}=*"
            if wanted:
                self.notes.append(f"Features of {self.table.title} ({key}=*): {', '.join(wanted)}.")
        elif wanted is None:
            stated = tuple(self.stated("feature"))
            wanted, why = (stated, "the format says so") if stated else (self._customary(others), "by its name")
        if (other := as_other(self.options)) is not None:
            wanted, absent, notes = other.features(self.table.features_of, self.names, wanted, self.features is None)
            self.problems.texts += [no_column(self.source, self.table.title, c, self.names) + READ for c in absent]
            self.notes += notes
        for c in wanted:
            self.give(c, "feature", why)
        return (*wanted, *self._one_hot(wanted))

    def _one_hot(self, wanted: Sequence[str]) -> Iterator[str]:
        """Columns of `one_hot` beside the features `wanted`, which are lists of 0 and 1 now."""
        for c in self.options.names("one_hot") or ():
            if c not in self.names:
                continue
            values = ", ".join(json.loads((about := self.head.field(c).metadata or {}).get(b"one_hot", b"[]")))
            said = f"Column {c} of {self.table.kind} is a feature for each value, all 0 where empty (one_hot)"
            self.notes.append(f"{said}: {values[:200]}.")
            self.notes += map(Cautioned, filter(None, [about.get(b"unknown", b"").decode()]))
            if c not in wanted and c in self.free():
                self.give(c, "feature", "read.one_hot")
                yield c

    def _customary(self, names: Sequence[str]) -> tuple[str, ...]:
        """Columns that are features by their names: one of lists, or numbered ones."""
        lists = [n for word in words.LISTS for n in names if words.fold(n) == word]
        if lists and is_list(self.kinds[lists[0]]):
            return (lists[0],)
        if lists and not self._is_drawn(names):
            self.problems.add(
                f"{self.source}: column {self.table.title}.{lists[0]} is {self.kinds[lists[0]]}; expected a list of "
                "numbers in every row: name the features with read.feature_columns"
            )
        return words.numbered_features(names)

    def _is_drawn(self, names: Sequence[str]) -> bool:
        """True for a table with coordinates of a drawing, x and y."""
        here = [n for n in self.names if words.fold(n) in words.LAYOUT and not is_list(self.kinds[n])]
        return len({words.fold(n) for n in here} & {"x", "y"}) == 2

    def result(self, **found: Any) -> Columns:
        """The columns; those without a role are not read."""
        for n in self.names:
            why = "the format says so" if self.table.roles.get(n) == "not read" else "no key or word gives it a role"
            self.give(n, "not read", why)
        return Columns(self.table.title, notes=tuple(self.notes), roles={n: self.roles[n] for n in self.names}, **found)

    # -- nodes

    def nodes(self, *, labelled: bool, why_not: str) -> Columns:
        """Roles of the columns of a table of nodes, whose labels and split are read if they are `labelled`; else the
        reason is `why_not`."""
        node_type = self.table.type if isinstance(self.table.type, str) else None
        by_key = self.options.id is not None and (self.options.id in (*self.names, NONE) or "id" not in self.elsewhere)
        candidates = [] if by_key or self.stated("id") else words.id_columns(self._may_be_id(), node_type)
        if len(candidates) > 1:
            self.problems.add(
                f"{self.source}: {self.table.title} has several columns that look like ids: {', '.join(candidates)}; "
                f"set read.id={candidates[0]}, or read.id=none to number nodes by their rows",
                id=candidates[0],
            )
        own = self.one("id", "id", candidates)
        time = self.one("node_time", "time", ())
        drawn = self.options.label_columns is None and self._is_drawn(self.names)
        if drawn:
            for n in self.free():
                if words.fold(n) in words.LAYOUT and not is_list(self.kinds[n]):
                    self.give(n, "not read", "x and y look like the positions of a drawing")
        labels, (split, masks) = self.of_labels(self.options.labels_of == "nodes"), self.of_split(labelled)
        if not labelled:
            labels, split, masks = (), None, {}
            told = [n for n, (role, _) in self.roles.items() if role in ("label", "split", "mask")]
            for n in told:
                self.roles[n] = ("not read", why_not)
        features = self.of_features("feature_columns")
        self._note_nodes(features)
        return self.result(id=own, time=time, labels=labels, split=split, masks=masks, features=features)

    def _may_be_id(self) -> list[str]:
        taken = {*(self.options.names("label_columns") or ()), self.options.node_time}
        return [n for n in self.names if n not in taken and (n in self.free() or n == "id")]

    def _note_nodes(self, features: Sequence[str]) -> None:
        """Note the columns of nodes that are not read."""
        left = [n for n in self.names if n not in self.roles and n]
        ids = [n for n in left if words.looks_like_id(n)]
        takable = [n for n in left if is_numeric(self.kinds[n]) and n not in ids]
        if takable:
            both = [*features, *takable]
            value = ",".join(both) if len(both) <= SHOWN_COLUMNS else "*"
            how = self._advice(f"feature_columns={value} takes them as features") if self.features is None else ""
            self.notes.append(f"Columns of {self.table.kind} were not read: {listed(takable)}{how}.")
        if text := [n for n in left if n not in takable and n not in ids]:
            self.notes.append(f"Columns of {self.table.kind} that are not numeric were not read: {listed(text)}.")
        if ids:
            self.notes.append(f"Columns of {self.table.kind} that look like ids were not read: {listed(ids)}.")

    def _advice(self, text: str) -> str:
        """Advice behind a note on columns; none on data whose columns are chosen by a run."""
        return f" ({text})" if as_other(self.options) is None else ""

    # -- edges

    def edges(self, *, labelled: bool) -> Columns:
        """Roles of the columns of a table of edges, which are those that are predicted if `labelled`."""
        ends = self._ends()
        time, relation = self.one("edge_time", "time", ()), self.one("relation_column", "relation", ())
        labels: tuple[str, ...] = ()
        split, masks = None, dict[str, str]()
        if labelled:
            labels, (split, masks) = self.of_labels(), self.of_split()
        elif self.options.task == "link" and self.options.labels_of == "nodes" and self.options.split is None:
            self._check_no_sets()
        by_word = words.first_of(self.free(), words.WEIGHTS)
        weight = self.one("weight", "weight", [] if by_word is None else [by_word])
        features = self.of_features("edge_feature_columns")
        if left := [n for n in self.names if n not in self.roles and n]:
            takable = [*features, *(n for n in left if is_numeric(self.kinds[n]) and not words.looks_like_id(n))]
            value = ",".join(takable) if len(takable) <= SHOWN_COLUMNS else "*"
            more = len(takable) > len(features)
            how = self._advice(f"edge_feature_columns={value} takes them as features") if more else ""
            if (kind := words.first_of(left, words.RELATIONS)) is not None and self.table.type is None:
                how += self._advice(f"relation_column={kind} makes a relation of each of its values")
            self.notes.append(f"Columns of edges were not read: {listed(left)}{how}.")
        return self.result(
            ends=ends, time=time, relation=relation, labels=labels, split=split, masks=masks, weight=weight,
            features=features,
        )  # fmt: skip

    def _check_no_sets(self) -> None:
        """A fault of a column of sets, which links are not divided by."""
        if found := [*self._split_words(), *chain(*self._mask_words().values())]:
            self.problems.add(
                f"{self.source}: {self.table.title} has the column {found[0]}, and links are not divided by it: give "
                "the file of edges as pairs=FILE too, which reads it, or set read.split=none to draw a split"
            )

    def _ends(self) -> tuple[str, str]:
        """Columns of the two ends of edges; a fault if they are not clear."""
        free = self.free()
        found = words.end_columns(free)
        sides = words.end_words(free)
        ends: list[str] = []
        several = len(found) > 1 and not (self.options.src or self.options.dst or self.stated("source"))
        if several:
            shown = " or ".join(f"{s} and {t}" for s, t in found)
            self.problems.add(
                f"{self.source}: {self.table.title} has several columns of ends: {shown}; set read.src and read.dst",
                src=found[0][0],
                dst=found[0][1],
            )
        for i, (key, role) in enumerate((("src", "source"), ("dst", "target"))):
            by_words = [pair[i] for pair in found[:1]] or sides[i][:1]
            column = self.one(key, role, [c for c in by_words if c not in self.roles])  # ty: ignore
            ends.append(column if column is not None else "")
        if "" in ends and not several:
            spare = [n for n in free if n and n not in ends and not is_list(self.kinds[n])]
            spare = spare if any(ends) else words.likely_ends(spare)
            for i, key in enumerate(("src", "dst")):
                if not ends[i]:
                    column = spare.pop(0) if spare else None
                    hint = "" if column is None else f": set read.{key} to its name"
                    text = no_column(self.source, self.table.title, key, self.names)
                    self.problems.add(text + hint, **{key: column})
        if self.table.type is None and (kinds := words.kinds_of_ends(ends)):
            said = f"{' and '.join(ends)} are read as ids of one kind, so that equal ones are one node"
            files = f"nodes-{kinds[0]}.csv, nodes-{kinds[1]}.csv and edges-{kinds[0]}-to-{kinds[1]}.csv"
            self.notes.append(f"{said}: if there are two, give {files}.")
        return ends[0], ends[1]


ONE_OF_A_TABLE = ("id", "src", "dst", "weight", "split", "relation_column", "edge_time", "node_time")
"""Keys for one column, or one split, of a table."""
