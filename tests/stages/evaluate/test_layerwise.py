"""Layer-wise evaluation against a dense forward, its memory bound, and the metrics."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from torch import Tensor, nn

from millrace.stages.evaluate import scored
from millrace.stages.evaluate.far import rows as rows_module
from millrace.stages.evaluate.layerwise import infer, outputs
from millrace.stages.evaluate.limits import Limits
from millrace.stages.models import MODELS
from millrace.stages.neighbourhood.base import Loops
from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import InputError, RunError
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.store import bytes_left
from millrace.tests.contracts.accuracies import accuracy, evaluate

F, C = 5, 3
TINY = 600
"""Bytes: one or a few rows a chunk."""


class DenseHood:
    """The whole graph as a dense matrix: the definition of a full neighbourhood, in plain torch."""

    spans_ranks = False
    names = None

    def __init__(self, graph: Graph, dtype: torch.dtype = torch.float64) -> None:
        n = graph.num_nodes
        rows = np.repeat(np.arange(n), graph.in_degree)
        self.count, self.weight = torch.zeros(2, n, n, dtype=dtype)
        weights = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
        for v, u, w in zip(rows.tolist(), graph.indices.tolist(), weights.tolist()):
            self.count[v, u] += 1
            self.weight[v, u] += w
        self.num_dst = self.num_src = n
        self.degree = self.weight.sum(1)
        last = torch.ones(n, dtype=dtype)
        for v, u, w in zip(rows.tolist(), graph.indices.tolist(), weights.tolist()):
            last[v] = w if u == v else last[v]
        itself = self.weight.diagonal()
        self.loops = Loops(self.degree - itself, last, itself)
        self.num_edges = graph.num_edges

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        total = self.weight @ (h if factor is None else factor[:, None] * h)
        return total if own is None else total + own[:, None] * h

    def mean_beside(self, h: Tensor) -> Tensor:
        return torch.cat([self.mean(h), h], dim=1)

    def mean(self, h: Tensor) -> Tensor:
        total = self.weight.sum(1, keepdim=True)
        return torch.where(total > 0, self.weight @ h / torch.where(total > 0, total, 1), 0)

    def max(self, h: Tensor) -> Tensor:
        masked = torch.where(self.count[:, :, None] > 0, h[None], -torch.inf).amax(1)
        return torch.where(self.count.sum(1, keepdim=True) > 0, masked, 0)

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        assert dropout == 0, "evaluation drops nothing"
        times = self.count.clone().fill_diagonal_(1)
        logits = torch.nn.functional.leaky_relu((z * a_src).sum(-1)[None] + logit_dst[:, None], slope)
        logits = torch.where(times[:, :, None] > 0, logits, -torch.inf)
        alpha = times[:, :, None] * (logits - logits.amax(1, keepdim=True)).exp()
        return torch.einsum("vuh,uhd->vhd", alpha / alpha.sum(1, keepdim=True), z)

    def attend_both(self, z: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        return self.attend(z, a_src, (z * a_dst).sum(-1), slope, dropout)

    def attend_shared(
        self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        return self.attend(h[:, None].expand(-1, len(a_src), -1), a_src, h @ a_dst.T, slope, dropout)


class Maxed(nn.Module):
    """A user's own module: no base class of ours, no parameter in its second layer."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(F, C)

    def layer(self, i: int, neighbourhood, h: Tensor) -> Tensor:
        return self.linear(neighbourhood.max(h)) if i == 0 else neighbourhood.max(h) + h[: neighbourhood.num_dst]


def build(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    if name == "user":
        return Maxed().to(dtype)
    options = {"hidden": 8, "layers": 3, "norm": "batch"}
    model = MODELS[name](**options).build(F, C).to(dtype)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm1d)):
        norm.running_mean = torch.randn(8, dtype=dtype)
        norm.running_var = torch.rand(8, dtype=dtype) + 0.5
    return model


def dense(model: nn.Module, graph: Graph, x: np.ndarray) -> Tensor:
    model.eval()
    h = torch.from_numpy(x)
    neighbourhood = DenseHood(graph)
    with torch.no_grad():
        for i in range(model.num_layers):
            h = model.layer(i, neighbourhood, h)
    return h


def degree_of(graph: Graph) -> Tensor:
    """Degrees, with the self loops of the graph."""
    hood = DenseHood(graph)
    return torch.stack([hood.degree, hood.loops.others, hood.loops.weight], dim=1)


def hub_graph(weighted: bool = False, n: int = 40) -> Graph:
    """Node 0 hears everybody (some twice); nodes 30 to 39 are isolated, node 5 has a self loop."""
    rng = np.random.default_rng(0)
    src = np.r_[np.arange(30), np.arange(10), rng.integers(30, size=60), 5]
    dst = np.r_[np.zeros(40, np.int64), rng.integers(30, size=60), 5]
    return from_edges(src, dst, n, edge_weight=rng.random(101).astype(np.float32) if weighted else None)


