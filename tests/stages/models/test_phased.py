"""Training layer after layer: what ranks learn, hand on and send, against dense matrices and against each other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.pipeline.config.schema import Train
from millrace.pipeline.config.systems import System
from millrace.pipeline.systems.retexo import retexo
from millrace.stages.forward_backward import forward_backward
from millrace.stages.messages import Fetched, RankJob
from millrace.stages.models.base import ModelConfig
from millrace.stages.models.gat import GAT
from millrace.stages.models.gcn import GCN
from millrace.stages.models.phased import PhasedModel
from millrace.stages.models.sage import SAGE
from millrace.stages.partition.metis import MetisWork
from millrace.stages.placement.boundary import ABSENT
from millrace.storage.dataset import Split
from millrace.storage.errors import InputError, RunError
from millrace.storage.graph import from_edges
from millrace.tests.contracts.dense_phases import Cut, Dense, Matrices, Outcome, together, train
from millrace.tests.contracts.full_batch import C, Case, F, make_case
from millrace.tests.contracts.phases import Trained, initial, train_ranks
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64
CASES = st.builds(make_case, st.integers(0, 10**6), st.sampled_from([1, 2, 4, 5]), st.booleans())
CONFIGS: dict[str, ModelConfig] = {
    "gcn": GCN(hidden=6, dropout=0.0),
    "sage": SAGE(hidden=6, dropout=0.0),
    "sage-max": SAGE(hidden=4, dropout=0.0, aggregator="max", activation="elu"),
    "gat": GAT(hidden=6, heads=2, dropout=0.0),
}
CUTS: dict[str, dict[str, Any]] = {
    "v3": {},
    "v3 after an MLP": {"base": "mlp"},
    "v3 without norm": {"head": "linear"},
    "v1": {"mode": "v1"},
    "v3, distilled": {"distill": 0.5},
    "v1, distilled": {"mode": "v1", "distill": 0.25},
    "v3 without norm, distilled": {"head": "linear", "base": "mlp", "distill": 0.875},
    "logits of a normed head": {"propagate": "logits"},
    "logits of the layer": {"propagate": "logits", "head": "none"},
    "logits of the layer, from an MLP": {"mode": "v1", "head": "none"},
}
EPOCHS = 3
LEARNING = {
    "sgd": Train(optimizer="sgd", lr=0.2, weight_decay=0.01),
    "adam": Train(optimizer="adam", lr=0.005, weight_decay=0.01),
    "gradient": Train(optimizer="sgd", lr=1.0),
}
"""``gradient``: a step subtracts the gradient itself."""


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Trial:
    """A model cut into phases, and how it is trained."""

    kind: str
    layers: int
    cut: str
    rounding: str = "full"
    optimizer: str = "sgd"
    inductive: bool = False

    @property
    def config(self) -> ModelConfig:
        return replace(CONFIGS[self.kind], layers=self.layers)

    @property
    def system(self) -> System:
        return retexo(**CUTS[self.cut], rounding=self.rounding, inductive=self.inductive)  # type: ignore[arg-type]

    def model(self) -> PhasedModel:
        return initial(self.config, self.system, F)

    def dense(self, state: Mapping[str, Tensor], norm: str = "none") -> Dense:
        options: dict[str, Any] = {"base": "none", "propagate": "hidden", "head": "normed"}
        if CUTS[self.cut].get("mode") == "v1":
            options = {"base": "mlp", "propagate": "logits", "head": "linear"}
        options |= {k: v for k, v in CUTS[self.cut].items() if k in options}
        base = options.pop("base") == "mlp"
        return Dense(
            Cut(
                self.kind,
                self.layers,
                base,
                **options,
                distill=CUTS[self.cut].get("distill", 0.0),
                rounding=self.rounding,
                activation=self.config.activation,
                norm=norm,
            ),
            state,
        )

    @property
    def select_by(self) -> str:
        return "val_loss" if CUTS[self.cut].get("mode") == "v1" else "val_accuracy"


TRIALS = st.builds(
    Trial,
    st.just("gcn"),
    st.sampled_from([2, 1, 3]),
    st.sampled_from(list(CUTS)),
    st.sampled_from(["full", "fp16", "int8"]),
    st.sampled_from(["sgd", "adam"]),
)


def matrices(case: Case, absent: tuple[str, ...] = ()) -> Matrices:
    graph, present = case.graph, np.ones(case.graph.num_nodes, bool)
    for split in absent:
        present[getattr(case.split, split)] = False
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    return Matrices.of(graph.indices, dst, graph.edge_weight, graph.num_nodes, present)


def optimizer_of(name: str) -> Any:
    rules = LEARNING[name]
    kind = torch.optim.Adam if name == "adam" else torch.optim.SGD
    return lambda leaves: kind(leaves, lr=rules.lr, weight_decay=rules.weight_decay)


def wanted(case: Case, trial: Trial, dense: Dense) -> Outcome:
    if trial.inductive:
        graphs = {"train": matrices(case, ("val", "test")), "val": matrices(case, ("test",))}
    else:
        graphs = dict.fromkeys(("train", "val"), matrices(case))
    ids = {name: torch.from_numpy(getattr(case.split, name)) for name in ("train", "val")}
    begin, x = together(optimizer_of(trial.optimizer)), torch.from_numpy(case.x)
    there = (
        np.setdiff1d(np.arange(len(case.x)), np.concatenate([case.split.val, case.split.test]))
        if trial.inductive
        else np.arange(len(x))
    )
    return train(dense, graphs, x, case.labels, ids, EPOCHS, begin, trial.select_by, torch.from_numpy(there))


def close(got: Any, want: Any, what: str) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-10, atol=1e-10, err_msg=what)


def chain(model: PhasedModel, case: Case) -> list[Tensor]:
    """Every layer's result over the whole graph, as evaluation computes it."""
    neighbourhood, h, found = whole_graph(case.graph, F64), torch.from_numpy(case.x), []
    with torch.no_grad():
        for i in range(model.num_layers):
            h = model.layer(i, neighbourhood, h)
            found.append(h)
    return found


