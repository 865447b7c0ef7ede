"""Questions to a scheduler that answers, is silent for a while, freezes, or is gone."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.pipeline.cluster import scheduler_watch
from millrace.pipeline.cluster.scheduler_watch import ASK_S, SILENCE_LIMIT_S, SchedulerWatch, WatchedTime
from millrace.pipeline.config.schema import ClusterOptions
from millrace.storage.errors import RunError


class Bench:
    """A watch whose questions a test answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.now, self.notes, self.questions = 0.0, list[str](), list[Future[dict[str, Any]]]()
        self.client: Any = SimpleNamespace(
            status="running", cluster=None if settings.get("scheduler") else "started by the run"
        )
        monkeypatch.setattr(scheduler_watch, "ask", self._ask)
        self.watch = SchedulerWatch(self.client, ClusterOptions(**settings), self.notes.append, lambda: self.now)

    def _ask(self, client: Any) -> Future[dict[str, Any]]:
        self.questions.append(Future())
        return self.questions[-1]

    def poll(self, now: float) -> dict[str, Any] | None:
        self.now = now
        return self.watch.poll()

    def answer(self, **workers: Any) -> None:
        self.questions[-1].set_result({"workers": workers})


def test_each_answer_is_given_once_and_questions_are_asked_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, slow_peer_warning_s=0.5)
    assert bench.poll(0.0) is None
    bench.answer(a=1)
    assert bench.poll(0.1) == {"a": 1}
    assert bench.poll(0.2) is None
    assert bench.poll(ASK_S - 0.1) is None
    assert len(bench.questions) == 1
    assert bench.poll(ASK_S) is None
    assert len(bench.questions) == 2
    assert bench.watch.silent_s == 0.0
    assert bench.notes == [], "time in which nothing is asked is no silence"


def test_silence_is_told_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, slow_peer_warning_s=3.0)
    for now in (10.0, 12.0, 14.0):
        assert bench.poll(now) is None
    assert len(bench.questions) == 1
    assert bench.watch.silent_s == 4.0
    bench.answer()
    assert bench.poll(15.0) == {}
    assert bench.watch.silent_s == 0.0
    assert bench.notes == [
        "the Dask scheduler has not answered for 4 s: it is stopped, or its machine hangs",
        "the Dask scheduler answers again",
    ]


@pytest.mark.parametrize("limit_s", [None, 7.0])
@pytest.mark.parametrize("scheduler", [None, "tcp://127.0.0.1:8786"])
def test_a_silent_scheduler_is_given_up(
    scheduler: str | None, limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, limit = Bench(monkeypatch, scheduler=scheduler, silence_limit_s=limit_s), limit_s or SILENCE_LIMIT_S
    assert bench.poll(1.0) is None
    assert bench.poll(1.0 + limit) is None
    again = "start it again, then " if scheduler else ""
    with pytest.raises(RunError) as raised:
        bench.poll(2.0 + limit)
    assert str(raised.value) == (
        f"the Dask scheduler no longer answers (no sign of life for {limit + 1:.0f} s); {again}resume with --resume"
    )


def test_a_question_that_fails_is_asked_again_until_the_client_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection to a frozen scheduler times out long before the limit."""
    bench = Bench(monkeypatch)
    assert bench.poll(0.0) is None
    bench.questions[-1].set_exception(OSError("Timed out trying to connect"))
    assert bench.poll(15.0) is None
    assert bench.poll(16.0) is None
    assert len(bench.questions) == 2
    assert bench.watch.silent_s == 16.0
    bench.client.status = "closed"
    bench.questions[-1].set_exception(OSError("gone"))
    with pytest.raises(RunError, match=r"no longer answers \(OSError\); resume with --resume"):
        bench.poll(17.0)


def test_time_for_which_nobody_looks_does_not_count() -> None:
    now = [100.0]
    time = WatchedTime(lambda: now[0])
    assert time() == 0.0
    now[0] += 2.0
    assert time() == 2.0
    now[0] += 3600.0
    assert time() == 2.0 + WatchedTime.MOST_S
