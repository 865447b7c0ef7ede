"""Learnt features belong to nodes by their names, or by their numbers where nodes have none."""

from pathlib import Path

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError, StoreError
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.storage.stored.learned_nodes import learned_of, write_nodes

pytestmark = pytest.mark.usefixtures("forked_workers")

V = 24
JOB = {"fanout": [-1, -1], "epochs": 2, "verbose": False, "threads": 1, "learned": 4}
SMALL = {**JOB, "model": mr.GraphSAGE(hidden=8, layers=2)}
READ = {"feature_columns": "x", "direction": "directed"}
NAMES = [f"n{v}" for v in range(V)]
DRAW = np.random.default_rng(0)
ENDS = DRAW.integers(0, V, (2, 80))
X = DRAW.normal(size=V).round(3)


def tables(folder, order, rename=str, more=()):
    """The same nodes and edges, with nodes in an order of rows."""
    folder.mkdir()
    rows = [f"{rename(NAMES[v])},{X[v]},{'ab'[v % 2]}\n" for v in order]
    (folder / "nodes.csv").write_text("id,x,label\n" + "".join([*rows, *(f"{name},0,a\n" for name in more)]))
    rows = [f"{rename(NAMES[u])},{rename(NAMES[w])}\n" for u, w in ENDS.T]
    (folder / "edges.csv").write_text("src,dst\n" + "".join(rows))
    return folder


def by_name(found):
    return dict(zip(found.node_names, found.probabilities.round(4).tolist()))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    return mr.run(tables(folder / "data", range(V)), read=READ, out=folder / "run", **SMALL)


