"""Labelled edges as sources store them: PyG's data, `.npz` files and tables."""

import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import millrace as mr
from millrace.storage.errors import InputError
from millrace.tests.pipeline.datasets.test_edge_labels_of_datasets import (
    EDGES,
    LABELS,
    PAIRS,
    edge_dataset,
    nodes,
    same,
)

__all__ = ["nodes"]


def test_pyg_there_and_back(nodes, tmp_path):
    from torch_geometric.data import Data

    index, y = torch.from_numpy(PAIRS.T.copy()), torch.from_numpy(LABELS)
    data = Data(
        x=torch.rand(4, 2), edge_index=index, edge_label=y, edge_attr=torch.arange(5.0), train_idx=torch.tensor([0])
    )
    found = mr.open_dataset(data, options=EDGES)
    assert np.array_equal(found.pairs, PAIRS) and found.pair_features.tolist() == [[0], [1], [2], [3], [4]]
    assert found.split_sizes == {"train": 1, "val": 0, "test": 0}
    apart = Data(
        x=torch.rand(4, 2), edge_index=index, edge_label_index=index[:, :2], edge_label=torch.tensor([0.5, 7.0])
    )
    assert mr.open_dataset(apart, options=EDGES).task == "regression"
    back = mr.open_dataset(found.to_pyg(), options=EDGES)
    assert np.array_equal(back.pairs, PAIRS[:1]) and back.labels.tolist() == [0]
    whole = edge_dataset(nodes, features=np.arange(5))
    back = mr.open_dataset(whole.to_pyg(), options=mr.ReadOptions(labels_of="edges"))
    order = np.concatenate([*vars(whole.split).values()])
    assert np.array_equal(back.pairs, whole.pairs[order]) and np.array_equal(back.labels, whole.labels[order])
    with pytest.raises(InputError, match=r"use open_dataset\(data, options=...\)"):
        mr.from_pyg(data, options=EDGES)
    with pytest.raises(InputError, match="has no edge_label, and labels_of is 'edges'"):
        mr.open_dataset(Data(x=torch.rand(4, 2), edge_index=index), options=EDGES)


def test_npz(tmp_path):
    arrays = {"edge_index": PAIRS.T, "edge_attr": np.arange(5.0), "edge_time": np.arange(5), "x": np.ones((4, 1))}
    np.savez(
        tmp_path / "a.npz", **arrays, edge_label=LABELS, val_mask=np.arange(5) == 3, train_idx=[0, 1], test_idx=[4]
    )
    found = mr.open_dataset(tmp_path / "a.npz", options=EDGES)
    assert (
        np.array_equal(found.pairs, PAIRS)
        and found.split.val.tolist() == [3]
        and found.pair_time.tolist() == [*range(5)]
    )
    np.savez(
        tmp_path / "pairs.npz", edge_label_index=PAIRS.T[:, :3], edge_label=["a", "b", "a"], edge_label_attr=np.ones(3)
    )
    np.savez(tmp_path / "b.npz", **arrays)
    options = replace(EDGES, pairs=str(tmp_path / "pairs.npz"))
    found = mr.open_dataset(tmp_path / "b.npz", options=options, split="fraction:0.6,0.2")
    assert found.class_names == ("a", "b") and found.pair_features.shape == (3, 1)
    with pytest.raises(InputError, match="has no key 'edge_label', and labels_of is 'edges'"):
        mr.open_dataset(tmp_path / "b.npz", options=EDGES)
    np.savez(tmp_path / "c.npz", **arrays, edge_label=LABELS[:3])
    with pytest.raises(InputError, match=r"the shape of edge_label is \[3\]; expected a row for each of 5 edges"):
        mr.open_dataset(tmp_path / "c.npz", options=EDGES)


