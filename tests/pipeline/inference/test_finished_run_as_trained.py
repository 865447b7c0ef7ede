"""What a finished run is applied to is read as its own data were, and compared with them by name."""

import warnings

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.inference.evaluate import in_classes_of
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

V = 60
SCALED = {"direction": "directed", "feature_columns": "age,income", "normalize_features": "standard"}
JOB = {"fanout": [4, 4], "epochs": 2, "verbose": False, "threads": 1, "split": "fraction:0.6,0.2", "read": SCALED}
JOB |= {"model": mr.GraphSAGE(hidden=8, layers=2)}
NAMES = np.array(["blue", "green", "red"])


def tables(folder, nodes=None, order=None, **columns):
    """Two tables: `columns` replace those of nodes, `order` are the rows that are written."""
    draw = np.random.default_rng(3)
    own = {"id": [f"u{v}" for v in range(V)], "age": draw.normal(40, 9, V), "income": draw.normal(5000, 900, V)}
    own |= {"label": NAMES[draw.integers(0, 3, V)]} | columns
    kept = {key: column for key, column in own.items() if column is not None}
    folder.mkdir(exist_ok=True)
    rows = [",".join(str(column[v]) for column in kept.values()) for v in (range(V) if order is None else order)]
    (folder / "nodes.csv").write_text("\n".join([",".join(kept), *rows]) + "\n")
    ends = draw.integers(0, V, (200, 2))
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"u{a},u{b}\n" for a, b in ends))
    return folder, own


def by_name(found):
    return dict(zip(found.node_names, found.probabilities))


def differing(one, other):
    return max(np.abs(one[name] - other[name]).max() for name in one)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data, own = tables(folder / "data")
    return mr.run(data, out=folder / "run", **JOB), data, own


def test_a_partitioned_store_keeps_how_it_was_read(tmp_path):
    data, _ = tables(tmp_path / "data")
    more = [f"--set=read.{key}={value}" for key, value in SCALED.items()]
    assert command("convert", data, "--out", tmp_path / "s", "--split", "fraction:0.6,0.2", *more)[0] == 0
    assert command("partition", tmp_path / "s", "--parts", "3", "--into", tmp_path / "p")[0] == 0
    plain, cut = mr.open_dataset(tmp_path / "s"), mr.open_dataset(tmp_path / "p")
    assert cut.read_as == plain.read_as == SCALED and cut.card == plain.card
    run = mr.run(tmp_path / "p", out=tmp_path / "r", **{k: v for k, v in JOB.items() if k not in ("split", "read")})
    assert differing(by_name(mr.predict(run)), by_name(mr.predict(run, data))) < 1e-6


def test_unchanged_tables_are_predicted_to_the_same_bits(trained):
    run, data, _ = trained
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mr.predict(run)
    assert np.array_equal(found.probabilities, mr.predict(run, data).probabilities)


def test_own_tables_that_have_changed_are_scaled_by_the_runs_numbers(tmp_path):
    data, own = tables(tmp_path / "data")
    run = mr.run(data, out=tmp_path / "r", **JOB)
    before = by_name(mr.predict(run))
    tables(tmp_path / "data", age=own["age"] + 30)
    with pytest.warns(mr.DataWarning, match="features of data are not those that .* the data have changed"):
        changed = by_name(mr.predict(run))
    assert differing(before, changed) > 1e-3
    other, _ = tables(tmp_path / "other", age=own["age"] + 30)
    assert differing(changed, by_name(mr.predict(run, other))) == 0
    (data / "edges.csv").write_text("src,dst\nu1,u2\n")
    notes = command("predict", run.out, "--out", tmp_path / "out.csv")[2]
    assert "edges and features of data are not those" in notes and "was read before" not in notes
    tables(tmp_path / "data")
    assert differing(before, by_name(mr.predict(run))) == 0


def test_edges_features_that_have_changed_are_named(tmp_path):
    data, _ = tables(tmp_path / "data")

    def rise(by):
        rows = [line.split(",") for line in (data / "edges.csv").read_text().splitlines()[1:]]
        (data / "edges.csv").write_text("src,dst,far\n" + "".join(f"{a},{b},{int(b[1:]) + by}\n" for a, b, *_ in rows))

    rise(0)
    job = {**JOB, "model": mr.GINE(hidden=8, layers=2), "read": SCALED | {"edge_feature_columns": "far"}}
    run = mr.run(data, out=tmp_path / "r", **job)
    rise(5)
    with pytest.warns(mr.DataWarning, match="features of edges of data are not those"):
        mr.predict(run)


