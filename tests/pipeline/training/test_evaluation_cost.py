"""Costs of validations, against counts by hand, and when they are told."""

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.pipeline.telemetry.events import Note
from millrace.pipeline.training import evaluation_cost as module
from millrace.pipeline.training.evaluation_cost import multiply_adds, validation_note
from millrace.stages.models import MODELS
from millrace.stages.models.parts import LayerCounts
from millrace.stages.neighbourhood.base import EDGE_COST
from millrace.storage.graph import from_edges

COUNTS = [LayerCounts(90, 30, 200), LayerCounts(30, 10, 50)]


def test_multiply_adds():
    """SAGE: two products of 5 x 8 for 30 rows and 5 columns of 200 edges; 8 x 3 for 10 rows and 3 columns of 50."""
    model = MODELS["sage"](hidden=8, layers=2).build(5, 3)
    first, second = (30 * 80, 200 * 5 * EDGE_COST), (10 * 48, 50 * 3 * EDGE_COST)
    assert multiply_adds(model, COUNTS, training=False) == sum(first) + sum(second)
    assert multiply_adds(model, COUNTS, training=True) == 2 * first[0] + first[1] + 3 * second[0] + 2 * second[1]


def test_modules_of_ones_own_have_equal_layers():
    class Own(nn.Module):
        num_layers = 2

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 4)

    # 40 + 32 elements for two layers; the largest weight is 5 x 8.
    assert multiply_adds(Own(), COUNTS, training=False) == (30 + 10) * 36 + (200 + 50) * 5 * EDGE_COST
    assert multiply_adds(nn.Identity(), COUNTS, training=False) == 250 * EDGE_COST


def path() -> mr.Graph:
    return from_edges(np.arange(9), np.arange(1, 10), 10)


def test_the_note_counts_what_the_split_depends_on(monkeypatch):
    monkeypatch.setattr(module, "LEAST", 0)
    model = MODELS["sage"](hidden=8, layers=2).build(5, 3)
    counts = [LayerCounts(4, 2, 2), LayerCounts(2, 1, 1)]
    # Node 9 depends on the in-edges of 9 and 8, then of 9.
    note = validation_note(model, counts, 1, path(), np.array([9]), 1)
    assert note is not None
    assert "aggregates over 3 edges" in note
    assert "after each epoch" in note
    assert "set train.evaluate_every" in note
    share = multiply_adds(model, [LayerCounts(3, 2, 2), LayerCounts(2, 1, 1)], training=False)
    assert f"about {100 * share / multiply_adds(model, counts, training=True):.0f} %" in note
    assert "every 3 epochs" in (validation_note(model, counts, 1, path(), np.array([9]), 3) or "")


@pytest.mark.parametrize(
    ("minibatches", "val", "every", "least"),
    [(1000, [9], 1, 0), (3, [9], 1, 0), (1, [], 1, 0), (1, [9], 0, 0), (1, [9], 1, 1 << 35)],
    ids=["the whole graph is little", "the split is little", "no split", "never", "no time"],
)
def test_there_is_no_note_where_it_costs_little(monkeypatch, minibatches, val, every, least):
    monkeypatch.setattr(module, "LEAST", least)
    model = MODELS["sage"](hidden=8, layers=2).build(5, 3)
    counts = [LayerCounts(4, 2, 2), LayerCounts(2, 1, 1)]
    assert validation_note(model, counts, minibatches, path(), np.array(val, np.int64), every) is None


def test_a_run_tells_it_once(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "LEAST", 0)
    torch.manual_seed(0)
    events = []
    mr.run(
        "sbm:nodes=300,classes=3,degree=20,features=5,train=0.1", out=tmp_path / "run", epochs=3, hidden=8,
        fanout=[2, 2], batch_size=16, emit=events.append,
    )  # fmt: skip
    notes = [e.text for e in events if isinstance(e, Note) and "a validation aggregates" in e.text]
    assert len(notes) == 1
