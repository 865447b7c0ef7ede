"""The schema of a source: its files, and one role for each column, as they are shown."""

from pathlib import Path

import pyarrow as pa
import pytest

from millrace.pipeline.datasets import ReadOptions, open_dataset
from millrace.pipeline.datasets.schema.roles import columns_of_pairs, schema_of
from millrace.pipeline.datasets.schema.source import GraphTables, SourceTable
from millrace.storage.errors import InputError

NODES = SourceTable("nodes", (Path("nodes.csv"),))
EDGES = SourceTable("edges", tuple(Path(f"edges-{i}.csv") for i in range(3)))
HEADS = [pa.schema({"Id": pa.int64(), "kind": pa.string()}), pa.schema({"u": pa.int64(), "v": pa.int64()})]


def test_what_is_shown():
    source = GraphTables("g", "g", (NODES, EDGES), (("pairs.csv", "it is the file of pairs"),))
    schema = schema_of(source, HEADS, ReadOptions(label_columns="kind"))
    assert schema.show() == {
        "files of nodes": "nodes.csv",
        "files of edges": "3 files, edges-0.csv to edges-2.csv",
        "left out: pairs.csv": "it is the file of pairs",
        "nodes.Id": "id (by its name)",
        "nodes.kind": "label (read.label_columns)",
        "edges.u": "source (by its name)",
        "edges.v": "target (by its name)",
    }
    assert schema.notes == (
        "Read of nodes (nodes.csv): id Id, label kind.",
        "Read of edges (3 files, edges-0.csv to edges-2.csv): source u, target v.",
        "pairs.csv was left out: it is the file of pairs.",
    )
    record = schema.record()
    assert record["columns"][0] == {"table": "nodes", "column": "Id", "role": "id", "why": "by its name"}
    assert record["files"]["nodes"] == ["nodes.csv"]


def test_all_faults_of_all_tables_in_one_message():
    source = GraphTables("g", "g", (NODES, EDGES))
    heads = [HEADS[0], pa.schema({"p": pa.int64(), "q": pa.int64()})]
    with pytest.raises(InputError) as e:
        schema_of(source, heads, ReadOptions())
    text = str(e.value)
    assert text.startswith("g: 3 problems: (1) edges has no column 'src'")
    assert "nodes has no column 'label'" in text and "task=link to predict edges" in text
    assert text.endswith("--set read.src=p --set read.dst=q --set read.label_columns=kind")
    with pytest.raises(InputError) as e:
        schema_of(source, heads, ReadOptions(direction="directed", feature_columns=("a", "b")))
    assert "Try: millrace inspect g --set read.direction=directed --set read.feature_columns=a,b --set" in str(e.value)


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"churn": ["yes", "no"] * 4}, "churn"),
        ({"kind": list("abcdabcd"), "country": ["x", "y"] * 4}, "kind"),
        ({"city": list("abcdabcd"), "country": ["x", "y"] * 4}, None),  # only the user knows
        ({"note": list("abcdefgh")}, None),
        ({}, None),
    ],
)
def test_what_is_proposed_for_ids_sets_and_labels(tmp_path, labels, wanted):
    names = [f"u{v}" for v in range(8)]
    columns = {"customer": names, "phone": [f"+{v}" for v in range(8)], "fold": list("aabbccaa"), **labels}
    rows = [",".join(columns), *map(",".join, zip(*columns.values()))]
    (tmp_path / "nodes.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "edges.csv").write_text("buyer,seller\n" + "".join(f"{u},u0\n" for u in names))
    with pytest.raises(InputError) as e:
        open_dataset(tmp_path)
    text = str(e.value)
    keys = "--set read.src=buyer --set read.dst=seller --set read.id=customer --set read.split=fold"
    assert "5 problems" in text and text.endswith(keys + (f" --set read.label_columns={wanted}" if wanted else ""))
    assert "set read.label_columns to" in text and " label_columns" not in text


def test_a_key_for_the_table_of_one_type():
    tables = tuple(SourceTable("nodes", type=t) for t in ("a", "b"))
    source = GraphTables("g", "g", (*tables, SourceTable("edges", type=("a", "r", "b"))))
    heads = [pa.schema({"key": pa.int64(), "label": pa.int64()}), pa.schema({"id": pa.int64()}), HEADS[1]]
    schema = schema_of(source, heads, ReadOptions(id="key"))
    assert [c.id for c in schema.nodes] == ["key", "id"] and schema.target == "a"
    with pytest.raises(InputError, match="id has 'kee', which no nodes-TYPE has; expected one of id, key, label"):
        schema_of(source, heads, ReadOptions(id="kee"))


def test_pairs_have_columns_of_their_own():
    head = pa.schema({"from": pa.int64(), "to": pa.int64(), "label": pa.int64(), "set": pa.string()})
    found = columns_of_pairs(head, "p.csv", ReadOptions(src="a", dst="b", labels_of="edges"), labelled=True)
    assert (found.ends, found.labels, found.split) == (("from", "to"), ("label",), "set")
    with pytest.raises(InputError, match="has no column 'label'"):
        columns_of_pairs(head.remove(2), "p.csv", ReadOptions(labels_of="edges"), labelled=True)
