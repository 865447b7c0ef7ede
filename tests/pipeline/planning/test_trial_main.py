"""Measurements of a trial, from reports with known seconds; and the seeds that it trains on."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.pipeline.planning.trial import TrialSpec
from millrace.pipeline.planning.trial_main import Meter, measured, shortened
from millrace.storage.dataset import Split


def spec(ranks: int, seeds: int | None, parts: str | None, train: int) -> TrialSpec:
    job = {
        "ranks": ranks,
        "epochs": 5,
        "train": {"batch_size": 16, "minibatches_per_step": None},
        "queue": {"bulk_size": 1},
    }
    return TrialSpec(job, "data", None, SimpleNamespace(splits={"train": train}), parts, "out", seeds)  # type: ignore[arg-type]


def report(epochs: list[float], minibatches: int = 0, validates: bool = False, **seconds: float) -> Any:
    return SimpleNamespace(
        history=[{"seconds": s, **({"val_accuracy": 1.0} if validates else {})} for s in epochs],
        seconds=seconds,
        minibatches=minibatches,
        bytes={"network": {"features": 7}, "store": {"features": 1}},
        waits={"network": {"features": 3}},
        peak_rss_bytes=100,
        memory_bytes={"step": 5},
    )


def test_sampled_epochs_count_without_the_first_and_the_last():
    """90 seeds are 5.625 minibatches of 16, in three steps of two ranks."""
    ranks = [report([9, 1, 3, 2, 7], 15, sample=4.0, evaluate=6.0), report([9, 1, 3, 2, 7], 15, sample=6.0, exchange=3)]
    meters = [Meter(15, 15, 1500, [10, 18], 1.0), Meter(15, 15, 3000, [12, 20], 2.0)]
    seen = measured(spec(2, 256, None, train=90), ranks, meters)
    assert (seen.epochs, seen.steps, seen.minibatches) == (5, 15, 5.625)
    assert seen.step_s == pytest.approx(2 / (5.625 / 2))
    assert seen.minibatch_bytes == 150 and seen.distinct == [11, 19]
    # The slower rank's, without its first step and one bulk of each rank.
    assert seen.sample_s == pytest.approx(4 / 28 * 2) and seen.fetch_s == pytest.approx(3 / 30 * 2)
    assert seen.evaluate_s == 6
    assert seen.bytes == {"network": {"features": 14}, "store": {"features": 2}} and seen.waits == {"features": 3}


def test_isolated_ranks_have_whole_steps():
    seen = measured(spec(2, 128, "parts", 500), [report([9, 8, 8, 8, 9], 40)] * 2, [Meter(steps=40)] * 2)
    assert seen.step_s == 1


def test_layers_count_alike_and_evaluations_are_told_apart():
    ranks = [report([5, 1, 1, 1, 9, 4, 2, 2, 2, 2], validates=True, evaluate=22.0)] * 2
    seen = measured(spec(2, None, "parts", 90), ranks, [Meter(steps=10)] * 2)
    assert seen.step_s == 1.5 and seen.sample_s == 0
    assert seen.evaluate_s == 2, "ten validations and the test"


def test_seeds_are_spread_over_the_split():
    split = Split(np.arange(100), np.empty(0, np.int64), np.empty(0, np.int64))
    assert shortened(split, 3).train.tolist() == [0, 49, 99]
    assert shortened(split, None) is shortened(split, 100) is split
