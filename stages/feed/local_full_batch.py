"""Full batches of isolated ranks: in every step each rank trains on all that it sees."""

from dataclasses import dataclass
from typing import ClassVar

from ..messages import Phase, RankJob
from ..placement.sharded import Share
from .full_batch_feed import FullBatchFeed, FullBatchWork
from .local_feed import Isolation


@dataclass(frozen=True)
class LocalFullBatch(FullBatchWork):
    """`FullBatchWork` of ranks that send each other only gradients. One without seeds takes part with empty work."""

    is_isolated: ClassVar[bool] = True
    by_owners: ClassVar[bool] = False

    def feed(self, placement: Share, phase: Phase, job: RankJob, first: tuple[int, int]) -> "LocalFullBatchFeed":
        feed = LocalFullBatchFeed(placement.graph)
        feed.isolation = Isolation(job)
        return feed


class LocalFullBatchFeed(FullBatchFeed):
    """The same work every epoch of a super-epoch. See `Feed`."""

    isolation: Isolation

    def close(self) -> None:
        """See `Feed.close`. A phase has moved nothing but gradients and statistics."""
        self.isolation.end()
