"""Minibatches that stay on the device that sampled them."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import AnyArray, IntArray
from ...storage.graph import Graph
from ...storage.minibatch import Block, Bulk, MiniBatch, nested_blocks
from ...storage.optional import present, when_present
from ..assignment import BulkRequest
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.runtime.device_memory import to_device
from ..kernels.sampling.device_graph import number_on_device
from ..kernels.sampling.device_samples import DeviceEdges, DeviceList, DeviceSample, Rows, leading, prefix_sums
from ..kernels.sampling.samples import NeighborSample
from .base import Sampler


class ResidentMiniBatch(MiniBatch):
    """One minibatch of a `ResidentBulk`. Reading `blocks`, as writers and checks of minibatches do, makes copies on the
    host and waits for them; training reads the device's arrays."""

    on_host = False

    def __init__(self, epoch: int, index: int, bulk: ResidentBulk, q: int, edge_ids: bool, seeds: IntArray) -> None:
        """
        Args:
            epoch: which.
            index: position in the epoch.
            bulk: holds it.
            q: position in the bulk.
            edge_ids: true if blocks hold the positions of their edges in the graph's arrays.
            seeds: [B], as they were requested.
        """
        # Frozen, as every message is.
        for name, value in (("epoch", epoch), ("index", index), ("nested", bulk.nested)):
            object.__setattr__(self, name, value)
        self.__dict__.update(bulk=bulk, q=q, edge_ids=edge_ids, requested=seeds)

    bulk: ResidentBulk
    q: int
    edge_ids: bool
    requested: IntArray

    @property
    def seeds(self) -> IntArray:
        """[B] global ids, on the host: nobody waits for the device."""
        return self.requested

    @property
    def drawn_nodes(self) -> Tensor:
        return self.bulk.nodes_of(self.q)

    def renumbered(self, index: int) -> "ResidentMiniBatch":
        return ResidentMiniBatch(self.epoch, index, self.bulk, self.q, self.edge_ids, self.requested)

    def within(self, bulk: ResidentBulk) -> "ResidentMiniBatch":
        """The minibatch in the same place of another bulk."""
        return ResidentMiniBatch(self.epoch, self.index, bulk, self.q, self.edge_ids, self.requested)

    @cached_property
    # pyrefly: ignore[bad-override]
    def blocks(self) -> tuple[Block, ...]:
        """Copies on the host, outermost first."""
        b, q, hops = self.bulk, self.q, range(self.bulk.num_hops)
        b.await_here()
        nodes, ends = _host(b.nodes_of(q)), tuple(int(e[q]) for e in b.node_ends)
        outer = hops[-1] if b.nested else None
        found = {h: self._list(h) for h in hops if outer in (None, h)}
        if outer is not None:
            return nested_blocks(nodes, ends, *found[outer])
        return tuple(Block(ends[h], nodes[: ends[h + 1]], *found[h]) for h in reversed(hops))

    def _list(self, h: int) -> tuple[AnyArray, AnyArray, AnyArray | None, AnyArray | None]:
        """indptr, indices, weight and edge ids of a hop."""
        b, q = self.bulk, self.q
        lists, ids = b.block(q, h), b.positions_of(q, h) if self.edge_ids else None
        weight = when_present(_host, b.weight_of(q, h))
        return _host(lists.indptr), _host(lists.indices), weight, when_present(_host, ids)

    @property
    def num_edges(self) -> int:
        ends = self.bulk.edge_ends
        return int(ends[-1][self.q]) if self.nested else sum(int(e[self.q]) for e in ends)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.bulk.nbytes(self.q)


def _host(x: Tensor) -> AnyArray:
    return x.cpu().numpy()


class LeftOnDevice:
    """Sampler whose bulks stay on the device, sampled on a stream of their own, beside the training."""

    def __init__(self, sampler: Sampler, device: torch.device) -> None:
        """
        Args:
            sampler: the sampler.
            device: the device.
        """
        self._sampler = sampler
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """See `Sampler.sample_on_device`; `kernel` is ignored."""
        with torch.cuda.stream(self._stream):
            return self._sampler.sample_on_device(graph, request, workspace)


