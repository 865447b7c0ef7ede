"""Missing values of features: columns are scaled by the values that are known, and then filled."""

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.array_kinds import AnyArray, Float32Array, Float64Array, IdArray, IntArray
from ....storage.errors import InputError, nearest
from ....storage.plural import are, counted, were
from ....storage.stored.data_card import TREATED
from ....storage.stored.totals import MAX, MIN, SUM, Rule, Totals
from .kept import PAIRS, FeatureName, KeptColumn, fill_key, uses_statistics
from .moments import Integers, Moments, Scaling
from .options import ReadOptions

Mask = npt.NDArray[np.bool_] | None
"""[n, F], True where a value is missing: NaN, or infinite as float32. None: nowhere."""
Bins = Mapping[int, Sequence[int] | None]
"""Bins of values by column; None: all."""
Counts = Mapping[str, Any]
"""See `value_counts`."""
EXACT = 1 << 24
"""Whole numbers up to it are exact in float32."""
SHOWN = 8
"""Most columns that a note names."""
WAYS = {
    "zero": "with 0",
    "mean": "with the mean of the known ones",
    "median": "with the median of the known ones",
    "indicator": "with 0, and a column for each says where they were",
}
IS_MISSING = " is missing"
"""Behind the name of a column, the name of the one that says where it misses values."""
HALF = 16
"""Bits of a float32 that select a bin of values."""


def taken_out(x: Float32Array) -> Mask:
    """Where values are missing, which become 0, in place."""
    bad = ~np.isfinite(x)
    if not bad.any():
        return None
    x[bad] = 0
    return bad


def column_names(columns: Sequence[str], width: int) -> list[str]:
    """A name for each of F columns of features that come from table `columns`; these are lists where they are fewer."""
    if len(columns) == width:
        return list(columns)
    return [f"{columns[0]}[{i}]" if len(columns) == 1 else f"column {i}" for i in range(width)]


def _earlier(row: int, other: int) -> int:
    return min((r for r in (row, other) if r >= 0), default=-1)


