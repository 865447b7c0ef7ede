"""Threads of several ranks that do the same pieces of work in the same order: room, errors, and ends that leave nobody
waiting."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from millrace.stages.comm import lockstep
from millrace.stages.comm.lockstep import Lockstep
from millrace.stages.comm.solo import Solo
from millrace.storage.errors import InputError, MillraceError, PeerLostError, QueueTimeoutError, RunError, StoreError
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

SOON_S = 120.0
"""Well below what `lockstep.LOOK_S` is here: nobody waited for a thread to look up by itself."""
LONG_S = 120.0


@pytest.fixture(autouse=True)
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is not told waits for longer than any test."""
    monkeypatch.setattr(lockstep, "LOOK_S", 300.0)


def made(
    group: Any,
    pieces: Iterable[int],
    do: Callable[[int], None],
    has_room: Callable[[int], bool] = lambda piece: True,
    failed: Callable[[], None] = lambda: None,
) -> Lockstep[int]:
    return Lockstep("counting", group, iter(pieces), has_room, do, failed)


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not ready():
        assert time.monotonic() < end, "this never came to pass"
        time.sleep(0.005)


def is_alive(thread: Lockstep[int]) -> bool:
    return thread._thread.is_alive()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_do_the_same_pieces_in_order(size: int) -> None:
    """Ranks talk within a piece, and are never in different ones, however long each takes."""

    def rank(group: ThreadGroup) -> list[int]:
        seen: list[int] = []
        slow = random.Random(group.rank)

        def do(piece: int) -> None:
            time.sleep(slow.random() * 0.01)
            assert group.all(piece) == [piece] * size
            seen.append(piece)

        thread = made(group, range(10, 30), do)
        time.sleep(slow.random() * 0.05)
        assert not seen, "nothing before the start"
        thread.start()
        until(lambda: not is_alive(thread))
        thread.check()
        thread.close()
        return seen

    assert run_threads(rank, size) == [list(range(10, 30))] * size


def test_the_thread_has_a_name_and_does_not_hold_up_the_end_of_its_process() -> None:
    found: list[tuple[str, bool]] = []
    thread = made(
        Solo(), [0], lambda piece: found.append((threading.current_thread().name, threading.current_thread().daemon))
    )
    thread.start()
    thread.close()
    until(lambda: not is_alive(thread))
    assert found in ([], [("counting", True)])
    assert thread._thread.daemon


def test_a_piece_begins_when_there_is_room_and_not_before() -> None:
    room, done = 2, []
    thread = made(Solo(), range(6), done.append, lambda piece: piece < room)
    thread.start()
    for more in (2, 3, 6):
        room = more
        thread.notify()
        start = time.monotonic()
        until(lambda more=more: len(done) == more)
        assert time.monotonic() - start < SOON_S, "it was told"
        time.sleep(0.05)
        assert done == list(range(more))
    thread.close()


def test_a_thread_that_nobody_tells_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "LOOK_S", 0.5)
    assert lockstep.LOOK_S <= 2
    monkeypatch.setattr(lockstep, "LOOK_S", 0.05)
    room, done = 0, []
    thread = made(Solo(), range(1), done.append, lambda piece: piece < room)
    thread.start()
    time.sleep(0.15)
    assert not done
    room = 1
    until(lambda: done == [0])
    thread.close()


def test_a_piece_waits_for_the_rank_without_room() -> None:
    """And for nothing else: one word from it, and all of them do the piece."""
    room, went = threading.Event(), threading.Barrier(3, timeout=LONG_S)

    def rank(group: ThreadGroup) -> None:
        done: list[int] = []
        thread = made(group, range(3), done.append, lambda piece: group.rank != 1 or piece < 1 or room.is_set())
        thread.start()
        until(lambda: done == [0])
        time.sleep(0.1)
        assert done == [0]
        went.wait()
        if group.rank == 1:
            room.set()
            thread.notify()
        start = time.monotonic()
        until(lambda: done == [0, 1, 2])
        assert time.monotonic() - start < SOON_S
        thread.close()

    run_threads(rank, 3)


@pytest.mark.parametrize("seed", range(12))
def test_ranks_close_wherever_their_threads_are(seed: int) -> None:
    """Some wait for room, others are in a piece or wait for the others' word: all of them end after the same piece."""

    def rank(group: ThreadGroup) -> list[int]:
        by = random.Random(100 * seed + group.rank)
        trained, together = 0, random.Random(seed).randrange(7)
        done: list[int] = []
        ahead = by.choice([0, 1, 3, 100])

        def do(piece: int) -> None:
            time.sleep(by.choice([0, 0, 0.02]))
            assert group.all(piece) == [piece] * group.size
            done.append(piece)

        thread = made(group, range(50), do, lambda piece: piece <= trained + ahead)
        thread.start()
        # Steps of the training in which ranks wait for each other; all close after the same one.
        for step in range(together):
            until(lambda step=step: len(done) > step)
            time.sleep(by.choice([0, 0.01]))
            trained = step + 1
            thread.notify()
            steps[step].wait()
        time.sleep(by.choice([0, 0.05]))
        start = time.monotonic()
        thread.close()
        assert time.monotonic() - start < LONG_S / 2
        assert not is_alive(thread)
        thread.check()
        assert len(done) >= together
        return done

    steps = [threading.Barrier(3, timeout=LONG_S) for _ in range(7)]
    first, *others = run_threads(rank, 3)
    assert first == list(range(len(first)))
    assert others == [first] * 2


