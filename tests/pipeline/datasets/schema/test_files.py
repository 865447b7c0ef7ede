"""Which files of a folder form which table."""

from pathlib import Path

import pytest

from millrace.pipeline.datasets.schema.files import entries_in, find, natural, note_missing_parts, tables_of
from millrace.pipeline.datasets.schema.source import SourceTable
from millrace.storage.errors import InputError


def test_parts_are_in_the_order_of_their_numbers():
    names = [f"nodes.part.{i}.parquet" for i in (10, 2, 1)] + ["edges-00002-of-00003.csv", "edges-00000-of-00003.csv"]
    found = find(names, "g")
    assert found["nodes"][None] == [f"nodes.part.{i}.parquet" for i in (1, 2, 10)]
    assert found["edges"][None] == ["edges-00000-of-00003.csv", "edges-00002-of-00003.csv"]
    assert sorted(["p10", "p9", "p"], key=natural) == ["p", "p9", "p10"]


def test_parts_that_are_missing_are_named():
    def table(*names):
        return SourceTable("nodes", tuple(map(Path, names)))

    told = note_missing_parts([table("nodes.part.0.csv", "nodes.part.1.csv", "nodes.part.3.csv")], "g")
    assert told == ("Files of nodes are numbered, and nodes.part.2.csv is missing.",)
    spark = "part-{:05d}-4f2a0d1e-77aa-c000.snappy.parquet"
    (told,) = note_missing_parts([table(*(spark.format(i) for i in (0, 1, 2, 5, 6)))], "g")
    assert f"{spark.format(3)}, {spark.format(4)} are missing" in told
    for names in (["a-1.csv"], ["nodes-1.csv", "nodes-2.csv"], ["nodes-0-of-2.csv", "nodes-1-of-2.csv"]):
        assert note_missing_parts([table(*names)], "g") == ()
    stamps = [f"nodes-{t}.csv" for t in (1700000000, 1700086400, 1700172800)]
    assert note_missing_parts([table(*stamps), table("nodes-a-1.csv", "nodes-b-2.csv")], "g") == ()
    with pytest.raises(
        InputError, match=r"g: of the 4 parts of nodes nodes-3-of-4\.csv is missing; put the parts there"
    ):
        note_missing_parts([table(*(f"nodes-{n}-of-4.csv" for n in (1, 2, 4)))], "g")
    for names in (["nodes-00000-of-00002.csv"], ["nodes-00000-of-00100.csv", "nodes-00001-of-00100.csv"]):
        with pytest.raises(InputError, match=r"of the (2|100) parts of nodes nodes-0000\d-of-"):
            note_missing_parts([table(*names)], "g")
    (note,) = note_missing_parts([table("nodes-8.csv", "nodes-10.csv")], "g")
    assert "nodes-9.csv is missing" in note
    with pytest.raises(InputError, match=r"of the 3 parts of nodes nodes-01-of-03\.csv is missing"):
        note_missing_parts([table("nodes-00-of-03.csv", "nodes-02-of-03.csv")], "g")


def test_types_by_dashes_and_by_underscores():
    found = find(["nodes-user-0.csv", "nodes-user-1.csv", "edges-user-has_seen-film.csv", "nodes-film.csv"], "g")
    assert found["nodes"] == {"film": ["nodes-film.csv"], "user": ["nodes-user-0.csv", "nodes-user-1.csv"]}
    assert list(found["edges"]) == [("user", "has_seen", "film")]
    found = find(["nodes_user.csv", "nodes_tv_show.csv", "edges_user_has_seen_tv_show.csv"], "g")
    assert list(found["nodes"]) == ["tv_show", "user"] and list(found["edges"]) == [("user", "has_seen", "tv_show")]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ["links.csv", "edges.tsv", "edges.csv.gz", "nodes.csv"],
            "edges.csv.gz and edges.tsv are both the table edges",
        ),
        (["edges.csv", "edges.parquet", "nodes.csv"], "edges.csv and edges.parquet are both"),
        (["nodes.csv", "nodes-1.csv", "edges.csv"], "nodes.csv is beside the numbered nodes-1.csv"),
        (["edges-0.csv", "edges-1.parquet", "nodes.csv"], "parts of edges are files of several kinds"),
        (["edges.csv", "edges (copy).csv", "nodes.csv"], r"several tables of edges: edges \(copy\).csv, edges.csv"),
        (["edges.csv", "nodes.csv", "nodes-backup.csv"], "several tables of nodes: nodes-backup.csv, nodes.csv"),
        (
            ["edges-train.csv", "edges-dev.csv", "nodes.csv"],
            "edges-dev.csv, edges-train.csv look like the sets of a split",
        ),
        (["edges_jan.csv", "edges_feb.csv", "nodes.csv"], "not clear how edges_feb.csv, edges_jan.csv form"),
        (["edges-list.csv", "nodes.csv"], "edges-list.csv is the only table of edges; call it edges.csv"),
        (["nodes-a.csv", "edges-a-r-a.csv", "nodes-3.csv"], "there is nodes-3.csv among tables of several types"),
        (["edges.csv"], r"holds no nodes\*\.parquet"),
        (["nodes.csv"], r"holds no edges\*\.parquet"),
    ],
)
def test_files_that_are_no_one_table_are_named(names, told):
    with pytest.raises(InputError, match=told):
        tables_of({name: (name,) for name in names}, "g")


def test_all_faults_come_together():
    with pytest.raises(InputError) as e:
        find(["edges.csv", "edges.tsv", "nodes.csv", "nodes_old.csv"], "g")
    assert "edges.csv and edges.tsv" in str(e.value) and "nodes_old.csv" in str(e.value)


def test_entries_are_files_in_natural_order(tmp_path):
    for name in ("edges-10.csv", "edges-9.csv", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "sub").mkdir()
    assert [n for n in entries_in(tmp_path) if n.endswith("csv")] == ["edges-9.csv", "edges-10.csv"]
    assert tables_of({"edges.csv": ("f",)}, "g", needs_nodes=False)[0].files == ("f",)
