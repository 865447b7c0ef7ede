"""Evaluation in parts against a dense forward, whatever comes first in a layer, and when it is not used."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from millrace.stages.evaluate import chunks, direct
from millrace.stages.evaluate import layerwise as module
from millrace.stages.evaluate.far import rows as rows_module
from millrace.stages.evaluate.layerwise import infer
from millrace.stages.evaluate.limits import Limits
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.models import MODELS
from millrace.stages.models.base import Stack
from millrace.stages.models.sage import SAGEConv
from millrace.stages.neighbourhood.destinations import Destinations
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures, ConvertedFeatures, CountedFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.stages.evaluate.test_layerwise import C, cases, degree_of, dense, hub_graph

OPTIONS = {
    "sage": {},
    "sage-max": {"aggregator": "max"},
    "gcn": {},
    "gat": {"heads": 2},
    "gin": {},
}
WIDTHS = [3, 8, 50]
"""Widths of features, where hidden rows are 8 wide: aggregates come first, or products."""


def build(name: str, width: int, norm: str = "none", classes: int = C) -> Stack:
    torch.manual_seed(0)
    model = MODELS[name.split("-")[0]](hidden=8, layers=3, norm=norm, **OPTIONS[name]).build(width, classes).double()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.running_mean, m.running_var = torch.randn(8).double(), torch.rand(8).double() + 0.5
    for name, p in model.named_parameters():
        if name.endswith(("bias", "eps")):
            nn.init.normal_(p)
    assert isinstance(model, Stack)
    return model


def rows_of(n: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, width))


def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each evaluation in parts."""
    seen, real = [], module.infer_in_parts
    monkeypatch.setattr(module, "infer_in_parts", lambda *a, **k: seen.append("parts") or real(*a, **k))
    return seen


