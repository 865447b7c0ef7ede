"""Bad inputs, one by one: each is refused with a sentence that names the defect and the way out."""

import gzip
import pickle
import sys
import types
import zipfile

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

from millrace.pipeline.datasets import ReadOptions, from_networkx, from_pyg, from_scipy, open_dataset
from millrace.storage.errors import InputError, MissingExtraError

GOOD = {
    "edge_index": np.array([[0, 1, 1, 2], [1, 0, 2, 1]]),
    "y": np.array([0, 1, 0]),
    "x": np.ones((3, 2), np.float32),
    "train_idx": np.array([0]),
    "val_idx": np.array([1]),
    "test_idx": np.array([2]),
}
CSR = {
    "x": None,
    "x_indptr": np.array([0, 1, 2, 2]),
    "x_indices": np.array([0, 1]),
    "x_data": np.ones(2),
    "x_shape": np.array([3, 2]),
}


def npz(folder, changes):
    np.savez(folder / "g.npz", **{k: v for k, v in {**GOOD, **changes}.items() if v is not None})
    return folder / "g.npz"


def test_the_good_one_is_good(tmp_path):
    assert open_dataset(npz(tmp_path, {})).num_nodes == 3
    assert open_dataset(npz(tmp_path, CSR)).features.num_features == 2


