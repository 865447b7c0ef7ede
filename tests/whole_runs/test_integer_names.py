"""Integer ids with gaps, and nodes that were renumbered: an integer means the same node wherever it is given."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

IDS = [7 * v + 3 for v in range(30)][::-1]
SMALL = {"epochs": 1, "hidden": 4, "layers": 2, "fanout": [3, 3], "verbose": False, "threads": 1}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A ring with chords, whose ids have gaps and rows descend."""
    folder = tmp_path_factory.mktemp("gaps")
    rows = [f"{i},{'ab'[i % 2]},{i / 100}" for i in IDS]
    (folder / "nodes.csv").write_text("\n".join(["id,label,feature_0", *rows]))
    ends = [(IDS[v], IDS[(v + step) % 30]) for v in range(30) for step in (1, 4)]
    (folder / "edges.csv").write_text("\n".join(["src,dst", *(f"{a},{b}" for a, b in ends)]))
    return folder


@pytest.fixture(scope="module")
def stores(tables, tmp_path_factory):
    """The same graph read in memory, converted, renumbered by a cut, and as a store that did not note that names are
    integers."""
    place = tmp_path_factory.mktemp("stores")
    options = mr.ReadOptions(direction="directed", missing_ids="compact")
    mr.convert(tables, place / "store", options=options, split="fraction:0.5,0.2", verbose=False)
    code, _, error = command("partition", place / "store", "--into", place / "cut", "--parts", 2, "--method", "hash")
    assert code == 0, error
    manifest = json.loads((place / "cut" / "manifest.json").read_text())
    assert manifest["meta"]["integer_names"] is True
    given = mr.open_dataset(tables, options=options, split="fraction:0.5,0.2")
    return {"memory": given, "store": place / "store", "cut": place / "cut"}


@pytest.mark.parametrize("kind", ["memory", "store", "cut"])
def test_nodes(stores, kind, tmp_path):
    run = mr.run(stores[kind], out=tmp_path / "run", **SMALL)
    wanted, names = [24, 3, 206], list(mr.open_dataset(stores[kind]).node_names)
    found = mr.predict(run, nodes=wanted)
    assert found.node_names.tolist() == wanted and [names[v] for v in found.nodes] == ["24", "3", "206"]
    same = [mr.predict(run, nodes=n) for n in (np.array(wanted), ["24", "3", "206"])]
    assert all(np.array_equal(p.nodes, found.nodes) for p in same)
    assert mr.embed(run, nodes=wanted).nodes.tolist() == found.nodes.tolist()
    assert mr.embed(run).node_names.dtype == np.int64
    with pytest.raises(InputError, match=r"1 name \(first: '4'\) is no node's"):
        mr.predict(run, nodes=[3, 4])
    for suffix in ("parquet", "zarr"):
        out = tmp_path / f"p.{suffix}"
        code, _, error = command("predict", tmp_path / "run", "--nodes", "24,3,206", "--out", out)
        assert code == 0, error
    assert pq.read_table(tmp_path / "p.parquet")["node"].to_pylist() == wanted
    mr.embed(run, nodes=wanted).write(tmp_path / "e.parquet")
    assert pq.read_table(tmp_path / "e.parquet")["node"].to_pylist() == wanted


def test_pairs_in_every_form(tables, tmp_path):
    options = mr.ReadOptions(direction="directed", missing_ids="compact", task="link")
    data = mr.open_dataset(tables, options=options, split="fraction:0.8,0.1")
    run = mr.run(data, out=tmp_path / "run", task="link", **SMALL)
    pairs = np.array([[3, 10], [206, 24], [17, 3]])
    want = mr.predict_links(run, pairs.astype(str))
    assert want.node_names.tolist() == pairs.tolist()
    np.save(tmp_path / "x.npy", pairs)
    (tmp_path / "x.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in pairs))
    for form in (pairs, pairs.tolist(), tmp_path / "x.npy", tmp_path / "x.csv"):
        found = mr.predict_links(run, form)
        assert found.pairs.tolist() == want.pairs.tolist() and found.scores.tolist() == want.scores.tolist()
    for name in ("x.npy", "x.csv"):
        code, _, error = command("predict", tmp_path / "run", "--pairs", tmp_path / name, "--out", tmp_path / "s.csv")
        assert code == 0, error
        with open(tmp_path / "s.csv") as file:
            assert [[int(r["src"]), int(r["dst"])] for r in csv.DictReader(file)] == pairs.tolist()
        (tmp_path / "s.csv").unlink()
    best = mr.recommend(run, 2, nodes=[206, 3])
    assert best.source_names.tolist() == [206, 3] and best.destination_names.dtype == np.int64
    best.write(tmp_path / "best.parquet")
    assert pq.read_table(tmp_path / "best.parquet")["src"].to_pylist()[0] == 206
    with pytest.raises(InputError, match=r"pairs: 1 name \(first: '0'\) is no node's"):
        mr.predict_links(run, [[3, 0]])


def test_sets_of_pairs_and_splits(tables, tmp_path):
    held = np.array([[IDS[5], IDS[6]], [IDS[7], IDS[11]]])
    np.savez(tmp_path / "sets.npz", val=held[:1], test=held[1:])
    (tmp_path / "sets.csv").write_text(
        "src,dst,split\n" + "".join(f"{a},{b},{s}\n" for (a, b), s in zip(held, ("val", "test")))
    )
    options = {"direction": "directed", "missing_ids": "compact", "task": "link"}
    npz, table = (
        mr.open_dataset(tables, options=mr.ReadOptions(**options, pairs=str(tmp_path / f"sets.{k}")))
        for k in ("npz", "csv")
    )
    for data in (npz, table):
        chosen = data.labels[np.concatenate([data.split.val, data.split.test]), :2]
        assert [[data.node_names[v] for v in pair] for pair in chosen.tolist()] == held.astype(str).tolist()


def test_a_networkx_graph_of_integers():
    import networkx

    graph = networkx.DiGraph([(10, 20), (20, 30), (30, 10)])
    networkx.set_node_attributes(graph, {10: 0, 20: 1, 30: 0}, "y")
    data = mr.from_networkx(graph, train=[30], val=[10], test=[20])
    assert data.node_names.are_integers and data.split.train.tolist() == [2] and data.split.val.tolist() == [0]
