"""Partitioners, their quality, and the stage that writes parts."""

import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.stages.partition import base, metis, stage
from millrace.stages.partition.base import Partitioner
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.metis import Metis, MetisWork
from millrace.stages.partition.metis_streamed import MetisStreamed
from millrace.stages.partition.quality import PartCounts, PartitionQuality, measure
from millrace.stages.partition.registry import PARTITIONERS, partitioner
from millrace.stages.partition.stage import open_neighbours, open_part, partition_dataset
from millrace.stages.partition.streaming import Fennel, Ldg
from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import InputError, RunError, StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.partition.partition import extract_partition
from millrace.tests.contracts.graphs import graphs, sbm

ALL = [Contiguous("nodes"), Contiguous("edges"), Hash(), Ldg(), Fennel(passes=2), Metis(), MetisWork(), MetisStreamed()]
NAMES = ["nodes", "edges", "hash", "ldg", "fennel", "metis", "metis-work", "metis-streamed"]


def edge_list(graph: Graph) -> np.ndarray:
    """[E, 2] (source, destination), sorted."""
    pairs = np.stack([graph.indices.astype(np.int64), np.repeat(np.arange(graph.num_nodes), graph.in_degree)], axis=1)
    return pairs[np.lexsort(pairs.T)]


def test_every_partitioner_is_registered_and_follows_the_protocol():
    on_gpus = {"louvain", "leiden"}  # test_partition_gpu.py
    assert {p.name for p in ALL} | on_gpus == set(PARTITIONERS)
    for name in PARTITIONERS:
        assert isinstance(partitioner(name), Partitioner)
        assert partitioner(name).name == name


def test_an_unknown_partitioner_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="did you mean 'metis'"):
        partitioner("metiss")


def test_a_partitioner_takes_its_options_and_refuses_others():
    assert partitioner("ldg", passes=3, balance=None) == Ldg(passes=3)
    assert partitioner("contiguous", balance="nodes") == Contiguous("nodes")
    with pytest.raises(InputError, match=r"'metis' has no option 'balance'; .* one of contiguous, metis-streamed$"):
        partitioner("metis", balance="train")
    with pytest.raises(InputError, match="balance is 'train'; expected 'nodes' or 'edges'"):
        partitioner("contiguous", balance="train")
    with pytest.raises(InputError, match=r"'hash' has no option 'halo'; leave it out$"):
        partitioner("hash", halo=1)


@pytest.mark.parametrize("method", ALL, ids=NAMES)
@pytest.mark.parametrize("parts", [0, -1, 1.5, "2", True, None, 10**9])
def test_a_senseless_number_of_parts_is_refused(method, parts):
    with pytest.raises(InputError, match="expected a whole number"):
        method.assign(from_edges([0], [1]), parts, 0)


def test_an_unknown_balance_is_refused():
    with pytest.raises(InputError, match="'nodes' or 'edges'"):
        Contiguous("halo")


@pytest.mark.parametrize("method", ALL, ids=NAMES)
@settings(max_examples=25, deadline=None)
@given(graph=graphs(), parts=st.integers(1, 15), seed=st.integers(0, 3))
@example(graph=from_edges([], [], 0), parts=3, seed=0)
@example(graph=from_edges([], [], 5), parts=2, seed=0)
@example(graph=from_edges([0, 0, 0], [0, 0, 0], 1), parts=1, seed=0)
@example(graph=from_edges([0, 1, 1], [1, 0, 0], 3), parts=7, seed=0)
def test_each_node_in_one_part_each_edge_kept_halo_exact(method, graph, parts, seed):
    before = graph.indices.copy()
    book = method.assign(graph, parts, seed).check()
    assert np.array_equal(graph.indices, before), "the graph was changed"
    assert (book.num_parts, book.num_nodes) == (parts, graph.num_nodes)
    owned = [book.owned(p) for p in range(parts)]
    assert np.array_equal(np.sort(np.concatenate(owned)), np.arange(graph.num_nodes))
    edges = []
    for p, nodes in enumerate(owned):
        part = extract_partition(graph, book, p).check()
        dst = np.repeat(part.owned, np.diff(part.indptr))
        edges.append(np.stack([part.nodes[part.indices], dst], axis=1))
        sources = {int(u) for v in nodes for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]}
        assert part.halo.tolist() == sorted(sources - set(nodes.tolist()))
    edges = np.concatenate(edges)
    assert np.array_equal(edges[np.lexsort(edges.T)], edge_list(graph))