def test_one_rank_that_closes_ends_the_threads_of_all_at_the_next_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "LOOK_S", 0.5)
    room, closed = threading.Event(), threading.Event()

    def rank(group: ThreadGroup) -> list[int]:
        done: list[int] = []
        thread = made(group, range(9), done.append, lambda piece: piece < 2 or room.is_set())
        thread.start()
        until(lambda: len(done) == 2)
        if group.rank == 0:
            # The other one has no room; its word comes when it has.
            threading.Timer(0.2, room.set).start()
            start = time.monotonic()
            thread.close()
            assert 0.1 < time.monotonic() - start < LONG_S / 2
            closed.set()
        else:
            until(lambda: not is_alive(thread))
            assert closed.wait(LONG_S)
            thread.close()
        return done

    assert run_threads(rank, 2) == [[0, 1]] * 2


@pytest.mark.parametrize("at", ["before the start", "while it waits", "in a piece", "after the last piece"])
def test_close_ends_the_thread_and_may_be_called_twice(at: str) -> None:
    going, done = threading.Event(), []

    def do(piece: int) -> None:
        going.set()
        time.sleep(0.05 if at == "in a piece" else 0)
        done.append(piece)

    thread = made(Solo(), range(3), do, lambda piece: at != "while it waits")
    if at != "before the start":
        thread.start()
        if at != "while it waits":
            assert going.wait(LONG_S)
        if at == "after the last piece":
            until(lambda: not is_alive(thread))
    for _ in range(2):
        start = time.monotonic()
        thread.close()
        assert time.monotonic() - start < SOON_S
        assert not is_alive(thread)
    thread.check()
    if at in ("in a piece", "after the last piece"):
        assert done[:1] == [0], "a piece that was begun is done"


def test_close_gives_up_on_a_piece_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "JOIN_S", 0.1)
    stuck, going = threading.Event(), threading.Event()
    thread = made(Solo(), range(3), lambda piece: (going.set(), stuck.wait(LONG_S))[0])
    thread.start()
    assert going.wait(LONG_S)
    with pytest.raises(RunError, match=r"^counting did not stop within 0\.1 s$"):
        thread.close()
    stuck.set()
    until(lambda: not is_alive(thread))
    thread.close()


def test_a_rank_that_ends_by_an_error_waits_for_nobody() -> None:
    """Its thread may be in a piece with ranks that will never answer."""
    stuck, going, done = threading.Event(), threading.Event(), []

    def do(piece: int) -> None:
        going.set()
        stuck.wait(LONG_S)
        done.append(piece)

    thread = made(Solo(), range(3), do)
    thread.start()
    assert going.wait(LONG_S)

    def train() -> None:
        try:
            raise ZeroDivisionError("a step")
        finally:
            start = time.monotonic()
            thread.close()
            assert time.monotonic() - start < SOON_S
            assert is_alive(thread)

    with pytest.raises(ZeroDivisionError, match="a step"):
        train()
    stuck.set()
    until(lambda: not is_alive(thread))
    assert done == [0], "it was closed all the same"


def do_fail(error: BaseException) -> Callable[[int], None]:
    def do(piece: int) -> None:
        if piece == 2:
            raise error

    return do


ERRORS = [
    InputError("a key is wrong"),
    StoreError("rows are damaged"),
    RunError("out of luck"),
    PeerLostError("a peer is gone"),
    QueueTimeoutError("the producer is behind"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_of_the_family_is_raised_as_what_it_is(error: MillraceError) -> None:
    told: list[BaseException | None] = []
    thread = made(Solo(), range(9), do_fail(error), failed=lambda: told.append(thread.error))
    thread.check()
    thread.start()
    until(lambda: not is_alive(thread))
    assert told == [error], "called once, when the error is known"
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            thread.check()
        assert (type(caught.value), str(caught.value), caught.value.__cause__) == (type(error), str(error), error)
    thread.close()
    assert thread.error is error


@pytest.mark.parametrize(
    "error", [ValueError("odd"), KeyError("x"), SystemExit(3), MemoryError()], ids=lambda e: type(e).__name__
)
def test_any_other_error_is_a_fault_of_the_run(error: BaseException) -> None:
    thread = made(Solo(), range(9), do_fail(error))
    thread.start()
    until(lambda: not is_alive(thread))
    with pytest.raises(RunError) as caught:
        thread.check()
    assert str(caught.value) == f"counting failed: {type(error).__name__}: {error}"
    assert caught.value.__cause__ is error
    thread.close()


def broken(numbers: Iterator[int]) -> Iterator[int]:
    yield next(numbers)
    raise StoreError("no more pieces")


def no_room(piece: int) -> bool:
    raise StoreError("no room is known")


@pytest.mark.parametrize(("pieces", "has_room"), [(broken(iter(range(2))), lambda piece: True), (range(3), no_room)])
def test_errors_of_the_plan_and_of_the_room_count_too(pieces: Iterable[int], has_room: Callable[[int], bool]) -> None:
    told = threading.Event()
    thread = made(Solo(), pieces, lambda piece: None, has_room, told.set)
    thread.start()
    assert told.wait(LONG_S)
    with pytest.raises(StoreError, match=r"^no "):
        thread.check()
    thread.close()
