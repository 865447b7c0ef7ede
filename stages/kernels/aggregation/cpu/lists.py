"""Neighbour lists and rows as compiled loops read them; the lists' transpose."""

from typing import TYPE_CHECKING

import numpy as np

from .....storage.array_kinds import AnyArray
from ...runtime.jit import JIT, njit

if TYPE_CHECKING:
    from torch import Tensor


@njit(**JIT)
def row_at(ids, u):
    """Row number ``ids[u]``, or u itself if `ids` is None: uint64.

    Rows are indexed by unsigned numbers: a signed index brings numba's test for negative ones into the inner loop.
    """
    return np.uint64(u) if ids is None else np.uint64(ids[np.uint64(u)])


@njit(**JIT)
def of_row(values, i, x):
    """``values[i]``, or 1 in the dtype of `x` if `values` is empty.

    Checked at run time, once per row: a compiled version for each case would take seconds to compile, and save nothing.
    """
    return values[i] if len(values) else x.dtype.type(1)


def rows_array(values: "Tensor | None", like: AnyArray) -> AnyArray:
    """A number for each row, or edge, as kernels take it: of the dtype of `like`, and empty if there is none."""
    return np.empty(0, like.dtype) if values is None else values.numpy().astype(like.dtype, copy=False)
