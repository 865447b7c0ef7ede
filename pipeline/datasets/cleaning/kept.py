"""Features of other data than those that a run was trained on: their columns, values and numbers are the run's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .options import ReadOptions

READ = ", but the run reads it as a feature"
"""Ending of a message on a column that is missing."""
PAIRS = "labelled edges"
"""Place in a data card of the columns of labelled edges, where they are not those of the graph's edges."""
SHOWN = 8
"""Most columns that a note names."""
KeptColumn = Mapping[str, Any]
"""Record of a column of features: the `column` of a table that it is of, its `value` of one_hot, its `mean` and
`deviation`, what fills it by the way of `fill_key`, and whether it is `indicated`. What does not apply is left out."""


class Cautioned(str):
    """A note on other data that predictions for them depend on."""


class FeatureName(str):
    """Name of a column of features, with the column of the table that it is made of."""

    column: str
    value: str | None

    def __new__(cls, name: str, column: str = "", value: str | None = None) -> "FeatureName":
        """A name."""
        found = super().__new__(cls, name)
        found.column, found.value = column, value
        return found


@dataclass(frozen=True)
class OtherOptions(ReadOptions):
    """Options by which data are read as those that a run was trained on."""

    before: Mapping[str, Sequence[KeptColumn]] = field(default_factory=dict)
    """The run's columns of features, by what they are of: nodes, edges, a node type or a relation."""
    chosen: bool = False
    """True if the columns of features are others than the run's, as whoever asks says."""
    is_new: bool = False
    """True if the data are not opened as the run's own: they keep the split that they store, and are test data where
    they store none."""

    def values(self, of: str, column: str) -> tuple[str, ...]:
        """The run's values of a column of one_hot; empty if it kept none."""
        # Before edges are those of relations, they are in one table.
        every = [self.before[of]] if of in self.before else list(self.before.values())
        each = (tuple(c["value"] for c in own if c.get("column") == column and "value" in c) for own in every)
        return next(filter(None, each), ())

    def columns(self, of: str) -> tuple[str, ...]:
        """The run's columns of a table that are features, in order; empty if it kept none."""
        own = () if self.chosen else self.before.get(of, ())
        return tuple(dict.fromkeys(c["column"] for c in own if "column" in c))

    def features(
        self, of: str, names: Sequence[str], wanted: tuple[str, ...], by_name: bool
    ) -> tuple[tuple[str, ...], list[str], list[str]]:
        """The columns of a table that the run reads as features, in its order, in place of those `wanted`, which words
        have chosen if `by_name`; those that are not among `names`; and notes."""
        kept = self.columns(of)
        bare = [c for c in self.names("one_hot") or () if c in names and not self.values(of, c)]
        own = "are this data's own, since the run kept none: train it again"
        notes: list[str] = [Cautioned(f"The values of {c} {own}.") for c in bare]
        if not kept or (by_name and not any(c in names for c in kept)):
            if kept and wanted:
                ours, theirs = (", ".join(c[:SHOWN]) + (", ..." if len(c) > SHOWN else "") for c in (kept, wanted))
                called = f"Features of {of} are called {theirs}, and the run's {ours}"
                notes.append(Cautioned(f"{called}: they are taken in order."))
            return wanted, [], notes
        if more := [c for c in wanted if c not in kept]:
            some = ", ".join(more[:SHOWN]) + (", ..." if len(more) > SHOWN else "")
            notes.append(f"Not read of {of}, since the run has no such features: {some}.")
        return tuple(c for c in kept if c in names), [c for c in kept if c not in names], notes


def as_other(options: ReadOptions) -> OtherOptions | None:
    """The options, if they are of other data than a run's own."""
    return options if isinstance(options, OtherOptions) else None


def is_new(options: ReadOptions) -> bool:
    """True if the options are of data that keep the split that they store: see `OtherOptions.is_new`."""
    return isinstance(options, OtherOptions) and options.is_new


def of_pairs(options: ReadOptions) -> ReadOptions:
    """The options for labelled pairs, whose columns of features are not those of the graph's edges if they have a
    record of their own, or a file."""
    if isinstance(options, OtherOptions) and (options.pairs is not None or PAIRS in options.before):
        # Their record says which columns have another one; names of `indicators` are those of the graph's.
        return replace(options, before={"edges": options.before.get(PAIRS, ())}, indicators=None)
    return options


def fill_key(options: ReadOptions) -> str:
    """The key of a record with what fills a column's missing values."""
    return f"{options.nan_features} after {options.normalize_features}"


def uses_statistics(options: ReadOptions) -> bool:
    """True if columns are scaled, or filled, by numbers of all rows."""
    return options.normalize_features == "standard" or options.nan_features in ("mean", "median")


def own_statistics(options: ReadOptions) -> str:
    """A note: features are scaled or filled by numbers of these data in place of a run's."""
    ways = ["scaled by this data's own mean and deviation"] if options.normalize_features == "standard" else []
    if options.nan_features in ("mean", "median"):
        ways.append(f"filled by this data's own {options.nan_features}")
    how = f"Features were {' and '.join(ways)}, since the run kept none"
    return Cautioned(f"{how}: train again to read other data as the run's.")


def made_of_tables(options: OtherOptions) -> str:
    """A line on the rows that a run's model takes, if they are not those of tables as these stand; else no text."""
    own = [c for of, columns in options.before.items() if of not in ("edges", PAIRS) and "," not in of for c in columns]
    kept = [{key: value for key, value in c.items() if value is not False} for c in own]
    made = ["=".join(str(c[k]) for k in ("column", "value") if k in c) for c in kept if {*c} - {"column"}]
    named = (", ".join(filter(None, made[:SHOWN])) + ", ..." * (len(made) > SHOWN)) or "all columns"
    told = f"\nx takes rows as the run read them, not those of tables: {named}; --json prints the numbers and options"
    return told if made or options.normalize_features != "none" else ""