def test_nodes_in_another_order_have_the_same_scores_by_name(run, tmp_path):
    want = by_name(mr.predict(run))
    other = tables(tmp_path / "other", np.random.default_rng(1).permutation(V))
    assert by_name(mr.predict(run, other)) == want
    opened = mr.load(run).open_dataset(other)
    assert by_name(mr.predict(run, opened)) == want
    part = mr.predict(run, other, nodes=["n3", "n7"])
    assert by_name(part) == {name: want[name] for name in ("n3", "n7")}
    mr.predict(run, other, workers=2).to_csv(tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == V + 1


def test_own_tables_whose_rows_have_moved_keep_their_learnt_rows(tmp_path):
    folder = tables(tmp_path / "data", range(V))
    found = mr.run(folder, read=READ, out=tmp_path / "run", **SMALL)
    want = by_name(mr.predict(found))
    moved = tables(tmp_path / "moved", range(V)[::-1])
    (folder / "nodes.csv").write_bytes((moved / "nodes.csv").read_bytes())
    with pytest.warns(mr.DataWarning, match="the data have changed"):
        assert by_name(mr.predict(found)) == want


def test_nodes_that_a_run_does_not_know_are_refused(run, tmp_path):
    more = tables(tmp_path / "more", range(V), more=("new1", "new2"))
    with pytest.raises(InputError, match=r"no learnt features of some nodes of more: 2 names \(first: 'new1'\)"):
        mr.predict(run, more)
    numbers = tables(tmp_path / "numbers", range(V), rename=lambda name: name[1:])
    with pytest.raises(InputError, match=r"no learnt features of some nodes of numbers: 24 names \(first: '0'\)"):
        mr.predict(run, numbers)


def test_numbers_are_names_where_nodes_have_none(tmp_path):
    graph = mr.from_edges(*ENDS, V)
    labels, x = np.arange(V) % 2, X.astype(np.float32)[:, None]
    parts = [np.arange(0, 10), np.arange(10, 16), np.arange(16, V)]
    split = mr.Split(*parts)
    data = mr.Dataset("plain", graph, ArrayFeatures(x), labels, split, 2)
    found = mr.run(data, out=tmp_path / "run", **SMALL)
    want = mr.predict(found).probabilities
    turned = mr.reorder(data, np.arange(V)[::-1])
    np.testing.assert_allclose(mr.predict(found, turned).probabilities, want[::-1], atol=1e-6)
    none = mr.Split(*(np.arange(0) for _ in range(3)))
    few = mr.Dataset("few", mr.from_edges([0], [1], 2), ArrayFeatures(x[:2]), labels[:2], none, 2)
    with pytest.raises(InputError, match=r"few has 2 nodes, but .* has learnt features of 24 nodes and of no others"):
        mr.predict(found, few)


def test_a_damaged_record_of_nodes_is_named(run, tmp_path):
    path = Path(run.out) / "learned-nodes.npz"
    before = path.read_bytes()
    path.write_bytes(before[:-20] + bytes(20))
    with pytest.raises(StoreError, match=r"learned-nodes\.npz does not match its digest"):
        mr.predict(run)
    path.unlink()
    with pytest.raises(StoreError, match=r"run has no learned-nodes\.npz of the learnt features .* write it again by"):
        mr.predict(run)
    path.write_bytes(before)


@pytest.mark.parametrize(
    "changed",
    [
        {"offsets": np.array([0, V + 1])},
        {"offsets": np.array([0, V - 1])},
        {"offsets": np.array([-1, V])},
        {"offsets": np.array([0, V, V])},
        {"offsets": np.array([0, 2 * V, V]), "types": np.array(["a", "b"])},
        {"offsets": np.array([0.0, V])},
        {"offsets": np.array(V)},
        {"types": np.array(["", ""])},
    ],
)
def test_nodes_that_are_not_those_of_the_rows_are_refused(tmp_path, changed):
    rows = np.ones((V, 2), np.float32)
    np.save(tmp_path / "learned.npy", rows)
    split = mr.Split(*np.split(np.arange(V), [9, 15]))
    data = mr.Dataset("plain", mr.from_edges(*ENDS, V), ArrayFeatures(rows), np.arange(V) % 2, split, 2)
    write_nodes(tmp_path / "nodes.npz", data)
    mapped = MappedFeatures(tmp_path / "learned.npy")
    assert learned_of(mapped, tmp_path / "nodes.npz", data) is mapped
    np.savez(tmp_path / "nodes.npz", **{**np.load(tmp_path / "nodes.npz"), **changed})
    with pytest.raises(StoreError, match=r"nodes\.npz is damaged; copy it again"):
        learned_of(mapped, tmp_path / "nodes.npz", data)


def test_a_start_with_other_types_of_nodes_is_a_sentence(tmp_path):
    def data(kind):
        edges, draw = {(kind, "writes", "paper"): DRAW.integers(0, V, (2, 60))}, {"paper": X[:, None], kind: X[:, None]}
        return mr.from_relations(edges, np.arange(V) % 2, target="paper", features=draw, add_reverse=True)

    job = {**JOB, "model": "rgcn", "layers": 2, "hidden": 4}
    run = mr.run(data("author"), out=tmp_path / "run", **job)
    with pytest.raises(InputError, match=r"start_from: .* 24 nodes of type 'writer', but .* features of 0 nodes"):
        mr.run(data("writer"), out=tmp_path / "other", start_from=str(run.out), **job)


def test_learnt_rows_of_a_start_are_those_of_the_names(tmp_path):
    first = mr.run(tables(tmp_path / "data", range(V)), read=READ, out=tmp_path / "run", **SMALL)
    order = np.random.default_rng(2).permutation(V)
    other, more = tables(tmp_path / "other", order), {"read": READ, "start_from": str(first.out)}
    still = {**SMALL, "epochs": 1, "lr": 1e-30, **more}
    second = mr.run(other, out=tmp_path / "second", **still)
    before, after = (np.load(Path(run.out) / "learned.npy") for run in (first, second))
    np.testing.assert_allclose(after, before[order], atol=1e-6)
    assert by_name(mr.predict(second)).keys() == by_name(mr.predict(first)).keys()
    with pytest.raises(InputError, match=r"start_from: other has its nodes in another order than .*/run, which par"):
        mr.run(other, out=tmp_path / "parts", **{k: v for k, v in still.items() if k != "fanout"}, system="sar")
    with pytest.raises(InputError, match=r"start_from: .* no learnt features of some nodes of more: 1 name "):
        mr.run(tables(tmp_path / "more", order, more=("new",)), out=tmp_path / "third", **still)