def test_data_that_were_scaled_otherwise_are_warned_of(trained, tmp_path):
    run, data, own = trained
    alone = mr.open_dataset(tables(tmp_path / "b", age=own["age"] * 3)[0], options=mr.ReadOptions(**SCALED))
    calls = [mr.predict, mr.evaluate, mr.embed, lambda run, data: mr.load(run).open_dataset(data)]
    for call in calls:
        with pytest.warns(mr.DataWarning, match="was read before, by columns, values or scales of its own"):
            call(run, alone)
    bare = mr.Dataset("bare", alone.graph, alone.features, alone.labels, alone.split, 3)
    with pytest.warns(mr.DataWarning, match="bare keeps no scales and values"):
        mr.predict(run, bare)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mr.predict(run, alone, emit=seen.append)
        mr.predict(run, data)
    assert any("was read before" in getattr(event, "text", "") for event in seen)


def test_values_that_a_run_does_not_know_are_warned_of(tmp_path):
    data, _ = tables(tmp_path / "data", city=["ab"[v % 2] for v in range(V)])
    run = mr.run(data, out=tmp_path / "r", **{**JOB, "read": SCALED | {"one_hot": "city"}})
    other, _ = tables(tmp_path / "other", city=["abc"[v % 3] for v in range(V)])
    with pytest.warns(mr.DataWarning, match=r"city has 1 value that the run does not know \(c\)"):
        mr.predict(run, other)


def by_hand(run, data, given):
    found = mr.predict(run, data)
    called = [run.class_names[c] for c in found.classes]
    label = dict(zip(given["id"], given["label"]))
    return np.mean([label[name] == c for name, c in zip(found.node_names, called) if label[name] in run.class_names])


def scored(run, data, **more):
    """The accuracy over all that is labelled."""
    return mr.evaluate(run, data, **more)["accuracy"]["test"]


def test_classes_are_compared_by_their_names(trained, tmp_path):
    run, _, own = trained
    renamed = np.where(own["label"] == "red", "amber", own["label"])
    other, given = tables(tmp_path / "other", label=renamed)
    with pytest.raises(
        InputError, match=r"has the classes amber, but .* knows blue, green, red; .*ignored_labels=amber"
    ):
        mr.evaluate(run, other)
    assert scored(run, other, options=mr.ReadOptions(ignored_labels="amber")) == pytest.approx(
        by_hand(run, other, given)
    )
    numbers, _ = tables(tmp_path / "numbers", label=np.unique(own["label"], return_inverse=True)[1])
    with pytest.raises(InputError, match="has the classes 0, 1, 2, but"):
        mr.evaluate(run, numbers)
    two, given = tables(tmp_path / "two", label=np.where(own["label"] == "blue", "red", own["label"]))
    assert scored(run, two) == pytest.approx(by_hand(run, two, given))


def test_numbered_classes_may_be_fewer_and_columns_of_several_labels_move(tmp_path):
    y = np.arange(V) % 3
    run = mr.run(tables(tmp_path / "data", label=y)[0], out=tmp_path / "r", **JOB)
    fewer, _ = tables(tmp_path / "fewer", label=y % 2)
    assert scored(run, fewer) == pytest.approx((mr.predict(run, fewer).classes == y % 2).mean())
    with pytest.raises(InputError, match=r"has 4 classes .* predicts 3 classes"):
        mr.evaluate(run, tables(tmp_path / "more", label=np.arange(V) % 4)[0])
    flags = {name: np.random.default_rng(k).integers(0, 2, V) for k, name in enumerate(("sun", "air", "bee"))}
    several = {**JOB, "read": {**SCALED, "label_columns": "sun,air,bee", "task": "multilabel"}}
    run = mr.run(tables(tmp_path / "m", label=None, **flags)[0], out=tmp_path / "s", **several)
    reading = mr.ReadOptions(**{**several["read"], "label_columns": "bee,sun,air"})
    turned = mr.open_dataset(tables(tmp_path / "t", label=None, **flags)[0], options=reading, split=JOB["split"])
    moved = in_classes_of(mr.load(run), turned)
    assert moved.class_names == ("sun", "air", "bee")
    assert np.array_equal(moved.labels[:, 0], flags["sun"]) and np.array_equal(moved.labels[:, 2], flags["bee"])


