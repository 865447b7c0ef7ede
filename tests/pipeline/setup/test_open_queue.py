"""Queues of a run: how much of the memory waiting minibatches may take."""

from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup import open_queue
from millrace.pipeline.setup.sampling import sampling_of
from millrace.pipeline.telemetry.events import Note
from millrace.tests.fuzz.targets import dataset

MIB = 1 << 20


@pytest.mark.parametrize(
    ("left", "ranks", "more", "most"),
    [
        (1 << 40, 1, {}, 512 * MIB),
        (800 * MIB, 1, {}, 100 * MIB),
        (800 * MIB, 2, {}, 50 * MIB),
        (800 * MIB, 2, {"bulk": {"prefetch_bytes": 200 * MIB}}, 25 * MIB),
        (100 * MIB, 1, {"bulk": {"prefetch_bytes": 320 * MIB}}, 25 * MIB // 8),
        (800 * MIB, 1, {"queue": {"max_bytes": 5 * MIB}}, 5 * MIB),
    ],
)
def test_waiting_minibatches_leave_memory_to_rows_and_the_model(
    left: int, ranks: int, more: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_queue, "bytes_left", lambda: left)
    job = resolve({"dataset": "karate", "ranks": ranks, **more})
    prepared = sampling_of(job, dataset(), make_system(job))
    assert open_queue.own_queue(prepared, Path()).max_bytes == most


@pytest.mark.parametrize(
    ("left", "queue", "told"),
    [
        (800 * MIB, {"max_bytes": 200 * MIB}, ["200.0 MiB", "100.0 MiB"]),
        (800 * MIB, {"max_bytes": 5 * MIB}, []),
        (800 * MIB, {}, []),  # nobody has asked for so many
    ],
)
def test_fewer_bytes_than_were_asked_for_are_told(
    left: int, queue: dict[str, int], told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_queue, "bytes_left", lambda: left)
    notes = list[str]()
    mr.run(
        dataset(), queue=queue, fanout=[2], hidden=4, layers=1, epochs=1, out=tmp_path / "run",
        emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None,
    )  # fmt: skip
    seen = [note for note in notes if "max_bytes" in note]
    assert len(seen) == bool(told) and all(size in note for note in seen for size in told)
