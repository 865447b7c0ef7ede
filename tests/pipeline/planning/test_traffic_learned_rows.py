"""Learnt rows of a trial are told apart from the model's gradients, and from the dataset's rows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from millrace.pipeline.config.load import resolve
from millrace.pipeline.planning.traffic import distinct_share, travelled
from millrace.stages.learned.table import LearnedTable
from millrace.stages.reduce.seed_weighted import EXTRA_NUMBERS
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

WIDTH, NODES = 3, 40
STEPS = [([1, 5, 30], [2, 39]), ([0, 7], [20, 21, 22])]
"""Nodes of each rank's minibatch, in each of two steps."""


def seen_of(gradients: int, features: int, ranks: int = 2, steps: int = len(STEPS), nodes: Any = ()) -> Any:
    counted = {"network": {"gradients": gradients, "features": features}}
    return SimpleNamespace(ranks=ranks, steps=steps, bytes=counted, nodes=nodes)


def candidate(exchanges: bool = False, in_turn: int = 1, width: int = WIDTH) -> Any:
    return SimpleNamespace(
        job=resolve({"learned": {"width": width}} if width else {}),
        model=torch.nn.Linear(2, 4),
        exchanges=exchanges,
        in_turn=lambda ranks: in_turn,
    )


MODEL = len(STEPS) * 2 * (12 + EXTRA_NUMBERS) * 4
"""Bytes of the sums of the model's gradients: both ranks send the whole once in a step."""


def counted() -> tuple[dict[str, int], int]:
    """Bytes that a table counts in these steps, and the rows of the other rank that were asked for."""

    def rank(group: ThreadGroup) -> dict[str, int]:
        table = LearnedTable(NODES, WIDTH, torch.float32, 0, group, "sgd")
        for step in STEPS:
            table.take(np.array(step[group.rank])).sum().backward()
            table.sum_gradients(1.0)
            table.step()
        return group.ledger.as_record()["network"]

    found = run_threads(rank, 2)
    remote = sum((np.array(step[r]) // (NODES // 2) != r).sum() for step in STEPS for r in range(2))
    return {kind: sum(of[kind] for of in found) for kind in ("features", "gradients", "control")}, int(remote)


def test_they_are_what_a_table_counts() -> None:
    ledger, remote = counted()
    assert ledger["features"] == ledger["gradients"] == remote * WIDTH * 4
    for exchanges, others in ((False, 0), (True, 1000)):
        found = travelled(candidate(exchanges), seen_of(MODEL + ledger["gradients"], ledger["features"] + others))
        assert (found.rows, found.gradients, found.ids) == (ledger["features"], ledger["gradients"], ledger["control"])


def test_gradients_of_a_step_are_added_up() -> None:
    # Of two minibatches of 10 nodes each, 5 are the same.
    seen = seen_of(MODEL + 1500, 2000, nodes=[10.0, 15.0])
    assert distinct_share(seen, 2) == 0.75 and distinct_share(seen, 1) == 1
    found = travelled(candidate(exchanges=True, in_turn=2), seen)
    assert (found.rows, found.gradients) == (2000, 1500) and found.ids == pytest.approx(3500 / 12 * 8)


def test_nothing_travels_without_a_table_or_other_ranks() -> None:
    assert not travelled(candidate(width=0), seen_of(9999, 9999)).rows
    assert not travelled(candidate(), seen_of(9999, 9999, ranks=1)).rows
