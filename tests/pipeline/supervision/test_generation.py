"""The driver's behaviour when ranks are lost and the others may continue: whom it tells, and when it gives up. Ranks
are stand-ins."""

import json
import queue
import time
from concurrent.futures import Future
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from distributed.client import FutureCancelledError

from millrace.pipeline.cluster import scheduler_watch
from millrace.pipeline.cluster.scheduler_watch import SchedulerWatch
from millrace.pipeline.cluster.unresponsive import Silence
from millrace.pipeline.config.schema import ClusterOptions
from millrace.pipeline.supervision import generation
from millrace.pipeline.supervision.generation import Generation
from millrace.pipeline.telemetry.events import EpochDone
from millrace.pipeline.telemetry.heartbeat import METRIC
from millrace.pipeline.training.trainer import RankReport
from millrace.stages.comm.survivors import here
from millrace.storage.errors import Interrupted, PeerLostError, RunError, ShortHandedError

RANKS = 3


class Driver:
    """A generation under way, whose ranks end as a test says."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, on_rank_loss: str = "continue", silence_limit_s: float | None = None
    ) -> None:
        monkeypatch.setattr(scheduler_watch, "ask", lambda client: self.answer())
        self.workers = {f"worker-{r}" for r in range(RANKS)}
        self.rounds, self.frozen, self.now = 0, set[str](), 0.0
        monkeypatch.setattr(generation, "Silence", lambda note_s, tell: Silence(note_s, tell, self.clock))
        self.store, self.notes, self.cancelled = dist.HashStore(), list[str](), list[Any]()
        self.stop, self.epochs = False, list[tuple[int, float]]()
        cluster = ClusterOptions(on_rank_loss=on_rank_loss, silence_limit_s=silence_limit_s)
        client: Any = SimpleNamespace(cancel=self.cancelled.extend, status="running", cluster="started by the run")
        owner = SimpleNamespace(
            ranks=RANKS,
            topic="run",
            job=SimpleNamespace(cluster=cluster),
            emit=self._hear,
            client=client,
            note=self.notes.append,
            watch=SchedulerWatch(client, cluster, self.notes.append, self.clock),
            messages=queue.SimpleQueue(),
            silence=generation.Silence(10.0, self.notes.append),
            frozen=set(),
            stop=lambda: self.stop,
            save=lambda: False,
            work=SimpleNamespace(report=RankReport),
            resume_point=lambda: "from there it goes on",
        )
        self.owner = owner
        self.generation: Any = Generation(owner, 4, self.store)
        self.seen: dict[str, int] = {}
        self.generation.addresses = sorted(self.workers)
        self.outcomes: dict[int, Any] = {}
        self.generation.futures = {r: self._future(r) for r in range(RANKS)}

    def _future(self, rank: int) -> Any:
        return SimpleNamespace(done=lambda: rank in self.outcomes, result=lambda timeout: self._result(rank))

    def _hear(self, event: Any) -> None:
        if isinstance(event, EpochDone):
            self.epochs.append((event.epoch, event.seconds))
        else:
            self.notes.append(event.text)

    def clock(self) -> float:
        """The time, as a test sets it."""
        return self.now

    def answer(self) -> Future[dict[str, Any]]:
        """A question to the scheduler."""
        answer = Future[dict[str, Any]]()
        if "scheduler" not in self.frozen:
            answer.set_result({"workers": self.records()})
        return answer

    def records(self) -> dict[str, Any]:
        """Report of the scheduler: everybody but the frozen one has given another sign of life since the last time."""
        self.rounds += 1
        seen, records = {}, {}
        for who in [*self.workers, *map(str, range(RANKS))]:
            seen[who] = self.seen.get(who, 0) if who in self.frozen else self.rounds
        for r, address in enumerate(sorted(self.workers)):
            told = [{"run": "run", "generation": 4, "rank": r, "beats": seen[str(r)], "ended": ""}]
            records[address] = {"last_seen": seen[address], "metrics": {METRIC: told}}
        self.seen = seen
        return records

    def say(self, rank: int, *epochs: int) -> None:
        """A rank tells of epochs that it has done."""
        for epoch in epochs:
            said = {"event": "EpochDone", **asdict(EpochDone(epoch, 9, 0.1, None, float(rank), False))}
            self.owner.messages.put({"generation": 4, "rank": rank, "said": said})
            self.generation.events.hear(self.generation._first(), None)

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

    def poll(self) -> bool:
        """One round of the driver; whether the generation is to end."""
        for _ in ("question", "answer"):
            self.generation.poll(every_s=0.0)
        self.generation.adjust_members()
        return bool(self.generation.failures)

    def order(self, number: int) -> Any:
        key = f"4/gloo/members/{number}"
        return json.loads(self.store.get(key)) if self.store.check([key]) else None


def test_those_that_are_left_are_told_once_for_each_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    assert not driver.poll()
    driver.kill(1)
    assert not driver.poll() and not driver.poll()
    assert (driver.order(1), driver.order(2)) == ([0, 2], None)
    driver.workers.remove("worker-0")
    assert not driver.poll()
    assert driver.order(2) == [2]
    assert driver.notes == [
        "rank 1 was killed by signal 9; ranks 0, 2 are to go on without it",
        "the worker worker-0 that held rank 0 is gone; rank 2 is to go on without it",
    ]
    assert len(driver.cancelled) == 2, "a worker of the same name would bring the rank back"
    driver.kill(2)
    assert driver.poll(), "nobody is left"
    assert driver.generation.cause().text == "rank 1 was killed by signal 9"


@pytest.mark.parametrize("on_rank_loss", ["restart", "stop"])
def test_unless_it_is_asked_for_nobody_goes_on(on_rank_loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, on_rank_loss)
    driver.kill(1)
    assert driver.poll()
    assert (driver.order(1), driver.notes) == (None, [])


def test_ranks_whose_tasks_dask_has_forgotten_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may live on: their scheduler is gone, or was out of reach for a moment."""
    driver = Driver(monkeypatch, "restart")
    driver.outcomes = {r: FutureCancelledError(f"train-{r}", "scheduler-connection-lost", "lost") for r in range(RANKS)}
    assert driver.poll()
    assert (
        driver.generation.cause().text == "the task of rank 0 was lost: the connection to the Dask scheduler was lost"
    )
    driver.generation.stop_all()
    assert driver.store.get("4/order") == b"abort"


