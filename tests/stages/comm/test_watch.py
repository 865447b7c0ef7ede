"""A wait that lasts is told of: when, how often, and in which words."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from millrace.stages.comm.gloo import Contact, Gloo
from millrace.stages.comm.watch import Watch
from millrace.storage.ledger import Ledger

SOON_S, LONG_S = 0.04, 120.0


class Clock:
    """The time that a `Watch` sees, which is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def at(self, waits: float) -> None:
        """Set it to so many `SOON_S`, and give the watch the time to look at it."""
        self.now = waits * SOON_S
        time.sleep(SOON_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def watch(clock: Clock, told: list[str]) -> Iterator[Watch]:
    watch = Watch(told.append, SOON_S)
    yield watch
    watch.close()


def until(ready: Callable[[], bool]) -> None:
    end = time.perf_counter() + LONG_S
    while not ready():
        assert time.perf_counter() < end, "this never came to pass"
        time.sleep(0.002)


def test_a_long_wait_is_told_again_when_it_has_lasted_twice_as_long(
    watch: Watch, clock: Clock, told: list[str]
) -> None:
    with watch.waiting("rows of rank 3"):
        clock.at(0.5)
        assert told == []
        for number, (due, not_yet) in enumerate(((1.1, 1.9), (2.3, 4.5), (4.7, 9.3)), start=1):
            clock.at(due)
            until(lambda number=number: len(told) == number)
            clock.at(not_yet)
            assert len(told) == number
    assert set(told) == {"waiting for 0 s already: rows of rank 3"}
    clock.at(99)
    assert len(told) == 3, "the wait is over"


def test_seconds_are_counted_from_the_beginning_of_the_wait(watch: Watch, clock: Clock, told: list[str]) -> None:
    clock.now = 1000.0
    with watch.waiting("x"):
        clock.now += 72
        until(lambda: bool(told))
    assert told[0] == "waiting for 72 s already: x"


def test_many_short_waits_are_no_long_one(watch: Watch, clock: Clock, told: list[str]) -> None:
    for n in range(12):
        with watch.waiting("x"):
            clock.at(0.9 * n)
    assert told == []


def test_every_long_wait_is_told_of_with_its_own_words(watch: Watch, clock: Clock, told: list[str]) -> None:
    for number, what in enumerate("ab", start=1):
        with watch.waiting(what):
            clock.at(1.9 * number)
            until(lambda number=number: len(told) == number)
    assert [t[-1] for t in told] == ["a", "b"]


def test_a_wait_that_fails_is_over(watch: Watch, clock: Clock, told: list[str]) -> None:
    with pytest.raises(ValueError), watch.waiting("x"):
        raise ValueError
    clock.at(99)
    assert told == []


def test_nothing_is_told_after_closing(watch: Watch, clock: Clock, told: list[str]) -> None:
    with watch.waiting("x"):
        watch.close()
        watch.close()
        assert watch._thread is not None
        watch._thread.join(LONG_S)
        clock.at(99)
    assert told == []


def test_a_group_tells_what_a_rank_is_waiting_for(told: list[str]) -> None:
    store = dist.HashStore()
    wanted = re.compile(r"waiting for \d+ s already: rank 0, layer 2, forward, round 1 of 1: rows of rank 1")

    def rank(r: int) -> None:
        group = Gloo(store, r, 2, Ledger(), Contact("127.0.0.1", told.append if r == 0 else None, SOON_S))
        if r == 1:
            until(lambda: any(map(wanted.fullmatch, told)))
        into = torch.zeros(3)
        swap = group.swap(torch.ones(3), 1 - r, into, 1 - r, 1, "activations")
        swap.received("layer 2, forward, round 1 of 1: rows of rank 1")
        swap.sent("sending")
        assert into.tolist() == [1.0] * 3
        group.any(False)
        group.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, range(2)))
    assert any(map(wanted.fullmatch, told))
