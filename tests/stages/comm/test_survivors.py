"""Sums over ranks of which some are lost: what they come to, who agrees, and what is raised."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from millrace.stages.comm import survivors
from millrace.stages.comm.gloo import Contact, Gloo
from millrace.stages.comm.survivors import Survivors, here
from millrace.storage.errors import PeerLostError
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.failing_ranks import TIMEOUT_S, DeadError, ThreadedRanks

SUMS = 6


def vector(rank: int, number: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([rank, number]).random(1000, np.float32))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("flags", [False, True])
@pytest.mark.parametrize("deaf", ["none", "one", "one hangs", "all"])
def test_those_that_are_left_agree_on_every_sum(
    size: int, flags: bool, deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 takes part in sum 2 and is gone before sum 3. Those that are deaf lose what sum 2 came to: they get it
    from one that has it, which is a sum further on by then, or, where nobody has, it is taken again, without rank 0."""
    monkeypatch.setattr(survivors, "HANG_S", 0.1)
    threaded = ThreadedRanks(size)
    silent = {"none": [], "all": list(range(1, size))}.get(deaf, [size - 1])
    handed_on = len(silent) < size - 1
    whole, rest = tuple(range(size)), tuple(range(1, size))

    def rank(group: Survivors) -> list[Any]:
        seen = []
        for n in range(SUMS):
            if n == 3 and group.rank == 0:
                raise DeadError
            threaded.lines[group.rank].deaf = n == 2 and group.rank in silent
            threaded.lines[group.rank].hangs = deaf == "one hangs"
            if flags:
                # Only rank 0 raises the flag in sum 2.
                seen.append(group.any(n == 0 or (n == 2 and group.rank == 0)))
            else:
                flat = vector(group.rank, n)
                group.all_reduce(flat, "gradients")
                seen.append(flat)
            assert group.present == (whole if n < 2 or (n == 2 and handed_on) or group.rank == 0 else rest), (
                "whoever learnt of it first"
            )
        assert group.size == size
        return seen

    first, *left = threaded.run(rank)
    assert first is None
    if flags:
        assert left == [[True, False, handed_on, False, False, False]] * (size - 1)
        return
    for n in range(SUMS):
        assert all(torch.equal(seen[n], left[0][n]) for seen in left), f"sum {n} differs"
        of = whole if n < 2 or (n == 2 and handed_on) else rest
        np.testing.assert_allclose(left[0][n], sum(vector(r, n).double() for r in of), rtol=1e-6)
    for ledger in threaded.ledgers[1:]:
        assert sum(ledger.get("network", kind) for kind in ("graph", "features", "activations")) == 0


def test_ranks_die_one_after_the_other_until_one_is_left() -> None:
    threaded = ThreadedRanks(4)

    def rank(group: Survivors) -> list[float]:
        seen = []
        for n in range(SUMS):
            if n == group.rank + 1 and group.rank < 3:
                raise DeadError
            flat = torch.full((3,), 10.0**group.rank)
            group.all_reduce(flat, "gradients")
            seen.append(float(flat[0]))
        assert group.present == (3,)
        return seen

    assert threaded.run(rank)[3] == [1111.0, 1110.0, 1100.0, 1000.0, 1000.0, 1000.0]


