"""Features with missing values in pieces: the store, and the sentences, of the reader in memory."""

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.pipeline.datasets.cleaning.filling import indicators_in
from millrace.tests.contracts.ingest import cut_small, parquet, same


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


def gaps(rng, rows, width, every=4):
    x = np.round(rng.normal(0, 30, (rows, width)), 1)
    x[rng.random((rows, width)) < 1 / every] = np.nan
    return x


@pytest.mark.parametrize("kind", ["zero", "mean", "median", "indicator"])
@pytest.mark.parametrize("normalize", ["none", "standard", "row"])
def test_one_type(tmp_path, kind, normalize):
    rng = np.random.default_rng(len(kind) + len(normalize))
    x, of_edges, ids = gaps(rng, 80, 3), gaps(rng, 200, 2, 9), rng.permutation(80)
    nodes = {"id": ids, "label": rng.integers(0, 2, 80), "age": pa.array(x[:, 0], from_pandas=True), "pay": x[:, 1]}
    ends = rng.integers(0, 80, (2, 200))
    parquet(tmp_path / "g", "nodes", pa.table({**nodes, "sure": np.arange(80)}))
    parquet(tmp_path / "g", "edges", pa.table({"src": ends[0], "dst": ends[1], "x": of_edges.tolist()}))
    options = mr.ReadOptions(
        direction="directed", nan_features=kind, normalize_features=normalize, feature_columns="age,pay,sure"
    )
    data = same(tmp_path / "g", tmp_path, options, split="fraction:0.5,0.2")
    assert data.num_features == 3 + 2 * (kind == "indicator") and data.num_edge_features == 2 + 2 * (
        kind == "indicator"
    )
    assert any("'age' " in note and "'pay' " in note for note in data.notes) and any("'x[0]' " in n for n in data.notes)


@pytest.mark.parametrize("kind", ["mean", "median", "indicator"])
def test_several_types(tmp_path, kind):
    rng, folder = np.random.default_rng(3), tmp_path / "g"
    parquet(
        folder,
        "nodes-user",
        pa.table({"id": np.arange(50) * 3, "label": rng.integers(0, 2, 50), "x0": gaps(rng, 50, 1)[:, 0]}),
    )
    parquet(folder, "nodes-item", pa.table({"x": gaps(rng, 20, 4).tolist()}))
    ends = rng.integers(0, 50, 90) * 3, rng.integers(0, 20, 90)
    parquet(folder, "edges-user-buys-item", pa.table({"src": ends[0], "dst": ends[1], "x": gaps(rng, 90, 2).tolist()}))
    parquet(folder, "edges-item-of-user", pa.table({"src": ends[1], "dst": ends[0]}))
    options = mr.ReadOptions(nan_features=kind, normalize_features="standard", missing_ids="compact")
    data = same(folder, tmp_path, options, split="fraction:0.5,0.2")
    assert any(note.startswith("Relation user,buys,item: ") and "'x[1]'" in note for note in data.notes)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", ["mean", "indicator"])
def test_null_lists_are_missing_values(tmp_path, kind, fixed):
    """A null among lists is one in each column; the first rows, whole files and a whole relation may be nulls."""
    rng, folder = np.random.default_rng(5), tmp_path / "g"

    def lists(rows, nulls, width):
        x = [None if i in nulls else row for i, row in enumerate(rng.normal(size=(rows, width)).tolist())]
        return pa.array(x, pa.list_(pa.float64(), width) if fixed else pa.list_(pa.float64()))

    ids = rng.permutation(50) * 3
    labels = pa.array([None if i % 7 == 0 else [i % 2, (i + 1) % 3 % 2] for i in range(50)])
    parquet(folder, "nodes-user", pa.table({"id": ids, "label": labels, "x": lists(50, range(20), 3)}))
    parquet(folder, "nodes-item", pa.table({"x": lists(20, {3, 19}, 2), "x9": rng.random(20)}))
    ends = rng.choice(ids, 90), rng.integers(0, 20, 90)
    parquet(folder, "edges-user-buys-item", pa.table({"src": ends[0], "dst": ends[1], "x": lists(90, {0, 41}, 2)}))
    nothing = lists(90, range(90), 2)
    parquet(folder, "edges-item-of-user", pa.table({"src": ends[1], "dst": ends[0], "x": nothing}))
    options = mr.ReadOptions(nan_features=kind, normalize_features="standard", missing_ids="compact")
    data = same(folder, tmp_path, options, split="fraction:0.5,0.2")
    assert any("60 NaN or infinite feature values were filled" in note for note in data.notes)
    assert any("8 nodes are unlabelled (NaN)" in note for note in data.notes)


