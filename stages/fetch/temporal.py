"""Fetches minibatches that were drawn until the moments of their seeds: degrees are those until then."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...storage.features import CountedFeatures
from ...storage.minibatch import MiniBatch
from ..messages import Placement, RankJob
from ..sample.temporal import degrees_until
from .gather import Gather, GatherFetch


@dataclass(frozen=True)
class TemporalFetch(GatherFetch):
    """`GatherFetch` of the minibatches of a sampler that reads times."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "TemporalGather":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        edges = placement.edge_features
        return TemporalGather(
            placement,
            CountedFeatures(placement.features, job.ledger, "store"),
            None if edges is None else CountedFeatures(edges, job.ledger, "store"),
        )


class TemporalGather(Gather):
    """`Gather` with the degrees of nodes until the moments of their trees."""

    def _degrees(self, work: MiniBatch) -> Tensor:
        graph = self._placement.graph
        assert graph.node_time is not None
        degree = degrees_until(graph, work, graph.node_time[work.seeds])
        return torch.from_numpy(degree).to(self._placement.degree.dtype)
