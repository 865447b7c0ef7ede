"""Exact sums of columns and of their squares, from which means and standard deviations follow.

Sums are integers, so they depend neither on the order of rows nor on how these are cut into pieces: a table that is
read in pieces is scaled like one in memory, to the bit.
"""

import math
import operator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ....storage.array_kinds import Float32Array, Float64Array, Mask
from ....storage.stored.totals import Rule, Totals

UNIT = 149
"""Every float32 is a whole number of 2**-149, and its square one of 2**-298."""
AT_ONCE = 1 << 18
"""Values that are summed at a time."""
CONSTANT = 1e-9
"""Relative standard deviation up to which a column counts as constant."""


Integers = npt.NDArray[np.object_]
"""[F], of any size."""
EXACT_SUM = {"rule": Rule(np.add, 0, object)}


@dataclass(frozen=True, eq=False)
class Moments(Totals):
    """Sums of n finite rows float32 [n, F], or of the values that are known."""

    rows: int = field(metadata={"rule": Rule(operator.add)})
    known: Integers = field(metadata=EXACT_SUM)
    """Values that count."""
    sums: Integers = field(metadata=EXACT_SUM)
    """Sums, in units of 2**-149."""
    squares: Integers = field(metadata=EXACT_SUM)
    """Sums of the squares, in units of 2**-298."""

    @classmethod
    def from_rows(cls, x: Float32Array, missing: Mask | None = None) -> "Moments":
        """The moments of some rows, without values that are `missing`, which are 0."""
        found, step = cls.none(x.shape[1]), max(1, AT_ONCE // max(1, x.shape[1]))
        for first in range(0, len(x), step):
            rows = x[first : first + step].astype(np.float64)
            squares = _exact_sums(rows * rows, 2 * UNIT)
            known = len(rows) - (0 if missing is None else missing[first : first + step].sum(0))
            each = known + np.zeros(x.shape[1], np.int64)
            found += cls(len(rows), each.astype(object), _exact_sums(rows, UNIT), squares)
        return found

    def means(self) -> Float64Array:
        """[F], means of the known values; 0 where none is."""
        return np.array([float(Fraction(s, max(1, n) << UNIT)) for n, s in zip(self.known, self.sums)])

    def scaling(self) -> "Scaling":
        """The scaling of each column to mean 0 and standard deviation 1; a constant one is shifted only."""
        each, mean = zip((max(1, n) for n in self.known), self.sums, self.squares), self.means()
        variance = [float(Fraction(n * q - s * s, n * n << 2 * UNIT)) for n, s, q in each]
        deviation = np.array([math.sqrt(v) for v in variance])
        return Scaling(mean, np.where(deviation > CONSTANT * np.abs(mean), deviation, 1.0))


@dataclass(frozen=True, eq=False)
class Scaling:
    """A shift and a division of each column."""

    mean: Float64Array
    deviation: Float64Array

    def apply(self, x: Float32Array) -> Float32Array:
        """The scaled rows."""
        return ((x - self.mean) / self.deviation).astype(np.float32)


def _exact_sums(x: Float64Array, unit: int) -> Integers:
    """Sums of columns, in units of ``2**-unit``, of which each value is a whole number. Changes `x`.

    The values are rounded to a grid, coarse enough for their sums to be exact in double precision; what is left goes
    to a finer grid, until nothing is.
    """
    sums = [0] * x.shape[1]
    bits = 52 - len(x).bit_length()
    while True:
        largest = float(np.abs(x).max(initial=0.0))
        if not largest:
            return np.array(sums, object)
        shift = bits - math.frexp(largest)[1]
        grid = np.rint(np.ldexp(x, shift))
        x -= np.ldexp(grid, -shift)
        sums = [s + _shifted(int(g), unit - shift) for s, g in zip(sums, grid.sum(axis=0).tolist())]


def _shifted(value: int, by: int) -> int:
    """``value * 2**by``, a whole number."""
    return value << by if by >= 0 else value >> -by
