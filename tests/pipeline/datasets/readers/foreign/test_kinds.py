"""Recognition of sources by their names and headers: one reader for each, and no contents read for files."""

from pathlib import Path

import pytest

from millrace.pipeline.datasets.readers.foreign.kinds import (
    first_line_of,
    has_marks,
    is_edge_list,
    kind_of_folder,
    networkx_reader,
)
from millrace.pipeline.datasets.readers.registry import READERS, reader_of


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("facebook_combined.txt", "edge-list"),
        ("CollegeMsg.txt.gz", "edge-list"),
        ("out.ego-facebook", "edge-list"),
        ("soc.edges.zst", "edge-list"),
        ("karate.gml", "network"),
        ("lesmis.gexf.gz", "network"),
        ("routes.graphml", "network"),
        ("miserables.json", "network"),
        ("west0067.mtx", "mtx"),
        ("west0067.mtx.gz", "mtx"),
        ("blogcatalog.mat", "mat"),
        ("cora.npz", "npz"),
        ("edges.feather", "tables"),
        ("edges.csv.zst", "tables"),
        ("edges.jsonl", "tables"),
        ("edges.npy", "tables"),
        ("data.pt", "torch"),
        ("ind.cora.graph", "planetoid"),
        ("graph.bin", None),
    ],
)
def test_one_reader_for_a_file(tmp_path, name, reader):
    (tmp_path / name).write_bytes(b"")
    found = reader_of(tmp_path / name)
    assert (None if found is None else found.name) == reader
    assert sum(each.recognises(tmp_path / name) for each in READERS.available().values()) == (reader is not None)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["adj_full.npz", "role.json"], "graphsaint"),
        (["entity2id.txt", "relation2id.txt", "train2id.txt"], "openke"),
        (["meta.yaml", "edges_0.csv"], "dgl"),
        (["cora.content", "cora.cites", "README"], "citations"),
        (["cora.content"], None),
        (["edges.csv", "nodes.csv"], None),
    ],
)
def test_folders(tmp_path, files, kind):
    assert kind_of_folder(tmp_path, files) == kind


def test_property_graphs_have_marks(tmp_path):
    (tmp_path / "people.csv").write_text(":ID,name\n")
    assert kind_of_folder(tmp_path, ["people.csv"]) == "property-graph"
    (tmp_path / "people.csv").write_text("id,name\n")
    assert kind_of_folder(tmp_path, ["people.csv", "gone.csv"]) is None
    assert first_line_of(tmp_path / "gone.csv") == ""


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        (":ID,age:int", True),
        ("personId:ID(Person)|name", True),
        ('"~id","~label"', True),
        (":START_ID\t:END_ID\t:TYPE", True),
        ("id,time:utc,a~b", False),
        ("source,target", False),
        ("url:https", False),
    ],
)
def test_marks(line, marked):
    assert has_marks(line) == marked


def test_names_of_files():
    assert networkx_reader(Path("a.GraphML.gz")) == "read_graphml" and networkx_reader(Path("a.csv")) is None
    assert is_edge_list(Path("A.TXT")) and not is_edge_list(Path("a.csv"))