def check(case: Case, trial: Trial, dense: Dense, ranks: list[dict[str, Any]]) -> None:
    want, first = wanted(case, trial, dense), ranks[0]
    model: PhasedModel = first["model"]
    close(first["losses"], want.losses, f"{trial}: losses")
    assert first["best_epochs"] == want.best_epochs, trial
    assert want.state.keys() == model.state_dict().keys()
    for rank in ranks:
        names = torch.from_numpy(rank["names"])
        for name, value in rank["model"].state_dict().items():
            close(value, want.state[name], f"{trial}: {name}")
        for (k, graph), rows in rank["rows"].items():
            close(
                rows,
                want.rows[k][graph if trial.inductive else "val"][names],
                f"{trial}: what phase {k} reads of {graph}",
            )
        close(rank["logits"], want.logits[names[: len(rank["logits"])]], f"{trial}: logits")
    x, whole = torch.from_numpy(case.x), matrices(case)
    close(chain(model, case)[-1], dense.infer(whole, x), f"{trial}: inference")


def seen(t: Trained) -> dict[str, Any]:
    graphs = list(t.share.boundary.graphs)
    return {
        "losses": [h["train_loss"] for h in t.progress.history],
        "best_epochs": [p.get("best_epoch", -1) for p in t.progress.phases],
        "phases": t.progress.phases,
        "model": t.model,
        "names": t.share.boundary.names,
        "owned": len(t.share.graph.names),
        "rows": {
            (k, graph): t.rows(k, graph)
            for k in range(len(t.model) > t.model.num_layers, len(t.model))
            for graph in graphs
        },
        "logits": t.logits(graphs[-1]),
        "bytes": t.ledger["network"],
        "counts": t.share.boundary.counts,
    }


ODD = (
    (make_case(1, 3), Trial("", 2, "v3")),
    (make_case(2, 2), Trial("", 2, "v3 after an MLP", "int8")),
    (make_case(5, 3), Trial("", 3, "v1", "fp16")),
    (make_case(11, 2), Trial("", 2, "v1", "int8", "adam")),
    (make_case(1, 2), Trial("", 3, "v3, distilled", "int8", "adam")),
    (make_case(11, 3), Trial("", 2, "v1, distilled", "fp16")),
    (make_case(5, 2), Trial("", 2, "v3 without norm, distilled")),
)
"""One node, no edges, all train nodes in one part, and a dense graph; each for two kinds of layers, and each kind has
one of the dense ones."""


