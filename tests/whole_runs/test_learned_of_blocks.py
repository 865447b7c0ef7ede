"""Learnt features beside features that ranks own, and of blocks of rows: the rows and parameters of ranks that have
everything."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.learned import table as table_module
from millrace.stages.learned.table import initial_rows
from millrace.tests.contracts.command import command
from millrace.tests.whole_runs.test_partitioned import DATASET, JOB, NODES, PARTITIONED, Rehearsal, of, with_

LEARNED: dict[str, Any] = {**JOB, "learned": {"width": 4, "lr": 0.2}}
IN_PLACE: dict[str, Any] = with_(LEARNED, learned={"beside": False, "optimizer": "adam"})
MID_EPOCH = 5


class Runs:
    """Runs of ranks in a folder."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.folder, self.reports = rehearsal.folder, rehearsal.train()

    def learned(self, name: str) -> Any:
        """[V, D], the learnt rows that a run has left."""
        return np.load(self.folder / name / "learned.npy")

    def agree(self, name: str, other: str, tolerance: float = 1e-9) -> None:
        """Parameters, learnt rows and metrics of two runs, which sum in other orders."""
        a, b = (torch.load(self.folder / run / "model.pt", weights_only=True) for run in (name, other))
        for key, value in b.items():
            torch.testing.assert_close(a[key], value, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(self.learned(name), self.learned(other), rtol=0, atol=tolerance)
        for mine, wanted in zip(of(self, name), of(self, other)):
            assert mine["test_accuracy"] == wanted["test_accuracy"]
            assert mine["best_accuracy"] == wanted["best_accuracy"]
            assert mine["sampled_edges"] == wanted["sampled_edges"]


@pytest.fixture(scope="module")
def dataset() -> mr.Dataset:
    return mr.open_dataset(DATASET, seed=3)


GRID = {
    "owned": {"features": "owned", "bulk": {"replication": 2, "cache_fraction": 0.1}},
    "blocks": {"bulk": PARTITIONED},
    "two columns": {"bulk": {**PARTITIONED, "replication": 2, "cache_fraction": 0.1}},
    "rows travel": {"bulk": {**PARTITIONED, "replication": 2, "algorithm": "1.5d"}},
}


def test_four_ranks_learn_the_same_rows_wherever_the_data_lie(dataset: mr.Dataset, tmp_path: Path) -> None:
    rehearsal = Rehearsal(dataset, tmp_path, 4)
    rehearsal.add("whole", LEARNED)
    for name, changes in GRID.items():
        rehearsal.add(name, with_(LEARNED, **changes))
    runs = Runs(rehearsal)
    for name in GRID:
        runs.agree(name, "whole")
    sent = {name: sum(r["bytes"]["network"]["features"] for r in of(runs, name)) for name in ("whole", *GRID)}
    assert 0 < sent["whole"] < sent["blocks"], "rows of the dataset travel too"


def test_in_place_of_features_and_after_a_stop(dataset: mr.Dataset, tmp_path: Path) -> None:
    rehearsal = Rehearsal(dataset, tmp_path, 2)
    rehearsal.add("whole", IN_PLACE)
    blocks = with_(IN_PLACE, bulk=PARTITIONED)
    rehearsal.add("blocks", blocks)
    rehearsal.add("stopped", blocks, MID_EPOCH)
    rehearsal.add("stopped", blocks)
    runs = Runs(rehearsal)
    runs.agree("blocks", "whole")
    assert [r["parameters_sha256"] for r in of(runs, "stopped")] == [r["parameters_sha256"] for r in of(runs, "blocks")]
    assert np.array_equal(runs.learned("stopped"), runs.learned("blocks"))


def test_rows_of_any_cut_are_in_the_order_of_the_dataset(
    dataset: mr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those that a run over the reordered graph learns; also after a stop, whose checkpoint is in that order
    too, and where two ranks hold a block."""
    owners = np.random.default_rng(0).integers(0, 2, dataset.num_nodes)
    np.save(tmp_path / "owners.npy", owners)
    order = np.argsort(owners, kind="stable")
    by_owners = {"bulk": PARTITIONED, "partition": {"owners": str(tmp_path / "owners.npy")}}
    table = with_(LEARNED, model={"norm": "none"})
    cut = Rehearsal(dataset, tmp_path, 2)
    cut.add("cut", with_(table, **by_owners))
    cut.add("stopped", with_(table, **by_owners), MID_EPOCH)
    cut.add("stopped", with_(table, **by_owners))
    found = Runs(cut)
    # Initial rows go by the dataset's own numbers.
    monkeypatch.setattr(table_module, "initial_rows", lambda nodes, *rest: initial_rows(order[nodes], *rest))
    wanted = mr.run(mr.reorder(dataset, order), config=table, out=tmp_path / "whole", verbose=False)
    np.testing.assert_allclose(found.learned("cut")[order], found.learned("whole"), rtol=0, atol=1e-9)
    assert of(found, "cut")[0]["test_accuracy"] == wanted.test_accuracy
    assert np.array_equal(found.learned("stopped"), found.learned("cut"))
    mr.run(dataset, config=table, out=tmp_path / "own", verbose=False)
    start = with_(table, **by_owners, start_from=str(tmp_path / "own"), learned={"lr": 1e-14}, epochs=1)
    warm = Rehearsal(dataset, tmp_path, 2)
    warm.add("warm", with_(start, train={"lr": 1e-14}))
    np.testing.assert_allclose(Runs(warm).learned("warm"), found.learned("own"), rtol=0, atol=1e-12)
    with pytest.raises(mr.InputError, match="in another order than the data of"):
        mr.run(dataset, config=with_(start, start_from=str(tmp_path / "whole")), out=tmp_path / "other", ranks=2)
    (tmp_path / "grid").mkdir()
    grid = Rehearsal(dataset, tmp_path / "grid", 4)
    grid.add("grid", with_(with_(table, **by_owners), bulk={"replication": 2}))
    np.testing.assert_allclose(Runs(grid).learned("grid"), found.learned("cut"), rtol=0, atol=1e-9)


MODES = {
    "halo": {}, "keep": {"learned": {"optimizer": "adam"}}, "rematerialize": {"learned": {"optimizer": "sgd"}},
    "auto": {"learned": {"beside": False}},
}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
def test_sar_learns_what_one_batch_of_all_train_nodes_learns(dataset: mr.Dataset, tmp_path: Path, ranks: int) -> None:
    """In every mode, on parts by METIS; rows that no seed depends on keep their bits; a run goes on after a stop."""
    table = with_(LEARNED, model={"name": "gat" if ranks == 2 else "sage", "norm": "none", "dropout": 0.0}, epochs=4)
    full = {k: v for k, v in table.items() if k not in ("sampler", "queue", "train")} | {"train": {"lr": 0.02}}
    batch = {**full, "sampler": {"fanout": [-1, -1]}, "train": {"lr": 0.02, "batch_size": NODES}, "ranks": 1}
    rehearsals: dict[bool, Rehearsal] = {}
    for mode, changes in MODES.items():
        mr.run(dataset, config=with_(batch, **changes), out=tmp_path / f"{mode}-batch", verbose=False)
        beside = "beside" not in changes.get("learned", {})
        rehearsal = rehearsals.setdefault(beside, Rehearsal(dataset, tmp_path, ranks))
        rehearsal.add(mode, with_({**full, "system": "sar", "sar": {"mode": mode}}, **changes))
    halo = {**full, "system": "sar", "sar": {"mode": "halo", "prune": False}}
    rehearsals[True].add("stopped", halo, 2)
    rehearsals[True].add("stopped", halo)
    runs = {beside: Runs(rehearsal) for beside, rehearsal in rehearsals.items()}
    before = initial_rows(np.arange(NODES), 4, torch.float64, JOB["seed"]).numpy()
    for mode, changes in MODES.items():
        found = runs["beside" not in changes.get("learned", {})]
        a, b = (torch.load(tmp_path / run / "model.pt", weights_only=True) for run in (mode, f"{mode}-batch"))
        for key, value in b.items():
            torch.testing.assert_close(a[key], value, rtol=1e-9, atol=1e-9)
        wanted = found.learned(f"{mode}-batch")
        np.testing.assert_allclose(found.learned(mode), wanted, rtol=0, atol=1e-9)
        assert (wanted != before).any(1).mean() > 0.9
        assert of(found, mode)[0]["test_accuracy"] == mr.load(tmp_path / f"{mode}-batch").result.test_accuracy
    np.testing.assert_allclose(runs[True].learned("stopped"), runs[True].learned("halo"), rtol=0, atol=1e-12)


def test_a_good_cut_saves_learnt_rows_too(dataset: mr.Dataset, tmp_path: Path) -> None:
    """The graph has communities, by which METIS cuts it; each rank trains on its own seeds."""
    rehearsal, table = Rehearsal(dataset, tmp_path, 2), with_(LEARNED, model={"norm": "none"})
    rehearsal.add("whole", table)
    rehearsal.add("cut", with_(table, partition={"method": "metis"}, bulk={**PARTITIONED, "local_seeds": True}))
    runs = Runs(rehearsal)
    whole, cut = (sum(r["bytes"]["network"]["gradients"] for r in of(runs, name)) for name in ("whole", "cut"))
    # The model's own gradients are among them.
    assert cut < 0.9 * whole


def test_a_cluster_learns_rows_of_blocks_that_serve_the_dataset(scheduler: str, tmp_path: Path) -> None:
    """Links, whose nodes METIS renumbers, by the command; what was tested is what is evaluated."""
    data = mr.link_dataset(mr.open_dataset(DATASET, seed=3), seed=1)
    mr.write_dataset(tmp_path / "links", data)
    words = [
        "--ranks",
        2,
        "--fanout",
        "4,3",
        "--epochs",
        2,
        "--hidden",
        8,
        "--batch-size",
        128,
        "--set",
        "learned=4",
        "--set",
        "dtype=float64",
    ]
    cut = ["--set", "bulk.topology=partitioned", "--set", "partition.method=metis"]
    out = tmp_path / "run"
    code, said, err = command(
        "run", "--dataset", tmp_path / "links", "--scheduler", scheduler, "--out", out, "--json", *words, *cut
    )
    assert code == 0, err
    code, found, err = command("evaluate", out, "--json")
    assert code == 0, err
    assert json.loads(found)["metrics"]["test"] == pytest.approx(json.loads(said)["test_metrics"])
    assert np.load(out / "learned.npy").shape == (data.num_nodes, 4)
