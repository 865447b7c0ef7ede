"""Checks of arrays that were read from a file, before compiled kernels trust them. A valid checksum says nothing about
the values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .array_kinds import IdArray, IntArray, ValueArray
from .errors import InputError, StoreError
from .typed.graph_types import relation_dtype

AT_ONCE = 1 << 20
"""Entries that checks with temporary arrays take at a time."""


def pieces(first: int, stop: int) -> Iterator[slice]:
    """``[first, stop)`` in slices of `AT_ONCE` entries."""
    for begin in range(first, stop, AT_ONCE):
        yield slice(begin, min(begin + AT_ONCE, stop))


def require(holds: bool | np.bool_, what: str) -> None:
    """Raise InputError with the text `what` unless the condition holds."""
    if not holds:
        raise InputError(what)


def require_vector(array: Any, dtype: npt.DTypeLike, length: int | None, name: str) -> None:
    """Raise InputError unless `array` is a vector of this dtype and, if one is given, of this length."""
    shown = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
    fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1 and length in (None, len(array))
    require(fits, f"{name} is {shown}; expected {np.dtype(dtype)}[{'n' if length is None else length}]")


def require_splits(splits: IdArray, count: int, end: int, name: str) -> None:
    """Raise InputError unless `splits` is int64 [count + 1] and rises from 0 to `end`."""
    require_vector(splits, np.int64, count + 1, name)
    require(
        splits[0] == 0 and splits[-1] == end and (splits[1:] >= splits[:-1]).all(),
        f"{name} does not rise from 0 to {end}",
    )


def require_within(ids: IntArray, stop: int, name: str) -> None:
    """Raise InputError unless all `ids` lie in [0, stop)."""
    if len(ids):
        low, high = int(ids.min()), int(ids.max())
        require(low >= 0 and high < stop, f"{name} lies in [{low}, {high}]; expected [0, {stop})")


def require_ascending(ids: IntArray, name: str) -> None:
    """Raise InputError unless `ids` are at least 0 and rise strictly."""
    require(
        not len(ids) or (ids[0] >= 0 and (ids[1:] > ids[:-1]).all()), f"{name} does not rise strictly from 0 or more"
    )


def require_of_edges(num_edges: int, arrays: Mapping[str, ValueArray]) -> None:
    """Raise InputError unless those of `arrays`, by name, that have an entry for each edge are sound: ``edge_weight``,
    ``edge_id`` and ``edge_type``."""
    dtypes: dict[str, npt.DTypeLike] = {"edge_weight": np.float32, "edge_id": np.int64}
    if "edge_type" in arrays:
        dtypes["edge_type"] = relation_dtype(arrays["edge_type"])
    for name, dtype in dtypes.items():
        if name in arrays:
            require_vector(arrays[name], dtype, num_edges, name)
    weight = arrays.get("edge_weight", np.empty(0, np.float32))
    sound = not len(weight) or (weight.min() >= 0 and np.isfinite(weight.max()))
    require(sound, "edge_weight is negative or not finite")


@contextmanager
def proving(path: Path | str) -> Iterator[None]:
    """Turn a failed check of a store's content into a StoreError that names the store."""
    try:
        yield
    except StoreError:
        raise
    except (InputError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as e:
        why = (
            str(e)
            if isinstance(e, InputError)
            else f"its content is not laid out as it must be: {type(e).__name__} {e}"
        )
        raise StoreError(f"{path}: {why}; the store is damaged or was changed: make it again") from e
