"""Fetches feature rows of minibatches: by name if they lie in memory, else gathered."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.features import CountedFeatures, FeatureStore, in_place
from ...storage.minibatch import MiniBatch
from ..memory.arena import empty
from ..memory.lazy_rows import LazyRows, torch_dtype
from ..messages import Fetched, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood, types_of_edges


@dataclass(frozen=True)
class GatherFetch:
    """Fetches each node's row at most once per minibatch; every block then aggregates locally."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "Gather":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        return Gather(placement, CountedFeatures(placement.features, job.ledger, "store"))


class Gather:
    """Rows come as `LazyRows` from a store in memory, else gathered."""

    exchange_s = 0.0

    def __init__(self, placement: Placement, features: FeatureStore) -> None:
        """
        Args:
            placement: labels and degrees.
            features: source of the rows.
        """
        self._placement = placement
        self._features = features

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`."""
        return self._fetched(work, self._rows(work.nodes))

    def _fetched(self, work: MiniBatch, h: Tensor, degrees: Tensor | None = None) -> Fetched:
        """`Fetched` from the rows of all nodes, and their degrees if known."""
        data, nodes = self._placement, work.nodes
        # Most layers need no degrees, and those of all sources are as many random reads as a small gather.
        degree = cache(
            lambda: data.degree[torch.from_numpy(nodes.astype(np.int64, copy=False))] if degrees is None else degrees
        )
        neighbourhoods = tuple(
            BlockNeighbourhood(b, lambda n=b.num_src: degree()[:n], edge_types=types_of_edges(data.graph, b.edge_id))
            for b in work.blocks
        )
        return Fetched(work.epoch, work.index, neighbourhoods, h, data.labels_of(work.seeds))

    def _rows(self, nodes: npt.NDArray[np.integer]) -> Tensor:
        features = self._features
        base = in_place(features, nodes)
        if base is not None:
            return LazyRows(base, nodes)
        rows = empty((len(nodes), features.num_features), torch_dtype(features.dtype))
        features.gather(nodes, out=rows.numpy())
        return rows

    def idle(self) -> None:
        """See `Fetcher.idle`: no effect, ranks gather by themselves."""
