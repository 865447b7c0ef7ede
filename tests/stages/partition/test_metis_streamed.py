"""METIS on clusters of streamed rows: its kernels against plain loops, its parts against METIS's."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.stages.kernels.partition.propagate import add_loads, cluster, collect_edges, refine
from millrace.stages.partition import metis_streamed, rows
from millrace.stages.partition.base import Cut, book_of
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.metis import Metis
from millrace.stages.partition.metis_streamed import MetisStreamed
from millrace.stages.partition.quality import measure
from millrace.storage.dataset_store import open_dataset_store
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.lazy_dataset import open_lazily
from millrace.tests.contracts.graphs import graphs, sbm
from millrace.tests.stages.partition.test_rows import stored


def neighbours(graph: Graph, v: int) -> list[int]:
    """In-neighbours but the node itself, with repetition."""
    return [u for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() if u != v]


@settings(deadline=None, max_examples=30)
@given(graph=graphs(), most=st.integers(1, 30), data=st.data())
def test_clusters_are_those_of_a_plain_loop(graph: Graph, most: int, data: st.DataObject) -> None:
    n = graph.num_nodes
    weight = np.array(data.draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)), np.int32)
    label, load = list(range(n)), weight.tolist()
    got, loads, count = np.arange(n, dtype=np.int32), weight.astype(np.int64), np.zeros(n, np.int32)
    for key in (3, 1 << 60):
        moved = 0
        for v in range(n):
            near = Counter(label[u] for u in neighbours(graph, v))
            room = [c for c in near if near[c] > near[label[v]] and load[c] + int(weight[v]) <= most]
            if room:
                top = max(near[c] for c in room)
                ranks = {((c ^ key) * 0x9E3779B97F4A7C15) % 2**64: c for c in room if near[c] == top}
                load[label[v]] -= int(weight[v])
                label[v] = ranks[max(ranks)]
                load[label[v]] += int(weight[v])
                moved += 1
        graph_rows = graph.indptr, graph.indices
        assert cluster(*graph_rows, 0, weight, got, loads, count, most, np.uint64(key)) == moved
        assert (got.tolist(), loads.tolist(), count.any()) == (label, load, False)


@settings(deadline=None, max_examples=25)
@given(graph=graphs(), room=st.integers(1, 12), data=st.data())
def test_edges_between_clusters_are_thinned_evenly(graph: Graph, room: int, data: st.DataObject) -> None:
    n = graph.num_nodes
    cluster_of = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int32)
    ends = [(int(cluster_of[v]), int(cluster_of[u])) for v in range(n) for u in neighbours(graph, v)]
    between = [min(a, b) * 4 + max(a, b) for a, b in ends if a != b]
    keys, state = np.empty(2 * room, np.int64), np.array([0, 1, 0])
    collect_edges(graph.indptr, graph.indices, 0, cluster_of, 4, keys, state)
    each = 1
    while len(between) // each > 2 * room:
        each *= 2
    assert state.tolist() == [len(between), each, len(between) // each]
    assert keys[: state[2]].tolist() == between[each - 1 :: each]


@settings(deadline=None, max_examples=50)
@given(
    graph=graphs(), parts=st.integers(1, 4), two=st.booleans(), loss=st.sampled_from([0.0, 0.5, 1.0]), data=st.data()
)
def test_parts_improve_as_in_a_plain_loop(
    graph: Graph, parts: int, two: bool, loss: float, data: st.DataObject
) -> None:
    n, k = graph.num_nodes, 1 + two
    ints = st.integers(0, 3)
    weight = np.array(data.draw(st.lists(ints, min_size=n * k, max_size=n * k)), np.int32).reshape(n, k)
    part = data.draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n))
    limit = np.array(data.draw(st.lists(st.integers(1, 12), min_size=k, max_size=k)))
    got, load, count = np.array(part, np.int32), np.zeros((parts, k), np.int64), np.zeros(parts, np.int32)
    add_loads(got, weight, load)
    loads = [sum((weight[v] for v in range(n) if part[v] == p), np.zeros(k, np.int64)) for p in range(parts)]
    assert load.tolist() == [one.tolist() for one in loads]
    moved = 0
    for v in range(n):
        row, own = neighbours(graph, v), part[v]
        near, degree = Counter(part[u] for u in row), int(graph.in_degree[v])
        mine = weight[v] > 0
        full = {p: max([0.0, *((loads[p] + (weight[v] if p != own else 0)) / limit)[mine]]) for p in range(parts)}
        over = full[own] > 1
        bound = max(0, near[own] - int(loss * degree)) if over else near[own]
        order = list(dict.fromkeys(part[u] for u in row))
        room = [p for p in order if p != own and full[p] <= 1 and near[p] >= bound]
        most = max((near[p] for p in room), default=-1)
        top = [p for p in room if near[p] == most and (most > bound or full[p] < full[own])]
        if not top and over and bound == 0:
            top = [p for p in range(parts) if full[p] < full[own]]
        if top:
            part[v] = min(top, key=lambda p: full[p])
            loads[own], loads[part[v]] = loads[own] - weight[v], loads[part[v]] + weight[v]
            moved += 1
    assert refine(graph.indptr, graph.indices, 0, weight, got, load, limit, count, loss) == moved
    assert (got.tolist(), load.tolist(), count.any()) == (part, [one.tolist() for one in loads], False)


@pytest.mark.parametrize("keys", [metis_streamed.KEYS, 64])
@settings(deadline=None, max_examples=25)
@given(graph=graphs(), parts=st.integers(1, 6), seed=st.integers(0, 2), passes=st.integers(3, 8))
@example(graph=from_edges(np.zeros(50, np.int64), np.arange(50), 60), parts=4, seed=0, passes=8)
@example(graph=from_edges(np.arange(50), np.zeros(50, np.int64), 60), parts=4, seed=0, passes=3)
@example(graph=from_edges(np.arange(39), np.arange(1, 40), 40), parts=3, seed=0, passes=8)
def test_parts_are_even_on_any_graph(keys: int, graph: Graph, parts: int, seed: int, passes: int) -> None:
    """Hubs, directed chains, loops, isolated nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metis_streamed, "KEYS", keys)
        method = MetisStreamed(passes=passes)
        book = method.assign(graph, parts, seed).check()
    mean = graph.num_nodes / parts
    assert book.sizes().max() <= max(np.ceil(mean), method.slack * mean)
    assert (
        np.array_equal(
            book.part(np.arange(graph.num_nodes)), method.assign(graph, parts, seed).part(np.arange(graph.num_nodes))
        )
        or keys == 64
    )


