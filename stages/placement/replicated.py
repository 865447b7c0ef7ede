"""Each rank sees the whole topology and all features."""

from dataclasses import dataclass

from ..messages import Part, Phase, Placement, RankJob
from .base import PartitionPolicy


@dataclass(frozen=True)
class Replicated(PartitionPolicy):
    """No placement: the data as they are. Costs the whole graph in the memory of each rank."""

    partitioner: None = None

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: object = None) -> Placement:
        assert isinstance(data, Placement)
        return data