@dataclass(frozen=True, eq=False)
class Seen(Totals):
    """What F columns of features hold in some rows."""

    rows: int = field(metadata={"rule": Rule(operator.add)})
    missing: IdArray = field(metadata=SUM)
    """[F]."""
    least: Float32Array = field(metadata={"rule": Rule(np.minimum, np.inf, np.float32)})
    """[F], of the known values; infinite without any."""
    largest: Float32Array = field(metadata={"rule": Rule(np.maximum, -np.inf, np.float32)})
    first: int = field(metadata={"rule": Rule(_earlier, -1)})
    """Row of the first missing value; -1 without any."""
    rounded: IdArray = field(metadata=SUM)
    """[F], whole numbers that float32 does not have."""
    low: Float64Array = field(metadata=MIN)
    """[F], `least` before it was float32."""
    high: Float64Array = field(metadata=MAX)

    @classmethod
    def from_rows(
        cls, x: Float32Array, bad: Mask, numbers: int | IntArray = 0, given: AnyArray | None = None
    ) -> "Seen":
        """Totals of rows [n, F] whose values were missing where they are `bad`; `numbers` is that of the first row, or
        those of all, `given` the rows before they were float32."""
        least, largest = x.min(0, initial=np.inf), x.max(0, initial=-np.inf)
        missing = np.zeros(x.shape[1], np.int64) if bad is None else bad.sum(0)
        for c in np.flatnonzero(missing):
            known = x[~bad[:, c], c]  # pyrefly: ignore[unsupported-operation]
            least[c], largest[c] = known.min(initial=np.inf), known.max(initial=-np.inf)
        low, high, rounded = least.astype(np.float64), largest.astype(np.float64), np.zeros(x.shape[1], np.int64)
        if given is not None and given.dtype.itemsize > 4:
            for c in np.flatnonzero(np.maximum(-least, largest) >= EXACT):
                own = slice(None) if bad is None else ~bad[:, c]
                before, after = given[own, c].astype(np.float64), x[own, c]
                rounded[c] = ((before != after) & (before == np.floor(before))).sum()
                low[c], high[c] = before.min(initial=np.inf), before.max(initial=-np.inf)
        first = -1
        if bad is not None:
            rows = np.flatnonzero(bad.any(1))
            first = int(numbers + rows[0] if isinstance(numbers, int) else numbers[rows].min())
        return cls(len(x), missing, least, largest, first, rounded, low=low, high=high)

    def columns(self, columns: Sequence[str], of: str) -> list[dict[str, Any]]:
        """A data card's record of each column, `of` nodes, edges, a node type or a relation."""
        return [
            {
                "of": of,
                "name": name,
                "missing": int(missing),
                "least": float(low) if low <= high else None,
                "largest": float(high) if low <= high else None,
                "constant": bool(low >= high),
            }
            for name, missing, low, high in zip(
                column_names(columns, len(self.missing)), self.missing, self.low, self.high
            )
        ]

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        known = self.least <= self.largest
        return max(float(self.largest[known].max(initial=0)), -float(self.least[known].min(initial=0)))

    def check(self, options: ReadOptions, notes: list[str], columns: Sequence[str], unit: str = "node") -> None:
        """Note missing values of nodes or edges, the `unit`, which are filled; `columns` as in `column_names`. Raises
        InputError if there are any and they are an error."""
        self._check_exact(notes, columns)
        if not (count := int(self.missing.sum())):
            return
        names, kind = column_names(columns, len(self.missing)), options.nan_features
        bare = np.flatnonzero(self.missing)
        each = ", ".join(f"'{names[c]}' {self.missing[c]:,}" for c in bare[:SHOWN])
        each += f" and {len(bare) - SHOWN} more columns" if len(bare) > SHOWN else ""
        what = "feature value" if unit == "node" else f"{unit} feature value"
        if kind == "error":
            where = f"{unit} {self.first}" + ("" if unit == "node" else " of the input")
            raise InputError(
                f"{counted(count, what)} {are(count)} NaN or infinite (first: {where}): {each}; set "
                "nan_features=zero, mean, median or indicator to fill them, or correct them"
            )
        scaled = unit == "node" and options.normalize_features != "none"
        after = ", after columns were scaled by the known ones" if scaled else ""
        notes.append(
            f"{counted(count, f'NaN or infinite {what}')} {were(count)} filled {WAYS[kind]}{after} "
            f"(nan_features={kind}): {each}."
        )
        if unknown := [names[c] for c in bare if self.missing[c] == self.rows]:
            notes.append(f"No value of {', '.join(map(repr, unknown[:SHOWN]))} is known, so that it is constant.")

    def _check_exact(self, notes: list[str], columns: Sequence[str]) -> None:
        """Note whole numbers that float32 rounds. Raises InputError if it makes one value of all of a column."""
        names = column_names(columns, len(self.missing))
        instead = "subtract a start from them, or leave the column out (node_time and edge_time take times)"
        if len(gone := np.flatnonzero((self.low < self.high) & (self.least == self.largest))):
            c = gone[0]
            raise InputError(
                f"'{names[c]}' from {self.low[c]:,.0f} to {self.high[c]:,.0f} is one value as float32 (and as "
                f"float16, bfloat16 and int8); {instead}"
            )
        for c in np.flatnonzero(self.rounded)[:SHOWN]:
            step = float(np.spacing(np.float32(max(-self.low[c], self.high[c]))))
            notes.append(
                f"{counted(int(self.rounded[c]), 'whole number')} of '{names[c]}' (to {self.high[c]:,.0f}) "
                f"{were(int(self.rounded[c]))} rounded to float32, in steps of {step:,.0f}: {instead}."
            )


def normalized_rows(x: Float32Array, options: ReadOptions) -> Float32Array:
    """Rows after a normalisation that needs no other rows."""
    if options.normalize_features == "binary":
        return (x != 0).astype(np.float32)
    if options.normalize_features == "row":
        # In double precision, so that a row of huge values does not sum to infinity.
        total = np.abs(x).sum(axis=1, keepdims=True, dtype=np.float64)
        return (x / np.where(total > 0, total, 1)).astype(np.float32)
    return x