def check_learnt(case: Case, trial: Trial) -> None:
    """Losses, best epochs, parameters, rows handed on to every rank and its boundary, logits, and inference on the
    whole graph."""
    model = trial.model()
    dense = trial.dense(model.state_dict())
    ranks = train_ranks(case, trial.system, model, EPOCHS, LEARNING[trial.optimizer], seen)
    check(case, trial, dense, ranks)
    parameters = [sum(v.numel() for v in dense.parameters(k).values()) for k in range(len(dense.phases))]
    assert [p["parameters"] for p in ranks[0]["phases"]] == parameters


@pytest.mark.parametrize("kind", CONFIGS)
def test_ranks_learn_what_dense_matrices_learn(kind: str) -> None:
    at = list(CONFIGS).index(kind)
    for i, (case, trial) in enumerate(ODD):
        if (i + at) % 4 < 2:
            check_learnt(case, replace(trial, kind=kind))


@given(case=CASES, trial=TRIALS, kind=st.sampled_from(list(CONFIGS)))
@settings(deadline=None, max_examples=8)
def test_ranks_learn_what_dense_matrices_learn_of_any_graph(case: Case, trial: Trial, kind: str) -> None:
    check_learnt(case, replace(trial, kind=kind))


@pytest.mark.parametrize("cut", ["v3", "v1", "v3, distilled", "v1, distilled"])
@given(seed=st.integers(0, 10**6), parts=st.sampled_from([1, 2, 4]))
@example(seed=4, parts=4)
@settings(deadline=None, max_examples=2)
def test_ranks_learn_several_classes_of_a_node(cut: str, seed: int, parts: int) -> None:
    """As above, with labels that are vectors."""
    case, trial = make_case(seed, parts, multilabel=True), Trial("gcn", 2, cut)
    model = trial.model()
    check(
        case,
        trial,
        trial.dense(model.state_dict()),
        train_ranks(case, trial.system, model, EPOCHS, LEARNING["sgd"], seen),
    )


@given(case=CASES, trial=TRIALS, kind=st.sampled_from(list(CONFIGS)))
@example(case=make_case(8, 4), trial=Trial("", 2, "v3", "int8"), kind="gcn")
@example(case=make_case(11, 2), trial=Trial("", 2, "v1"), kind="sage")
@example(case=make_case(8, 4), trial=Trial("", 2, "v3, distilled"), kind="gcn")
@example(case=make_case(3, 2), trial=Trial("", 2, "v1, distilled"), kind="gat")
@settings(deadline=None, max_examples=4)
def test_inductive_training_is_training_on_the_induced_subgraphs(case: Case, trial: Trial, kind: str) -> None:
    """Validation and test nodes are not there in training, test nodes not in validation: neither as neighbours nor in
    degrees."""
    trial = replace(trial, kind=kind, inductive=True)
    model = trial.model()
    ranks = train_ranks(case, trial.system, model, EPOCHS, LEARNING[trial.optimizer], seen)
    check(case, trial, trial.dense(model.state_dict()), ranks)
    assert ABSENT == {"train": ("val", "test"), "val": ("test",)}


def larger(parts: int, method: str, seed: int = 4) -> Case:
    """40 nodes in four groups; a few of them train, some have no edges."""
    rng = np.random.default_rng(seed)
    n = 40
    src, dst = rng.integers(0, n, 160), rng.integers(0, n - 4, 160)
    near = rng.random(160) < np.where(src % 4 == dst % 4, 1.0, 0.3)
    graph = from_edges(src[near], dst[near], n, edge_weight=rng.choice([0.5, 1.0, 2.0], near.sum()))
    role = rng.choice(4, n, p=[0.4, 0.2, 0.2, 0.2])
    split = Split(*(np.flatnonzero(role == r) for r in range(3)))
    x, labels = rng.normal(size=(n, F)), torch.from_numpy(rng.integers(0, C, n))
    part = MetisWork().assign(graph, parts, 1).part(np.arange(n)) if method == "metis" else rng.integers(0, parts, n)
    return Case(graph, part.astype(np.int64), parts, split, x, labels)


