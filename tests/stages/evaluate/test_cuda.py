"""Evaluation on a device, by the kernels for GPUs: on one where there is one, else on a pretended device."""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.evaluate import cuda
from millrace.stages.evaluate import layerwise as module
from millrace.stages.evaluate.cuda import DeviceBudget, fits
from millrace.stages.evaluate.layerwise import infer, tally
from millrace.stages.evaluate.limits import Limits
from millrace.stages.evaluate.measures import METRICS, Measures
from millrace.stages.kernels import aggregation_backend
from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.accuracies import accuracy, evaluate
from millrace.tests.stages.evaluate.test_layerwise import ALL, C, F, build, degree_of, dense, hub_graph, rows_of

KERNELS = pytest.importorskip("millrace.stages.kernels.aggregation.cuda.backend")
DEVICE = torch.device("cuda", 0)
# Empty lists have a sum of 0, whose logarithm NumPy remarks upon; a GPU does not.
pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning"),
    pytest.mark.usefixtures("on_device"),
]


def bytes_for(fitting: str, model: torch.nn.Module) -> int:
    """In which the layers on `hub_graph` fit as blocks; in half of which the rows of two of them do; in which they do
    not."""
    widest = max(F, *(p.shape[0] for p in model.parameters() if p.ndim > 1))
    return {"blocks": 1 << 30, "rows": 4 * 40 * widest * 8, "nothing": 4 * 40 * widest * 8 - 1}[fitting]


