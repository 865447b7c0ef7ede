"""The device's sampling kernels give the bits of the compiled ones: on a GPU where there is one, else on a
pretended device, in Triton's interpreter."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.stages import random
from millrace.stages.assignment import BulkRequest, SeedPlan
from millrace.stages.kernels.runtime import triton_rng
from millrace.stages.kernels.sampling import device_graph, layerwise
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cuda import backend as cuda
from millrace.stages.kernels.sampling.cuda import draw as draw_cuda
from millrace.stages.kernels.sampling.cuda import extract as extract_cuda
from millrace.stages.kernels.sampling.cuda import terms as terms_cuda
from millrace.stages.kernels.sampling.device_samples import Rows
from millrace.stages.kernels.sampling.draws import LaborDraws, LayerDraws, NeighborDraws
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import RunError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.typed import typed_graphs
from millrace.tests.stages.sample import test_layerwise

pytestmark = pytest.mark.usefixtures("on_device")
FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw: st.DrawFn, weighted: bool | None = None) -> Graph:
    """Empty rows, isolated nodes, self loops, multi-edges, hubs, one node, no edges; weights some of which are 0."""
    n = draw(st.integers(1, 40))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=150))
    hub = draw(st.integers(0, 60))
    src = [u for u, _ in edges] + [i % n for i in range(hub)]
    dst = [v for _, v in edges] + [0] * hub
    some = draw(st.booleans()) if weighted is None else weighted
    weight = np.linspace(0.5, 2.0, len(src)) * (np.arange(len(src)) % 4 > 0) if some else None
    return from_edges(np.array(src, np.int64), np.array(dst, np.int64), n, edge_weight=weight)


fanouts = st.lists(st.sampled_from([-1, 1, 2, 3, 7, 40, 100]), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**40)


def digests(graph, plan, sampler, kernel, workspace=None):
    requests = (plan.request(3, n) for n in range(plan.num_bulks))
    return [
        minibatch_digest(m) for r in requests for m in sampler.sample(graph, r, kernel, workspace).check().minibatches
    ]


def same(graph, sampler, seed, k, workspace=None):
    """A few bulks of k minibatches, the last one smaller, by both."""
    nodes = np.arange(graph.num_nodes, dtype=np.int64)
    plan = SeedPlan(nodes, max(1, -(-len(nodes) // (k + 1))), k, seed)
    return digests(graph, plan, sampler, cuda, workspace) == digests(graph, plan, sampler, cpu)


@FEW
@given(graphs(), fanouts, st.booleans(), st.sampled_from(["new", "all"]), st.booleans(), st.integers(1, 3), seeds)
def test_uniform(graph, fanout, replace, expand, edge_ids, k, seed):
    assert same(graph, NeighborSampler(fanout, replace=replace, expand=expand, edge_ids=edge_ids), seed, k)


@FEW
@given(typed_graphs(), st.data(), st.booleans(), st.sampled_from(["new", "all"]), st.integers(1, 3), seeds)
def test_relation_by_relation(graph, data, replace, expand, k, seed):
    numbers = st.sampled_from([-1, 0, 1, 2, 3, 40])
    given = {",".join(r): data.draw(st.tuples(numbers, numbers)) for r in graph.types.relations}
    sampler = NeighborSampler((2, 2), replace=replace, expand=expand, relations=given)
    assert same(graph, sampler, seed, k)
    # As training gets them.
    request = SeedPlan(np.arange(graph.num_nodes), 3, k, seed).request(3, 0)
    weight = np.random.default_rng(0).random(graph.num_edges, np.float32) if seed % 2 else None
    graph = dataclasses.replace(graph, edge_weight=weight)
    left, made = (sampler.sample_on_device(graph, request), sampler.sample(graph, request, cpu))
    assert [minibatch_digest(m) for m in left.minibatches] == [minibatch_digest(m) for m in made.minibatches]


@FEW
@given(typed_graphs(), st.data(), st.booleans(), st.sampled_from(["new", "all"]), st.integers(1, 3), seeds)
def test_labor_relation_by_relation(graph, data, poisson, expand, k, seed):
    numbers = st.sampled_from([-1, 0, 1, 2, 3, 40])
    given = {} if seed % 3 else {",".join(r): data.draw(st.tuples(numbers, numbers)) for r in graph.types.relations}
    sampler = LaborSampler((2, 3), poisson, expand, edge_ids=k > 1, relations=given)
    assert same(graph, sampler, seed, k)
    # As training gets them.
    request = SeedPlan(np.arange(graph.num_nodes), 3, k, seed).request(3, 0)
    weight = np.random.default_rng(0).random(graph.num_edges, np.float32) if seed % 2 else None
    graph = dataclasses.replace(graph, edge_weight=weight)
    left, made = (sampler.sample_on_device(graph, request), sampler.sample(graph, request, cpu))
    assert [minibatch_digest(m) for m in left.minibatches] == [minibatch_digest(m) for m in made.minibatches]


@FEW
@given(graphs(weighted=True), fanouts, st.booleans(), st.sampled_from(["new", "all"]), st.integers(1, 3), seeds)
def test_in_proportion_to_weights(graph, fanout, replace, expand, k, seed):
    assert same(graph, NeighborSampler(fanout, replace=replace, weighted=True, expand=expand), seed, k)


@FEW
@given(graphs(weighted=True), fanouts, st.sampled_from(["new", "all"]), st.integers(1, 3), seeds)
def test_labor_by_weights(graph, fanout, expand, k, seed):
    assert same(graph, LaborSampler(fanout, expand=expand, weighted=True), seed, k)


@FEW
@given(graphs(), fanouts, st.booleans(), st.sampled_from(["new", "all"]), st.integers(1, 3), seeds)
def test_labor(graph, fanout, poisson, expand, k, seed):
    assert same(graph, LaborSampler(fanout, poisson, expand, edge_ids=bool(seed % 2)), seed, k)


@FEW
@given(
    test_layerwise.graphs(),
    st.sampled_from([LadiesSampler, FastGCNSampler]),
    test_layerwise.sizes,
    test_layerwise.debias,
    st.integers(1, 3),
    seeds,
)
def test_layer_wise(graph, kind, sizes, debias, k, seed):
    assert same(graph, kind(sizes, debias, bool(seed % 2)), seed, k)


def nasty() -> Graph:
    """A hub of 300 in-edges, some of them parallel, among 50 nodes of about 10."""
    rng = np.random.default_rng(2)
    src, dst = rng.integers(0, 50, 800), np.concatenate([rng.integers(0, 45, 500), np.zeros(300, np.int64)])
    return from_edges(src, dst, 50, edge_weight=rng.random(800))


SAMPLERS = [
    NeighborSampler((3, 7)),
    NeighborSampler((40, 2), expand="all", edge_ids=True),
    NeighborSampler((5, 3), replace=True),
    NeighborSampler((200, 2), replace=True, weighted=True),
    NeighborSampler((10, 3), weighted=True),
    NeighborSampler((-1, 2)),
    LaborSampler((5, 3)),
    LaborSampler((5, 3), poisson=True),
    # By darts alone, and with a race for the rest of the candidates.
    *(LadiesSampler((12, 47), way) for way in layerwise.DEBIAS),
    *(FastGCNSampler((12, 47), way) for way in ("ratio", "bottom_k")),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_each_way_on_a_graph_with_a_hub(sampler):
    assert same(nasty(), sampler, 1, 2)


def test_several_programs_share_a_launch(monkeypatch):
    """As on a device: tiles of a few rows, more programs than one for a minibatch's table, bulks in pieces."""
    from millrace.stages.kernels.sampling.cuda import hits as hits_cuda
    from millrace.stages.kernels.sampling.cuda import labor as labor_cuda
    from millrace.stages.kernels.sampling.cuda import renumber as number_cuda
    from millrace.stages.kernels.sampling.cuda import tables as tables_cuda

    for module, name, value in (
        (draw_cuda, "TILE", 256),
        (draw_cuda, "BLOCK", 256),
        (labor_cuda, "CHUNK", 8),
        (labor_cuda, "ROWS", 4),
        (extract_cuda, "CHUNK", 16),
        (extract_cuda, "BLOCK", 16),
        (extract_cuda, "ROWS", 4),
        (hits_cuda, "BLOCK", 16),
        (terms_cuda, "TILE", 32),
        (number_cuda, "BLOCK", 16),
        (number_cuda, "SCAN", 16),
        (tables_cuda, "SCAN", 16),
        (tables_cuda, "TABLE_BYTES", 5 * 64 * 2),
        (draw_cuda, "BOUND", 40),
    ):
        monkeypatch.setattr(module, name, value)
    for sampler in (NeighborSampler((4,)), LaborSampler((3,))):
        assert same(nasty(), sampler, 5, 3)
    few = from_edges(np.arange(40) % 9, np.arange(40) % 7, 12)
    for sampler in (NeighborSampler((130,), replace=True), LadiesSampler((9, 9))):
        assert same(few, sampler, 5, 3)


