"""The consumer's end of the queue: what it gives early, it would give later."""

from typing import Any

import pytest

from millrace.stages.feed.queue_feed import QueueFeed
from millrace.stages.policies import PeeksAhead
from millrace.storage.errors import RunError
from millrace.storage.fingerprint import minibatch_digest
from millrace.storage.ledger import Ledger
from millrace.storage.queue.base import MemoryQueue
from millrace.tests.contracts.messages import make_bulk


def test_a_piece_is_given_early_only_where_it_is_there() -> None:
    # One bulk at a time has room: the next one comes when the first is released, and nobody may wait for it before.
    queue = MemoryQueue(bulk_size=2, max_bytes=1, minibatches_per_epoch=4)
    feed: Any = QueueFeed(queue, None, Ledger(), lambda: True)
    assert isinstance(feed, PeeksAhead)
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
