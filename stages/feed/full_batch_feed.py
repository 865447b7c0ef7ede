"""Full-batch work without sampling: the work of an epoch is the whole graph, one share for each rank."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...storage.errors import InputError
from ..messages import Phase, RankJob
from ..neighbourhood.full_batch import FullBatch
from ..placement.sharded import Share
from ..policies import Feed


@dataclass(frozen=True)
class FullBatchWork:
    """Every rank trains on its own share of the nodes. All shares together are one optimiser step, and one step is an
    epoch."""

    num_layers: None = None
    sampler: None = None
    uses_queue: ClassVar[bool] = False
    is_isolated: ClassVar[bool] = False
    by_owners: ClassVar[bool] = False

    def record(self) -> dict[str, Any]:
        return {"name": "whole"}

    def num_minibatches(self, placement: Share, job: RankJob) -> int:
        """See `SamplePolicy.num_minibatches`: one piece of work for each rank.

        Raises:
            InputError: a step is not made of exactly all of them.
        """
        if job.minibatches_per_step != job.group.size:
            raise InputError(
                f"train.minibatches_per_step is {job.minibatches_per_step}, but full-batch training takes one step an "
                "epoch, from all "
                "ranks together; leave it out"
            )
        return job.group.size

    def feed(self, placement: Share, phase: Phase, job: RankJob, first: tuple[int, int]) -> "FullBatchFeed":
        return FullBatchFeed(placement.graph)


class FullBatchFeed(Feed):
    """The same work every epoch."""

    def __init__(self, batch: FullBatch) -> None:
        self._batch = batch

    def get(self, epoch: int, index: int) -> FullBatch:
        """This rank's share."""
        return replace(self._batch, epoch=epoch)

    def release(self, epoch: int, index: int) -> None:
        """No effect: nothing is prefetched."""

    def close(self) -> None:
        """No effect: nothing is open."""