@pytest.mark.parametrize("method", ALL, ids=NAMES)
@settings(max_examples=20, deadline=None)
@given(graph=graphs(), parts=st.integers(1, 6), data=st.data())
def test_quality_equals_a_count_by_hand(method, graph, parts, data):
    train = np.array(
        sorted(data.draw(st.sets(st.integers(0, max(0, graph.num_nodes - 1)), max_size=graph.num_nodes))), np.int64
    )
    book = method.assign(graph, parts, 0)
    quality = measure(graph, book, train)
    owner = {int(v): p for p in range(parts) for v in book.owned(p)}
    edges = [(int(u), int(v)) for u, v in edge_list(graph)]
    for p, got in enumerate(quality.parts):
        mine = [(u, v) for u, v in edges if owner[v] == p]
        cut = [(u, v) for u, v in mine if owner[u] != p]
        want = PartCounts(
            sum(o == p for o in owner.values()),
            sum(owner[int(v)] == p for v in train),
            len(mine),
            len(cut),
            len({u for u, _ in cut}),
        )
        assert got == want
    cut_edges = sum(owner[u] != owner[v] for u, v in edges)
    assert quality.cut_share == pytest.approx(cut_edges / len(edges) if edges else 0)
    for what, total in (("nodes", graph.num_nodes), ("edges", len(edges)), ("train", len(train))):
        largest = max(getattr(c, what) for c in quality.parts)
        assert quality.balance(what) == pytest.approx(largest / (total / parts) if total else 1)
    halo = sum(c.halo for c in quality.parts)
    assert quality.halo_share == pytest.approx(halo / graph.num_nodes if graph.num_nodes else 0)
    assert PartitionQuality.from_record(quality.as_record()) == quality


def test_the_table_has_short_lines_and_sums_up_many_parts():
    quality = measure(sbm(), Hash().assign(sbm(), 40, 0))
    lines = quality.table().splitlines()
    assert max(map(len, lines)) <= 70
    assert len(lines) < 25
    assert "and 24 more" in quality.table()
    assert f"{quality.cut_share:.1%}" in quality.table()


