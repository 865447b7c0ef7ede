"""The ends of the queue: what a consumer is given early, it would be given later; how far a producer is ahead."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.stages.assignment import SeedPlan
from millrace.stages.feed.queue_feed import BulkDraws, BulkSpan, Producer, QueueFeed, most_bulks
from millrace.storage.errors import RunError
from millrace.storage.ledger import Ledger
from millrace.storage.minibatch import Bulk
from millrace.storage.queue.base import MemoryQueue
from millrace.storage.queue.bulk_codec import packed_bytes
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.messages import make_bulk


def test_a_piece_is_given_early_only_where_it_is_there() -> None:
    # One bulk at a time has room: the next one comes when the first is released, and nobody may wait for it before.
    queue = MemoryQueue(bulk_size=2, max_bytes=1, minibatches_per_epoch=4)
    feed: Any = QueueFeed(queue, None, Ledger(), lambda: True)
    assert feed.peek(0, 0) is None
    queue.put(make_bulk(0, 0, 2), timeout_s=1)
    early = feed.peek(0, 1)
    assert minibatch_digest(early) == minibatch_digest(feed.get(0, 1)) == minibatch_digest(feed.peek(0, 1))
    assert feed.peek(0, 2) is None
    feed.release(0, 1)
    queue.put(make_bulk(0, 1, 2), timeout_s=1)
    assert feed.peek(0, 2) is not None


def test_a_failure_of_sampling_is_heard_early_too() -> None:
    queue = MemoryQueue(bulk_size=2, max_bytes=1)
    queue.fail(ValueError("no more"))
    with pytest.raises(RunError, match="no more"):
        QueueFeed(queue, None, Ledger(), lambda: True).peek(0, 0)


@pytest.mark.parametrize(("room", "epochs", "expected"), [(0.1, 5, 2), (1.9, 5, 2), (3.5, 5, 4), (3.5, 2, 2)])
def test_bulks_that_are_held_at_once(room: float, epochs: int, expected: int) -> None:
    """Each epoch is one bulk of two minibatches."""
    bulk = make_bulk(0, 0, 2)
    size = packed_bytes(bulk)
    queue, drawn = MemoryQueue(bulk_size=2, max_bytes=round(room * size), minibatches_per_epoch=2), [0]

    def sample(graph: object, request: Any, *of: object) -> Any:
        drawn[0] += 1
        return Bulk(request.epoch, request.number, bulk.minibatches)

    plan = SeedPlan(np.arange(4), 2, 2, seed=0)
    draws: Any = BulkDraws(None, SimpleNamespace(sample=sample), plan, None)
    producer = Producer(queue, draws, BulkSpan(range(epochs), plan.num_bulks))
    for epoch in range(epochs):
        most = min(epochs, epoch + most_bulks(epochs, size, queue.max_bytes))
        while drawn[0] < most:
            time.sleep(0.001)
        assert queue.get(epoch, 1, timeout_s=60).index == 1
        # One is drawn before there is room for it, and none before that one has it.
        assert drawn[0] == most and queue.level["bulks"] <= expected
        queue.release(epoch, 1)
    producer.close()
    assert most_bulks(epochs, size, queue.max_bytes) == expected
