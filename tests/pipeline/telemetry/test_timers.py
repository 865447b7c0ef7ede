"""Seconds by name, also of blocks in progress and of blocks within blocks."""

import pytest

from millrace.pipeline.telemetry import timers
from millrace.pipeline.telemetry.timers import Clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    time = [100.0]
    monkeypatch.setattr(timers.time, "perf_counter", lambda: time[0])
    return time


def test_blocks_add_up_and_a_block_within_one_of_its_name_counts_once(now: list[float]) -> None:
    clock = Clock()
    for _ in range(2):
        with clock.measure("fetch"):
            now[0] += 1.0
            with clock.measure("fetch"):
                now[0] += 2.0
    now[0] += 4.0
    clock.add("reduce", 0.5)
    assert clock.snapshot() == {"fetch": 6.0, "reduce": 0.5, "total": 10.0}


def test_a_block_in_progress_is_seen_by_its_innermost_name(now: list[float]) -> None:
    clock = Clock({"train": 7.0, "total": 20.0})
    with clock.measure("train"):
        now[0] += 1.0
        with clock.measure("fetch"):
            now[0] += 2.0
            assert clock.running_snapshot() == ({"train": 10.0, "fetch": 2.0, "total": 23.0}, "fetch")
            assert clock.snapshot() == {"train": 7.0, "total": 23.0}
        assert clock.running_snapshot()[1] == "train"
    assert clock.running_snapshot() == ({"train": 10.0, "fetch": 2.0, "total": 23.0}, "")


def test_seconds_that_others_count_are_included(now: list[float]) -> None:
    clock, counted = Clock(), [0.0]
    with clock.following(sample=lambda: counted[0]):
        counted[0] = 3.0
        assert clock.running_snapshot()[0]["sample"] == 3.0
        assert "sample" not in clock.snapshot()
    assert clock.snapshot()["sample"] == 3.0


def test_a_block_that_raises_counts(now: list[float]) -> None:
    clock = Clock()

    def fail() -> None:
        now[0] += 1.0
        raise ValueError("words")

    with pytest.raises(ValueError, match="words"), clock.measure("fetch"):
        fail()
    assert clock.running_snapshot() == ({"fetch": 1.0, "total": 1.0}, "")