class Deserted(dist.Store):
    """Store of a rank that gives its address and then does nothing more."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store

    def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        time.sleep(TIMEOUT_S)
        raise DeadError

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.get(keys[0])


def desert(store: Deserted) -> None:
    with suppress(PeerLostError, DeadError):
        Gloo(store, 0, 3, Ledger(), Contact("127.0.0.1"))


@pytest.mark.parametrize("known", [False, True])
def test_a_rank_may_die_on_the_way_to_the_others(known: bool) -> None:
    """Rank 0 dies in sum 1; rank 1, when all are to meet without it, before or after its address is known. Ranks 2 and
    3, which wait for it, hear of the second order at once, and meet by that."""
    threaded = ThreadedRanks(4)
    deserted: list[Deserted] = []

    def at_meeting(rank: int, size: int, store: dist.Store) -> None:
        if rank == 1 and size == 3:
            if known:
                deserted.append(Deserted(store))
                threading.Thread(target=desert, args=deserted, daemon=True).start()
                store.wait(["0/0", "0/1", "0/2"])
                time.sleep(0.1)
            raise DeadError

    threaded.at_meeting = at_meeting

    def rank(group: Survivors) -> list[float]:
        seen = []
        for n in range(3):
            if n == 1 and group.rank == 0:
                raise DeadError
            flat = torch.full((1,), 10.0**group.rank)
            group.all_reduce(flat, "gradients")
            seen.append(float(flat))
        return seen

    start = time.monotonic()
    assert threaded.run(rank)[2:] == [[1111.0, 1100.0, 1100.0]] * 2
    assert time.monotonic() - start < TIMEOUT_S
    assert len(deserted) == known


def test_a_slow_rank_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than for an order: who computes has not been lost."""
    monkeypatch.setattr(survivors, "ORDER_S", 0.1)
    threaded = ThreadedRanks(3)

    def rank(group: Survivors) -> bool:
        if group.rank == 0:
            raise DeadError
        if group.rank == 1:
            threaded.store.wait(["here/1/2"], timedelta(seconds=120))
            time.sleep(0.4)
            assert not threaded.store.check(here(1, (1, 2)))
        return group.any(group.rank == 1)

    assert threaded.run(rank) == [None, True, True]


CALLS: dict[str, Callable[[Survivors], object]] = {
    "all_reduce": lambda g: g.all_reduce(torch.ones(3), "control"),
    "any": lambda g: g.any(True),
    "broadcast": lambda g: g.broadcast(torch.ones(3), 0, "control"),
    "all_to_all": lambda g: g.all_to_all([torch.ones(1)] * 2, "features"),
    "swap": lambda g: g.swap(torch.ones(1), 0, torch.ones(1), 0, 1, "features").received("it"),
}


def evaluate(group: Survivors) -> None:
    with group.counting("evaluation"):
        group.all_reduce(torch.ones(3), "control")


CALLS["evaluation"] = evaluate


@pytest.mark.parametrize("what", CALLS)
def test_what_needs_all_ranks_raises_the_loss(what: str) -> None:
    threaded = ThreadedRanks(2)

    def rank(group: Survivors) -> None:
        if group.rank == 0:
            raise DeadError
        group.bears = what not in ("all_reduce", "any")
        with pytest.raises(PeerLostError):
            CALLS[what](group)
        assert group.bears is (what not in ("all_reduce", "any"))
        assert group.present == (0, 1)

    threaded.run(rank)


def test_what_needs_all_ranks_is_not_begun_without_them() -> None:
    def rank(group: Survivors) -> None:
        if group.rank == 0:
            raise DeadError
        group.any(True)
        for what in ("broadcast", "all_to_all", "swap"):
            with pytest.raises(AssertionError, match=r"only ranks \(1,\) of 2 are left"):
                CALLS[what](group)
        with pytest.raises(AssertionError, match="this needs all"):
            group.sub("x", (1,))

    ThreadedRanks(2).run(rank)


@pytest.mark.parametrize("order", [None, [0]])
def test_without_an_order_that_names_it_a_rank_does_not_go_on(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors, "ORDER_S", 0.3)
    threaded = ThreadedRanks(2)

    def rank(group: Survivors) -> None:
        if group.rank == 0:
            threaded.lines[0].close()
        else:
            if order is not None:
                threaded.store.set("members/1", json.dumps(order))
            with pytest.raises(PeerLostError, match="could not finish all_reduce"):
                group.all_reduce(torch.ones(1), "gradients")
            group.close()

    threaded.run(rank)


def test_while_all_are_there_it_is_the_group_itself() -> None:
    def rank(group: Survivors) -> Any:
        flat = torch.full((2,), 1.0 + group.rank)
        group.broadcast(flat, 1, "control")
        parts = group.all_to_all([torch.full((1,), group.rank)] * 3, "features")
        own = group.sub("pair", (0, 2)) if group.rank != 1 else None
        return flat.tolist(), [int(p) for p in parts], own and own.size, group.any(False), group.present

    assert ThreadedRanks(3).run(rank) == [
        ([2.0, 2.0], [0, 1, 2], None if r == 1 else 2, False, (0, 1, 2)) for r in range(3)
    ]
