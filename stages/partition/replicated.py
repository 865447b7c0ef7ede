"""Every rank sees the whole topology and all features."""

from dataclasses import dataclass

from ..base import Phase, Placement, RankJob


@dataclass(frozen=True)
class Replicated:
    """No placement at all: the data as they are. Costs the whole graph in the memory of each rank."""

    def place(self, data: Placement, phase: Phase, job: RankJob) -> Placement:
        """See `PartitionPolicy.place`."""
        return data
