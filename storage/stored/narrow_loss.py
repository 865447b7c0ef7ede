"""Losses of columns of features whose rows are kept in fewer bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..array_kinds import FloatArray, IdArray
from ..errors import InputError
from ..plural import are, counted
from ..store.narrow import FeatureDtype
from .totals import MAX, MIN, SUM, Totals

LARGEST = {"float16": 65504.0, "bfloat16": float(np.array(0x7F7F0000, np.uint32).view(np.float32))}
"""Values beyond these become these."""
ROUGH = 0.5
"""Error of a column, as a share of its standard deviation, from which there is a note."""
SHOWN = 8
"""Most columns that a message names."""


@dataclass(frozen=True, eq=False)
class NarrowLoss(Totals):
    """Counts of changes in F columns."""

    clipped: IdArray = field(metadata=SUM)
    rounded: IdArray = field(metadata=SUM)
    """Values that are whole numbers, and no longer themselves."""
    least: FloatArray = field(metadata=MIN)
    """[F], as the rows were given; infinite without any."""
    largest: FloatArray = field(metadata=MAX)
    kept_least: FloatArray = field(metadata=MIN)
    """[F], as they are read again."""
    kept_largest: FloatArray = field(metadata=MAX)

    @classmethod
    def from_rows(cls, rows: FloatArray, kept: FloatArray, kind: FeatureDtype) -> "NarrowLoss":
        """Changes of rows [n, F] that are read again as `kept`."""
        if not len(rows):
            return cls.none(rows.shape[1])
        clipped = (np.abs(rows) > LARGEST.get(kind, np.inf)).sum(0)
        rounded = ((rows != kept) & (rows == np.floor(rows))).sum(0)
        return cls(clipped, rounded, *(f(0).astype(np.float64) for x in (rows, kept) for f in (x.min, x.max)))

    def check(self, kind: FeatureDtype, names: Sequence[str], before: FloatArray, after: FloatArray) -> list[str]:
        """Notes on columns that lose values.

        Args:
            kind: dtype of the kept rows.
            names: of the columns.
            before: a sample of the rows [n, F].
            after: the same rows as they are read again.

        Raises:
            InputError: all values of a column become one.
        """
        gone = np.flatnonzero((self.least < self.largest) & (self.kept_least == self.kept_largest))
        if len(gone):
            each = ", ".join(f"'{names[c]}' ({self.least[c]:,.6g} to {self.largest[c]:,.6g})" for c in gone[:SHOWN])
            most = f"; {kind} ends at {LARGEST[kind]:,.6g}" if kind in LARGEST else "; a row of int8 has one scale"
            raise InputError(
                f"feature_dtype is {kind}, in which {counted(len(gone), 'column')} would have one value only: {each}"
                f"{most}. Scale them (normalize_features=standard), leave them out, or choose another feature_dtype"
            )
        if not len(before):
            return []
        error, spread = np.sqrt(np.square(after - before, dtype=np.float64).mean(0)), before.std(0, dtype=np.float64)
        fewer = [[len(np.unique(x[:, c])) for x in (before, after)] for c in range(before.shape[1])]
        notes = []
        for c in range(len(names)):
            found = []
            if self.clipped[c]:
                count = int(self.clipped[c])
                found.append(f"{counted(count, 'value')} {are(count)} clipped to {LARGEST[kind]:,.6g}")
            if kind != "int8" and self.rounded[c]:
                found.append(f"{counted(int(self.rounded[c]), 'whole number')} {are(int(self.rounded[c]))} rounded")
            if fewer[c][1] * 2 <= fewer[c][0]:
                found.append(f"of {fewer[c][0]} values in a sample {fewer[c][1]} are left")
            elif error[c] > ROUGH * spread[c] > 0:
                found.append("errors are as large as the differences between values")
            if found:
                notes.append(f"column '{names[c]}': {', '.join(found)}")
        if not notes:
            return []
        more = f", and {len(notes) - SHOWN} more columns" if len(notes) > SHOWN else ""
        remedy = "normalize_features=standard, or another feature_dtype, keeps them"
        return [f"feature_dtype={kind} loses values: {'; '.join(notes[:SHOWN])}{more} ({remedy})."]
