"""Training systems: each is a frozen record of five policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..stages.base import NeighbourhoodPolicy, PartitionPolicy, ReducePolicy, SamplePolicy, SchedulePolicy
from ..stages.fetch.gather import Gathered
from ..stages.fetch.visit import AHEAD_BYTES, Mode, Visited
from ..stages.partition.base import Partitioner
from ..stages.partition.metis import MetisWork
from ..stages.partition.replicated import Replicated
from ..stages.partition.sharded import Sharded
from ..stages.reduce.seed_weighted import AllSeedsMean, SeedWeightedMean
from ..stages.sample.base import Sampler
from ..stages.sample.full import Whole
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


def sar(
    mode: Mode | Literal["auto"] | Sequence[Mode] = "auto",
    *,
    partitioner: Partitioner | None = None,
    memory_bytes: int | None = None,
    ahead_bytes: int = AHEAD_BYTES,
    prune: bool = True,
) -> System:
    """Full-batch training with sequential aggregation and rematerialisation (SAR; Mostafa, MLSys 2022).

    Every rank holds one part of the nodes, and visits those of the others one rank after the other.

    Args:
        mode: how layers see other ranks' rows, one for all or one for each; ``auto`` takes the fastest that fit in `memory_bytes`.
        partitioner: cuts the graph, by default METIS with nodes and edges balanced together.
        memory_bytes: of tensors, for each rank; None: what the machine has to spare.
        ahead_bytes: rows that may be under way before they are needed.
        prune: leave out of each layer what the seeds' results do not depend on.
    """
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    return System(
        "sar",
        Sharded(partitioner or MetisWork(), prune),
        Whole(),
        Visited(modes, memory_bytes, ahead_bytes),
        AllSeedsMean(),
        Epochs(),
    )
