"""Words that name the role of a column, in any spelling."""

import pytest

from millrace.pipeline.datasets.schema import words


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("sourceNodeId", "source_node_id"),
        (":START_ID", "start_id"),
        ("~from", "from"),
        ("Node ID", "node_id"),
        ("HTTPServerId", "http_server_id"),
        ("__index_level_0__", "index_level_0"),
        ("Größe", "größe"),
    ],
)
def test_names_in_any_spelling(name, folded):
    assert words.fold(name) == folded


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["age", "Id", "kind"], ["Id"]),
        (["VertexID", "age"], ["VertexID"]),
        (["customerId", "age"], ["customerId"]),
        (["customerId", "branch_id", "age"], ["customerId", "branch_id"]),
        (["id", "new_id"], ["id"]),
        (["", "age"], [""]),
        (["age", "__index_level_0__"], ["__index_level_0__"]),
        (["age", "paid", "valid"], []),
    ],
)
def test_columns_of_ids(names, found):
    assert words.id_columns(names) == found


def test_an_id_of_the_node_type():
    assert words.id_columns(["user_id", "branch_id"], "user") == ["user_id"]
    assert words.id_columns(["id", "user_id"], "user") == ["id"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["Source", "Target", "Type", "Weight"], [("Source", "Target")]),
        (["fromNodeId", "toNodeId"], [("fromNodeId", "toNodeId")]),
        (["id", ":START_ID", ":END_ID"], [(":START_ID", ":END_ID")]),
        (["node_1", "node_2"], [("node_1", "node_2")]),
        (["source", "source_id", "target_id"], [("source_id", "target_id")]),
        (["source", "target", "source_id", "target_id"], [("source", "target"), ("source_id", "target_id")]),
        (["src", "to"], [("src", "to")]),
        (["src", "tgt"], [("src", "tgt")]),
        (["origin", "destination", "count"], [("origin", "destination")]),
        (["subject", "predicate", "object"], [("subject", "object")]),
        (["src", "dst", "source", "target"], [("src", "dst")]),
        (["ann", "bob"], []),
        (["x1", "x2"], []),
    ],
)
def test_columns_of_ends(names, found):
    assert words.end_columns(names) == found


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train_mask", "train"),
        ("isTrain", "train"),
        ("VALID", "val"),
        ("validation_mask", "val"),
        ("mask_test", "test"),
        ("testing", "test"),
        ("latest", None),
        ("train_ids", "train"),
        ("training_hours", None),
    ],
)
def test_flags_of_sets(name, part):
    assert words.mask_of(name) == part


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["SOURCE_SUBREDDIT", "TARGET_SUBREDDIT", "POST_ID"], ["SOURCE_SUBREDDIT", "TARGET_SUBREDDIT"]),
        (["protein1", "protein2", "score"], ["protein1", "protein2"]),
        (["user_id", "item_id", "from_page", "to_page"], ["user_id", "item_id"]),
        (["day", "buyer_id"], ["buyer_id", "day"]),
    ],
)
def test_columns_that_may_be_ends(names, ends):
    assert words.likely_ends(names) == ends


def test_labels_and_features():
    assert words.label_columns(["Class", "age"]) == ("Class",)
    assert words.label_columns(["label_10", "label_2", "age"]) == ("label_2", "label_10")
    assert words.numbered_features(["x10", "x2", "feature_1", "x"]) == ("feature_1", "x2", "x10")
    assert words.is_text_first("accountId", "nodes") and not words.is_text_first("age", "nodes")
    assert words.is_text_first("toNode", "edges") and not words.is_text_first("weight", "edges")


@pytest.mark.parametrize(
    ("ends", "kinds"),
    [
        ("user item", "user item"),
        ("userId movie_id", "user movie"),
        ("userID artistID", "user artist"),
        ("source target", ""),
        ("origin destination", ""),
        ("from-person to-person", ""),
        ("from_user_id to_user_id", ""),
        ("person1 person2", ""),
        ("a b", ""),
    ],
)
def test_kinds_of_ends(ends, kinds):
    assert words.kinds_of_ends(ends.split()) == kinds.split()
