"""Another graph than the run's, without labels, from every kind of source: read as the run's own was, or by options."""

import networkx
import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError, StoreError
from millrace.tests.contracts.command import command

pyg = pytest.importorskip("torch_geometric.data")
torch = pytest.importorskip("torch")

V = 30
DIRECTED = mr.ReadOptions(direction="directed")
OF_TABLES = mr.ReadOptions(direction="directed", feature_columns="age,income", label_columns="kind")
JOB = {"fanout": [4, 4], "epochs": 1, "verbose": False, "threads": 1}
SMALL = {**JOB, "model": mr.GraphSAGE(hidden=8, layers=2)}
TYPED = {**JOB, "model": mr.RGCN(hidden=8, layers=2)}
SPLIT = {"split": "fraction:0.5,0.2"}


def edges(seed):
    draw = np.random.default_rng(seed)
    return np.stack([draw.integers(0, V, 90), draw.integers(0, V, 90)])


def rows(seed, width=4):
    return np.random.default_rng(seed).normal(size=(V, width)).astype(np.float32)


def pyg_data(seed, labelled=True):
    data = pyg.Data(x=torch.from_numpy(rows(seed)), edge_index=torch.from_numpy(edges(seed)))
    if labelled:
        data.y = torch.arange(V) % 3
    return data


def hetero_data(seed, labelled=True):
    data, (u, w) = pyg.HeteroData(), torch.from_numpy(edges(seed))
    data["item"].x, data["user"].x = torch.from_numpy(rows(seed, 3))[:20], torch.from_numpy(rows(seed))
    if labelled:
        data["user"].y = torch.arange(V) % 3
    data["user", "buys", "item"].edge_index = torch.stack([u, w % 20])
    data["item", "bought", "user"].edge_index = torch.stack([w % 20, u])
    return data


def tables(folder, seed, labelled=True):
    folder.mkdir()
    kinds = [f",{'abc'[v % 3]}" if labelled else "" for v in range(V)]
    lines = [f"u{v},{v * seed % 7},{v % 5}{kinds[v]}\n" for v in range(V)]
    (folder / "nodes.csv").write_text(f"id,age,income{',kind' if labelled else ''}\n" + "".join(lines))
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"u{u},u{w}\n" for u, w in edges(seed).T.tolist()))
    return folder


def npz(path, seed, labelled=True):
    np.savez(path, edge_index=edges(seed), x=rows(seed), **({"y": np.arange(V) % 3} if labelled else {}))
    return path


def outputs(run, data, **more):
    found = mr.predict(run, data, **more)
    assert len(found.nodes) == V
    return found.probabilities


@pytest.fixture(scope="module")
def from_pyg(tmp_path_factory):
    return mr.run(mr.from_pyg(pyg_data(0), options=DIRECTED), out=tmp_path_factory.mktemp("a") / "r", **SMALL, **SPLIT)


def test_data_of_pyg_are_read_as_the_runs_were(from_pyg):
    new, plain = pyg_data(1), pyg_data(1, labelled=False)
    want = outputs(from_pyg, mr.from_pyg(new, options=DIRECTED))
    assert np.array_equal(outputs(from_pyg, plain), want)
    assert np.array_equal(outputs(from_pyg.out, plain), want)
    turned = pyg_data(1, labelled=False)
    turned.edge_index = turned.edge_index.flip(0)
    assert np.array_equal(outputs(from_pyg, turned, options=mr.ReadOptions(direction="reverse")), want)
    assert np.array_equal(mr.embed(from_pyg, plain).rows, mr.embed(from_pyg, mr.from_pyg(new, options=DIRECTED)).rows)


def test_data_of_python_are_evaluated(from_pyg):
    found, want = (mr.evaluate(run, pyg_data(1)) for run in (from_pyg, mr.load(from_pyg)))
    assert {**found, "seconds": 0} == {**want, "seconds": 0} and found["run"] == str(from_pyg.out)
    classes = mr.predict(from_pyg, pyg_data(1), nodes="test")
    assert found["accuracy"]["test"] == pytest.approx((classes.classes == classes.nodes % 3).mean())
    with pytest.raises(InputError, match="the PyG data has no y"):
        mr.evaluate(from_pyg, pyg_data(1, labelled=False))
    with pytest.raises(InputError, match="model was given beside a TrainedRun"):
        mr.evaluate(mr.load(from_pyg), model=mr.GraphSAGE(hidden=8, layers=2))
    other = pyg_data(1)
    other.y = torch.arange(V) % 5
    with pytest.raises(InputError, match=r"has 5 classes .* predicts 3 classes"):
        mr.evaluate(from_pyg, other)


