"""Tables of several types: they are the dataset of the same arrays, however they are written, and each defect is one
sentence."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet as pq

import millrace as mr
from millrace.pipeline.datasets.schema.files import find
from millrace.pipeline.setup.open_data import with_keys
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.tests.contracts.command import command

RNG = np.random.default_rng(0)
WRITES = RNG.integers(0, 4, 9), RNG.integers(0, 6, 9)
CITES = RNG.integers(0, 6, (2, 8))
WEIGHT = RNG.random(8).astype(np.float32)
OF_CITES = np.arange(16, dtype=np.float32).reshape(8, 2)
LABELS = [0, 1, 0, 1, None, 1]
SPLIT = ["train", "train", "val", "test", None, "test"]
OF_PAPER, OF_AUTHOR = RNG.random((6, 2)).astype(np.float32), RNG.random((4, 3)).astype(np.float32)
PAPERS = np.array([12, 3, 40, 7, 5, 20])
"""Ids of papers that have their own, in the order of the rows above."""
AUTHORS = np.array(["ann", "bob", "3", "cem"])
COMPACT = mr.ReadOptions(missing_ids="compact")


def tables(papers=None, authors=None):
    """Tables by their names; with `papers` and `authors`, ids are these."""
    p, a = (np.arange(6) if papers is None else papers), (np.arange(4) if authors is None else authors)
    found = {
        "edges-author-writes-paper": {"src": a[WRITES[0]], "dst": p[WRITES[1]]},
        "edges-paper-cites-paper": {
            "from": p[CITES[0]],
            "to": p[CITES[1]],
            "weight": WEIGHT,
            "x0": OF_CITES[:, 0],
            "x1": OF_CITES[:, 1],
        },
        "nodes-paper": {"label": LABELS, "split": SPLIT, "feature_0": OF_PAPER[:, 0], "feature_1": OF_PAPER[:, 1]},
        "nodes-author": {"x": list(OF_AUTHOR)},
        "nodes-venue": {"id": np.array(["v", "w"])},
    }
    if papers is not None:
        found["nodes-paper"]["id"] = papers
    if authors is not None:
        found["nodes-author"]["id"] = authors
    return found


def write(folder, found, kind=".parquet"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in found.items():
        if kind == ".csv" and "x" in columns:  # CSV has no lists
            columns = {k: v for k, v in columns.items() if k != "x"}
            columns |= {f"x{i}": OF_AUTHOR[:, i] for i in range(3)}
        table = pa.table({k: pa.array(v) for k, v in columns.items()})
        if kind == ".csv":
            arrow_csv.write_csv(table, folder / f"{name}.csv")
        else:
            pq.write_table(table, folder / f"{name}.parquet")
    return folder


def arrays(**changed):
    given = {
        "edges": {("author", "writes", "paper"): WRITES, ("paper", "cites", "paper"): CITES},
        "labels": np.array([0, 1, 0, 1, -1, 1]),
        "target": "paper",
        "num_nodes": {"author": 4, "paper": 6, "venue": 2},
        "features": {"author": OF_AUTHOR, "paper": OF_PAPER},
        "edge_weights": {("paper", "cites", "paper"): WEIGHT},
        "edge_features": {("paper", "cites", "paper"): OF_CITES},
        "train": [0, 1],
        "val": [2],
        "test": [3, 5],
    }
    return mr.from_relations(**{**given, **changed})


@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_tables_are_the_dataset_of_their_arrays(tmp_path, kind):
    found = mr.open_dataset(write(tmp_path / "papers", tables(), kind))
    assert dataset_fingerprint(found) == dataset_fingerprint(arrays())
    assert found.name == "papers" and found.graph.types.node_types == ("paper", "author", "venue")
    # Names of papers are their numbers; venues, which have others, come last.
    assert found.node_names[:2] == ["0", "1"] and found.node_names[-1] == "w"
    assert "Edges of author,writes,paper have no weights; each counts 1." in found.notes


def test_ids_of_each_type_are_numbered_by_themselves(tmp_path):
    found = mr.open_dataset(write(tmp_path / "x", tables(PAPERS, AUTHORS), ".csv"), options=COMPACT)
    order = np.argsort(PAPERS)
    place = np.argsort(order)
    same = arrays(
        edges={
            ("author", "writes", "paper"): (WRITES[0], place[WRITES[1]]),
            ("paper", "cites", "paper"): place[CITES],
        },
        labels=np.array([0, 1, 0, 1, -1, 1])[order],
        features={"author": OF_AUTHOR, "paper": OF_PAPER[order]},
        train=place[[0, 1]],
        val=place[[2]],
        test=place[[3, 5]],
    )
    assert dataset_fingerprint(found) == dataset_fingerprint(same)
    assert found.node_names[:] == ["3", "5", "7", "12", "20", "40", "ann", "bob", "3", "cem", "v", "w"]


def test_shards_npy_reverses_and_a_store_by_the_command_line(tmp_path):
    folder = write(tmp_path / "x", {k: v for k, v in tables().items() if "writes" not in k})
    np.save(folder / "edges-author-writes-paper-0.npy", np.stack(WRITES)[:, :5])
    np.save(folder / "edges-author-writes-paper.1.npy", np.stack(WRITES)[:, 5:].T)
    assert dataset_fingerprint(mr.open_dataset(folder)) == dataset_fingerprint(arrays())
    code, out, error = command(
        "convert", folder, "--out", tmp_path / "store", "--set", "read.direction=undirected", "--features", "npy"
    )
    assert code == 0, error
    assert "into memory" not in out + error
    found = mr.open_dataset(tmp_path / "store")
    assert dataset_fingerprint(found) == dataset_fingerprint(arrays(add_reverse=True))
    assert found.graph.types.relations[-1] == ("paper", "rev_cites", "paper")
    assert not list(tmp_path.glob(".*"))
    assert found.to_pyg()["paper", "cites", "paper"].edge_weight.sum().item() == pytest.approx(WEIGHT.sum())


def test_weights_can_be_ignored_and_columns_chosen(tmp_path):
    found = tables()
    found["nodes-author"] |= {"age": [1, 2, 3, 4], "label": [0, 1, 0, 1], "split": [None] * 4}
    found["edges-author-writes-paper"]["feature_0"] = np.ones(9)
    folder = write(tmp_path / "x", found)
    options = {"edge_weights": "ignore", "feature_columns": "age,feature_1", "target": "paper"}
    data = mr.open_dataset(folder, options=mr.ReadOptions(**options))
    assert not data.graph.is_weighted and data.features.widths == (1, 1, 0)
    assert data.features.gather(np.array([7]))[0, 0] == 2
    said = " ".join(data.notes)
    assert "Columns of nodes-author were not read: label, split ('paper' is predicted)." in said
    assert data.graph.types.edge_widths == (1, 2)
    chosen = mr.ReadOptions(edge_feature_columns="x1", target="paper")
    assert mr.open_dataset(folder, options=chosen).graph.types.edge_widths == (0, 1)
    options = mr.ReadOptions(label_columns="age", target="author", task="regression")
    assert mr.open_dataset(folder, options=options, split="fraction:0.5,0").class_names == ("age",)


@pytest.mark.parametrize(
    ("names", "typed"),
    [
        (["edges-user-likes-item.csv", "nodes-user.csv"], True),
        (["edges-user-likes-item-00001-of-00002.parquet", "nodes-user-0.parquet"], True),
        (["edges-00000-of-00002.parquet", "nodes-00000-of-00001.parquet"], False),
        (["edges-part-0.parquet", "nodes.parquet"], False),
    ],
)
def test_typed_folders_are_known_by_their_names(names, typed):
    assert any(t is not None for own in find(names, "g").values() for t in own) is typed


def lose(name):
    return lambda found: found.pop(name)


def put(name, column, value):
    return lambda found: found[name].update({column: pa.array(value)})


def rename(old, new):
    return lambda found: found.update({new: found.pop(old)})


BAD = {
    "a relation to a type that is not there": (
        rename("nodes-author", "nodes-autor"),
        "the relation author,writes,paper has ends of type 'author', but there is no nodes-author; expected one of "
        "autor, paper, venue; did you mean 'autor'?",
    ),
    "features of two widths": (
        put("nodes-author", "x", [[1.0, 2.0], [1.0, 2.0], [1.0], [3.0, 4.0]]),
        "column nodes-author.x has lists of 2 and of 1 values (row 2); expected one length",
    ),
    "null ids": (
        put("nodes-venue", "id", ["v", None]),
        "node type 'venue': column nodes.id holds 1 nulls or empty texts; expected an id in every row",
    ),
    "ids twice": (put("nodes-venue", "id", ["v", "v"]), "node type 'venue': column nodes.id holds 'v' more than once"),
    "null ends": (
        put("edges-author-writes-paper", "src", [None] + [1] * 8),
        "node type 'author': column edges-author-writes-paper.src holds 1 nulls",
    ),
    "an edge to an unknown id": (
        put("edges-author-writes-paper", "dst", [77] + [1] * 8),
        "node type 'paper': 1 values of edges-author-writes-paper.dst (first: 77) are not the id of any node",
    ),
    "ends of another kind": (
        put("edges-author-writes-paper", "dst", ["x"] * 9),
        "node type 'paper': column edges-author-writes-paper.dst is text and column "
        "edges-paper-cites-paper.from is int64; expected one kind",
    ),
    "gaps": (
        put("nodes-paper", "id", [1, 2, 3, 4, 5, 9]),
        "node type 'paper': column nodes.id has gaps: 6 ids between 1 and 9; expected 0 to 5: set "
        "read.missing_ids=compact",
    ),
    "text without ids": (
        put("edges-author-writes-paper", "src", ["a"] * 9),
        "the ends of edges are text, but nodes-author has no column 'id'",
    ),
    "no labels": (lambda found: found["nodes-paper"].pop("label"), "no nodes-TYPE has the column label"),
    "labels twice": (
        put("nodes-author", "y", [0, 1, 0, 1]),
        "the node types author, paper have labels; set read.target=author, or another",
    ),
    "no column of sources": (
        lambda found: found["edges-author-writes-paper"].pop("src"),
        "edges-author-writes-paper has no column 'src'",
    ),
    "bad weights": (
        put("edges-paper-cites-paper", "weight", [-1.0] * 8),
        "relation paper,cites,paper: 8 edge weights are negative",
    ),
    "another name": (rename("nodes-venue", "nodes-e-2"), None),
    "a plain table too": (lambda found: found.update(nodes={"label": [1]}), "there is nodes.parquet among tables of"),
    "NaN features of edges": (
        put("edges-paper-cites-paper", "x1", [0.0, np.nan] + [1.0] * 6),
        "relation paper,cites,paper: 1 edge feature value is NaN or infinite (first: edge 1 of the input)",
    ),
    "features of edges of two widths": (
        put("edges-author-writes-paper", "x", [[1.0], [1.0, 2.0]] + [[1.0]] * 7),
        "column edges-author-writes-paper.x has lists of 1 and of 2 values (row 1); expected one length",
    ),
    "NaN": (put("nodes-author", "x", [[np.nan]] * 4), "features of node type 'author': 4 feature values are NaN"),
    "a split of another word": (
        put("nodes-paper", "split", ["trian"] * 6),
        "node type 'paper': column nodes.split holds 'trian'; expected train, val, test or null",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_defect_is_one_sentence_and_leaves_nothing(tmp_path, name):
    change, said = BAD[name]
    found = tables()
    change(found)
    folder = write(tmp_path / "data", found)
    if said is None:
        assert mr.open_dataset(folder).graph.types.node_types == ("paper", "author", "e")
        return
    code, _, error = command("convert", folder, "--out", tmp_path / "store")
    assert code == 2 and said in error, error
    with pytest.raises(InputError) as want:
        mr.open_dataset(folder)
    assert with_keys(str(want.value)) in error
    # A slow machine says first what is being opened.
    assert len(error[error.index("millrace: ") :].strip().splitlines()) == 1 and "Traceback" not in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "papr"}, "target is 'papr', which is no node type; expected one of author, paper, venue"),
        ({"target": "venue"}, "target is 'venue', but nodes-venue has no column label"),
        ({"direction": "reverse"}, "direction is 'reverse', but the names of the files say"),
        ({"feature_columns": "agee"}, "feature_columns has 'agee', which no nodes-TYPE has"),
        (
            {"edge_feature_columns": "x9"},
            "edge_feature_columns has 'x9', which no edges-SOURCE-RELATION-DESTINATION has",
        ),
        ({"self_loops": "drop"}, "a typed graph is read as it is, without self_loops"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, said):
    folder = write(tmp_path / "x", tables())
    with pytest.raises(InputError, match=said) as want:
        mr.open_dataset(folder, options=mr.ReadOptions(**options))
    with pytest.raises(InputError) as got:
        mr.convert(folder, tmp_path / "store", options=mr.ReadOptions(**options), verbose=False)
    assert str(got.value).replace("read.", "") == str(want.value)


def test_a_target_is_refused_where_there_is_one_type(tmp_path):
    one = write(tmp_path / "x", {"edges": {"src": [0], "dst": [1]}, "nodes": {"label": [0, 1]}})
    for spec, said in (
        ("digits", r"which read\.target would choose"),
        (one, "target is 'paper', but there is one type"),
    ):
        for call in (mr.open_dataset, lambda spec, options: mr.convert(spec, tmp_path / "s", options=options)):
            with pytest.raises(InputError, match=said):
                call(spec, options=mr.ReadOptions(target="paper"))


@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_times_of_some_relations_and_node_types(tmp_path, kind):
    """Relations without the column have the times of their sources; rows of nodes are in the order of their ids."""
    when, since = RNG.integers(0, 50, 9), np.arange(6) * 10
    found = tables(papers=PAPERS)
    found["edges-author-writes-paper"]["when"], found["nodes-paper"]["since"] = when, since
    options = mr.ReadOptions(missing_ids="compact", edge_time="when", node_time="since")
    data = mr.open_dataset(write(tmp_path / "in", found, kind), options=options)
    order = np.argsort(PAPERS)
    place = np.argsort(order)
    same = arrays(
        edges={
            ("author", "writes", "paper"): (WRITES[0], place[WRITES[1]]),
            ("paper", "cites", "paper"): place[CITES],
        },
        labels=np.array([0, 1, 0, 1, -1, 1])[order],
        features={"author": OF_AUTHOR, "paper": OF_PAPER[order]},
        train=place[[0, 1]],
        val=place[[2]],
        test=place[[3, 5]],
        edge_times={("author", "writes", "paper"): when},
        node_times={"paper": since[order]},
    )
    assert dataset_fingerprint(data) == dataset_fingerprint(same)
    assert data.graph.edge_time is not None and data.graph.node_time is not None
    with pytest.raises(InputError, match=r"edge_time has 'whn', which no edges-SOURCE.* has; .*did you mean 'when'"):
        mr.open_dataset(tmp_path / "in", options=mr.ReadOptions(missing_ids="compact", edge_time="whn"))
    with pytest.raises(InputError, match="node_time has 'when', which no nodes-TYPE has"):
        mr.open_dataset(tmp_path / "in", options=mr.ReadOptions(missing_ids="compact", node_time="when"))


def test_ratings_with_times_are_sampled_by_time(tmp_path):
    """MovieLens as people have it: a table of ratings with stars and a moment."""
    rng = np.random.default_rng(0)
    n = 300
    rated = {"src": rng.integers(0, 20, n), "dst": rng.integers(0, 30, n), "label": rng.random(n) * 5}
    rated["when"] = np.arange(n)
    found = {"edges-user-rates-movie": rated, "nodes-user": {"id": range(20)}, "nodes-movie": {"id": range(30)}}
    read = {"labels_of": "edges", "relation": "rates", "edge_time": "when", "direction": "undirected"}
    config = {"read": read, "model": {"name": "rgcn", "hidden": 4, "layers": 2}, "epochs": 1, "link": {"width": 4}}
    config |= {"sampler": {"name": "temporal", "fanout": [5, 5]}, "split": "time:0.6,0.2"}
    result = mr.run(str(write(tmp_path / "in", found)), config=config, out=tmp_path / "run", verbose=False)
    assert result.task == "regression" and result.test_metrics["rmse"] > 0
    assert mr.predict_edges(result, "test").values.shape == (60, 1)