def test_a_rank_that_cannot_go_on_ends_all_for_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    assert not driver.poll()
    driver.fail(0, PeerLostError)
    assert driver.poll()
    monkeypatch.setattr(generation, "CAUSE_S", 60.0)
    start = time.monotonic()
    outcome = driver.generation.cause()
    assert (outcome.text, outcome.final) == ("rank 1 was killed by signal 9", False)
    assert time.monotonic() - start < generation.CAUSE_S, "the cause is known already"


def test_a_rank_that_raises_ends_all_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    assert not driver.poll()
    driver.fail(0, ValueError)
    assert driver.poll()
    outcome = driver.generation.cause()
    assert (outcome.text, outcome.final) == ("rank 0 failed: words", True)


@pytest.mark.parametrize(("kind", "final"), [(ShortHandedError, False), (Interrupted, True)])
def test_the_checkpoint_at_the_end_is_waited_for(kind: type, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 writes it, and rank 2 has ended meanwhile; rank 1 is long gone, whatever became of its task."""
    driver = Driver(monkeypatch)
    driver.workers.remove("worker-1")
    assert not driver.poll()
    driver.fail(2, kind)
    assert driver.poll()
    rounds = iter(range(100))

    def sleep(seconds: float) -> None:
        if next(rounds) == 3:
            driver.fail(0, kind)

    monkeypatch.setattr(generation.time, "sleep", sleep)
    outcome = driver.generation.cause()
    assert (outcome.text, outcome.final) == ("words", final)
    assert next(rounds) >= 4


def test_a_loss_after_training_is_over_is_no_loss_to_go_on_after(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.generation.reports[0] = object()
    driver.kill(1)
    assert driver.poll()
    assert driver.order(1) is None


def test_ranks_that_do_not_come_together_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    monkeypatch.setattr(generation, "MEET_S", -1.0)
    assert not driver.poll()
    driver.store.set(f"4/gloo/{here(1, [0])[0]}", "")
    assert driver.poll()
    assert driver.generation.cause().text.startswith("ranks [0, 2] did not come together within")


def test_ranks_that_have_come_together_may_take_as_long_as_they_want(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.kill(1)
    monkeypatch.setattr(generation, "MEET_S", -1.0)
    assert not driver.poll()
    for key in here(1, [0, 2]):
        driver.store.set(f"4/gloo/{key}", "")
    assert not driver.poll() and not driver.poll()


def test_each_epoch_is_told_once_whichever_rank_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank may have finished an epoch and died before it said so; the next one told it at its own time."""
    driver = Driver(monkeypatch)
    driver.say(1, 0)
    driver.say(0, 0, 1)
    driver.say(2, 0, 1, 2)
    driver.say(1, 1, 2, 3)
    assert driver.epochs == [(0, 0.0), (1, 0.0)]
    driver.kill(0)
    assert not driver.poll()
    assert driver.epochs[2:] == [(2, 1.0), (3, 1.0)]
    driver.say(0, 2)
    driver.say(1, 4)
    driver.kill(1)
    driver.say(2, 3, 4, 5)
    assert not driver.poll()
    assert driver.epochs[4:] == [(4, 1.0), (5, 2.0)]


def test_whoever_is_frozen_is_named_and_within_the_limit_that_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, "restart")
    assert not driver.poll()
    driver.frozen = {"2", "worker-0", "0"}
    for driver.now in (5.0, 9.0, 11.0, 15.0, 21.0, 23.0):
        assert not driver.poll()
    # Rank 0 cannot be heard through its worker.
    said = "has not answered for {} s: it is stopped, or its machine hangs"
    assert sorted(driver.notes) == sorted(
        f"{who} {said.format(s)}" for who in ("rank 2", "the worker worker-0") for s in (11, 23)
    )
    driver.frozen.clear()
    driver.now = 24.0
    assert not driver.poll()
    assert sorted(driver.notes[4:]) == ["rank 2 answers again", "the worker worker-0 answers again"]


