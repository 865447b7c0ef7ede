"""Sets of other data than a run's: those that they store, or none; never those that the run's split would draw."""

from dataclasses import replace

import numpy as np
import pytest

import millrace as mr
from millrace.tests.contracts.command import command

pyg = pytest.importorskip("torch_geometric.data")
torch = pytest.importorskip("torch")

V = 40
SMALL = {"fanout": [4, 4], "epochs": 1, "verbose": False, "threads": 1, "model": mr.GraphSAGE(hidden=8, layers=2)}
DRAWN = {"split": "fraction:0.5,0.2"}


def graph(seed, **sets):
    draw = np.random.default_rng(seed)
    ends = torch.from_numpy(draw.integers(0, V, (2, 60)))
    ends = torch.cat([ends, ends.flip(0)], 1)
    data = pyg.Data(x=torch.from_numpy(draw.normal(size=(V, 4)).astype(np.float32)), edge_index=ends)
    data.y = torch.arange(V) % 3
    data.y[5] = -1
    for name, nodes in sets.items():
        data[f"{name}_mask"] = torch.zeros(V, dtype=torch.bool)
        data[f"{name}_mask"][nodes] = True
    return data


def right(run, data, nodes):
    found = mr.predict(run, data, nodes=nodes)
    return float((found.classes == data.y.numpy()[nodes]).mean())


@pytest.fixture(scope="module", params=["drawn", "default"])
def run(request, tmp_path_factory):
    more = DRAWN if request.param == "drawn" else {}
    return mr.run(graph(0), out=tmp_path_factory.mktemp("sets") / "run", **SMALL, **more)


def test_sets_that_other_data_store_count(run):
    sets = {"train": [0, 1], "val": [2, 3, 4], "test": [30, 31, 32, 33, 34, 35, 36]}
    other = graph(1, **sets)
    accuracy = mr.evaluate(run, other)["accuracy"]
    assert accuracy == {name: pytest.approx(right(run, other, nodes)) for name, nodes in sets.items()}
    tested = graph(1, test=sets["test"])
    assert mr.evaluate(run, tested)["accuracy"] == {"train": None, "val": None, "test": accuracy["test"]}
    assert mr.predict(run, other, nodes="val").nodes.tolist() == sets["val"]


def test_data_without_sets_are_test_data_as_a_whole(run, tmp_path):
    other, labelled = graph(1), np.delete(np.arange(V), 5)
    with pytest.warns(mr.DataWarning, match="stores no split: all its 39 labelled nodes are test nodes"):
        found = mr.evaluate(run, other)
    assert found["accuracy"] == {"train": None, "val": None, "test": pytest.approx(right(run, other, labelled))}
    with pytest.warns(mr.DataWarning, match="all its 39 labelled nodes"):
        assert mr.evaluate(run, mr.from_pyg(other))["accuracy"] == found["accuracy"]
    with pytest.warns(mr.DataWarning, match="all its 39 labelled nodes"):
        assert mr.predict(run, other, nodes="test").nodes.tolist() == labelled.tolist()
    mr.write_dataset(tmp_path / "store", mr.from_pyg(other))
    code, out, error = command("evaluate", run.out, "--dataset", tmp_path / "store")
    assert code == 0 and f"test   {found['accuracy']['test']:.4f}" in out and "train  none" in out
    assert "all its 39 labelled nodes are test nodes" in error and "60 %" not in error
    # A split that somebody asked for is the data's own.
    asked = mr.from_pyg(other, split="fraction:0.2,0.2")
    want = {name: pytest.approx(right(run, other, getattr(asked.split, name))) for name in ("train", "val", "test")}
    assert mr.evaluate(run, asked)["accuracy"] == want


def test_a_split_in_the_place_of_a_drawn_one_counts(tmp_path):
    run = mr.run(graph(0), out=tmp_path / "run", **SMALL)
    nodes = np.array([30, 31, 32, 33, 34])
    for seed in (0, 1):
        mine = replace(mr.from_pyg(graph(seed)), split=mr.Split(nodes[:0], nodes[:0], nodes))
        assert any("stores no split" in note for note in mine.notes)
        mr.write_dataset(tmp_path / f"store{seed}", mine)
        for given in (mine, tmp_path / f"store{seed}"):
            assert mr.predict(run, given, nodes="test").nodes.tolist() == nodes.tolist()


def test_the_runs_own_data_given_again_have_its_sets(run, recwarn):
    want = mr.evaluate(run)["accuracy"]
    assert None not in want.values() and want["test"] == pytest.approx(run.test_accuracy)
    assert mr.evaluate(run, graph(0))["accuracy"] == want
    assert mr.evaluate(run, mr.from_pyg(graph(0)))["accuracy"] == want
    assert not [w for w in recwarn if issubclass(w.category, mr.DataWarning)]


def test_other_sets_of_the_runs_own_data_are_taken_with_a_word(tmp_path):
    run = mr.run(graph(0), out=tmp_path / "run", **SMALL, **DRAWN)
    again = graph(0, train=[0, 1], val=[2], test=[3, 4])
    with pytest.warns(mr.DataWarning, match=r"trained on the same data, divided by split=fraction:0\.5,0\.2"):
        found = mr.evaluate(run, again)
    assert found["accuracy"]["test"] == pytest.approx(right(run, again, [3, 4]))


