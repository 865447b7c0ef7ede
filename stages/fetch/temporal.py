"""Fetches minibatches that were drawn until the moments of their seeds: degrees are those until then."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.minibatch import MiniBatch
from ..messages import Placement, RankJob
from ..sample.temporal import degrees_until
from .gather import Gather, GatherFetch


@dataclass(frozen=True)
class TemporalFetch(GatherFetch):
    """`GatherFetch` of the minibatches of a sampler that reads times."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "TemporalGather":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        return TemporalGather(*self.sources(placement, job))


class TemporalGather(Gather):
    """`Gather` with the degrees of nodes until the moments of their trees."""

    def _degrees(self, work: MiniBatch) -> Tensor:
        return torch.from_numpy(degrees_of(work, self._placement)).to(self._placement.degree.dtype)


def degrees_of(work: MiniBatch, placement: Placement) -> npt.NDArray[np.float64]:
    """float64 [n], degrees of all nodes of a minibatch until the moments of the seeds whose trees they are in."""
    graph = placement.graph
    assert graph.node_time is not None
    return degrees_until(graph, work, graph.node_time[work.seeds])