BAD_NPZ = [
    # changes, options, split, phrases
    ({"edge_index": None}, {}, None, ["no key 'edge_index'"]),
    ({"edge_index": None, "edge_indexes": np.zeros(1)}, {}, None, ["did you mean 'edge_indexes'"]),
    ({"edge_index": np.zeros((5, 3), int)}, {}, None, ["shape [5, 3]", "expected [2, E]"]),
    ({"edge_index": np.zeros(4, int)}, {}, None, ["expected [2, E]"]),
    ({"edge_index": np.array([[0.5], [1.0]])}, {}, None, ["float64", "expected integers"]),
    ({"edge_index": np.array([[0, 3], [3, 0]])}, {}, None, ["[0, 3]", "out of range for 3 nodes"]),
    ({"edge_index": np.array([[0, -1], [-1, 0]])}, {}, None, ["[-1, 0]", "out of range"]),
    ({"edge_index": np.array([[0], [1]])}, {}, None, ["not symmetric", "direction=directed", "reverse", "undirected"]),
    ({"edge_weight": np.array([1, 2, 3, 4.0])}, {}, None, ["not symmetric"]),
    (
        {"edge_index": np.array([[0, 0], [0, 0]])},
        {"duplicates": "error"},
        None,
        ["there is 1 duplicate edge (first", "0 -> 0", "duplicates=merge"],
    ),
    (
        {"edge_index": np.array([[1], [1]])},
        {"self_loops": "error"},
        None,
        ["there is 1 self loop (first", "node 1", "self_loops=drop"],
    ),
    ({"edge_weight": np.ones(3)}, {}, None, ["weights have shape [3]", "edge_weights=ignore"]),
    ({"edge_weight": np.array(list("abcd"))}, {}, None, ["weights are <U1", "edge_weights=ignore"]),
    ({"edge_weight": np.array([1, np.nan, 1, 1])}, {}, None, ["1 edge weight is NaN", "edge_weights=ignore"]),
    ({"edge_weight": np.array([1, 1e300, 1, 1])}, {}, None, ["infinite as float32"]),
    ({"edge_weight": np.array([1, -2, 1, 1])}, {}, None, ["negative (least: -2", "edge_weights=ignore"]),
    ({"y": None}, {}, None, ["no key 'y'"]),
    ({"y": np.zeros(0, int)}, {}, None, ["no nodes"]),
    ({"y": np.int64(3)}, {}, None, ["no nodes"]),
    ({"y": np.zeros((3, 1, 1), int)}, {}, None, ["labels have shape [3, 1, 1]"]),
    ({"y": np.array([["a", "b"]] * 3)}, {}, None, ["labels are <U1", "number the classes"]),
    ({"y": np.zeros((3, 0))}, {}, None, ["[V, 0]"]),
    ({"y": np.array([[0, 2], [1, 0], [0, 0]])}, {}, None, ["values other than 0 and 1", "multi-label"]),
    ({"y": np.array([0, np.nan, 1])}, {}, None, ["1 label is NaN", "nan_labels=unlabelled"]),
    ({"y": np.array([0, 0.5, 1])}, {"task": "multiclass"}, None, ["non-integer (first: 0.5)", "task=regression"]),
    ({"y": np.array([0, np.inf, 1])}, {}, None, ["1 target is infinite", "(first: node 1)"]),
    ({"y": np.array([0, -3, 1])}, {}, None, ["down to -3", "-1 for an unlabelled"]),
    ({"y": np.array([-1, -1, -1])}, {}, None, ["no node has a label"]),
    (
        {"y": np.array([0, 2, 0])},
        {"label_gaps": "error"},
        None,
        ["but 1 class of 3 has no labelled node", "label_gaps=compact", "label_gaps=keep"],
    ),
    ({"y": np.array([0, 10**9, 0])}, {}, None, ["go up to 1,000,000,000", "label_gaps=compact"]),
    ({"x": np.ones(3)}, {}, None, ["features have shape [3]", "[3, F]"]),
    ({"x": np.ones((4, 2))}, {}, None, ["features have shape [4, 2]", "[3, F]"]),
    ({"x": np.array([["a"], ["b"], ["c"]])}, {}, None, ["features are <U1"]),
    ({"x": np.ones((3, 1), complex)}, {}, None, ["features are complex128"]),
    (
        {"x": np.array([[1.0], [np.nan], [np.inf]])},
        {},
        None,
        ["2 feature values are NaN or infinite", "node 1", "nan_features=zero"],
    ),
    ({"x": None}, {"missing_features": "error"}, None, ["no features", "missing_features=degree"]),
    ({**CSR, "x_shape": None}, {}, None, ["no key 'x_shape'"]),
    ({**CSR, "x_indices": np.array([0, 9])}, {}, None, ["are not a CSR matrix"]),
    ({**CSR, "x_indptr": np.array([0, 1])}, {}, None, ["are not a CSR matrix"]),
    ({**CSR, "x_indptr": np.array([0, -(2**31)], np.int32)}, {}, None, ["are not a CSR matrix"]),
    ({**CSR, "x_indptr": np.array([0, 2, 1], np.uint64)}, {}, None, ["are not a CSR matrix"]),
    ({**CSR, "x_shape": np.array([3])}, {}, None, ["are not a CSR matrix"]),
    (
        {"train_idx": np.array([0, 1])},
        {},
        None,
        ["1 node of the val split (first: 1) is in an earlier split", "overlapping_splits=first"],
    ),
    ({"train_idx": np.array([3])}, {}, None, ["train split holds ids in [3, 3]", "out of range"]),
    ({"train_idx": np.array([0.0])}, {}, None, ["train split is float64"]),
    ({"train_idx": np.array([[0]])}, {}, None, ["train split has shape [1, 1]"]),
    ({"train_idx": np.zeros(0, int)}, {}, None, ["train split is empty", "random:20,30"]),
    ({"train_idx": None}, {}, None, ["train split is empty"]),
    ({"train_idx": None, "train_mask": np.ones(2, bool)}, {}, None, ["train mask has shape [2]"]),
    ({"train_idx": None, "train_mask": np.ones((3, 5), bool)}, {"split": "5"}, None, ["split is '5'; expected 0 to 4"]),
    ({"train_idx": None, "train_mask": np.array([0, 1, 2])}, {}, None, ["train_mask holds values other than 0 and 1"]),
    (
        {"y": np.array([-1, 1, 0])},
        {},
        None,
        ["1 node of the train split (first: 0) is unlabelled", "unlabelled_in_split=drop"],
    ),
    ({"train_idx": None, "val_idx": None, "test_idx": None}, {}, "public", ["stores no split", "random:20,30"]),
    ({}, {}, "publik", ["did you mean 'public'"]),
    ({}, {}, "public:1", ["takes no numbers"]),
    ({}, {}, "random", ["two whole numbers"]),
    ({}, {}, "random:1", ["two whole numbers"]),
    ({}, {}, "random:1.5,2", ["two whole numbers"]),
    ({}, {}, "random:0,3", ["at least 1 train node"]),
    ({}, {}, "random:1,1", ["class 1 has 1 labelled nodes", "needs 2", "fraction"]),
    ({}, {}, "fraction:a,b", ["two numbers"]),
    ({}, {}, "fraction:0.9,0.2", ["shares above 0 for train and from 0 for val, together at most 1"]),
    ({"y": np.tri(3)}, {}, "random:1,1", ["multi-label", "fraction"]),
]


