"""Weights of sampled edges times a factor of their row, compiled."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.array_kinds import Float32Array, Float64Array, IdArray
from ..runtime.intrinsics import prefetch
from ..runtime.jit import njit

AHEAD = 24
"""Edges between the one whose weight is read and the one whose weight is prefetched."""


@njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")
def _scale(weight, positions, kept, scale, out):
    e, last = 0, len(out) - 1
    for row in range(len(kept)):
        factor = scale[row]
        for _ in range(kept[row]):
            at = e
            if positions is not None:
                prefetch(weight, positions[min(e + AHEAD, last)])
                at = positions[e]
            out[e] = np.float32(np.float64(weight[at]) * factor)
            e += 1


def scaled(
    weight: Float32Array, positions: IdArray | None, kept: npt.NDArray[np.integer[Any]], scale: Float64Array
) -> Float32Array:
    """float32 [e]: ``weight[positions] * np.repeat(scale, kept)``, in float64 and then rounded.

    Args:
        weight: float32 [E], of the graph's edges, or [e] of the sampled ones.
        positions: int64 [e], of the sampled edges in `weight`, row by row; None if it has them one after the other, and
            may be overwritten.
        kept: [n], edges of each row.
        scale: float64 [n].
    """
    out = weight if positions is None else np.empty(len(positions), np.float32)
    _scale(weight, positions, kept.astype(np.int64, copy=False), scale, out)
    return out
