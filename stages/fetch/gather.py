"""Rows that a rank reads for itself: those of one array, in memory or mapped, where they are used; those on disk ahead;
others are gathered."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IntArray
from ...storage.features import CountedFeatures, FeatureStore, in_place
from ...storage.minibatch import MiniBatch
from ...storage.typed.features import typed_in_place
from ..memory.arena import empty
from ..memory.lazy_rows import LazyRows, LazyTypedRows, torch_dtype
from ..messages import Phase, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood
from ..policies import Feed, SamplePolicy
from .ahead.disk_rows import FromDisk, RowsFromDisk
from .ahead.units import Plan, RowsAhead
from .rows import Rows, RowsPolicy, Taken

if TYPE_CHECKING:
    from .gather_cuda import DeviceMemory


@dataclass(frozen=True)
class InPlace(RowsPolicy):
    """Rows of the rank's own placement, in memory or on disk."""

    prefetch_bytes: int | Literal["auto"] = "auto"
    """Memory for rows on disk that are ready or under way, those that are trained on among them; ``auto``: a quarter of
    what is left, shared by the ranks."""
    is_read: bool = False

    def open(self, placement: Placement, job: RankJob, memory: "DeviceMemory | None") -> Rows:
        edges = placement.edge_features
        if memory is not None:
            # Needs Triton.
            from .gather_cuda import DeviceRows

            of_edges = memory.uploaded(edges, self.read(edges, job), job.device) if edges else None
            features = memory.uploaded(placement.features, self.read(placement.features, job), job.device)
            return DeviceRows(placement, features, memory, job.device, of_edges)
        disk = None if self.is_read else FromDisk.chosen(placement, job, self.prefetch_bytes)
        return HostRows(placement, self.read(placement.features, job), edges and self.read(edges, job), disk)

    def device_rows(
        self, features: FeatureStore, job: RankJob, memory: "DeviceMemory", locked: bool = False
    ) -> Tensor | None:
        uploaded = memory.uploaded(features, self.read(features, job), job.device)
        return uploaded.rows if locked or uploaded.in_device_memory else None

    def read(self, features: FeatureStore, job: RankJob) -> FeatureStore:
        """The store, whose reads count if they are to."""
        return features if self.is_read else CountedFeatures(features, job.ledger, "store")


@dataclass(eq=False)
class HostRows(Rows):
    """Rows of one array in memory come as `LazyRows`, which layers read in place. Those on disk are read ahead, or else
    gathered."""

    placement: Placement
    features: FeatureStore
    edges: FeatureStore | None = None
    """Source of the rows of edges, if the model reads them."""
    from_disk: FromDisk | None = None
    """Reads rows of both ahead; None: they are in memory."""
    _ahead: RowsAhead | None = field(default=None, init=False)

    def ahead(self, feed: Feed, sample: SamplePolicy, phase: Phase, first: tuple[int, int]) -> Feed:
        """See `Fetcher.ahead`: the feed itself where all rows are in memory."""
        disk = self.from_disk
        if not disk:
            return feed
        steps = disk.job.steps(sample.num_minibatches(self.placement, disk.job))
        lists_of = partial(edge_lists, placement=self.placement)
        self._ahead = RowsFromDisk(feed, disk, Plan(steps, phase.last_epoch, first), lists_of)
        return self._ahead

    def take(self, work: MiniBatch) -> Taken:
        got = self._ahead.rows(work) if self._ahead else self.from_disk and self.from_disk.at_once(work)
        if got and isinstance(self.features, CountedFeatures):
            self.features.count(len(work.nodes))
        h, degree = (LazyRows(got.rows, got.place), got.degree) if got else (self._rows(work.nodes), None)
        of_edges, placed = self._of_edges(work), self.placement

        def layers(degree: Callable[[], Tensor]) -> tuple[BlockNeighbourhood, ...]:
            made = []
            for b, edges in zip(work.blocks, of_edges):
                kinds = placed.types_of(b.edge_id)
                made.append(BlockNeighbourhood(b, lambda n=b.num_src: degree()[:n], edge_types=kinds, edges=edges))
                made[-1].given_weight = partial(placed.weights_of, b.edge_id)
            return tuple(made)

        return Taken(h, lambda: torch.from_numpy(work.nodes.astype(np.int64, copy=False)), layers, degree)

    def _of_edges(self, work: MiniBatch) -> Iterable[Callable[[], Tensor] | None]:
        """For each block, a function that returns the features of its edges; None if the model reads none."""
        edges = self.edges
        came = list(self._ahead.edge_rows(work)) if self._ahead else []
        if came:
            if isinstance(edges, CountedFeatures):
                edges.count(sum(map(len, came)))
            return rows_of_blocks(work, came.__getitem__)
        if not edges:
            return [None] * len(work.blocks)
        lists = edge_lists(work, self.placement)

        def gather(i: int) -> Tensor:
            rows = empty((len(lists[i]), edges.num_features), torch_dtype(edges.dtype))
            edges.gather(lists[i], out=rows.numpy())
            return rows

        return rows_of_blocks(work, gather)

    def _rows(self, nodes: IntArray) -> Tensor:
        features = self.features
        if (base := in_place(features, nodes)) is not None:
            return LazyRows(base, nodes)
        if (typed := typed_in_place(features, nodes)) is not None:
            return LazyTypedRows(*typed, nodes)
        rows = empty((len(nodes), features.num_features), torch_dtype(features.dtype))
        features.gather(nodes, out=rows.numpy())
        return rows


def edge_lists(work: MiniBatch, placement: Placement) -> list[IntArray]:
    """Positions of the edges of each list of a minibatch in the graph: one list if blocks are nested, else one for each
    block."""
    ids = [b.edge_id for b in (work.blocks[:1] if work.nested else work.blocks)]
    # Work without seeds has no edges, and needs no positions.
    assert all(i is not None or not b.num_edges for i, b in zip(ids, work.blocks)), "the sampler keeps edge_ids"
    return [np.empty(0, np.int64) if i is None else placement.positions_of(i) for i in ids]


def rows_of_blocks(work: MiniBatch, gather: Callable[[int], Tensor]) -> list[Callable[[], Tensor]]:
    """For each block, a function that returns the rows of its edges; `gather` gives those of a list of `edge_lists` by
    its number, once if blocks are nested."""
    if work.nested:
        whole = cache(lambda: gather(0))
        return [lambda n=b.num_edges: whole()[:n] for b in work.blocks]
    return [lambda i=i: gather(i) for i in range(len(work.blocks))]
