"""Measurements of a trial, from reports with known seconds, and minibatches drawn."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.pipeline.config.load import resolve
from millrace.pipeline.planning import trial
from millrace.pipeline.planning.trial import TrialResult, draw, measured
from millrace.pipeline.telemetry.run_log import RunLog

SAMPLED = {"ranks": 2, "epochs": 5, "train": {"batch_size": 16}, "queue": {"bulk_size": 1}}
FULL = {"ranks": 2, "epochs": 5, "system": "retexo"}


def candidate(table: dict[str, Any], isolated: bool = False, sampler: Any = None, resident: bool = False) -> Any:
    return SimpleNamespace(
        job=resolve(table),
        reads_times=False,
        has_blocks=False,
        evaluates_seeds=False,
        is_sampled="system" not in table,
        system=SimpleNamespace(sample=SimpleNamespace(is_isolated=isolated, sampler=sampler)),
        at=SimpleNamespace(
            load=lambda threads: threads / 2,
            threads=1,
            dataset=SimpleNamespace(graph="graph", of_pairs=False, split_sizes={"val": 10, "test": 30}),
        ),
        row_bytes=(100, 1),
        is_resident=resident,
    )


def report(
    epochs: list[float], steps: int, minibatches: int = 0, validates: bool = False, **seconds: float
) -> dict[str, Any]:
    log = RunLog(steps_per_epoch=steps)
    for number, of_epoch in enumerate(epochs):
        ends = {"val_accuracy": 1.0 if validates else None, "train_loss": 0.5, "best": True, "seconds": of_epoch}
        log.take("EpochDone", 1.0, {"epoch": number, **ends})
    return {
        "seconds": {"per_epoch": epochs, "exchange": 0.0, "evaluate": 0.0, **seconds},
        "minibatches": minibatches,
        "sampled_edges": 10 * minibatches,
        "bytes": {"network": {"features": 14}, "store": {"features": 2}, "per_rank": []},
        "waits": {"network": {"features": 3}},
        "memory_bytes": [{"step": 5}] * 2,
        "peak_device_bytes": [8, 9],
        "log": log,
    }


def seen_of(patch: pytest.MonkeyPatch, s: Any, of: dict[str, Any], seeds: int = 90) -> TrialResult:
    patch.setattr(trial, "draw", lambda *of: (15.0, 0.15, [11.0, 19.0], [3.0, 5.0]))
    return measured(s, s.job, of, [100, 100], (7, 3), np.arange(seeds))


def test_sampled_epochs_count_without_the_first_and_the_last(monkeypatch):
    """90 seeds are 5.625 minibatches of 16, in three steps of two ranks."""
    ranks = report([9, 1, 3, 2, 7], 3, 30, evaluate=6.0, exchange=3.0)
    seen = seen_of(monkeypatch, candidate(SAMPLED), ranks)
    assert (seen.steps, seen.minibatches, seen.base_bytes) == (15, 5.625, 7)
    assert seen.step_s == pytest.approx(2 / (5.625 / 2))
    # Ten edges in each. Threads that sample and train share two cores, both on each of two ranks.
    assert seen.minibatch_bytes == 150 and seen.distinct == [11, 19] and seen.sample_s == 0.3
    assert seen.fetch_s == pytest.approx(3 / 30 * 2) and seen.evaluate_s == 6
    assert (seen.base_device_bytes, seen.peak_device_bytes) == (3, [8, 9])
    on_gpu = seen_of(
        monkeypatch, candidate(SAMPLED, resident=True), {**ranks, "seconds": {**ranks["seconds"], "sample": 4.5}}
    )
    assert on_gpu.sample_s == 0.3 and on_gpu.step_s == seen.step_s, "15 minibatches of a rank"
    together = candidate(SAMPLED)
    together.has_blocks = True
    of_blocks = seen_of(monkeypatch, together, {**ranks, "seconds": {**ranks["seconds"], "sample": 6.0}})
    assert of_blocks.sample_s == 0.4, "ranks that sample together were measured"
    assert seen.bytes == {"network": {"features": 14}, "store": {"features": 2}} and seen.waits == {"features": 3}


def test_isolated_ranks_have_whole_steps(monkeypatch):
    assert seen_of(monkeypatch, candidate(SAMPLED, isolated=True), report([9, 8, 8, 8, 9], 8, 80), 240).step_s == 1


def test_a_validation_of_seeds_takes_its_share_of_the_test(monkeypatch):
    """10 of 40 held-out seeds are validated once, which loads kernels."""
    s = candidate(SAMPLED)
    s.evaluates_seeds = True
    of = report([1] * 5, 3, 30, validates=True, evaluate=9.0)
    of["log"].take("StageEnded", 10.0, {"stage": "evaluate", "seconds": 6.0})
    assert seen_of(monkeypatch, s, of).evaluate_s == pytest.approx(6 * 10 / 30)


def test_layers_count_alike_and_evaluations_are_told_apart(monkeypatch):
    seen = seen_of(
        monkeypatch, candidate(FULL), report([5, 1, 1, 1, 9, 4, 2, 2, 2, 2], 1, validates=True, evaluate=22.0)
    )
    assert seen.step_s == 1.5 and seen.sample_s == 0 and seen.steps == 10
    assert seen.evaluate_s == 2, "ten validations and the test"


def test_full_minibatches_of_a_rank_are_counted_together():
    """Five minibatches of two seeds, the last one incomplete; ranks take turns."""
    nodes = ([0, 1, 2], [5], [1, 2, 3, 9], [5, 6, 7], [3])
    asked = []

    def sample(graph: str, request: Any, kernel: Any) -> Any:
        asked.append((request.epoch, len(request.seeds)))
        drawn = [
            SimpleNamespace(
                seeds=seeds,
                nodes=np.array(of),
                nbytes=10,
                blocks=[SimpleNamespace(num_edges=5), SimpleNamespace(num_edges=2)],
                num_edges=7,
                nested=i == 2,
            )
            for i, (seeds, of) in enumerate(zip(request.seeds, nodes))
        ]
        return SimpleNamespace(minibatches=drawn)

    table = {"ranks": 2, "train": {"batch_size": 2}}
    found = draw(candidate(table, sampler=SimpleNamespace(sample=sample)), np.arange(9), 2)
    assert asked == [(epoch, 5) for epoch in range(4)], "two for each rank in each"
    assert found[0] == 10 / 7 and found[1] >= 0
    assert found[3][:2] == [2, 4], "nodes 0 to 3 and 9, after 0 to 2; 5 to 7, after 5"
    # Each node's row once; those of the edges of all lists, of nested blocks the first.
    assert found[2][:2] == [(307 + 107) / 2, (512 + 314) / 2] and len(found[2]) == 8
