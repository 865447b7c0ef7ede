"""Datasets of links: made splits, given pairs, what is held out, and bad input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.pipeline.datasets import ReadOptions
from millrace.pipeline.datasets.links import Relation, distinct_pairs, without_pairs
from millrace.storage.dataset import SPLITS
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.links.pairs import given_negatives, is_symmetric
from millrace.tests.contracts.graphs import graphs


def dataset_of(graph, names=None):
    n = graph.num_nodes
    split = mr.Split(np.arange(n), np.empty(0, np.int64), np.empty(0, np.int64))
    rows = ArrayFeatures(np.ones((n, 1), np.float32))
    return mr.Dataset("small", graph, rows, np.zeros(n, np.int64), split, 1, node_names=names)


def path(n=40, both=True):
    ends = np.stack([np.arange(n - 1), np.arange(1, n)])
    return dataset_of(mr.from_edges(*(np.hstack([ends, ends[::-1]]) if both else ends), n))


def ends_of(graph):
    return list(zip(graph.indices.tolist(), np.repeat(np.arange(graph.num_nodes), graph.in_degree).tolist()))


def pairs_of(data, name):
    return [tuple(p) for p in data.labels[getattr(data.split, name), :2].tolist()]


@given(graphs(), st.integers(0, 3), st.booleans())
def test_a_made_split_names_each_edge_once_and_holds_out_val_and_test(graph, seed, symmetric):
    if symmetric:
        ends = np.array(ends_of(graph), np.int64).reshape(-1, 2)
        graph = mr.from_edges(np.r_[ends[:, 0], ends[:, 1]], np.r_[ends[:, 1], ends[:, 0]], graph.num_nodes)
    both = is_symmetric(graph)
    edges = {(min(e), max(e)) if both else e for e in ends_of(graph) if e[0] != e[1]}
    data = dataset_of(graph)
    if len(edges) < 4:
        with pytest.raises(InputError, match="leave none for"):
            mr.link_dataset(data, split="fraction:0.1,0.1", seed=seed)
        return
    links = mr.link_dataset(data, split="fraction:0.5,0.25", seed=seed)
    sets = {name: pairs_of(links, name) for name in SPLITS}
    assert sorted(p for pairs in sets.values() for p in pairs) == sorted(edges)
    held = {*sets["val"], *sets["test"]}
    held |= {(v, u) for u, v in held} if both else set()
    assert sorted(ends_of(links.graph)) == sorted(e for e in ends_of(graph) if e not in held)
    again = mr.link_dataset(data, split="fraction:0.5,0.25", seed=seed)
    assert np.array_equal(again.labels, links.labels)


@given(graphs(), st.booleans())
def test_edges_taken_out_keep_the_arrays_of_the_others(graph, symmetric):
    relations = [Relation(None, graph.types, symmetric)]
    pairs = distinct_pairs(graph, relations)[::2]
    gone = {tuple(p) for p in pairs.tolist()} | ({tuple(p[::-1]) for p in pairs.tolist()} if symmetric else set())
    weighted = mr.from_edges(
        graph.indices,
        np.repeat(np.arange(graph.num_nodes), graph.in_degree),
        graph.num_nodes,
        edge_weight=np.arange(graph.num_edges),
        keep_edge_id=True,
    )
    left = without_pairs(weighted, pairs, relations).check()
    assert left.edge_weight.tolist() == [i for i, e in enumerate(ends_of(weighted)) if e not in gone]
    assert left.edge_id.tolist() == left.edge_weight.tolist()


def test_given_pairs_from_arrays_and_files_are_the_same(tmp_path):
    sets = {
        "train": [[0, 1], [5, 6]],
        "val": [[3, 2]],
        "test": [[8, 9], [9, 8]],
        "val_negatives": [[0, 9], [1, 9]],
        "train_negatives": [[3, 9]],
    }
    links = mr.link_dataset(path(), pairs=sets)
    assert pairs_of(links, "val") == [(3, 2)] and pairs_of(links, "test") == [(8, 9)]
    assert any("repeated pair" in note for note in links.notes)
    assert given_negatives(links.labels, "val").tolist() == sets["val_negatives"]
    assert not {(2, 3), (3, 2), (8, 9), (9, 8)} & set(ends_of(links.graph))
    assert links.graph.num_edges == path().graph.num_edges - 4
    np.savez(tmp_path / "p.npz", **{k: np.array(v) for k, v in sets.items()})
    rows = [(u, v, name.split("_")[0], int("_" not in name)) for name, rows in sets.items() for u, v in rows]
    (tmp_path / "p.csv").write_text("src,dst,split,label\n" + "".join(f"{u},{v},{s},{y}\n" for u, v, s, y in rows))
    for file in ("p.npz", "p.csv"):
        read = mr.link_dataset(path(), pairs=tmp_path / file)
        assert np.array_equal(read.labels, links.labels) and np.array_equal(read.graph.indices, links.graph.indices)


def test_without_train_pairs_the_edges_that_are_left_train():
    links = mr.link_dataset(path(5), pairs={"test": [[0, 1]]})
    assert pairs_of(links, "train") == [(1, 2), (2, 3), (3, 4)] and not len(links.split.val)
    directed = mr.link_dataset(path(5, both=False), pairs={"test": [[1, 0]]})
    # The reverse of an edge is another pair in a directed graph.
    assert pairs_of(directed, "train") == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_names_are_ends(tmp_path):
    data = dataset_of(path(4).graph, ["a", "b", "c", "007"])
    links = mr.link_dataset(data, pairs={"test": [["a", "b"]], "train": [["c", "007"]]})
    assert pairs_of(links, "test") == [(0, 1)] and pairs_of(links, "train") == [(2, 3)]
    (tmp_path / "p.csv").write_text("source,target,split\nc,007,train\na,b,test\n")
    assert np.array_equal(mr.link_dataset(data, pairs=tmp_path / "p.csv").labels, links.labels)
    with pytest.raises(InputError, match=r"1 name \(first: 'z'\) is no node's"):
        mr.link_dataset(data, pairs={"train": [["a", "z"]]})


def test_a_store_keeps_pairs_and_opens_lazily(tmp_path):
    links = mr.link_dataset(path())
    write_dataset(tmp_path / "store", links)
    for opened in (open_dataset_store(tmp_path / "store"), open_lazily(tmp_path / "store").read()):
        assert opened.task == "link" and np.array_equal(opened.labels, links.labels)
        assert np.array_equal(opened.split.test, links.split.test)
    again = mr.open_dataset(tmp_path / "store", options=ReadOptions(task="link"))
    assert np.array_equal(again.labels, links.labels)
    for options in ({"split": "fraction:0.5,0.2"}, {"options": ReadOptions(task="link", pairs="p.csv")}):
        with pytest.raises(InputError, match="split already; leave"):
            mr.open_dataset(tmp_path / "store", **{"options": ReadOptions(task="link"), **options})


def test_sources_without_labels_have_links(tmp_path):
    (tmp_path / "edges.csv").write_text("src,dst\n" + "".join(f"{i},{i + 1}\n{i + 1},{i}\n" for i in range(30)))
    (tmp_path / "nodes.csv").write_text("id,feature_0\n" + "".join(f"{i},{i}.5\n" for i in range(31)))
    links = mr.open_dataset(tmp_path, options=ReadOptions(task="link"))
    assert links.split_sizes == {"train": 26, "val": 1, "test": 3} and links.num_features
    data = pytest.importorskip("torch_geometric.data")
    import torch

    graph = data.Data(x=torch.ones(31, 2), edge_index=torch.tensor(np.array(ends_of(path(31).graph)).T))
    assert mr.open_dataset(graph, options=ReadOptions(task="link")).split_sizes == links.split_sizes
    back = links.to_pyg()
    assert back.train_edge_label_index.shape == (2, 26) and "y" not in back


def test_other_mistakes(tmp_path):
    with pytest.raises(InputError, match="split and pairs are both given"):
        mr.link_dataset(path(), pairs={"train": [[0, 1]]}, split="fraction:0.5,0.2")
    with pytest.raises(InputError, match="expected shares of edges"):
        mr.link_dataset(path(), split="random:20,30")
    with pytest.raises(InputError, match="split is 3; expected public"):
        mr.link_dataset(path(), split=3)
    with pytest.raises(InputError, match=r"the pair \(0, 1\) is among the negatives .*: leave it out of the other"):
        mr.link_dataset(path(), pairs={"train": [[0, 1]], "val_negatives": [[0, 1]]})
    with pytest.raises(InputError, match="train holds 'a'; expected numbers of nodes"):
        mr.link_dataset(path(), pairs={"train": [["a", "b"]]})
    with pytest.raises(InputError, match="leave none for val"):
        mr.link_dataset(path(6), split="fraction:0.85,0.05")
    with pytest.raises(InputError, match="but the task is not link"):
        mr.open_dataset("sbm:nodes=50", options=ReadOptions(pairs="p.csv"))
    links = mr.link_dataset(path())
    with pytest.raises(InputError, match="parts hold nodes"):
        mr.partition_dataset(links, mr.partitioner("hash"), 2, tmp_path / "parts")


@pytest.mark.parametrize("held", [{}, {"x": np.ones((9, 2), np.float32)}, {"node_time": np.arange(9)}])
def test_a_file_of_edges_needs_no_labels(tmp_path, held):
    edges = np.random.default_rng(0).integers(0, 7, (2, 60))
    edges[:, 0] = 0, 6
    np.savez(tmp_path / "plain.npz", edge_index=edges, **held)
    options = mr.ReadOptions(task="link", direction="directed")
    data = mr.open_dataset(tmp_path / "plain.npz", options=options)
    assert data.task == "link" and data.num_nodes == (9 if held else 7)
    with pytest.raises(mr.InputError, match="has no key 'y'"):
        mr.open_dataset(tmp_path / "plain.npz", options=mr.ReadOptions(direction="directed"))


def test_sets_that_are_not_given_are_empty():
    data = mr.open_dataset("sbm:nodes=60,classes=3,degree=6")
    for links in (mr.link_dataset(data, pairs={"train": [[0, 1]]}), mr.link_dataset(data, split="fraction:1,0")):
        assert len(links.split.train) and not len(links.split.val) and not len(links.split.test)
    with pytest.raises(InputError, match="leave none for val"):
        mr.link_dataset(data, split="fraction:0.99,0.0001")


def test_pairs_of_val_and_test_alone_stay_in_the_first_set():
    data = mr.link_dataset(path(), pairs={"val": [(0, 1)], "test": [(1, 0), (3, 4)]}, overlapping_splits="first")
    assert pairs_of(data, "val") == [(0, 1)] and pairs_of(data, "test") == [(3, 4)]
    assert "1 pair of test was in an earlier set too and stayed there." in data.notes


def test_pairs_with_times_stay_in_the_first_set_too():
    ends = np.stack([np.arange(9), np.arange(1, 10)])
    data = dataset_of(mr.from_edges(*ends, 10, edge_time=np.arange(9)))
    sets = {"train": [(0, 1)], "train_time": [3], "val": [(5, 6), (0, 1)], "val_time": [7, 8]}
    links = mr.link_dataset(data, pairs=sets, overlapping_splits="first")
    assert pairs_of(links, "val") == [(5, 6)] and links.pair_time.tolist() == [3, 7]