def test_options_that_cannot_be_used_are_refused(from_pyg, tmp_path):
    with pytest.raises(
        InputError, match=r"options \(read.\*\) are given, but the run's own data are read as they were"
    ):
        mr.predict(from_pyg, options=DIRECTED)
    with pytest.raises(InputError, match="pyg has been read"):
        mr.predict(from_pyg, mr.from_pyg(pyg_data(1), options=DIRECTED), options=DIRECTED)
    with pytest.raises(InputError, match=r"options is a dict; expected mr\.ReadOptions"):
        mr.predict(from_pyg, pyg_data(1), options={"direction": "directed"})
    mr.write_dataset(tmp_path / "store", mr.from_pyg(pyg_data(1), options=DIRECTED))
    with pytest.raises(InputError, match="already clean and takes no reading options; leave out direction"):
        mr.predict(from_pyg, tmp_path / "store", options=DIRECTED)
    out = tmp_path / "p.csv"
    code, _, error = command("predict", from_pyg.out, "--set", "read.direction=directed", "--out", out)
    assert code == 2 and "the run's own data are read as they were" in error and not out.exists()
    code, _, error = command("predict", from_pyg.out, "--set", "train.lr=1", "--out", out)
    assert code == 2 and "--set train is a key of the run" in error


def test_a_damaged_record_of_options_is_named(from_pyg, monkeypatch):
    monkeypatch.setattr("millrace.pipeline.setup.python_inputs.reading_of", lambda store: {"nonsense": 1})
    with pytest.raises(StoreError, match="does not say how its data were read"):
        mr.predict(from_pyg, pyg_data(1, labelled=False))


@pytest.mark.parametrize("kind", ["dataset", "large dataset", "path", "store"])
def test_tables_without_labels(tmp_path, kind, monkeypatch):
    old, new = tables(tmp_path / "old", 2), tables(tmp_path / "new", 3, labelled=False)
    source, more = old, {"read": {"direction": "directed", "feature_columns": "age,income", "label_columns": "kind"}}
    if "dataset" in kind:
        source, more = mr.open_dataset(old, options=OF_TABLES), {}
    if kind == "large dataset":
        # It is not kept: only the record in the run's folder says how it was read.
        monkeypatch.setattr("millrace.pipeline.setup.python_inputs.KEPT_BYTES", 0)
    if kind == "store":
        source, more = tmp_path / "store", {}
        mr.convert(old, source, options=OF_TABLES, verbose=False)
    run = mr.run(source, out=tmp_path / "run", **SMALL, **SPLIT, **more)
    assert (tmp_path / "run" / "dataset").exists() == (kind == "dataset")
    want = outputs(run, mr.open_dataset(tables(tmp_path / "labelled", 3), options=OF_TABLES))
    assert np.array_equal(outputs(run, new), want)
    out = tmp_path / "p.npy"
    assert command("predict", run.out, "--dataset", new, "--out", out)[0] == 0
    assert np.load(out).shape[0] == V
    reverse = tmp_path / "reverse.npy"
    assert command("predict", run.out, "--dataset", new, "--set", "read.direction=reverse", "--out", reverse)[0] == 0
    code, _, error = command("evaluate", run.out, "--dataset", tmp_path / "labelled", "--json")
    assert code == 0, error


def test_an_archive_without_labels(tmp_path):
    run = mr.run(npz(tmp_path / "a.npz", 0), read={"direction": "directed"}, out=tmp_path / "run", **SMALL, **SPLIT)
    want = outputs(run, mr.open_dataset(npz(tmp_path / "b.npz", 1), options=DIRECTED))
    assert np.array_equal(outputs(run, npz(tmp_path / "c.npz", 1, labelled=False)), want)


def test_several_types_without_labels(tmp_path):
    run = mr.run(mr.from_pyg(hetero_data(0)), out=tmp_path / "run", **TYPED, **SPLIT)
    assert np.array_equal(outputs(run, hetero_data(1, labelled=False)), outputs(run, mr.from_pyg(hetero_data(1))))


def test_links_of_another_graph_use_all_its_edges(tmp_path):
    links = mr.ReadOptions(direction="directed", task="link")
    run = mr.run(mr.open_dataset(pyg_data(0, labelled=False), options=links), out=tmp_path / "run", **SMALL)
    new, whole = pyg_data(1, labelled=False), mr.from_pyg(pyg_data(1), options=DIRECTED)
    pairs = np.stack([np.arange(V), np.arange(V)[::-1]], 1)
    found = mr.predict_links(run, pairs, new)
    assert np.array_equal(found.scores, mr.predict_links(run, pairs, whole).scores)
    best = mr.recommend(run, 3, dataset=new)
    given = set(map(tuple, edges(1).T.tolist()))
    known = {(u, int(w)) for u, row in zip(best.sources, best.destinations) for w in row} & given
    assert not known, "an edge of the new graph is recommended"
    assert mr.embed(run, new).rows.shape[0] == V