def test_tables(tmp_path):
    """Columns of labels are never features, whatever is asked for."""
    table = {"src": PAIRS[:, 0], "dst": PAIRS[:, 1], "amount": np.arange(5.0), "label": [0, 1, None, 1, 0]}
    table |= {"split": ["train", "train", None, "val", "test"], "when": np.arange(5)}
    pq.write_table(pa.table(table), tmp_path / "edges.parquet")
    pq.write_table(pa.table({"id": range(4), "x_0": np.ones(4)}), tmp_path / "nodes.parquet")
    options = replace(EDGES, edge_feature_columns="*", edge_time="when")
    found = mr.open_dataset(tmp_path, options=options)
    assert found.labels.tolist() == [0, 1, -1, 1, 0] and found.split.val.tolist() == [3]
    assert found.pair_features.tolist() == [[0], [1], [2], [3], [4]] and found.num_edge_features == 1
    assert found.pair_time.tolist() == [0, 1, 2, 3, 4] and found.graph.edge_time is not None
    several = replace(EDGES, label_columns=("amount", "when"))
    values = mr.open_dataset(tmp_path, options=replace(several, task="regression"), split="fraction:0.6,0.2")
    assert values.labels.shape == (5, 2) and values.class_names == ("amount", "when") and values.num_edge_features == 0
    pq.write_table(pa.table(table).drop(["label"]), tmp_path / "edges.parquet")
    with pytest.raises(InputError, match="edges has no column 'label'"):
        mr.open_dataset(tmp_path, options=EDGES)
    (tmp_path / "known.csv").write_text("src,dst,label\n0,1,good\n3,2,bad\n2,2,\n")
    found = mr.open_dataset(
        tmp_path, options=replace(EDGES, pairs=str(tmp_path / "known.csv")), split="fraction:0.5,0.5"
    )
    assert found.pairs.tolist() == [[0, 1], [3, 2], [2, 2]] and found.class_names == ("bad", "good")
    with pytest.raises(InputError, match="labelled_edges is 'hidden', but labels are of nodes"):
        mr.open_dataset(tmp_path, options=mr.ReadOptions(labelled_edges="hidden"))
    with pytest.raises(InputError, match="has no labels of edges; give pairs"):
        mr.open_dataset("digits", options=mr.ReadOptions(labels_of="edges"))
    mr.write_dataset(tmp_path / "store", mr.open_dataset("digits"))
    with pytest.raises(InputError, match="store has no labels of edges; give pairs"):
        mr.open_dataset(tmp_path / "store", options=mr.ReadOptions(labels_of="edges"))


def test_tables_of_several_types(tmp_path):
    edges = {"src": ["ann", "bob", "ann"], "dst": ["m1", "m1", "m2"], "label": [5.0, 3.5, None]}
    pq.write_table(pa.table(edges), tmp_path / "edges-user-rates-movie.parquet")
    pq.write_table(pa.table({"id": ["ann", "bob"], "x_0": [1.0, 2.0]}), tmp_path / "nodes-user.parquet")
    pq.write_table(pa.table({"id": ["m1", "m2"], "x_0": [1.0, 2.0]}), tmp_path / "nodes-movie.parquet")
    options = replace(EDGES, direction="undirected", relation="rates")
    found = mr.open_dataset(tmp_path, options=options, split="fraction:0.5,0")
    start = found.graph.types.offsets[found.graph.types.node_type("movie")]
    users = found.graph.types.offsets[found.graph.types.node_type("user")]
    assert (found.pairs - [users, start]).tolist() == [[0, 0], [1, 0], [0, 1]] and found.task == "regression"
    assert np.isnan(found.labels[:, 0]).tolist() == [False, False, True]
    with pytest.raises(InputError, match="pairs are of one relation; set relation"):
        mr.open_dataset(tmp_path, options=replace(options, relation=None))


def test_a_conversion_is_what_was_opened(tmp_path):
    table = {"src": PAIRS[:, 0], "dst": PAIRS[:, 1], "label": LABELS, "split": ["train"] * 2 + [None] + ["val", "test"]}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(table), tmp_path / "in" / "edges.parquet")
    pq.write_table(pa.table({"id": range(4), "x_0": np.ones(4)}), tmp_path / "in" / "nodes.parquet")
    mr.convert(str(tmp_path / "in"), str(tmp_path / "store"), options=EDGES)
    assert same(mr.open_dataset(str(tmp_path / "store")), mr.open_dataset(tmp_path / "in", options=EDGES))
    assert json.loads((tmp_path / "store" / "manifest.json").read_text())["meta"]["task"] == "multiclass"


