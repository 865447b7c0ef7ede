"""Neighbours on other ranks, one rank after the other, kept, or in one exchange: the values, the gradients and the bytes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from millrace.stages.base import Group
from millrace.stages.comm.solo import Solo
from millrace.stages.full_batch import FullBatch, View
from millrace.stages.neighbourhood import sequential
from millrace.stages.neighbourhood.base import Neighbourhood
from millrace.stages.neighbourhood.halo import Halo, HaloNeighbourhood
from millrace.stages.neighbourhood.ring import Ring
from millrace.stages.neighbourhood.sequential import SequentialNeighbourhood
from millrace.storage.graph import Graph
from millrace.tests.contracts.aggregations import CALLS
from millrace.tests.contracts.full_batch import Case, make_case
from millrace.tests.contracts.gang import run_ranks
from millrace.tests.contracts.neighbourhood import Call, NeighbourhoodTests, Tensors
from millrace.tests.contracts.threads import ThreadGroup, run_threads

F64 = torch.float64
MODES = ("rematerialize", "keep", "halo")
LAYERS = 2
VIEWS = {"whole": None, "pruned, first layer": 0, "pruned, last layer": 1}
AHEAD = (0, 100, 1 << 30)


def view_of(batch: FullBatch, name: str) -> View:
    at = VIEWS[name]
    return batch.whole if at is None else batch.layers[at]


def make_hood(batch: FullBatch, view: View, mode: str, ring: Ring) -> Neighbourhood:
    if mode == "halo":
        return HaloNeighbourhood(Halo(batch, view, F64), ring.group)
    return SequentialNeighbourhood(batch, view, 0, ring, F64, keep=mode == "keep")


class OverRanks(NeighbourhoodTests):
    """Ranks as threads, so that hypothesis may choose the graph; the parts are drawn from it."""

    mode = ""

    def run(self, graph: Graph, call: Call, rows: Tensors, params: Tensors, grad: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        rng = np.random.default_rng([*graph.indptr, *graph.indices])
        made = make_case(0, int(rng.choice([1, 2, 3, 4, 8])))
        case = Case(
            graph, rng.integers(0, made.parts, graph.num_nodes), made.parts, made.split, np.zeros((graph.num_nodes, 1)), made.labels
        )
        case = Case(**{**vars(case), "split": type(made.split)(*np.split(np.arange(graph.num_nodes), [2, 3])), "labels": grad})

        def rank(group: ThreadGroup) -> tuple[np.ndarray, Tensor, dict[str, Tensor]]:
            batch = case.share(group, 1, prune=False).graph
            leaves = {k: v[torch.from_numpy(batch.names)].requires_grad_() for k, v in rows.items()}
            leaves |= {k: v.clone().requires_grad_() for k, v in params.items()}
            hood = make_hood(batch, batch.whole, self.mode, Ring(group, 64))
            out = call(hood, {k: leaves[k] for k in rows}, {k: leaves[k] for k in params})
            grads = torch.autograd.grad((out * grad[torch.from_numpy(batch.names)]).sum(), list(leaves.values()))
            return batch.names, out.detach(), dict(zip(leaves, grads))

        ranks = run_threads(rank, case.parts)
        order = np.argsort(np.concatenate([names for names, _, _ in ranks]))
        together = {k: torch.cat([grads[k] for _, _, grads in ranks])[order] for k in rows}
        return torch.cat([out for _, out, _ in ranks])[order], together | {k: sum(g[k] for _, _, g in ranks) for k in params}


class TestRematerialized(OverRanks):
    mode = "rematerialize"


class TestKept(OverRanks):
    mode = "keep"


class TestHalo(OverRanks):
    mode = "halo"


SEEDS = {1: range(16), 2: range(16), 3: range(8), 4: range(4, 12), 8: range(3, 8)}
"""Cases of so many ranks."""


def aggregate(group: Group, seeds: range, size: int) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What every call gives on this rank, in every mode, of every view."""
    ledger = getattr(group, "_ledger", None)
    found, piece = {}, sequential.MESSAGE_BYTES

    def sent() -> int:
        return 0 if ledger is None else ledger.get("network", "activations")

    for seed in seeds:
        case = make_case(seed, size)
        shares = {prune: case.share(group, LAYERS, prune).graph for prune in (False, True)}
        sequential.MESSAGE_BYTES = piece if seed % 3 == 0 else 100
        for view in VIEWS:
            batch = shares[view != "whole"]
            names = torch.from_numpy(batch.names[: view_of(batch, view).num_src])
            for name, aggregation in CALLS.items():
                inputs = aggregation.inputs(case.graph.num_nodes, seed)
                for mode in MODES:
                    leaves = aggregation.leaves({k: x[names] if k in aggregation.rows else x for k, x in inputs.items()})
                    hood = make_hood(batch, view_of(batch, view), mode, Ring(group, AHEAD[seed % 3]))
                    torch.manual_seed(seed)
                    before = sent()
                    out = aggregation.call(hood, leaves)
                    forward = sent()
                    grad = towards(out.shape[1:], case, seed)[names[: len(out)]]
                    (out * grad).sum().backward() if out.requires_grad else None
                    found[seed, view, name, mode] = {
                        "names": batch.names[: len(names)],
                        "out": out.detach().numpy(),
                        "grads": {k: (torch.zeros_like(x) if x.grad is None else x.grad).numpy() for k, x in leaves.items()},
                        "forward": forward - before,
                        "backward": sent() - forward,
                        "degree": hood.degree.numpy(),
                        "edges": hood.num_edges,
                    }
    sequential.MESSAGE_BYTES = piece
    return found


