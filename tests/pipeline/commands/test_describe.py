"""`millrace inspect` of graphs whose labels or direction are not settled."""

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.commands.describe import describe
from millrace.pipeline.config.load import resolve
from millrace.storage.errors import InputError

EDGES = "src,dst\na,b\nb,c\nc,a\n"
OPEN = ("labels", "direction")


def test_a_list_of_edges_is_shown_with_what_a_run_must_be_told(tmp_path):
    (tmp_path / "edges.csv").write_text(EDGES)
    for source in (tmp_path, tmp_path / "edges.csv"):
        record = describe(str(source), None)
        assert (record["nodes"], record["edges"]) == (3, 3)
        assert "read.task=link" in record["labels"] and "read.direction=directed" in record["direction"]
        assert not {"classes", "split", "origin of the split"} & set(record)
        assert record["edges.src"] == "source (by its name)"
        with pytest.raises(InputError, match="task=link"):
            mr.open_dataset(source)


@pytest.mark.parametrize(("sets", "left"), [
    ((), {"labels", "direction"}),
    (("read.direction=undirected",), {"labels"}),
    (("read.label_columns=kind",), {"direction"}),
    (("read.label_columns=kind", "read.direction=directed"), set()),
])  # fmt: skip
def test_keys_settle_what_is_left(tmp_path, sets, left):
    (tmp_path / "edges.csv").write_text(EDGES)
    (tmp_path / "nodes.csv").write_text("id,kind\na,x\nb,y\nc,x\n")
    table = {"read": dict(each.removeprefix("read.").split("=") for each in sets)}
    record = describe(str(tmp_path), None, resolve(table) if sets else None)
    assert {key for key in OPEN if key in record} == left
    assert ("classes" in record) == ("labels" not in left)


def test_several_node_types_with_labels_are_shown(tmp_path):
    for t in ("user", "item"):
        (tmp_path / f"nodes-{t}.csv").write_text("id,label\n0,1\n1,1\n2,0\n")
    (tmp_path / "edges-user-buys-item.csv").write_text("src,dst\n0,1\n1,1\n")
    record = describe(str(tmp_path), None)
    assert record["node types"] == "item 3 (no features), user 3 (no features)"
    assert "set read.target=" in record["labels"]


@pytest.mark.parametrize("sets", [(), ("read.label_columns=Label",), ("read.direction=undirected",)])
def test_names_in_the_column_of_labels_are_shown(tmp_path, sets):
    """As Gephi exports a graph: Id and Label of each node."""
    (tmp_path / "edges.csv").write_text("Source,Target,Weight\n" + "".join(f"{i},{i + 1},2\n" for i in range(19)))
    (tmp_path / "nodes.csv").write_text("Id,Label\n" + "".join(f"{i},Person {i}\n" for i in range(20)))
    table = {"read": dict(each.removeprefix("read.").split("=") for each in sets)}
    record = describe(str(tmp_path), None, resolve(table) if sets else None)
    assert record["nodes"] == 20 and record["edge weights"]
    assert record["edges"] == (38 if "read.direction=undirected" in sets else 19)
    assert "they are names or ids" in record["labels"] and "read.task=link" in record["labels"]
    assert ("direction" in record) == ("read.direction=undirected" not in sets) and "classes" not in record
    with pytest.raises(InputError, match="they are names or ids"):
        mr.open_dataset(tmp_path)


def test_arrays_without_labels_are_shown(tmp_path):
    np.savez(tmp_path / "a.npz", edge_index=np.array([[0, 1], [1, 2]]))
    record = describe(str(tmp_path / "a.npz"), None)
    assert (record["nodes"], record["edges"]) == (3, 2) and {"labels", "direction"} <= set(record)


def test_other_faults_are_refused(tmp_path):
    (tmp_path / "edges.csv").write_text("a,b\n1,2\n")
    (tmp_path / "nodes.csv").write_text("id,kind\n1,x\n2,y\n")
    with pytest.raises(InputError, match="3 problems"):
        describe(str(tmp_path), None)


def test_a_run_without_its_job_is_no_table(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InputError, match=r"has a run's result\.json, but no job\.toml, which says what ran"):
        describe(str(tmp_path), None)