def limit(num_bytes: int) -> DeviceBudget:
    return DeviceBudget(DEVICE, num_bytes, aggregation_backend("cuda"))


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Places in which the rows of layers were kept, in the order of layers."""
    seen: list[str] = []
    for name in ("_in_blocks", "DeviceSink", "HostSink"):
        real: Any = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, real=real, name=name, **k: seen.append(name) or real(*a, **k))
    return seen


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("fitting", ["blocks", "rows", "nothing"])
def test_equals_a_dense_forward(monkeypatch: pytest.MonkeyPatch, name: str, weighted: bool, fitting: str) -> None:
    if name == "gat" and (fitting, weighted) not in (("blocks", True), ("rows", False)):
        pytest.skip("the interpreter takes long over many blocks of attention, which reads no weights")
    graph, model, x = hub_graph(weighted), build(name), rows_of(40)
    want, seen = dense(model, graph, x), watched(monkeypatch)
    model.to(DEVICE)
    got = infer(
        model,
        graph,
        ArrayFeatures(x),
        degree_of(graph),
        np.arange(40),
        max_bytes=3000,
        budget=limit(bytes_for(fitting, model)),
    )
    assert got.device.type == DEVICE.type
    torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)
    layers = 2 if name == "user" else 3
    assert (
        seen == {"blocks": ["_in_blocks"], "rows": ["DeviceSink"] * layers, "nothing": ["HostSink"] * layers}[fitting]
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    n = draw(st.integers(1, 10))
    node = st.integers(0, n - 1)
    edges = np.array(draw(st.lists(st.tuples(node, node), max_size=30)), np.int64).reshape(-1, 2)
    weight = np.random.default_rng(n).random(len(edges)).astype(np.float32) if draw(st.booleans()) else None
    return from_edges(edges[:, 0], edges[:, 1], n, edge_weight=weight), np.array(
        draw(st.lists(node, max_size=12)), np.int64
    )


@settings(max_examples=25, deadline=None)
@given(
    case=cases(),
    name=st.sampled_from(["sage", "gcn"]),
    there=st.booleans(),
    num_bytes=st.sampled_from([1, 2500, 1 << 30]),
)
def test_any_nodes_of_any_graph_in_any_order(
    case: tuple[Graph, np.ndarray], name: str, there: bool, num_bytes: int
) -> None:
    graph, nodes = case
    x, model = rows_of(graph.num_nodes), build(name)
    want = dense(model, graph, x)[nodes]
    base = torch.from_numpy(x).to(DEVICE) if there else None
    features = ArrayFeatures(np.full_like(x, np.nan) if there else x)
    got = infer(
        model.to(DEVICE),
        graph,
        features,
        degree_of(graph),
        nodes,
        base=base,
        budget=limit(num_bytes),
        max_bytes=700,
    )
    torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("fitting", ["blocks", "rows"])
def test_lists_in_pieces_and_features_in_pieces(monkeypatch: pytest.MonkeyPatch, fitting: str) -> None:
    monkeypatch.setattr(cuda, "MAX_BYTES", 200)
    graph, model, x = hub_graph(True), build("gcn"), rows_of(40)
    nodes = np.array([7, 3, 3, 39])
    want = dense(model, graph, x)[nodes]
    got = infer(
        model.to(DEVICE), graph, ArrayFeatures(x), degree_of(graph), nodes, budget=limit(bytes_for(fitting, model))
    )
    torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)


def test_only_what_the_nodes_depend_on_is_computed() -> None:
    """A path 0 -> 1 -> ... -> 9: three layers at node 9 need the rows 9, {8, 9}, {7, 8, 9}."""
    graph, model, steps = from_edges(np.arange(9), np.arange(1, 10), 10), build("sage"), []
    want = dense(model, graph, rows_of(10))[[9]]
    options: dict[str, Any] = {"on_progress": lambda *a: steps.append(a), "budget": limit(1 << 30)}
    got = infer(model.to(DEVICE), graph, ArrayFeatures(rows_of(10)), degree_of(graph), np.array([9]), **options)
    assert steps == [(3, 6), (5, 6), (6, 6)]
    torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)


def test_lists_are_made_once_for_the_same_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = cuda._laid_out
    monkeypatch.setattr(cuda, "_laid_out", lambda *a: made.append(1) or real(*a))
    graphs, model, x = [hub_graph()], build("gcn").to(DEVICE), rows_of(40)
    degree, nodes = degree_of(graphs[0]), np.arange(20)

    def again(nodes: np.ndarray = nodes, degree: torch.Tensor = degree) -> torch.Tensor:
        return infer(model, graphs[0], ArrayFeatures(x), degree, nodes, budget=limit(1 << 30))

    first = again()
    assert torch.equal(first, again()) and len(made) == 1
    other = again(degree=degree + 1)
    assert not torch.equal(first, other) and len(made) == 2
    assert len(again(nodes[:5])) == 5 and len(made) == 3
    assert torch.equal(first, again()) and len(made) == 4
    before = len(cuda._kept)
    graphs.clear()
    gc.collect()
    assert len(cuda._kept) == before - 1, "the lists outlive their graph"


def test_what_fits_is_counted_before_anything_is_made() -> None:
    masks = [np.arange(40) < n for n in (40, 30, 10)]
    graph = hub_graph()
    edges = [int(graph.in_degree[:n].sum()) for n in (30, 10)]
    lists = 8 * sum(edges) + 8 * (30 + 10)
    first = 24 * edges[0] + (3 * 40 + 2 * 30) * 16 * 4
    assert fits(graph, masks, 5, 16, 4, lists + first)
    assert not fits(graph, masks, 5, 16, 4, lists + first - 1)


@pytest.mark.parametrize("multilabel", [False, True])
def test_scores_of_all_splits(multilabel: bool) -> None:
    rng, graph, model, x = np.random.default_rng(0), hub_graph(), build("gin"), rows_of(40)
    split = Split(np.arange(0, 40, 2), np.arange(1, 20, 2), np.empty(0, np.int64))
    labels = (rng.random((40, C)) < 0.4).astype(np.float32) if multilabel else rng.integers(C, size=40)
    dataset = Dataset(
        "d", graph, ArrayFeatures(x), labels, split, C, "multilabel" if multilabel else "multiclass"
    ).check()
    want = evaluate(model, dataset, degree_of(graph))
    base = torch.from_numpy(x).to(DEVICE)
    assert (
        evaluate(model.to(DEVICE), dataset, degree_of(graph), limits=Limits(base=base, budget=limit(1 << 30))) == want
    )
    assert want["test"] is None and evaluate(model, dataset, degree_of(graph), (), Limits(budget=limit(1 << 30))) == {}


def test_counts_lie_where_the_logits_do() -> None:
    logits = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 5.0]], device=DEVICE)
    counts = tally(logits, torch.tensor([1, 0, 0], device=DEVICE))
    assert counts.device.type == DEVICE.type and counts.tolist() == [2, 3]
    assert accuracy(logits, torch.tensor([1, 0, 0], device=DEVICE)) == 2 / 3
    none = tally(logits[:0], torch.tensor([], dtype=torch.int64, device=DEVICE))
    assert none.device.type == DEVICE.type and none.tolist() == [0, 0]


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "regression"])
def test_metrics_of_outputs_on_the_device(task: Any) -> None:
    rng = np.random.default_rng(0)
    width = 1 if task == "binary" else 3
    out, classes = torch.from_numpy(rng.normal(size=(12, width))), {"multiclass": 3, "binary": 2}.get(task)
    y = torch.from_numpy(rng.integers(classes, size=12) if classes else rng.integers(2, size=(12, 3)).astype(float))
    measures = Measures(task, [name for name in METRICS[task] if name != "accuracy"])
    want, got = measures.measured(out, y, by_class=True), measures.measured(out.to(DEVICE), y.to(DEVICE), by_class=True)
    assert (got.accuracy, got.values) == (want.accuracy, pytest.approx(want.values))


def test_a_layer_with_a_wrong_result_is_refused() -> None:
    model = build("user").to(DEVICE)
    model.layer = lambda i, neighbourhood, h: h[:1]
    with pytest.raises(InputError, match=r"layer 0 of Maxed returned.*a row per destination"):
        infer(
            model,
            hub_graph(),
            ArrayFeatures(rows_of(40)),
            degree_of(hub_graph()),
            np.arange(40),
            budget=limit(1 << 30),
        )


@pytest.mark.parametrize("name", ALL)
def test_a_model_on_a_gpu_is_evaluated_there(name: str) -> None:
    graph, model, x = hub_graph(), build(name), rows_of(40)
    want = dense(model, graph, x)
    got = infer(model.cuda(), graph, torch.from_numpy(x).to(DEVICE), degree_of(graph), np.arange(40))
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)
    assert (
        0
        < DeviceBudget.from_free_memory(got.device).num_bytes
        <= torch.cuda.get_device_properties(got.device).total_memory // 2
    )
