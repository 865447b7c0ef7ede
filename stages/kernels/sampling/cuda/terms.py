"""Darts at the terms of P = Q (W o W) on the device, without forming P: all darts of a bulk at once; and P itself if
needed.

Weights in fixed point are computed once per graph, on the host, by the functions of `sampling.layerwise`: they do not
depend on a device's arithmetic. A dart finds its row and then its term by bisection, so hubs cost a few steps more, not
a scan as in `cpu.terms`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from .....storage.graph import Graph
from .....storage.optional import when_present
from ...runtime.device_memory import to_device
from ...runtime.once_per_graph import once_per_graph
from ...runtime.triton_rng import TILE, draw_word, launch, programs
from ..device_graph import DeviceGraph, in_memory
from ..device_samples import Rows, cumulated
from ..layerwise import fraction_bits, integers, squares, weight_scale


@triton.jit(do_not_specialize=["limit", "row_steps", "edge_steps"])
def _throw(
    indptr, sources, loop, sums, nodes, first, last, prefix, words, hits, limit, stride, row_steps, edge_steps,
    EVERY_ROW: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Throw dart j of minibatch q, whose rows are first[q] to last[q]; a minibatch without mass hits node 0."""
    q = tl.program_id(1)
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin, end = tl.load(first + q), tl.load(last + q)
    # Sums of all minibatches together may wrap around; a minibatch's own do not.
    base = tl.load(prefix + begin)
    mass = tl.load(prefix + end) - base
    some = (j < limit) & (mass > 0)
    word = tl.load(words + q).to(tl.uint64)
    x = tl.umulhi(draw_word(word, j), j.to(tl.uint64) * 0 + mass.to(tl.uint64)).to(tl.int64)
    # The last row whose sum is not above the dart.
    low, high = j * 0 + begin, j * 0 + end
    for _ in range(row_steps):
        middle = (low + high) >> 1
        here = tl.load(prefix + middle, mask=some, other=0) - base <= x
        low, high = tl.where(here, middle, low), tl.where(here, high, middle)
    u = tl.where(some, low, 0)
    if not EVERY_ROW:
        rest = x - (tl.load(prefix + low, mask=some, other=0) - base)
        v = tl.load(nodes + low, mask=some, other=0).to(tl.int64)
        lo, hi = tl.load(indptr + v, mask=some, other=0), tl.load(indptr + v + 1, mask=some, other=0)
        if WEIGHTED:
            # The first edge of the row whose sum is above the rest; the loop comes after all edges.
            rest += tl.load(sums + lo, mask=some, other=0)
            at, high = lo, hi
            for _ in range(edge_steps):
                middle = (at + high) >> 1
                open_ = some & (at < high)
                above = tl.load(sums + middle + 1, mask=open_, other=0) > rest
                high = tl.where(open_ & above, middle, high)
                at = tl.where(open_ & (above == 0), middle + 1, at)
        else:
            at = lo + rest // tl.load(loop + v, mask=some, other=1)
        u = tl.where(at < hi, tl.load(sources + at, mask=some & (at < hi), other=0).to(tl.int64), v)
    q = q.to(tl.int64)
    tl.store(hits + q * limit + j, q * stride + u, mask=j < limit)


