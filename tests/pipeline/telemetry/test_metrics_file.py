"""The record of a run's events stays bounded, and all of a short run's are in it."""

import json
import time
from pathlib import Path

import pytest

from millrace.pipeline.telemetry import metrics_file
from millrace.pipeline.telemetry.events import EpochDone, Note, QueueLevel, StepDone


def step(number: int) -> StepDone:
    return StepDone(0, number, 10_000, float("nan") if number == 3 else 0.5, 8)


def test_many_events_are_thinned_and_few_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_file, "KEPT", 10)
    heard, path = [], tmp_path / "metrics.jsonl"
    with metrics_file.recorded(path, heard.append, resume=False) as tell:
        for n in range(100):
            tell(step(n))
            tell(EpochDone(n, 100, 0.1, None, 1.0, False))
            tell(QueueLevel(bulks=n, bytes=n, bound=9, sampled=n, seconds=0.0))
    with metrics_file.recorded(path, heard.append, resume=True) as tell:
        tell(Note("resumed"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [e["step"] for e in lines if e["event"] == "StepDone"]
    assert steps == [*range(10), *range(10, 20, 2), *range(20, 40, 4), *range(40, 80, 8), *range(80, 100, 16)]
    assert [e["epoch"] for e in lines if e["event"] == "EpochDone"] == list(range(100))
    assert lines[-1]["text"] == "resumed"
    assert next(e for e in lines if e["event"] == "StepDone" and e["step"] == 3)["loss"] is None
    assert len(heard) == 201, "what is not written down is told all the same, but levels of a queue"


def test_below_a_hundred_thousand_nothing_is_left_out() -> None:
    assert all(map(metrics_file.is_kept, range(100_000)))
    assert sum(map(metrics_file.is_kept, range(1_600_000))) == 300_000


def test_a_full_disk_is_told_by_events_and_not_by_a_pulse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread sends the pulses, in which an error would be a traceback."""
    with metrics_file.recorded(tmp_path / "metrics.jsonl", lambda event: None, resume=False) as tell:

        def full(*_: object) -> str:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(metrics_file.json, "dumps", full)
        tell(QueueLevel(0, 0, 0, 0, 0))
        with pytest.raises(OSError, match="No space left"):
            tell(step(0))


def test_an_event_is_told_before_it_can_be_read_and_written_even_if_telling_fails(tmp_path: Path) -> None:
    path, read = tmp_path / "metrics.jsonl", []

    def emit(event: object) -> None:
        read.append(path.read_text())
        raise BrokenPipeError

    with metrics_file.recorded(path, emit, resume=False) as tell, pytest.raises(BrokenPipeError):
        tell(step(0))
    assert read == [""] and json.loads(path.read_text())["step"] == 0


def test_a_clock_that_is_set_while_a_run_goes_on_moves_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, set_by = tmp_path / "metrics.jsonl", iter([0.0, -3600.0, 86_400.0, 0.0])
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + next(set_by))
    with metrics_file.recorded(path, lambda event: None, resume=False) as tell:
        for n in range(3):
            tell(step(n))
    times = [json.loads(line)["time"] for line in path.read_text().splitlines()]
    assert times == sorted(times) and times[-1] - times[0] < 60 and abs(times[0] - now()) < 600
