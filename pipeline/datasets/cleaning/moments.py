"""Exact sums of columns and of their squares, from which means and standard deviations follow.

Sums are integers, so they depend neither on the order of rows nor on how these are cut into pieces: a table that is
read in pieces is scaled like one in memory, to the bit.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

UNIT = 149
"""Every float32 is a whole number of 2**-149, and its square one of 2**-298."""
AT_ONCE = 1 << 18
"""Values that are summed at a time."""
CONSTANT = 1e-9
"""Relative standard deviation up to which a column counts as constant."""


@dataclass(frozen=True)
class Moments:
    """Sums of n finite rows float32 [n, F], or of the values that are known."""

    rows: int
    known: tuple[int, ...]
    """[F], values that count."""
    sums: tuple[int, ...]
    """[F], in units of 2**-149."""
    squares: tuple[int, ...]
    """[F], of the squares, in units of 2**-298."""

    @classmethod
    def from_rows(cls, x: npt.NDArray[np.float32], missing: npt.NDArray[np.bool_] | None = None) -> "Moments":
        """The moments of some rows, without values that are `missing`, which are 0."""
        found, step = cls.none(x.shape[1]), max(1, AT_ONCE // max(1, x.shape[1]))
        for first in range(0, len(x), step):
            rows = x[first : first + step].astype(np.float64)
            squares = _exact_sums(rows * rows, 2 * UNIT)
            known = len(rows) - (0 if missing is None else missing[first : first + step].sum(0))
            each = (known + np.zeros(x.shape[1], np.int64)).tolist()
            found += cls(len(rows), tuple(each), _exact_sums(rows, UNIT), squares)
        return found

    @classmethod
    def none(cls, width: int) -> "Moments":
        """The moments of no rows."""
        return cls(0, *(((0,) * width,) * 3))

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Moments":
        """The moments of a `record`."""
        return cls(record["rows"], *(tuple(record[key]) for key in ("known", "sums", "squares")))

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in vars(self).items()}

    def __add__(self, other: "Moments") -> "Moments":
        known, sums, squares = (
            tuple(a + b for a, b in zip(*pair))
            for pair in ((self.known, other.known), (self.sums, other.sums), (self.squares, other.squares))
        )
        return Moments(self.rows + other.rows, known, sums, squares)

    def means(self) -> npt.NDArray[np.float64]:
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

    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]

    def apply(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The scaled rows."""
        return ((x - self.mean) / self.deviation).astype(np.float32)


def _exact_sums(x: npt.NDArray[np.float64], unit: int) -> tuple[int, ...]:
    """Sums of columns, in units of ``2**-unit``, of which each value is a whole number. Changes `x`.

    The values are rounded to a grid, coarse enough for their sums to be exact in double precision; what is left goes
    to a finer grid, until nothing is.
    """
    sums = [0] * x.shape[1]
    bits = 52 - len(x).bit_length()
    while True:
        largest = float(np.abs(x).max(initial=0.0))
        if not largest:
            return tuple(sums)
        shift = bits - math.frexp(largest)[1]
        grid = np.rint(np.ldexp(x, shift))
        x -= np.ldexp(grid, -shift)
        sums = [s + _shifted(int(g), unit - shift) for s, g in zip(sums, grid.sum(axis=0).tolist())]


def _shifted(value: int, by: int) -> int:
    """``value * 2**by``, a whole number."""
    return value << by if by >= 0 else value >> -by
