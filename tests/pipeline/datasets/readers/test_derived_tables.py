"""Tables that are made of others: nodes of the ends of edges, and relations of a column."""

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import same

V = 24
OPTIONS = {"direction": "directed", "feature_columns": "age", "label_columns": "kind"}


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_edges_alone_for_links(tmp_path):
    folder = write(tmp_path / "g", edges="source,target\nann,bob\nbob,eve\neve,ann\ndan,ann\nbob,dan\n")
    with pytest.raises(InputError, match="holds no nodes"):
        mr.open_dataset(folder, options=mr.ReadOptions(direction="directed"))
    for path in (folder, folder / "edges.csv"):
        data = same(path, tmp_path, mr.ReadOptions(direction="directed", task="link"), split="fraction:0.6,0.2")
        assert list(data.node_names) == ["ann", "bob", "dan", "eve"]
        assert any("4 nodes were taken from the ends of the edges" in note for note in data.notes)


def test_relations_of_a_column(tmp_path):
    nodes = "id,age,kind\n" + "".join(f"{v},{v},k{v % 3}\n" for v in reversed(range(V)))
    rows = "".join(f"{v},{(v + 1) % V},{['knows', 'likes'][v % 2]}\n" for v in range(V))
    folder = write(tmp_path / "g", nodes=nodes, edges="src,dst,how\n" + rows)
    data = same(folder, tmp_path, mr.ReadOptions(**OPTIONS, relation_column="how"), split="fraction:0.5,0.2")
    assert data.graph.types.relations == (("node", "knows", "node"), ("node", "likes", "node"))
    assert np.bincount(data.graph.edge_type).tolist() == [V // 2, V // 2]
    with pytest.raises(InputError, match="edges have no column 'kind_of'"):
        mr.open_dataset(folder, options=mr.ReadOptions(**OPTIONS, relation_column="kind_of"))


def test_nodes_of_edges_that_are_numbers(tmp_path):
    folder = write(tmp_path / "g", edges="from,to\n70,7\n7,900\n900,70\n5,7\n5,70\n")
    data = same(folder, tmp_path, mr.ReadOptions(direction="directed", task="link"), split="fraction:0.6,0.2")
    assert list(data.node_names) == ["5", "7", "70", "900"]
