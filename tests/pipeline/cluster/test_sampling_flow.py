"""The driver's requests for sampling tasks, against a client that keeps every promise for later."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.pipeline.cluster.sampling_flow import PER_PRODUCER, BulkFlow, SamplingWorkers
from millrace.pipeline.setup.open_queue import ReportingQueue
from millrace.stages.feed.queue_feed import BulkSpan, Receipt
from millrace.storage.queue.base import MemoryQueue

SIZE = 100


class Promise:
    """A future that is done when the test says so."""

    def __init__(self, key):
        self.key, self.outcome, self.cancelled = key, None, False
        self.lost: type[Exception] | None = None

    def done(self):
        return self.outcome is not None

    @property
    def status(self):
        return "error" if isinstance(self.outcome, Exception) else "finished"

    def result(self, timeout):
        assert timeout > 0
        if self.lost is not None:
            raise self.lost
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self):
        self.cancelled = True


class Client:
    """Keeps what was submitted, in order."""

    def __init__(self):
        self.promises = []

    def submit(self, fn, order, epoch, number, **options):
        self.promises.append(Promise((epoch, number)))
        return self.promises[-1]

    def cancel(self, futures):
        for future in futures:
            future.cancel()

    def open(self):
        return [p for p in self.promises if not p.done()]


class Bench:
    """A flow of bulks of k minibatches, n minibatches an epoch, and P ranks in step that want M minibatches a step."""

    def __init__(self, *, n, k, M=1, P=1, epochs=1, max_bytes=10 * SIZE, producers=1, first=(0, 0), present=()):
        self.n, self.k, self.M, self.producers = n, k, M, producers
        self.client = Client()
        self.queue = MemoryQueue(bulk_size=k, max_bytes=max_bytes, consumers=P, minibatches_per_epoch=n)
        self.queue.committed = lambda epoch: {number for e, number in present if e == epoch}
        workers = SamplingWorkers(self.client, "r", 0, producers, [])
        self.flow = BulkFlow(workers, None, self.queue, BulkSpan(range(first[0], epochs), -(-n // k), first[1]), M)
        self.there = set(present)
        end = SimpleNamespace(bulk_size=k, stored=True, packed=None, release=lambda *a: None)
        self.ranks = [ReportingQueue(end, lambda m, r=r: self.flow.release(r, *m["released"]), n) for r in range(P)]
        self.steps = [
            (e, s) for e in range(epochs) for s in range(first[1] * k // M if e == first[0] else 0, -(-n // M))
        ]

    def finish(self, promise, size=SIZE):
        epoch, number = promise.key
        last = min((number + 1) * self.k, self.n) - 1
        promise.outcome = Receipt(epoch, number, minibatches=1, edges=1, seconds=1.0), last, size
        self.there.add(promise.key)

    def train(self):
        """Take every step whose bulks are there."""
        while self.steps:
            epoch, step = self.steps[0]
            last = min((step + 1) * self.M, self.n) - 1
            if not {(epoch, b) for b in range(step * self.M // self.k, last // self.k + 1)} <= self.there:
                return
            for rank in self.ranks:
                rank.release(epoch, last)
            self.steps.pop(0)

    def drive(self, rng, sizes=lambda: SIZE):
        """To the end; bulks come in any order. Gives the most bytes that ever waited, once what was asked for blindly
        is done."""
        most = 0
        while self.steps:
            self.flow.advance()
            if self.flow.bulks >= PER_PRODUCER * self.producers:
                most = max(most, self.queue.level["bytes"] + SIZE * len(self.client.open()))
            under_way = self.client.open()
            assert under_way, (
                f"stuck before step {self.steps[0]}: nothing is asked for, {self.queue.level['bytes']} bytes are held"
            )
            self.finish(rng.choice(under_way), sizes())
            self.flow.advance()
            self.train()
        return most


@settings(deadline=None)
@given(
    n=st.integers(1, 23), k=st.integers(1, 5), M=st.integers(1, 9), P=st.integers(1, 3), epochs=st.integers(1, 3),
    producers=st.integers(1, 3), max_bytes=st.sampled_from([1, SIZE, 3 * SIZE]), seed=st.integers(0, 99),
)  # fmt: skip
def test_never_stuck_however_small_the_bound(n, k, M, P, epochs, producers, max_bytes, seed):
    """A step may need several bulks at once; the last bulk of an epoch may be short; sizes may be anything."""
    rng = random.Random(seed)
    bench = Bench(n=n, k=k, M=M, P=P, epochs=epochs, producers=producers, max_bytes=max_bytes)
    bench.drive(rng, lambda: rng.choice([1, SIZE, 50 * SIZE]))
    asked = [p.key for p in bench.client.promises]
    assert asked == [(e, b) for e in range(epochs) for b in range(-(-n // k))], "each bulk once, in order"
    assert bench.flow.done
    assert (bench.flow.bulks, bench.flow.seconds) == (len(asked), len(asked))
    assert not bench.queue.level["bytes"]


@pytest.mark.parametrize("producers", [1, 3])
@pytest.mark.parametrize("bulks", [1, 2, 5, 1000])
def test_the_bound_holds(bulks, producers):
    bench = Bench(n=100, k=2, max_bytes=bulks * SIZE, producers=producers)
    # Before any size is known, every producer is given work.
    bench.flow.advance()
    assert len(bench.client.open()) == PER_PRODUCER * producers
    most = bench.drive(random.Random(0))
    assert most <= bulks * SIZE
    assert most >= min(bulks, PER_PRODUCER * producers) * SIZE, "room that is there is used"


def test_asks_for_no_more_than_producers_can_take():
    bench = Bench(n=100, k=1, max_bytes=1 << 40, producers=3)
    for _ in range(20):
        bench.flow.advance()
        assert len(bench.client.open()) == PER_PRODUCER * 3
        bench.finish(bench.client.open()[-1])


def test_goes_on_where_the_ranks_go_on_and_skips_what_is_there():
    bench = Bench(n=10, k=2, epochs=2, first=(0, 2), present=[(0, 0), (0, 3), (1, 1)], producers=9)
    bench.flow.advance()
    assert [p.key for p in bench.client.promises] == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 3), (1, 4)]
    bench.drive(random.Random(0))
    assert bench.flow.done


def test_nothing_to_do_is_done():
    bench = Bench(n=4, k=2, present=[(0, 0), (0, 1)])
    bench.flow.advance()
    assert bench.flow.done
    assert not bench.client.promises


def test_a_task_that_fails_ends_the_run():
    bench = Bench(n=10, k=2)
    bench.flow.advance()
    bench.client.promises[0].outcome = OSError("no space left on device")
    with pytest.raises(mr.RunError, match=r"sampling failed: OSError: no space left.*--resume"):
        bench.flow.advance()


@pytest.mark.parametrize("lost", [TimeoutError, UnboundLocalError])
def test_a_receipt_that_went_with_its_worker_is_waited_for(lost):
    """Dask has a time-out, or, where its request is cancelled, no result to return."""
    bench = Bench(n=10, k=2)
    bench.flow.advance()
    first = bench.client.promises[0]
    bench.finish(first)
    first.lost = lost
    bench.flow.advance()
    assert bench.flow.bulks == 0
    first.lost = None
    bench.flow.advance()
    assert bench.flow.bulks == 1


def test_close_lets_go():
    bench = Bench(n=10, k=2)
    bench.flow.advance()
    under_way = bench.client.open()
    bench.flow.close()
    assert under_way
    assert all(p.cancelled for p in under_way)
    bench.flow.advance()
    assert bench.client.open() == under_way, "nothing more is asked for"
    assert bench.flow.done
