"""Every source of one small graph gives the same dataset."""

import gzip
import sys
import types

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from millrace.pipeline.datasets import ReadOptions, from_networkx, from_scipy, open_dataset
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError

SRC, DST = np.array([0, 2, 1, 3, 4, 0]), np.array([1, 0, 2, 1, 3, 4])
WEIGHT = np.array([0.5, 1.0, 2.0, 0.25, 3.0, 1.0])
Y = np.array([0, 1, 0, 1, -1])
X = np.arange(15, dtype=np.float32).reshape(5, 3) / 4
PARTS = {"train": np.array([0, 1]), "val": np.array([2]), "test": np.array([3])}
DIRECTED = ReadOptions(direction="directed")


def assert_is_the_graph(d, weighted=True, features=True, split=True):
    d.check()
    order = np.lexsort((SRC, DST))
    assert np.array_equal(d.graph.indices, SRC[order])
    assert np.array_equal(np.repeat(np.arange(5), d.graph.in_degree), DST[order])
    if weighted:
        assert np.array_equal(d.graph.edge_weight, WEIGHT[order].astype(np.float32))
    else:
        assert d.graph.edge_weight is None
    assert np.array_equal(d.labels, Y)
    if features:
        assert np.array_equal(d.features.gather(np.arange(5)), X)
    if split:
        assert all(np.array_equal(getattr(d.split, part), ids) for part, ids in PARTS.items())


def mask(ids):
    return np.isin(np.arange(5), ids)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("masks", [False, True, "numbers"])
def test_npz(tmp_path, sparse, masks):
    x = sp.csr_matrix(X)
    columns = (
        {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data, "x_shape": np.array(x.shape)}
        if sparse
        else {"x": X}
    )
    if masks:
        split = {
            f"{part}_mask": mask(ids) if masks is True else mask(ids).astype(np.uint8) for part, ids in PARTS.items()
        }
    else:
        split = {f"{part}_idx": ids for part, ids in PARTS.items()}
    np.savez(
        tmp_path / "g.npz",
        edge_index=np.stack([SRC, DST]),
        y=Y,
        edge_weight=WEIGHT[:, None] if sparse else WEIGHT,
        **columns,
        **split,
    )
    d = open_dataset(tmp_path / "g.npz", options=DIRECTED)
    assert_is_the_graph(d)
    assert d.name == "g"
    assert open_dataset(str(tmp_path / "g.npz"), options=DIRECTED, name="mine").name == "mine"


@pytest.mark.parametrize(
    ("meta", "edges"),
    [
        ('{"direction": "directed"}', 6),
        ('{"direction": "reverse"}', 6),
        ('{"direction": "undirected"}', 12),
        ('{"edges": "directed citing->cited"}', 6),
        ('{"edges": "each edge stored ONCE"}', 12),
    ],
)
def test_meta_decides_the_direction_when_nobody_else_does(tmp_path, meta, edges):
    np.savez(tmp_path / "g.npz", edge_index=np.stack([SRC, DST]), y=Y, meta=meta)
    d = open_dataset(tmp_path / "g.npz")
    assert d.graph.num_edges == edges
    assert (0 in d.graph.indices[d.graph.indptr[1] : d.graph.indptr[2]]) == ("reverse" not in meta)
    assert any("meta says" in n for n in d.notes)


@pytest.mark.parametrize("meta", ["not json", "[1]", '{"edges": "who knows"}', '{"direction": "sideways"}'])
def test_meta_that_says_nothing_decides_nothing(tmp_path, meta):
    np.savez(tmp_path / "g.npz", edge_index=np.stack([SRC, DST]), y=Y, meta=meta)
    with pytest.raises(InputError, match="not symmetric"):
        open_dataset(tmp_path / "g.npz")
    np.savez(tmp_path / "g.npz", edge_index=np.stack([np.r_[SRC, DST], np.r_[DST, SRC]]), y=Y, meta=meta)
    notes = open_dataset(tmp_path / "g.npz").notes
    assert any("meta is not " in n for n in notes) == (not meta.startswith("{"))