def towards(shape: tuple[int, ...] | torch.Size, case: Case, seed: int) -> Tensor:
    """The gradient of the results, for all nodes."""
    return torch.randn(case.graph.num_nodes, *shape, dtype=F64, generator=torch.Generator().manual_seed(seed + 1))


@pytest.mark.parametrize("size", SEEDS)
def test_every_call_equals_dense_autograd_and_sends_what_it_must(size: int) -> None:
    seeds = SEEDS[size]
    ranks = [aggregate(Solo(), seeds, 1)] if size == 1 else run_ranks(aggregate, size, seeds, size, timeout_s=240)
    for seed in seeds:
        case = make_case(seed, size)
        degree = case.graph.in_degree if case.graph.edge_weight is None else weighted_degree(case.graph)
        for view, at in VIEWS.items():
            reached = np.ones(case.graph.num_nodes, bool) if at is None else case.near(LAYERS - 1 - at)
            remote = case.remote_rows(reached)
            for name, aggregation in CALLS.items():
                leaves = aggregation.leaves(aggregation.inputs(case.graph.num_nodes, seed))
                torch.manual_seed(seed)
                want = aggregation.dense(case.graph, leaves)
                (
                    (want * towards(want.shape[1:], case, seed))[torch.from_numpy(reached)].sum()
                    + sum(0 * x.sum() for x in leaves.values())
                ).backward()
                for mode in MODES:
                    got = [rank[seed, view, name, mode] for rank in ranks]
                    what = f"{name}, {mode}, {view}, case {seed}"
                    check_values(got, want.detach(), leaves, aggregation.rows, reached, what)
                    assert all(np.array_equal(g["degree"], degree[g["names"]]) for g in got), what
                    assert sum(g["edges"] for g in got) == int(case.graph.in_degree[reached].sum()), what
                    # Rows of so many bytes, how often.
                    unit = remote * aggregation.width * 8
                    assert sum(g["forward"] for g in got) == unit, f"{what}: forward"
                    fetched = aggregation.again and mode == "rematerialize"
                    pushed = "h" not in aggregation.constants and not (aggregation.unread and mode == "halo")
                    assert sum(g["backward"] for g in got) == unit * (fetched + pushed), f"{what}: backward"


def weighted_degree(graph: Graph) -> np.ndarray:
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    return np.bincount(dst, graph.edge_weight.astype(np.float64), minlength=graph.num_nodes)


def check_values(got: list[dict[str, Any]], want: Tensor, leaves: Tensors, rows: dict[str, Any], reached: np.ndarray, what: str) -> None:
    """Put together what ranks have, and compare."""

    def close(a: Any, b: Tensor, of: str) -> None:
        torch.testing.assert_close(torch.as_tensor(a), b, rtol=1e-10, atol=1e-10, msg=lambda m: f"{what}, {of}: {m}")

    for g in got:
        close(g["out"], want[torch.from_numpy(g["names"][: len(g["out"])])], "result")
    names = np.concatenate([g["names"][: len(g["out"])] for g in got])
    assert sorted(names) == np.flatnonzero(reached).tolist(), f"{what}: rows"
    for name, x in leaves.items():
        if not x.requires_grad:
            continue
        total = torch.zeros_like(x)
        for g in got:
            total.index_add_(0, torch.from_numpy(g["names"]), torch.from_numpy(g["grads"][name])) if name in rows else total.add_(
                torch.from_numpy(g["grads"][name])
            )
        assert x.grad is not None
        close(total, x.grad, f"gradient of {name}")
