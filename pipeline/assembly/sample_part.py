"""How the minibatches of a job are drawn, whoever draws them."""

from dataclasses import dataclass
from typing import Any

from ...stages.assignment import SeedPlan
from ...stages.messages import Seeded


@dataclass(frozen=True)
class SamplePart:
    """A rule for seeds and a sampler. Knows no model."""

    policy: Any
    """The sample policy of the job's system: `Sampled`, `SampledByOwners`, or one of pairs."""
    batch_size: int
    """Seeds of a minibatch."""
    bulk_size: int
    """k, minibatches of a bulk."""
    seed: int
    """Seed of permutations and draws."""
    kernel: str
    """Name of the sampling backend."""

    def plan(self, data: Seeded) -> SeedPlan:
        """Seeds of all ranks' minibatches, for a process that has the whole graph."""
        return self.policy.plan(data, self)
