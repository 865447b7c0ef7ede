"""A wait that lasts is told of: when, how often, and in which words."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from millrace.stages.comm.gloo import Gloo
from millrace.stages.comm.watch import Watch
from millrace.storage.ledger import Ledger

SOON_S = 0.2


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def watch(told: list[str]) -> Iterator[Watch]:
    watch = Watch(told.append, SOON_S)
    yield watch
    watch.close()


def test_a_long_wait_is_told_again_when_it_has_lasted_twice_as_long(watch: Watch, told: list[str]) -> None:
    with watch.waiting("rows of rank 3"):
        time.sleep(0.5 * SOON_S)
        assert told == []
        time.sleep(1.2 * SOON_S)
        assert told == ["waiting for 0 s already: rows of rank 3"]
        time.sleep(6 * SOON_S)
        # At 1, 2 and 4 times as long, or a little later.
        assert 2 <= len(told) <= 3
    seen = list(told)
    time.sleep(4 * SOON_S)
    assert told == seen, "the wait is over"


def test_seconds_are_counted_from_the_beginning_of_the_wait(
    watch: Watch, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic
    with watch.waiting("x"):
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 72)
        time.sleep(SOON_S)
    assert told[0] == "waiting for 72 s already: x"


def test_many_short_waits_are_no_long_one(watch: Watch, told: list[str]) -> None:
    for _ in range(12):
        with watch.waiting("x"):
            time.sleep(SOON_S / 4)
    assert told == []


def test_every_long_wait_is_told_of_with_its_own_words(watch: Watch, told: list[str]) -> None:
    for what in "ab":
        with watch.waiting(what):
            time.sleep(1.9 * SOON_S)
    assert [t[-1] for t in told] == ["a", "b"]


def test_a_wait_that_fails_is_over(watch: Watch, told: list[str]) -> None:
    with pytest.raises(ValueError), watch.waiting("x"):
        raise ValueError
    time.sleep(2 * SOON_S)
    assert told == []


def test_nothing_is_told_after_closing(watch: Watch, told: list[str]) -> None:
    with watch.waiting("x"):
        watch.close()
        watch.close()
        time.sleep(2 * SOON_S)
    assert told == []


def test_a_group_tells_what_a_rank_is_waiting_for(told: list[str]) -> None:
    store = dist.HashStore()

    def rank(r: int) -> None:
        group = Gloo(
            store, r, 2, Ledger(), host="127.0.0.1", on_wait=told.append if r == 0 else None, slow_peer_warning_s=SOON_S
        )
        if r == 1:
            time.sleep(3 * SOON_S)
        into = torch.zeros(3)
        swap = group.swap(torch.ones(3), 1 - r, into, 1 - r, 1, "activations")
        swap.received("layer 2, forward, round 1 of 1: rows of rank 1")
        swap.sent("sending")
        assert into.tolist() == [1.0] * 3
        group.any(False)
        group.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, range(2)))
    assert told and set(told) == {"waiting for 0 s already: rank 0, layer 2, forward, round 1 of 1: rows of rank 1"}