@pytest.mark.parametrize(("changes", "options", "split", "phrases"), BAD_NPZ)
def test_bad_npz(tmp_path, changes, options, split, phrases):
    path = npz(tmp_path, changes)
    with pytest.raises(InputError) as e:
        open_dataset(path, options=ReadOptions(**options), split=split)
    assert all(phrase in str(e.value) for phrase in phrases), str(e.value)
    assert "g" in str(e.value).split(":")[0]


def test_files_that_are_no_npz(tmp_path):
    with zipfile.ZipFile(tmp_path / "header.npz", "w") as z:
        z.writestr("y.npy", b"\x93NUMPY\x01\x00\x05\x00abcde")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as z:
        z.writestr("edge_index", b"0 1")
    np.savez(tmp_path / "objects.npz", edge_index=np.array([{}], dtype=object))
    whole = npz(tmp_path, {"x": np.random.default_rng(0).random((3, 500))}).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps([1]))
    np.save(tmp_path / "single.npy", np.zeros(3))
    phrases = {
        "header.npz": "is damaged or not an .npz file",
        "text.npz": "no key 'edge_index'",
        "objects.npz": "pickled objects",
        "cut.npz": "damaged",
        "empty.npz": "damaged",
        "pickle.npz": "pickled objects",
        "single.npy": "is read as a list of edges, and the labels of its nodes are missing",
    }
    for name, phrase in phrases.items():
        with pytest.raises(InputError, match=phrase):
            open_dataset(tmp_path / name)


