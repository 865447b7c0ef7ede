"""Fetches minibatches of pairs: rows of their ends' neighbourhoods, and the pairs to score."""

from dataclasses import dataclass

from torch import nn

from ..feed.link_feed import LinksByOwners, LocalLinks, SampledLinks
from ..links.planned_pairs import PlannedPairs
from ..messages import Placement, RankJob
from ..placement.chunks import Isolated
from .exchange import ExchangeFetch
from .gather import Gather, GatherFetch
from .isolated import CoverageFetch, CoverageFetcher


@dataclass(frozen=True, kw_only=True)
class LinkFetch(GatherFetch):
    """`GatherFetch` of minibatches that `SampledLinks` makes."""

    sample: SampledLinks

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> Gather:
        """See `FetchPolicy.fetcher`. The module has the decoder; None: pairs come without scores."""
        fetcher = super().fetcher(placement, job)
        fetcher.pairs = PlannedPairs.from_placement(self.sample, placement, job, module)
        return fetcher


@dataclass(frozen=True, kw_only=True)
class LinkExchangeFetch(ExchangeFetch):
    """`ExchangeFetch` of minibatches that `SampledLinks` makes, where every rank has the graph, or `LinksByOwners`."""

    sample: SampledLinks | LinksByOwners

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> Gather:
        """See `LinkFetch.fetcher`. All ranks call this at the same time."""
        fetcher = super().fetcher(placement, job)
        fetcher.pairs = PlannedPairs.from_placement(self.sample, placement, job, module)
        return fetcher


@dataclass(frozen=True, kw_only=True)
class LinkCoverageFetch(CoverageFetch):
    """`CoverageFetch` of minibatches that `LocalLinks` makes."""

    sample: LocalLinks

    # pyrefly: ignore[bad-override]
    def fetcher(self, placement: Isolated, job: RankJob, module: nn.Module | None = None) -> CoverageFetcher:
        """See `LinkFetch.fetcher`. All ranks call this at the same time."""
        fetcher = CoverageFetcher(placement, self)
        # pyrefly: ignore[bad-argument-type]
        fetcher.pairs = PlannedPairs.from_placement(self.sample, placement, job, module, job.group.size)
        return fetcher
