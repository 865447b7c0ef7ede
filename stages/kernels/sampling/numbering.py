"""Numbers of a minibatch's nodes, in an array over all nodes that a thread uses again and again."""

import numpy as np

from ....storage.array_kinds import Int32Array, IntArray
from ..runtime.intrinsics import prefetch
from ..runtime.jit import JIT, njit

AHEAD = 16


@njit(**JIT)
def _add(place, sources, found):
    n = 0
    for e in range(len(sources)):
        if e + AHEAD < len(sources):
            prefetch(place, np.int64(sources[e + AHEAD]))
        u = sources[e]
        if place[u] < 0:
            place[u] = 0
            found[n] = u
            n += 1
    return n


@njit(**JIT)
def _look_up(place, sources, out):
    for e in range(len(sources)):
        if e + AHEAD < len(sources):
            prefetch(place, np.int64(sources[e + AHEAD]))
        out[e] = place[sources[e]]


class DenseNumbering:
    """Nodes of one minibatch after the other in their order, and the position of each. See
    `row_block.numbering.Numbering`, which needs no array over all nodes."""

    def __init__(self, num_nodes: int) -> None:
        self.place = np.full(num_nodes, -1, np.int32)
        """int32 [V], position of each node, or -1."""
        self.nodes: IntArray = np.empty(0, np.int64)
        """[n] ids."""

    def begin(self, seeds: IntArray) -> None:
        """Forget all nodes and begin with these, which are distinct."""
        self.place[self.nodes] = -1
        self.nodes = seeds
        self.place[seeds] = np.arange(len(seeds), dtype=np.int32)

    def add(self, sources: IntArray) -> IntArray:
        """Append those of `sources` that are new, ascending, and return them."""
        found = np.empty(len(sources), self.nodes.dtype)
        new = np.sort(found[: _add(self.place, sources, found)])
        self.place[new] = np.arange(len(self.nodes), len(self.nodes) + len(new), dtype=np.int32)
        self.nodes = np.concatenate([self.nodes, new])
        return new

    def positions(self, sources: IntArray) -> Int32Array:
        """int32, position of each of `sources`; all of them must be known."""
        out = np.empty(len(sources), np.int32)
        _look_up(self.place, sources, out)
        return out