def write_parquet(folder, ids=None, lists="fixed"):
    folder.mkdir(exist_ok=True)
    names = np.arange(5) if ids is None else ids
    for i, half in enumerate((slice(0, 2), slice(2, 6))):
        pq.write_table(
            pa.table({"src": names[SRC[half]], "dst": names[DST[half]], "weight": WEIGHT[half]}),
            folder / f"edges-{i}.parquet",
        )
    split = [next((p for p, members in PARTS.items() if v in members), None) for v in range(5)]
    nodes = {"label": pa.array([0, 1, 0, 1, None]), "split": pa.array(split, pa.string())}
    if lists == "fixed":
        nodes["features"] = pa.FixedSizeListArray.from_arrays(X.ravel(), 3)
    elif lists == "plain":
        nodes["x"] = pa.array(X.tolist())
    else:
        nodes |= {f"{lists}{i}": X[:, i] for i in (2, 0, 1)}
    if ids is not None:
        nodes["id"] = ids
    order = np.array([3, 0, 4, 1, 2]) if ids is not None else np.arange(5)
    table = pa.table(nodes).take(order)
    pq.write_table(table.slice(0, 3), folder / "nodes-0.parquet")
    pq.write_table(table.slice(3), folder / "nodes-1.parquet")
    return folder


@pytest.mark.parametrize("lists", ["fixed", "plain", "feature_", "x", "x_"])
def test_parquet(tmp_path, lists):
    d = open_dataset(write_parquet(tmp_path / "g", lists=lists), options=DIRECTED)
    assert_is_the_graph(d)
    assert d.name == "g"


def test_parquet_ids_may_be_in_any_order_and_have_gaps(tmp_path):
    assert_is_the_graph(open_dataset(write_parquet(tmp_path / "a", np.arange(5)), options=DIRECTED))
    folder = write_parquet(tmp_path / "b", np.array([-7, 3, 4, 100, 2**40]))
    with pytest.raises(InputError, match="missing_ids=compact"):
        open_dataset(folder, options=DIRECTED)
    d = open_dataset(folder, options=ReadOptions(direction="directed", missing_ids="compact"))
    assert_is_the_graph(d)
    assert any("ids had gaps" in n for n in d.notes)


def test_parquet_label_kinds(tmp_path):
    folder = tmp_path / "g"
    folder.mkdir()
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), folder / "edges.parquet")
    for labels, want in (
        (pa.array([1.0, None, 0.0]), [1, -1, 0]),
        (pa.array([True, False, None]), [1, 0, -1]),
        (pa.array([[0, 1], [1, 1], [0, 0]]), [[0, 1], [1, 1], [0, 0]]),
    ):
        pq.write_table(pa.table({"label": labels}), folder / "nodes.parquet")
        assert open_dataset(folder).labels.tolist() == want


