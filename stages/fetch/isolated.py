"""Fetch within what one rank sees, with the weight of each seed: how much of its neighbourhood is there."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ...storage.minibatch import Block, MiniBatch
from ..messages import Fetched, RankJob
from ..placement.chunks import Isolated
from .gather import Gather

Correction = Literal["none", "batch", "node", "hops", "edge", "edge-hajek"]
"""How missing neighbours are made up for: not at all; a weight for each rank's minibatch, its seeds' mean coverage; a
weight for each seed, its coverage; the same over several hops; a weight for each message, the inverse of how often its
source is there; or these weights, scaled to add up to each node's degree in the whole graph."""


@dataclass(frozen=True)
class CoverageFetch:
    """Rows come from this rank's memory; seeds and messages are weighed as the correction has it."""

    correction: Correction = "batch"
    hops: int = 2
    """For ``hops``: how many are looked at."""
    kappa: float = 0.0
    """So many in-edges are added to each node's when its coverage is measured, covered as the rank's seeds are on
    average."""

    def fetcher(self, placement: Isolated, job: RankJob, module: nn.Module) -> "CoverageFetcher":
        """See `FetchPolicy.fetcher`. Asks nothing of the module."""
        return CoverageFetcher(placement, self)


class CoverageFetcher(Gather):
    """`Gather` with weights."""

    def __init__(self, placement: Isolated, policy: CoverageFetch) -> None:
        """
        Args:
            placement: of this rank.
            policy: how.
        """
        super().__init__(placement, placement.features)
        self._isolated, self._policy = placement, policy
        self._coverage = smoothed(placement, policy.kappa)

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`."""
        if self._policy.correction in ("edge", "edge-hajek"):
            work = replace(work, blocks=tuple(self._inverse(b) for b in work.blocks))
        fetched = super().fetch(work)
        if self._policy.correction in ("none", "edge", "edge-hajek"):
            return fetched
        hops = self._policy.hops if self._policy.correction == "hops" else 1
        return replace(fetched, weight=torch.from_numpy(seed_weights(work.blocks, self._coverage, hops)))

    def _inverse(self, block: Block) -> Block:
        """Horvitz and Thompson: a message counts the inverse of the probability with which its source is there, given
        that its destination is. Hajek: over the sum of these inverses, times the degree. Means over messages divide by
        the sum of weights, and are alike."""
        place = self._isolated
        kept = np.diff(block.indptr)
        rows = np.repeat(np.arange(block.num_dst), kept)
        present = place.graph.in_degree[block.src[: block.num_dst]]
        source, destination = block.src[block.indices], block.src[rows]
        apart = (place.comes_with[source] != 0) & (place.comes_with[source] != place.comes_with[destination])
        inverse = np.where(
            source < place.num_visible, np.where(apart, 1 / place.inclusion, 1.0), 1 / place.halo_inclusion
        )
        weight = inverse * (present / np.maximum(kept, 1))[rows]
        own = 1.0 if block.weight is None else block.weight / (present / np.maximum(kept, 1))[rows]
        weight = weight * own
        if self._policy.correction == "edge-hajek":
            total = np.bincount(rows, weight, minlength=block.num_dst)
            degree = place.degree.numpy()[block.src[: block.num_dst]]
            weight *= np.divide(degree, total, out=np.zeros(block.num_dst), where=total > 0)[rows]
        return replace(block, weight=weight.astype(np.float32))


def smoothed(place: Isolated, kappa: float) -> npt.NDArray[np.float64]:
    """float64 [V], the coverage of each node, drawn to the mean m of this rank's seeds: (c d + kappa m) / (d + kappa),
    with d in-edges.

    The posterior mean of a binomial share whose prior is a beta distribution of mean m and weight kappa. Nodes without
    in-edges are covered, and halo nodes, of whose in-edges nothing is known, are not.

    Args:
        place: of this rank.
        kappa: at least 0, which leaves the coverage as it is.
    """
    coverage = place.coverage.numpy()
    if not kappa or place.in_edges is None or not len(place.seeds):
        return coverage
    d, known = place.in_edges.numpy(), np.arange(len(coverage)) < place.num_visible
    mean = coverage[place.seeds].mean()
    return np.where(known & (d > 0), (coverage * d + kappa * mean) / (d + kappa), coverage)


def seed_weights(blocks: tuple[Block, ...], coverage: npt.NDArray[np.float64], hops: int) -> npt.NDArray[np.float64]:
    """float64 [B], the product of the coverages of all nodes that each seed's tree expands within so many hops.

    The likelihood ratio of the full graph's sampling to the isolated one, cut off at one draw a node and after `hops`:
    one hop leaves a seed's own coverage.

    Args:
        blocks: of a minibatch, outermost first.
        coverage: [V].
        hops: at least 1; more than there are layers are all of them.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(coverage)
    hops = min(hops, len(blocks))
    deepest = blocks[-hops]
    total = logs[deepest.src[: deepest.num_dst]]
    for block in blocks[len(blocks) - hops + 1 :]:
        rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        below = np.bincount(rows, np.where(np.isneginf(total), 0, total)[block.indices], minlength=block.num_dst)
        blocked = np.bincount(rows, np.isneginf(total)[block.indices], minlength=block.num_dst) > 0
        total = np.where(blocked, -np.inf, logs[block.src[: block.num_dst]] + below)
    return np.exp(total)