def test_few_edges_are_cut_whatever_is_kept_of_the_clusters_edges(monkeypatch) -> None:
    graph = sbm(3000, 6)
    best = measure(graph, Metis().assign(graph, 5, 0)).cut_share
    blind = measure(graph, Hash().assign(graph, 5, 0)).cut_share
    ours = measure(graph, MetisStreamed().assign(graph, 5, 0))
    assert ours.cut_share < 1.25 * best < blind / 2
    assert ours.balance("nodes") <= 1.05
    monkeypatch.setattr(metis_streamed, "KEYS", 2000)
    assert measure(graph, MetisStreamed().assign(graph, 5, 0)).cut_share < 1.5 * best


def test_a_graph_on_disk_is_cut_alike_and_never_read_whole(tmp_path, monkeypatch) -> None:
    graph = sbm()
    whole = MetisStreamed().assign(graph, 4, 1)
    on_disk, taken = stored(graph, tmp_path / "store"), []
    read = on_disk.rows
    monkeypatch.setattr(on_disk, "rows", lambda i, j: taken.append(read(i, j)) or taken[-1])
    monkeypatch.setattr(rows, "EDGES", 500)
    assert np.array_equal(MetisStreamed().assign(on_disk, 4, 1).part(np.arange(600)), whole.part(np.arange(600)))
    assert max(len(t.indices) for t in taken) <= 500
    assert sum(len(t.indices) for t in taken) == 8 * graph.num_edges
    assert not np.array_equal(MetisStreamed().assign(graph, 4, 2).part(np.arange(600)), whole.part(np.arange(600)))


