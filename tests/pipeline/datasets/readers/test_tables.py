"""Tables with names: CSV and Parquet, what they are read as, what comes back, and what is refused."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from millrace.pipeline.commands.describe import describe
from millrace.pipeline.config.load import parse_override, resolve
from millrace.pipeline.datasets import ReadOptions, from_networkx, from_scipy, open_dataset
from millrace.pipeline.ingest.convert import convert
from millrace.pipeline.setup.open_data import open_data
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

EDGES = """\
Source,Target,weight,since
"Meier, Ann",bob,0.5,2001
bob,"Meier, Ann",2,2002
çelik,bob,1,2003
"""
NODES = """\
id,label,split,age,income,city
bob,dog,train,30,1.5,Bern
"Meier, Ann",cat,val,40,,Genf
çelik,,,50,3.5,Chur
007,dog,test,60,4.5,Bern
"""
NAMES, AGES = ["bob", "Meier, Ann", "çelik", "007"], [[30], [40], [50], [60]]
DIRECTED = ReadOptions(direction="directed", feature_columns="age")


def write(folder, edges=EDGES, nodes=NODES, kind="csv", encoding="utf-8"):
    folder.mkdir(exist_ok=True)
    for stem, text in (("edges", edges), ("nodes", nodes)):
        if text is None:
            continue
        text = text.replace(",", "\t").replace("Meier\t", "Meier,") if "tsv" in kind else text
        data = text.encode(encoding)
        (folder / f"{stem}.{kind}").write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    return folder


def assert_is_the_graph(d):
    d.check()
    assert (list(d.node_names), d.class_names, d.num_classes) == (NAMES, ("cat", "dog"), 2)
    assert d.labels.tolist() == [1, 0, -1, 1]
    assert [d.graph.indices[d.graph.indptr[v] : d.graph.indptr[v + 1]].tolist() for v in range(4)] == [
        [1, 2],
        [0],
        [],
        [],
    ]
    assert d.graph.edge_weight.tolist() == [0.5, 1, 2]
    assert [d.split.train.tolist(), d.split.val.tolist(), d.split.test.tolist()] == [[0], [1], [3]]
    assert d.features.gather(np.arange(4)).tolist() == AGES


@pytest.mark.parametrize(
    ("kind", "encoding", "one_file"),
    [("csv", "utf-8", False), ("csv", "utf-8-sig", True), ("tsv", "utf-8", True), ("csv.gz", "utf-8-sig", False)],
)
def test_csv_with_names(tmp_path, kind, encoding, one_file):
    folder = write(tmp_path / "g", kind=kind, encoding=encoding)
    d = open_dataset(folder / f"edges.{kind}" if one_file else folder, options=DIRECTED)
    assert_is_the_graph(d)
    assert d.name == "g"
    assert any(f"nodes were read from {folder}" in n for n in d.notes) == one_file
    assert "1 node is unlabelled (-1)." in d.notes
    assert "Columns of edges were not read: since (edge_feature_columns=since takes them as features)." in d.notes
    assert "Columns of nodes that are not numeric were not read: city." in d.notes
    write_dataset(tmp_path / "store", d)
    again = open_dataset(tmp_path / "store")
    assert_is_the_graph(again)
    assert again.notes == d.notes
    record = describe(str(tmp_path / "store"), None)
    assert "set read.direction=directed" in describe(str(folder), None)["direction"]
    code, out, err = command("inspect", folder, "--set", "read.direction=directed", "--json")
    assert code == 0, err
    assert json.loads(out)["names of nodes"] == record["names of nodes"]
    assert record["names of nodes"] == "'bob', 'Meier, Ann', 'çelik', '007'"
    assert record["names of classes"] == "'cat', 'dog'"


def test_parquet_with_names(tmp_path):
    bobs = ["bob", "Meier, Ann", "çelik", "007"]
    label = pa.array(["dog", "cat", "", "dog"]).dictionary_encode()
    nodes = {
        "id": pa.array(bobs, pa.large_string()),
        "label": label,
        "split": ["train", "val", None, "test"],
        "age": [30, 40, 50, 60],
    }
    edges = {"src": pa.array([1, 0, 2]), "dst": pa.array([0, 1, 0]), "w": [0.5, 2.0, 1.0]}
    edges |= {key: pa.array([bobs[v] for v in edges[key].to_pylist()]).dictionary_encode() for key in ("src", "dst")}
    pq.write_table(pa.table(edges), tmp_path / "edges.parquet")
    pq.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    assert_is_the_graph(open_dataset(tmp_path, options=DIRECTED))
    assert_is_the_graph(open_dataset(tmp_path / "edges.parquet", options=DIRECTED))


def test_a_column_twice_in_parquet(tmp_path):
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), tmp_path / "edges.parquet")
    twice = pa.Table.from_arrays([pa.array([0, 1]), pa.array([0, 1]), pa.array([1, 0])], names=["id", "label", "id"])
    pq.write_table(twice, tmp_path / "nodes.parquet")
    with pytest.raises(InputError, match=r"nodes\.parquet has the column 'id' more than once") as want:
        open_dataset(tmp_path, options=DIRECTED)
    with pytest.raises(InputError) as got:
        convert(tmp_path, tmp_path / "out", options=DIRECTED, verbose=False)
    assert str(got.value) == str(want.value)


def test_the_file_of_nodes_can_be_named(tmp_path):
    folder = write(tmp_path / "g")
    with pytest.raises(
        InputError, match=r"nodes.csv is a file of nodes; give the file of edges, .*edges.csv, or the folder"
    ):
        open_dataset(folder / "nodes.csv", options=DIRECTED)
    (folder / "sub").mkdir()
    (folder / "nodes.csv").rename(folder / "sub" / "people.csv")
    with pytest.raises(
        InputError, match=r"edges.csv is read as a list of edges, .* put nodes.csv .* beside it, or set nodes_file=FILE"
    ):
        open_dataset(folder / "edges.csv", options=DIRECTED)
    options = {"direction": "directed", "feature_columns": "age", "nodes_file": "sub/people.csv"}
    assert_is_the_graph(open_data(resolve({"read": options}), folder / "edges.csv", lambda _: None))
    with pytest.raises(
        InputError,
        match=r"nodes_file=x.csv.*: .*g/x.csv is not a file of a table, .*; expected a path from the folder of edges",
    ):
        open_dataset(folder / "edges.csv", options=ReadOptions(nodes_file="x.csv"))
    (folder / "labels.txt").write_text("ann 0\n")
    with pytest.raises(InputError, match=r"g/labels.txt is not a file of a table, such as .csv"):
        open_dataset(folder / "edges.csv", options=ReadOptions(nodes_file="labels.txt"))


def test_whole_numbers_in_csv_are_numbers_and_gaps_keep_theirs_as_names(tmp_path):
    nodes = "id,label,x0\n2,0,1.5\n0,1,2.5\n1,0,3.5\n"
    d = open_dataset(write(tmp_path / "a", "src,dst\n0,1\n1,2\n", nodes), options=ReadOptions(direction="directed"))
    assert (d.node_names, d.class_names, d.labels.tolist()) == (None, None, [1, 0, 0])
    assert d.features.gather(np.arange(3)).tolist() == [[2.5], [3.5], [1.5]]
    folder = write(tmp_path / "b", "src,dst\n7,70\n", "id,label\n70,3\n7,0\n")
    d = open_dataset(folder, options=ReadOptions(direction="directed", missing_ids="compact", label_gaps="compact"))
    assert (list(d.node_names or ()), d.class_names, d.labels.tolist()) == (["7", "70"], ("0", "3"), [0, 1])


def test_columns_that_are_not_read_are_named_with_the_key_that_takes_them(tmp_path):
    notes, folder = [], write(tmp_path / "g", nodes=NODES.replace("40,,", "40,2.5,"))
    read = {"direction": "directed"}
    open_data(resolve({"read": read}), folder, lambda event: notes.append(getattr(event, "text", "")))
    assert (
        "Columns of nodes were not read: age, income (read.feature_columns=age,income takes them as features)." in notes
    )
    for given in ("age,income", ["age", "income"], "*", ("age", "income")):
        d = open_data(resolve({"read": {**read, "feature_columns": given}}), folder, lambda _: None)
        assert d.features.gather(np.arange(4)).tolist() == [[30, 1.5], [40, 2.5], [50, 3.5], [60, 4.5]]
        assert not any("were not read: age" in n for n in d.notes)
    assert parse_override("read.feature_columns=age,income") == (["read", "feature_columns"], "age,income")
    with pytest.raises(InputError, match=r"nodes has no column 'incom'.*did you mean 'income'"):
        open_dataset(folder, options=ReadOptions(feature_columns="age,incom"))
    with pytest.raises(InputError, match=r"column nodes.city is string; expected numbers"):
        open_dataset(folder, options=ReadOptions(feature_columns=("city",)))
    for bad in ("age,,income", 5, ("age", 5)):
        with pytest.raises(InputError, match="expected names of columns such as"):
            ReadOptions(feature_columns=bad)
    np.savez(tmp_path / "g.npz", y=np.zeros(3))
    with pytest.raises(InputError, match=r"has no tables, which read.feature_columns would choose from"):
        open_dataset(tmp_path / "g.npz", options=ReadOptions(feature_columns="age"))


def test_list_columns_and_single_ones_are_taken_together(tmp_path):
    nodes = {"label": [0, 1], "x": [[1.0, 2.0], [3.0, 4.0]], "age": [5, 6]}
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), tmp_path / "edges.parquet")
    pq.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    d = open_dataset(tmp_path)
    assert d.features.num_features == 2
    assert any("not read: age (feature_columns=x,age takes" in n for n in d.notes)
    d = open_dataset(tmp_path, options=ReadOptions(feature_columns="age,x"))
    assert d.features.gather(np.arange(2)).tolist() == [[5, 1, 2], [6, 3, 4]]


BAD_CSV = [
    ({"edges": ""}, "is empty"),
    ({"edges": "\n\n"}, "is empty, or its first line is"),
    ({"nodes": "0,1\n1,0\n"}, "has no header: its first line is '0,1'; put one such as id,label above it"),
    ({"edges": "ann,bob\nbob,eve\n"}, "has no header: its first line 'ann,bob' has the value 'bob', as rows below"),
    ({"edges": "ann,bob\neve,dan\n"}, "edges has no column 'src'; it holds ann, bob"),
    ({"nodes": "bob,7,red\nann,8,red\n"}, "nodes.csv has no header: its first line 'bob,7,red' has the value 'red'"),
    (
        {"edges": "0,1,0\n1,0,1\n0,1,0\n"},
        "edges.csv looks like an adjacency matrix",
    ),
    ({"edges": ",a,b,c\na,0,1,0\nb,1,0,1\nc,0,1,0\n"}, "edges.csv looks like an adjacency matrix"),
    ({"edges": ",a,b,c\nb,1,,1\na,,1,\nc,,1,\n"}, "first give its rows the order of its columns, a, b, c, ..."),
    ({"edges": "sep=;\n;a;b;c\na;;1;\nb;1;;\nc;1;;\n"}, "skip_header=2, filling_values=0, delimiter=';')[:, 1:]"),
    ({"edges": "src dst\na b\n"}, "the header 'src dst' is one column; separate columns by commas, not by ' '"),
    ({"edges": "src,src,dst\na,b,c\n"}, "the header names 'src' more than once"),
    ({"edges": "src,dst\nbob,007\nbob\n"}, "expected a CSV file in UTF-8 with the same columns in every row"),
    ({"edges": "src,dst\nbob,\n"}, "edges.dst holds 1 nulls (NA and null are nulls in CSV unless quoted)"),
    ({"edges": "src,dst\nbob,NA\n"}, "edges.dst holds 1 nulls"),
    ({"edges": 'src,dst\nbob,"NA"\n'}, "1 values of edges.dst (first: 'NA') are not the id of any node"),
    ({"edges": "src,dst\nbob,eve\n"}, "1 values of edges.dst (first: 'eve') are not the id of any node"),
    ({"edges": "src,dst,weight\nbob,007,much\n"}, "edges.weight is string; expected numbers"),
    ({"nodes": "id,label\nbob,1\nbob,0\n"}, "nodes.id holds 'bob' more than once"),
    ({"nodes": "id,label\nbob,1\n,0\n"}, "nodes.id holds 1 nulls"),
    ({"nodes": "label\n1\n0\n"}, "the ends of edges are text, but nodes has no column 'id'"),
    ({"nodes": "id,lable\nbob,1\n"}, "nodes has no column 'label'"),
    ({"nodes": "id,label\n"}, "there are no nodes"),
    ({"nodes": NODES.replace("train", "tran")}, "nodes.split holds 'tran'"),
    ({"nodes": None}, "holds no nodes*.parquet or nodes*.csv"),
    ({"nodes": NODES, "encoding": "latin-1"}, "in UTF-8"),
]


@pytest.mark.parametrize(("changes", "phrase"), BAD_CSV)
def test_bad_csv(tmp_path, changes, phrase):
    with pytest.raises(InputError) as e:
        open_dataset(write(tmp_path / "g", **changes), options=ReadOptions(direction="directed"))
    assert phrase in str(e.value), str(e.value)
    assert "\n" not in str(e.value)


def test_networkx_names_of_nodes_and_classes():
    g = nx.DiGraph()
    for name, label in (("ann", "cat"), ("bob", "dog"), ("eve", None)):
        g.add_node(name, **({} if label is None else {"y": label}))
    g.add_edge("ann", "eve")
    d = from_networkx(g, train=["bob"], test=["ann"])
    assert (list(d.node_names or ()), d.class_names, d.labels.tolist()) == (
        ["ann", "bob", "eve"],
        ("cat", "dog"),
        [0, 1, -1],
    )
    assert (d.split.train.tolist(), d.split.val.tolist(), d.split.test.tolist()) == ([1], [], [0])
    assert open_dataset(nx.relabel_nodes(g, {"ann": 0, "bob": 2, "eve": 1})).node_names is None
    with pytest.raises(InputError, match=r"1 nodes of the train split \(first: 'zoe'\) are not in the graph"):
        from_networkx(g, train=["zoe"])
    with pytest.raises(InputError, match=r"two nodes are called '1' .* rename one of them"):
        from_networkx(nx.relabel_nodes(g, {"ann": 1, "bob": "1"}))
    g.nodes["ann"]["y"] = 5
    with pytest.raises(InputError, match="'y' is text on some nodes and int on others"):
        from_networkx(g)


def test_scipy_names_of_nodes_and_splits_by_name():
    ring = sp.csr_array(([1, 1, 1], ([0, 1, 2], [1, 2, 0])), shape=(3, 3))
    options = ReadOptions(direction="directed", components="largest")
    d = from_scipy(
        ring, None, ["a", "b", ""], train=["bob"], test=["ann"], node_names=["ann", "bob", "eve"], options=options
    )
    assert (d.labels.tolist(), d.class_names, d.split.train.tolist(), d.split.test.tolist()) == (
        [0, 1, -1],
        ("a", "b"),
        [1],
        [0],
    )
    with pytest.raises(InputError, match=r"scipy: the train split: 1 name \(first: 'zoe'\) is no node's"):
        from_scipy(ring, None, [0, 1, 0], train=["zoe"], node_names=["ann", "bob", "eve"], options=options)
    with pytest.raises(InputError, match="2 node names for 3 nodes"):
        from_scipy(ring, None, [0, 1, 0], node_names=["ann", "bob"])
    apart = sp.csr_array(([1, 1], ([0, 2], [2, 0])), shape=(3, 3))
    kept = from_scipy(apart, None, [0, 1, 1], node_names=["ann", "bob", "eve"], options=options)
    numbered = from_scipy(apart, None, [0, 1, 1], options=options)
    assert (list(kept.node_names or ()), list(numbered.node_names or ())) == (["ann", "eve"], ["0", "2"])


def test_files_of_other_programs_are_told_how(tmp_path):
    for name, phrase in (
        ("g.pt", "weights_only=False"),
        ("g.gml", "cannot be read by networkx.read_gml"),
    ):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError) as e:
            open_dataset(tmp_path / name)
        assert phrase in str(e.value)


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[4] / "docs" / "data.md").read_text()
    files = re.findall(r"cat > (club/\S+) <<END\n(.*?)END\n", text, re.DOTALL)
    (tmp_path / "club").mkdir()
    for path, content in files:
        (tmp_path / path).write_text(content)
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "club" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    dataset = open_dataset("store")
    assert (len(files), dataset.graph.num_edges, dataset.features.num_features) == (2, 8, 2)
    assert f"# {dataset.node_names[2]!r}, {dataset.class_names!r}" in code
