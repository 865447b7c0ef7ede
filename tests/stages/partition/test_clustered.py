"""Parts of communities that GPUs find, with RAPIDS stood in for; and how communities are packed."""

import os
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace import open_dataset
from millrace.stages import rapids as machine
from millrace.stages.partition import rapids as calls
from millrace.stages.partition.base import Partitioner
from millrace.stages.partition.clustered import Leiden, Louvain
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.metis import MetisWork, undirected
from millrace.stages.partition.packing import lay_out, pack
from millrace.stages.partition.quality import measure
from millrace.stages.partition.registry import partitioner
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, MissingExtraError, RunError
from millrace.storage.graph import from_edges
from millrace.storage.partition.book import open_book
from millrace.tests.contracts import rapids
from millrace.tests.contracts.command import command
from millrace.tests.contracts.graphs import graphs, sbm

METHODS = ["louvain", "leiden"]
CUT = "sbm:nodes=300,classes=3"


@st.composite
def clusterings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A cluster and a weight for each node."""
    nodes = draw(st.integers(0, 60))
    cluster = draw(st.lists(st.integers(-5, 20), min_size=nodes, max_size=nodes))
    weight = draw(st.lists(st.integers(0, 1000), min_size=nodes, max_size=nodes))
    return np.array(cluster, np.int64), np.array(weight, np.int64)


def heaviest(cluster: np.ndarray, weight: np.ndarray) -> int:
    return max((int(weight[cluster == c].sum()) for c in set(cluster.tolist())), default=0)


@given(clustering=clusterings(), parts=st.integers(1, 9))
@example(clustering=(np.empty(0, np.int64), np.empty(0, np.int64)), parts=3)
def test_whole_clusters_make_parts_within_one_cluster_of_each_other(clustering, parts):
    cluster, weight = clustering
    part_of = pack(cluster, weight, parts)
    assert part_of.dtype == np.int32 and part_of.shape == cluster.shape
    assert not len(part_of) or (part_of.min() >= 0 and part_of.max() < parts)
    for c in set(cluster.tolist()):
        assert len(set(part_of[cluster == c].tolist())) == 1, "a cluster was torn"
    load = np.bincount(part_of, weight, parts)
    assert load.max() - load.min() <= heaviest(cluster, weight)
    assert load.max() <= load.mean() + heaviest(cluster, weight)


@given(clustering=clusterings(), parts=st.integers(1, 9), seed=st.integers(0, 99))
def test_what_clusters_are_called_does_not_matter(clustering, parts, seed):
    cluster, weight = clustering
    names = np.random.default_rng(seed).permutation(1000)
    assert np.array_equal(pack(cluster, weight, parts), pack(names[cluster + 5], weight, parts))
    fine = cluster + np.arange(len(cluster)) % 3 * 30
    renamed = lay_out(names[cluster + 5], names[fine + 5], weight, parts)
    assert np.array_equal(lay_out(cluster, fine, weight, parts), renamed)


@given(clustering=clusterings(), parts=st.integers(1, 9))
@example(clustering=(np.empty(0, np.int64), np.empty(0, np.int64)), parts=3)
def test_clusters_laid_end_to_end_make_parts_within_one_node_of_the_mean(clustering, parts):
    cluster, weight = clustering
    part_of = lay_out(cluster, np.arange(len(cluster)), weight, parts)
    assert part_of.dtype == np.int32 and part_of.shape == cluster.shape
    assert not len(part_of) or (part_of.min() >= 0 and part_of.max() < parts)
    load = np.bincount(part_of, weight, parts)
    assert load.max() <= load.mean() + weight.max(initial=0)
    # Neighbours on the line share at most one cluster: P parts tear at most P - 1.
    torn = sum(len(set(part_of[cluster == c].tolist())) - 1 for c in set(cluster.tolist()))
    assert torn <= parts - 1


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_parts_cut_little_and_are_balanced(monkeypatch, method, gpus):
    rapids.install(monkeypatch, gpus)
    graph = sbm(nodes=1200, blocks=12)
    cut = partitioner(method)
    assert isinstance(cut, Partitioner)
    book = cut.assign(graph, 4, 0).check()
    quality, blind = measure(graph, book), measure(graph, Hash().assign(graph, 4, 0))
    assert quality.cut_share < 0.5 * blind.cut_share
    work = np.bincount(book.part(np.arange(1200)), MetisWork().node_weights(graph), 4)
    assert work.max() <= 1.1 * work.mean()
    assert np.array_equal(book.part(np.arange(1200)), cut.assign(graph, 4, 0).part(np.arange(1200)))


def test_one_gpu_and_several_find_the_same_where_the_algorithm_does(monkeypatch):
    graph, books, before = sbm(nodes=400, blocks=8), [], dict(os.environ)
    for gpus in (1, 2, 3):
        with monkeypatch.context() as m:
            rapids.install(m, gpus)
            books.append(Louvain().assign(graph, 3, 0).part(np.arange(400)))
            assert not rapids.Comms.initialized
            assert os.environ == before
    assert np.array_equal(books[0], books[1]) and np.array_equal(books[0], books[2])


@pytest.mark.parametrize("method", [Louvain(), Leiden()], ids=METHODS)
@settings(max_examples=25, deadline=None)
@given(graph=graphs(), parts=st.integers(1, 15), seed=st.integers(0, 3))
@example(graph=from_edges([], [], 0), parts=3, seed=0)
@example(graph=from_edges([0, 0, 0], [0, 0, 0], 1), parts=1, seed=0)
def test_each_node_is_in_one_part(method, graph, parts, seed):
    with pytest.MonkeyPatch.context() as m:
        rapids.install(m)
        book = method.assign(graph, parts, seed).check()
    assert (book.num_parts, book.num_nodes) == (parts, graph.num_nodes)


@settings(max_examples=25, deadline=None)
@given(graph=graphs(), cut=st.floats(0, 1))
def test_ranges_of_rows_make_the_pairs_that_metis_sees(graph, cut):
    nodes = graph.num_nodes
    ranges = [(0, at := int(cut * nodes)), (at, nodes)]
    with pytest.MonkeyPatch.context() as m:
        rapids.install(m)
        frames = [calls._pairs(graph.rows(a, b), a, nodes, graph.num_edges) for a, b in ranges]
        found = calls._merged(rapids.concat(frames), nodes)
    pairs = scipy.sparse.coo_array(scipy.sparse.triu(undirected(graph.indptr, graph.indices), 1))
    for name, want in (("low", pairs.row), ("high", pairs.col), ("weight", pairs.data)):
        assert np.array_equal(found[name].to_numpy(), want)
    joined = np.logical_or(*(calls._joined(graph.rows(a, b), a, nodes) for a, b in ranges))
    assert np.array_equal(np.flatnonzero(joined), np.unique([pairs.row, pairs.col]))
    assert np.array_equal(np.concatenate([calls._degrees(graph.rows(a, b)) for a, b in ranges]), graph.in_degree)


@settings(max_examples=50, deadline=None)
@given(graph=graphs(), count=st.integers(1, 6), room=st.integers(0, 5))
def test_pieces_are_merged_in_frames_that_never_have_the_rows_of_all(graph, count, room):
    """No frame that the GPU makes has more rows than the limit, if the pairs themselves have not."""
    v = graph.num_nodes
    cuts = [v * i // count for i in range(count + 1)]
    with pytest.MonkeyPatch.context() as m:
        rapids.install(m)
        whole = calls._pairs(graph.rows(0, v), 0, v, graph.num_edges)
        limit = max(len(whole), count, 2) + room
        for home, name in ((calls, "ROWS"), (calls, "EDGES"), (rapids.Limits, "rows")):
            m.setattr(home, name, limit)
        frames = [calls._pairs(graph.rows(a, b), a, v, graph.num_edges) for a, b in zip(cuts, cuts[1:])]
        merged = calls._all_merged(frames, v)
        m.setattr(calls, "ROWS", max(count, len(whole) - 1, 2))
        if len(whole) > calls.ROWS:
            with pytest.raises(InputError, match=f"would cut {len(whole)} pairs of neighbours, but cuGraph takes"):
                calls._all_merged(frames, v)
    for name in ("low", "high", "weight"):
        assert np.array_equal(merged[name].to_numpy(), whole[name].to_numpy())


@pytest.mark.parametrize("gpus", [1, 2])
def test_more_pairs_than_a_frame_has_are_refused_with_the_way_out(tmp_path, monkeypatch, gpus):
    """A stored graph of more edges than the limit fits if its pairs do; on several GPUs no frame has them all."""
    write_dataset(tmp_path / "store", data := open_dataset(CUT))
    pairs = scipy.sparse.triu(undirected(data.graph.indptr, data.graph.indices), 1).nnz
    rapids.install(monkeypatch, gpus)
    monkeypatch.setattr(calls, "EDGES", data.graph.num_edges // 5)
    words = ("partition", tmp_path / "store", "--parts", 2, "--method", "leiden", "--out")
    for limit in (pairs, pairs - 1):
        for home, name in ((calls, "ROWS"), (rapids.Limits, "rows"), (rapids.Limits, "edges")):
            monkeypatch.setattr(home, name, limit)
        got, _, err = command(*words, tmp_path / f"parts{limit}")
        fits = limit == pairs or gpus > 1
        assert got == (0 if fits else 2), err
        assert (tmp_path / f"parts{limit}").exists() == fits
    said = " ".join(err.split())
    assert fits or f"{pairs} pairs of neighbours, but cuGraph takes at most {limit} on one; cut on several" in said


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc: out_of_memory"), RuntimeError("non-success value")])
def test_memory_of_gpus_that_is_too_small_is_told_with_the_way_out(tmp_path, monkeypatch, gpus, error):
    def full(*_, **__):
        raise error

    rapids.install(monkeypatch, gpus)
    monkeypatch.setattr("cugraph.leiden" if gpus == 1 else "cugraph.dask.leiden", full)
    code, _, err = command("partition", CUT, "--parts", 2, "--method", "leiden", "--out", tmp_path / "parts")
    said = " ".join(err.split())
    assert code == 3 and f"{type(error).__name__}: {error}; if the GPUs' memory is too small, cut on more" in said
    assert "smaller model" not in said and "report" not in said


def test_communities_that_do_not_fit_are_cut_where_smaller_ones_end(monkeypatch):
    rapids.install(monkeypatch)
    graph = sbm(nodes=1200, blocks=3)
    part_of = Louvain().assign(graph, 4, 0)
    work = np.bincount(part_of.part(np.arange(1200)), MetisWork().node_weights(graph), 4)
    assert work.max() <= 1.02 * work.mean()
    metis, blind = (measure(graph, m.assign(graph, 4, 0)).cut_share for m in (MetisWork(), Hash()))
    assert measure(graph, part_of).cut_share < (metis + blind) / 2


def test_a_node_without_community_is_an_error(monkeypatch):
    rapids.install(monkeypatch)
    graph = sbm(nodes=100)
    monkeypatch.setattr(calls, "_on_host", lambda frame: (np.arange(99), np.zeros(99, np.int32)))
    with pytest.raises(RunError, match="no community to 1 of 100 nodes"):
        Louvain().assign(graph, 2, 0)


@pytest.mark.parametrize(("option", "told"), [({"resolution": 0}, "above 0"), ({"slack": 1}, "more than 1")])
def test_senseless_options_are_refused(option, told):
    with pytest.raises(InputError, match=told):
        Louvain(**option)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("gpus", "processes"), [(1, False), (1, True), (2, True)])
def test_a_cluster_of_dask_cuda_that_is_named_does_the_work(tmp_path, monkeypatch, gpus, processes):
    """No other is started, and it goes on. One whose workers have no GPU of their own is not taken."""
    write_dataset(tmp_path / "store", open_dataset(CUT))
    with rapids.named_cluster(monkeypatch, gpus, processes=processes) as (own, client):
        words = ("partition", tmp_path / "store", "--parts", 2, "--method", "leiden", "--set", "executor=dask")
        sets = ("--set", f"cluster.scheduler={own.scheduler_address}")
        code, _, err = command(*words, *sets, "--out", tmp_path / "parts")
        assert code == 0, err
        with monkeypatch.context() as patch, machine.named_cluster(client):
            patch.setattr(machine, "_own_gpu", lambda needed: None)
            assert machine.gpus_named(()) == 0
    book = open_book(tmp_path / "parts" / "book")
    alone = Leiden().assign(open_dataset(CUT).graph, 2, 0)
    assert np.array_equal(book.part(np.arange(300)), alone.part(np.arange(300)))


@pytest.mark.parametrize("parts", [0, True, "2"])
def test_a_senseless_number_of_parts_is_refused(parts):
    with pytest.raises(InputError, match="expected a whole number"):
        Leiden().assign(from_edges([0], [1]), parts, 0)


def test_what_is_missing_is_named(monkeypatch):
    graph = from_edges([0], [1])
    rapids.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "cugraph")
    with pytest.raises(
        MissingExtraError,
        match=r"RAPIDS, but cugraph cannot be found; use 'metis-work', or pip install '\.\[gpu\]'",
    ):
        Louvain().assign(graph, 2, 0)
    rapids.install(monkeypatch, 2)
    monkeypatch.delitem(sys.modules, "raft_dask")
    with pytest.raises(MissingExtraError, match="raft_dask cannot be found"):
        Louvain().assign(graph, 2, 0)
    rapids.install(monkeypatch, 0)
    with pytest.raises(InputError, match="but CUDA says cudaErrorInsufficientDriver"):
        Leiden().assign(graph, 2, 0)
    rapids.install(monkeypatch, -1)
    with pytest.raises(InputError, match="but there is none; use 'metis-work'"):
        Leiden().assign(graph, 2, 0)


@pytest.mark.parametrize("method", METHODS)
def test_the_command_refuses_in_one_sentence_before_anything_is_written(tmp_path, method):
    if all(machine.find_spec(m) for m in machine.NEEDED):
        pytest.skip("RAPIDS is here")
    partition = ("partition", CUT, "--parts", 2, "--method", method, "--out", tmp_path / "parts")
    run = (
        "run",
        "--dataset",
        CUT,
        "--system",
        "sar",
        "--set",
        f"partition.method={method}",
        "--epochs",
        1,
        "--out",
        tmp_path / "run",
    )
    for words in (partition, run):
        code, out, err = command(*words)
        assert code == 2
        assert f"partition.method '{method}' needs an NVIDIA GPU and RAPIDS" in " ".join(err.split())
        assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", METHODS)
def test_the_command_cuts_where_there_are_gpus(tmp_path, monkeypatch, method):
    rapids.install(monkeypatch)
    words = ("partition", CUT, "--parts", 2, "--method", method, "--out", tmp_path / "parts")
    code, out, err = command(*words)
    assert code == 0, err
    assert "edges cut" in out
    monkeypatch.undo()
    # A finished folder is only read, with or without a GPU.
    assert command(*words)[0] == 0


def test_clients_that_could_not_be_found_again_are_refused(tmp_path, monkeypatch):
    rapids.install(monkeypatch)
    sets = ("--set", "retexo.clients=5", "--set", "partition.method=louvain")
    code, _, err = command(
        "run", "--dataset", CUT, "--system", "retexo", *sets, "--epochs", 1, "--out", tmp_path / "run"
    )
    assert code == 2
    assert "'louvain' may cut differently each" in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_a_run_that_began_where_there_was_a_gpu_is_resumed_without_one(tmp_path, monkeypatch):
    rapids.install(monkeypatch)
    words = (
        "run",
        "--dataset",
        CUT,
        "--system",
        "sar",
        "--set",
        "partition.method=leiden",
        "--layers",
        2,
        "--out",
        tmp_path / "run",
    )
    code, _, err = command(*words, "--epochs", 1)
    assert code == 0, err
    monkeypatch.undo()
    code, _, err = command(*words, "--epochs", 2, "--resume")
    assert code == 0, err
