"""Training systems: each is a frozen record of five policies."""

from dataclasses import dataclass

from ..stages.base import NeighbourhoodPolicy, PartitionPolicy, ReducePolicy, SamplePolicy, SchedulePolicy
from ..stages.fetch.gather import Gathered
from ..stages.partition.replicated import Replicated
from ..stages.reduce.seed_weighted import SeedWeightedMean
from ..stages.sample.base import Sampler
from ..stages.sample.neighbor import NeighborSampler
from ..stages.sample.produce import Sampled
from .schedule import Epochs


@dataclass(frozen=True)
class System:
    """A training system. The loop runs any of them the same way."""

    name: str
    partition: PartitionPolicy
    sample: SamplePolicy
    neighbourhood: NeighbourhoodPolicy
    reduce: ReducePolicy
    schedule: SchedulePolicy


def bulk(sampler: Sampler | None = None) -> System:
    """Minibatch training on samples that are drawn many at a time (Tripathy, Yelick, Buluc, MLSys 2024).

    The topology is replicated; features are fetched per minibatch; gradients are the mean over the seeds of a step.
    """
    return System("bulk", Replicated(), Sampled(sampler or NeighborSampler()), Gathered(), SeedWeightedMean(), Epochs())