@dataclass(frozen=True, eq=False)
class Treatment:
    """Scaling and filling of rows."""

    options: ReadOptions
    scaling: Scaling | None = None
    """None: columns are not standardised."""
    fill: Float32Array | None = None
    """[F], in place of missing values, once columns are scaled; None: 0."""
    indicated: tuple[int, ...] = ()
    """Columns that get another one behind all: 1 where they miss a value."""

    @classmethod
    def from_moments(cls, options: ReadOptions, moments: Moments, medians: Float64Array | None) -> "Treatment":
        """The treatment by the known values of all rows, and the medians [F] of columns with missing ones."""
        scaling = moments.scaling() if options.normalize_features == "standard" else None
        fill, gaps = None, [c for c, known in enumerate(moments.known) if known < moments.rows]
        if options.nan_features == "mean" and scaling is None:
            fill = moments.means().astype(np.float32)
        if options.nan_features == "median" and medians is not None:
            fill = (medians if scaling is None else (medians - scaling.mean) / scaling.deviation).astype(np.float32)
        return cls(options, scaling, fill, tuple(gaps) if options.nan_features == "indicator" else ())

    @classmethod
    def from_record(cls, options: ReadOptions, record: Sequence[KeptColumn], width: int) -> "Treatment | None":
        """The treatment that columns had before; None if the record lacks what `options` need."""
        scaled, key, scaling, fill = options.normalize_features == "standard", fill_key(options), None, None
        needed = {"mean", "deviation"} if scaled else set[str]()
        # The mean is 0 once columns are scaled by it.
        fills = options.nan_features == "median" or (options.nan_features == "mean" and not scaled)
        needed |= {key} if fills else set()
        unknown = options.nan_features == "indicator" and options.indicators is None
        if (record or needed or unknown) and (len(record) != width or not all(needed <= own.keys() for own in record)):
            return None
        if scaled:
            scaling = Scaling(*(np.array([own[what] for own in record]) for what in ("mean", "deviation")))
        if fills:
            fill = np.array([own[key] for own in record], np.float32)
        gaps = [c for c, own in enumerate(record) if own.get("indicated")]
        return cls(options, scaling, fill, tuple(gaps) if options.nan_features == "indicator" else ())

    def record(self, c: int, name: str) -> dict[str, object]:
        """The record of column `c` of features, a `kept.KeptColumn`."""
        found: dict[str, object] = {"column": name.column} if isinstance(name, FeatureName) else {}
        if isinstance(name, FeatureName) and name.value is not None:
            found["value"] = name.value
        if self.scaling is not None:
            found |= {"mean": float(self.scaling.mean[c]), "deviation": float(self.scaling.deviation[c])}
        if self.fill is not None:
            found[fill_key(self.options)] = float(self.fill[c])
        return found | ({"indicated": c in self.indicated} if self.options.nan_features == "indicator" else {})

    def chosen(self, columns: Sequence[str], width: int, of: str) -> "Treatment":
        """The same, where `ReadOptions.indicators` names the columns that get another one."""
        wanted = self.options.indicators if self.options.nan_features == "indicator" else None
        if wanted is None:
            return self
        names = [{f"{of}.{name}", f"{of}.column {c}"} for c, name in enumerate(column_names(columns, width))]
        return replace(self, indicated=tuple(c for c, called in enumerate(names) if called & {*wanted}))

    def apply(self, x: Float32Array, bad: Mask) -> Float32Array:
        """float32 [n, F + indicated]; `x` has 0 for missing values."""
        rows = normalized_rows(x, self.options) if self.scaling is None else self.scaling.apply(x)
        if bad is not None:
            rows = np.where(bad, np.float32(0) if self.fill is None else self.fill, rows)
        if not self.indicated:
            return rows
        flags = np.zeros((len(x), len(self.indicated)), np.float32)
        if bad is not None:
            flags[:] = bad[:, list(self.indicated)]
        return np.concatenate([rows, flags], axis=1)

    def columns_of(self, seen: Seen, columns: Sequence[str], of: str) -> list[dict[str, Any]]:
        """A data card's records of all columns; see `Seen.columns`."""
        found = seen.columns(columns, of)
        names = column_names(columns, len(found))
        found = [each | {TREATED: self.record(c, names[c])} for c, each in enumerate(found)]
        flag = {"missing": 0, "least": 0.0, "largest": 1.0, "constant": False, TREATED: {}}
        return found + [found[c] | flag | {"name": f"{found[c]['name']}{IS_MISSING}"} for c in self.indicated]


def indicators_in(card: Mapping[str, Any]) -> tuple[str, ...] | None:
    """`ReadOptions.indicators` by which other data get the columns of those that a data card is of, by number where the
    card does not name all; None: an earlier version wrote it, and it does not say."""
    if "more_columns" not in card:
        return tuple(f"{c['of']}.{c['name']}" for c in card["columns"] if c["missing"])
    kept = [(f"{of}.column {c}", own) for of, each in card.get(TREATED, {}).items() for c, own in enumerate(each)]
    if sum(1 + own.get("indicated", False) for _, own in kept) != len(card["columns"]) + card["more_columns"]:
        return None
    return tuple(name for name, own in kept if own.get("indicated"))


