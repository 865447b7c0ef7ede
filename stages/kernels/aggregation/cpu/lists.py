"""Neighbour lists and rows as compiled loops read them; the lists' transpose."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from torch import Tensor

_JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}


@njit(**_JIT)
def at(ids, u):
    """The row that `u` names, ``ids[u]``, or u itself where `ids` is None: uint64.

    Rows are indexed by unsigned numbers: a signed index brings numba's test for negative ones into the inner loop.
    """
    return np.uint64(u) if ids is None else np.uint64(ids[np.uint64(u)])


@njit(**_JIT)
def factor(values, i):
    """``values[i]``, or 1 where `values` is None."""
    return np.float32(1) if values is None else values[i]


@njit(**_JIT)
def of_row(values, i, x):
    """``values[i]``, or 1 in the type of `x` where `values` is empty.

    Once a row this is asked at run time: a compiled version for each kind of absence would take seconds to make, and
    save nothing.
    """
    return values[i] if len(values) else x.dtype.type(1)


def rows_array(values: Tensor | None, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A number for each row as kernels take it: empty, and of the type of `like`, where there is none."""
    return np.empty(0, like.dtype) if values is None else values.numpy()