def node_weights(
    graph: Graph, made: DeviceSample, scale: Callable[[Tensor, Tensor, Tensor], Tensor], of_edge: bool
) -> list[Tensor]:
    """`Block.weight` of the edges of each list, float32.

    Args:
        graph: the graph of the nodes.
        made: the minibatches, with positions if `of_edge`.
        scale: (ids, kept edges, hop) of each row to the weight of each of its edges, float64.
        of_edge: true to multiply by the edge's weight in the graph.
    """
    node_at, weights = to_device(prefix_sums(made.node_ends[-1])[:-1], made.rows.nodes.device), []
    for h, x in enumerate(made.lists):
        owner, row = leading(x.rows, node_at.device)
        at = to_device(prefix_sums(x.rows + 1)[:-1], node_at.device)[owner] + row
        kept = (x.indptr[at + 1] - x.indptr[at]).long()
        factor = scale(made.rows.nodes[node_at[owner] + row], kept, made.hops(h, owner, row))
        each = torch.repeat_interleave(factor, kept, output_size=len(x.indices))
        if of_edge:
            assert x.positions is not None
            each = number_on_device(graph, "edge_weight")[x.positions].double() * each
        weights.append(each.float())
    return weights


def one_by_one(
    graph: Graph, request: BulkRequest, samples: Sequence[NeighborSample], to: torch.device, edge_ids: bool = False
) -> Bulk:
    """A bulk of minibatches that were drawn one after the other, each with one list, on the device or the host. A kept
    edge stands for in-degree / kept edges of its row.

    Args:
        graph: the sampled graph.
        request: the request.
        samples: its minibatches.
        to: the device.
        edge_ids: see `ResidentMiniBatch`.
    """
    lists = [s.lists[0] for s in samples]
    edges = np.array([x.num_edges for x in lists], np.int64)
    parts = [
        x.on_device
        if isinstance(x, DeviceEdges)
        else tuple(when_present(lambda a: to_device(a, to), a) for a in (x.indices, x.positions, x.weight))
        for x in lists
    ]
    indices, positions, weight = (None if p[0] is None else torch.cat(present(p)) for p in zip(*parts))
    assert indices is not None
    if weight is not None:
        kept = [np.diff(x.indptr) for x in lists]
        of = [graph.in_degree[s.nodes[: len(n)]] / np.maximum(n, 1) for s, n in zip(samples, kept)]
        each = [to_device(np.concatenate(x), to) for x in (of, kept)]
        weight = (weight.double() * torch.repeat_interleave(*each, output_size=len(weight))).float()
    counts = np.array([len(s.nodes) for s in samples])
    rows = Rows(
        to_device(np.concatenate([s.nodes for s in samples]), to),
        to_device(np.repeat(np.arange(len(samples), dtype=np.int32), counts), to),
    )
    indptr = to_device(np.concatenate([x.indptr for x in lists]), to)
    known = np.array([s.node_ends for s in samples], np.int64).T
    counts = np.array([len(x.indptr) - 1 for x in lists])
    drawn = DeviceSample(
        rows,
        tuple(known),
        (DeviceList(indptr, indices, positions, counts, edges, weight=weight),),
        tuple(np.array([x.indptr[n] for x, n in zip(lists, ends)], np.int64) for ends in known[:-1]),
    )
    made = ResidentBulk(drawn, nested=True, bound=None)
    return resident(request, [(slice(0, len(samples)), made)], edge_ids)


def resident(request: BulkRequest, pieces: Iterable[tuple[slice, ResidentBulk]], edge_ids: bool = False) -> Bulk:
    """Bulk of minibatches on the device.

    Args:
        request: the request.
        pieces: ranges of its minibatches, each with its bulk.
        edge_ids: see `ResidentMiniBatch`.
    """
    made: list[MiniBatch] = []
    for piece, bulk in pieces:
        made += [
            ResidentMiniBatch(request.epoch, index, bulk, q, edge_ids, seeds)
            for q, (index, seeds) in enumerate(zip(request.indices[piece], request.seeds[piece], strict=True))
        ]
    return Bulk(request.epoch, request.number, tuple(made))
