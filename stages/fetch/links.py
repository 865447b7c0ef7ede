"""Fetches minibatches of pairs: rows of their ends' neighbourhoods, and the pairs to score."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.errors import StoreError
from ...storage.features import CountedFeatures
from ...storage.minibatch import MiniBatch
from ..feed.link_feed import LinksByOwners, LocalLinks, SampledLinks
from ..links.decoders import decoder_of
from ..links.plan import LinkPlan
from ..links.train_pairs import own_weights
from ..messages import Fetched, PairsToScore, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood
from ..placement.chunks import Isolated
from ..placement.row_blocks import BlockRows
from ..sample.temporal import degrees_until
from .exchange import Exchange, ExchangeFetch
from .gather import Gather, GatherFetch
from .isolated import CoverageFetch, CoverageFetcher


@dataclass(frozen=True)
class LinkFetch(GatherFetch):
    """`GatherFetch` of minibatches that `SampledLinks` makes."""

    sample: SampledLinks

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "LinkGather":
        """See `FetchPolicy.fetcher`. The module has the decoder; None: pairs come without scores."""
        edges = placement.edge_features
        fetcher = LinkGather(
            placement,
            CountedFeatures(placement.features, job.ledger, "store"),
            None if edges is None else CountedFeatures(edges, job.ledger, "store"),
        )
        fetcher.pairs = _Pairs.of(self.sample, placement, job, module)
        return fetcher


@dataclass(frozen=True, kw_only=True)
class LinkExchangeFetch(ExchangeFetch):
    """`ExchangeFetch` of minibatches that `SampledLinks` makes, where every rank has the graph, or `LinksByOwners`."""

    sample: SampledLinks | LinksByOwners

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "LinkExchange":
        """See `LinkFetch.fetcher`. All ranks call this at the same time."""
        fetcher = LinkExchange(self, placement, job, *self.owned(placement, job))
        fetcher.pairs = _Pairs.of(self.sample, placement, job, module)
        return fetcher


@dataclass(frozen=True, kw_only=True)
class LinkCoverageFetch(CoverageFetch):
    """`CoverageFetch` of minibatches that `LocalLinks` makes."""

    sample: LocalLinks

    def fetcher(self, placement: Isolated, job: RankJob, module: nn.Module | None = None) -> "LinkCoverage":
        """See `LinkFetch.fetcher`. All ranks call this at the same time."""
        fetcher = LinkCoverage(placement, self)
        fetcher.pairs, fetcher.ranks = _Pairs.of(self.sample, placement, job, module), job.group.size
        return fetcher


@dataclass(frozen=True)
class _Pairs:
    """The plan of a run's pairs, and the decoder that scores them."""

    plan: LinkPlan
    decoder: Any
    """None: pairs come without scores."""

    @classmethod
    def of(cls, sample: Any, placement: Placement, job: RankJob, module: nn.Module | None) -> "_Pairs":
        plan: LinkPlan = sample.plan(placement, job)
        if isinstance(placement, BlockRows):
            links = plan.links
            own = own_weights(links.graph, links.pairs, links.num_nodes, placement.first)
            assert placement.column is not None
            # Each entry comes from the owner of the edge's destination: nothing is rounded.
            placement.column.all_reduce(torch.from_numpy(own).view(-1), "graph")
            plan = replace(plan, links=replace(links, own=own))
        return cls(plan, None if module is None else decoder_of(module))


class _WithPairs(Gather):
    """`Gather` with pairs. Degrees are those in the graph without the minibatch's own edges, or before the pairs."""

    pairs: _Pairs
    ranks = 1
    """Ranks with plans of their own: every so many minibatches are of one plan."""

    def _fetched(self, work: MiniBatch, h: Tensor, degrees: Tensor | None = None) -> Fetched:
        """See `Gather._fetched`."""
        plan, index = self.pairs.plan, work.index // self.ranks
        pairs = plan.pairs(index, work.epoch)
        ends = plan.ends(pairs, index, work.epoch)
        if not np.array_equal(ends.nodes, work.seeds):
            raise StoreError(
                f"minibatch {work.index} of epoch {work.epoch} has other ends than its pairs; sample it again"
            )
        degree = cache(
            lambda: self._of_others(work, degrees) if ends.moments is None else self._until(work, ends.moments)
        )
        of_edges = self._of_edges(work) or [None] * len(work.blocks)
        neighbourhoods = tuple(
            BlockNeighbourhood(
                b,
                lambda n=b.num_src: degree()[:n],
                edge_types=self._placement.types_of(b.edge_id),
                edges=edges,
            )
            for b, edges in zip(work.blocks, of_edges)
        )
        y = torch.zeros(len(pairs), dtype=torch.int64)
        links = PairsToScore(torch.from_numpy(ends.positions), self.pairs.decoder)
        return Fetched(work.epoch, work.index, neighbourhoods, h, y, links=links)

    def _until(self, work: MiniBatch, moments: npt.NDArray[np.number]) -> Tensor:
        data = self._placement
        return torch.from_numpy(degrees_until(data.graph, work, moments)).to(data.degree.dtype)

    def _of_others(self, work: MiniBatch, degrees: Tensor | None) -> Tensor:
        """[n], degrees without the own edges; `degrees` has those with them, if they came with the rows."""
        degree = (self._degrees(work) if degrees is None else degrees).clone()
        plan, seeds = self.pairs.plan, work.seeds
        lost = plan.links.lost_degree(plan.numbers(work.index // self.ranks, work.epoch), seeds)
        degree[: len(seeds)] -= torch.from_numpy(lost).to(degree.dtype)
        return degree.clamp_(min=0)


class LinkGather(_WithPairs):
    """Rows of the store."""


class LinkExchange(_WithPairs, Exchange):
    """Rows that ranks own between them."""


class LinkCoverage(_WithPairs, CoverageFetcher):
    """Rows of a rank that sees a part of the graph."""