def test_columns_of_a_graph_beside_labelled_pairs(tmp_path):
    """They are followed where the kind of file has them, and refused where it has none."""
    (tmp_path / "pairs.csv").write_text("src,dst,label\na,b,0\nb,c,1\nc,a,0\n")
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])
    nx.set_node_attributes(graph, {n: {"age": k + 0.5, "size": 1.0 + k, "t": k} for k, n in enumerate("abc")})
    nx.write_graphml(graph, tmp_path / "g.graphml")
    given = {"labels_of": "edges", "pairs": str(tmp_path / "pairs.csv")}
    options = mr.ReadOptions(**given, feature_columns=("size",), node_time="t")
    found = mr.open_dataset(tmp_path / "g.graphml", options=options, split="fraction:0.4,0.3")
    features = found.features.gather(np.arange(3))
    assert features.tolist() == [[1], [2], [3]] and found.graph.node_time.tolist() == [0, 1, 2]
    for source in (tmp_path / "g.graphml", "digits"):
        with pytest.raises(InputError, match=r"bogus|which read\.feature_columns would choose"):
            mr.open_dataset(source, options=mr.ReadOptions(**given, feature_columns="bogus"))


def test_labelled_edges_are_those_of_the_relation(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,f\n" + "".join(f"{v},{v}.5\n" for v in range(5)))
    rows = "0,1,a,0\n1,2,b,7\n2,3,a,1\n3,4,b,8\n"
    (tmp_path / "edges.csv").write_text(f"src,dst,kind,label\n{rows}")
    kinds = mr.ReadOptions(
        direction="directed", labels_of="edges", relation="a", relation_column="kind", feature_columns="f"
    )
    found = mr.open_dataset(tmp_path, options=kinds, split="fraction:0.5,0")
    assert found.pairs.tolist() == [[0, 1], [2, 3]] and found.labels.tolist() == [0, 1]
    pairs = tmp_path / "given.csv"
    pairs.write_text(f"src,dst,relation,label\n{rows}")
    with pytest.raises(InputError, match=r"given\.csv: relation is 'b', whose pairs are not predicted"):
        mr.open_dataset(tmp_path, options=replace(kinds, pairs=str(pairs)), split="fraction:0.5,0")
    pairs.write_text("src,dst,relation,label\n0,1,a,0\n2,3,a,1\n")
    again = mr.open_dataset(tmp_path, options=replace(kinds, pairs=str(pairs)), split="fraction:0.5,0")
    assert np.array_equal(again.pairs, found.pairs) and np.array_equal(again.labels, found.labels)


def test_a_relation_column_of_typed_files_and_one_hot_columns(tmp_path):
    """Files that are typed by name have their relation; columns of text become flags once."""
    for kind in "uv":
        (tmp_path / f"nodes-{kind}.csv").write_text("id,f\n" + "".join(f"{v},{v}.5\n" for v in range(4)))
    (tmp_path / "edges-u-r-v.csv").write_text("src,dst,rel,label\n0,1,r,0\n1,2,b,1\n2,3,r,1\n3,0,b,0\n")
    given = {"direction": "directed", "labels_of": "edges", "feature_columns": "f"}
    typed = mr.open_dataset(tmp_path, options=mr.ReadOptions(**given, relation_column="rel"), split="fraction:0.5,0")
    assert typed.labels.tolist() == [0, 1, 1, 0]
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "nodes.csv").write_text("id,f\n" + "".join(f"{v},{v}.5\n" for v in range(4)))
    (plain / "edges.csv").write_text("src,dst,rel,kind,label\n0,1,a,x,0\n1,2,b,y,1\n2,3,a,z,1\n")
    options = mr.ReadOptions(**given, relation_column="rel", relation="a", one_hot="kind")
    assert mr.open_dataset(plain, options=options, split="fraction:0.5,0").labels.tolist() == [0, 1]


def test_columns_of_folders_are_features_of_labelled_edges(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,f\n0,1.5\n1,2.5\n2,3.5\n")
    for day in (1, 2):
        (tmp_path / "edges" / f"day={day}").mkdir(parents=True)
        (tmp_path / "edges" / f"day={day}" / "a.csv").write_text(f"src,dst,label\n0,{day},{day - 1}\n{day},0,0\n")
    options = mr.ReadOptions(labels_of="edges", direction="directed", edge_feature_columns="day")
    found = mr.open_dataset(tmp_path, options=options, split="fraction:0.5,0")
    assert found.pair_features.tolist() == [[1], [1], [2], [2]] and found.pairs.tolist() == [
        [0, 1],
        [1, 0],
        [0, 2],
        [2, 0],
    ]
