"""One role for each column of a table: by keys, by the format, by words."""

from typing import Any

import pyarrow as pa

from millrace.pipeline.datasets import ReadOptions
from millrace.pipeline.datasets.schema.columns import Assignment, Columns
from millrace.pipeline.datasets.schema.source import SourceTable

TEXT, INT, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def nodes(columns: dict[str, Any], labelled=True, given=None, **options) -> tuple[Columns, Assignment]:
    own = Assignment(SourceTable("nodes", roles=given or {}), pa.schema(columns), ReadOptions(**options), "g", ())
    return own.nodes(labelled=labelled, why_not="the task is link"), own


def edges(columns: dict[str, Any], labelled=False, **options) -> tuple[Columns, Assignment]:
    own = Assignment(SourceTable("edges"), pa.schema(columns), ReadOptions(**options), "g", ())
    return own.edges(labelled=labelled), own


def test_every_column_has_one_role_and_a_reason():
    found, own = nodes(
        {"personId": TEXT, "y": INT, "x0": FLOAT, "city": TEXT, "trainMask": BOOL, "branch_id": INT}, id="personId"
    )
    assert (found.id, found.labels, found.masks, found.features) == (
        "personId",
        ("y",),
        {"train": "trainMask"},
        ("x0",),
    )
    assert {name: role for name, (role, _) in found.roles.items()} == {
        "personId": "id", "y": "label", "x0": "feature", "city": "not read", "trainMask": "mask",
        "branch_id": "not read",
    }  # fmt: skip
    assert found.roles["personId"][1] == "read.id=personId" and all(why for _, why in found.roles.values())
    assert own.notes == [
        "Columns of nodes that are not numeric were not read: city.",
        "Columns of nodes that look like ids were not read: branch_id.",
    ]


def test_all_features_are_neither_masks_nor_ids_and_are_listed():
    columns = {
        "id": INT,
        "label": INT,
        "age": INT,
        "postId": INT,
        "train": BOOL,
        "index": INT,
        "pay": FLOAT,
        "name": TEXT,
    }
    found, own = nodes(columns, feature_columns="*")
    assert found.features == ("age", "pay") and found.masks == {"train": "train"}
    assert "Features of nodes (feature_columns=*): age, pay." in own.notes
    assert nodes(columns, feature_columns="train,postId")[0].features == ("train", "postId")


def test_the_format_gives_roles_that_keys_overrule():
    found, _ = nodes({"a": TEXT, "b": TEXT, "id": INT}, given={"a": "id", "b": "label"})
    assert (found.id, found.labels) == ("a", ("b",)) and found.roles["a"][1] == "the format says so"
    assert nodes({"a": TEXT, "id": INT, "y": INT}, given={"a": "id"}, id="id")[0].id == "id"
    assert nodes({"id": INT, "y": INT}, id="none")[0].id is None


def test_positions_of_a_drawing_are_neither_features_nor_labels():
    found, _ = nodes({"id": INT, "x": FLOAT, "y": FLOAT, "z": FLOAT, "kind": TEXT})
    assert not found.labels and not found.features and "drawing" in found.roles["y"][1]
    assert nodes({"id": INT, "x": FLOAT, "y": FLOAT}, label_columns="y", feature_columns="x")[0].labels == ("y",)
    assert nodes({"id": INT, "x": pa.list_(FLOAT), "y": INT})[0].features == ("x",)


def test_splits():
    assert nodes({"y": INT, "set": TEXT})[0].split == "set"
    assert nodes({"y": INT, "mask": TEXT})[0].split == "mask" and nodes({"y": INT, "mask": INT})[0].split is None
    assert nodes({"y": INT, "fold": TEXT}, split="fold")[0].split == "fold"
    masks = nodes({"y": INT, "a_train": BOOL, "is_valid": BOOL}, split="is_valid")[0]
    assert masks.masks == {"val": "is_valid"}
    none = nodes({"y": INT, "set": TEXT, "test": BOOL}, split="none")[0]
    assert not none.of_split and none.roles["test"] == ("not read", "read.split=none")
    _, both = nodes({"y": INT, "set": TEXT, "test": BOOL})
    assert "several splits: set, test" in both.problems.texts[0] and both.problems.keys == {"split": "set"}
    _, strange = nodes({"y": INT, "train": BOOL, "age": BOOL}, split="train,age")
    assert "'age', which names no set" in strange.problems.texts[0]
    link = nodes({"y": INT, "set": TEXT, "age": INT}, labelled=False)[0]
    assert not link.labels and not link.of_split and link.roles["set"] == ("not read", "the task is link")


def test_labels_of_edges_are_no_weights():
    columns = {"from": INT, "to": INT, "weight": FLOAT, "since": INT}
    assert edges(columns)[0].weight == "weight"
    found, own = edges(columns, labelled=True, labels_of="edges", label_columns="weight")
    assert (found.labels, found.weight, found.ends) == (("weight",), None, ("from", "to"))
    assert own.notes == ["Columns of edges were not read: since (edge_feature_columns=since takes them as features)."]
    assert edges(columns, weight="since")[0].weight == "since" and edges(columns, weight="none")[0].weight is None


def test_faults_are_told_together_with_a_command():
    _, own = edges({"ann": TEXT, "bob": TEXT, "kg": FLOAT}, edge_feature_columns="lb")
    assert own.problems.message("my graph", {}) == (
        "my graph: 3 problems: (1) g: edges has no column 'lb'; it holds ann, bob, kg; "
        "(2) g: edges has no column 'src'; it holds ann, bob, kg: set read.src to its name; "
        "(3) g: edges has no column 'dst'; it holds ann, bob, kg: set read.dst to its name. "
        "Try: millrace inspect 'my graph' --set read.src=ann --set read.dst=bob"
    )
    _, own = edges({"source": INT, "target": INT, "source_id": INT, "target_id": INT})
    assert "several columns of ends: source and target or source_id and target_id" in own.problems.texts[0]
    _, own = nodes({"aId": INT, "bId": INT, "x": FLOAT})
    assert "look like ids: aId, bId; set read.id=aId" in own.problems.texts[0]
    assert "column nodes.x is double; expected a list" in own.problems.texts[1]


def test_times_of_none_are_none_and_all_columns_are_no_time():
    assert nodes({"id": INT, "at": INT}, node_time="at")[0].time == "at"
    assert nodes({"id": INT, "at": INT}, node_time="none")[0].time is None
    assert edges({"src": INT, "dst": INT, "at": INT}, edge_time="none")[0].time is None
    _, own = nodes({"id": INT, "at": INT}, node_time="*")
    assert any("*" in text for text in own.problems.texts)