DROPPING: dict[str, ModelConfig] = {
    "gcn": GCN(hidden=6, layers=2, dropout=0.4),
    "sage": SAGE(hidden=6, layers=3, dropout=0.3),
    "sage-max": SAGE(hidden=6, layers=2, dropout=0.4, aggregator="max"),
    "gat": GAT(hidden=6, layers=2, heads=2, dropout=0.3, attention_dropout=0.4),
}


@pytest.mark.parametrize(
    ("kind", "cut", "how"),
    [
        ("gcn", "v3", (3, "metis")),
        ("sage", "v1", (4, "random")),
        ("sage-max", "v3 after an MLP", (3, "metis")),
        ("gat", "v3", (3, "random")),
        ("gat", "v1", (2, "metis")),
        ("sage", "v3, distilled", (3, "random")),
    ],
)
def test_parts_do_not_matter_with_dropout_either(kind: str, cut: str, how: tuple[int, str]) -> None:
    """Masks of rows and of attention belong to nodes and edges, not to where they lie."""
    system = retexo(**CUTS[cut])
    model = initial(DROPPING[kind], system, F)
    whole, parted = [
        train_ranks(larger(*cut_by), system, model, EPOCHS, LEARNING["adam"], seen) for cut_by in ((1, "random"), how)
    ]
    still = replace(DROPPING[kind], dropout=0.0, **({"attention_dropout": 0.0} if kind == "gat" else {}))
    without = initial(still, system, F)
    plain = train_ranks(larger(1, "random"), system, without, EPOCHS, LEARNING["adam"], seen)[0]
    assert np.abs(np.subtract(plain["losses"], whole[0]["losses"])).min() > 1e-6, "something was dropped"
    names = np.argsort(whole[0]["names"])
    for rank in parted:
        close(rank["losses"], whole[0]["losses"], "losses")
        for name, value in rank["model"].state_dict().items():
            close(value, whole[0]["model"].state_dict()[name], name)
        close(rank["logits"], whole[0]["logits"][names][rank["names"][: rank["owned"]]], "logits")


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("inductive", [False, True])
def test_a_batch_norm_in_the_head_is_over_all_train_nodes(size: int, inductive: bool) -> None:
    trial = Trial("gcn", 2, "v3", inductive=inductive)
    model = initial(replace(trial.config, norm="batch"), trial.system, F)
    case = larger(size, "random")
    ranks = train_ranks(case, trial.system, model, EPOCHS, LEARNING["sgd"], seen)
    dense = trial.dense(model.state_dict(), norm="batch")
    for name in list(dense.p):
        if "tracked" in name:
            dense.p[name] += ranks[0]["best_epochs"][0] + 1
    check(case, trial, dense, ranks)


@given(case=CASES, trial=TRIALS, kind=st.sampled_from(list(CONFIGS)), inductive=st.booleans())
@example(case=larger(4, "random"), trial=Trial("", 3, "v3"), kind="gcn", inductive=False)
@example(case=larger(4, "random"), trial=Trial("", 3, "v1", "int8"), kind="gat", inductive=True)
@settings(deadline=None, max_examples=6)
def test_one_exchange_for_each_layer_takes_the_rows_of_the_boundary_and_no_more(
    case: Case, trial: Trial, kind: str, inductive: bool
) -> None:
    trial = replace(trial, kind=kind, inductive=inductive)
    system, model = trial.system, trial.model()
    ranks = train_ranks(case, system, model, 1, LEARNING["sgd"], seen)
    boundary = case.remote_rows(np.ones(case.graph.num_nodes, bool))
    assert sum(sum(r["counts"]) for r in ranks) == boundary
    cut = trial.dense({}).cut
    after = trial.config.hidden if cut.propagate == "hidden" else C
    widths = [*([] if cut.base else [F]), *[after] * (cut.layers - (not cut.base))]
    per_row = [{"full": 8 * w, "fp16": 2 * w, "int8": w + 4}[cut.rounding] for w in widths]
    features = 0 if cut.base else boundary * per_row[0]
    handed_on = boundary * sum(per_row[not cut.base :]) * (2 if inductive else 1)
    sent = {kind: sum(r["bytes"][kind] for r in ranks) for kind in ("features", "activations")}
    assert sent == {"features": features, "activations": handed_on}
    for r in ranks:
        told = r["phases"]
        assert [p["phase"] for p in told] == list(range(cut.layers + cut.base))
        assert [(p["remote_rows"], p["row_bytes"]) for p in told] == [
            *[(0, 0)] * cut.base,
            *((boundary, b) for b in per_row),
        ]
        assert (
            sum(p["remote_rows"] * p["row_bytes"] * (p["graphs"] if p["phase"] else 1) for p in told)
            == features + handed_on
        )