@pytest.mark.parametrize("balance", ["edges", "train"])
def test_what_is_asked_for_is_even(balance) -> None:
    """A third of the nodes has nine tenths of the edges; train nodes lie in one block."""
    rng = np.random.default_rng(0)
    near = sbm(1500, 5)
    dense = from_edges(rng.integers(0, 500, 30000), rng.integers(0, 500, 30000), 1500)
    row = np.r_[np.repeat(np.arange(1500), near.in_degree), np.repeat(np.arange(1500), dense.in_degree)]
    graph = from_edges(np.r_[near.indices, dense.indices], row, 1500)
    train = np.arange(300)

    def worst(method: MetisStreamed) -> float:
        quality = measure(graph, method.assign(graph, 3, 0, train=train), train)
        if balance == "edges":
            return max(p.nodes + p.edges for p in quality.parts) * 3 / (graph.num_nodes + graph.num_edges)
        return max(quality.balance("nodes"), quality.balance("train"))

    assert worst(MetisStreamed(balance)) <= 1.06 < 1.2 < worst(MetisStreamed())


def test_senseless_options_are_refused() -> None:
    for options in ({"balance": "halo"}, {"passes": 2}, {"passes": 3.5}, {"passes": True}, {"slack": 0.9}):
        with pytest.raises(InputError, match="expected"):
            MetisStreamed(**options)
    with pytest.raises(InputError, match="there are no train nodes"):
        MetisStreamed("train").assign(sbm(), 2, 0)


@pytest.mark.parametrize("clusters", [1, 16])
def test_a_node_heavier_than_a_part_is_alone(monkeypatch, capfd, clusters: int) -> None:
    """Then all others could be one cluster, and METIS would be left without nodes for a part."""
    monkeypatch.setattr(metis_streamed, "CLUSTERS", clusters)
    hub = from_edges(
        np.r_[np.zeros(4000, np.int64), np.arange(40)], np.r_[np.ones(4000, np.int64), (np.arange(40) + 1) % 40]
    )
    book = MetisStreamed("edges").assign(hub, 4, 0).check()
    assert book.sizes()[book.part(np.array([1]))].tolist() == [1]
    assert capfd.readouterr().out == ""


def test_clusters_without_edges_are_spread_evenly_and_kept_from_metis(monkeypatch) -> None:
    """METIS takes ten times as long with many of them."""
    near, seen = sbm(), []
    graph = Graph(np.r_[near.indptr, np.full(900, near.num_edges)], near.indices)
    cut = metis_streamed.metis
    monkeypatch.setattr(metis_streamed, "metis", lambda among, *rest: seen.append(among) or cut(among, *rest))
    part = MetisStreamed().assign(graph, 4, 0).part(np.arange(1500))
    assert np.diff(seen[0].indptr).min() > 0
    assert np.bincount(part[600:]).max() - np.bincount(part[600:]).min() < 60
    monkeypatch.setattr(MetisStreamed, "_refine", lambda *args: None)
    part = MetisStreamed().assign(graph, 4, 0).part(np.arange(1500))
    assert np.bincount(part[600:]).tolist() == [225] * 4


def test_a_store_is_cut_without_its_graph_and_says_how_far_it_is(tmp_path) -> None:
    """And as in memory: the train nodes are those of the dataset."""
    stored(sbm(), tmp_path / "store")
    lazy, told = open_lazily(tmp_path / "store", "zarr"), []
    method = MetisStreamed("train", passes=3)
    book = book_of(lazy, Cut(method, 3), lambda *seen: told.append(seen))
    assert not {"indptr", "indices"} & vars(lazy.graph).keys(), "read"
    assert told == [(600, 1800), (1200, 1800), (1800, 1800)]
    here = book_of(open_dataset_store(tmp_path / "store"), Cut(method, 3))
    assert np.array_equal(book.part(np.arange(600)), here.part(np.arange(600)))
