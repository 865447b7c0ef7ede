"""Contract of every minibatch queue."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.storage.errors import InputError, QueueTimeoutError, RunError, StoreError
from millrace.storage.minibatch import MiniBatch
from millrace.storage.queue.base import MinibatchQueue
from millrace.storage.queue.bulk_codec import packed_bytes
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.messages import make_bulk

K = 3
"""Minibatches in a bulk."""
ONE = packed_bytes(make_bulk(0, 0, K))
LONG_S, SHORT_S = 120.0, 0.05


def same(a: MiniBatch, b: MiniBatch) -> bool:
    return (a.epoch, a.index, a.nested, minibatch_digest(a)) == (b.epoch, b.index, b.nested, minibatch_digest(b))


class MinibatchQueueTests:
    """Subclass as ``TestX`` and define how to make a queue."""

    def make(
        self,
        path: Path,
        *,
        max_bytes: int = 100 * ONE,
        keep: Any = "none",
        consumers: int = 1,
        per_epoch: int | None = None,
        bulk_size: int = K,
    ) -> MinibatchQueue:
        """An empty queue; `path` is for its own use."""
        raise AssertionError("a subclass makes the queue")

    @pytest.fixture
    def new(self, tmp_path: Path) -> Callable[..., MinibatchQueue]:
        count = iter(range(100))
        return lambda **options: self.make(tmp_path / f"queue-{next(count)}", **options)

    @pytest.fixture
    def later(self):
        """Run a call in another thread."""
        with ThreadPoolExecutor(4) as pool:
            yield pool.submit

    @staticmethod
    def stays_blocked(future: "Future[Any]", seconds: float = 0.15) -> bool:
        time.sleep(seconds)
        return not future.done()

    def test_is_a_minibatch_queue(self, new):
        assert isinstance(new(), MinibatchQueue)
        assert new().bulk_size == K

    def test_gets_what_was_put_in_any_order_and_again(self, new):
        queue = new()
        bulks = {(e, n): make_bulk(e, n, K) for e in range(2) for n in range(3)}
        for key in [(0, 1), (0, 0), (1, 2), (0, 2), (1, 0), (1, 1)]:
            queue.put(bulks[key], LONG_S)
        assert queue.committed(0) == queue.committed(1) == {0, 1, 2}
        assert queue.committed(2) == set()
        for e, i in [(0, 0), (1, 8), (0, 4), (0, 0), (0, 8), (1, 0)]:
            got = queue.get(e, i, LONG_S)
            got.check()
            assert same(got, bulks[e, i // K].minibatches[i % K])

    def test_last_bulk_may_be_shorter(self, new):
        queue = new()
        queue.put(make_bulk(0, 1, K, count=1), LONG_S)
        assert queue.get(0, 3, LONG_S).index == 3
        with pytest.raises(StoreError, match="1 minibatches"):
            queue.get(0, 4, LONG_S)

    def test_put_again_changes_nothing(self, new):
        queue = new(max_bytes=ONE)
        for _ in range(3):
            queue.put(make_bulk(0, 0, K), SHORT_S)
        assert queue.committed(0) == {0}

    def test_get_waits_for_the_producer(self, new, later):
        queue = new()
        got = later(queue.get, 0, 4, LONG_S)
        assert self.stays_blocked(got)
        queue.put(make_bulk(0, 0, K), LONG_S)
        assert self.stays_blocked(got)
        queue.put(make_bulk(0, 1, K), LONG_S)
        assert same(got.result(LONG_S), make_bulk(0, 1, K).minibatches[1])

    def test_get_times_out_and_names_the_producer(self, new):
        start = time.monotonic()
        with pytest.raises(QueueTimeoutError, match=r"minibatch 7 of epoch 1 .*0\.05 s.*producer"):
            new().get(1, 7, SHORT_S)
        assert SHORT_S <= time.monotonic() - start < LONG_S

    def test_put_times_out_and_names_the_consumers(self, new):
        queue = new(max_bytes=ONE)
        queue.put(make_bulk(0, 0, K), LONG_S)
        with pytest.raises(QueueTimeoutError, match=rf"bulk 1 of epoch 0 .*consumers.*{ONE} of {ONE} bytes"):
            queue.put(make_bulk(0, 1, K), SHORT_S)
        assert queue.committed(0) == {0}

    def test_put_waits_for_room(self, new, later):
        queue = new(max_bytes=2 * ONE)
        queue.put(make_bulk(0, 0, K), LONG_S)
        queue.put(make_bulk(0, 1, K), LONG_S)
        put = later(queue.put, make_bulk(0, 2, K), LONG_S)
        assert self.stays_blocked(put)
        queue.release(0, K - 2)
        assert self.stays_blocked(put), "a bulk counts until its last minibatch is released"
        assert queue.committed(0) == {0, 1}
        queue.release(0, K - 1)
        put.result(LONG_S)
        assert 2 in queue.committed(0)

    def test_an_empty_queue_takes_a_bulk_beyond_the_bound(self, new):
        queue = new(max_bytes=1)
        queue.put(make_bulk(0, 0, K), SHORT_S)
        queue.release(0, K - 1)
        queue.put(make_bulk(0, 1, K), SHORT_S)
        assert queue.committed(0) == {1}

    def test_a_bulk_that_is_waited_for_is_not_shut_out(self, new, later):
        """Two producers, of which the faster one has filled the queue."""
        queue = new(max_bytes=ONE)
        queue.put(make_bulk(0, 1, K), LONG_S)
        put = later(queue.put, make_bulk(0, 0, K), LONG_S)
        assert self.stays_blocked(put)
        assert queue.get(0, 0, LONG_S).index == 0
        put.result(LONG_S)

    def test_released_bulks_are_dropped(self, new):
        queue = new(keep="none")
        for n in range(3):
            queue.put(make_bulk(0, n, K), LONG_S)
        queue.release(0, 2 * K - 2)
        assert queue.committed(0) == {1, 2}
        with pytest.raises(StoreError, match=r"dropped \(keep='none'\)"):
            queue.get(0, 0, LONG_S)
        queue.get(0, 2 * K - 2, LONG_S)
        queue.release(0, 0)
        queue.put(make_bulk(0, 0, K), LONG_S)
        assert queue.committed(0) == {1, 2}, "going back takes nothing back"
        queue.release(1, 0)
        assert queue.committed(0) == set()

    def test_a_bulk_that_was_dropped_is_not_kept_when_put_again(self, new):
        queue = new(keep="none")
        queue.release(0, K - 1)
        queue.put(make_bulk(0, 0, K), LONG_S)
        assert queue.committed(0) == set()

    def test_a_shorter_last_bulk_is_dropped_at_its_end(self, new):
        queue = new(keep="none")
        queue.put(make_bulk(0, 0, K, count=2), LONG_S)
        queue.release(0, 0)
        assert queue.committed(0) == {0}
        queue.release(0, 1)
        assert queue.committed(0) == set()

    @pytest.mark.parametrize("per_epoch", [None, 2 * K - 1])
    def test_keep_epoch_drops_at_the_end_of_the_epoch(self, new, per_epoch):
        queue = new(keep="epoch", per_epoch=per_epoch)
        queue.put(make_bulk(0, 0, K), LONG_S)
        queue.put(make_bulk(0, 1, K, count=K - 1), LONG_S)
        queue.put(make_bulk(1, 0, K), LONG_S)
        queue.release(0, 2 * K - 3)
        assert queue.committed(0) == {0, 1}
        assert queue.get(0, 0, LONG_S).index == 0
        queue.release(0, 2 * K - 2)
        assert queue.committed(0) == (set() if per_epoch else {0, 1})
        queue.release(1, 0)
        assert queue.committed(0) == set()
        assert queue.committed(1) == {0}

    def test_keep_epoch_makes_room_when_released(self, new):
        queue = new(keep="epoch", max_bytes=ONE)
        queue.put(make_bulk(0, 0, K), LONG_S)
        queue.release(0, K - 1)
        queue.put(make_bulk(0, 1, K), SHORT_S)
        assert queue.committed(0) == {0, 1}

    def test_what_is_kept_for_replay_only_waits_for_nobody(self, new):
        """A resumed run's producer fills the gaps of the epoch behind its consumers."""
        queue = new(keep="epoch", max_bytes=1)
        queue.release(0, 3 * K - 1)
        for n in range(3):
            queue.put(make_bulk(0, n, K), SHORT_S)
        assert queue.committed(0) == {0, 1, 2}

    def test_every_consumer_must_release(self, new, later):
        queue = new(consumers=2, max_bytes=ONE)
        queue.put(make_bulk(0, 0, K), LONG_S)
        put = later(queue.put, make_bulk(0, 1, K), LONG_S)
        queue.release(0, K - 1, consumer=0)
        queue.release(0, K - 1, consumer=0)
        assert self.stays_blocked(put)
        assert queue.committed(0) == {0}
        queue.release(0, K - 1, consumer=1)
        put.result(LONG_S)
        assert queue.committed(0) == {1}

    def test_a_failed_producer_reaches_every_wait_at_once(self, new, later):
        queue = new(max_bytes=1)
        queue.put(make_bulk(0, 0, K), LONG_S)
        waits = [later(queue.get, 0, 5, LONG_S), later(queue.put, make_bulk(0, 2, K), LONG_S)]
        assert self.stays_blocked(waits[0])
        assert not waits[1].done()
        error = ValueError("no more ids")
        start = time.monotonic()
        queue.fail(error)
        for wait in waits:
            with pytest.raises(RunError, match="ValueError: no more ids") as caught:
                wait.result(LONG_S)
            assert caught.value.__cause__ is error
        assert time.monotonic() - start < LONG_S / 2
        with pytest.raises(RunError, match="producer"):
            queue.get(0, 0, LONG_S)

    def test_close_ends_every_wait(self, new, later):
        queue = new(max_bytes=1)
        queue.put(make_bulk(0, 0, K), LONG_S)
        waits = [later(queue.get, 0, 5, LONG_S), later(queue.put, make_bulk(0, 2, K), LONG_S)]
        assert self.stays_blocked(waits[0])
        queue.close()
        queue.close()
        for wait in waits:
            with pytest.raises(RunError, match="closed"):
                wait.result(LONG_S)
        with pytest.raises(RunError, match="closed"):
            queue.put(make_bulk(0, 1, K), LONG_S)

    def test_many_producers_and_consumers(self, new):
        """Three producers race through ten bulks under a bound of two; two consumers see every minibatch once, in
        order."""
        queue, bulks = new(consumers=2, max_bytes=2 * ONE), 10
        numbers, lock = iter(range(bulks)), threading.Lock()

        def produce() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                queue.put(make_bulk(0, number, K), LONG_S)

        def consume(rank: int) -> list[str]:
            seen = []
            for i in range(rank, bulks * K, 2):
                seen.append(minibatch_digest(queue.get(0, i, LONG_S)))
                queue.release(0, i, consumer=rank)
            queue.release(0, bulks * K, consumer=rank)
            return seen

        with ThreadPoolExecutor(5) as pool:
            producers = [pool.submit(produce) for _ in range(3)]
            seen = [f.result(LONG_S) for f in [pool.submit(consume, r) for r in range(2)]]
            for p in producers:
                p.result(LONG_S)
        want = [minibatch_digest(m) for n in range(bulks) for m in make_bulk(0, n, K).minibatches]
        assert seen == [want[0::2], want[1::2]]
        assert queue.committed(0) == set()

    def test_refuses_minibatches_beyond_the_epoch(self, new):
        with pytest.raises(StoreError, match="an epoch of this queue has 4"):
            new(per_epoch=4).get(0, 4, LONG_S)

    @pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"bulk_size": 0}, {"consumers": 0}])
    def test_refuses_sizes_below_one(self, new, wrong):
        with pytest.raises(InputError, match=f"{next(iter(wrong))}=0; expected at least 1"):
            new(**wrong)

    def test_refuses_an_unknown_keep(self, new):
        with pytest.raises(InputError, match=r"keep='epochs'.*did you mean 'epoch'"):
            new(keep="epochs")