@pytest.mark.parametrize(
    ("kind", "cut", "rounding"),
    [
        ("gcn", "v3", "full"),
        ("gcn", "v3", "int8"),
        ("sage", "v1", "fp16"),
        ("sage", "v1", "int8"),
        ("gat", "v3 after an MLP", "fp16"),
        ("gat", "v3 after an MLP", "full"),
    ],
)
def test_layers_over_the_whole_graph_give_what_phases_have_handed_on(kind: str, cut: str, rounding: str) -> None:
    """Evaluation and inference know of no phases; rows on disk and logits of training are theirs, rounded or not."""
    trial = Trial(kind, 3, cut, rounding)
    case = larger(2, "random")
    ranks = train_ranks(case, trial.system, trial.model(), EPOCHS, LEARNING["sgd"], seen)
    computed = chain(ranks[0]["model"], case)
    base = len(ranks[0]["model"]) - 3
    for rank in ranks:
        names = torch.from_numpy(rank["names"])
        for i, h in enumerate(computed[:-1]):
            close(rank["rows"][base + i + 1, "whole"], h[names], f"layer {i}")
        close(rank["logits"], computed[-1][names[: rank["owned"]]], "logits")
        if base:
            first = ranks[0]["model"].phase(0).eval().of_rows(torch.from_numpy(case.x))
            close(rank["rows"][1, "whole"], first.detach()[names], "the MLP")


def phase_of(kind: str, dropout: float) -> tuple[Any, Any, Tensor]:
    """The first phase of a model, what it aggregates over, and its rows."""
    case = larger(1, "random")
    model = initial(replace(DROPPING[kind], dropout=dropout), retexo("v3"), F)
    return model.phase(0).train(), whole_graph(case.graph, F64), torch.from_numpy(case.x)


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_the_aggregate_is_kept_clean_and_dropout_is_fresh_every_epoch(kind: str) -> None:
    """One mask that was applied before the aggregate would stay for all rounds."""
    module, neighbourhood, x = phase_of(kind, 0.5)
    still = module.frozen_inputs(neighbourhood, x)
    clean = module.conv.aggregate(neighbourhood, x)
    y = torch.zeros(neighbourhood.num_dst, dtype=torch.int64)
    masks, losses = [], []
    for epoch in range(4):
        fetched = Fetched(epoch, 0, (still,), still.h, y)  # type: ignore[arg-type]
        losses.append(forward_backward(module, fetched, 1, "multiclass", 1.0).loss_sum)
        seen_rows = []
        combine = module.conv.combine
        module.conv.combine = lambda rows, activation="none", seen_rows=seen_rows, combine=combine: (
            seen_rows.append(rows),
            combine(rows, activation),
        )[1]
        assert forward_backward(module, fetched, 1, "multiclass", 1.0).loss_sum == losses[-1], (
            "an epoch can be repeated"
        )
        del module.conv.combine
        (rows,) = seen_rows
        kept = rows != 0
        close(rows[kept], 2 * clean[kept], "what is kept is doubled")
        assert 0.3 < float(kept[clean != 0].double().mean()) < 0.7
        masks.append(kept)
    assert len(set(losses)) == 4
    assert all(not torch.equal(a, b) for a, b in zip(masks, masks[1:]))
    assert torch.equal(still.aggregated, clean)
    with torch.no_grad():
        close(module.eval().logits(still), module.logits(module.frozen_inputs(neighbourhood, x)), "evaluation")


@pytest.mark.parametrize("kind", ["sage-max", "gat"])
def test_what_has_parameters_before_the_aggregate_is_not_aggregated_beforehand(kind: str) -> None:
    module, neighbourhood, x = phase_of(kind, 0.5)
    still = module.frozen_inputs(neighbourhood, x)
    assert still.aggregated is None and torch.equal(still.h, x)


