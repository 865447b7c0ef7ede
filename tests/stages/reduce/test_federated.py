"""Local steps: clients that train by themselves before their parameters are averaged, against FedAvg written out."""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from millrace.pipeline.config.schema import Train
from millrace.pipeline.config.systems import System
from millrace.pipeline.systems.retexo import retexo
from millrace.stages.comm.solo import Solo
from millrace.stages.messages import Fetched, StepRules
from millrace.stages.models.base import ModelConfig
from millrace.stages.models.gat import GAT
from millrace.stages.models.gcn import GCN
from millrace.stages.models.phased import PhasedModel
from millrace.stages.models.sage import SAGE
from millrace.stages.placement.clients import client_traffic, packed, write_clients
from millrace.stages.reduce.federated import LocalSteps
from millrace.tests.contracts.dense_phases import Cut, Dense, Matrices, Step, descend, train
from millrace.tests.contracts.full_batch import Case, F, make_case
from millrace.tests.contracts.phases import Trained, initial, train_ranks

EPOCHS = 3
CONFIGS: dict[str, ModelConfig] = {
    "gcn": GCN(hidden=6, layers=2, dropout=0.0),
    "sage": SAGE(hidden=6, layers=2, dropout=0.0),
    "gat": GAT(hidden=6, layers=2, heads=2, dropout=0.0),
}
SGD, ADAM = Train(optimizer="sgd", lr=0.1, weight_decay=0.01), Train(optimizer="adam", lr=0.005, weight_decay=0.01)
CASES = st.builds(make_case, st.integers(0, 10**6), st.sampled_from([1, 2, 3]))


pytestmark = pytest.mark.usefixtures("one_thread")


def seen(t: Trained) -> dict[str, Any]:
    return {
        "losses": [h["train_loss"] for h in t.progress.history],
        "state": t.model.state_dict(),
        "logits": t.logits(),
        "names": t.share.graph.names,
    }


def train_clients(
    case: Case, system: System, model: PhasedModel, rules: Train, client: np.ndarray, number: int
) -> list[dict[str, Any]]:
    """Whole clients on each of the case's ranks."""
    case = replace(case, part_of=packed(client, number, case.parts).part(np.arange(len(client))).astype(np.int64))
    with tempfile.TemporaryDirectory() as folder:
        write_clients(Path(folder), client, client_traffic(case.graph, client, number), {})
        return train_ranks(case, system, model, EPOCHS, rules, seen, Path(folder))


def clients_of(case: Case, seed: int, number: int | None) -> tuple[np.ndarray, int]:
    n = case.graph.num_nodes
    return (
        (np.arange(n, dtype=np.int32), n)
        if number is None
        else (np.random.default_rng(seed).integers(0, number, n).astype(np.int32), number)
    )


def close(got: Any, want: Any, what: str, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance, err_msg=what)


@given(
    case=CASES,
    kind=st.sampled_from(list(CONFIGS)),
    seed=st.integers(0, 9),
    number=st.sampled_from([1, 3, 20, None]),
    v1=st.booleans(),
)
@settings(deadline=None, max_examples=8)
def test_one_local_step_of_sgd_is_a_step_along_the_mean_gradient(
    case: Case, kind: str, seed: int, number: int | None, v1: bool
) -> None:
    """The same for any clients."""
    mode: Any = "v1" if v1 else "v3"
    plain, local = retexo(mode), retexo(mode, local_steps=1, clients=3)
    model = initial(CONFIGS[kind], plain, F)
    want = train_ranks(case, plain, model, EPOCHS, SGD, seen)
    client, number = clients_of(case, seed, number)
    got = train_clients(case, local, model, SGD, client, number)
    close(got[0]["losses"], want[0]["losses"], "losses", 1e-12)
    for name, value in got[0]["state"].items():
        close(value, want[0]["state"][name], name, 1e-12)


