"""Totals of rows that are cut into pieces: each piece has its own, and they add up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np


class Rule(NamedTuple):
    """Rule by which totals add up, the total of no rows, and the dtype of an array [F]; None: it is one number."""

    how: Callable[[Any, Any], Any]
    none: float = 0
    dtype: Any = None


SUM = {"rule": Rule(np.add, 0, np.int64)}
MIN, MAX = {"rule": Rule(np.minimum, np.inf, np.float64)}, {"rule": Rule(np.maximum, -np.inf, np.float64)}
"""Metadata of fields of `Totals`."""


@dataclass(frozen=True, eq=False)
class Totals:
    """Totals of rows, and of their F columns, whichever way the rows are cut into pieces. Fields have a `Rule`."""

    @classmethod
    def none(cls, width: int) -> Self:
        """Totals of no rows, of `width` columns."""
        rules = (f.metadata["rule"] for f in fields(cls))
        return cls(*(np.full(width, rule.none, rule.dtype) if rule.dtype else rule.none for rule in rules))

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Totals from what `record` gave."""
        dtypes = {f.name: f.metadata["rule"].dtype for f in fields(cls)}
        return cls(**{name: np.array(record[name], kind) if kind else record[name] for name, kind in dtypes.items()})

    def record(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in vars(self).items()}

    def __add__(self, other: Self) -> Self:
        both = zip(fields(self), vars(self).values(), vars(other).values())
        return type(self)(*(f.metadata["rule"].how(a, b) for f, a, b in both))
