"""Runs whose topology is cut into blocks of rows: the parameters of the whole graph's run, whatever happens on the
way."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import read_toml, resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import QueueEnd, own_queue, queue_for_rank
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.events import Note, StepDone
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.partition.stage import open_part, partition_dataset
from millrace.stages.sample.labor import LaborSampler
from millrace.storage.errors import Interrupted
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts.command import command
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.process_ends import command_of
from millrace.tests.contracts.process_ranks import run_ranks

DATASET = "sbm:nodes=320,classes=3,degree=8,features=5,train=0.5"
NODES, ROW_BYTES = 320, 5 * 8
JOB: dict[str, Any] = {
    "epochs": 2, "seed": 3, "threads": 1, "dtype": "float64", "check": True,
    "model": {"name": "sage", "norm": "batch", "hidden": 8, "layers": 2, "dropout": 0.2}, "sampler": {"fanout": [4, 3]},
    "train": {"lr": 0.02, "batch_size": 16, "minibatches_per_step": 4}, "queue": {"bulk_size": 2},
}  # fmt: skip
"""160 train nodes are 10 minibatches, so the last step of an epoch leaves ranks without work."""
SHORT: dict[str, Any] = {**JOB, "epochs": 1}
"""Of runs in which nothing hangs on an epoch's end: two ranks go on over one."""
MINIBATCHES, STEPS = 10, 3
PARTITIONED = {"topology": "partitioned"}
TOLD_S = 120.0
"""Far less than a silent rank is waited for, far more than a busy machine takes."""


