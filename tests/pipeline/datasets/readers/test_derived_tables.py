"""Tables that are made of others: nodes of the ends of edges, and relations of a column."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.pipeline.datasets.readers import derived_tables
from millrace.pipeline.ingest import convert, opened
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import cut_small, parquet, same

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
    options = mr.ReadOptions(**OPTIONS, relation_column="how")
    assert convert._why_in_memory(folder, options) is None
    data = same(folder, tmp_path, mr.ReadOptions(**OPTIONS, relation_column="how"), split="fraction:0.5,0.2")
    assert data.graph.types.relations == (("node", "knows", "node"), ("node", "likes", "node"))
    assert np.bincount(data.graph.edge_type).tolist() == [V // 2, V // 2]
    (folder / "edges.csv").write_text("src,dst,how\n0,1,\n" + rows)
    for column, found in (("kind_of", "edges have no column 'kind_of'"), ("how", "column edges.how holds 1 nulls")):
        with pytest.raises(InputError, match=found) as want:
            mr.open_dataset(folder, options=mr.ReadOptions(**OPTIONS, relation_column=column))
        with pytest.raises(InputError) as got:
            mr.convert(
                folder, tmp_path / "out", options=mr.ReadOptions(**OPTIONS, relation_column=column), verbose=False
            )
        assert str(got.value).replace("read.", "") == str(want.value).replace("read.", "")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ('0,1,"a,b"\n1,2,c\n', "a relation is called 'a,b'; expected a printable name without commas"),
        ('0,1,""\n1,2,c\n', "column edges.how holds 1 nulls; expected a relation in each row"),
        ("", "edges.csv has a header and no rows"),
        ("0,1,a\n1,2,b\n2,0,c\n", "how has more than 2 values; set read.relation_column to another"),
    ],
)
def test_values_that_name_no_relations(tmp_path, monkeypatch, rows, told):
    monkeypatch.setattr(derived_tables, "MOST_RELATIONS", 2)
    folder = write(tmp_path / "g", nodes="id,age,kind\n0,1,x\n1,2,y\n2,3,x\n", edges="src,dst,how\n" + rows)
    options = mr.ReadOptions(**OPTIONS, relation_column="how")
    with pytest.raises(InputError) as want:
        mr.open_dataset(folder, options=options)
    with pytest.raises(InputError) as got:
        mr.convert(folder, tmp_path / "out", options=options, verbose=False)
    assert told in str(want.value) and str(got.value).replace("read.", "") == str(want.value).replace("read.", "")


def test_large_groups_of_rows_are_split_by_pieces(tmp_path, monkeypatch):
    """As many rows as memory has room for, as they are in the file: features of one_hot are made of them later."""
    cut_small(monkeypatch)
    seen = list[int]()

    def split(rows, column):
        seen.append(rows.num_rows)
        assert rows["city"].type == pa.string()
        return derived_tables.rows_by_relation(rows, column)

    stand_in = SimpleNamespace(**{**vars(derived_tables), "rows_by_relation": split})
    monkeypatch.setattr(opened, "derived", stand_in)
    rng, folder = np.random.default_rng(0), tmp_path / "g"
    of_edges = {"kind": rng.choice(["a", "b"], 600), "city": rng.choice(["york", "ulm", "rome"], 600)}
    ends = {end: rng.integers(0, 40, 600) for end in ("src", "dst")}
    parquet(folder, "edges", pa.table({**ends, **of_edges}), cuts=(0.5,), group=300)
    parquet(folder, "nodes", pa.table({"label": rng.integers(0, 2, 40), "feature_0": rng.random(40)}))
    data = same(folder, tmp_path, mr.ReadOptions(relation_column="kind", one_hot="city"), split="fraction:0.5,0.2")
    assert data.graph.num_edges == sum(seen) == 600 and data.graph.num_edge_features == 3 and max(seen) < 150


def test_relations_in_many_pieces(tmp_path, monkeypatch):
    """Each value of a column in many row groups, with weights, features and nodes whose ids have gaps."""
    cut_small(monkeypatch)
    rng, folder = np.random.default_rng(0), tmp_path / "g"
    ids = rng.choice(1000, 40, replace=False)
    kind = pa.array(np.array(["a", "b c", "ü"])[rng.integers(0, 3, 300)])
    ends = {end: ids[rng.integers(0, 40, 300)] for end in ("src", "dst")}
    parquet(folder, "edges", pa.table({**ends, "kind": kind, "weight": rng.random(300), "feature_0": rng.random(300)}))
    parquet(folder, "nodes", pa.table({"id": ids, "label": rng.integers(0, 2, 40), "feature_0": rng.random(40)}))
    options = mr.ReadOptions(relation_column="kind", missing_ids="compact")
    data = same(folder, tmp_path, options, split="fraction:0.5,0.2")
    assert data.graph.num_edges == 300 and data.graph.types.num_relations == 3


def test_nodes_of_edges_that_are_numbers(tmp_path):
    folder = write(tmp_path / "g", edges="from,to\n70,7\n7,900\n900,70\n5,7\n5,70\n")
    data = same(folder, tmp_path, mr.ReadOptions(direction="directed", task="link"), split="fraction:0.6,0.2")
    assert list(data.node_names) == ["5", "7", "70", "900"]


def test_columns_that_can_be_no_relation_are_refused():
    with pytest.raises(InputError, match="one_hot names how, which is relation_column; leave it out of one_hot"):
        mr.ReadOptions(relation_column="how", one_hot=("how", "x"))
    with pytest.raises(InputError, match=r"how is list<item: int64>; set read\.relation_column to text or numbers"):
        derived_tables.rows_by_relation(pa.table({"how": [[1], [2]]}), "how")
