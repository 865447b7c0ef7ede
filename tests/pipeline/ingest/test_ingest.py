"""Tables converted in pieces: byte for byte the store of what is opened in memory, and the same refusals."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.datasets import ReadOptions, open_dataset
from millrace.pipeline.ingest import arrays, budget, convert
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, RunError, StoreError
from millrace.tests.contracts.ingest import Killed, contents, cut_small, killed, parquet, same

UNDIRECTED = ReadOptions(direction="undirected")
DIRECTED = ReadOptions(direction="directed")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


def graph(
    folder: Path,
    seed=0,
    *,
    nodes=60,
    edges=400,
    ids="rows",
    weighted=True,
    labels="int",
    features="list",
    split=False,
    of_edges="none",
):
    rng = np.random.default_rng(seed)
    rows = np.arange(nodes)
    known = {
        "rows": rows,
        "shuffled": rng.permutation(nodes),
        "gaps": np.sort(rng.choice(10**12, nodes, replace=False)),
        "wild": rng.choice(np.arange(-(10**9), 10**9, 999_983), nodes, replace=False),
        "text": np.array([f"{'ä' * (i % 3)}node {rng.integers(1 << 40)}" for i in rows], object),
    }[ids]
    ends = known[np.minimum(rng.geometric(0.05, (2, edges)) - 1, nodes - 1)]
    kind = pa.string() if ids == "text" else pa.int64()
    table = {"src": pa.array(ends[0], kind), "dst": pa.array(ends[1], kind)}
    if weighted:
        table["weight"] = pa.array(np.exp(rng.normal(0, 6, edges)))
    said = rng.normal(size=(edges, 3)).astype("f4")
    if of_edges == "list":
        table["x"] = pa.array(said.tolist(), pa.list_(pa.float64()))
    elif of_edges == "columns":
        table |= {f"feature_{i}": pa.array(said[:, i] * 1000) for i in range(3)} | {"since": pa.array(range(edges))}
    parquet(folder, "edges", pa.table(table))
    y = rng.integers(-1, 3, nodes)
    of = {
        "int": pa.array(y),
        "null": pa.array([None if v < 0 else int(v) for v in y], pa.int8()),
        "float": pa.array([None if v < 0 else float(v) for v in y]),
        "text": pa.array([None if v < 0 else ["b", "a10", "2"][v] for v in y]),
        "many": pa.array(rng.integers(0, 2, (nodes, 3)).tolist()),
        "target": pa.array([None if v < 0 else v + 0.5 * (v > 1) for v in y]),
        "targets": pa.array([[None if v < 0 else v / 4, -1.5] for v in y], pa.list_(pa.float64())),
    }
    of_nodes = {"label": of[labels]}
    if ids != "rows" or seed % 2:
        of_nodes["id"] = pa.array(known)
    x = rng.normal(size=(nodes, 5)).astype("f4")
    if features == "list":
        of_nodes["features"] = pa.array(x.tolist(), pa.list_(pa.float32()))
    elif features == "fixed":
        of_nodes["x"] = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1).astype("f2")), 5)
    elif features == "columns":
        of_nodes |= {f"feature_{i}": pa.array(x[:, i] * 1000) for i in range(5)} | {"age": pa.array(rows // 2)}
    if split:
        of_nodes["split"] = pa.array([None if v < 0 else ["train", "val", "test"][i % 3] for i, v in zip(rows, y)])
    parquet(folder, "nodes", pa.table(of_nodes), (0.5, 0.5, 0.6), group=11)
    return folder


FORMS = [None, "float16", "int8", "bfloat16", "float32"]
IDS = ["rows", "shuffled", "gaps", "wild", "text"]
DIRECTIONS, DUPLICATES, LOOPS = ["directed", "reverse", "undirected"], ["merge", "keep"], ["keep", "drop"]


@pytest.mark.parametrize("ids", IDS)
def test_the_store_is_that_of_the_reader_in_memory(tmp_path, ids):
    labels, features = (
        ["int", "null", "float", "text", "many", "target", "targets"],
        ["list", "fixed", "columns", "none"],
    )
    # Kinds of ids share the combinations between them.
    for n, (direction, duplicates) in enumerate(product(DIRECTIONS, DUPLICATES), 6 * IDS.index(ids)):
        loops = LOOPS[(n + n // 6) % 2]
        folder = graph(
            tmp_path / f"g{n}", n, ids=ids, weighted=n % 3 < 2, labels=labels[n % 7], features=features[n % 4],
            split=n % 7 == 3,
        )  # fmt: skip
        options = ReadOptions(
            direction=direction, duplicates=duplicates, self_loops=loops, missing_ids="compact",
            unlabelled_in_split="drop", normalize_features=["none", "row", "binary", "standard"][n % 4],
            label_gaps=["keep", "compact"][n % 2], edge_weights=["use", "use", "ignore"][n % 3],
        )  # fmt: skip
        same(folder, tmp_path, options, ["zarr", "npy"][n % 2], FORMS[n % 5], seed=n)


@pytest.mark.parametrize(
    ("nodes", "edges", "seed"),
    [
        (*size, seed)
        for i, size in enumerate([(1, 1), (1, 3), (2, 40), (7, 500), (300, 2), (500, 3000)])
        for seed in range(i % 2, 4, 2)
    ],
)
def test_any_size(tmp_path, nodes, edges, seed):
    rng = np.random.default_rng(seed)
    ids = ["rows", "shuffled", "gaps", "text"][seed % 4]
    folder = graph(
        tmp_path / "g", seed, nodes=nodes, edges=edges, ids=ids, labels="many", weighted=bool((seed + nodes) % 3)
    )
    options = ReadOptions(
        direction=DIRECTIONS[rng.integers(3)], duplicates=DUPLICATES[rng.integers(2)], missing_ids="compact"
    )
    same(folder, tmp_path, options, ["zarr", "npy"][seed % 2], split="fraction:0.5,0.2")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_features_of_edges_go_with_them(tmp_path, direction):
    for n, (duplicates, loops) in enumerate(product(DUPLICATES, LOOPS)):
        folder = graph(
            tmp_path / f"g{n}", n, ids=["rows", "wild", "text", "shuffled"][n], weighted=n < 2,
            of_edges=["list", "columns"][n % 2], edges=400 if n else 1,
        )  # fmt: skip
        options = ReadOptions(
            direction=direction, duplicates=duplicates, self_loops=loops, missing_ids="compact",
            edge_feature_columns=[None, "since,feature_1", "*"][n % 3] if n % 2 else None,
        )  # fmt: skip
        data = same(folder, tmp_path, options, ["zarr", "npy"][n % 2], seed=n)
        assert data.num_edge_features == (3, 2, 3, 3)[n]
        if n == 1:
            merged = any("merged, their weights summed, the first one's features kept" in note for note in data.notes)
            assert merged == (duplicates == "merge")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("duplicates", DUPLICATES)
def test_symmetric_edges_are_seen_to_be(tmp_path, weighted, duplicates):
    folder = graph(tmp_path / "g", weighted=weighted)
    whole = pa.concat_tables([pq.read_table(f) for f in sorted(folder.glob("edges*"))])
    names = ["dst", "src", *whole.column_names[2:]]
    parquet(folder, "edges-10", whole.rename_columns(names).select(whole.column_names))
    data = same(folder, tmp_path, ReadOptions(duplicates=duplicates))
    assert "The edges are symmetric as stored and were used as they are." in data.notes


def test_one_row_group_one_file_and_more_writers_than_rows(tmp_path):
    folder = tmp_path / "g"
    folder.mkdir()
    pq.write_table(pa.table({"source": [0, 1], "to": [1, 0]}), folder / "edges.parquet")
    pq.write_table(pa.table({"y": [0, 1], "x": [[1.0], [2.0]], "note": ["a", "b"]}), folder / "nodes.parquet")
    data = same(folder, tmp_path, ReadOptions(), split="fraction:0.5,0.5")
    assert data.graph.num_edges == 2
    assert "Columns of nodes that are not numeric were not read: note." in data.notes


def test_csv(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    (folder / "edges.csv").write_text('source,target\nann,bob\nbob,"Meier, Eve"\n"Meier, Eve",dan\ndan,ann\n')
    (folder / "nodes.csv").write_text(
        'id,label,age,income\nann,reader,31,4.2\nbob,reader,25,3.9\n"Meier, Eve",writer,62,2.5\ndan,,58,2.8\n'
    )
    options = ReadOptions(direction="undirected", feature_columns="age,income")
    data = same(folder, tmp_path, options, split="fraction:0.7,0")
    assert list(data.node_names) == ["ann", "bob", "Meier, Eve", "dan"] and data.class_names == ("reader", "writer")
    same(folder / "edges.csv", tmp_path, options, split="fraction:0.7,0")
    (folder / "edges.csv").write_text("src,dst,weight\n3,1,2\n2,1,0.5\n")
    (folder / "nodes.csv").write_text("id,label\n1,0\n2,1\n3,0\n")
    numbered = same(folder, tmp_path, ReadOptions(direction="directed", missing_ids="compact"), split="fraction:0.5,0")
    assert list(numbered.node_names) == ["1", "2", "3"]


def test_edges_of_npy_files(tmp_path):
    rng, folder = np.random.default_rng(3), graph(tmp_path / "g", ids="shuffled")
    for file in folder.glob("edges*"):
        file.unlink()
    np.save(folder / "edges-0.npy", rng.integers(0, 60, (2, 300)).astype("i4"))
    same(folder, tmp_path, UNDIRECTED, seed=1)
    np.save(folder / "edges-1.npy", rng.integers(0, 60, (90, 2)).astype("i4"))
    np.save(folder / "edges-2.npy", np.zeros((2, 0), "i4"))
    assert same(folder, tmp_path, ReadOptions(direction="directed", duplicates="keep"), seed=1).graph.num_edges == 390
    (folder / "nodes-0.parquet").rename(folder / "n.parquet")
    for file in folder.glob("nodes*"):
        file.unlink()
    (folder / "n.parquet").rename(folder / "nodes.parquet")
    np.save(folder / "edges-9.npy", np.zeros((3, 3)))
    with pytest.raises(InputError, match=r"edges-9\.npy holds float64\[3, 3\]"):
        mr.convert(folder, tmp_path / "out", options=DIRECTED, verbose=False)


GOOD = {"src": [0, 1, 2], "dst": [1, 2, 0]}
NODES = {"label": [0, 1, 0], "features": [[1.0], [2.0], [3.0]]}
BAD = {
    "nulls": ({"src": pa.array([0, None, 2]), "dst": [1, 2, 0]}, {}, {}, "column edges.src holds 1 nulls"),
    "range": ({"src": [0, 1, 40], "dst": [1, 2, 0]}, {}, {}, r"edge source ids lie in \[0, 40\], out of range"),
    "below": ({"src": [0, 1, 1], "dst": [1, -2, 0]}, {}, {}, r"edge destination ids lie in \[-2, 1\]"),
    "text": ({"src": ["a", "b", "c"], "dst": [1, 2, 0]}, {}, {}, "edges.src is text and column edges.dst is int64"),
    "names": ({"src": ["a"], "dst": ["b"]}, {}, {}, "the ends of edges are text, but nodes has no column 'id'"),
    "float ids": ({"src": [0.5], "dst": [1.0]}, {}, {}, "column edges.src is double; expected ids"),
    "no dst": ({"src": [0, 1, 2], "other": [1, 2, 0]}, {}, {}, "edges has no column 'dst'"),
    "no label": (GOOD, {"lable": [0, 1, 0]}, {}, "nodes has no column 'label'.*did you mean 'lable'"),
    "nan": ({**GOOD, "weight": [1.0, np.nan, 1.0]}, {}, {}, "1 edge weight is NaN or infinite"),
    "infinite": ({**GOOD, "weight": [1.0, 1e300, 1.0]}, {}, {}, "NaN or infinite as float32"),
    "negative": ({**GOOD, "weight": [1.0, -2.5, -1.0]}, {}, {}, r"2 edge weights are negative \(least: -2.5\)"),
    "loops": ({"src": [0, 1, 2], "dst": [1, 1, 2]}, {}, {"self_loops": "error"}, r"2 self loops \(first: node 1\)"),
    "repeated": ({"src": [0, 1, 1, 0], "dst": [1, 0, 0, 1]}, {}, {"duplicates": "error"}, r"\(first: 1 -> 0\)"),
    "direction": (GOOD, {}, {"direction": None}, "the edges are not symmetric and their direction is not known"),
    "unknown": (GOOD, {**NODES, "id": [1, 2, 7]}, {"missing_ids": "compact"}, r"edges.src \(first: 0\) are not the id"),
    "gaps": (GOOD, {**NODES, "id": [0, 2, 7]}, {}, "column nodes.id has gaps: 3 ids between 0 and 7"),
    "one id": (GOOD, {**NODES, "id": [2, 0, 2]}, {}, "nodes.id holds 2 more than once"),
    "null id": (GOOD, {**NODES, "id": [2, None, 1]}, {}, "column nodes.id holds 1 nulls"),
    "no such name": (
        {"src": ["a", "q", "q"], "dst": ["b", "b", "r"]}, {**NODES, "id": ["a", "b", "c"]}, {},
        r"2 values of edges.src \(first: 'q'\) are not the id of any node",
    ),
    "huge ids": (
        {"src": pa.array([0, 1], pa.uint64()), "dst": [1, 0]}, {**NODES, "id": pa.array([0, 1, 1 << 63], pa.uint64())},
        {}, r"nodes.id holds 9223372036854775808; expected ids below 2\*\*63",
    ),
    "several": (
        {"src": ["a", "q", "q"], "dst": ["b", "b", "r"]},
        {"id": ["a", "b", "c"], "label": [0.5, 1, 0], "features": [[1.0], [2.0], [np.nan]]}, {"task": "multiclass"},
        r"4 problems: \(1\) 2 values of edges.src .*\(2\) 1 values of edges.dst .*\(3\) labels are .*\(4\) 1 feature",
    ),
    "several of edges": (
        {**GOOD, "weight": [1.0, -2.0, 1.0]}, {"label": [-1, -1, -1], "features": [[np.inf], [2.0], [3.0]]}, {},
        r"3 problems: \(1\) 1 edge weight is negative .*\(2\) no node has a label.*\(3\) 1 feature value",
    ),
    "no direction, no classes": (
        GOOD, {"label": [0.5, 1, 0]}, {"direction": None, "task": "multiclass"},
        r"2 problems: \(1\) the edges are not symmetric .*\(2\) labels are non-integer",
    ),
    "null end and text of few": (
        {"src": pa.array([0, None, 2]), "dst": [1, 2, 0]}, {"label": [0, 1, 0], "x": [[1.0], [2.0], [np.nan]]}, {},
        r"2 problems: \(1\) column edges.src holds 1 nulls.*\(2\) 1 feature value",
    ),
    "one name": ({"src": ["a"], "dst": ["b"]}, {**NODES, "id": ["b", "a", "a"]}, {}, "holds 'a' more than once"),
    "ragged": (GOOD, {"label": [0, 1, 0], "features": [[1.0], [1.0, 2.0], []]}, {}, r"1 and of 2 values \(row 1\)"),
    "null list": (GOOD, {"label": [0, 1, 0], "features": [[1.0], None, None]}, {}, "2 feature values are NaN or"),
    "ragged labels": (GOOD, {"label": [[0, 1], [1], [1, 1]]}, {}, r"of 2 and of 1 values \(row 1\)"),
    "nan feature": (GOOD, {"label": [0, 1, 0], "features": [[1.0], [2.0], [np.nan]]}, {}, r"\(first: node 2\)"),
    "no features": (GOOD, {"label": [0, 1, 0]}, {"missing_features": "error"}, "the input has no features"),
    "targets for classes": (GOOD, {"label": [0.5, 1, 0]}, {"task": "multiclass"}, "labels are non-integer"),
    "infinite target": (GOOD, {"label": [0.5, np.inf, 0]}, {}, r"1 target is infinite.*\(first: node 1\)"),
    "no label column": (GOOD, NODES, {"label_columns": "age"}, "nodes has no column 'age'"),
    "text targets": (GOOD, {"a": ["x", "y", "z"], "b": [1, 2, 3]}, {"label_columns": "a,b"}, "nodes.a is string"),
    "split": (GOOD, {**NODES, "split": ["train", "tran", None]}, {}, "nodes.split holds 'tran'.*did you mean 'train'"),
    "nan of an edge": ({**GOOD, "x": [[1.0], [2.0], [np.nan]]}, {}, {}, r"1 edge feature.*\(first: edge 2"),
    "null of an edge": ({**GOOD, "feature_0": [1.0, None, 2.0]}, {}, {}, r"is NaN or infinite \(first: edge 1"),
    "ragged edges": ({**GOOD, "x": [[1.0], [1.0, 2.0], [1.0]]}, {}, {}, r"edges.x has lists of 1 and of 2 values"),
    "null list of an edge": ({**GOOD, "x": [[1.0], None, [1.0]]}, {}, {}, "1 edge feature value is NaN or infinite"),
    "text of edges": ({**GOOD, "a": ["x", "y", "z"]}, {}, {"edge_feature_columns": "a"}, "edges.a is string"),
    "no such column": (GOOD, {}, {"edge_feature_columns": "since"}, "edges has no column 'since'"),
    "no nodes": (GOOD, {"label": pa.array([], pa.int64())}, {}, "there are no nodes"),
    "text feature": (GOOD, {"label": [0, 1, 0], "age": ["a", "b", "c"]}, {"feature_columns": "age"}, "age is string"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_as_it_is_in_memory(tmp_path, case):
    edges, nodes, given, told = BAD[case]
    folder = tmp_path / "g"
    parquet(folder, "edges", pa.table(edges), (0.5,), group=1)
    parquet(folder, "nodes", pa.table(nodes or NODES), (0.7,), group=1)
    options = ReadOptions(**{"direction": "directed", **given})
    with pytest.raises(InputError, match=told) as want:
        open_dataset(folder, options=options, split="fraction:0.5,0.2")
    with pytest.raises(InputError) as got:
        mr.convert(folder, tmp_path / "out", options=options, split="fraction:0.5,0.2", verbose=False)
    assert str(got.value).replace("read.", "").removesuffix(f". {convert.TO_PREDICT}") == str(want.value).replace(
        "read.", ""
    )
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


@pytest.mark.parametrize(
    ("table", "columns", "name", "without"),
    [
        ("edges", {**GOOD, "w": [1.0, 2.0, 3.0]}, "w", {"edge_weights": "ignore"}),
        ("edges", {**GOOD, "feature_0": [1.0, 2.0, 3.0]}, "feature_0", None),
        ("nodes", {"label": [0, 1, 0], "id": [3, 4, 5]}, "id", None),
        ("nodes", {"label": [0, 1, 0], "feature_3": [1.0, 2.0, 3.0]}, "feature_3", {"nan_features": "zero"}),
    ],
)
def test_a_column_that_one_of_several_files_has(tmp_path, table, columns, name, without):
    folder = tmp_path / "g"
    parquet(folder, "edges", pa.table(GOOD), (0.5,), group=1)
    parquet(folder, "nodes", pa.table({"label": [0, 1, 0]}), (0.5,), group=1)
    pq.write_table(pa.table(columns), folder / f"{table}-9.parquet")
    told = rf"{table}\S*\.parquet has no column '{name}', but {table}-9\.parquet has; expected it in every file"
    with pytest.raises(InputError, match=told) as want:
        open_dataset(folder, options=DIRECTED)
    with pytest.raises(InputError) as got:
        mr.convert(folder, tmp_path / "got", options=DIRECTED, verbose=False)
    assert str(got.value).replace("read.", "") == str(want.value).replace("read.", "")
    assert ("edge_weights=ignore" in str(want.value)) == (name == "w")
    if without is not None:
        same(folder, tmp_path, replace(DIRECTED, **without))


def test_files_that_differ_or_are_no_parquet(tmp_path):
    folder = graph(tmp_path / "g")
    pq.write_table(pa.table({"src": ["a"], "dst": ["b"], "weight": [1.0]}), folder / "edges-9.parquet")
    for told in ("9.parquet and edges-.*write the files again with one schema", "9.parquet cannot be read"):
        with pytest.raises(InputError, match=told) as want:
            open_dataset(folder, options=DIRECTED)
        with pytest.raises(InputError) as got:
            mr.convert(folder, tmp_path / "out", options=DIRECTED, verbose=False)
        assert str(got.value) == str(want.value)
        assert [p.name for p in tmp_path.iterdir()] == ["g"]
        (folder / "edges-9.parquet").write_bytes(b"PAR1 not really")


STAGES = ["number", "read", "name", "labels", "spill", "sort", "moments", "features", "gather", "arrays"]


STOPPED = replace(UNDIRECTED, missing_ids="compact", unlabelled_in_split="drop", normalize_features="standard")


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory):
    """Tables, and the store of what is opened in memory."""
    place = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        folder = graph(place / "g", nodes=200, ids="wild", split=True, of_edges="list")
        write_dataset(place / "want", open_dataset(folder, options=STOPPED))
    return folder, contents(place / "want")


def test_an_ingest_that_is_killed_in_each_stage_goes_on(in_memory, tmp_path, monkeypatch):
    """Killed in a task of each stage, one after the other, after its files are written but not recorded; of some also
    after a record."""
    folder, want = in_memory

    def go_on():
        kept, events = len(list((tmp_path / ".ingest-got" / "done").glob("*.json"))), []
        try:
            mr.convert(folder, tmp_path / "got", options=STOPPED, emit=events.append)
        finally:
            told = f"going on with the conversion into {tmp_path / 'got'} that was stopped"
            assert (told in [getattr(e, "text", None) for e in events]) == (kept > 0)

    for i, stage in enumerate(STAGES):
        for before in (True, False) if i % 5 == 0 else (True,):
            with monkeypatch.context() as patch:
                patch.setattr(convert, "inline", killed(stage, before))
                with pytest.raises(Killed):
                    go_on()
            assert not (tmp_path / "got").exists(), stage
    go_on()
    assert contents(tmp_path / "got") == want
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".jsonl") == ["got"]


def test_another_command_begins_anew(tmp_path, monkeypatch):
    folder = graph(tmp_path / "g")
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "write_slice", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mr.convert(folder, tmp_path / "got", options=DIRECTED, verbose=False)
    assert (tmp_path / ".ingest-got").is_dir()
    same(folder, tmp_path, UNDIRECTED)


def test_a_file_that_is_lost_or_changed_on_the_way(tmp_path, monkeypatch):
    folder = graph(tmp_path / "g")
    text = (folder / "edges-3.parquet").read_bytes()

    def losing(name, calls):
        for number, (task, *arguments) in enumerate(calls):
            if name == "spill" and number == 1:
                (folder / "edges-3.parquet").unlink()
            yield number, task(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(convert, "inline", losing)
        with pytest.raises(RunError, match=r"edges-3\.parquet is gone, or has changed, since the ingest began"):
            mr.convert(folder, tmp_path / "got", options=DIRECTED, verbose=False)
    assert not (tmp_path / "got").exists()
    (folder / "edges-3.parquet").write_bytes(text)
    same(folder, tmp_path, DIRECTED)


def test_a_disk_that_is_too_small_is_seen_beforehand(tmp_path, monkeypatch):
    folder = graph(tmp_path / "g")
    monkeypatch.setattr(budget.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match=r"converting takes up to 0\.\d\d MiB of disk in .* are free; free some"):
        mr.convert(folder, tmp_path / "got", options=DIRECTED, verbose=False)
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


def test_the_disk_that_columns_of_what_is_missing_take(tmp_path, monkeypatch):
    """As many as there are columns, until all rows are read."""
    rng, folder, told = np.random.default_rng(0), tmp_path / "g", list[float]()
    folder.mkdir()
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), folder / "edges.parquet")
    x = pa.FixedSizeListArray.from_arrays(rng.standard_normal(1 << 20), 1 << 10)
    pq.write_table(pa.table({"label": np.arange(1 << 10) % 2, "x": x}), folder / "nodes.parquet")
    monkeypatch.setattr(budget.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    for way in ("zero", "indicator"):
        with pytest.raises(InputError, match=r"takes up to \d\.\d\d MiB") as error:
            mr.convert(folder, tmp_path / "got", options=replace(DIRECTED, nan_features=way), verbose=False)
        told.append(float(str(error.value).split("up to ")[1].split()[0]))
    assert told[1] - told[0] == pytest.approx(4, abs=0.02)


def test_a_store_without_a_slice_is_refused(tmp_path):
    folder = graph(tmp_path / "g")
    mr.convert(folder, tmp_path / "got", options=DIRECTED, verbose=False)
    next((tmp_path / "got" / "arrays" / "indices" / "c").iterdir()).unlink()
    with pytest.raises(StoreError, match="array 'indices' lacks 1 of its"):
        open_dataset(tmp_path / "got")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"memory": "much"}, "memory is 'much'; expected a size"),
        ({"workers": 0}, "workers is 0; expected a whole number, 1 or more"),
        ({"features": "zar"}, "did you mean 'zarr'"),
        ({"scheduler": "tcp://127.0.0.1:9"}, "no Dask scheduler answers"),
    ],
)
def test_arguments_that_are_refused(tmp_path, given, told):
    with pytest.raises(InputError, match=told):
        mr.convert(graph(tmp_path / "g"), tmp_path / "got", options=DIRECTED, verbose=False, **given)
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


def test_too_little_memory_is_refused():
    with pytest.raises(InputError, match="memory is 100 MiB; this process takes 337 MiB or more: set memory=337MiB"):
        budget.budget_of(100 << 20, 1, in_process=True)
    with pytest.raises(InputError, match=r"the driver and its workers \(2\) take 673 MiB or more"):
        budget.budget_of(500 << 20, 2, in_process=False)


def test_other_sources_and_options_are_read_into_memory(tmp_path):
    store = mr.convert("sbm:nodes=200,classes=3", tmp_path / "sbm", verbose=False)
    assert store.entries["indptr"]["shape"] == [201]
    folder = graph(tmp_path / "g")
    options, events = ReadOptions(direction="undirected", components="largest"), []
    mr.convert(folder, tmp_path / "got", options=options, emit=events.append)
    write_dataset(tmp_path / "want", open_dataset(folder, options=options))
    assert contents(tmp_path / "got") == contents(tmp_path / "want")
    assert any("the dataset was read into memory, since" in getattr(e, "text", "") for e in events)
    with pytest.raises(InputError, match="already exists"):
        mr.convert(folder, tmp_path / "got", verbose=False)