def rows_of(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, F))


ALL = [*(n for n, c in MODELS.items() if not (c.reads_relations or c.reads_edges or n == "gatv2")), "user"]
"""`gatv2` calls `apply`, which `DenseHood` has not; its own tests have a dense forward."""


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("bounds", ["one chunk", "tiny", "tiny, on disk"])
def test_equals_a_dense_forward(monkeypatch, tmp_path, name, weighted, bounds):
    monkeypatch.setattr(rows_module, "fits_in_memory", lambda num_bytes: False)
    graph, model = hub_graph(weighted), build(name)
    x, degree = rows_of(40), degree_of(graph)
    limits = {"one chunk": {}, "tiny": {"max_bytes": TINY}, "tiny, on disk": {"max_bytes": TINY, "scratch": tmp_path}}[
        bounds
    ]
    got = infer(model, graph, ArrayFeatures(x), degree, np.arange(40), **limits)
    torch.testing.assert_close(got, dense(model, graph, x), rtol=1e-10, atol=1e-10)
    assert list(tmp_path.iterdir()) == []


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    n = draw(st.integers(1, 10))
    node = st.integers(0, n - 1)
    edges = np.array(draw(st.lists(st.tuples(node, node), max_size=30)), np.int64).reshape(-1, 2)
    return from_edges(edges[:, 0], edges[:, 1], n), np.array(draw(st.lists(node, max_size=12)), np.int64)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@given(case=cases(), max_bytes=st.sampled_from([1, 700, 3000, 1 << 20]))
def test_any_nodes_of_any_graph_in_any_order(name, case, max_bytes):
    graph, nodes = case
    x, model = rows_of(graph.num_nodes), build(name)
    got = infer(model, graph, ArrayFeatures(x), degree_of(graph), nodes, max_bytes=max_bytes)
    torch.testing.assert_close(got, dense(model, graph, x)[nodes], rtol=1e-10, atol=1e-10)


def test_only_what_the_nodes_depend_on_is_computed():
    """A path 0 -> 1 -> ... -> 9: three layers at node 9 need the rows 9, {8, 9}, {7, 8, 9}."""
    graph, model, steps = from_edges(np.arange(9), np.arange(1, 10), 10), build("sage"), []
    nodes = np.array([9])
    got = infer(
        model,
        graph,
        ArrayFeatures(rows_of(10)),
        degree_of(graph),
        nodes,
        on_progress=lambda *a: steps.append(a),
        max_bytes=1,
    )
    assert steps == [(k, 6) for k in range(1, 7)]
    torch.testing.assert_close(got, dense(model, graph, rows_of(10))[nodes], rtol=1e-10, atol=1e-10)


@dataclass
class Watch:
    """Bytes that a chunk really holds in gathered sources, outputs and block arrays; the edges are those of the largest
    row at least."""

    largest: int = 0
    chunks: int = 0

    def over(self, model: nn.Module) -> nn.Module:
        layer = model.layer

        def watched(i: int, neighbourhood, h: Tensor) -> Tensor:
            out = layer(i, neighbourhood, h)
            arrays = (h, out, neighbourhood.degree)
            held = sum(t.numel() * t.element_size() for t in arrays)
            block = neighbourhood.block.check()
            held += block.src.nbytes + block.indptr.nbytes + block.indices.nbytes
            if neighbourhood.num_dst > 1:
                self.largest = max(self.largest, held)
            self.chunks += 1
            return out

        model.layer = watched
        return model


@pytest.mark.parametrize("max_bytes", [4_000, 40_000, 400_000])
def test_the_memory_bound_holds(max_bytes):
    rng = np.random.default_rng(0)
    graph = from_edges(rng.integers(500, size=4000), rng.integers(500, size=4000), 500)
    watch = Watch()
    infer(
        watch.over(build("gcn")),
        graph,
        ArrayFeatures(rows_of(500)),
        degree_of(graph),
        np.arange(500),
        max_bytes=max_bytes,
    )
    assert 0 < watch.largest <= max_bytes
    # Rows are not doled out one by one either: a chunk uses a fair part of what it may.
    assert watch.chunks < 3 * (2 + 40 * 500 * 8 * 40 / max_bytes)


