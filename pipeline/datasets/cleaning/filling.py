"""Missing values of features: columns are scaled by the values that are known, and then filled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.errors import InputError
from ....storage.plural import are, counted, were
from .moments import Moments, Scaling
from .options import ReadOptions

Mask = npt.NDArray[np.bool_] | None
"""[n, F], True where a value is missing: NaN, or infinite as float32. None: nowhere."""
Rows = npt.NDArray[np.float32]
SHOWN = 8
"""Most columns that a note names."""
WAYS = {
    "zero": "with 0",
    "mean": "with the mean of the known ones",
    "median": "with the median of the known ones",
    "indicator": "with 0, and a column for each says where they were",
}
HALF = 16
"""Bits of a float32 that select a bin of values."""


def taken_out(x: Rows) -> Mask:
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


@dataclass(frozen=True, eq=False)
class Seen:
    """What F columns of features hold in some rows."""

    rows: int
    missing: npt.NDArray[np.int64]
    """[F]."""
    least: Rows
    """[F], of the known values; infinite without any."""
    largest: Rows
    first: int
    """Row of the first missing value; -1 without any."""

    @classmethod
    def of(cls, x: Rows, bad: Mask, numbers: int | npt.NDArray[np.integer] = 0) -> "Seen":
        """What rows without missing values hold. `numbers` is that of the first row, or those of all."""
        ends: Any = {"axis": 0, "initial": np.inf}
        least, largest = x.min(**ends), -((-x).min(**ends))
        if bad is None:
            return cls(len(x), np.zeros(x.shape[1], np.int64), least, largest, -1)
        missing = bad.sum(0)
        for c in np.flatnonzero(missing):
            known = x[~bad[:, c], c]
            least[c], largest[c] = known.min(initial=np.inf), known.max(initial=-np.inf)
        rows = np.flatnonzero(bad.any(1))
        first = numbers + rows[0] if isinstance(numbers, int) else numbers[rows].min()
        return cls(len(x), missing, least, largest, int(first))

    @classmethod
    def none(cls, width: int) -> "Seen":
        """No rows."""
        nothing = np.full(width, np.inf, np.float32)
        return cls(0, np.zeros(width, np.int64), nothing, -nothing, -1)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Seen":
        """That of a `record`."""
        ends = (np.array(record[key], np.float32) for key in ("least", "largest"))
        return cls(record["rows"], np.array(record["missing"], np.int64), *ends, record["first"])

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in vars(self).items()}

    def __add__(self, other: "Seen") -> "Seen":
        both = [first for first in (self.first, other.first) if first >= 0]
        least, largest = np.minimum(self.least, other.least), np.maximum(self.largest, other.largest)
        return Seen(self.rows + other.rows, self.missing + other.missing, least, largest, min(both, default=-1))

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        known = self.least <= self.largest
        return max(float(self.largest[known].max(initial=0)), -float(self.least[known].min(initial=0)))

    def check(self, options: ReadOptions, notes: list[str], columns: Sequence[str], unit: str = "node") -> None:
        """Note missing values, which are filled. Raises InputError if there are any and they are an error.

        Args:
            options: their treatment.
            notes: gets a sentence.
            columns: see `column_names`.
            unit: whose features they are, node or edge.
        """
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


def normalized_rows(x: Rows, options: ReadOptions) -> Rows:
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
    fill: Rows | None = None
    """[F], in place of missing values, once columns are scaled; None: 0."""
    indicated: tuple[int, ...] = ()
    """Columns that get another one behind all: 1 where they miss a value."""

    @classmethod
    def by(cls, options: ReadOptions, moments: Moments, medians: npt.NDArray[np.float64] | None) -> "Treatment":
        """The treatment by the known values of all rows, and the medians [F] of columns with missing ones."""
        scaling = moments.scaling() if options.normalize_features == "standard" else None
        fill, gaps = None, [c for c, known in enumerate(moments.known) if known < moments.rows]
        if options.nan_features == "mean" and scaling is None:
            fill = moments.means().astype(np.float32)
        if options.nan_features == "median" and medians is not None:
            fill = (medians if scaling is None else (medians - scaling.mean) / scaling.deviation).astype(np.float32)
        return cls(options, scaling, fill, tuple(gaps) if options.nan_features == "indicator" else ())

    def of(self, x: Rows, bad: Mask) -> Rows:
        """float32 [n, F + indicated]; `x` has 0 for missing values."""
        rows = normalized_rows(x, self.options) if self.scaling is None else self.scaling.of(x)
        if bad is not None:
            rows = np.where(bad, np.float32(0) if self.fill is None else self.fill, rows)
        if not self.indicated:
            return rows
        flags = np.zeros((len(x), len(self.indicated)), np.float32)
        if bad is not None:
            flags[:] = bad[:, list(self.indicated)]
        return np.concatenate([rows, flags], axis=1)

    def columns(self, columns: Sequence[str], width: int) -> list[str]:
        """Names of all columns; see `column_names`."""
        names = column_names(columns, width)
        return [*names, *(f"{names[c]} is missing" for c in self.indicated)]


def is_measured(options: ReadOptions) -> bool:
    """True if a `Treatment` depends on the values of all rows."""
    return options.normalize_features == "standard" or options.nan_features in ("mean", "median", "indicator")


def treatment_of(x: Rows, bad: Mask, options: ReadOptions) -> Treatment:
    """The treatment of all rows, which are in memory."""
    if not is_measured(options) or (bad is None and options.normalize_features != "standard"):
        return Treatment(options)
    rows, medians = normalized_rows(x, options), None
    if options.nan_features == "median" and bad is not None:
        known = [rows[~bad[:, c], c].astype(np.float64) if bad[:, c].any() else rows[:0, c] for c in range(x.shape[1])]
        medians = np.array([np.median(values) if len(values) else 0.0 for values in known])
    return Treatment.by(options, Moments.of(rows, bad), medians)


# -- medians of rows that are not all in memory: values are counted by their upper bits, then some by all bits


def value_counts(x: Rows, bad: Mask, bins: Mapping[int, Sequence[int] | None]) -> dict[str, Any]:
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


def total_counts(records: Sequence[Mapping[str, Any]]) -> dict[int, tuple[list[int], npt.NDArray[np.int64]]]:
    """Ascending keys of each column, and how many values have one of the keys so far."""
    total = {}
    for c in records[0]:
        keys, at = np.unique(np.concatenate([np.array(r[c][0], np.int64) for r in records]), return_inverse=True)
        counts = np.bincount(at, np.concatenate([np.array(r[c][1], np.int64) for r in records]), len(keys))
        total[int(c)] = keys.tolist(), np.cumsum(counts).astype(np.int64)
    return total


def middle_bins(records: Sequence[Mapping[str, Any]]) -> dict[int, tuple[list[int], int]]:
    """Bins with the middle values of each column, and how many values lie below them."""
    found = {}
    for c, (keys, so_far) in total_counts(records).items():
        if len(keys):
            first, last = (int(np.searchsorted(so_far, rank, "right")) for rank in _middle(so_far[-1]))
            found[c] = sorted({keys[first], keys[last]}), int(so_far[first - 1]) if first else 0
    return found


def medians_of(
    records: Sequence[Mapping[str, Any]], bins: Mapping[int, tuple[list[int], int]], known: Sequence[int]
) -> npt.NDArray[np.float64]:
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