@pytest.mark.parametrize(
    ("frozen", "text", "avoided"),
    [({"2"}, "rank 2 has", set()), ({"worker-1"}, "rank 1, held by the worker worker-1, has", {"worker-1"})],
)
def test_beyond_the_limit_who_is_frozen_is_lost(
    frozen: set[str], text: str, avoided: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch, "restart", silence_limit_s=30.0)
    assert not driver.poll()
    driver.frozen = frozen
    driver.now = 29.0
    assert not driver.poll()
    driver.now = 31.0
    assert driver.poll()
    assert driver.generation.cause().text == f"{text} not answered for 31 s"
    assert driver.owner.frozen == avoided


@pytest.mark.parametrize(("silence_limit_s", "limit_s"), [(None, scheduler_watch.SILENCE_LIMIT_S), (30.0, 30.0)])
def test_a_frozen_scheduler_is_named_and_then_given_up(
    silence_limit_s: float | None, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch, "restart", silence_limit_s)
    assert not driver.poll()
    driver.frozen = {"scheduler"}
    for driver.now in (2.0, 16.0):
        assert not driver.poll()
    assert driver.notes == ["the Dask scheduler has not answered for 14 s: it is stopped, or its machine hangs"]
    driver.now = 2.0 + limit_s - 1.0
    assert not driver.poll()
    driver.now = 2.0 + limit_s + 1.0
    with pytest.raises(RunError, match=rf"scheduler no longer answers \(no sign of life for {limit_s + 1:.0f} s\)"):
        driver.poll()


def test_a_run_that_is_to_stop_does_not_wait_for_a_frozen_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, "restart")
    assert not driver.poll()
    driver.frozen, driver.stop, driver.now, driver.generation.events.stepping = {"scheduler"}, True, 2.0, True
    monkeypatch.setattr(generation, "Event", lambda name, client: SimpleNamespace(set=lambda: time.sleep(100.0)))
    driver.generation.obey()
    assert not driver.poll()
    driver.now += 60.0
    driver.generation.obey()
    assert not driver.poll(), "ranks have a moment to write a checkpoint"
    driver.generation.stopping_at -= 60.0
    driver.generation.obey()
    assert driver.poll()
    outcome = driver.generation.cause()
    assert outcome.exit_code == 130
    assert outcome.text == "interrupted while the Dask scheduler does not answer; from there it goes on"
    start = time.monotonic()
    driver.generation.stop_all()
    assert time.monotonic() - start < 60.0


@pytest.mark.parametrize("stepping", [False, True])
def test_ranks_that_start_again_are_not_waited_for_when_the_run_is_to_stop(
    stepping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch, "restart")
    driver.generation.events.stepping, driver.stop = stepping, True
    driver.generation.obey()
    assert driver.store.get("4/order") == b"stop"
    assert [(failure.text, failure.exit_code) for failure in driver.generation.failures] == (
        [] if stepping else [("interrupted; from there it goes on", 130)]
    )
