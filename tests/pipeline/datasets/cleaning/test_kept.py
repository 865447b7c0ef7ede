"""Other data than a run's own: rows get the same features alone and among others, and so the same predictions."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.datasets.cleaning.filling import Treatment
from millrace.pipeline.datasets.cleaning.kept import FeatureName, OtherOptions
from millrace.pipeline.telemetry.events import Caution
from millrace.tests.contracts.command import command

V = 120
SMALL = {"epochs": 1, "threads": 1, "verbose": False, "model": mr.GraphSAGE(hidden=8, layers=1), "fanout": [4]}
NOT_READ = "Not read of nodes, since the run has no such features: height."


def customers(fills=True):
    draw = np.random.default_rng(7)
    age, spend = draw.normal(50, 20, V).round(1), draw.normal(1000, 400, V).round(2)
    gaps = [None if fills and v % 17 == 0 else float(age[v]) for v in range(V)]
    city = [("Basel", "Bern", "Chur", "")[v % 4] for v in range(V)]
    label = [("hi", "lo")[int(a > 50)] for a in age]
    return pa.table({"id": [f"c{v}" for v in range(V)], "age": gaps, "spend": spend, "city": city, "label": label})


def written(folder, table, suffix="csv", kind=""):
    folder.mkdir(parents=True, exist_ok=True)
    loops = pa.table({"src": table["id"], "dst": table["id"]})
    for name, rows in ((f"nodes{kind}", table), (f"edges{kind and f'{kind}-knows{kind}'}", loops)):
        path = folder / f"{name}.{suffix}"
        pyarrow.csv.write_csv(rows, path) if suffix == "csv" else pq.write_table(rows, path)
    return folder


def trained(folder, data, read=None, **more):
    job = SMALL | {"read": {"direction": "directed", "feature_columns": "*", **(read or {})}} | more
    mr.run(str(data), out=folder, **job)
    return folder


def scores(run, source=None):
    """The scores by the names of nodes."""
    found = mr.predict(run, *([] if source is None else [str(source)]))
    return dict(zip(map(str, found.node_names), found.logits.tolist()))


def check_same(run, source, nodes):
    """The features of `nodes` in another source are the run's to the bit; so are predictions, but for rounding, which
    products of matrices with fewer rows have."""
    own, other = (mr.load(run).open_dataset(s, labelled=False) for s in (None, str(source)))
    rows = [d.features.gather(d.node_names.meant(np.array(nodes))) for d in (own, other)]
    assert np.array_equal(*rows) and np.isfinite(rows[0]).all()
    whole, found = scores(run), scores(run, source)
    np.testing.assert_allclose([found[n] for n in nodes], [whole[n] for n in nodes], rtol=1e-4, atol=1e-5)
    assert len(found) == len(nodes)


def noted(run, source):
    said = []
    mr.load(run).open_dataset(source, labelled=False, emit=lambda event: said.append(str(event)))
    return " ".join(said)


WAYS = [
    {"normalize_features": norm, "nan_features": nan} | ({"one_hot": "city"} if hot else {})
    for norm, nan, hot in [
        ("standard", "zero", True),
        ("standard", "mean", False),
        ("standard", "median", True),
        ("none", "mean", True),
        ("none", "median", False),
        ("none", "indicator", True),
        ("row", "mean", True),
    ]
]


@pytest.mark.parametrize("read", WAYS)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_alone_are_predicted_as_among_others(tmp_path, read, suffix):
    table = customers()
    run = trained(tmp_path / "run", written(tmp_path / "whole", table, suffix), read)
    rest = table.drop_columns(["label"])
    parts = {
        "part": rest.slice(10, 40),
        "order": rest.slice(10, 40).select(["city", "spend", "id", "age"]),
        "one": rest.slice(5, 1),
        "gap": rest.slice(17, 1),
        "empty": rest.slice(3, 1),
        "more": rest.slice(10, 40).append_column("height", pa.array(np.arange(40.0))),
    }
    for name, rows in parts.items():
        check_same(run, written(tmp_path / name, rows, suffix), rows["id"].to_pylist())
    assert NOT_READ in noted(run, str(tmp_path / "more")) and "data's own" not in noted(run, str(tmp_path / "more"))


def test_numbers_of_all_columns_are_kept_for_gaps_that_only_other_data_have(tmp_path):
    table = customers(fills=False)
    for nan in ("mean", "median"):
        run = trained(tmp_path / nan, written(tmp_path / "whole", table), {"nan_features": nan})
        value = np.median(table["age"]) if nan == "median" else np.mean(np.float32(table["age"]).astype(np.float64))
        rows = table.slice(4, 2).drop_columns(["label"])
        filled = rows.set_column(1, "age", pa.array([float(np.float32(value))] * 2))
        bare = rows.set_column(1, "age", pa.array([None, None], pa.float64()))
        pairs = (scores(run, written(tmp_path / f"{nan}-{k}", t)) for k, t in enumerate((filled, bare)))
        one, other = pairs
        assert one == other


def test_a_store_keeps_it_for_the_runs_that_train_on_it(tmp_path):
    table, read = customers(), WAYS[2]
    source = written(tmp_path / "whole", table)
    args = [f"read.{k}={v}" for k, v in {"direction": "directed", "feature_columns": "*", **read}.items()]
    sets = [word for arg in args for word in ("--set", arg)]
    assert command("convert", source, "--out", tmp_path / "store", *sets)[0] == 0
    in_memory, stored = trained(tmp_path / "a", source, read), tmp_path / "b"
    mr.run(str(tmp_path / "store"), out=stored, **SMALL)
    cards = [json.loads((run / "data_card.json").read_text()) for run in (in_memory, stored)]
    assert cards[0]["treatment"] == cards[1]["treatment"]
    names = ["age", "spend", "city=Basel", "city=Bern", "city=Chur"]
    assert [c["name"] for c in cards[1]["columns"]] == names
    part = written(tmp_path / "part", table.slice(10, 3).drop_columns(["label"]))
    check_same(stored, part, ["c10", "c11", "c12"])
    code, _, said = command("predict", stored, "--dataset", part, "--out", tmp_path / "p.csv")
    assert code == 0, said
    assert command("predict", stored, "--out", tmp_path / "all.csv")[0] == 0
    found, every = (pyarrow.csv.read_csv(tmp_path / f"{name}.csv").slice(at, 3) for name, at in (("p", 0), ("all", 10)))
    assert found.select(["node", "class"]) == every.select(["node", "class"])


def test_node_types_have_their_own(tmp_path):
    table, read = customers(), {**WAYS[2], "feature_columns": "age,spend"}
    run = trained(tmp_path / "run", written(tmp_path / "whole", table, kind="-user"), read, model=mr.RGCN(8, 1))
    part = table.slice(9, 9).select(["spend", "age", "id", "city"])
    check_same(run, written(tmp_path / "part", part, kind="-user"), part["id"].to_pylist())


def test_arrays_are_scaled_as_the_runs_by_position(tmp_path):
    draw = np.random.default_rng(3)
    x, loops = draw.normal(40, 9, (V, 3)).astype(np.float32), np.stack([np.arange(V)] * 2)
    np.savez(tmp_path / "a.npz", edge_index=loops, x=x, y=np.arange(V) % 2)
    np.savez(tmp_path / "b.npz", edge_index=loops[:, :1], x=x[7:8])
    read = {"direction": "directed", "normalize_features": "standard"}
    mr.run(str(tmp_path / "a.npz"), out=tmp_path / "run", read=read, **SMALL)
    whole, other = mr.predict(tmp_path / "run").logits, mr.predict(tmp_path / "run", str(tmp_path / "b.npz")).logits
    np.testing.assert_allclose(other, whole[7:8], rtol=1e-4, atol=1e-5)


def test_unknown_values_are_told_and_missing_columns_refused(tmp_path):
    table = customers()
    run = trained(tmp_path / "run", written(tmp_path / "whole", table), WAYS[0])
    rest = table.slice(0, 4).drop_columns(["label"])
    other = written(tmp_path / "day2", rest.set_column(3, "city", pa.array(["Zug", "Bern", "Zug", "Lugano"])))
    bare = written(tmp_path / "bare", rest.set_column(3, "city", pa.array(["", "Bern", "", ""])))
    assert scores(run, other) == scores(run, bare)
    said = "Column nodes.city has 2 values that the run does not know (Lugano, Zug), in 3 rows, whose features of it"
    assert said in noted(run, other) and "does not know" not in noted(run, bare)
    with pytest.raises(mr.InputError, match=r"nodes has no column 'spend'.*but the run reads it as a feature"):
        mr.predict(run, str(written(tmp_path / "less", rest.drop_columns(["spend"]))))


def test_a_run_without_the_record_says_that_numbers_are_the_datas_own(tmp_path):
    table = customers()
    part = table.slice(0, 8).drop_columns(["label"])
    path = written(tmp_path / "part", part)
    run = trained(tmp_path / "run", written(tmp_path / "whole", table), {**WAYS[2], "one_hot": "city"})
    card = json.loads((run / "data_card.json").read_text())
    del card["treatment"]
    (run / "data_card.json").write_text(json.dumps(card))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"files_sha256": {}}))
    said = noted(run, path)
    assert "scaled by this data's own mean and deviation and filled by this data's own median" in said
    assert "since the run kept none" in said and "The values of city are this data's own" in said


def test_data_that_were_read_by_their_own_numbers_are_told(tmp_path):
    table = customers()
    source, part = written(tmp_path / "whole", table), written(tmp_path / "part", table.slice(0, 30))
    read = {"direction": "directed", "feature_columns": "*", **WAYS[2]}
    run = trained(tmp_path / "run", source, WAYS[2])
    for path, differs in ((source, False), (part, True)):
        said = noted(run, mr.open_dataset(path, options=mr.ReadOptions(**read)))
        assert ("by columns, values or scales of its own" in said) == differs


def test_records_that_lack_what_is_needed_give_no_treatment():
    standard = mr.ReadOptions(normalize_features="standard")
    assert Treatment.from_record(standard, [{"mean": 1.0}], 1) is None
    assert Treatment.from_record(standard, [{"mean": 1.0, "deviation": 2.0}], 2) is None
    found = Treatment.from_record(standard, [{"mean": 1.0, "deviation": 2.0}], 1)
    assert found is not None and found.apply(np.float32([[5]]), None).tolist() == [[2]]


def test_options_of_other_data_keep_what_they_are():
    name = FeatureName("city=7", "city", "7")
    before = {"nodes": [{"column": name.column, "value": name.value}, {"column": "age"}]}
    options = OtherOptions(one_hot="city", before=before)
    assert options.given == {"one_hot": "city"} and options.without(["one_hot"]).columns("nodes") == ("city", "age")
    assert options.values("edges", "city") == ("7",) and options.values("nodes", "age") == ()
    assert OtherOptions(before=before, chosen=True).columns("nodes") == ()


def test_edges_to_predict_have_the_runs_values(tmp_path):
    rng = np.random.default_rng(0)
    kind = np.array(["a", "b"], object)[rng.integers(0, 2, 60)]
    table = pa.table({"src": rng.integers(0, 12, 60), "dst": rng.integers(0, 12, 60), "kind": kind})
    (tmp_path / "g").mkdir()
    pq.write_table(pa.table({"id": np.arange(12), "x": rng.random(12)}), tmp_path / "g" / "nodes.parquet")
    pq.write_table(table.append_column("label", pa.array(rng.integers(0, 2, 60))), tmp_path / "g" / "edges.parquet")
    read = {"labels_of": "edges", "one_hot": "kind", "edge_feature_columns": "kind", "feature_columns": "x"}
    read["direction"] = "directed"
    mr.run(str(tmp_path / "g"), out=tmp_path / "run", read=read, epochs=1, split="fraction:0.6,0.2", verbose=False)
    pq.write_table(table, tmp_path / "all.parquet")
    some = np.flatnonzero(kind == "b")[:5]
    pq.write_table(table.take(some), tmp_path / "some.parquet")
    every, few = (mr.predict_edges(tmp_path / "run", tmp_path / f"{name}.parquet").logits for name in ("all", "some"))
    np.testing.assert_allclose(few, every[some], rtol=1e-4, atol=1e-5)


def test_columns_of_other_names_are_told(tmp_path):
    table = customers()
    run = trained(tmp_path / "run", written(tmp_path / "whole", table), WAYS[0])
    told = noted(run, written(tmp_path / "same", table.drop_columns(["label"])))
    assert "are those of the run's data" in told and "standard deviation 1" not in told and "taken in order" not in told
    before = {"nodes": [{"column": "x0"}, {"column": "x1"}]}
    wanted, missing, notes = OtherOptions(before=before).features("nodes", ["a", "b"], ("a", "b"), True)
    assert (wanted, missing) == (("a", "b"), []) and "are called a, b, and the run's x0, x1" in notes[0]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("nan", ["mean", "median", "zero", "indicator"])
def test_pairs_in_a_file_of_their_own_have_the_runs_values_and_numbers(tmp_path, suffix, nan):
    """A few pairs are predicted as among all: their gaps, values of one_hot and order of columns are the run's."""
    rng, n = np.random.default_rng(1), 60
    kind = np.array(["a", "b", "c"], object)[rng.integers(0, 3, n)]
    amount = [None if i % 7 == 0 else float(v) for i, v in enumerate(rng.normal(5, 2, n))]
    table = pa.table({"src": rng.integers(0, 12, n), "dst": rng.integers(0, 12, n), "amount": amount, "kind": kind})
    (tmp_path / "g").mkdir()
    pq.write_table(pa.table({"id": np.arange(12), "x": rng.random(12)}), tmp_path / "g" / "nodes.parquet")
    # The graph's own edges have columns of the same names, with other numbers and values.
    graph = table.slice(0, 30).set_column(2, "amount", pa.array([100.0] * 29 + [None]))
    graph = graph.set_column(3, "kind", pa.array(["b", "u", "v"] * 10))
    pq.write_table(graph, tmp_path / "g" / "edges.parquet")

    def pairs(name, rows):
        path = tmp_path / f"{name}.{suffix}"
        pyarrow.csv.write_csv(rows, path) if suffix == "csv" else pq.write_table(rows, path)
        return str(path)

    whole = pairs("whole", table.append_column("label", pa.array(rng.integers(0, 2, n))))
    read = {"labels_of": "edges", "pairs": whole, "one_hot": "kind", "feature_columns": "x", "nan_features": nan}
    read |= {"edge_feature_columns": "amount", "direction": "directed"}
    args = [f"read.{k}={v}" for k, v in read.items()]
    sets = [word for arg in args for word in ("--set", arg)]
    assert command("convert", tmp_path / "g", "--out", tmp_path / "store", *sets)[0] == 0
    small = {"epochs": 1, "split": "fraction:0.6,0.2", "verbose": False}
    mr.run(str(tmp_path / "g"), out=tmp_path / "run", read=read, **small)
    card = json.loads((tmp_path / "run" / "data_card.json").read_text())
    names = [c["name"] for c in card["columns"] if c["of"] == "labelled edges"]
    assert names[:4] == ["amount", "kind=a", "kind=b", "kind=c"]
    assert mr.open_dataset(tmp_path / "store").card["treatment"] == card["treatment"]
    every = mr.predict_edges(tmp_path / "run", pairs("every", table)).logits
    some = np.flatnonzero((kind == "b") & (np.arange(n) % 7 == 0))
    few = table.take(some).select(["kind", "amount", "dst", "src"])
    found = mr.predict_edges(tmp_path / "run", pairs("few", few)).logits
    assert len(some) and np.ptp(every, axis=0).min() > 0
    np.testing.assert_allclose(found, every[some], rtol=1e-4, atol=1e-5)
    said = []
    strange = few.set_column(0, "kind", pa.array(["z"] * len(some)))
    mr.predict_edges(tmp_path / "run", pairs("strange", strange), emit=lambda event: said.append(str(event)))
    assert "that the run does not know (z)" in " ".join(said)


def test_pairs_with_columns_of_gaps_are_predicted_on_the_runs_own_data(tmp_path):
    edges = "src,dst\n" + "".join(f"{i},{(i * 7 + 3) % 40}\n" for i in range(40))
    (tmp_path / "edges.csv").write_text(edges)
    (tmp_path / "nodes.csv").write_text("id,label,f1\n" + "".join(f"{i},{i % 2},{i * 0.3}\n" for i in range(40)))
    pairs = tmp_path / "given" / "pairs.csv"
    pairs.parent.mkdir()
    rows = [f"{i},{(i * 3 + 1) % 40},{i % 2},{i * 0.1 if i % 5 else ''}\n" for i in range(40)]
    pairs.write_text("src,dst,label,amount\n" + "".join(rows))
    read = {"feature_columns": ["f1"], "labels_of": "edges", "pairs": str(pairs), "nan_features": "indicator"}
    run = trained(tmp_path / "run", tmp_path, read, model=None)
    events = []
    found = np.asarray(mr.predict_edges(run, emit=events.append))
    assert not [e for e in events if isinstance(e, Caution)]
    np.testing.assert_array_equal(found, np.asarray(mr.predict_edges(run, pairs=str(pairs))))