def test_networkx_without_labels(from_pyg):
    graph = networkx.DiGraph()
    for v, row in enumerate(rows(1)):
        graph.add_node(v, x=row.tolist())
    graph.add_edges_from(edges(1).T.tolist())
    assert len(mr.predict(from_pyg, graph).nodes) == V


def typed_tables(folder, seed, labelled=True):
    folder.mkdir()
    kinds = [f",{'abc'[v % 3]}" if labelled else "" for v in range(V)]
    users = "".join(f"u{v},{v * seed % 7}{kinds[v]}\n" for v in range(V))
    (folder / "nodes-user.csv").write_text(f"id,age{',kind' if labelled else ''}\n" + users)
    (folder / "nodes-item.csv").write_text("id,price\n" + "".join(f"i{v},{v % 4}\n" for v in range(V)))
    for name, flip in (("user-buys-item", False), ("item-bought-user", True)):
        rows = [f"i{w},u{u}\n" if flip else f"u{u},i{w}\n" for u, w in edges(seed).T.tolist()]
        (folder / f"edges-{name}.csv").write_text("src,dst\n" + "".join(rows))
    return folder


def test_typed_tables_without_labels(tmp_path):
    read = {"feature_columns": "age,price", "label_columns": "kind"}
    run = mr.run(typed_tables(tmp_path / "old", 2), read=read, out=tmp_path / "run", **TYPED, **SPLIT)
    want = outputs(run, mr.open_dataset(typed_tables(tmp_path / "labelled", 3), options=mr.ReadOptions(**read)))
    assert np.array_equal(outputs(run, typed_tables(tmp_path / "new", 3, labelled=False)), want)


@pytest.mark.parametrize("kind", ["npz", "pt", "data", "networkx"])
def test_a_run_of_tables_reads_a_source_without_tables(tmp_path, kind):
    found = mr.open_dataset(tables(tmp_path / "old", 2), options=OF_TABLES, **SPLIT)
    run = mr.run(found, out=tmp_path / "run", **SMALL)
    data = pyg_data(1, labelled=False)
    data.x = data.x[:, :2]
    want = outputs(run, mr.from_pyg(data, options=mr.ReadOptions(direction="directed", task="link")))
    if kind == "npz":
        np.savez(tmp_path / "new.npz", edge_index=data.edge_index.numpy(), x=data.x.numpy())
    elif kind == "pt":
        torch.save(data, tmp_path / "new.pt")
    elif kind == "networkx":
        new = networkx.DiGraph()
        new.add_nodes_from((v, {"x": row.tolist()}) for v, row in enumerate(data.x))
        new.add_edges_from(data.edge_index.T.tolist())
    source = {"data": data, "networkx": new if kind == "networkx" else None}.get(kind, tmp_path / f"new.{kind}")
    notes: list[object] = []
    assert np.array_equal(outputs(run, source, emit=notes.append), want)
    said = "the run's read.feature_columns, read.label_columns are for tables, and left out"
    assert sum(said in str(note) for note in notes) == 1
    with pytest.raises(InputError, match=r"has no tables, which read\.id would choose from; leave it out"):
        mr.predict(run, source, options=mr.ReadOptions(id="key"))


@pytest.mark.parametrize("split", ["fold", "train_mask,val_mask,test_mask"])
def test_tables_without_the_column_of_the_split(tmp_path, split):
    def written(name, seed, labels, sets):
        folder, names = tables(tmp_path / name, seed, labelled=labels), split.split(",")
        head, *lines = (folder / "nodes.csv").read_text().splitlines()
        parts = ("train", "val", "test")
        cells = [
            parts[v % 3] if len(names) == 1 else ",".join(str(int(v % 3 == k)) for k in range(3)) for v in range(V)
        ]
        rows = [f"{head},{split}", *(f"{line},{cell}" for line, cell in zip(lines, cells))] if sets else [head, *lines]
        (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
        return folder

    read = {"direction": "directed", "feature_columns": "age,income", "label_columns": "kind", "split": split}
    run = mr.run(written("old", 2, True, True), out=tmp_path / "run", read=read, **SMALL)
    want = outputs(run, written("all", 3, True, True))
    for labels in (True, False):
        assert np.array_equal(outputs(run, written(f"new-{labels}", 3, labels, False)), want)
    assert np.array_equal(outputs(run, written("sets", 3, False, True)), want)
    for words in (("evaluate",), ("predict", "--labels"), ("predict", "--nodes", "val")):
        more = () if words == ("evaluate",) else ("--out", tmp_path / "p.csv")
        code, _, error = command(words[0], run.out, "--dataset", tmp_path / "new-False", *words[1:], *more)
        assert code == 2 and "need labels and a split" in error and "read.split=none" in error
        assert "no column 'kind'" in error and not (tmp_path / "p.csv").exists()
