"""Who evaluates what all ranks have."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from millrace.pipeline.training import evaluation
from millrace.stages.evaluate.limits import silent
from millrace.stages.evaluate.measures import Measures
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.models import MODELS
from millrace.storage.dataset import Dataset, Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.accuracies import evaluate
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads


def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    graph = from_edges(rng.integers(3000, size=20_000), rng.integers(3000, size=20_000), 3000)
    split = Split(np.arange(0, 1000), np.arange(1000, 2000), np.arange(2000, 3000))
    features = ArrayFeatures(rng.standard_normal((3000, 5)))
    return Dataset("d", graph, features, rng.integers(4, size=3000), split, 4)


def model() -> nn.Module:
    torch.manual_seed(0)
    return MODELS["sage"](hidden=8, layers=2).build(5, 4).double().eval()


def scored(ranks: int, monkeypatch: pytest.MonkeyPatch, machines: list[int], **memory: Any) -> tuple[list, list[int]]:
    """The accuracy that each rank is told, and the ranks that computed it, with the sizes of their groups."""
    data, net, computed = dataset(), model(), []
    degree = torch.from_numpy(data.graph.degree)
    prepared: Any = SimpleNamespace(
        dataset=data,
        data=data,
        placement=SimpleNamespace(graph=data.graph, degree=degree, features=data.features),
        job=SimpleNamespace(dtype="float64"),
        model=SimpleNamespace(reads_edges=False),
        reads_times=False,
    )

    def rank(group: ThreadGroup) -> float | None:
        job: Any = SimpleNamespace(group=group, ledger=Ledger(), measures=Measures(names=("macro_f1",)))
        monkeypatch.setattr(evaluation, "ranks_by_host", lambda g, number: by_host(g, machines[g.rank]))
        score = evaluation._by_leaders(prepared, Fetch(), net, job, Path("unused"), lambda: silent)
        found = score(net, "val")
        assert found is not None and (found.counts is None) and found.values.keys() == {"macro_f1"}
        return found.accuracy

    by_host, real = evaluation.ranks_by_host, evaluation.split_rows

    def watched(*args: Any) -> Any:
        computed.append(1 if args[-1].group is None else args[-1].group.size)
        return real(*args)

    monkeypatch.setattr(evaluation, "split_rows", watched)
    for name, value in memory.items():
        monkeypatch.setattr(evaluation, name, value)
    return run_threads(rank, ranks), computed


@pytest.mark.parametrize(
    ("machines", "computed"),
    [([1], [1]), ([1, 1], [1]), ([1, 2], [2, 2]), ([1, 2, 3], [3, 3, 3])],
    ids=["one rank", "one machine", "two machines", "three machines"],
)
def test_one_rank_of_each_machine_evaluates_and_all_are_told_the_same(monkeypatch, machines, computed):
    want = evaluate(model(), dataset(), torch.from_numpy(dataset().graph.degree), ("val",))["val"]
    found = scored(len(machines), monkeypatch, machines)
    assert found == ([want] * len(machines), computed)


def test_without_room_for_two_layers_the_first_rank_evaluates_alone(monkeypatch):
    found, computed = scored(2, monkeypatch, [1, 2], fits_in_memory=lambda num_bytes: False)
    assert computed == [1]
    assert found[0] == found[1]