def with_(table: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The table with some sections replaced, and some of their keys."""
    out = dict(table)
    for key, value in changes.items():
        out[key] = {**out.get(key, {}), **value} if isinstance(value, dict) else value
    return out


# --- ranks without a cluster ---


class Rehearsal:
    """Runs that the ranks of one group go through, one after the other."""

    def __init__(self, dataset: Any, folder: Path, ranks: int) -> None:
        self.dataset, self.folder, self.ranks = dataset, folder, ranks
        self.store = folder / "store"
        if not self.store.exists():
            mr.write_dataset(self.store, dataset)
        self.runs: list[tuple[Any, ...]] = []

    def add(self, name: str, table: Mapping[str, Any], stop_after: int | None = None) -> None:
        """Asked to stop after so many steps, or from the last checkpoint of the run of that name."""
        table = {**table, "ranks": self.ranks}
        prepared, out = prepare(resolve(table), self.dataset), self.folder / name
        cut = prepared.system.partition.partitioner
        out.mkdir(exist_ok=True)
        if cut is not None:
            count = self.ranks // prepared.system.replication
            parts = self.folder / f"{type(cut).__name__}-{count}"  # the same ones for all runs that are cut alike
            partition_dataset(self.dataset, cut, count, parts, prepared.job.seed)
            if not (out / "parts").exists():
                (out / "parts").symlink_to(parts)
        self.runs.append((name, table, prepared.fingerprint, cut is not None, stop_after))

    def train(self) -> dict[str, list[dict[str, Any] | None]]:
        """The reports of each rank by run, None where it was stopped. All runs read features of one width."""
        outline = Outline.from_dataset(self.dataset, resolve(self.runs[0][1]))
        ranks = run_ranks(train_all, self.ranks, self.runs, outline, self.folder, timeout_s=240)
        return {f"{name} {i}": [r[i] for r in ranks] for i, (name, *_) in enumerate(self.runs)}


def train_all(group: Any, runs: list[tuple[Any, ...]], outline: Outline, folder: Path) -> list[dict[str, Any] | None]:
    reports = []
    for number, (name, table, fingerprint, cut, stop_after) in enumerate(runs):
        own = group.sub(f"{number}", range(group.size))
        own._ledger = type(own._ledger)()
        reports.append(train_one(own, table, outline, folder, folder / name, fingerprint, cut, stop_after))
        own.close()
    return reports


def train_one(
    group: Any, table: Any, outline: Outline, folder: Path, out: Path, fingerprint: Any, cut: bool, stop_after: Any
) -> Any:
    job, queue = resolve(table), None
    if cut:
        block = group.rank // job.bulk.replication
        prepared = prepare_part(job, CutData(outline, only_own(out, group.rank, block), group.rank, fingerprint))
        if prepared.has_minibatches:
            queue = queue_for_rank(prepared, str(out / "queue"), None).queue
    else:
        prepared = prepare(job, mr.open_dataset(folder / "store"))
        assert prepared.fingerprint == fingerprint
        queue = own_queue(prepared, out)
    asked = iter(range(1, 1 << 30))
    try:
        report = train_and_evaluate(
            prepared, out, QueueEnd(queue), Member(group, group._ledger, Clock()),
            Control(stop=lambda: next(asked) == stop_after),
        )  # fmt: skip
    except Interrupted:
        return None
    return asdict(report)


def only_own(out: Path, rank: int, block: int) -> Path:
    """A folder in which there is nothing of the parts but one, and what all parts share."""
    folder = out / f"seen-by-{rank}"
    folder.mkdir(exist_ok=True)
    for entry in (out / "parts").iterdir():
        link = folder / entry.name
        if (not re.fullmatch(r"part-\d+", entry.name) or int(entry.name[5:]) == block) and not link.exists():
            link.symlink_to(entry)
    assert len(list(folder.glob("part-*"))) == 1
    return folder


# --- the same parameters ---

SAME = {
    "partitioned": {"bulk": PARTITIONED},
    "two columns": {"bulk": {**PARTITIONED, "replication": 2, "cache_fraction": 0.1}},
    "two columns, hot by degree": {"bulk": {**PARTITIONED, "replication": 2, "cache_fraction": 0.1,
    "hot_by": "degree"}},
    "everything everywhere": {"bulk": {**PARTITIONED, "replication": 4, "cache_fraction": 0.1}},
    "rows travel in two columns": {"bulk": {**PARTITIONED, "algorithm": "1.5d", "replication": 2,
    "cache_fraction": 0.1}},
    "the cheaper way": {"bulk": {**PARTITIONED, "algorithm": "auto", "replication": 2}},
    "owned in two columns": {"features": "owned", "bulk": {"replication": 2, "cache_fraction": 0.1}},
}  # fmt: skip
"""On four ranks."""
SAME_ON_TWO = {
    "nothing ahead": {"bulk": {**PARTITIONED, "prefetch_bytes": 0}, "queue": {"bulk_size": 1, "max_bytes": 1}},
    "a little ahead": {"bulk": {**PARTITIONED, "prefetch_bytes": 9000, "cache_fraction": 0.05},
    "queue": {"bulk_size": 5}},
    "rows travel": {"bulk": {**PARTITIONED, "algorithm": "1.5d"}},
    "owned": {"features": "owned"},
}  # fmt: skip
"""In one column."""


@pytest.fixture(scope="module")
def dataset():
    return mr.open_dataset(DATASET, seed=3)


@pytest.fixture(scope="module")
def four(dataset, tmp_path_factory):
    """Reports of four ranks for each way to distribute graph and features that has columns, or counts."""
    folder = tmp_path_factory.mktemp("four")
    rehearsal = Rehearsal(dataset, folder, 4)
    rehearsal.add("replicated", SHORT)
    for name, changes in SAME.items():
        rehearsal.add(name, with_(SHORT, **changes))
    return SimpleNamespace(folder=folder, reports={k.rpartition(" ")[0]: v for k, v in rehearsal.train().items()})


@pytest.mark.parametrize(
    ("name", "ranks"), {**dict.fromkeys(SAME, "four"), **dict.fromkeys(SAME_ON_TWO, "two")}.items()
)
def test_who_holds_what_does_not_show_in_the_parameters(request, name, ranks):
    """The same bits on four ranks, or two; each of which saw nothing but its own part."""
    runs, reference = request.getfixturevalue(ranks), {"four": "replicated", "two": "undisturbed"}[ranks]
    found, whole = (of(runs, run) if ranks == "two" else runs.reports[run] for run in (name, reference))
    a, b = (torch.load(runs.folder / run / "model.pt", weights_only=True) for run in (name, reference))
    for key in a:
        assert torch.linalg.vector_norm(a[key].double() - b[key]) <= 1e-6 * torch.linalg.vector_norm(b[key].double()), (
            key
        )
    for rank, (mine, other) in enumerate(zip(found, whole)):
        for key in ("parameters_sha256", "minibatches", "sampled_edges", "best_epoch"):
            assert mine[key] == other[key], (rank, key)
        assert mine["test_accuracy"] == pytest.approx(other["test_accuracy"])
        assert mine["best_accuracy"] == pytest.approx(other["best_accuracy"])
        assert [h["train_loss"] for h in mine["history"]] == [h["train_loss"] for h in other["history"]]
    assert len({r["parameters_sha256"] for r in found}) == 1


def test_what_each_rank_holds_and_sends(four):
    """A block of rows, read once; structure and rows over the network; as little more as rows are hot."""
    whole = four.reports["replicated"]
    assert [r["fetched"] for r in whole] == [{}] * 4
    for name, columns in (("partitioned", 1), ("two columns", 2), ("everything everywhere", 4)):
        for report in four.reports[name]:
            assert report["memory_bytes"]["features"] == report["bytes"]["store"]["features"]
            network = report["bytes"]["network"]
            assert (network["features"] > 0) == (network["graph"] > 0) == (columns < 4)
            assert report["memory_bytes"]["graph"] < (0.7 if columns < 4 else 1.1) * whole[0]["memory_bytes"]["graph"]
        held = [r["memory_bytes"]["features"] for r in four.reports[name]]
        assert sum(held) == columns * NODES * ROW_BYTES
    for name, share in (
        ("partitioned", 0),
        ("two columns", 0.1),
        ("two columns, hot by degree", 0.1),
        ("owned in two columns", 0.1),
    ):
        fetched = [r["fetched"] for r in four.reports[name]]
        assert [f["rows"] for f in fetched] == [int(share * NODES)] * 4
        assert all(f["saved_bytes"] == f["hits"] * ROW_BYTES for f in fetched)
        assert all(0 < f["hits"] < f["asked"] if share else f["hits"] == 0 < f["asked"] for f in fetched)
        # What others asked of the rows, and the hot ones once.
        sent = sum(r["bytes"]["network"]["features"] for r in four.reports[name])
        assert sent == sum(f["asked"] - f["hits"] + f["rows"] for f in fetched) * ROW_BYTES
    by_samples, by_degree = (
        sum(r["fetched"]["hits"] for r in four.reports[n]) for n in ("two columns", "two columns, hot by degree")
    )  # fmt: skip
    assert by_samples > by_degree
    assert all(f["fetched"]["asked"] == f["fetched"]["rows"] == 0 for f in four.reports["everything everywhere"])


def test_local_seeds_need_fewer_rows_of_others(two):
    """The graph has communities and is cut by METIS; each step trains on as many seeds."""
    usual, local = of(two, "metis"), of(two, "metis, local seeds")
    for kind in ("features", "graph"):
        sent = [sum(r["bytes"]["network"][kind] for r in reports) for reports in (local, usual)]
        assert sent[0] < 0.9 * sent[1], kind
    assert [r["minibatches"] for r in local] == [r["minibatches"] for r in usual]


# --- two ranks: other models, odd graphs, and going on ---


@pytest.fixture(scope="module")
def odd():
    """Weights, several labels a node, a node that most edges lead to, and all train nodes in one block: the other one
    is empty."""
    rng, n = np.random.default_rng(5), 40
    src, dst = rng.integers(0, n, 900), np.where(rng.random(900) < 0.8, n - 1, rng.integers(0, n, 900))
    graph = mr.from_edges(src, dst, n, edge_weight=rng.random(900).astype(np.float32))
    labels = (rng.random((n, 4)) < 0.4).astype(np.float32)
    x = rng.random((n, 3)).astype(np.float32)
    split = mr.Split(np.arange(0, 24), np.arange(24, 32), np.arange(32, n))
    return mr.Dataset("odd", graph, ArrayFeatures(x), labels, split, 4, "multilabel").check()


OTHERS = {
    "gcn, ladies": {"model": {"name": "gcn", "norm": "none"}, "sampler": {"name": "ladies", "sizes": [40, 60]}},
    "gat, labor": {
        "model": {"name": "gat", "norm": "none", "heads": 2},
        "sampler": {"name": "labor"},
        "dtype": "float32",
    },
    "sage, a sampler of one's own": {
        "model": {"name": "sage", "norm": "none"},
        "sampler": {"name": "millrace.tests.contracts.matrix_neighbor:MatrixNeighbor"},
    },
    "all rows again": {"sampler": {"expand": "all"}, "train": {"minibatches_per_step": 3}},
}
MID_EPOCH = STEPS + 2


@pytest.fixture(scope="module")
def two(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    rehearsal = Rehearsal(dataset, folder, 2)
    for name, changes in OTHERS.items():
        table = {k: v for k, v in SHORT.items() if k not in changes or k == "train"}
        table = with_(table, **{"model": {"hidden": 8, "layers": 2}, **changes})
        if "sizes" not in table["sampler"]:
            table["sampler"] = {"fanout": [4, 3], **table["sampler"]}
        rehearsal.add(f"{name}, whole", table)
        rehearsal.add(f"{name}, cut", with_(table, bulk={**PARTITIONED, "cache_fraction": 0.1}))
        rehearsal.add(f"{name}, rows travel", with_(table, bulk={**PARTITIONED, "algorithm": "1.5d"}))
    rehearsal.add("undisturbed", JOB)
    for name, changes in SAME_ON_TWO.items():
        rehearsal.add(name, with_(JOB, **changes))
    for name, local in (("metis", False), ("metis, local seeds", True)):
        changes = {"partition": {"method": "metis"}, "bulk": {**PARTITIONED, "local_seeds": local}}
        rehearsal.add(name, with_(SHORT, **changes, model={"norm": "none"}))
    for name, changes in (
        ("stopped", {"bulk": PARTITIONED}),
        ("stopped, rows travel", {"bulk": {**PARTITIONED, "algorithm": "1.5d"}}),
        ("stopped, owned", {"features": "owned", "bulk": {"cache_fraction": 0.1}}),
    ):
        table = with_(JOB, **changes)
        rehearsal.add(name, table, MID_EPOCH)
        rehearsal.add(name, table)
    for name, changes in (("impatient", {"bulk": PARTITIONED}), ("impatient, owned", {"features": "owned"})):
        rehearsal.add(
            name, with_(JOB, epochs=30, train={"lr": 1e-12, "patience": 2}, model={"norm": "none"}, **changes)
        )
    return SimpleNamespace(folder=folder, reports=rehearsal.train())


def of(two, name):
    """Reports of the last run of that name."""
    return next(v for k, v in reversed(two.reports.items()) if k.rpartition(" ")[0] == name)


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_and_samplers_train_the_same(two, name):
    b = of(two, f"{name}, whole")
    for way in ("cut", "rows travel"):
        a = of(two, f"{name}, {way}")
        assert [r["parameters_sha256"] for r in a] == [r["parameters_sha256"] for r in b]
        assert a[0]["test_accuracy"] == pytest.approx(b[0]["test_accuracy"])


@pytest.mark.parametrize("name", ["stopped", "stopped, rows travel", "stopped, owned"])
def test_a_run_that_is_stopped_in_mid_epoch_goes_on_as_if_it_had_not_been(two, name):
    first = next(v for k, v in two.reports.items() if k.rpartition(" ")[0] == name)
    assert first == [None, None]
    reports = of(two, name)
    assert [r["parameters_sha256"] for r in reports] == [of(two, "undisturbed")[0]["parameters_sha256"]] * 2
    assert reports[0]["minibatches"] > reports[1]["minibatches"], "those of its first life are the first rank's"
    assert sum(r["minibatches"] for r in reports) == 2 * MINIBATCHES


@pytest.mark.parametrize("name", ["impatient", "impatient, owned"])
def test_patience_ends_all_ranks_while_their_threads_are_ahead(two, name):
    for report in of(two, name):
        assert len(report["history"]) == 3, "the first epoch is the best, and two more are not better"
        assert report["best_epoch"] == 0


def test_a_graph_with_an_empty_block_trains_the_same(odd, tmp_path):
    """Weighted draws, weighted degrees, several labels; a rank that owns no row trains on those of the other."""
    table = {
        **SHORT, "model": {"name": "gcn", "hidden": 6, "layers": 2, "dropout": 0.1},
        "sampler": {"fanout": [3, 2], "weighted": True}, "train": {"batch_size": 5, "lr": 0.05},
    }  # fmt: skip
    rehearsal = Rehearsal(odd, tmp_path, 2)
    rehearsal.add("whole", table)
    rehearsal.add("cut", with_(table, bulk=PARTITIONED))
    rehearsal.add("hot", with_(table, bulk={**PARTITIONED, "cache_fraction": 0.5}))
    reports = rehearsal.train()
    assert [len(open_part(tmp_path / "cut" / "parts", p)[0].owned) for p in range(2)] == [40, 0]
    whole, cut, hot = reports.values()
    for found in (cut, hot):
        assert [r["parameters_sha256"] for r in found] == [r["parameters_sha256"] for r in whole]
        assert [r["test_accuracy"] for r in found] == pytest.approx([r["test_accuracy"] for r in whole])
    assert hot[1]["fetched"]["rows"] > 0 == hot[0]["fetched"]["rows"]


def test_any_cut_trains_what_the_reordered_graph_trains(odd, tmp_path):
    """The same bits as a run over the whole graph with the nodes of each part made a range."""
    owners = np.where(np.arange(40) % 3 == 1, 0, 1)
    np.save(tmp_path / "owners.npy", owners)
    table = with_(SHORT, sampler={"fanout": [3, 2]}, train={"batch_size": 5}, model={"name": "gcn", "norm": "none"})
    tables = {"nodewise": table, "layerwise": {**table, "sampler": {"name": "ladies", "sizes": [20, 25]}}}
    (tmp_path / "reordered").mkdir()
    cut = Rehearsal(odd, tmp_path, 2)
    whole = Rehearsal(mr.reorder(odd, np.argsort(owners, kind="stable")), tmp_path / "reordered", 2)
    by_owners = {"bulk": PARTITIONED, "partition": {"owners": str(tmp_path / "owners.npy")}}
    for name, options in tables.items():
        cut.add(name, with_(options, **by_owners))
        whole.add(name, options)
    local = with_(with_(table, **by_owners), bulk={"local_seeds": True})
    for name, stop_after in (("local", None), ("stopped", 1), ("stopped", None)):
        cut.add(name, local, stop_after)
    nodewise, layerwise, undisturbed, stopped, resumed = cut.train().values()
    for found, wanted in zip((nodewise, layerwise), whole.train().values()):
        assert [r["parameters_sha256"] for r in found] == [r["parameters_sha256"] for r in wanted]
        assert [r["test_accuracy"] for r in found] == pytest.approx([r["test_accuracy"] for r in wanted])
    # Ranks that train on their own seeds: other minibatches, the same after a stop.
    assert stopped == [None, None]
    assert [r["parameters_sha256"] for r in resumed] == [r["parameters_sha256"] for r in undisturbed]
    assert undisturbed[0]["parameters_sha256"] != nodewise[0]["parameters_sha256"]


def test_hot_rows_by_degree_are_chosen_where_one_block_has_all_rows(odd, tmp_path):
    rehearsal = Rehearsal(odd, tmp_path, 2)
    table = with_(SHORT, sampler={"fanout": [3, 2]}, model={"norm": "none"})
    rehearsal.add("hot", with_(table, bulk={**PARTITIONED, "cache_fraction": 0.5, "hot_by": "degree"}))
    (reports,) = rehearsal.train().values()
    assert [r["fetched"]["rows"] for r in reports] == [0, 20]


def test_one_rank_holds_its_only_block(dataset, tmp_path):
    options = {**JOB, "bulk": {**PARTITIONED, "cache_fraction": 0.5}}
    cut = mr.run(dataset, out=tmp_path / "cut", **options)
    whole = mr.run(dataset, out=tmp_path / "whole", **JOB)
    assert cut.parameters_sha256 == whole.parameters_sha256
    assert (cut.test_accuracy, cut.val_accuracy) == (whole.test_accuracy, whole.val_accuracy)
    assert not sum(cut.bytes["network"].values())
    assert (cut.hot_rows, whole.hot_rows) == ([{"rows": 0, "asked": 0, "hits": 0, "saved_bytes": 0}], None)
    assert not (tmp_path / "cut" / "parts").exists()


# --- on a cluster ---


def flags(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A table as words of the command line."""
    found = []
    for key, value in table.items():
        inner = isinstance(value, dict)
        found += (
            flags(value, f"{prefix}{key}.")
            if inner
            else [f"--set={prefix}{key}={json.dumps(value) if value is not True else 'true'}"]
        )
    return found


@pytest.fixture(scope="module")
def clustered(dataset, scheduler, tmp_path_factory):
    """Four ranks in two columns, with hot rows, by the command."""
    out = tmp_path_factory.mktemp("clustered") / "run"
    words = flags(with_(SHORT, **SAME["two columns"]))
    code, said, err = command(
        "run", "--dataset", DATASET, "--ranks", 4, "--scheduler", scheduler, "--out", out, "--json", *words
    )
    assert code == 0, err
    return SimpleNamespace(out=out, record=json.loads(said), err=err)


def test_a_cluster_trains_what_processes_train(clustered, four):
    record, reports = clustered.record, four.reports["two columns"]
    assert record == json.loads((clustered.out / "result.json").read_text())
    assert (record["status"], record["system"], record["ranks"], record["epochs"]) == ("done", "bulk", 4, 1)
    assert record["parameters_sha256"] == four.reports["replicated"][0]["parameters_sha256"]
    assert record["hot_rows"] == [r["fetched"] for r in reports]
    assert record["memory_bytes"][2]["features"] == reports[2]["memory_bytes"]["features"]
    assert record["bytes"]["network"]["features"] == sum(r["bytes"]["network"]["features"] for r in reports)
    assert record["bytes"]["network"]["graph"] == sum(r["bytes"]["network"]["graph"] for r in reports)
    assert record["bytes"]["store"]["minibatches"] == 0
    assert record["minibatches"] == MINIBATCHES
    assert sorted(p.name for p in (clustered.out / "parts").glob("part-*")) == ["part-0000", "part-0001"]
    assert not (clustered.out / "queue").exists()
    found = resolve(read_toml(clustered.out / "job.toml"))
    assert (found.bulk.topology, found.bulk.replication, found.bulk.cache_fraction, found.partition.method) == (
        "partitioned",
        2,
        0.1,
        "contiguous",
    )


def test_the_run_can_be_looked_at_and_evaluated(clustered):
    code, said, err = command("evaluate", clustered.out, "--json")
    assert code == 0, err
    accuracy = json.loads(said)["accuracy"]
    assert accuracy["test"] == pytest.approx(clustered.record["test_accuracy"])
    assert accuracy["val"] == pytest.approx(clustered.record["val_accuracy"])
    code, said, err = command("inspect", clustered.out, "--json")
    assert (code, json.loads(said)["system"]) == (0, "bulk"), err


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (
            ["--set", "bulk.topology=replicated", "--set", "bulk.replication=1", "--set", "bulk.cache_fraction=0"],
            "bulk.topology (was partitioned",
        ),
        (["--set", "bulk.replication=1"], "bulk.replication (was 2, now 1)"),
        (["--ranks", 2], "resume with --ranks 4"),
    ],
)
def test_a_run_goes_on_with_the_blocks_that_it_began_with(clustered, scheduler, words, phrase):
    words = [*words, "--scheduler", scheduler]
    code, _, err = command("run", "--resume", "--out", clustered.out, "--epochs", 3, *words)
    assert code == 2, err
    assert phrase in " ".join(err.split())
    assert "Traceback" not in err


