"""Measurements of a trial, from reports with known seconds; and the seeds that it trains on."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.pipeline.config.load import resolve
from millrace.pipeline.planning.trial import Meter, MeteredSampler, TrialSpec, measured, shortened
from millrace.storage.dataset import Split

SAMPLED = {"ranks": 2, "epochs": 5, "train": {"batch_size": 16}, "queue": {"bulk_size": 1}}
ISOLATED = {"ranks": 2, "epochs": 5, "train": {"batch_size": 16}, "system": "grappa"}
FULL = {"ranks": 2, "epochs": 5, "system": "retexo"}


def spec(table: dict[str, Any], seeds: int | None, parts: Any, train: int) -> TrialSpec:
    outline: Any = SimpleNamespace(splits={"train": train})
    return TrialSpec(resolve(table), outline, parts, parts, seeds, (4, 0))


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
    ranks = [report([9, 1, 3, 2, 7], 15, evaluate=6.0), report([9, 1, 3, 2, 7], 15, exchange=3)]
    meters = [
        Meter(15, [(1, 80, 9.0), (14, 1420, 1.4)], [10, 18]),
        Meter(15, [(1, 200, 9.0), (14, 2800, 4.2)], [12, 20]),
    ]
    seen = measured(spec(SAMPLED, 256, None, train=90), ranks, meters)
    assert (seen.epochs, seen.steps, seen.minibatches) == (5, 15, 5.625)
    assert seen.step_s == pytest.approx(2 / (5.625 / 2))
    assert seen.minibatch_bytes == 150 and seen.distinct == [11, 19]
    # The slower rank's, without its first bulk.
    assert seen.sample_s == pytest.approx(0.3) and seen.fetch_s == pytest.approx(3 / 30 * 2)
    assert seen.evaluate_s == 6
    assert seen.bytes == {"network": {"features": 14}, "store": {"features": 2}} and seen.waits == {"features": 3}


def test_isolated_ranks_have_whole_steps():
    seen = measured(spec(ISOLATED, 128, "parts", 500), [report([9, 8, 8, 8, 9], 40)] * 2, [Meter(steps=40)] * 2)
    assert seen.step_s == 1


def test_layers_count_alike_and_evaluations_are_told_apart():
    ranks = [report([5, 1, 1, 1, 9, 4, 2, 2, 2, 2], validates=True, evaluate=22.0)] * 2
    seen = measured(spec(FULL, None, "parts", 90), ranks, [Meter(steps=10)] * 2)
    assert seen.step_s == 1.5 and seen.sample_s == 0
    assert seen.evaluate_s == 2, "ten validations and the test"


def test_full_minibatches_are_counted_together():
    blocks = [SimpleNamespace(num_edges=5), SimpleNamespace(num_edges=2)]
    minibatch = {"seeds": [0, 1], "nbytes": 10, "blocks": blocks, "nested": False}
    nodes = ([0, 1, 2], [1, 2, 3, 9], [3])
    drawn = [SimpleNamespace(**minibatch, nodes=np.array(n)) for n in nodes]
    drawn[1].nested, drawn[2].seeds = True, [3]
    sampler: Any = SimpleNamespace(name="neighbor", sample=lambda *request: SimpleNamespace(minibatches=drawn))
    metered = MeteredSampler(sampler, meter := Meter(), counts=2, most=8, row_bytes=(100, 1))
    assert metered.sample("graph", "request").minibatches is drawn and metered.name == "neighbor"
    # Each node's row once; those of the edges of all lists, of nested blocks the first.
    assert meter.distinct == [307, 512] and meter.bulks[0][:2] == (3, 30)


def test_seeds_are_spread_over_the_split():
    split = Split(np.arange(100), np.empty(0, np.int64), np.empty(0, np.int64))
    assert shortened(split, 3).train.tolist() == [0, 49, 99]
    assert shortened(split, None) is shortened(split, 100) is split
