"""Weighs each seed of a rank that sees a part of the graph by the share of its neighbourhood that is there."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.minibatch import MiniBatch
from ..comm.solo import Solo
from ..messages import Fetched, RankJob
from ..neighbourhood.full_batch import FullBatch
from ..placement.whole_view import WholeView
from .visit import VisitFetch, Visits

Correction = Literal["none", "batch", "node"]
"""Correction for missing neighbours: none; a weight for each rank's minibatch, its seeds' mean coverage; or a weight
for each seed, its coverage."""


class Weights:
    """Weights of seeds by their coverage, on the host."""

    _weight: Tensor | None = None

    def __init__(self, placement: Any, correction: Correction) -> None:
        """
        Args:
            placement: of this rank; an `Isolated` if seeds have weights.
            correction: none: seeds have no weights.
        """
        if correction == "none":
            return
        with np.errstate(divide="ignore"):
            # Through logarithms, since earlier versions multiplied coverages: the weights keep their bits.
            coverage = np.exp(np.log(placement.coverage.numpy()))
        self._weight = torch.from_numpy(coverage)

    def seed_weights(self, work: MiniBatch | FullBatch) -> Tensor | None:
        """float64 [B], weights of the seeds of `work`; None: they have none."""
        return None if self._weight is None else self._weight[torch.from_numpy(work.seeds)]

    def given(self, fetched: Fetched, work: MiniBatch | FullBatch) -> Fetched:
        """`fetched` with the weights of the seeds of `work`."""
        weight = self.seed_weights(work)
        if weight is None:
            return fetched
        if fetched.links is not None:
            # A pair has the mean coverage of the ends that its loss is of.
            weight = weight[fetched.links.pairs].flatten(1).mean(1)
        return replace(fetched, weight=weight)


@dataclass(frozen=True)
class CoverageVisitFetch(VisitFetch):
    """Layers read all rows of this rank's view; seeds are weighted according to the correction."""

    correction: Correction = "batch"

    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> "CoverageVisits":
        """See `FetchPolicy.fetcher`: of a placement `WholeView`. Does not depend on the module."""
        return CoverageVisits(placement, self.correction, job)


class CoverageVisits(Visits):
    """`Visits` of one rank alone, with a weight for each seed."""

    def __init__(self, placement: WholeView, correction: Correction, job: RankJob) -> None:
        """
        Args:
            placement: of this rank.
            correction: how seeds are weighed.
            job: of this rank.
        """
        super().__init__(placement, ("halo",) * job.num_layers, 0, Solo(), job.device)
        self._weights, self._rank = Weights(placement.seen, correction), job.group.rank

    def fetch(self, work: FullBatch) -> Fetched:
        # Rows are named within the view: the rank's number gives each rank dropout of its own.
        return replace(self._weights.given(super().fetch(work), work), index=self._rank)