@pytest.mark.parametrize("weighted", [True, False])
def test_weights_that_are_missing_or_new_are_refused(tmp_path, weighted):
    data, _ = tables(tmp_path / "data")
    other, _ = tables(tmp_path / "other")
    with_weights = data if weighted else other
    ends = (with_weights / "edges.csv").read_text().splitlines()[1:]
    (with_weights / "edges.csv").write_text(
        "src,dst,weight\n" + "".join(f"{e},{k % 5 + 1}\n" for k, e in enumerate(ends))
    )
    run = mr.run(data, out=tmp_path / "r", **JOB)
    how, key = ("have no weights", "COLUMN") if weighted else ("have weights", "none")
    with pytest.raises(InputError, match=rf"the edges of other {how}, unlike those of .*; set read.weight={key}"):
        mr.predict(run, other)
    text = (other / "edges.csv").read_text()
    (other / "edges.csv").write_text("src,dst,far\n" + "".join(f"{e},{k % 5 + 1}\n" for k, e in enumerate(ends)))
    options = mr.ReadOptions(weight="far" if weighted else "none")
    if not weighted:
        (other / "edges.csv").write_text(text)
    assert differing(by_name(mr.predict(run)), by_name(mr.predict(run, other, options=options))) == 0


def test_weights_do_not_matter_to_a_model_that_reads_none(tmp_path):
    nn = pytest.importorskip("torch_geometric.nn")
    (data, _), (other, _) = tables(tmp_path / "data"), tables(tmp_path / "other")
    ends = (other / "edges.csv").read_text().splitlines()[1:]
    ends = "".join(f"{e},{k % 5 + 1}\n" for k, e in enumerate(ends))
    (other / "edges.csv").write_text(f"src,dst,weight\n{ends}")
    model = mr.PyGModel([nn.SAGEConv(2, 8), nn.SAGEConv(8, 3)])
    run = mr.load(mr.run(data, out=tmp_path / "r", **{**JOB, "model": model}), model=model)
    assert differing(by_name(mr.predict(run)), by_name(mr.predict(run, other))) < 1e-6


def test_hidden_edges_of_other_data_stay_hidden(tmp_path):
    data, _ = tables(tmp_path / "data", label=None)
    ends = [line.split(",") for line in (data / "edges.csv").read_text().splitlines()[1:]]
    ends = list(dict.fromkeys((a, b) for a, b in ends))

    def edges(folder, sets, label=True):
        tables(folder, label=None)
        rows = [
            f"{a},{b}" + f",{'hi' if int(a[1:]) % 2 else 'lo'}" * label + f",{s}" * bool(s)
            for (a, b), s in zip(ends, sets)
        ]
        head = "src,dst" + ",label" * label + ",split" * bool(sets[0])
        (folder / "edges.csv").write_text("\n".join([head, *rows]) + "\n")
        return folder

    sets = [["train", "train", "val", "test"][k % 4] for k in range(len(ends))]
    job = {k: v for k, v in JOB.items() if k != "split"} | {
        "read": SCALED | {"labels_of": "edges", "labelled_edges": "hidden"}
    }
    run = mr.run(edges(data, sets), out=tmp_path / "r", **job)
    want, other = mr.predict_edges(run), edges(tmp_path / "other", sets)
    assert np.array_equal(mr.predict_edges(run, None, other).probabilities, want.probabilities)
    with pytest.raises(InputError, match="has no split that says which edges are known; give it one, or the pairs"):
        mr.predict_edges(run, None, edges(tmp_path / "bare", [""] * len(ends)))
    with pytest.raises(InputError, match="needs each edge's label and set, or the pairs to predict"):
        mr.predict_edges(run, None, edges(tmp_path / "none", [""] * len(ends), label=False))