class Reaper:
    """Kills a rank once an epoch is reached, and notes how soon that was told and in which words."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.killed, self.told, self.notes = epoch, None, None, []

    def __call__(self, event):
        if isinstance(event, Note):
            self.notes.append(event.text)
            if self.killed and self.told is None and "start again" in event.text:
                self.told = event.text, time.monotonic() - self.killed[1]
        elif isinstance(event, StepDone) and not self.killed and event.epoch >= self.epoch:
            (victim, *_) = ranks_alive()
            victim.kill()
            self.killed = victim.pid, time.monotonic()


def ranks_alive():
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "millrace.pipeline.cluster.rank_main" in command_of(child):
                found.append(child)
        except psutil.Error:
            continue
    return found


FAULTY = with_(
    JOB,
    epochs=4,
    ranks=2,
    train={"batch_size": 4, "minibatches_per_step": 2},
    checkpoint={"every_steps": 6},
    bulk=PARTITIONED,
)
"""20 steps an epoch."""


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    """The parameters that ranks with the whole graph come to."""
    rehearsal = Rehearsal(dataset, tmp_path_factory.mktemp("undisturbed"), 2)
    rehearsal.add("whole", with_(FAULTY, bulk={"topology": "replicated"}))
    return rehearsal.train()["whole 0"][0]["parameters_sha256"]


def test_interrupted_gone_on_with_and_a_rank_killed(undisturbed, scheduler, tmp_path):
    """One run that suffers all of it ends with the same parameters, and no process is left behind."""
    out, seen = tmp_path / "run", []

    def stop():
        return any(isinstance(e, StepDone) for e in seen)

    run = {**FAULTY, "out": out, "scheduler": scheduler}
    assert mr.run(DATASET, emit=seen.append, stop=stop, **run).status == "stopped"
    assert not ranks_alive()
    reaper = Reaper(1)
    result = mr.run(DATASET, resume=True, emit=reaper, **run)
    assert result.parameters_sha256 == undisturbed
    text, seconds = reaper.told
    assert re.fullmatch(
        rf"rank \d \(process {reaper.killed[0]}\) was killed by signal 9; all ranks start again .* \(restart 1 of \d\)",
        text,
    )
    assert seconds < TOLD_S
    assert sum("resumed at epoch" in n for n in reaper.notes) == 2, "after the interruption and after the kill"
    assert not ranks_alive()


# --- configuration ---

CUT = "--set=bulk.topology=partitioned"
REFUSED = {
    "c that does not divide": (
        ["--ranks", 4, CUT, "--set", "bulk.replication=3"],
        "bulk.replication is 3, which does not divide 4 ranks; nearest are 1, 2, 4",
    ),
    "c that does not divide, owned": (
        ["--ranks", 6, "--set", "features=owned", "--set", "bulk.replication=4"],
        "bulk.replication is 4, which does not divide 6 ranks; nearest are 2, 3, 6",
    ),
    "c of one rank": (
        [CUT, "--set", "bulk.replication=2"],
        "bulk.replication is 2, which does not divide 1 ranks; nearest are 1",
    ),
    "c where all have all": (
        ["--ranks", 4, "--set", "bulk.replication=2"],
        "bulk.replication is 2, but every rank has all features; use features = "
        '"owned" or bulk.topology = "partitioned" with it',
    ),
    "hot where all have all": (
        ["--ranks", 4, "--set", "bulk.cache_fraction=0.1"],
        "bulk.cache_fraction is 0.1, but every rank has all features",
    ),
    "local seeds where all have all": (
        ["--ranks", 2, "--set", "features=owned", "--set", "bulk.local_seeds=true"],
        "bulk.local_seeds is true, but every rank samples from the whole graph; use bulk.topology = ",
    ),
    "products where all have all": (
        ["--ranks", 2, "--set", "bulk.algorithm=1.5d"],
        'bulk.algorithm is "1.5d", but every rank samples from the whole graph; use bulk.topology = "partitioned"',
    ),
    "another algorithm": (
        ["--ranks", 2, CUT, "--set", "bulk.algorithm=2d"],
        "configuration key 'bulk.algorithm' is '2d': input should be 'owners', '1.5d' or 'auto'",
    ),
    "products in SciPy": (
        ["--ranks", 2, CUT, "--set", "kernel=matrix"],
        'kernel is "matrix", which samples from a whole graph',
    ),
    "GPUs that draw for a host": (
        ["--ranks", 2, CUT, "--set", "kernel=cuda"],
        'kernel is "cuda" and bulk.topology is "partitioned", where the owners of rows draw on their GPUs, but device '
        'is "cpu"; set device = "cuda" or leave kernel out',
    ),
    "seeds of ranks in a stored queue": (
        ["--ranks", 2, CUT, "--set", "queue.kind=zarr", "--set", "bulk.local_seeds=true"],
        "bulk.local_seeds is true, so that minibatches depend on the ranks that train, but they come from a store",
    ),
    "seeds of ranks in samples": (
        ["--ranks", 2, CUT, "--samples", "SAMPLES", "--set", "bulk.local_seeds=true"],
        "bulk.local_seeds is true, so that minibatches depend on the ranks that train, but they come from a store",
    ),
    "a topology": (["--set", "bulk.topology=partitoned"], "'replicated' or 'partitioned'"),
    "a share": (["--set", "bulk.cache_fraction=1.1"], "'bulk.cache_fraction' is 1.1"),
    "bytes": (["--set", "bulk.prefetch_bytes=-1"], "'bulk.prefetch_bytes' is -1"),
    "c of nobody": (["--set", "bulk.replication=0"], "'bulk.replication' is 0"),
    "what is hot": (["--set", "bulk.hot_by=degrees"], "'samples' or 'degree'"),
    "a key": (
        ["--set", "bulk.replicas=2"],
        "unknown configuration key 'bulk.replicas'; did you mean 'bulk.replication'?",
    ),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Stores of samples, with and without a cut topology."""
    folder = tmp_path_factory.mktemp("samples")
    words = ["--dataset", DATASET, "--fanout", "4,3", "--batch-size", 16, "--epochs", 2, "--seed", 3]
    for name, more in (
        ("whole", []),
        ("cut", ["--set", "bulk.topology=partitioned", "--set", "bulk.replication=2", "--set", "ranks=4"]),
    ):
        code, _, err = command("sample", *words, "--out", folder / name, *more)
        assert code == 0, err
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_a_few_lines_and_nothing_is_written(case, samples, tmp_path):
    words, phrase = REFUSED[case]
    words = [samples / "cut" if w == "SAMPLES" else w for w in words]
    code, said, err = command(
        "run", "--dataset", DATASET, "--fanout", "4,3", "--batch-size", 16, "--out", tmp_path / "run", *words
    )
    lines = err.strip().splitlines()
    assert code == 2, err
    assert phrase in " ".join(err.split())
    assert "Traceback" not in err
    assert 1 <= len([line for line in lines if not line.startswith(("opening", DATASET))]) <= 3 + len(err) // 80, err
    assert not said
    assert not (tmp_path / "run").exists()


