"""Tables of several types converted in pieces: byte for byte the store of the reader in memory, and its refusals."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv

import millrace as mr
from millrace.pipeline.datasets import ReadOptions, open_dataset
from millrace.pipeline.ingest import convert, run
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import Killed, contents, cut_small, killed, parquet, same

LABELS = ["int", "text", "many", "targets"]
FORMS = [None, "float16", "int8", "bfloat16", "float32"]
IDS = ["rows", "shuffled", "gaps", "text", "numbers"]
RELATIONS = [("b", "r", "a"), ("a", "r", "a"), ("a", "s", "c"), ("c", "t", "a"), ("b", "no", "c")]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


def write(folder, stem, columns, rng, kind=None):
    """A table as several files with row groups, as one file, as CSV, or as edges in ``.npy``."""
    table, kind = pa.table(columns), rng.integers(4) if kind is None else kind
    lists = any(pa.types.is_list(f.type) or pa.types.is_fixed_size_list(f.type) for f in table.schema)
    if kind == 0 and not lists and table.num_rows:
        arrow_csv.write_csv(table, folder / f"{stem}.csv")
    elif kind == 1:
        pq.write_table(table, folder / f"{stem}.parquet")
    elif kind == 2 and table.column_names == ["src", "dst"] and pa.types.is_integer(table["src"].type):
        np.save(folder / f"{stem}.npy", np.stack([table["src"].to_numpy(), table["dst"].to_numpy()]))
    else:
        parquet(folder, stem, table)


def graph(folder, seed):
    """Types ``a`` with labels, ``b`` and ``c`` of few nodes; ids, features and weights of all kinds, and no edges of
    some relations. Returns the options that it is read with."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    counts = {"a": int(rng.choice([1, 7, 90])), "b": int(rng.choice([1, 40])), "c": int(rng.choice([1, 3]))}
    named = {}
    for n, (t, count) in enumerate(counts.items()):
        kind = IDS[(seed + n) % 5]
        known = {
            "rows": np.arange(count),
            "shuffled": rng.permutation(count),
            "gaps": rng.choice(np.arange(-(10**6), 10**6, 997), count, replace=False),
            "text": np.array([f"{'ä' * (i % 3)}{t}{rng.integers(1 << 40)}" for i in range(count)], object),
            "numbers": np.array([f"0{i}" for i in range(count)], object),
        }[kind]
        named[t], columns = known, {} if kind == "rows" else {"id": pa.array(known)}
        if t == "a":
            y = rng.integers(-1, 3, count)
            columns["label"] = {
                "int": pa.array([None if v < 0 else int(v) for v in y], pa.int8()),
                "text": pa.array([None if v < 0 else "xyz"[v] for v in y], pa.string()),
                "many": pa.array(rng.integers(0, 2, (count, 3)).tolist()),
                "targets": pa.array([[None if v < 0 else v / 4, -1.5] for v in y], pa.list_(pa.float64())),
            }[LABELS[seed % 4]]
            if seed % 3 == 0:
                columns["split"] = pa.array([None if v < 0 else ["train", "val", "test"][v] for v in y], pa.string())
        width, form = rng.integers(0, 5), rng.integers(4)
        x = rng.normal(size=(count, width)) * 50
        if form == 0 and width:
            columns |= {f"x{i}": pa.array(x[:, i], pa.float64()) for i in range(width)} | {"age": np.arange(count) // 2}
        elif form == 1 and width:
            columns["x"] = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1).astype("f2")), int(width))
        elif form == 2:
            columns["features"] = pa.array(x.tolist(), pa.list_(pa.float32()))
        write(folder, f"nodes-{t}", columns or {"note": np.arange(count)}, rng)
    for n, key in enumerate(RELATIONS[: rng.integers(1, 6)]):
        edges = 0 if key[1] == "no" else int(rng.choice([0, 2, 150]))
        src, dst = (named[t][rng.integers(0, counts[t], edges)] for t in (key[0], key[2]))
        kinds = [pa.string() if named[t].dtype == object else pa.int64() for t in (key[0], key[2])]
        columns = {"src": pa.array(src, kinds[0]), "dst": pa.array(dst, kinds[1])}
        if (seed + n) % 3 == 0:
            columns["weight"] = np.exp(rng.normal(0, 6, edges))
        if (seed + n) % 4 == 0:
            columns["x"] = pa.array(rng.normal(size=(edges, n + 1)).tolist(), pa.list_(pa.float64()))
        elif (seed + n) % 4 == 1:
            columns |= {"feature_0": rng.normal(size=edges), "since": np.arange(edges)}
        write(folder, f"edges-{'-'.join(key)}", columns, rng)
    return ReadOptions(
        direction=[None, "directed", "undirected"][seed % 3], missing_ids="compact", unlabelled_in_split="drop",
        normalize_features=["none", "row", "binary", "standard"][seed % 4], label_gaps=["keep", "compact"][seed % 2],
        edge_weights=["use", "use", "ignore"][seed // 3 % 3],
    )  # fmt: skip


def test_the_store_is_that_of_the_reader_in_memory(tmp_path):
    """If that one refuses, so does this, with the same sentence."""
    opened = 0
    for seed in range(10):
        folder = tmp_path / f"g{seed}"
        given = {"options": graph(folder, seed), "split": None if seed % 3 == 0 else "fraction:0.5,0.2", "seed": seed}
        try:
            open_dataset(folder, **given)
        except InputError as e:
            refusal = str(e)
        else:
            form = {"features": ["zarr", "npy"][seed % 2], "feature_dtype": FORMS[seed % 5]}
            data = same(folder, tmp_path, **form, **given)
            assert data.features.kind == (None if form["feature_dtype"] == "float32" else form["feature_dtype"])
            opened += 1
            continue
        with pytest.raises(InputError) as got:
            mr.convert(folder, tmp_path / "out", verbose=False, **given)
        assert str(got.value).replace("read.", "") == refusal.replace("read.", "")
        assert not list(tmp_path.glob(".ingest*"))
    assert opened >= 7


def test_a_killed_ingest_goes_on(tmp_path, monkeypatch):
    folder, seed = tmp_path / "g", 26
    options = graph(folder, seed)
    write_dataset(tmp_path / "want", open_dataset(folder, options=options, seed=seed))
    for stage, before in (("spill", True), ("gather-0", False)):
        with monkeypatch.context() as patch:
            patch.setattr(convert, "inline", killed(stage, before))
            with pytest.raises(Killed):
                mr.convert(folder, tmp_path / "got", options=options, seed=seed, verbose=False)
        assert not (tmp_path / "got").exists() and (tmp_path / ".ingest-got" / "done").is_dir()
    mr.convert(folder, tmp_path / "got", options=options, seed=seed, verbose=False)
    assert contents(tmp_path / "got") == contents(tmp_path / "want")


def test_one_node_type_with_and_without_features(tmp_path, monkeypatch):
    """The store is that of the reader in memory; no relation's footers are read again for the widest one's batches."""
    described, edge_table = [], run.edge_table
    monkeypatch.setattr(run, "edge_table", lambda *given: described.append(given) or edge_table(*given))
    ends = {"src": [0, 1, 1], "dst": [1, 0, 1]}
    for columns in ({}, {"x0": [0.5, 1.0]}):
        folder = tmp_path / f"g{len(columns)}"
        folder.mkdir()
        pq.write_table(pa.table({"label": [0, 1], "split": ["train", "test"], **columns}), folder / "nodes-a.parquet")
        pq.write_table(pa.table({**ends, "x0": [1.0, 2.0, 3.0]} if columns else ends), folder / "edges-a-r-a.parquet")
        same(folder, tmp_path, ReadOptions(edge_feature_columns="x0" if columns else None))
    assert len(described) == 2


def test_too_many_nodes_for_a_key_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "g"
    options = graph(folder, 17)
    monkeypatch.setattr(run, "KEYS", 1000)
    with pytest.raises(InputError, match="edges are sorted by numbers below"):
        mr.convert(folder, tmp_path / "got", options=options, verbose=False)
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_faults_of_several_types_are_told_together(tmp_path):
    (folder := tmp_path / "g").mkdir()
    pq.write_table(pa.table({"id": [0, 0, 1], "label": [0, 1, 1]}), folder / "nodes-a.parquet")
    pq.write_table(pa.table({"id": ["x", "x"]}), folder / "nodes-b.parquet")
    pq.write_table(pa.table({"src": [0], "dst": ["x"]}), folder / "edges-a-r-b.parquet")
    told = set()
    for read in (open_dataset, lambda path: mr.convert(path, tmp_path / "out", verbose=False)):
        with pytest.raises(
            InputError, match=r"2 problems: \(1\) node type 'a'.* 0 more .*\(2\) node type 'b'.*"
        ) as error:
            read(folder)
        told.add(str(error.value))
    assert len(told) == 1