def test_results_go_to_disk_where_they_do_not_fit(tmp_path, monkeypatch):
    """Whatever `max_bytes`: hidden rows, what the last layer aggregates, and its result."""
    made, left = [], [0]
    real = rows_module.tempfile.TemporaryFile
    monkeypatch.setattr(rows_module.tempfile, "TemporaryFile", lambda **k: made.append(k) or real(**k))
    monkeypatch.setattr(bytes_left, "bytes_left", lambda: left[0])
    graph, model, x = hub_graph(), build("sage"), ArrayFeatures(rows_of(40))
    hidden, product = 40 * 8 * 8, 40 * 2 * C * 8
    for room, files in ((hidden, 0), (hidden - 1, 1), (product, 1), (product - 1, 2), (40 * C * 8 - 1, 3)):
        made.clear()
        left[0] = 2 * room
        infer(model, graph, x, degree_of(graph), np.arange(40), scratch=tmp_path / "new")
        assert [k["dir"] for k in made] == [tmp_path / "new"] * files


class Means(nn.Module):
    """A model of one's own."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(F, F, dtype=torch.float64)

    def layer(self, i, neighbourhood, h):
        return self.linear(neighbourhood.mean(h))


@pytest.mark.parametrize(("model", "notes"), [(Means, 1), (lambda: build("sage"), 0)])
def test_a_model_that_reads_features_again_and_again_says_so_once(tmp_path, monkeypatch, model, notes):
    """Its sums do not go on while rows go by; those of SAGE do."""
    monkeypatch.setattr(MappedFeatures, "is_cached", lambda self, ids: False)
    said: list[str] = []
    graph = from_edges(*np.random.default_rng(0).integers(2000, size=(2, 20_000)), 2000)
    np.save(tmp_path / "x.npy", rows_of(2000))
    features, degree = MappedFeatures(tmp_path / "x.npy"), degree_of(graph)
    for max_bytes, count in ((1 << 24, 0), (50_000, notes)):
        outputs(model(), graph, features, degree, np.arange(2000), Limits(max_bytes, on_note=said.append))
        assert len(said) == count
    assert all("millrace partition STORE --into NEW" in text for text in said)


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    class Full:
        def seek(self, at):
            """Anywhere."""

        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(rows_module, "fits_in_memory", lambda num_bytes: False)
    monkeypatch.setattr(rows_module.tempfile, "TemporaryFile", lambda **k: Full())
    with pytest.raises(RunError, match=r"No space left.*another scratch folder"):
        infer(
            build("sage"),
            hub_graph(),
            ArrayFeatures(rows_of(40)),
            degree_of(hub_graph()),
            np.arange(40),
            max_bytes=1,
            scratch=tmp_path,
        )


def test_a_scratch_folder_that_cannot_be_made_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(rows_module, "fits_in_memory", lambda num_bytes: False)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="another scratch folder"):
        infer(
            build("sage"),
            hub_graph(),
            ArrayFeatures(rows_of(40)),
            degree_of(hub_graph()),
            np.arange(40),
            max_bytes=1,
            scratch=tmp_path / "file" / "x",
        )


def test_the_model_gets_its_modes_and_gradients_back():
    model, graph = build("gat"), hub_graph()
    model.train()
    model.norms[0].eval()
    before = {name: m.training for name, m in model.named_modules()}
    state = {k: v.clone() for k, v in model.state_dict().items()}
    out = infer(model, graph, ArrayFeatures(rows_of(40)), degree_of(graph), np.arange(40))
    assert {name: m.training for name, m in model.named_modules()} == before
    assert not out.requires_grad
    assert torch.is_grad_enabled()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items()), "running statistics moved"
    model.layer = lambda i, neighbourhood, h: 1 / 0
    with pytest.raises(ZeroDivisionError):
        infer(model, graph, ArrayFeatures(rows_of(40)), degree_of(graph), np.arange(40))
    assert {name: m.training for name, m in model.named_modules()} == before


def test_features_are_converted_to_the_dtype_of_the_model():
    model, graph, x = build("sage"), hub_graph(), rows_of(40).astype(np.float32)
    got = infer(model, graph, ArrayFeatures(x), degree_of(graph).float(), np.arange(40))
    torch.testing.assert_close(got, dense(model, graph, x.astype(np.float64)), rtol=1e-10, atol=1e-10)


BAD = {
    "features": ({"features": ArrayFeatures(rows_of(39))}, "39 rows; the graph has 40"),
    "degree": ({"degree": torch.ones(39)}, r"\[39\]; expected \[40\]"),
    "dtype of nodes": ({"nodes": np.arange(3, dtype=np.float32)}, r"nodes are float32\[3\]; expected ids"),
    "shape of nodes": ({"nodes": np.zeros((1, 2), np.int64)}, r"nodes are int64\[1, 2\]; expected ids"),
    "no graph": ({"graph": [[0, 1]]}, "graph is a list; expected a Dataset, or a Graph with features"),
    "no features": ({"features": None}, "features are missing"),
    "large node": ({"nodes": np.array([40])}, r"expected \[0, 40\)"),
    "negative node": ({"nodes": np.array([-1])}, r"expected \[0, 40\)"),
    "bound": ({"max_bytes": 0}, "at least 1"),
    "model": ({"model": nn.Linear(F, C)}, "num_layers"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_arguments_are_refused(kind):
    change, phrase = BAD[kind]
    graph = hub_graph()
    good = {"model": build("sage"), "graph": graph, "features": ArrayFeatures(rows_of(40)), "degree": degree_of(graph)}
    with pytest.raises(InputError, match=phrase):
        infer(**{**good, "nodes": np.arange(40), **change})


def test_arguments_are_taken_as_callers_have_them():
    model, graph, x = build("sage"), hub_graph(), rows_of(40)
    split = Split(np.arange(4), np.arange(4, 6), np.array([7, 9]))
    dataset = Dataset("d", graph, ArrayFeatures(x), np.zeros(40, np.int64), split, C)
    want = infer(model, graph, ArrayFeatures(x), degree_of(graph), np.arange(40))
    assert torch.equal(infer(model, dataset), want)
    assert torch.equal(infer(model, graph, x), want)
    assert torch.equal(
        infer(model, graph, torch.from_numpy(x), graph.degree, [2, 0, 2]),
        infer(model, dataset, nodes=torch.tensor([2, 0, 2])),
    )
    assert torch.equal(infer(model, dataset, nodes="test"), infer(model, dataset, nodes=[7, 9]))
    with pytest.raises(InputError, match=r"expected infer\(model, dataset, nodes=...\)"):
        infer(model, dataset, [7, 9])


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "gin"])
def test_features_of_another_width_are_a_sentence(name):
    with pytest.raises(InputError, match=rf"a node has {F + 1} features; expected as many as the first layer of Stack"):
        infer(build(name), hub_graph(), np.zeros((40, F + 1)))


@pytest.mark.parametrize("wrong", [lambda h: h[:1], lambda h: h[:, 0], lambda h: None])
def test_a_layer_with_a_wrong_result_is_refused(wrong):
    model = build("user")
    model.layer = lambda i, neighbourhood, h: wrong(h[: neighbourhood.num_dst])
    with pytest.raises(InputError, match=r"layer 0 of Maxed returned.*a row per destination"):
        infer(model, hub_graph(), ArrayFeatures(rows_of(40)), degree_of(hub_graph()), np.arange(40))


@pytest.mark.parametrize("multilabel", [False, True])
def test_all_splits_are_evaluated_in_one_pass(monkeypatch, multilabel):
    rng, graph, model = np.random.default_rng(0), hub_graph(), build("gin")
    x = rows_of(40)
    split = Split(np.arange(0, 40, 2), np.arange(1, 20, 2), np.empty(0, np.int64))
    labels = (rng.random((40, C)) < 0.4).astype(np.float32) if multilabel else rng.integers(C, size=40)
    dataset = Dataset(
        "d", graph, ArrayFeatures(x), labels, split, C, "multilabel" if multilabel else "multiclass"
    ).check()
    passes, real = [], scored.outputs
    monkeypatch.setattr(scored, "outputs", lambda *a, **k: passes.append(1) or real(*a, **k))
    got = evaluate(model, dataset, degree_of(graph), ("val", "train", "test"))
    assert list(got) == ["val", "train", "test"]
    assert len(passes) == 1
    logits = dense(model, graph, x).numpy()
    for name in ("val", "train"):
        ids = getattr(split, name)
        if multilabel:
            want = f1_score(labels[ids], logits[ids] > 0, average="micro")
        else:
            want = (logits[ids].argmax(1) == labels[ids]).mean()
        assert got[name] == pytest.approx(want, abs=1e-12)
    assert got["test"] is None


@settings(max_examples=20)
@given(st.integers(1, 8), st.integers(1, 4), st.randoms(use_true_random=False))
def test_micro_f1_equals_scikit_learns(n, c, random):
    logits = torch.tensor([[random.uniform(-1, 1) for _ in range(c)] for _ in range(n)])
    labels = torch.tensor([[float(random.random() < 0.5) for _ in range(c)] for _ in range(n)])
    want = f1_score(labels.numpy(), (logits > 0).numpy(), average="micro", zero_division=0) if c > 1 else None
    if want is not None:
        assert accuracy(logits, labels) == pytest.approx(want)
    assert accuracy(-logits.abs(), torch.zeros(n, c)) == 0


def test_accuracy_counts_rows():
    logits = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 5.0], [1.0, 0.0]])
    assert accuracy(logits, torch.tensor([1, 0, 0, 0])) == 0.75