@dataclass(frozen=True, eq=False)
class Terms:
    """W o W of a graph in fixed point (see `sampling.layerwise`), on the device."""

    graph: DeviceGraph
    loop: Tensor
    """int64 [V], the term of each row's own loop; without weights also that of each of its edges."""
    mass: Tensor
    """int64 [V], the sum of a row's terms."""
    sums: Tensor | None
    """int64 [E+1], sums of the edges' terms before an edge; None without weights."""
    weight: Tensor | None
    """float32 [E], the edges' weights, or None."""
    whole: Tensor
    """float64 [V], the sum of each row's weights, added up in the order of its edges."""

    def edges(self, rows: Tensor, positions: Tensor) -> Tensor:
        """int64 [e]: the terms of edges at `positions` of the nodes `rows`, int64 or int32 [e] each."""
        return self.loop[rows] if self.sums is None else self.sums[positions + 1] - self.sums[positions]

    @cached_property
    def everywhere(self) -> tuple[Tensor, Tensor]:
        """P over all V rows, int64 [V], and its prefix sums, int64 [V+1]. Made at the first call, with E int64 numbers
        or two of temporary memory."""
        degree = self.graph.indptr.diff()
        term = torch.repeat_interleave(self.loop, degree) if self.sums is None else self.sums.diff()
        # Integers: the order of additions does not matter.
        importance = self.loop.clone().index_add_(0, self.graph.indices, term)
        return importance, cumulated(importance)

    def throw(
        self, rows: Rows | None, first: Tensor, last: Tensor, prefix: Tensor, words: Tensor, limit: int, stride: int = 0
    ) -> Tensor:
        """[k, limit]: ``minibatch * stride + column`` of the columns that the darts of each minibatch hit.

        Args:
            rows: of the bulk; None: a term is a column itself.
            first: int64 [k], begin of each minibatch's rows in `prefix`.
            last: int64 [k], their end.
            prefix: int64 [rows + 1], sums of the mass before each row.
            words: int64 [k], the bits of `layerwise.dart_word`.
            limit: darts of each minibatch.
            stride: at least V, or 0.
        """
        graph, k = self.graph, len(first)
        # Narrow numbers take half as long to sort.
        narrow = max(k * stride, graph.num_nodes) < 1 << 31
        hits = torch.empty(k, limit, dtype=torch.int32 if narrow else torch.int64, device=graph.device)
        block = min(TILE, 1 << (limit - 1).bit_length())
        launch(_throw, programs(limit, block), k)(
            graph.indptr, graph.indices, self.loop, self.loop if self.sums is None else self.sums,
            graph.indices if rows is None else rows.nodes, first, last, prefix, words, hits,
            limit, stride, len(prefix).bit_length(), graph.max_degree.bit_length(),
            EVERY_ROW=rows is None, WEIGHTED=self.sums is not None, BLOCK=block,
        )  # fmt: skip
        return hits

    def add_up(self, rows: Rows, stride: int) -> tuple[Tensor, Tensor]:
        """P over the rows of some minibatches: int64 [m] ``minibatch * stride + column``, ascending, and int64 [m] its
        value, positive.

        The host waits for m and for the number of terms.
        """
        graph, nodes = self.graph, rows.nodes.long()
        begin = graph.indptr[nodes]
        degree = graph.indptr[nodes + 1] - begin
        row = torch.repeat_interleave(torch.arange(len(nodes), device=graph.device), degree)
        at = torch.arange(len(row), device=graph.device) + (begin - cumulated(degree)[:-1])[row]
        term = torch.cat([self.edges(nodes[row], at), self.loop[nodes]])
        place = rows.owner.long() * stride
        place = torch.cat([place[row] + graph.indices[at], place + nodes])[term > 0]
        columns, inverse = torch.unique(place, return_inverse=True)
        return columns, term.new_zeros(len(columns)).index_add_(0, inverse, term[term > 0])


@once_per_graph
def terms(graph: Graph) -> Terms:
    """The graph's `Terms`; made once, kept as long as the graph lives. With weights this takes E int64 numbers of
    temporary host memory.

    Raises:
        InputError: there is no GPU, or the topology is not in its memory.
    """
    on, V = in_memory(graph, "layer-wise samplers"), graph.num_nodes
    bits, w = fraction_bits(V), graph.edge_weight
    if w is None:
        whole = graph.in_degree + 1
        loop = squares(np.ones(V, np.int64), whole, bits)
        mass, sums = loop * whole, None
    else:
        scale = weight_scale(float(w.max(initial=0.0)))
        part, own = integers(w, scale), integers(np.ones(V), scale)
        degree = own + np.diff(np.concatenate([[0], np.cumsum(part)])[graph.indptr])
        loop = squares(own, degree, bits)
        sums = np.concatenate([[0], np.cumsum(squares(part, np.repeat(degree, graph.in_degree), bits))])
        mass = loop + np.diff(sums[graph.indptr])
    loop, mass, whole = (to_device(x, on.device) for x in (loop, mass, graph.degree))
    sums, weight = (when_present(lambda x: to_device(x, on.device), each) for each in (sums, w))
    return Terms(on, loop, mass, sums, weight, whole)
