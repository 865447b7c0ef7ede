"""Fetches minibatches of pairs: rows of their ends' neighbourhoods, and the pairs to score."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.errors import StoreError
from ...storage.features import CountedFeatures
from ...storage.minibatch import MiniBatch
from ..feed.link_feed import SampledLinks
from ..links.decoders import decoder_of
from ..messages import Fetched, PairsToScore, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood
from .gather import Gather, GatherFetch


@dataclass(frozen=True)
class LinkFetch(GatherFetch):
    """`GatherFetch` of minibatches that `SampledLinks` makes."""

    sample: SampledLinks

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "LinkGather":
        """See `FetchPolicy.fetcher`. The module has the decoder; None: pairs come without scores."""
        return LinkGather(self, placement, job, module)


class LinkGather(Gather):
    """`Gather` with pairs. Degrees are those in the graph without the minibatch's own edges."""

    def __init__(self, policy: LinkFetch, placement: Placement, job: RankJob, module: nn.Module | None) -> None:
        """See `LinkFetch.fetcher`."""
        super().__init__(placement, CountedFeatures(placement.features, job.ledger, "store"))
        self._plan = policy.sample.plan(placement, job)
        self._decoder = None if module is None else decoder_of(module)

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`."""
        pairs, seeds = self._plan.pairs(work.index, work.epoch), work.seeds
        if not np.array_equal(np.unique(pairs), seeds):
            raise StoreError(
                f"minibatch {work.index} of epoch {work.epoch} has other ends than its pairs; sample it again"
            )
        degree = cache(lambda: self._degrees(work))
        neighbourhoods = tuple(BlockNeighbourhood(b, lambda n=b.num_src: degree()[:n]) for b in work.blocks)
        local = torch.from_numpy(np.searchsorted(seeds, pairs))
        y = torch.zeros(len(pairs), dtype=torch.int64)
        links = PairsToScore(local, self._decoder)
        return Fetched(work.epoch, work.index, neighbourhoods, self._rows(work.nodes), y, links=links)

    def _degrees(self, work: MiniBatch) -> Tensor:
        degree = super()._degrees(work).clone()
        seeds = work.seeds
        lost = self._plan.links.lost_degree(self._plan.numbers(work.index, work.epoch), seeds)
        degree[: len(seeds)] -= torch.from_numpy(lost).to(degree)
        return degree.clamp_(min=0)