def test_ranges_are_balanced():
    graph = sbm()
    nodes = measure(graph, Contiguous("nodes").assign(graph, 7, 0))
    assert {p.nodes for p in nodes.parts} == {600 // 7, 600 // 7 + 1}
    hub = from_edges(np.arange(1000) % 500, np.zeros(1000, np.int64), 500)
    work = [p.nodes + p.edges for p in measure(hub, Contiguous("edges").assign(hub, 3, 0)).parts]
    assert work[0] == 1001, "the hub's row stays whole"
    assert work[1] == 0, "it has two parts' share"
    even = [p.nodes + p.edges for p in measure(graph, Contiguous("edges").assign(graph, 7, 0)).parts]
    assert max(even) - min(even) <= 2 * (1 + graph.in_degree.max())


def test_hash_depends_on_seed_and_id_only():
    a, b = from_edges([], [], 5000), from_edges([0, 1], [1, 2], 4000)
    book = Hash().assign(a, 4, 7)
    assert np.array_equal(book.part(np.arange(4000)), Hash().assign(b, 4, 7).part(np.arange(4000)))
    assert not np.array_equal(book.part(np.arange(5000)), Hash().assign(a, 4, 8).part(np.arange(5000)))
    # 5 sigma of a binomial.
    assert np.abs(book.sizes() - 1250).max() < 5 * np.sqrt(5000 * 0.25 * 0.75)


def test_metis_cuts_less_than_hash_and_keeps_balance():
    graph = sbm()
    by_metis, by_hash = (measure(graph, m.assign(graph, 4, 0)) for m in (Metis(), Hash()))
    assert by_metis.cut_share < by_hash.cut_share / 3
    assert by_metis.balance("nodes") < 1.1


def test_metis_work_balances_nodes_and_edges_together():
    """A third of the nodes has nine tenths of the edges."""
    rng = np.random.default_rng(0)
    dst = np.concatenate([rng.integers(0, 200, 5400), rng.integers(200, 600, 600)])
    graph = from_edges(np.sort(rng.integers(0, 600, len(dst))), dst, 600)

    def worst(m: Metis) -> float:
        part = m.assign(graph, 2, 0).part(np.arange(600))
        return float(np.bincount(part, graph.in_degree + graph.num_edges / 600).max() / graph.num_edges)

    assert worst(MetisWork()) < 1.05 < worst(Metis())


def test_a_hub_that_outweighs_a_part_leaves_none_empty(capfd):
    edges = np.array([(s, 0) for s in range(1, 24)] + [(s, s % 23 + 1) for s in range(1, 24)])
    graph = from_edges(*edges.T, 24)
    book = MetisWork().assign(graph, 8, 0)
    assert np.bincount(book.part(np.arange(24)), minlength=8).min() > 0
    assert capfd.readouterr().out == "", "METIS says on the standard output that it failed"


def test_metis_of_a_large_graph_runs_in_a_process_of_its_own(monkeypatch):
    graph, ids = sbm(600, 3, seed=1), np.arange(600)
    here = MetisWork().assign(graph, 3, 5).part(ids)
    monkeypatch.setattr(metis, "APART_EDGES", 1)
    monkeypatch.setattr(metis, "metis", None)  # of this process
    np.testing.assert_array_equal(MetisWork().assign(graph, 3, 5).part(ids), here)


@pytest.mark.parametrize(
    ("script", "phrase"),
    [
        ("kill -9 $$", "ended by SIGKILL while it cut 600 nodes and 23,936 edges into 3 parts; it may take 0.0 GiB"),
        ("cat > /dev/null; echo -n MemoryError: it is full > /dev/fd/$4; exit 1", "ended by MemoryError: it is full"),
        ("exit 7", "ended by exit code 7 .*use the method metis-streamed"),
    ],
)
def test_the_end_of_the_process_of_metis_is_said(tmp_path, monkeypatch, script, phrase):
    (program := tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(metis, "APART_EDGES", 1)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(RunError, match=phrase):
        Metis().assign(sbm(600, 3, seed=1), 3, 5)


def test_metis_weighs_multi_edges():
    """A ring of 40 in which every second edge is there 50 times: an even cut severs only single edges."""
    ring = np.arange(40)
    times = np.where(ring % 2, 1, 50)
    graph = from_edges(np.repeat(ring, times), np.repeat((ring + 1) % 40, times), 40)
    assert measure(graph, Metis().assign(graph, 2, 0)).total("cut_edges") == 2


def test_metis_is_a_function_of_its_seed():
    graph = sbm()
    first, again = (Metis().assign(graph, 3, 5).part(np.arange(600)) for _ in range(2))
    assert np.array_equal(first, again)


def toy(seed: int = 0, multilabel: bool = False, nodes: int = 60) -> Dataset:
    rng = np.random.default_rng(seed)
    n = nodes
    graph = from_edges(
        rng.integers(n, size=300), rng.integers(n, size=300), n, edge_weight=rng.random(300), keep_edge_id=True
    )
    labels = (rng.random((n, 3)) < 0.5).astype(np.float32) if multilabel else rng.integers(4, size=n)
    order = rng.permutation(n)
    split = Split(*(np.sort(part) for part in np.split(order, [n // 3, n // 2])))
    features = ArrayFeatures(rng.random((n, 5), np.float32))
    return Dataset(
        "toy", graph, features, labels, split, 3 if multilabel else 4, "multilabel" if multilabel else "multiclass"
    ).check()


def same_parts(dataset: Dataset, out, parts: int) -> None:
    seen = []
    for p in range(parts):
        partition, rows = open_part(out, p)
        partition.check()
        assert partition.rank == p
        seen.append(partition.owned)
        assert np.array_equal(
            rows.features.gather(np.arange(partition.num_owned)), dataset.features.gather(partition.owned)
        )
        assert np.array_equal(rows.labels, dataset.labels[partition.owned])
        for name in ("train", "val", "test"):
            globally = partition.owned[getattr(rows.split, name)]
            assert np.array_equal(globally, np.intersect1d(partition.owned, getattr(dataset.split, name)))
        rows.split.check(partition.num_owned)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(dataset.num_nodes))


# No method sees labels: one of them writes labels that are vectors.
@pytest.mark.parametrize(
    ("method", "multilabel"), [*((m, False) for m in ALL), (ALL[0], True)], ids=[*NAMES, f"{NAMES[0]}-multilabel"]
)
def test_the_stage_writes_every_row_once(tmp_path, method, multilabel):
    dataset, steps = toy(multilabel=multilabel), []
    report = partition_dataset(dataset, method, 3, tmp_path / "out", 1, on_progress=lambda *a: steps.append(a))
    assert report.parts_written == 3
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert report.quality == measure(dataset.graph, method.assign(dataset.graph, 3, 1), dataset.split.train)
    same_parts(dataset, tmp_path / "out", 3)
    again = partition_dataset(dataset, method, 3, tmp_path / "out", 1)
    assert (again.parts_written, again.quality) == (0, report.quality)


@pytest.mark.parametrize("method", ALL, ids=NAMES)
def test_as_many_parts_as_nodes_are_written_and_more_are_refused(tmp_path, method):
    few = toy(nodes=8)
    with pytest.raises(InputError, match="parts is 9, but the graph has 8 nodes; expected at most one per node"):
        partition_dataset(few, method, 9, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    if method.name == "hash":
        # Blind, it leaves parts empty even so.
        partition_dataset(few, method, 8, tmp_path / "out")
        same_parts(few, tmp_path / "out", 8)


@pytest.mark.parametrize("where", ["between", "inside"])
def test_an_interrupted_stage_is_visibly_incomplete_and_a_rerun_completes(tmp_path, monkeypatch, where):
    out, dataset = tmp_path / "out", toy()

    def stop_after_first(done: int, total: int) -> None:
        if where == "between":
            raise KeyboardInterrupt

    write, calls = stage.write_store, []

    def stop_in_second(path, *args, **kwargs):
        calls.append(path)
        if where == "inside" and len(calls) == 2:
            raise KeyboardInterrupt
        return write(path, *args, **kwargs)

    monkeypatch.setattr(stage, "write_store", stop_in_second)
    with pytest.raises(KeyboardInterrupt):
        partition_dataset(dataset, Metis(), 3, out, on_progress=stop_after_first)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="never committed"):
        open_part(out, 0)
    (out / ".writing-part-0002-dead").mkdir()
    assert partition_dataset(dataset, Metis(), 3, out).parts_written == 2
    assert not list(out.rglob(".*")), "leftovers"
    same_parts(dataset, out, 3)


@pytest.mark.parametrize("complete", [True, False])
def test_parts_made_from_something_else_are_refused(tmp_path, complete):
    out = tmp_path / "out"
    partition_dataset(toy(), Hash(), 2, out)
    if not complete:
        (out / "manifest.json").unlink()
    for other in ((toy(1), Hash(), 2, 0), (toy(), Metis(), 2, 0), (toy(), Hash(), 3, 0), (toy(), Hash(), 2, 1)):
        with pytest.raises(StoreError, match="made from something else"):
            partition_dataset(other[0], other[1], other[2], out, other[3])


def test_a_part_that_is_not_there_is_refused(tmp_path):
    partition_dataset(toy(), Hash(), 2, tmp_path / "out")
    for p in (-1, 2):
        with pytest.raises(StoreError, match="has parts 0 to 1"):
            open_part(tmp_path / "out", p)


def test_the_stage_refuses_no_parts_and_no_dataset(tmp_path):
    with pytest.raises(InputError, match="dataset is a str; expected a Dataset"):
        partition_dataset("digits", Hash(), 2, tmp_path / "out")
    with pytest.raises(InputError, match="expected a whole number"):
        partition_dataset(toy(), Hash(), 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("weighted", [False, True])
def test_what_others_want_of_a_part_is_there_without_its_edges(tmp_path, monkeypatch, weighted):
    dataset = toy()
    graph = dataset.graph
    weight = np.random.default_rng(1).random(graph.num_edges).astype(np.float32) if weighted else None
    dataset = replace(dataset, graph=Graph(graph.indptr, graph.indices, weight))
    partition_dataset(dataset, Hash(), 3, tmp_path / "new")
    if weighted:
        monkeypatch.setattr(stage, "WEIGHTED", "not written then")
        partition_dataset(dataset, Hash(), 3, tmp_path / "old")
        monkeypatch.undo()
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    want = np.bincount(rows, weight, minlength=graph.num_nodes)
    for part in range(3):
        owned = open_part(tmp_path / "new", part)[0].owned
        found = [open_neighbours(tmp_path / "old", part, loops=False)] if weighted else []
        for array in ("indices", "indptr", "halo", *(["edge_weight"] if weighted else [])):
            shutil.rmtree(tmp_path / "new" / f"part-{part:04d}" / "graph" / "arrays" / array)
        with pytest.raises(StoreError):
            open_part(tmp_path / "new", part)
        for features, degree in (open_neighbours(tmp_path / "new", part, loops=False), *found):
            np.testing.assert_array_equal(features.gather(np.arange(len(owned))), dataset.features.gather(owned))
            np.testing.assert_allclose(degree, want[owned], rtol=1e-12)
            assert degree.dtype == np.float64


def test_feature_rows_are_read_by_bounded_slices(tmp_path, monkeypatch):
    """Never all rows of a part at once, once a part is larger than what is handed to Zarr at a time."""
    from millrace.storage.store import arrays

    monkeypatch.setattr(arrays, "CHUNK_BYTES", 40)
    monkeypatch.setattr(arrays, "CHUNKS_PER_WRITE", 2)
    dataset, largest = toy(), []

    class Watched(ArrayFeatures):
        def gather(self, ids, out=None):
            largest.append(len(ids))
            return super().gather(ids, out)

    watched = Dataset("toy", dataset.graph, Watched(dataset.features.rows), dataset.labels, dataset.split, 4)
    monkeypatch.setattr(base, "dataset_fingerprint", lambda d: {"graph": "g"})
    partition_dataset(watched, Contiguous("nodes"), 2, tmp_path / "out")
    assert sum(largest) == 60
    assert max(largest) == 4