def write_ogb(folder, features=True, split=True):
    def write(path, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as f:
            f.writelines(",".join(str(v) for v in np.atleast_1d(row)) + "\n" for row in rows)

    write(folder / "raw" / "edge.csv.gz", np.stack([SRC, DST], axis=1))
    write(folder / "raw" / "node-label.csv.gz", [0, 1, 0, 1, "nan"])
    write(folder / "raw" / "num-node-list.csv.gz", [5])
    if features:
        write(folder / "raw" / "node-feat.csv.gz", X)
    if split:
        for part, stem in (("train", "train"), ("val", "valid"), ("test", "test")):
            write(folder / "split" / "time" / f"{stem}.csv.gz", PARTS[part])
    return folder


OGB_OPTIONS = ReadOptions(nan_labels="unlabelled")


def test_ogb_folder_by_path_and_by_name(tmp_path, monkeypatch):
    folder = write_ogb(tmp_path / "root" / "ogbn_arxiv")
    d = open_dataset(folder, options=OGB_OPTIONS)
    assert_is_the_graph(d, weighted=False)
    assert d.name == "ogbn-arxiv"
    assert any("publishes ogbn-arxiv as a directed graph" in n for n in d.notes)
    monkeypatch.setenv("OGB_ROOT", str(tmp_path / "root"))
    assert_is_the_graph(open_dataset("ogbn-arxiv", options=OGB_OPTIONS), weighted=False)
    monkeypatch.delenv("OGB_ROOT")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root").rename(tmp_path / "dataset")
    assert_is_the_graph(open_dataset("ogbn-arxiv", options=OGB_OPTIONS), weighted=False)


def test_ogb_stores_some_graphs_one_way_and_some_without_features_or_split(tmp_path):
    d = open_dataset(write_ogb(tmp_path / "ogbn_products", features=False, split=False), options=OGB_OPTIONS)
    assert d.graph.num_edges == 12
    assert d.features.num_features == 2
    unknown = write_ogb(tmp_path / "mine")
    with pytest.raises(InputError, match="not symmetric"):
        open_dataset(unknown, options=OGB_OPTIONS)
    (unknown / "split" / "time" / "test.csv.gz").write_bytes(gzip.compress(b""))
    assert (
        len(open_dataset(unknown, options=ReadOptions(direction="directed", nan_labels="unlabelled")).split.test) == 0
    )


def test_ogb_downloads_through_its_package(tmp_path, monkeypatch):
    """The package is not installed here: a fake one unpacks what it would."""
    package, module = types.ModuleType("ogb"), types.ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = lambda name, root: write_ogb(tmp_path / "root" / name.replace("-", "_"))
    monkeypatch.setitem(sys.modules, "ogb", package)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    monkeypatch.setenv("OGB_ROOT", str(tmp_path / "root"))
    assert_is_the_graph(open_dataset("ogbn-arxiv", options=OGB_OPTIONS), weighted=False)


@pytest.mark.parametrize("kind", [sp.coo_matrix, sp.csr_matrix, sp.csc_array])
def test_scipy(kind):
    a = kind(sp.coo_matrix((WEIGHT, (SRC, DST)), shape=(5, 5)))
    assert_is_the_graph(from_scipy(a, X, Y, **PARTS, options=DIRECTED))
    d = from_scipy(a != 0, sp.csr_matrix(X), Y, train=mask([0, 1]), val=mask([2]), test=mask([3]), options=DIRECTED)
    assert_is_the_graph(d, weighted=False)


def test_scipy_stored_zeros_are_no_edges_and_repeated_entries_are_duplicates():
    a = sp.coo_matrix(([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    d = from_scipy(a, None, [0, 1], options=DIRECTED)
    assert d.graph.indices.tolist() == [0]
    assert d.graph.edge_weight.tolist() == [3]
    assert any("1 duplicate edge was merged" in n for n in d.notes)


def networkx_graph(kind, names="abcde"):
    g = kind()
    for v, name in enumerate(names):
        part = next((p for p, members in PARTS.items() if v in members), None)
        g.add_node(name, x=X[v].tolist(), **({} if Y[v] < 0 else {"y": int(Y[v])}), **({"split": part} if part else {}))
    g.add_weighted_edges_from((names[s], names[d], w) for s, d, w in zip(SRC, DST, WEIGHT))
    return g


def test_networkx():
    d = open_dataset(networkx_graph(nx.DiGraph))
    assert_is_the_graph(d)
    assert d.name == "networkx"
    assert any("NetworkX graph is directed" in n for n in d.notes)
    assert any("order in the graph" in n for n in d.notes)
    g = nx.DiGraph()
    g.add_nodes_from([4, 2, 0, 1, 3])
    g.update(networkx_graph(nx.DiGraph, range(5)))
    assert_is_the_graph(open_dataset(g))


def test_networkx_undirected_graphs_have_both_directions():
    g = networkx_graph(nx.Graph)
    g.add_edge("a", "a", weight=1.0)
    d = open_dataset(g)
    assert d.graph.num_edges == 13
    assert d.graph.edge_weight.sum() == 2 * WEIGHT.sum() + 1
    assert not any("duplicate" in n for n in d.notes)
    assert any("symmetric as stored" in n for n in d.notes)
    plain = nx.path_graph(3)
    nx.set_node_attributes(plain, {0: 0, 1: 1, 2: 0}, "class")
    nx.set_node_attributes(plain, 2.5, "f")
    nx.set_node_attributes(plain, 30, "age")
    nx.set_edge_attributes(plain, 1, "rate")
    d = from_networkx(plain, label="class", features="f")
    assert "Attributes that were not read: age, rate." in d.notes
    assert d.graph.indices.tolist() == [1, 0, 2, 1]
    assert d.features.gather(np.arange(3)).tolist() == [[2.5]] * 3


def test_pyg():
    data = Data(
        x=torch.tensor(X),
        edge_index=torch.tensor(np.stack([SRC, DST])),
        y=torch.tensor(Y)[:, None],
        edge_weight=torch.tensor(WEIGHT),
        **{f"{part}_mask": torch.tensor(mask(ids)) for part, ids in PARTS.items()},
    )
    d = open_dataset(data, options=DIRECTED)
    assert_is_the_graph(d)
    assert d.name == "pyg"
    data.x = data.x.to_sparse()
    assert_is_the_graph(open_dataset(data, options=DIRECTED))


def test_pyg_edge_features():
    def opened(edge_attr):
        data = Data(edge_index=torch.tensor(np.stack([SRC, DST])), y=torch.tensor(Y), edge_attr=edge_attr)
        return open_dataset(data, options=DIRECTED)

    n = len(SRC)
    assert opened(None).num_edge_features == 0
    for attr in (torch.arange(n), torch.arange(n)[:, None], torch.arange(3 * n).view(n, 3)):
        graph = opened(attr).graph
        want = attr.view(n, -1).numpy()[np.lexsort((SRC, DST))]
        np.testing.assert_array_equal(graph.edge_features.gather(np.arange(n)), want)
    with pytest.raises(InputError, match=r"edge features have shape \[2, 3\]; expected \[\d+, D\]"):
        opened(torch.ones(2, 3))


def test_store_and_dataset_are_taken_as_they_are(tmp_path):
    d = from_scipy(sp.coo_matrix((WEIGHT, (SRC, DST)), shape=(5, 5)), X, Y, **PARTS, options=DIRECTED)
    write_dataset(tmp_path / "store", d)
    for again in (open_dataset(tmp_path / "store"), open_dataset(d), open_dataset(d, split="public")):
        assert_is_the_graph(again)
    assert_is_the_graph(open_dataset(tmp_path / "store", features="zarr"))
    with pytest.raises(InputError, match="features is 'zarr', but digits is not a Millrace store"):
        open_dataset("digits", features="zarr")
    resplit = open_dataset(tmp_path / "store", split="random:1,1", name="anew")
    assert len(resplit.split.train) == 2
    assert resplit.name == "anew"


def test_a_store_that_is_opened_repeats_no_note(tmp_path):
    """The note on a class that is never evaluated is the store's already, and is found again."""
    y = np.array([0, 0, 1, 2, 2, 0])
    sets = {
        f"{k}_mask": torch.from_numpy(np.isin(np.arange(6), v))
        for k, v in (("train", [0, 2, 3]), ("val", [1]), ("test", [4]))
    }
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    data = open_dataset(Data(x=torch.ones(6, 2), y=torch.from_numpy(y), edge_index=edges, **sets), options=DIRECTED)
    write_dataset(tmp_path / "s", data)
    notes = [n for n in open_dataset(tmp_path / "s").notes if "No val or test node has class 1" in n]
    assert len(notes) == 1


def test_a_split_that_is_asked_for_takes_the_note_on_the_drawn_one_away():
    drawn = from_scipy(sp.coo_matrix((WEIGHT, (SRC, DST)), shape=(5, 5)), X, Y, options=DIRECTED)
    assert any("stores no split" in note for note in drawn.notes)
    assert not any("stores no split" in note for note in open_dataset(drawn, split="fraction:0.4,0.4").notes)
    assert open_dataset(drawn, name="anew").notes == drawn.notes


def graph_object(kind, path):
    if kind == "networkx":
        return nx.DiGraph([(0, 1), (1, 0)])
    if kind == "pyg":
        return Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))
    if kind == "digits":
        return "digits"
    np.savez(path, edge_index=np.array([[0, 1], [1, 0]]), y=np.array([0, 1]))
    return path


@pytest.mark.parametrize("kind", ["networkx", "pyg", "digits", "npz", "another suffix"])
@pytest.mark.parametrize("key", ["id", "src", "feature_columns", "label_columns", "one_hot", "nodes_file"])
def test_options_of_tables_are_refused_where_there_are_none(tmp_path, kind, key):
    source = graph_object(kind, tmp_path / ("a.npz" if kind == "npz" else "a.archive"))
    if kind == "another suffix":
        (tmp_path / "a.archive.npz").rename(source)
    options = ReadOptions(**{key: "a", "dst": "to"})
    with pytest.raises(InputError, match=rf"has no tables, which .*read\.{key}.* would choose from; leave them out"):
        open_dataset(source, options=options)


def test_what_is_not_there_is_said_before_its_options(tmp_path):
    for source, said in ((tmp_path / "none" / "edges.csv", "none"), (tmp_path, "holds no")):
        with pytest.raises(InputError, match=said) as e:
            open_dataset(source, options=ReadOptions(src="a"))
        assert "has no tables" not in str(e.value)


def test_scipy_refuses_options_of_tables():
    with pytest.raises(InputError, match=r"a SciPy matrix has no tables, which read\.src would choose from"):
        from_scipy(sp.eye(2), None, [0, 1], options=ReadOptions(src="a"))


def test_an_archive_may_have_ignored_classes(tmp_path):
    np.savez(tmp_path / "a.npz", edge_index=np.array([[0, 1], [1, 0]]), y=np.array([1, 255, 0])[:2])
    assert open_dataset(tmp_path / "a.npz", options=ReadOptions(ignored_labels=255)).labels.tolist() == [1, -1]
