"""Dropout by counters: an element is kept iff its 32 bits of the stream `key` reach a threshold.

The mask depends only on the key, the row's name and the column, so backward recomputes it (no mask is stored), and
neither the number of threads nor the order of the work matters. A row has a word of 64 bits (`random.node_words`); its
halves enter a mixing function of 32-bit words, one for each column, which processors compute for eight columns at a
time: six to twelve times as fast as 64-bit words for each pair of elements, and some hundred times as fast as a
sequential generator.
"""

import numpy as np
from torch import Tensor

from ....memory.arena import empty
from ....memory.lazy_rows import base_and_ids
from ...runtime.threads import parallel
from ..lists import IntArray
from .row_ranges import even_parts
from .scale_kept_rows import COLUMN, scale_kept_rows


def scale_kept(x: Tensor, key: int, p: float, names: IntArray | None = None) -> Tensor:
    """x / (1 - p) where kept, 0 elsewhere; each element is dropped with probability p (to 2**-32).

    Rows of one name are dropped alike, whatever their position.

    Args:
        x: [rows, ...], contiguous; float32 or float64. Lazy rows (`stages.memory.lazy_rows`) are read in place.
        key: uint64, the stream.
        p: in (0, 1).
        names: int64 [rows], at least 0; the rows' own numbers when absent.
    """
    out = empty(x.shape, x.dtype)
    base, ids = base_and_ids(x)
    rows, width = len(x), x.shape[1:].numel()
    decision = np.uint64(key), np.uint32(min(round(p * 2**32), 2**32 - 1)), base.dtype.type(1.0 / (1.0 - p))
    ids = np.empty(0, np.int32) if ids is None else ids
    names = np.empty(0, np.int64) if names is None else names
    columns = np.arange(width, dtype=np.uint32) * COLUMN
    args = (base.reshape(len(base), width), ids, names, columns, out.numpy().reshape(rows, width), *decision)
    parallel(scale_kept_rows, [(*args, a, b) for a, b in even_parts(rows, width)])
    return out
