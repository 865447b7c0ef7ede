"""What the driver does when ranks are lost that the others may go on without: whom it tells, and when it gives up. Ranks are stand-ins."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from distributed.client import FutureCancelledError

from millrace.pipeline import gang
from millrace.pipeline.gang import _Generation
from millrace.pipeline.rank import Interrupted, ShortHandedError
from millrace.stages.comm.survivors import here
from millrace.storage.errors import PeerLostError

RANKS = 3


class Driver:
    """A generation under way, whose ranks end as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on_rank_loss: str = "continue") -> None:
        monkeypatch.setattr(gang, "worker_addresses", lambda client: list(self.workers))
        self.workers = {f"worker-{r}" for r in range(RANKS)}
        self.store, self.notes, self.cancelled = dist.HashStore(), list[str](), list[Any]()
        owner = SimpleNamespace(
            ranks=RANKS,
            store=self.store,
            prepared=SimpleNamespace(job=SimpleNamespace(cluster=SimpleNamespace(on_rank_loss=on_rank_loss))),
            emit=lambda event: self.notes.append(event.text),
            client=SimpleNamespace(cancel=self.cancelled.extend),
        )
        self.generation: Any = _Generation(owner, 4)  # pyright: ignore[reportArgumentType]
        self.generation.addresses = sorted(self.workers)
        self.outcomes: dict[int, Any] = {}
        self.generation.futures = {r: self._future(r) for r in range(RANKS)}

    def _future(self, rank: int) -> Any:
        return SimpleNamespace(done=lambda: rank in self.outcomes, result=lambda: self._result(rank))

    def _result(self, rank: int) -> Any:
        outcome = self.outcomes[rank]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def kill(self, rank: int) -> None:
        self.outcomes[rank] = {"died": -9, "log": []}

    def fail(self, rank: int, kind: type, text: str = "words") -> None:
        exit_code = getattr(kind, "exit_code", 3)
        self.outcomes[rank] = {"failed": {"kind": kind.__name__, "text": text, "where": [], "exit_code": exit_code}}

    def look(self) -> bool:
        """One round of the driver; whether the generation is to end."""
        self.generation.workers_at = 0.0
        self.generation._look()
        self.generation._go_on()
        return bool(self.generation.losses)

    def order(self, number: int) -> Any:
        key = f"4/gloo/members/{number}"
        return json.loads(self.store.get(key)) if self.store.check([key]) else None


def test_those_that_are_left_are_told_once_for_each_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    assert not driver.look()
    driver.kill(1)
    assert not driver.look() and not driver.look()
    assert (driver.order(1), driver.order(2)) == ([0, 2], None)
    driver.workers.remove("worker-0")
    assert not driver.look()
    assert driver.order(2) == [2]
    assert driver.notes == [
        "rank 1 was killed by signal 9; ranks 0, 2 are to go on without it",
        "the worker worker-0 that held rank 0 is gone; rank 2 is to go on without it",
    ]
    assert len(driver.cancelled) == 2, "a worker of the same name would bring the rank back"
    driver.kill(2)
    assert driver.look(), "nobody is left"
    assert driver.generation._end().text == "rank 1 was killed by signal 9"


@pytest.mark.parametrize("on_rank_loss", ["restart", "stop"])
def test_unless_it_is_asked_for_nobody_goes_on(on_rank_loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, on_rank_loss)
    driver.kill(1)
    assert driver.look()
    assert (driver.order(1), driver.notes) == (None, [])


def test_ranks_whose_tasks_dask_has_forgotten_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may live on: their scheduler is gone, or was out of reach for a moment."""
    driver = Driver(monkeypatch, "restart")
    driver.outcomes = {r: FutureCancelledError(f"train-{r}", "scheduler-connection-lost", "lost") for r in range(RANKS)}
    assert driver.look()
    assert driver.generation._end().text == "the task of rank 0 was lost: the connection to the Dask scheduler was lost"
    driver.generation._stop_all()
    assert driver.store.get("4/order") == b"abort"


def test_a_rank_that_cannot_go_on_ends_all_for_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    assert not driver.look()
    driver.fail(0, PeerLostError)
    assert driver.look()
    start = time.monotonic()
    outcome = driver.generation._end()
    assert (outcome.text, outcome.final) == ("rank 1 was killed by signal 9", False)
    assert time.monotonic() - start < gang.CAUSE_S, "the cause is known already"


def test_a_rank_that_raises_ends_all_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    assert not driver.look()
    driver.fail(0, ValueError)
    assert driver.look()
    outcome = driver.generation._end()
    assert (outcome.text, outcome.final) == ("rank 0 failed: words", True)


@pytest.mark.parametrize(("kind", "final"), [(ShortHandedError, False), (Interrupted, True)])
def test_the_checkpoint_at_the_end_is_waited_for(kind: type, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 writes it, and rank 2 has ended meanwhile; rank 1 is long gone, whatever became of its task."""
    driver = Driver(monkeypatch)
    driver.workers.remove("worker-1")
    assert not driver.look()
    driver.fail(2, kind)
    assert driver.look()
    rounds = iter(range(100))

    def sleep(seconds: float) -> None:
        if next(rounds) == 3:
            driver.fail(0, kind)

    monkeypatch.setattr(gang.time, "sleep", sleep)
    outcome = driver.generation._end()
    assert (outcome.text, outcome.final) == ("words", final)
    assert next(rounds) >= 4


def test_a_loss_after_training_is_over_is_no_loss_to_go_on_after(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.generation.reports[0] = object()
    driver.kill(1)
    assert driver.look()
    assert driver.order(1) is None


def test_ranks_that_do_not_come_together_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    monkeypatch.setattr(gang, "MEET_S", -1.0)
    assert not driver.look()
    driver.store.set(f"4/gloo/{here(1, [0])[0]}", "")
    assert driver.look()
    assert driver.generation._end().text.startswith("ranks [0, 2] did not come together within")


def test_ranks_that_have_come_together_may_take_as_long_as_they_want(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    monkeypatch.setattr(gang, "MEET_S", -1.0)
    assert not driver.look()
    for key in here(1, [0, 2]):
        driver.store.set(f"4/gloo/{key}", "")
    assert not driver.look() and not driver.look()
