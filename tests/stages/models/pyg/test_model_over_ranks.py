"""PyG's convolutions where rows lie on several ranks: what they give and learn there is what they do on the whole
graph."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from millrace.pipeline.training.evaluate_together import evaluate_together
from millrace.stages.evaluate.measures import Scored
from millrace.stages.fetch.visit import VisitFetch, Visits
from millrace.stages.models.pyg import model as models
from millrace.stages.models.pyg.model import PyGModel
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.stages.neighbourhood.halo import HaloNeighbourhood
from millrace.stages.neighbourhood.pieces import pieces
from millrace.storage.dataset import SPLITS, Dataset
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts.accuracies import evaluate
from millrace.tests.contracts.full_batch import C, Case, F, make_case
from millrace.tests.contracts.full_batch import job as rank_job
from millrace.tests.contracts.neighbourhood import assert_close
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.contracts.whole_graph import whole_graph

pyg = pytest.importorskip("torch_geometric.nn")
F64 = torch.float64

CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "sage": lambda a, b: pyg.SAGEConv(a, b),
    "sage max": lambda a, b: pyg.SAGEConv(a, b, aggr="max"),
    "gcn": lambda a, b: pyg.GCNConv(a, b, normalize=False),
    "gat": lambda a, b: pyg.GATConv(a, b, add_self_loops=False),
    "gcn as it is": lambda a, b: pyg.GCNConv(a, b),
    "gin": lambda a, b: pyg.GINConv(nn.Linear(a, b), train_eps=True),
    "graph": lambda a, b: pyg.GraphConv(a, b),
    "gatv2 of edges": lambda a, b: pyg.GATv2Conv(a, b, edge_dim=D),
}
CASES = [(8, 2), (9, 2), (2, 2), (4, 3), (5, 3), (3, 3), (14, 2)]
"""Seeds of cases, and ranks: weights and none, no edges, all nodes in one part, parts without nodes."""


def cases_of(name: str, half: bool = False) -> list[tuple[int, int]]:
    """Every second case, beginning with the first or the second one: each case has half of the convolutions, and each
    convolution graphs with weights and without, pruned and whole."""
    return CASES[(list(CONVS).index(name) + half) % 2 :: 2]


D = 2


def case_of(name: str, seed: int, size: int) -> Case:
    """With features of edges, if the model reads any."""
    case = make_case(seed, size)
    if "edges" not in name:
        return case
    rows = np.random.default_rng(seed).random((case.graph.num_edges, D))
    return replace(case, graph=replace(case.graph, edge_features=ArrayFeatures(rows)))


def build(name: str) -> PyGModel:
    torch.manual_seed(2)
    return PyGModel([CONVS[name](F, 4), CONVS[name](4, C)]).double()


@pytest.fixture(params=[False, True], ids=["whole", "in pieces"])
def cut(request, monkeypatch) -> bool:
    if request.param:
        monkeypatch.setattr(models, "EDGE_BYTES", 1)
    return request.param


@pytest.mark.parametrize("name", CONVS)
def test_models_learn_over_ranks_what_they_learn_from_the_whole_graph(name: str) -> None:
    for seed, size in cases_of(name):
        case, model = case_of(name, seed, size), build(name)
        train = torch.from_numpy(case.split.train)
        whole = [whole_graph(case.graph, F64)] * 2
        loss = nn.functional.cross_entropy(
            model(whole, torch.from_numpy(case.x))[train], case.labels[train], reduction="sum"
        )
        want = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        prune = size == 2
        mine = [copy.deepcopy(model) for _ in range(size)]

        def rank(group: ThreadGroup, prune=prune, case=case, mine=mine) -> tuple[Tensor, list[Tensor | None]]:
            share = case.share(group, 2, prune)
            own = mine[group.rank]
            visits = VisitFetch().fetcher(share, rank_job(group, 2), own)
            fetched = visits.fetch(share.graph)
            assert all(isinstance(neighbourhood, HaloNeighbourhood) for neighbourhood in fetched.neighbourhoods)
            part = nn.functional.cross_entropy(
                own(fetched.neighbourhoods, fetched.h)[: len(fetched.y)], fetched.y, reduction="sum"
            )
            part.backward()
            return part.detach(), [p.grad for p in own.parameters()]

        found = run_threads(rank, size)
        assert_close(torch.stack([part for part, _ in found]).sum(), loss.detach())
        for at, grad in enumerate(want):
            got = [torch.zeros(()) if grads[at] is None else grads[at] for _, grads in found]
            assert_close(sum(got) + torch.zeros_like(grad), grad)


def accuracy_of(scored: Scored | None) -> float | None:
    return None if scored is None else scored.accuracy


@pytest.mark.parametrize("name", CONVS)
def test_ranks_together_evaluate_as_one_process_does(name: str, cut: bool) -> None:
    # One and the other half of them, and of the next convolution of the same cases the others.
    for seed, size in cases_of(name, cut)[list(CONVS).index(name) // 2 % 2 :: 2]:
        case, model = case_of(name, seed, size), build(name)
        data = Dataset("d", case.graph, ArrayFeatures(case.x), case.labels.numpy(), case.split, C, "multiclass")
        want = evaluate(model, data, whole_graph(case.graph, F64).degree_rows)

        def rank(group: ThreadGroup, case=case, model=model) -> dict[str, float | None]:
            share = case.share(group, 2, prune=True)
            visits = Visits(share, (), 0, group)
            own = copy.deepcopy(model)
            return {split: accuracy_of(evaluate_together(own, visits, split)) for split in SPLITS}

        # Ranks set torch's gradients aside, each for its own thread.
        assert run_threads(rank, size) == [want] * size


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_pieces_hold_every_edge_of_their_destinations(weighted: bool, most: int) -> None:
    graph = make_case(11 if weighted else 12, 1).graph
    assert (graph.edge_weight is not None) == weighted
    whole = whole_graph(graph, F64)
    h = torch.randn(graph.num_nodes, 3, dtype=F64)
    found, seen = [], 0
    for piece, rows in pieces(whole, most):
        assert isinstance(piece, BlockNeighbourhood)
        piece.block.check()
        assert piece.num_edges <= most or piece.num_dst == 1
        assert rows[: piece.num_dst].tolist() == list(range(seen, seen + piece.num_dst))
        assert torch.equal(piece.degree, whole.degree[rows])
        seen += piece.num_dst
        found.append(piece.sum(h[rows]))
    assert len(found) == 1 if most == 1000 else len(found) > 1
    assert_close(torch.cat(found), whole.sum(h))
    np.testing.assert_equal(seen, graph.num_nodes)
