"""Checks of the values in a line of ``metrics.jsonl``; lines with other values count as unreadable."""

from typing import Any

MOST_RANKS = 4096
"""Limit on ranks: tables of messages have a row and a column for each."""
MOST = 1e15
"""Limit on counts, bytes and seconds."""


def number(value: Any, *, negative: bool = False) -> float:
    """A finite number, at least 0 unless `negative`. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not (-MOST if negative else 0) <= value <= MOST:
        raise ValueError("expected a finite number")
    return float(value)


def integer(value: Any, least: int = 0, most: float = MOST) -> int:
    """A whole number. Raises TypeError or ValueError for anything else, or out of range."""
    if type(value) is not int:
        raise TypeError("expected a whole number")
    if not least <= value <= most:
        raise ValueError("out of range")
    return value


def table(value: Any) -> dict[str, Any]:
    """A table. Raises TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError("expected a table")
    return value


def ranks(value: Any) -> list[Any]:
    """A list with an entry for each rank; Dask makes a tuple of it. Raises TypeError for anything else."""
    if not isinstance(value, list | tuple) or len(value) > MOST_RANKS:
        raise TypeError("expected a list of ranks")
    return [*value]