@pytest.mark.parametrize("long", [200, 1 << 15])
@pytest.mark.parametrize("room", [0, 1, 8])
@pytest.mark.parametrize("sampler", [LadiesSampler((4, 47)), FastGCNSampler((4, 30), "bottom_k")], ids=str)
def test_layer_wise_edges_find_room(sampler, room, long, monkeypatch):
    """Rows are walked again where the list was too short. A hub is longer than a chunk, some rows have no edges, and of
    one all are kept. Hubs may have a walk of their own."""
    monkeypatch.setattr(extract_cuda, "ROOM", room)
    monkeypatch.setattr(extract_cuda, "LONG", long)
    monkeypatch.setattr(extract_cuda, "CHUNK", 16)
    graph = nasty()
    row = np.repeat(np.arange(50), graph.in_degree)
    src, dst = np.concatenate([graph.indices, np.full(40, 46)]), np.concatenate([row, np.full(40, 46)])
    weight = np.concatenate([graph.edge_weight, np.linspace(0.5, 1, 40)])
    for w in (None, weight):
        assert same(from_edges(src, dst, 50, edge_weight=w), sampler, 1, 2)


def test_later_bulks_have_room_for_as_many_edges(monkeypatch):
    monkeypatch.setattr(extract_cuda, "ROOM", 1)
    walked, walk = [], extract_cuda.Walk._list
    monkeypatch.setattr(extract_cuda.Walk, "_list", lambda self, room: walked.append(room) or walk(self, room))
    space, found = cuda.Workspace(), []
    for _ in range(2):
        before = len(walked)
        assert same(nasty(), LadiesSampler((9, 30)), 1, 2, space)
        found.append(len(walked) - before)
    # Two bulks of two hops.
    assert found[0] > found[1] == 4


