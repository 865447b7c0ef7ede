"""Restarts of ranks, and the messages with which a run ends. Generations are stand-ins."""

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.pipeline.config.schema import ClusterOptions
from millrace.pipeline.supervision import supervisor
from millrace.pipeline.supervision.rank_failures import Failure, lost_rank
from millrace.pipeline.supervision.rank_work import Training
from millrace.storage.errors import Interrupted, RunError

REPORTS: Any = ["a report"]


class Bench:
    """A run whose generations end as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcomes: list[Any], *, stop: bool = False, **settings: Any):
        self.notes, self.numbers = list[str](), list[int]()
        left = iter(outcomes)

        def generation(run: Any, number: int, store: Any) -> Any:
            assert store == f"store {number}"
            self.numbers.append(number)
            return SimpleNamespace(run=lambda: next(left))

        monkeypatch.setattr(supervisor, "Generation", generation)
        self.run: Any = SimpleNamespace(
            job=SimpleNamespace(cluster=ClusterOptions(**settings)),
            work=Training,
            meeting=SimpleNamespace(store=lambda number: f"store {number}"),
            stop=lambda: stop,
            note=self.notes.append,
            resume_point=lambda: "from there it goes on",
        )

    def supervise(self) -> Any:
        return supervisor._supervise(self.run)


def test_each_generation_follows_a_loss_until_one_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [lost_rank("rank 1 died"), Failure("a phase without rank 0", final=False), REPORTS])
    assert bench.supervise() is REPORTS
    assert bench.numbers == [0, 1, 2]
    assert bench.notes == [
        "rank 1 died; all ranks start again from the last checkpoint (restart 1 of 3)",
        "a phase without rank 0; all ranks start again from the last checkpoint (restart 2 of 3)",
    ]


@pytest.mark.parametrize("settings", [{"restarts": 1}, {"on_rank_loss": "stop"}, {"restarts": 0}])
def test_the_run_ends_when_ranks_are_lost_too_often(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [lost_rank("rank 1 died")] * 2, **settings)
    with pytest.raises(RunError, match=r"^rank 1 died; resume from the last checkpoint with --resume$"):
        bench.supervise()
    assert len(bench.notes) == len(bench.numbers) - 1 == settings.get("restarts", 0)


def test_an_error_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [Failure("rank 0 failed: words", final=True, exit_code=2)])
    with pytest.raises(RunError, match=r"^rank 0 failed: words$") as raised:
        bench.supervise()
    assert raised.value.exit_code == 2


def test_no_generation_begins_once_the_run_is_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [lost_rank("rank 1 died")], stop=True)
    with pytest.raises(Interrupted, match=r"^interrupted, but rank 1 died; from there it goes on$"):
        bench.supervise()
    assert bench.numbers == [0]
