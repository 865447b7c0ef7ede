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
    """Sums of n finite rows float32 [n, F]."""

    rows: int
    sums: tuple[int, ...]
    """[F], in units of 2**-149."""
    squares: tuple[int, ...]
    """[F], of the squares, in units of 2**-298."""

    @classmethod
    def of(cls, x: npt.NDArray[np.float32]) -> "Moments":
        """The moments of some rows."""
        found, step = cls.none(x.shape[1]), max(1, AT_ONCE // max(1, x.shape[1]))
        for first in range(0, len(x), step):
            rows = x[first : first + step].astype(np.float64)
            squares = _exact_sums(rows * rows, 2 * UNIT)
            found += cls(len(rows), _exact_sums(rows, UNIT), squares)
        return found

    @classmethod
    def none(cls, width: int) -> "Moments":
        """The moments of no rows."""
        return cls(0, (0,) * width, (0,) * width)

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Moments":
        """The moments of a `record`."""
        return cls(record["rows"], tuple(record["sums"]), tuple(record["squares"]))

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {"rows": self.rows, "sums": list(self.sums), "squares": list(self.squares)}

    def __add__(self, other: "Moments") -> "Moments":
        sums, squares = (
            tuple(a + b for a, b in zip(*pair)) for pair in ((self.sums, other.sums), (self.squares, other.squares))
        )
        return Moments(self.rows + other.rows, sums, squares)

    def scaling(self) -> "Scaling":
        """The scaling of each column to mean 0 and standard deviation 1; a constant one is shifted only."""
        n = max(1, self.rows)
        mean = np.array([float(Fraction(s, n << UNIT)) for s in self.sums])
        variance = [float(Fraction(n * q - s * s, n * n << 2 * UNIT)) for s, q in zip(self.sums, self.squares)]
        deviation = np.array([math.sqrt(v) for v in variance])
        return Scaling(mean, np.where(deviation > CONSTANT * np.abs(mean), deviation, 1.0))


@dataclass(frozen=True, eq=False)
class Scaling:
    """A shift and a division of each column."""

    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]

    def of(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
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