def test_samples_for_local_seeds_are_refused(tmp_path):
    words = ["--dataset", DATASET, "--fanout", "4,3", "--set", "bulk.topology=partitioned", "--set", "ranks=2"]
    code, said, err = command("sample", *words, "--set", "bulk.local_seeds=true", "--out", tmp_path / "samples")
    assert (code, said) == (2, "")
    assert "bulk.local_seeds is true, so that minibatches depend on the ranks that train" in " ".join(err.split())
    assert not (tmp_path / "samples").exists()


def test_samples_are_the_same_ones_however_the_topology_will_be_held(samples):
    cut, whole = ([minibatch_digest(m) for m in mr.open_queue(samples / name)] for name in ("cut", "whole"))
    assert len(cut) == 2 * MINIBATCHES
    assert cut == whole


def test_a_record_of_the_system_becomes_the_configuration():
    options = {
        "topology": "partitioned",
        "replication": 2,
        "cache_fraction": 0.25,
        "hot_by": "degree",
        "prefetch_bytes": 77,
        "local_seeds": True,
        "algorithm": "auto",
    }
    system = mr.bulk(LaborSampler((4, 2)), **options)
    found = configure({}, system=system, ranks=4)
    assert found.bulk.model_dump() == options
    assert (found.system, found.partition.method, found.sampler["name"]) == ("bulk", "contiguous", "labor")
    again = make_system(found)
    assert (again.partition, again.fetch, again.options) == (system.partition, system.fetch, system.options)
    assert (again.sample.sampler, again.sample.max_bytes) == (system.sample.sampler, found.queue.max_bytes)
    assert configure({}, system="bulk").bulk == configure({}, system=mr.bulk()).bulk


def test_a_record_with_owned_features_becomes_the_configuration(dataset):
    """Ranks make the system again from it, and must not find another one."""
    system = mr.bulk(features="owned", replication=2, cache_fraction=0.25)
    found = configure({}, system=system, ranks=4)
    assert make_system(found).fetch == system.fetch
    assert prepare(found, dataset).system.fetch == prepare(found, dataset, system=system).system.fetch


def test_owned_features_keep_what_the_record_says(dataset):
    system = mr.bulk(replication=2, cache_fraction=0.25)
    found = configure({}, system=system, ranks=4, features="owned")
    assert prepare(found, dataset, system=system).system.fetch == make_system(found).fetch
