"""Minibatches of positive pairs with their negatives."""

from dataclasses import dataclass, field, replace
from typing import Any

from ..assignment import Steps
from ..links.exclude import WithoutOwnEdges
from ..links.plan import LinkPlan
from ..links.train_pairs import Negatives, TrainPairs
from ..messages import Placement, RankJob
from ..placement.row_blocks import BlockRows
from ..sample.base import Sampler, reads_times
from .collective_feed import SampledByOwners
from .queue_feed import Sampled


@dataclass(frozen=True)
class SampledLinks(Sampled):
    """Minibatches of pairs, whose seeds are the ends, without the pairs' own edges, or of what lies before the
    pairs."""

    negatives: Negatives = field(default_factory=Negatives)

    @classmethod
    def of(cls, sampler: Sampler, negatives: Negatives) -> "SampledLinks":
        """
        Args:
            sampler: draws the neighbourhoods of the ends.
            negatives: their law.
        """
        return cls(sampler if reads_times(sampler) else WithoutOwnEdges(sampler), negatives)

    def record(self) -> dict[str, Any]:
        """See `SamplePolicy.record`."""
        return {**self.sampler.record(), "negatives": self.negatives.record()}

    def plan(self, placement: Placement, job: RankJob) -> LinkPlan:
        """See `Sampled.plan`."""
        links = TrainPairs.of(placement.graph, placement.labels.numpy(), self.negatives, placement.pair_time)
        return LinkPlan(placement.seeds, job.batch_size, job.bulk_size, job.seed, links=links)


@dataclass(frozen=True)
class LinksByOwners(SampledByOwners):
    """`SampledLinks` over block rows: every rank has all pairs, and takes the own edges out of the samples that the
    owners of the rows have drawn for it."""

    negatives: Negatives = field(default_factory=Negatives)

    def record(self) -> dict[str, Any]:
        """See `SamplePolicy.record`."""
        return {**super().record(), "negatives": self.negatives.record()}

    def plan(self, placement: BlockRows, job: RankJob) -> LinkPlan:
        """See `SampledByOwners.plan`."""
        assert placement.pairs is not None
        ranks = job.group.size
        links = TrainPairs.of_rows(placement.graph, placement.num_nodes, placement.pairs.labels, self.negatives)
        plan = LinkPlan(placement.seeds, job.batch_size, job.bulk_size * ranks, job.seed, links=links)
        return replace(plan, steps=Steps(plan.num_minibatches, job.minibatches_per_step, ranks, job.group.rank))