EDGES = {"src": [0, 1], "dst": [1, 0]}
NODES = {"label": [0, 1, 0], "x": [[1.0], [2.0], [3.0]]}
BAD_PARQUET = [
    (None, NODES, "no edges*.parquet"),
    (EDGES, None, "no nodes*.parquet"),
    ({"sorc": [0], "dst": [1]}, NODES, "did you mean 'sorc'"),
    (EDGES, {"lables": [0, 1, 0]}, "did you mean 'lables'"),
    ({"src": ["a"], "dst": ["b"]}, NODES, "the ends of edges are text, but nodes has no column 'id'"),
    ({"src": [0.0], "dst": [1]}, NODES, "edges.src is double; expected ids: whole numbers or text"),
    ({"src": [0, None], "dst": [1, 0]}, NODES, "edges.src holds 1 nulls"),
    ({**EDGES, "weight": ["a", "b"]}, NODES, "edges.weight is string"),
    ({**EDGES, "weight": [1.0, None]}, NODES, "edge weight is NaN"),
    ({"src": [0, 7], "dst": [7, 0]}, NODES, "out of range for 3 nodes"),
    (EDGES, {**NODES, "x": [[1.0], [2.0], None]}, "1 feature value is NaN or infinite (first: node 2)"),
    (EDGES, {**NODES, "x": [[1.0], [2.0, 3.0], [1.0]]}, "lists of 1 and of 2 values (row 1)"),
    (EDGES, {**NODES, "x": [["a"], ["b"], ["c"]]}, "nodes.x is string"),
    (EDGES, {**NODES, "x": [1.0, 2.0, 3.0]}, "nodes.x is double"),
    (EDGES, {"label": [0, 1, 0], "feature_0": [1.0, None, 2.0]}, "nan_features=zero"),
    (EDGES, {**NODES, "split": ["train", "vla", "test"]}, "did you mean 'val'"),
    (EDGES, {**NODES, "id": [0, 1, 1]}, "nodes.id holds 1 more than once"),
    (EDGES, {**NODES, "id": [0, 1, 5]}, "missing_ids=compact"),
    (
        EDGES,
        {**NODES, "id": ["a", "b", "c"]},
        "column nodes.id is text and column edges.src is int64; expected one kind",
    ),
    (
        {"src": ["a", "d"], "dst": ["b", "a"]},
        {**NODES, "id": ["a", "b", "c"]},
        "1 values of edges.src (first: 'd') are not the id of any node",
    ),
    ({"src": ["a"], "dst": ["b"]}, {**NODES, "id": ["a", "b", "a"]}, "nodes.id holds 'a' more than once"),
    ({"src": ["a"], "dst": ["b"]}, {**NODES, "id": ["a", None, "c"]}, "nodes.id holds 1 nulls"),
]


def parquet(folder, edges, nodes):
    for name, columns in (("edges", edges), ("nodes", nodes)):
        if columns is not None:
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(("edges", "nodes", "phrase"), BAD_PARQUET)
def test_bad_parquet(tmp_path, edges, nodes, phrase):
    with pytest.raises(InputError) as e:
        open_dataset(parquet(tmp_path, edges, nodes))
    assert phrase in str(e.value)


def test_parquet_edges_to_nowhere_and_damage(tmp_path):
    parquet(tmp_path, {"src": [0, 2], "dst": [2, 0]}, {**NODES, "id": [0, 1, 5]})
    with pytest.raises(InputError, match=r"1 values of edges.src \(first: 2\) are not the id of any node"):
        open_dataset(tmp_path, options=ReadOptions(missing_ids="compact"))
    (tmp_path / "edges.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot be read"):
        open_dataset(tmp_path)


OGB_FILES = {
    "raw/edge.csv.gz": "0,1\n1,0\n",
    "raw/node-label.csv.gz": "0\n1\n",
    "raw/num-node-list.csv.gz": "2\n",
    "split/a/train.csv.gz": "0\n",
    "split/a/valid.csv.gz": "1\n",
    "split/a/test.csv.gz": "",
}
BAD_OGB = [
    ({"raw/edge.csv.gz": "0,1,2\n"}, "has 3 columns"),
    ({"raw/edge.csv.gz": "a,b\n"}, "is not a compressed table of numbers"),
    ({"raw/edge.csv.gz": "0,1\n0\n"}, "is not a compressed table of numbers"),
    ({"raw/edge.csv.gz": None}, "edge.csv.gz does not exist"),
    ({"raw/num-node-list.csv.gz": "1\n1\n"}, "holds 2 graphs"),
    ({"raw/num-node-list.csv.gz": "3\n"}, "2 labels for 3 nodes"),
    ({"split/b/train.csv.gz": "0\n"}, "holds 2 splits (a, b)"),
    ({"split/a/valid.csv.gz": None}, "valid.csv.gz does not exist"),
]


def ogb(folder, changes):
    for name, text in {**OGB_FILES, **changes}.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.mark.parametrize(("changes", "phrase"), BAD_OGB)
def test_bad_ogb(tmp_path, changes, phrase):
    assert open_dataset(ogb(tmp_path / "good", {})).num_nodes == 2
    with pytest.raises(InputError) as e:
        open_dataset(ogb(tmp_path / "bad", changes))
    assert phrase in str(e.value)