def test_minibatches_without_seeds():
    graph = nasty()
    none = np.empty(0, np.int64)
    request = BulkRequest(3, 0, 0, 0, (none, np.array([0, 45, 1]), none, np.array([7, 2]), none))
    layer_wise = [kind((4, 3), debias) for kind in (LadiesSampler, FastGCNSampler) for debias in layerwise.DEBIAS]
    for sampler in (NeighborSampler((3, 2)), LaborSampler((3,)), *layer_wise):
        one, other = (
            [minibatch_digest(m) for m in sampler.sample(graph, request, kernel).minibatches] for kernel in (cuda, cpu)
        )
        assert one == other


@pytest.mark.parametrize("widest", [8, 256], ids=["long rows", "short rows"])
@pytest.mark.parametrize(
    "candidates", [lambda s: 0, lambda s: s, lambda s: 400], ids=["too few", "enough in some rows", "all"]
)
def test_labor_with_any_number_of_candidates(candidates, widest, monkeypatch):
    """Rows without enough, or with more than there is room for, are bisected in whole; one row is long."""
    from millrace.stages.kernels.sampling.cuda import labor as labor_cuda

    monkeypatch.setattr(labor_cuda, "_wanted", candidates)
    monkeypatch.setattr(labor_cuda, "WIDEST", widest)
    monkeypatch.setattr(labor_cuda, "CHUNK", 16)
    monkeypatch.setattr(labor_cuda, "LONG", 200)
    rng = np.random.default_rng(4)
    # Two rows are long; one source is most of the first. Nodes from 40 on have no edges.
    src = np.concatenate([np.full(150, 7), np.arange(150) % 50, rng.integers(0, 50, 200)])
    dst = np.concatenate([np.zeros(300, np.int64), np.repeat([1], 40), rng.integers(2, 40, 160)])
    graph = from_edges(src, dst, 50)
    request = BulkRequest(3, 0, 0, 0, (np.array([0, 45, 1, 9]), np.array([2, 0])))
    for fanout in ((5,), (260,)):
        sampler = LaborSampler(fanout)
        one, other = (
            [minibatch_digest(m) for m in sampler.sample(graph, request, kernel).minibatches] for kernel in (cuda, cpu)
        )
        assert one == other


def test_labor_writes_little_beside_what_it_keeps(monkeypatch):
    """A few tens of 20000 in-edges are candidates."""
    from millrace.stages.kernels.sampling.cuda import labor as labor_cuda

    made, true = [], torch.empty
    monkeypatch.setattr(labor_cuda.torch, "empty", lambda *size, **how: made.append(size) or true(*size, **how))
    on = device_graph.on_device(from_edges(np.arange(20000), np.zeros(20000, np.int64), 20000))
    rows = Rows(
        torch.zeros(1, dtype=torch.int32, device=on.device), torch.zeros(1, dtype=torch.int32, device=on.device)
    )
    keys = torch.tensor([5], device=on.device)
    drawn = labor_cuda._draw(on, rows, keys, 10, cuda.Workspace().take(1, on), poisson=False)
    assert drawn.ends.tolist() == [0, 10]
    assert made
    assert all(np.prod(size) < 100 for size in made if size != (drawn.ends.numel(),))