@pytest.mark.parametrize("table", ["nodes-user", "edges-user-buys-user"])
def test_lists_of_several_lengths(tmp_path, table):
    """In a later piece, whose row is named, as is the table."""
    rng, folder = np.random.default_rng(6), tmp_path / "g"
    lists = {
        name: [None, *([1.0, 2.0] if name != table or i != 33 else [1.0] for i in range(49))]
        for name in ("nodes-user", "edges-user-buys-user")
    }
    parquet(folder, "nodes-user", pa.table({"label": rng.integers(0, 2, 50), "x": lists["nodes-user"]}))
    ends = {end: rng.integers(0, 50, 50) for end in ("src", "dst")}
    parquet(folder, "edges-user-buys-user", pa.table({**ends, "x": lists["edges-user-buys-user"]}))
    options, told = mr.ReadOptions(nan_features="mean"), set()
    for read in (mr.open_dataset, lambda path, options: mr.convert(path, tmp_path / "out", options=options)):
        with pytest.raises(
            mr.InputError, match=rf"column {table}\.x has lists of 2 and of 1 values \(row 34\)"
        ) as error:
            read(folder, options=options)
        told.add(str(error.value))
    assert len(told) == 1


def test_columns_that_say_what_is_missing_are_named_by_what_there_is(tmp_path):
    """A column of one's own may be called as one that is made; unknown names are refused, also in pieces."""
    folder, ends = tmp_path / "g", {"src": np.arange(40), "dst": np.roll(np.arange(40), 1)}
    rows = {"id": np.arange(40), "label": np.arange(40) % 2, "pay is missing": np.arange(40) % 3, "pay": np.arange(40)}
    parquet(folder, "nodes", pa.table({**rows, "age": pa.array([None, *range(39)])}))
    parquet(folder, "edges", pa.table(ends))
    read = {"direction": "directed", "feature_columns": "age,pay is missing,pay", "nan_features": "indicator"}
    data = same(folder, tmp_path, mr.ReadOptions(**read), split="fraction:0.5,0.2")
    assert [c["name"] for c in data.card["columns"]] == ["age", "pay is missing", "pay", "age is missing"]
    assert indicators_in(data.card) == ("nodes.age",)
    unknown = mr.ReadOptions(**read, indicators=("nodes.agge",))
    said = r"indicators names nodes\.agge, but the columns of features are nodes\.age, .*; did you mean 'nodes\.age'\?"
    with pytest.raises(mr.InputError, match=said):
        mr.open_dataset(folder, options=unknown)
    with pytest.raises(mr.InputError, match=said):
        mr.convert(folder, tmp_path / "pieces", options=unknown, memory="1GiB", verbose=False)
    for given, why in {"nodes.age": "expected a list of columns", (1,): "expected a list of columns"}.items():
        with pytest.raises(mr.InputError, match=why):
            mr.ReadOptions(nan_features="indicator", indicators=given)
    with pytest.raises(mr.InputError, match="indicators is given, but nan_features is 'zero'"):
        mr.ReadOptions(nan_features="zero", indicators=["nodes.age"])
    before = mr.ReadOptions(nan_features="indicator", indicators=["nodes.age"]).given
    assert mr.ReadOptions(nan_features="zero").over(before).indicators is None


def test_columns_that_say_what_is_missing_beyond_those_that_a_card_lists(tmp_path):
    """Other data have as many columns with gaps, and not the same."""
    rng = np.random.default_rng(0)

    def write(name, *gaps):
        x = rng.standard_normal((40, 520)).astype(np.float32)
        x[range(len(gaps)), gaps] = np.nan
        ends = np.stack([np.arange(40), np.roll(np.arange(40), 1)])
        np.savez(tmp_path / f"{name}.npz", edge_index=ends, y=np.arange(40) % 2, x=x)
        return str(tmp_path / f"{name}.npz")

    given = {"config": {"read": {"direction": "directed", "nan_features": "indicator"}}, "epochs": 1, "hidden": 4}
    run = mr.run(write("own", 3, 510), out=tmp_path / "run", verbose=False, split="fraction:0.5,0.2", **given)
    read, other = mr.load(tmp_path / "run").reading(), write("other", 7, 510)
    assert run.num_features == 522 and read.indicators == ("nodes.column 3", "nodes.column 510")
    for data in (mr.load(tmp_path / "run").open_dataset(other), mr.open_dataset(other, options=read)):
        assert np.argwhere(data.features.gather(np.arange(40))[:, 520:]).tolist() == [[1, 1]]
