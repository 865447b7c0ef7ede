"""Fetches feature rows of minibatches: those of one array, in memory or mapped, are read where they are used; others
are gathered."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.features import CountedFeatures, FeatureStore, in_place
from ...storage.minibatch import MiniBatch
from ...storage.typed.features import typed_in_place
from ..links.planned_pairs import HasTargets
from ..memory.arena import empty
from ..memory.lazy_rows import LazyRows, LazyTypedRows, torch_dtype
from ..messages import Fetched, Phase, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood
from ..policies import Feed, SamplePolicy
from .ahead.disk_rows import FromDisk
from .ahead.units import Plan, RowsAhead, Units


@dataclass(frozen=True)
class GatherFetch:
    """Fetches each node's row at most once per minibatch; every block then aggregates locally."""

    prefetch_bytes: int | Literal["auto"] = "auto"
    """Memory for rows on disk that are ready or under way, those that are trained on among them; ``auto``: a quarter of
    what is left, shared by the ranks."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "Gather":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        return Gather(*self.sources(placement, job))

    def sources(
        self, placement: Placement, job: RankJob
    ) -> tuple[Placement, FeatureStore, FeatureStore | None, FromDisk | None]:
        """Arguments of `Gather`."""
        edges = placement.edge_features
        return (
            placement,
            CountedFeatures(placement.features, job.ledger, "store"),
            None if edges is None else CountedFeatures(edges, job.ledger, "store"),
            FromDisk.chosen(placement, job, self.prefetch_bytes),
        )


class Gather(HasTargets):
    """Rows of one array in memory come as `LazyRows`, which layers read in place. Those on disk are read ahead, or else
    gathered."""

    exchange_s = 0.0
    _ahead: Units[Any] | None = None

    def __init__(
        self, placement: Placement, features: FeatureStore, edges: FeatureStore | None, from_disk: FromDisk | None
    ) -> None:
        """
        Args:
            placement: labels and degrees.
            features: source of the rows.
            edges: source of the rows of edges, if the model reads them.
            from_disk: reads rows of both ahead; None: they are in memory.
        """
        self._placement = placement
        self._features = features
        self._edges = edges
        self._from_disk = from_disk

    def ahead(self, feed: Feed, sample: SamplePolicy, phase: Phase, first: tuple[int, int]) -> Feed:
        """See `FetchesAhead.ahead`: the feed itself where all rows are in memory."""
        disk = self._from_disk
        if disk is None:
            return feed
        steps = disk.job.steps(sample.num_minibatches(self._placement, disk.job))
        lists_of = partial(edge_lists, placement=self._placement)
        # pyrefly: ignore[bad-argument-type]
        self._ahead = disk.begun(feed, Plan(steps, phase.last_epoch, first), lists_of)
        return self._ahead

    @property
    def hit_counts(self) -> dict[str, int]:
        """See `FetchesAhead.hit_counts`: there is no cache."""
        return {}

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`: waits for the rows of `work`, if they have not arrived yet."""
        disk = self._from_disk
        if isinstance(self._ahead, RowsAhead):
            got = self._ahead.rows(work)
        else:
            got = None if disk is None else disk.at_once(work)
        if got is None:
            return self._fetched(work, self._rows(work.nodes))
        if isinstance(self._features, CountedFeatures):
            self._features.count(len(work.nodes))
        return self._fetched(work, LazyRows(got.rows, got.place), got.degree)

    def _fetched(self, work: MiniBatch, h: Tensor, degrees: Tensor | None = None) -> Fetched:
        """`Fetched` from the rows of all nodes, and their degrees if known."""
        data = self._placement
        # Most layers need no degrees, and those of all sources are as many random reads as a small gather.
        degree, of_seeds = self._targets(
            work, lambda: self._degrees(work) if degrees is None else degrees, lambda: data.labels_of(work.seeds)
        )
        of_edges = self._of_edges(work) or [None] * len(work.blocks)
        neighbourhoods = tuple(
            BlockNeighbourhood(b, lambda n=b.num_src: degree()[:n], edge_types=data.types_of(b.edge_id), edges=edges)
            for b, edges in zip(work.blocks, of_edges)
        )
        return Fetched(work.epoch, work.index, neighbourhoods, h, **of_seeds)

    def _degrees(self, work: MiniBatch) -> Tensor:
        """[n], degrees of all nodes of a minibatch."""
        return self._placement.degree[torch.from_numpy(work.nodes.astype(np.int64, copy=False))]

    def _of_edges(self, work: MiniBatch) -> list[Callable[[], Tensor]] | None:
        """For each block, a function that returns the features of its edges; None if the model reads none."""
        edges = self._edges
        came = list(self._ahead.edge_rows(work)) if isinstance(self._ahead, RowsAhead) else []
        if came:
            if isinstance(edges, CountedFeatures):
                edges.count(sum(map(len, came)))
            return rows_of_blocks(work, came.__getitem__)
        if edges is None:
            return None
        lists = edge_lists(work, self._placement)

        def gather(i: int) -> Tensor:
            rows = empty((len(lists[i]), edges.num_features), torch_dtype(edges.dtype))
            edges.gather(lists[i], out=rows.numpy())
            return rows

        return rows_of_blocks(work, gather)

    def _rows(self, nodes: npt.NDArray[np.integer]) -> Tensor:
        features = self._features
        base = in_place(features, nodes)
        if base is not None:
            return LazyRows(base, nodes)
        typed = typed_in_place(features, nodes)
        if typed is not None:
            return LazyTypedRows(*typed, nodes)
        rows = empty((len(nodes), features.num_features), torch_dtype(features.dtype))
        features.gather(nodes, out=rows.numpy())
        return rows

    def idle(self) -> None:
        """See `Fetcher.idle`: no effect, ranks gather by themselves."""


def edge_lists(work: MiniBatch, placement: Placement) -> list[npt.NDArray[np.integer]]:
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