def test_64_bit_ids():
    graph = nasty()
    wide = Graph(graph.indptr, graph.indices.astype(np.int64))
    plan = SeedPlan(np.arange(24), 12, 2, 0)
    for sampler in (NeighborSampler((2, 2)), LaborSampler((2,)), LadiesSampler((9, 9))):
        assert digests(wide, plan, sampler, cuda) == digests(Graph(graph.indptr, graph.indices), plan, sampler, cpu)


def test_a_workspace_is_clear_after_each_bulk():
    graph, space = nasty(), cuda.Workspace()
    assert space.nbytes == 0
    for sampler in (NeighborSampler((3, 2)), LaborSampler((2,)), LadiesSampler((9,)), FastGCNSampler((47,))):
        assert same(graph, sampler, 6, 2, space)
    tables = space.take(1, device_graph.on_device(graph))
    assert (tables.local == -1).all()
    assert not tables.found.any()


def test_topology_is_copied_once():
    graph = nasty()
    assert device_graph.on_device(graph) is device_graph.on_device(graph)
    assert device_graph.on_device(graph).device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_no_minibatches():
    graph = nasty()
    keys = np.empty((0, 1), np.uint64)
    assert cuda.neighbor(graph, NeighborDraws([], keys, (3,))) == []
    assert cuda.labor(graph, LaborDraws([], keys[:, 0], (3,))) == []
    for every_row in (False, True):
        assert cuda.layers(graph, LayerDraws([], keys, (3,), every_row=every_row)) == []


def test_a_minibatch_that_cannot_be_indexed_is_refused():
    graph = from_edges(np.arange(40000), np.arange(40000), 40000)
    request = BulkRequest(0, 0, 0, 0, (np.arange(40000),))
    with pytest.raises(RunError, match="smaller batch_size, fanout or sizes"):
        cuda.neighbor(graph, NeighborDraws(request.seeds, request.keys(1), (1 << 16,), replace=True))


def test_layers_that_cannot_be_indexed_are_refused(monkeypatch):
    graph = from_edges(np.arange(1, 301) % 5, np.zeros(300, np.int64), 5)
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", 200)
    with pytest.raises(RunError, match="smaller batch_size, fanout or sizes"):
        LadiesSampler((5,)).sample(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),)), cuda)


def test_sums_over_a_whole_bulk_may_wrap_around():
    """Sums of each minibatch do not, but many of them lie side by side."""
    terms = terms_cuda.terms(nasty())
    prefix = terms.everywhere[1]
    first, last, words = (torch.tensor([x], device=prefix.device) for x in (0, len(prefix) - 1, 5))
    shifted = prefix + (2**63 - 1 - int(prefix[-1]) // 2)
    assert int(shifted[-1]) < 0 < int(shifted[0])
    hits, expected = (terms.throw(None, first, last, p, words, 50) for p in (shifted, prefix))
    assert hits.tolist() == expected.tolist()


def test_darts_at_the_edge_of_a_row_hit_that_row():
    """Masses of 1, so that every dart is at an edge."""
    terms = terms_cuda.terms(nasty())
    device = terms.loop.device
    first, last, words = (torch.tensor([x], device=device) for x in (0, 50, 5))
    hits = terms.throw(None, first, last, torch.arange(51, device=device), words, 50)
    bits = random.mix(np.uint64(5) + np.arange(1, 51, dtype=np.uint64) * random.GOLDEN)
    assert hits.tolist() == [[int(b) * 50 >> 64 for b in bits]]


def test_weights_are_added_up_in_order():
    """Rounding to float32 hides the order nearly always: here it decides."""
    device = terms_cuda.terms(nasty()).loop.device
    values = torch.tensor([1e16, 1.0, 1.0, -1e16, 1.0, 1.0, 1e16], dtype=torch.float64, device=device)
    ends, out = torch.tensor([0, 4, 4, 7], device=device), torch.empty(3, dtype=torch.float64, device=device)
    triton_rng.launch(extract_cuda._add_in_order, 1)(values, ends, out, 3, ROWS=extract_cuda.ROWS)
    assert out.tolist() == [1e16 + 1.0 + 1.0 - 1e16, 0.0, 1.0 + 1.0 + 1e16] == [0.0, 0.0, 1e16 + 2]


BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "zarr", "dask", "distributed", "scipy"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
import millrace.stages.kernels.sampling.cuda.backend
print("fine")
"""


def test_a_bare_machine_can_import_the_kernels():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "fine\n", done.stderr
