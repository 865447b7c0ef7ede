"""Fetches minibatches of pairs: rows of their ends' neighbourhoods, and the pairs to score."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.errors import StoreError
from ...storage.features import CountedFeatures
from ...storage.minibatch import MiniBatch
from ..feed.link_feed import SampledLinks
from ..links.decoders import decoder_of
from ..messages import Fetched, PairsToScore, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood
from ..sample.temporal import degrees_until
from .gather import Gather, GatherFetch


@dataclass(frozen=True)
class LinkFetch(GatherFetch):
    """`GatherFetch` of minibatches that `SampledLinks` makes."""

    sample: SampledLinks

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "LinkGather":
        """See `FetchPolicy.fetcher`. The module has the decoder; None: pairs come without scores."""
        return LinkGather(self, placement, job, module)


class LinkGather(Gather):
    """`Gather` with pairs. Degrees are those in the graph without the minibatch's own edges, or before the pairs."""

    def __init__(self, policy: LinkFetch, placement: Placement, job: RankJob, module: nn.Module | None) -> None:
        """See `LinkFetch.fetcher`."""
        super().__init__(placement, CountedFeatures(placement.features, job.ledger, "store"))
        self._plan = policy.sample.plan(placement, job)
        self._decoder = None if module is None else decoder_of(module)

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`."""
        pairs = self._plan.pairs(work.index, work.epoch)
        ends = self._plan.ends(pairs, work.index, work.epoch)
        if not np.array_equal(ends.nodes, work.seeds):
            raise StoreError(
                f"minibatch {work.index} of epoch {work.epoch} has other ends than its pairs; sample it again"
            )
        degree = cache(lambda: self._degrees(work) if ends.moments is None else self._until(work, ends.moments))
        neighbourhoods = tuple(BlockNeighbourhood(b, lambda n=b.num_src: degree()[:n]) for b in work.blocks)
        y = torch.zeros(len(pairs), dtype=torch.int64)
        links = PairsToScore(torch.from_numpy(ends.places), self._decoder)
        return Fetched(work.epoch, work.index, neighbourhoods, self._rows(work.nodes), y, links=links)

    def _until(self, work: MiniBatch, moments: npt.NDArray[np.number]) -> Tensor:
        data = self._placement
        return torch.from_numpy(degrees_until(data.graph, work, moments)).to(data.degree.dtype)

    def _degrees(self, work: MiniBatch) -> Tensor:
        degree = super()._degrees(work).clone()
        seeds = work.seeds
        lost = self._plan.links.lost_degree(self._plan.numbers(work.index, work.epoch), seeds)
        degree[: len(seeds)] -= torch.from_numpy(lost).to(degree)
        return degree.clamp_(min=0)