def fedavg(
    client: Tensor, steps: int, optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> Callable[[list[Tensor]], Step]:
    """FedAvg (McMahan et al., algorithm 1) with every client in every round, and nothing kept between rounds."""

    def step(leaves: list[Tensor], loss_of_ids: Callable[[Tensor], Tensor], ids: Tensor) -> float:
        if not len(ids):
            return 0.0
        common = [leaf.detach().clone() for leaf in leaves]
        mean = [torch.zeros_like(leaf) for leaf in common]
        told = float(loss_of_ids(ids).detach()) / len(ids)
        for c in client.unique():
            mine = ids[client[ids] == c]
            if not len(mine):
                continue
            taken = optimizer(leaves)
            for _ in range(steps):
                descend(loss_of_ids(mine) / len(mine), leaves)
                taken.step()
            with torch.no_grad():
                for total, leaf, begin in zip(mean, leaves, common):
                    total += leaf * len(mine) / len(ids)
                    leaf.copy_(begin)
        with torch.no_grad():
            for leaf, total in zip(leaves, mean):
                leaf.copy_(total)
        return told

    return lambda leaves: step


@given(
    case=CASES,
    seed=st.integers(0, 9),
    number=st.sampled_from([2, 20, None]),
    steps=st.integers(1, 4),
    adam=st.booleans(),
    kind=st.sampled_from(["gcn", "sage", "gat"]),
)
@example(case=make_case(8, 2), seed=1, number=None, steps=3, adam=True, kind="sage")
@example(case=make_case(9, 3), seed=1, number=3, steps=4, adam=True, kind="gat")
@settings(deadline=None, max_examples=8)
def test_local_steps_are_fedavg(case: Case, seed: int, number: int | None, steps: int, adam: bool, kind: str) -> None:
    """Clients without train nodes, on ranks without clients; their optimisers are fresh in every round."""
    client, number = clients_of(case, seed, number)
    system, rules = retexo("v3", local_steps=steps, clients=3), ADAM if adam else SGD
    model = initial(CONFIGS[kind], system, F)
    dense = Dense(Cut(kind, 2, False, "hidden", "normed", "full", CONFIGS[kind].activation), model.state_dict())
    ranks = train_clients(case, system, model, rules, client, number)
    dst = np.repeat(np.arange(case.graph.num_nodes), case.graph.in_degree)
    graph = Matrices.of(case.graph.indices, dst, case.graph.edge_weight, case.graph.num_nodes)
    ids = {name: torch.from_numpy(getattr(case.split, name)) for name in ("train", "val")}
    optimizer = torch.optim.Adam if adam else torch.optim.SGD

    def fresh(leaves: list[Tensor]) -> torch.optim.Optimizer:
        return optimizer(leaves, lr=rules.lr, weight_decay=rules.weight_decay)

    begin = fedavg(torch.from_numpy(client), steps, fresh)
    want = train(
        dense, {"train": graph, "val": graph}, torch.from_numpy(case.x), case.labels, ids, EPOCHS, begin, "val_accuracy"
    )
    for rank in ranks:
        close(rank["losses"], want.losses, "losses")
        for name, value in rank["state"].items():
            close(value, want.state[name], name)
        close(rank["logits"], want.logits[torch.from_numpy(rank["names"])], "logits")


@pytest.mark.parametrize("number", [5, None])
@pytest.mark.parametrize(("kind", "mode"), [("gat", "v3"), ("sage", "v1")])
def test_who_simulates_a_client_does_not_matter(number: int | None, kind: str, mode: Any) -> None:
    """With dropout and attention dropout too: a client has masks of its own, wherever it is."""
    system = retexo(mode, local_steps=2, clients=5)
    dropped = {"dropout": 0.3, **({"attention_dropout": 0.4} if kind == "gat" else {})}
    model = initial(replace(CONFIGS[kind], **dropped), system, F)
    case = make_case(8, 1)
    client, number = clients_of(case, 2, number)
    (whole,) = train_clients(case, system, model, ADAM, client, number)
    # More ranks than clients, or fewer.
    for rank in train_clients(replace(case, parts=6 if number == 5 else 3), system, model, ADAM, client, number):
        close(rank["losses"], whole["losses"], "losses")
        for name, value in rank["state"].items():
            close(value, whole["state"][name], name)
    plain = train_clients(case, system, initial(CONFIGS[kind], system, F), ADAM, client, number)
    assert np.abs(np.subtract(plain[0]["losses"], whole["losses"])).max() > 1e-6, "something was dropped"


class Line(nn.Module):
    """h w, so that gradients can be computed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[1.0, -1.0]], dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.seen: list[Tensor] = []

    def forward(self, neighbourhoods: Any, h: Tensor) -> Tensor:
        self.seen.append(self.w.detach().clone())
        return h @ self.w


def work(h: list[float], y: list[int], index: int = 0, clients: tuple[Fetched, ...] = ()) -> Fetched:
    return Fetched(
        0, index, (), torch.tensor(h, dtype=torch.float64)[:, None], torch.tensor(y, dtype=torch.int64), clients=clients
    )


def rules(optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> StepRules:
    return StepRules(1, "multiclass", "float32", Solo(), optimizer)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def test_every_client_begins_at_the_common_parameters_and_they_stay_there() -> None:
    model, clients = Line(), (work([1.0], [0]), work([], [], 1), work([2.0, 0.5], [1, 0], 2))
    policy, before = LocalSteps(3), copy.deepcopy(model.state_dict())
    done = policy.contribute(model, work([1.0, 2.0, 0.5], [0, 1, 0], 0, clients), rules(sgd))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert len(model.seen) == 6 and torch.equal(model.seen[0], before["w"]) and torch.equal(model.seen[3], before["w"])
    moved = torch.zeros_like(model.w)
    for x, y in (([1.0], [0]), ([2.0, 0.5], [1, 0])):
        w = before["w"].clone().requires_grad_()
        taken = torch.optim.SGD([w], lr=0.5, momentum=0.9)
        for _ in range(3):
            taken.zero_grad()
            nn.functional.cross_entropy(torch.tensor(x, dtype=torch.float64)[:, None] @ w, torch.tensor(y)).backward()
            taken.step()
        moved += (before["w"] - w.detach()) * len(y)
    assert model.w.grad is not None and model.unused.grad is not None
    close(model.w.grad, moved, "what was moved", 1e-12)
    assert not model.unused.grad.any()
    first = nn.functional.cross_entropy(
        torch.tensor([[1.0], [2.0], [0.5]]).double() @ before["w"], torch.tensor([0, 1, 0]), reduction="sum"
    )
    assert (done.seeds, done.loss_sum) == (3, pytest.approx(float(first)))
    taken = policy.optimizer([model.w, model.unused], rules(sgd))
    assert policy.reduce([model.w, model.unused], done.seeds, Solo()) == (3, False)
    taken.step()
    close(model.w.detach(), before["w"] - moved / 3, "the mean", 1e-12)


def test_a_rank_without_clients_is_one_and_nobody_may_have_seeds() -> None:
    model = Line()
    done = LocalSteps(2).contribute(model, work([1.0, 2.0], [0, 1]), rules(sgd))
    assert (done.seeds, len(model.seen)) == (2, 2)
    done = LocalSteps(2).contribute(model, work([], []), rules(sgd))
    assert (done.seeds, done.loss_sum) == (0, 0.0)
    assert model.w.grad is not None and not model.w.grad.any()
