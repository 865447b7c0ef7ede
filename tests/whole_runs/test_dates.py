"""Times from dates: splits, predictions and stores take ISO dates, and give what the numbers give."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import millrace as mr
from millrace.storage.dataset_store import KIND
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.store.manifest import MANIFEST, manifest_text
from millrace.tests.contracts.command import command

V, E = 60, 400
OPTIONS = mr.ReadOptions(direction="directed", edge_time="paid", node_time="seen")
START = np.datetime64("2017-01-01")


def tables(folder, of_nodes="D", of_edges="ms"):
    """A folder of Parquet whose nodes and edges have dates in these units."""
    rng = np.random.default_rng(0)
    seen = (START + rng.integers(0, 700, V)).astype(f"M8[{of_nodes}]")
    seen[:5] = np.datetime64("2017-12-31" if of_nodes == "D" else "2017-12-31T23:30").astype(seen.dtype)
    paid = (START + rng.integers(0, 700 * 24, E).astype("m8[h]")).astype(f"M8[{of_edges}]")
    folder.mkdir()
    nodes = {"seen": seen, "label": np.arange(V) % 2, "features": list(rng.standard_normal((V, 3)).astype(np.float32))}
    edges = {"src": rng.integers(0, V, E), "dst": rng.integers(0, V, E), "paid": paid}
    pyarrow.parquet.write_table(pa.table(nodes), folder / "nodes.parquet")
    pyarrow.parquet.write_table(pa.table(edges), folder / "edges.parquet")
    return seen, paid


@pytest.mark.parametrize("of_nodes", ["D", "s", "us"])
def test_a_split_by_dates_is_that_of_the_dates(tmp_path, of_nodes):
    seen, _ = tables(tmp_path / "data", of_nodes, "D")
    data = mr.open_dataset(tmp_path / "data", options=OPTIONS, split="until:2017-12-31,2018-06-30T12:00+12:00")
    finest = "us" if of_nodes == "us" else "ms" if of_nodes == "s" else "D"  # Parquet keeps seconds as milliseconds
    assert data.graph.time_unit == finest
    assert data.graph.node_time.tolist() == seen.astype(f"M8[{finest}]").astype(np.int64).tolist()
    train, val = seen < np.datetime64("2018-01-01"), seen <= np.datetime64("2018-06-30T00:00")
    assert np.array_equal(data.split.train, np.flatnonzero(train))
    assert np.array_equal(data.split.val, np.flatnonzero(val & ~train))
    last = [int(np.datetime64(t).astype(f"M8[{finest}]").astype(int)) for t in ("2017-12-31", "2018-06-30")]
    if finest == "D":
        numbers = mr.open_dataset(tmp_path / "data", options=OPTIONS, split=f"until:{last[0]},{last[1]}")
        assert np.array_equal(numbers.split.val, data.split.val) and np.array_equal(numbers.split.test, data.split.test)


def test_dates_of_nodes_and_edges_are_compared_as_dates(tmp_path):
    seen, paid = tables(tmp_path / "data")
    graph = mr.open_dataset(tmp_path / "data", options=OPTIONS).graph
    assert graph.time_unit == "ms"
    assert graph.node_time.tolist() == seen.astype("M8[ms]").astype(np.int64).tolist()
    assert sorted(graph.edge_time.tolist()) == sorted(paid.astype(np.int64).tolist())


def test_a_store_with_another_unit_is_damaged(tmp_path):
    tables(tmp_path / "data")
    made = mr.write_dataset(tmp_path / "store", mr.open_dataset(tmp_path / "data", options=OPTIONS))
    for unit in ("fortnight", 7, ["s"]):
        meta = {**made.meta, "time_unit": unit}
        (tmp_path / "store" / MANIFEST).write_text(manifest_text(KIND, made.fingerprint, meta, made.entries))
        with pytest.raises(mr.StoreError, match=r"time_unit is .*; expected a unit of NumPy's dates"):
            mr.open_dataset(tmp_path / "store")
        with pytest.raises(mr.StoreError, match=r"time_unit is .*; expected a unit of NumPy's dates"):
            _ = open_lazily(tmp_path / "store").graph.time_unit


@pytest.mark.parametrize("access", ["memory", "mapped"])
def test_a_store_and_what_is_made_of_it_remember_the_unit(tmp_path, access):
    tables(tmp_path / "data")
    data = mr.open_dataset(tmp_path / "data", options=OPTIONS)
    mr.write_dataset(tmp_path / "store", data, graph_format="npy", features_format="npy")
    stored = mr.open_dataset(tmp_path / "store", graph=access, features=access, split="until:2017-12-31,2018-06-30")
    assert stored.graph.time_unit == "ms" and mr.reorder(stored, np.arange(V)[::-1]).graph.time_unit == "ms"
    with pytest.raises(InputError, match=r"60 times from \d+ \(2017-01-.*\) to \d+ \(2018-.*\) leave none for test"):
        mr.open_dataset(tmp_path / "store", split="until:2018-06-30,2019-06-30")


def test_dates_for_times_that_are_numbers_are_refused_and_so_is_what_is_neither():
    with pytest.raises(InputError, match=r"a bound of split=until:2017-01-01,2018-01-01 is '2017-01-01', a date, but"):
        mr.open_dataset("tsbm:nodes=100", split="until:2017-01-01,2018-01-01")
    for split, said in {
        "until:monday,9": r"expected two numbers, or two dates, after 'until:'",
        "until:2017-01-01,2018": r"a date and a number; expected two dates, or two numbers",
        "until:2018-01-01,2017-01-01T10:00": r"in which the future trains the past",
        "until:2018-01-01,2018-01-01T10:00": r"in which the future trains the past",  # the date is the whole day
    }.items():
        with pytest.raises(InputError, match=said):
            mr.open_dataset("tsbm:nodes=100", split=split)


def test_python_keeps_the_unit_of_its_dates():
    day = np.array(["2017-01-01", "2017-03-01", "2017-05-01"], "M8[D]")
    graph = mr.from_edges([0, 1], [1, 2], 3, edge_time=day[:2], node_time=day)
    data = mr.Dataset("own", graph, ArrayFeatures(np.ones((3, 1), np.float32)), np.array([0, 1, 0]), None, 2)
    found = mr.open_dataset(data, split="until:2017-02-28,2017-04-30")
    assert [found.split.train.tolist(), found.split.val.tolist(), found.split.test.tolist()] == [[0], [1], [2]]


def test_runs_and_predictions_take_dates(tmp_path):
    """The same as with numbers, on the command line and in Python, of links."""
    tables(tmp_path / "data", "ms", "ms")
    last = [int(t.astype("M8[ms]").astype(int)) for t in (np.datetime64("2018-01-01"), np.datetime64("2018-07-01"))]
    words = [
        "--dataset",
        tmp_path / "data",
        "--set",
        "read.edge_time=paid",
        "--set",
        "read.direction=directed",
        "--set",
        "task=link",
        "--epochs",
        1,
    ]
    words += ["--set", "sampler.name=temporal", "--fanout", "3", "--layers", 1, "--set", "link.width=4"]
    for out, split in {"dates": "2017-12-31,2018-06-30", "numbers": f"{last[0] - 1},{last[1] - 1}"}.items():
        code, _, error = command("run", *words, "--split", f"until:{split}", "--out", tmp_path / out)
        assert code == 0, error
    by_date, by_number = mr.load(tmp_path / "dates"), mr.load(tmp_path / "numbers")
    assert by_date.result.parameters_sha256 == by_number.result.parameters_sha256

    pairs, at = [[0, 5], [3, 1]], ["2018-01-01", datetime(2018, 7, 1, tzinfo=UTC)]
    want = mr.predict_links(by_date, pairs, times=last).scores
    assert np.array_equal(mr.predict_links(by_date, pairs, times=at).scores, want)
    best = mr.recommend(by_date, 2, time=last[0])
    for moment in ("2018-01-01", "2018-01-01T01:00+01:00", np.datetime64("2018-01-01"), datetime(2018, 1, 1)):
        found = mr.recommend(by_date, 2, time=moment)
        assert np.array_equal(found.destinations, best.destinations) and np.array_equal(found.scores, best.scores)
    for name, moment in {"date": "2018-01-01", "number": last[0]}.items():
        flags = ["--top", 2, "--time", moment, "--out", tmp_path / f"{name}.npy"]
        code, _, error = command("predict", tmp_path / "dates", *flags)
        assert code == 0, error
    assert (tmp_path / "date.npy").read_bytes() == (tmp_path / "number.npy").read_bytes()
    with pytest.raises(InputError, match="time is 'soon'; expected a number, or a date"):
        mr.recommend(by_date, 2, time="soon")


def test_labelled_edges_are_split_by_dates(tmp_path):
    tables(tmp_path / "data", "D", "s")
    rng = np.random.default_rng(1)
    known = {"src": rng.integers(0, V, 50), "dst": rng.integers(0, V, 50), "label": rng.integers(0, 2, 50)}
    known["time"] = START + rng.integers(0, 700, 50)  # in days
    pyarrow.parquet.write_table(pa.table(known), tmp_path / "known.parquet")
    options = mr.ReadOptions(
        labels_of="edges", direction="directed", pairs=str(tmp_path / "known.parquet"), node_time="seen"
    )
    data = mr.open_dataset(tmp_path / "data", options=options, split="until:2017-12-31,2018-06-30")
    assert np.array_equal(data.split.train, np.flatnonzero(known["time"] < np.datetime64("2018-01-01")))
    assert data.graph.time_unit == "D"


def test_files_of_pairs_have_dates_of_any_unit(tmp_path):
    """In days, where those of the graph are in milliseconds; of links, and of labelled edges."""
    tables(tmp_path / "data", "ms", "ms")
    options = mr.ReadOptions(direction="directed", edge_time="paid")
    base = mr.open_dataset(tmp_path / "data", options=options)
    job = {"epochs": 1, "sampler": {"name": "temporal", "fanout": [3]}, "verbose": False, "link": {"width": 4}}
    days = np.array(["2018-01-01", "2018-07-01"], "M8[D]")
    last = days.astype("M8[ms]").astype(np.int64)
    links = mr.run(mr.link_dataset(base, split="time:0.6,0.2"), out=tmp_path / "links", **job)
    rng = np.random.default_rng(2)
    ends, labels = np.stack(np.divmod(rng.permutation(V * V)[:60], V), 1), rng.integers(0, 2, 60)
    when = START + rng.integers(100, 700, 60)
    labelled = mr.edge_dataset(base, ends, labels, times=when, split="until:2017-12-31,2018-06-30")
    assert labelled.pair_time.tolist() == when.astype("M8[ms]").astype(np.int64).tolist()
    edges = mr.run(labelled, out=tmp_path / "edges", **job)
    pairs = pa.table({"src": [0, 3], "dst": [5, 1], "time": days})
    pyarrow.parquet.write_table(pairs, tmp_path / "pairs.parquet")
    (tmp_path / "pairs.csv").write_text("src,dst,time\n0,5,2018-01-01\n3,1,2018-07-01\n")
    (tmp_path / "offset.csv").write_text("src,dst,time\n0,5,2018-01-01T00:00+02:00\n3,1,soon\n")
    for name in ("pairs.parquet", "pairs.csv"):
        found = mr.predict_links(links, tmp_path / name).scores
        assert np.array_equal(found, mr.predict_links(links, [[0, 5], [3, 1]], times=last).scores)
        found = mr.predict_edges(edges, tmp_path / name).logits
        assert np.array_equal(
            found, mr.predict_edges(edges, [[0, 5], [3, 1]], times=["2018-01-01", "2018-07-01"]).logits
        )
    for predict, run in ((mr.predict_links, links), (mr.predict_edges, edges)):
        with pytest.raises(
            InputError,
            match=r"is string \(first: '2018-01-01T00:00\+02:00'\); expected numbers, or dates in UTC without",
        ):
            predict(run, tmp_path / "offset.csv")
    given = {
        name: ends[ends[:, 0] != ends[:, 1]][part]
        for name, part in (("train", slice(40)), ("val", slice(40, 50)), ("test", slice(50, 60)))
    }
    given |= {f"{name}_time": np.sort(when)[: len(rows)] for name, rows in given.items()}
    own = mr.link_dataset(base, pairs=given)
    assert set(own.pair_time) <= set(when.astype("M8[ms]").astype(np.int64))