def test_ogb_names_without_files(tmp_path, monkeypatch):
    monkeypatch.setenv("OGB_ROOT", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(MissingExtraError, match=r"\.\[ogb\]"):
        open_dataset("ogbn-arxiv")
    with pytest.raises(InputError, match="no node dataset 'ogbn-arxvi'; did you mean 'ogbn-arxiv'"):
        open_dataset("ogbn-arxvi")
    with pytest.raises(InputError, match="no node dataset 'ogbn-zzz'; expected one of ogbn-arxiv, "):
        open_dataset("ogbn-zzz")
    module = types.ModuleType("ogb.nodeproppred")
    monkeypatch.setitem(sys.modules, "ogb", types.ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)

    def refuse(name, root):
        raise OSError("no network")

    module.NodePropPredDataset = refuse
    with pytest.raises(InputError, match=r"could not be downloaded.*no network"):
        open_dataset("ogbn-arxiv")
    module.NodePropPredDataset = lambda name, root: None
    with pytest.raises(InputError, match="left no"):
        open_dataset("ogbn-arxiv")


BAD_TEXT = [
    ("sbm:node=5", "did you mean 'nodes'"),
    ("sbm:nodes", "is not key=value"),
    ("sbm:nodes=many", "nodes is 'many'; expected a number"),
    ("sbm:nodes=nan", "expected a whole number"),
    ("sbm:nodes=inf", "expected a whole number"),
    ("sbm:degree=nan", "out of range"),
    ("sbm:nodes=10.5", "expected a whole number"),
    ("sbm:nodes=1", "out of range; expected 2"),
    ("sbm:homophily=1.5", "out of range; expected 0 to 1"),
    ("sbm:nodes=5,nodes=6", "given twice"),
    ("rmat:scale=99", "out of range"),
    ("rmat:a=0.9,b=0.9", "a + b + c is 2.02"),
    ("rmat:symmetric=2", "out of range"),
    ("sbm:train=0.9,val=0.9,nodes=10", "together at most 1"),
    ("digit", "did you mean 'digits'"),
    ("Cora", "mr.write_dataset('cora-store', mr.from_pyg(Planetoid('data', 'Cora')[0], name='cora'))"),
    ("arxiv", "is from OGB: give ogbn-arxiv"),
    ("no/such/file.npz", "neither a file nor a known dataset"),
]


@pytest.mark.parametrize(("text", "phrase"), BAD_TEXT)
def test_bad_text(text, phrase):
    with pytest.raises(InputError) as e:
        open_dataset(text)
    assert phrase in str(e.value)


def bare(**attributes):
    g = nx.path_graph(2)
    nx.set_node_attributes(g, {v: {"y": v, "x": [1.0]} for v in g})
    for node, values in attributes.items():
        g.nodes[int(node[1:])].update(values)
    return g


def without(g, node, attribute):
    del g.nodes[node][attribute]
    return g


def half_weighted():
    g = nx.path_graph(3)
    nx.set_node_attributes(g, 0, "y")
    g[0][1]["weight"] = 2.0
    return g


EYE = sp.eye_array(3, format="csr")
RING = torch.tensor([[0, 1], [1, 0]])
BAD_OBJECTS = [
    (lambda: from_scipy(np.eye(3), None, [0, 1, 0]), "adjacency is ndarray"),
    (lambda: from_scipy(EYE, None, [0, 1]), "adjacency has shape [3, 3] and there are 2 labels"),
    (lambda: from_scipy(sp.csr_matrix((3, 2)), None, [0, 1, 0]), "adjacency has shape [3, 2]"),
    (lambda: from_scipy(EYE, np.ones((2, 1)), [0, 1, 0]), "features have shape [2, 1]"),
    (lambda: open_dataset(EYE), "use from_scipy"),
    (lambda: open_dataset(5), "cannot open a int"),
    (lambda: open_dataset(nx.path_graph(3)), "no node has the attribute 'y'"),
    (lambda: open_dataset(nx.Graph()), "no nodes"),
    (lambda: open_dataset(bare(n0={"split": "spare"})), "'split' holds 'spare'"),
    (lambda: open_dataset(without(bare(), 0, "x")), "1 of 2 nodes have no attribute 'x'"),
    (lambda: open_dataset(bare(n0={"x": [1.0, 2.0]})), "different lengths"),
    (lambda: open_dataset(without(bare(n1={"y": [0, 1]}), 0, "y")), "multi-label vectors are needed on every node"),
    (lambda: open_dataset(half_weighted()), "1 of 2 edges have no attribute 'weight'"),
    (lambda: from_networkx(bare(), label="z"), "no node has the attribute 'z'"),
    (lambda: open_dataset(HeteroData()), "no node type has y; say which one is predicted"),
    (lambda: from_networkx(3), "graph is a int; expected a NetworkX graph"),
    (lambda: open_dataset(bare(), options={"direction": "directed"}), "options is a dict; expected mr.ReadOptions"),
    (lambda: open_dataset(bare(), split=3), "split is 3; expected public"),
    (lambda: from_pyg(Data(y=torch.tensor([0, 1]))), "no edge_index"),
    (lambda: from_pyg(Data(edge_index=RING)), "has no y"),
    (lambda: from_pyg(Data(edge_index=RING[0], y=torch.tensor([0, 1]))), "edge_index has shape [2]"),
    (lambda: from_pyg(Data(edge_index=RING, y=torch.tensor([0, 1]), x=torch.ones(3, 1))), "3 nodes and 2 labels"),
]


@pytest.mark.parametrize(("call", "phrase"), BAD_OBJECTS)
def test_bad_objects(call, phrase):
    with pytest.raises(InputError) as e:
        call()
    assert phrase in str(e.value)


def test_bad_options_and_folders(tmp_path):
    with pytest.raises(InputError, match="did you mean 'merge'"):
        ReadOptions(duplicates="merg")
    with pytest.raises(InputError, match="direction is 'both'"):
        ReadOptions(direction="both")
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        open_dataset(tmp_path)
    with pytest.raises(InputError, match="leave out direction, self_loops"):
        open_dataset("sbm:nodes=10", options=ReadOptions(direction="directed", self_loops="drop"))


def test_rows_and_lists_where_a_word_is_expected():
    graph = nx.karate_club_graph()
    with pytest.raises(InputError, match=r"\['x'\] is given as an attribute; expected the name of one"):
        from_networkx(graph, features=["x"])
    with pytest.raises(InputError, match="features is a ndarray, but says where a store's lie"):
        open_dataset("karate", features=np.zeros((34, 2)))


def test_labels_beyond_int64_are_refused_of_typed_nodes_and_of_edges(tmp_path):
    y = torch.from_numpy(np.array([0, 1, 2**64 - 1, 1], np.uint64))
    data = HeteroData()
    data["paper"].x, data["author"].x, data["paper"].y = torch.rand(4, 2), torch.rand(3, 2), y
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]])
    with pytest.raises(InputError, match="labels hold 18446744073709551615; expected class numbers"):
        open_dataset(data)
    options = ReadOptions(labels_of="edges", direction="directed")
    edges = Data(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), edge_label=y)
    with pytest.raises(InputError, match="labels hold 18446744073709551615; expected class numbers"):
        open_dataset(edges, options=options)
    table = tmp_path / "edges.csv"
    table.write_text("src,dst,label\n0,1,0\n1,2,1\n2,3,18446744073709551615\n3,0,1\n")
    with pytest.raises(InputError, match=r"labels are whole numbers to 1\.84467e\+19; number classes"):
        open_dataset(table, options=options)
