"""Results of the node-wise sampling kernels, and how many edges a minibatch may have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....storage.array_kinds import Float32Array, IdArray, Int32Array, IntArray
from ....storage.errors import RunError


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Sampled edges by destination."""

    indptr: Int32Array
    """int32 [rows + 1], rows in the order of the minibatch's nodes."""
    indices: Int32Array
    """int32 [e], positions among the minibatch's nodes, in the order of the draws."""
    positions: IdArray | None
    """int64 [e], positions in the graph's edge arrays, if requested."""
    weight: Float32Array | None = None
    """float32 [e], if requested: the edges' weights in the graph; of `labor` with iterations, 1 / the chance that the
    edge was kept."""

    @property
    def num_edges(self) -> int:
        """e."""
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class NeighborSample:
    """One minibatch of node-wise sampling."""

    nodes: IntArray
    """[n] global ids: the seeds in their order, then each hop's new nodes ascending."""
    node_ends: tuple[int, ...]
    """L+1 numbers: nodes[:node_ends[h]] are known after h hops."""
    lists: tuple[EdgeList, ...]
    """One list whose rows are nodes[:node_ends[L-1]] if only new nodes are expanded; else one for each hop, nearest the
    seeds first, whose rows are nodes[:node_ends[h]]."""

    @property
    def indptr(self) -> Int32Array:
        """`indptr` of the only list."""
        return self._only.indptr

    @property
    def indices(self) -> Int32Array:
        """`indices` of the only list."""
        return self._only.indices

    @property
    def positions(self) -> IdArray | None:
        """`positions` of the only list."""
        return self._only.positions

    @property
    def _only(self) -> EdgeList:
        assert len(self.lists) == 1
        return self.lists[0]


def with_weights(samples: list[NeighborSample], weight: Float32Array, keep_positions: bool) -> list[NeighborSample]:
    """Add `EdgeList.weight` by the edges' positions, which are then dropped unless `keep_positions`."""

    def added(e: EdgeList) -> EdgeList:
        assert e.positions is not None
        return replace(e, positions=e.positions if keep_positions else None, weight=weight[e.positions])

    return [replace(s, lists=tuple(map(added, s.lists))) for s in samples]


Fanouts = Sequence[int] | IdArray
"""Edges of a row in each of L hops, nearest the seeds first: L numbers; of a graph with types int64 [L, R], those of
each relation. -1: all."""
LIMIT = 2**31 - 1
"""Edges of a minibatch stay below this: its blocks are indexed by int32."""


def check_edges(edges: int, options: str = "batch_size, fanout or sizes") -> None:
    """Raises RunError if blocks cannot index so many edges of a minibatch; smaller `options` would make them fewer."""
    if edges >= LIMIT:
        raise RunError(f"a minibatch would hold {edges} edges; at most {LIMIT - 1} fit: use a smaller {options}")