def check_indicators(options: ReadOptions, card: Sequence[Mapping[str, Any]]) -> None:
    """Refuse names of `ReadOptions.indicators` that are no columns of a card."""
    wanted = [name for name in options.indicators or () if not name.startswith(f"{PAIRS}.")]
    known = [f"{column['of']}.{column['name']}" for column in card]
    # Earlier versions numbered columns.
    count = Counter(column["of"] for column in card)
    numbered = {f"{of}.column {c}" for of, columns in count.items() for c in range(columns)}
    if unknown := [name for name in wanted if name not in known and name not in numbered]:
        listed = ", ".join(known[:SHOWN]) or "none"
        names = f"indicators names {', '.join(unknown)}, but the columns of features are {listed}"
        raise InputError(f"{names}{nearest(unknown[0], known)}")


def treatment_by(
    options: ReadOptions, moments: Callable[[], Moments], counts: Callable[[str, Bins], Sequence[Counts]]
) -> Treatment:
    """The treatment of features, by as many passes over their rows as it needs: for the moments of all, and for counts,
    records of `value_counts` for the name of a pass and bins of columns."""
    if not uses_statistics(options) and options.nan_features != "indicator":
        return Treatment(options)
    found, medians = moments(), None
    if options.nan_features == "median":  # also of columns without gaps, which other data may have
        bins = middle_bins(counts("bins", dict.fromkeys(range(len(found.known)))))
        medians = medians_of(counts("medians", {c: own for c, (own, _) in bins.items()}), bins, found.known)
    return Treatment.from_moments(options, found, medians)


def treatment_of(x: Float32Array, bad: Mask, options: ReadOptions) -> Treatment:
    """The treatment of all rows, which are in memory."""
    if bad is None and not uses_statistics(options):
        return Treatment(options)
    rows = normalized_rows(x, options)
    return treatment_by(options, lambda: Moments.from_rows(rows, bad), lambda _, bins: [value_counts(rows, bad, bins)])


# -- medians: values are counted by their upper bits, then some by all bits


def value_counts(x: Float32Array, bad: Mask, bins: Bins) -> Counts:
    """Numbers of known values in columns, by keys that ascend with the values: by the upper half of their bits, or of
    the values in some of these `bins` by all bits."""
    found = {}
    for c, wanted in bins.items():
        values = x[:, c] if bad is None else x[~bad[:, c], c]
        bits = np.ascontiguousarray(values + np.float32(0)).view(np.uint32)
        keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.int64)
        keys = keys >> HALF if wanted is None else keys[np.isin(keys >> HALF, wanted)]
        found[str(c)] = [a.tolist() for a in np.unique(keys, return_counts=True)]
    return found


def joined_counts(records: Sequence[Counts]) -> Counts:
    """The counts of all values that some records count."""
    found = {}
    for c in records[0]:
        keys, counts = (np.concatenate([np.array(r[c][i], np.int64) for r in records]) for i in range(2))
        distinct, at = np.unique(keys, return_inverse=True)
        found[c] = [distinct.tolist(), np.bincount(at, counts, len(distinct)).astype(np.int64).tolist()]
    return found


def total_counts(records: Sequence[Counts]) -> dict[int, tuple[list[int], IdArray]]:
    """Ascending keys of each column, and how many values have one of the keys so far."""
    return {int(c): (keys, np.cumsum(counts, dtype=np.int64)) for c, (keys, counts) in joined_counts(records).items()}


def middle_bins(records: Sequence[Counts]) -> dict[int, tuple[list[int], int]]:
    """Bins with the middle values of each column, and how many values lie below them."""
    found = {}
    for c, (keys, so_far) in total_counts(records).items():
        if len(keys):
            first, last = (int(np.searchsorted(so_far, rank, "right")) for rank in _middle(so_far[-1]))
            found[c] = sorted({keys[first], keys[last]}), int(so_far[first - 1]) if first else 0
    return found


def medians_of(records: Sequence[Counts], bins: Mapping[int, tuple[list[int], int]], known: Integers) -> Float64Array:
    """[F], medians of the columns in `bins`, and 0 of others, from counts of the values in these bins."""
    medians = np.zeros(len(known))
    for c, (keys, so_far) in total_counts(records).items():
        at = [int(np.searchsorted(so_far, rank - bins[c][1], "right")) for rank in _middle(known[c])]
        bits = np.array([keys[i] for i in at], np.uint32)
        values = np.where(bits >> 31, bits ^ np.uint32(1 << 31), ~bits).astype(np.uint32).view(np.float32)
        medians[c] = values.astype(np.float64).mean()
    return medians


def _middle(count: int) -> tuple[int, int]:
    """Ranks of the middle values, of which the median is the mean."""
    return (count - 1) // 2, count // 2


AS_IT_IS = Treatment(ReadOptions())
"""Of features without missing values."""
