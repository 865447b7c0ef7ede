"""Random ends of negative pairs by weight and time, as PyG's loaders ask for them."""

import numpy as np

from ...storage.array_kinds import Float64Array, IdArray, NumberArray, WordArray
from ...storage.optional import taken, when_present
from ..random import draw_word


class RandomEnds:
    """Random ends of negative pairs: nodes of one type, uniformly or by weight, of those that are there at a time."""

    def __init__(self, ids: range, weight: Float64Array | None, time: NumberArray | None, draw: int) -> None:
        """
        Args:
            ids: of the nodes.
            weight: float64 [n], or None.
            time: [n], when each node begins to be there; None: they always are.
            draw: number of the random draw that decides.
        """
        self._draw, self._time = draw, time
        self._order = np.arange(ids.start, ids.stop)
        if time is not None:
            order = np.argsort(time, kind="stable")
            self._order, self._time, weight = self._order[order], time[order], taken(weight, order)
        self._cumulative = when_present(np.cumsum, weight)

    def draw(self, keys: WordArray, moments: NumberArray | None) -> IdArray:
        """A node for each key, int64 [n], at the moments [n]. The earliest node if none is there, or none of weight."""
        x = (draw_word(keys, self._draw) >> np.uint64(11)) * 2.0**-53
        there = np.full(len(keys), len(self._order))
        if self._time is not None and moments is not None:
            there = np.searchsorted(self._time, moments, side="right")
        if self._cumulative is None:
            return self._order[(x * there).astype(np.int64)]
        below = np.where(there > 0, self._cumulative[there - 1], 0.0)
        return self._order[np.where(below > 0, np.searchsorted(self._cumulative, x * below, side="right"), 0)]