def test_a_column_of_sets_in_tables_counts(tmp_path):
    def tables(name, sets):
        (folder := tmp_path / name).mkdir()
        ends = np.random.default_rng(len(name)).integers(0, V, (2, 100)).T.tolist()
        (folder / "edges.csv").write_text("src,dst\n" + "".join(f"{u},{v}\n" for u, v in ends))
        lines = [f"{v},{v % 7},{'abc'[v % 3]}{f',{sets[v % len(sets)]}' if sets else ''}\n" for v in range(V)]
        (folder / "nodes.csv").write_text(f"id,x,label{',split' if sets else ''}\n" + "".join(lines))
        return folder

    read = {"direction": "directed", "feature_columns": "x"}
    run = mr.run(tables("old", ("train", "val", "test", "train")), out=tmp_path / "run", read=read, **SMALL)
    assert mr.predict(run, tables("new", ("test", "train")), nodes="test").nodes.tolist() == list(range(0, V, 2))
    code, out, error = command("evaluate", run.out, "--dataset", tables("bare", ()))
    assert code == 0 and "train  none" in out and "all its 40 labelled nodes are test nodes" in error


def test_labelled_edges_without_sets_are_test_edges(tmp_path):
    def payments(name, sets):
        (folder := tmp_path / name).mkdir()
        rows = [f"{k % V},{k * 7 % V},{k % 3 == 0:d}{f',{sets[k % 3]}' if sets else ''}\n" for k in range(90)]
        (folder / "edges.csv").write_text(f"src,dst,label{',split' if sets else ''}\n" + "".join(rows))
        (folder / "nodes.csv").write_text("id,x\n" + "".join(f"{v},{v % 5}\n" for v in range(V)))
        return folder

    read = {"labels_of": "edges", "direction": "directed", "feature_columns": "x"}
    run = mr.run(payments("old", ()), out=tmp_path / "run", read=read, **SMALL, **DRAWN)
    own = mr.evaluate(run)["accuracy"]
    assert mr.evaluate(run, tmp_path / "old")["accuracy"] == own and None not in own.values()
    (tmp_path / "old" / "nodes.csv").write_text("id,x\n" + "".join(f"{v},{v % 4}\n" for v in range(V)))
    with pytest.warns(mr.DataWarning, match="all its 90 labelled edges are test edges"):
        assert len(mr.predict_edges(run, "test", tmp_path / "old")) == 90
    assert len(mr.predict_edges(run, "val", payments("new", ("train", "val", "test")))) == 30
    hidden = mr.run(tmp_path / "old", out=tmp_path / "h", read={**read, "labelled_edges": "hidden"}, **SMALL, **DRAWN)
    assert len(mr.predict_edges(hidden, "val", payments("third", ("train", "val", "val")))) == 60
    notes = []
    assert len(mr.predict_edges(hidden, "train", payments("fourth", ()), emit=notes.append)) == 45
    assert any("its edges are divided by that of the run, fraction:0.5,0.2" in str(n) for n in notes)


def test_links_of_other_data_are_divided_unless_they_are(tmp_path):
    for seed in (0, 1):
        data = graph(seed)
        np.savez(tmp_path / f"{seed}.npz", edge_index=data.edge_index.numpy(), x=data.x.numpy(), y=data.y.numpy())
    run = mr.run(tmp_path / "0.npz", task="link", out=tmp_path / "run", **SMALL, split="fraction:0.7,0.1")
    notes = []
    mr.evaluate(run, tmp_path / "1.npz", emit=notes.append)
    assert any("its edges are divided by that of the run, fraction:0.7,0.1" in str(n) for n in notes)
    pairs = {"train": [[0, 1], [2, 3]], "val": [[4, 5]], "test": [[6, 7], [8, 9]]}
    other = mr.link_dataset(mr.from_pyg(graph(1), options=mr.ReadOptions(task="link")), pairs=pairs)
    mr.write_dataset(tmp_path / "store", other)
    assert mr.evaluate(run, tmp_path / "store")["metrics"] == mr.evaluate(run, other)["metrics"]


def test_links_of_a_store_are_scored_on_all_its_edges(tmp_path):
    run = mr.run(graph(0), task="link", out=tmp_path / "run", **SMALL)
    pairs, other = [[0, 1], [7, 30], [12, 2]], graph(1)
    mr.write_dataset(tmp_path / "store", mr.from_pyg(other))
    want = mr.predict_links(run, pairs, other).scores
    assert np.allclose(mr.predict_links(run, pairs, tmp_path / "store").scores, want, atol=1e-6)


def test_a_balanced_loss_keeps_the_runs_weights(tmp_path):
    train = {"loss": {"name": "cross_entropy", "class_weights": "balanced"}, "metrics": ["loss"]}
    sets = {"train": [0, 3, 6, 9, 12, 1, 4, 2], "val": [7, 8], "test": [20, 21, 22, 23, 24, 25]}
    run = mr.run(graph(0, **sets), out=tmp_path / "run", train=train, **SMALL)
    for other in (graph(0, test=sets["test"]), graph(0, train=[10, 11, 13, 16], test=sets["test"])):
        assert mr.evaluate(run, other)["metrics"]["test"]["loss"] == pytest.approx(run.test_metrics["loss"])


def test_weights_that_nothing_reads_need_no_data_of_the_run(tmp_path):
    mr.write_dataset(tmp_path / "store", mr.from_pyg(graph(0)))
    train = {"loss": {"name": "cross_entropy", "class_weights": "balanced"}}
    run = mr.run(tmp_path / "store", out=tmp_path / "run", train=train, **SMALL)
    (tmp_path / "store").rename(tmp_path / "gone")
    assert set(mr.evaluate(run, graph(1))["accuracy"]) == {"train", "val", "test"}
