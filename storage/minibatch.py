"""Messages between sampling and training: Block, MiniBatch, Bulk. They hold structure only, never features."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from .array_kinds import Float32Array, IntArray, Mask
from .errors import StoreError
from .optional import present, taken


@dataclass(frozen=True, eq=False)
class Block:
    """The bipartite sampled graph of one layer, by destination; ``src[:num_dst]`` are the destinations themselves."""

    num_dst: int
    src: IntArray
    """int32 or int64 [S], global ids of the source nodes, distinct."""
    indptr: IntArray
    """int32 or int64 [num_dst + 1]."""
    indices: IntArray
    """int32 [e], positions in `src`."""
    weight: Float32Array | None = None
    """float32 [e], weight of each sampled edge in an estimate of the sum over the *full* neighbourhood: the edge's own
    weight times the sampler's correction. None: all edges weigh the same, and row v stands for its in_degree(v) true
    in-edges."""
    edge_id: IntArray | None = None
    """int64 [e], positions in the graph's edge arrays, or None."""

    @property
    def num_src(self) -> int:
        """S."""
        return len(self.src)

    @property
    def num_edges(self) -> int:
        """e."""
        return len(self.indices)

    def check(self, repeats: bool = False) -> "Block":
        """Check the invariants. Violations are bugs, hence assert. `repeats`: a node may have several rows."""
        assert 0 <= self.num_dst <= self.num_src
        assert self.indptr.shape == (self.num_dst + 1,) and self.indptr[0] == 0
        assert (np.diff(self.indptr) >= 0).all() and self.indptr[-1] == self.num_edges
        assert self.indices.dtype == np.int32
        assert not self.num_edges or (self.indices.min() >= 0 and self.indices.max() < self.num_src)
        assert repeats or len(np.unique(self.src)) == self.num_src
        for extra in (self.weight, self.edge_id):
            assert extra is None or extra.shape == self.indices.shape
        return self


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """L blocks for B seeds. ``blocks[0]`` is the outermost; ``blocks[-1].src[:num_dst]`` are the seeds."""

    epoch: int
    index: int
    """Position in the epoch."""
    blocks: tuple[Block, ...]
    nested: bool
    """True: block i's rows and edges are the leading rows and edges of block i-1's (only newly found nodes were
    expanded), so all blocks are views of one edge list."""
    on_host: ClassVar[bool] = True
    """True if `blocks` lie in host memory, so that reading them costs nothing."""

    @property
    def seeds(self) -> IntArray:
        """[B] global ids, the nodes whose loss this minibatch computes."""
        last = self.blocks[-1]
        return last.src[: last.num_dst]

    @property
    def nodes(self) -> IntArray:
        """[n] global ids of every node of the minibatch, seeds first, then in order of hops."""
        return self.blocks[0].src

    @property
    def drawn_nodes(self) -> Any:
        """[n], `nodes` where they were drawn: an array of the host, or a tensor of the device."""
        return self.nodes

    @property
    def num_edges(self) -> int:
        """Edges drawn by the sampler (a nested edge list counts once)."""
        return self.blocks[0].num_edges if self.nested else sum(b.num_edges for b in self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of structure (a nested edge list counts once)."""
        lists = self.blocks[:1] if self.nested else self.blocks
        arrays = [self.nodes] + [a for b in lists for a in present((b.indptr, b.indices, b.weight, b.edge_id))]
        return sum(a.nbytes for a in arrays)

    def renumbered(self, index: int) -> "MiniBatch":
        """The same minibatch at another position in the epoch."""
        return replace(self, index=index)

    def check(self, repeats: bool = False) -> "MiniBatch":
        """See `Block.check`: samples by time have a row for each tree that a node is in."""
        assert self.blocks
        for outer, inner in zip(self.blocks, self.blocks[1:]):
            assert np.array_equal(outer.src[: outer.num_dst], inner.src)
            if self.nested:
                assert np.array_equal(outer.indptr[: inner.num_dst + 1], inner.indptr)
                assert np.array_equal(outer.indices[: inner.num_edges], inner.indices)
        for block in self.blocks:
            block.check(repeats)
        return self


EdgeLists = tuple[IntArray, IntArray, Float32Array | None, IntArray | None]
"""`indptr`, `indices`, `weight` and `edge_id` of a `Block`."""


def leading_block(num_dst: int, src: IntArray, num_edges: int, lists: EdgeLists) -> Block:
    """The block of the leading rows and edges of edge lists."""
    (indptr, indices, weight, edge_id), leading = lists, slice(num_edges)
    return Block(num_dst, src, indptr[: num_dst + 1], indices[leading], taken(weight, leading), taken(edge_id, leading))


def nested_blocks(
    nodes: IntArray,
    node_ends: tuple[int, ...],
    indptr: IntArray,
    indices: IntArray,
    weight: Float32Array | None = None,
    edge_id: IntArray | None = None,
) -> tuple[Block, ...]:
    """Blocks as views of one edge list, outermost first.

    Args:
        nodes: [n] global ids, seeds first, then each hop's new nodes.
        node_ends: L+1 numbers; nodes[:node_ends[h]] are known after h hops, so node_ends[0] = B.
        indptr: [node_ends[L-1] + 1], by destination in the order of `nodes`.
        indices: [e] positions in `nodes`.
        weight: float32 [e] or None, see `Block.weight`.
        edge_id: int64 [e] or None.
    """
    lists = indptr, indices, weight, edge_id
    return tuple(
        leading_block(rows, nodes[:end], int(indptr[rows]), lists)
        for rows, end in zip(reversed(node_ends[:-1]), reversed(node_ends))
    )


@dataclass(frozen=True, eq=False)
class Bulk:
    """k minibatches that were sampled together: ascending indices of one epoch, with gaps only if some belong to other
    ranks."""

    epoch: int
    number: int
    """Position among the bulks of the epoch."""
    minibatches: tuple[MiniBatch, ...]

    @property
    def first_index(self) -> int:
        """Index of the first minibatch."""
        return self.minibatches[0].index

    def check(self) -> "Bulk":
        """Check the invariants of the bulk and of each minibatch."""
        assert self.minibatches
        indices = [m.index for m in self.minibatches]
        assert indices == sorted(set(indices))
        for m in self.minibatches:
            assert m.epoch == self.epoch
            m.check()
        return self


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected properties of a job's minibatches. A store may hold anything, so each is checked when it is read."""

    is_seed: Mask
    """[V], the nodes to train on."""
    num_layers: int | None
    """L, if known."""

    def refuse(self, m: MiniBatch, where: str) -> None:
        """Raise StoreError if a minibatch has nodes of another graph, other seeds or another depth."""
        nodes = len(self.is_seed)
        if self.num_layers not in (None, len(m.blocks)):
            what = f"{len(m.blocks)} blocks; expected {self.num_layers}"
        elif len(m.nodes) and int(m.nodes.max()) >= nodes:
            what = f"node {int(m.nodes.max())}; the graph has {nodes}"
        elif not self.is_seed[m.seeds].all():
            what = "seeds that are not in the train split"
        else:
            return
        raise StoreError(f"{where} holds {what}; the store is damaged or was changed: sample it again")
