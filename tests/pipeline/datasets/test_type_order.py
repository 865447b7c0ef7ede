"""Data whose types come in another order than a run's: types are matched by name."""

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError

pyg = pytest.importorskip("torch_geometric.data")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("forked_workers")

USERS, ITEMS = 20, 12
JOB = {"fanout": [-1, -1], "epochs": 2, "verbose": False, "threads": 1}
DRAW = np.random.default_rng(3)
ROWS = {"user": DRAW.normal(size=(USERS, 3)), "item": DRAW.normal(size=(ITEMS, 3))}
COUNTS = {"user": USERS, "item": ITEMS}
RELATIONS = {
    ("user", "buys", "item"): DRAW.integers(0, (USERS, ITEMS), (60, 2)),
    ("item", "sold", "user"): DRAW.integers(0, (ITEMS, USERS), (50, 2)),
    ("user", "knows", "user"): DRAW.integers(0, USERS, (40, 2)),
}


def data(types=("user", "item"), relations=tuple(RELATIONS), edge_rows=False, times=False):
    found = pyg.HeteroData()
    for t in types:
        found[t].x = torch.from_numpy(ROWS[t].astype(np.float32))
        if times:
            found[t].node_time = torch.arange(COUNTS[t]) + 100
    found["user"].y = torch.arange(USERS) % 3
    for r in relations:
        found[r].edge_index = torch.from_numpy(RELATIONS[r].T.copy())
        if edge_rows and r[1] != "sold":
            width = 1 + (r[1] == "buys")
            rows = np.random.default_rng(len(r[1])).normal(size=(len(RELATIONS[r]), width))
            found[r].edge_attr = torch.from_numpy(rows.astype(np.float32))
        if times:
            found[r].edge_time = torch.arange(len(RELATIONS[r])) % 90
    return found


TURNED = {"types": ("item", "user"), "relations": tuple(RELATIONS)[::-1]}


@pytest.mark.parametrize("more", [{}, {"edge_rows": True}, {"times": True}], ids=str)
def test_types_in_another_order_have_the_same_scores(tmp_path, more):
    sampler = {"sampler": {"name": "temporal", "fanout": [-1, -1]}, "split": "time:0.5,0.25"} if "times" in more else {}
    job = {**JOB, **sampler} if "times" not in more else {**{k: v for k, v in JOB.items() if k != "fanout"}, **sampler}
    model = {"name": "hgt" if more else "rgcn", "hidden": 8, "layers": 2}
    run = mr.run(data(**more), out=tmp_path / "run", **job, model=model)
    want, turned = mr.predict(run).probabilities, data(**TURNED, **more)
    np.testing.assert_allclose(mr.predict(run, turned).probabilities, want, atol=1e-5)
    clean = mr.from_pyg(turned)
    np.testing.assert_allclose(mr.predict(run, clean).probabilities, want, atol=1e-5)
    mr.write_dataset(tmp_path / "store", clean)
    np.testing.assert_allclose(mr.predict(run, tmp_path / "store").probabilities, want, atol=1e-5)
    if not sampler:
        np.testing.assert_allclose(mr.predict(run, tmp_path / "store", workers=2).probabilities, want, atol=1e-5)
    assert mr.evaluate(run, turned)["accuracy"] == mr.evaluate(run)["accuracy"]


def test_links_of_types_in_another_order(tmp_path):
    other, same = (mr.link_dataset(mr.from_pyg(d), relation="buys") for d in (data(**TURNED), data()))
    run = mr.run(same, out=tmp_path / "run", **JOB, model=mr.RGCN(hidden=8, layers=2))
    pairs = [[0, 1], [4, 11], [19, 0]]
    want = mr.predict_links(run, pairs, same).scores
    np.testing.assert_allclose(mr.predict_links(run, pairs, other).scores, want, atol=1e-5)
    assert mr.evaluate(run, other)["metrics"]["test"].keys() == mr.evaluate(run, same)["metrics"]["test"].keys()


def test_learnt_rows_follow_their_types(tmp_path):
    run = mr.run(data(), out=tmp_path / "run", **JOB, learned=4, model=mr.RGCN(hidden=8, layers=2))
    want = mr.predict(run).probabilities
    np.testing.assert_allclose(mr.predict(run, data(**TURNED)).probabilities, want, atol=1e-5)


def test_other_types_are_refused_by_name(tmp_path):
    run = mr.run(data(), out=tmp_path / "run", **JOB, model=mr.RGCN(hidden=8, layers=2))
    with pytest.raises(InputError, match=r"has the relations .*buys.*, but .* reads .*knows"):
        mr.predict(run, data(relations=tuple(RELATIONS)[:2]))
    other = data(**TURNED)
    other["item"].y, other["user"].y = torch.arange(ITEMS) % 3, None
    del other["user"].y
    with pytest.raises(InputError, match=r"has labels of 'item', but .* predicts 'user'"):
        mr.evaluate(run, mr.from_pyg(other))