# Each norm with each width, model and kind of weights.
@pytest.mark.parametrize(
    ("name", "weighted", "width", "norm"),
    [
        (name, weighted, width, ("none", "layer", "batch")[(i + j + weighted) % 3])
        for i, name in enumerate(OPTIONS)
        for weighted in (False, True)
        for j, width in enumerate(WIDTHS)
    ],
)
def test_equals_a_dense_forward(monkeypatch, name, weighted, width, norm):
    graph, model, x = hub_graph(weighted), build(name, width, norm), rows_of(40, width)
    seen = used(monkeypatch)
    got = infer(model, graph, ArrayFeatures(x), degree_of(graph))
    assert seen == ["parts"]
    torch.testing.assert_close(got, dense(model, graph, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=25, deadline=None)
@given(case=cases(), max_bytes=st.sampled_from([1, 700, 1 << 20]))
def test_any_nodes_of_any_graph_in_any_order(name, width, case, max_bytes):
    graph, nodes = case
    x, model = rows_of(graph.num_nodes, width), build(name, width)
    got = infer(model, graph, ArrayFeatures(x), degree_of(graph), nodes, max_bytes=max_bytes)
    torch.testing.assert_close(got, dense(model, graph, x)[nodes], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("classes", [1, 6, 20])
@pytest.mark.parametrize("name", OPTIONS)
def test_any_order_of_product_and_aggregate_in_the_last_layer(name, classes):
    graph, model, x = hub_graph(), build(name, 8, classes=classes), rows_of(40, 8)
    torch.testing.assert_close(infer(model, graph, x, degree_of(graph)), dense(model, graph, x), rtol=1e-10, atol=1e-10)


def large() -> Graph:
    """More rows and edges than one block has; a few hubs."""
    rng = np.random.default_rng(1)
    dst = np.r_[rng.integers(5000, size=30_000), np.zeros(70_000, np.int64)]
    return from_edges(rng.integers(5000, size=100_000), dst, 5000)


@pytest.mark.parametrize("nodes", [None, np.arange(0, 5000, 97)], ids=["all", "some"])
@pytest.mark.parametrize("name", OPTIONS)
def test_threads_do_not_change_a_bit_and_hubs_fit(name, nodes):
    graph, model, x = large(), build(name, 8), rows_of(5000, 8)
    assert max(graph.in_degree) > direct.BLOCK_EDGES
    found = []
    for threads in (1, 3):
        set_num_threads(threads)
        try:
            found.append(infer(model, graph, x, nodes=nodes))
        finally:
            set_num_threads(None)
    assert torch.equal(*found)
    model.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(found[0], infer(model, graph, x, nodes=nodes), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_degrees_may_be_those_of_a_larger_graph(weighted):
    """Sums are then scaled up, as over a sampled block."""
    graph, x = hub_graph(weighted), rows_of(40, 8)
    degree = degree_of_all(graph) * 2 + 1
    for name in ("gcn", "gin"):
        model = build(name, 8)
        got = infer(model, graph, x, degree)
        model.register_forward_hook(lambda *_: None)
        torch.testing.assert_close(got, infer(model, graph, x, degree), rtol=1e-10, atol=1e-10)


class Untouched(ArrayFeatures):
    def gather(self, ids, out=None):
        raise AssertionError("rows were gathered")


def test_later_threads_have_as_many_threads_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        infer(build("sage", 8), hub_graph(), rows_of(40, 8))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [3] == [torch.get_num_threads()]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_dtype_without_kernels_is_refused(dtype):
    with pytest.raises(InputError, match=r"on the CPU; expected float32 or float64: call model\.float\(\)"):
        infer(build("sage", 8).to(dtype), hub_graph(), rows_of(40, 8).astype(np.float32))


class Weighted(nn.Module):
    """A convolution of a user's own with parts, and a parameter of a name that ours have for a method."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv, self.weight = SAGEConv(width_in, width_out), nn.Parameter(torch.ones(1))

    def forward(self, neighbourhood, h, activation):
        return self.conv(neighbourhood, h, activation)

    def parts(self, counts, degree):
        return self.conv.parts(counts, degree)


def test_a_parameter_may_have_the_name_of_a_method():
    own = Stack([Weighted(3, C).double()], [], 0.0, "none", "relu")
    assert own.has_parts
    x = rows_of(40, 3)
    got = infer(own, hub_graph(), x)
    own.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(got, infer(own, hub_graph(), x), rtol=1e-10, atol=1e-10)


def test_a_hook_on_all_modules_goes_the_general_way():
    model = build("sage", 8)
    assert model.has_parts
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not model.has_parts
    finally:
        hook.remove()


def test_blocks_under_way_stay_below_the_limit(monkeypatch):
    seen = []
    real = direct.at_most
    monkeypatch.setattr(direct, "at_most", lambda n: seen.append(n) or real(n))
    for max_bytes in (1, 1 << 30):
        infer(build("sage", 8), hub_graph(), rows_of(40, 8), max_bytes=max_bytes)
    assert min(seen) == 1 < max(seen)


def test_features_are_read_where_they_lie_and_counted_once():
    graph, x, ledger = hub_graph(), rows_of(40, 3), Ledger()
    features = CountedFeatures(Untouched(x), ledger, "evaluation")
    for name in OPTIONS:
        infer(build(name, 3), graph, features)
    assert ledger.get("evaluation", "features") == len(OPTIONS) * x.nbytes
    # Node 35 is isolated: its own row is all that three layers read.
    infer(build("sage", 3), graph, features, nodes=[35])
    assert ledger.get("evaluation", "features") == len(OPTIONS) * x.nbytes + x[35].nbytes


@pytest.mark.parametrize("nodes", [None, [9, 3]], ids=["all", "some"])
@pytest.mark.parametrize("name", OPTIONS)
def test_features_that_must_be_gathered_or_converted(monkeypatch, name, nodes):
    monkeypatch.setattr(direct, "PIECE_BYTES", 100)
    graph, model, x = hub_graph(), build(name, 3), rows_of(40, 3).astype(np.float32)
    want = infer(model, graph, x.astype(np.float64), nodes=nodes)
    torch.testing.assert_close(infer(model, graph, x, nodes=nodes), want, rtol=1e-10, atol=1e-10)
    converted = ConvertedFeatures(ArrayFeatures(x), np.float64)
    torch.testing.assert_close(infer(model, graph, converted, nodes=nodes), want, rtol=1e-10, atol=1e-10)


def test_scratch_space_does_not_change_a_bit(monkeypatch, tmp_path):
    files, real = [], rows_module.tempfile.TemporaryFile
    monkeypatch.setattr(rows_module.tempfile, "TemporaryFile", lambda **k: files.append(k) or real(**k))
    graph, x = large(), rows_of(5000, 50)
    # Sums, maxima and attention; the other models are sums too.
    for name in ("sage", "sage-max", "gat"):
        model = build(name, 50)
        monkeypatch.setattr(rows_module, "fits_in_memory", lambda num_bytes: False)
        got = infer(model, graph, x, max_bytes=100_000, scratch=tmp_path)
        assert files
        files.clear()
        monkeypatch.setattr(rows_module, "fits_in_memory", lambda num_bytes: True)
        assert torch.equal(got, infer(model, graph, x, max_bytes=100_000, scratch=tmp_path))
        assert not files
        assert torch.equal(got, infer(model, graph, x, max_bytes=100_000))
    assert list(tmp_path.iterdir()) == []


def test_hidden_rows_that_nobody_reads_are_not_kept(monkeypatch):
    """Two classes: the last layer reads products of 2 * 2 columns, and the 8 hidden columns are never a matrix."""
    kept, real = [], direct.HostSink.finish
    monkeypatch.setattr(direct.HostSink, "finish", lambda self: kept.append(self.shape) or real(self))
    infer(build("sage", 8, classes=2), hub_graph(), rows_of(40, 8))
    assert kept == [(40, 8), (40, 4), (40, 2)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_in_16_bits(monkeypatch, name, width):
    """Near the exact result, and not equal to it."""
    graph, model, x = hub_graph(), build(name, width).float(), rows_of(40, width).astype(np.float32)
    kept, real = [], direct.HostSink.finish
    monkeypatch.setattr(direct.HostSink, "finish", lambda self: kept.append(self.dtype) or real(self))
    exact = infer(model, graph, x)
    kept.clear()
    got = infer(model, graph, x, rows="bfloat16")
    assert kept.count(np.dtype(np.int16)) >= 2
    assert kept[-1] == np.float32
    assert not torch.equal(got, exact)
    torch.testing.assert_close(got, exact, rtol=0.05, atol=0.03 * float(exact.abs().max()))


def test_rows_in_16_bits_are_those_of_rounding():
    graph, x = hub_graph(), rows_of(40, 6).astype(np.float32)
    model = Stack([SAGEConv(6, 6), SAGEConv(6, 6)], [6], 0.0, "none", "relu").eval()
    half = infer(model, graph, x, rows="bfloat16")
    first = Stack([SAGEConv(6, 6)], [], 0.0, "none", "relu").eval()
    first.convs[0] = model.convs[0]
    hidden = torch.relu(infer(first, graph, x)).bfloat16().float()
    second = Stack([SAGEConv(6, 6)], [], 0.0, "none", "relu").eval()
    second.convs[0] = model.convs[1]
    torch.testing.assert_close(half, infer(second, graph, hidden), rtol=1e-5, atol=1e-5)


def test_only_float32_is_rounded_and_the_word_is_checked():
    graph, x, model = hub_graph(), rows_of(40, 8), build("sage", 8)
    assert torch.equal(infer(model, graph, x, rows="bfloat16"), infer(model, graph, x))
    with pytest.raises(InputError, match="rows is 'bfloat'; expected one of full, bfloat16; did you mean 'bfloat16'"):
        infer(model, graph, x, rows="bfloat")


class Doubled(SAGEConv):
    """Has other methods than its parts."""

    def combine(self, aggregated: Tensor, activation: str = "none") -> Tensor:
        return 2 * super().combine(aggregated, activation)


class Watching(Stack):
    def layer(self, i: int, neighbourhood, h: Tensor) -> Tensor:
        return super().layer(i, neighbourhood, h) + 1


def others() -> dict[str, Stack]:
    plain = build("sage", 3).eval()
    hooked = build("sage", 3)
    hooked.convs[1].register_forward_hook(lambda m, args, out: 2 * out)
    replaced = build("sage", 3)
    replaced.layer = lambda i, neighbourhood, h: plain.layer(i, neighbourhood, h) + 1
    return {
        "hook": hooked,
        "method of an object": replaced,
        "subclass of a convolution": Stack([Doubled(3, C).double()], [], 0.0, "none", "relu"),
        "subclass of the stack": Watching([SAGEConv(3, C).double()], [], 0.0, "none", "relu"),
    }


@pytest.mark.parametrize("name", others())
def test_a_changed_model_goes_the_general_way(monkeypatch, name):
    graph, model, x = hub_graph(), others()[name], rows_of(40, 3)
    seen = used(monkeypatch)
    torch.testing.assert_close(infer(model, graph, x), dense(model, graph, x), rtol=1e-10, atol=1e-10)
    assert seen == []


def test_a_subclass_may_bring_its_own_parts(monkeypatch):
    class Shifted(SAGEConv):
        def combine(self, aggregated: Tensor, activation: str = "none") -> Tensor:
            return super().combine(aggregated, activation) + 1

        def parts(self, counts, degree: Tensor) -> direct.ConvParts:
            return direct.ConvParts(Destinations.mean_beside, self.combine)

    graph, x, seen = hub_graph(), rows_of(40, 3), used(monkeypatch)
    model = Stack([Shifted(3, C).double()], [], 0.0, "none", "relu")
    torch.testing.assert_close(infer(model, graph, x), dense(model, graph, x), rtol=1e-10, atol=1e-10)
    assert seen == ["parts"]


def test_progress_counts_the_rows_of_all_layers(monkeypatch):
    monkeypatch.setattr(direct, "WAVE_BLOCKS", 2)
    monkeypatch.setattr(direct, "BLOCK_ROWS", 7)
    steps: list[tuple[int, int]] = []
    infer(build("sage", 8), hub_graph(), rows_of(40, 8), on_progress=lambda *a: steps.append(a))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (120, 120)
    assert len(steps) > 6


def test_layer_counts():
    graph = from_edges(np.arange(9), np.arange(1, 10), 10)
    masks: Sequence[np.ndarray] = module.needed_rows(graph, np.array([0, 9]), 4)
    counts = chunks.layer_counts(graph, masks)
    assert [(n.num_src, n.num_dst, n.num_edges) for n in counts] == [(5, 4, 3), (4, 3, 2), (3, 2, 1)]


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("name", OPTIONS)
def test_ranks_share_the_blocks_and_get_the_bits_of_one(name, ranks):
    graph, model, x = large(), build(name, 8), ArrayFeatures(rows_of(5000, 8))
    degree, nodes = degree_of_all(graph), np.arange(0, 5000, 3)
    want = module.outputs(model, graph, x, degree, nodes)
    model.eval()

    def rank(group: ThreadGroup) -> Tensor:
        return module.outputs(model, graph, x, degree, nodes, Limits(group=group))

    assert all(torch.equal(got, want) for got in run_threads(rank, ranks))


def test_more_ranks_than_blocks():
    graph, model, x = hub_graph(), build("gat", 3), ArrayFeatures(rows_of(40, 3))
    model.eval()
    for nodes in (np.arange(40), np.empty(0, np.int64)):
        found = run_threads(
            lambda group, nodes=nodes: module.outputs(model, graph, x, degree_of(graph), nodes, Limits(group=group)), 4
        )
        assert all(torch.equal(got, infer(model, graph, x, degree_of(graph), nodes)) for got in found)


def degree_of_all(graph: Graph) -> Tensor:
    return torch.from_numpy(graph.degree)