@pytest.mark.parametrize("kind", CONFIGS)
def test_nodes_without_edges_learn_and_are_handed_on(kind: str) -> None:
    """A train node and a part of nodes without edges count in the loss, and have rows of their own in the next
    phase."""
    case = make_case(2, 2)
    case = replace(case, split=Split(np.arange(case.graph.num_nodes), case.split.val, case.split.test))
    assert case.graph.num_edges == 0
    trial = Trial(kind, 2, "v3")
    ranks = train_ranks(case, trial.system, trial.model(), EPOCHS, LEARNING["sgd"], seen)
    rows = torch.cat([r["rows"][1, "whole"] for r in ranks])
    assert len(rows) == case.graph.num_nodes and (rows.abs().sum(1) > 0).all()
    check(case, trial, trial.dense(trial.model().state_dict()), ranks)


def test_ranks_that_are_elsewhere_are_not_exchanged_with() -> None:
    case, trial = larger(2, "random"), Trial("gcn", 2, "v3")

    def late(job: RankJob) -> RankJob:
        return replace(job, generation=job.group.rank)

    with pytest.raises(
        RunError,
        match=r"rank \d hands on rows for phase 0 \(start \d of the run\), but rank \d expects those for phase 0",
    ):
        train_ranks(case, trial.system, trial.model(), 1, LEARNING["sgd"], change=late)


def test_without_a_folder_nothing_can_be_written_down() -> None:
    with pytest.raises(InputError, match="expected the folder of a run"):
        train_ranks(
            larger(1, "random"),
            retexo("v3"),
            Trial("gcn", 2, "v3").model(),
            1,
            LEARNING["sgd"],
            change=lambda job: replace(job, folder=None),
        )


def test_the_degree_of_a_remote_row_is_that_of_the_whole_graph() -> None:
    case = larger(4, "random")
    degree = whole_graph(case.graph, F64).degree_rows.numpy()
    for rank in train_ranks(
        case, retexo("v3"), Trial("gcn", 1, "v3").model(), 1, LEARNING["sgd"], lambda t: t.share.boundary
    ):
        assert sum(rank.counts) > 0
        close(rank.graphs["whole"].degree, degree[rank.names], "degrees")


@pytest.mark.parametrize("cut", ["v3", "v1"])
def test_a_model_of_phases_can_be_tuned_end_to_end(cut: str) -> None:
    """Gradients reach every convolution; heads that were thrown away take none; rows are not rounded on the way."""
    trial = Trial("gcn", 3, cut, "int8")
    model, case = trial.model().train(), larger(1, "random")
    neighbourhood, x = whole_graph(case.graph, F64), torch.from_numpy(case.x)
    full = Trial("gcn", 3, cut).dense(model.state_dict())
    close(model([neighbourhood] * 3, x).detach(), full.infer(matrices(case), x), "logits")
    model([neighbourhood] * 3, x).square().sum().backward()
    without = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert without == ({f"heads.{i}.{w}" for i in (0, 1) for w in ("weight", "bias")} if cut == "v3" else set())


def test_shapes_are_those_of_the_paper() -> None:
    """v3: F -> d -> .. -> d -> C, a head of d x C for each layer but the last; v1: an MLP, then layers on C logits."""

    def shapes(cut: str) -> dict[str, list[int]]:
        state = Trial("sage", 3, cut).model().state_dict()
        return {n: list(v.shape) for n, v in state.items() if n.endswith("weight")}

    d = 6
    v3, v1 = shapes("v3"), shapes("v1")
    assert [v3[f"convs.{i}.own.weight"] for i in range(3)] == [[d, F], [d, d], [C, d]]
    assert [v3.get(f"heads.{i}.weight") for i in range(3)] == [[C, d], [C, d], None]
    assert [v3.get(f"norms.{i}.weight") for i in range(3)] == [[d], [d], None]
    assert [v1[f"base.{i}.weight"] for i in range(2)] == [[d, F], [C, d]]
    assert [v1[f"convs.{i}.own.weight"] for i in range(3)] == [[d, C]] * 3
    assert [v1[f"heads.{i}.weight"] for i in range(3)] == [[C, d]] * 3
    assert not any(n.startswith("norms") for n in v1)
