"""The chain over blocks of a cut graph: one command each for the cut, the samples and the run, with the parameters of
the run that does all by itself; also if each is killed and given again."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.telemetry.events import silent
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, Interrupted, StoreError
from millrace.storage.partition.book import open_book
from millrace.tests.contracts.command import command

SBM = "sbm:nodes=240,classes=3,train=0.2,features=8"
JOB = {
    "epochs": 2,
    "threads": 1,
    "sampler": {"fanout": [4, 3]},
    "model": {"hidden": 8},
    "train": {"batch_size": 8},
    "queue": {"bulk_size": 3},
}
METIS = {"bulk": {"topology": "partitioned"}, "partition": {"method": "metis"}}
TYPED = {"dataset": "hsbm:nodes=200,classes=2", "model": {"name": "rgcn"}}
LINKS = {
    "read": {"task": "link"},
    "dataset": "sbm:nodes=200,classes=2,degree=6,features=8",
    "train": {"batch_size": 64},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "data"
    write_dataset(path, mr.open_dataset(SBM), features_format="npy", graph_format="npy")
    return path


def job_of(store: Path, scheduler: str, *more: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {"dataset": str(store), "ranks": 2, **JOB, "cluster": {"scheduler": scheduler}}
    for part in more:
        for key, value in part.items():
            table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    return table


def words(table: dict[str, Any]) -> list[str]:
    """The same as words of a command line."""
    flat = []
    for key, value in table.items():
        for name, each in value.items() if isinstance(value, dict) else [("", value)]:
            text = json.dumps(each) if isinstance(each, list | bool) else str(each)
            flat += ["--set", f"{key}.{name}={text}" if name else f"{key}={text}"]
    return flat


def trained(out: Path, table: dict[str, Any], **more: Any) -> mr.Result:
    return mr.run(config=table, out=out, verbose=False, **more)


class Chains:
    """What comes of jobs, each made once: nobody changes it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made, self.numbers = folder, dict[str, Any](), count()

    def once(self, stage: str, table: dict[str, Any], make: Callable[[Path, dict[str, Any]], Any]) -> Any:
        key = f"{stage} {json.dumps(table, sort_keys=True)}"
        if key not in self.made:
            self.made[key] = make(self.folder / str(next(self.numbers)), table)
        return self.made[key]

    def live(self, table: dict[str, Any]) -> mr.Result:
        """The run that does all by itself."""
        return self.once("live", table, trained)

    def samples(self, table: dict[str, Any]) -> Path:
        """A store of the job's samples, whose sampler made its own cut."""

        def draw(out: Path, table: dict[str, Any]) -> Path:
            precompute(resolve(table), out, emit=silent, stop=lambda: False)
            return out

        return self.once("samples", table, draw)

    def stored(self, table: dict[str, Any]) -> mr.Result:
        """The run of that store, which cuts too."""
        samples = self.samples(table)
        return self.once("stored", table, lambda out, table: trained(out, table, samples=samples))


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return Chains(tmp_path_factory.mktemp("chains"))


KINDS = {
    "2 ranks": {"ranks": 2},
    "4 ranks in a grid": {"ranks": 4, "bulk": {"replication": 2}},
    "a mapped graph": {"graph": "mapped", "features": "mapped"},
    "owned features": {"features": "owned", "bulk": {"cache_fraction": 0.2}},
    "layers of nodes": {"sampler": {"name": "ladies", "sizes": [32, 16]}},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_command_for_each_stage_trains_what_the_live_run_trains(
    kind: str, store: Path, scheduler: str, chains: Chains, tmp_path: Path
) -> None:
    table = job_of(store, scheduler, METIS, KINDS[kind])
    if "sizes" in table["sampler"]:
        del table["sampler"]["fanout"]
    blocks = table["ranks"] // table["bulk"].get("replication", 1)
    live = chains.live(table)
    queue = trained(tmp_path / "queue", {**table, "queue": {"bulk_size": 3, "kind": "zarr"}})
    assert queue.parameters_sha256 == live.parameters_sha256
    # One command each.
    code, _, err = command(
        "partition", store, "--parts", blocks, "--method", "metis", "--out", tmp_path / "parts", "--set",
        f"cluster.scheduler={scheduler}", "--set", "executor=dask",
    )  # fmt: skip
    assert code == 0, err
    given = words({**table, "partition": {"owners": str(tmp_path / "parts")}})
    code, said, err = command("sample", *given, "--out", tmp_path / "samples", "--json")
    assert code == 0, err
    assert json.loads(said)["edges"] == live.sampled_edges
    assert "cutting" not in err, "the parts are there"
    code, _, err = command("run", *given, "--samples", tmp_path / "samples", "--out", tmp_path / "run")
    assert code == 0, err
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["parameters_sha256"] == live.parameters_sha256
    assert record["sampled_edges"] == live.sampled_edges and record["seconds"]["sample"] == 0
    assert not (tmp_path / "run" / "parts").exists()
    # Without the parts, each command cuts alike.
    both = [mr.open_queue(path) for path in (tmp_path / "samples", chains.samples(table))]
    assert sum(minibatch.num_edges for minibatch in both[1]) == live.sampled_edges
    assert both[0].fingerprint == both[1].fingerprint and "order" in both[0].fingerprint
    assert chains.stored(table).parameters_sha256 == live.parameters_sha256


def test_the_samples_are_those_of_the_renumbered_graph(
    store: Path, scheduler: str, chains: Chains, tmp_path: Path
) -> None:
    """An oracle in one process: the graph with its nodes in the order of the same book."""
    table = job_of(store, scheduler, METIS)
    data = mr.open_dataset(store)
    book = open_book(Path(chains.live(table).out) / "parts" / "book")
    write_dataset(tmp_path / "renumbered", mr.reorder(data, book))
    whole = {**table, "dataset": str(tmp_path / "renumbered"), "bulk": {}, "ranks": 1, "cluster": {}}
    precompute(resolve(whole), tmp_path / "whole", emit=silent, stop=lambda: False)
    for a, b in zip(*(mr.open_queue(path) for path in (chains.samples(table), tmp_path / "whole")), strict=True):
        assert np.array_equal(a.nodes, b.nodes)
        assert all(np.array_equal(x.indices, y.indices) for x, y in zip(a.blocks, b.blocks, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["types", "links"])
def test_relations_and_links_go_through_a_store(kind: str, scheduler: str, chains: Chains, tmp_path: Path) -> None:
    more = LINKS if kind == "links" else TYPED
    table = job_of(Path(), scheduler, METIS, more)
    live, stored = chains.live(table), chains.stored(table)
    assert sum(minibatch.num_edges for minibatch in mr.open_queue(chains.samples(table))) == live.sampled_edges
    queue = trained(tmp_path / "queue", {**table, "queue": {"bulk_size": 3, "kind": "zarr"}})
    assert live.parameters_sha256 == stored.parameters_sha256 == queue.parameters_sha256


@pytest.mark.slow
def test_each_stage_is_killed_and_given_again(store: Path, scheduler: str, tmp_path: Path) -> None:
    dying = tmp_path / "dying"
    sampler = {"name": "millrace.tests.contracts.dying_sampler:DyingSampler", "file": str(dying), "fanout": [4, 3]}
    table = {**job_of(store, scheduler, METIS), "sampler": sampler}
    live = trained(tmp_path / "live", table)
    # Whoever samples: a rank is killed, all start again.
    told: list[Any] = []
    dying.touch()
    precompute(resolve(table), tmp_path / "samples", emit=told.append, stop=lambda: False)
    assert any("restart 1 of" in getattr(event, "text", "") for event in told)
    # Stopped as soon as the first round is there, then given again.
    rounds: list[Any] = []

    def listen(event: Any) -> None:
        if type(event).__name__ == "StageAdvanced" and event.stage == "sample":
            rounds.append(event)

    with pytest.raises(Interrupted, match="the same command goes on from there"):
        precompute(resolve(table), tmp_path / "stopped", emit=listen, stop=lambda: bool(rounds))
    assert (tmp_path / ".sampling-stopped").exists()
    precompute(resolve(table), tmp_path / "stopped", emit=silent, stop=lambda: False)
    for name in ("samples", "stopped"):
        done = trained(tmp_path / f"of-{name}", table, samples=tmp_path / name)
        assert done.parameters_sha256 == live.parameters_sha256
    # Ranks that fill their own queue on disk, and train beside it.
    dying.touch()
    queue = trained(tmp_path / "queue", {**table, "queue": {"bulk_size": 3, "kind": "zarr"}})
    assert not dying.exists() and queue.parameters_sha256 == live.parameters_sha256
    # What the cut or a killed sampler left is nobody's any more.
    assert not [path for path in os.listdir(tmp_path) if path.startswith(".sampling")]


def test_a_bounded_queue_drops_what_all_ranks_have_released(
    store: Path, scheduler: str, chains: Chains, tmp_path: Path
) -> None:
    table = job_of(store, scheduler, METIS)
    live = chains.live(table)
    queue = {"bulk_size": 2, "kind": "zarr", "max_bytes": 1, "keep": "none"}
    bounded = trained(tmp_path / "queue", {**table, "queue": queue})
    assert bounded.parameters_sha256 == live.parameters_sha256
    assert not list((tmp_path / "queue" / "queue").glob("epoch-*/bulk-*"))
    # One rank fills and reads its own.
    alone = {**table, "ranks": 1, "cluster": {}}
    assert (
        trained(tmp_path / "a", alone).parameters_sha256
        == trained(tmp_path / "b", {**alone, "queue": queue}).parameters_sha256
    )


def test_other_orders_and_numbers_are_refused(store: Path, scheduler: str, chains: Chains, tmp_path: Path) -> None:
    table = job_of(store, scheduler, METIS)
    shutil.copytree(chains.samples(table), tmp_path / "samples")
    samples = {"samples": tmp_path / "samples"}
    for cut, more in (({}, {}), (METIS, {"partition": {"method": "contiguous"}})):
        with pytest.raises(
            StoreError,
            match=r"in the order of a cut, 2 by Metis.*, but this job .* in the order of ids; cut",
        ):
            trained(tmp_path / "run", job_of(store, scheduler, cut, more), **samples)
        assert not (tmp_path / "run").exists()
    with pytest.raises(StoreError, match="in the order of Hash"):
        trained(tmp_path / "run", job_of(store, scheduler, METIS, {"partition": {"method": "hash"}}), **samples)
    other = resolve(job_of(store, scheduler, METIS, {"partition": {"method": "hash"}}))
    with pytest.raises(StoreError, match="in the order of Hash"):
        precompute(other, tmp_path / "samples", emit=silent, stop=lambda: False)
    other = resolve(job_of(store, scheduler, METIS, {"train": {"batch_size": 9}}))
    with pytest.raises(StoreError, match="batch_size"):
        precompute(other, tmp_path / "samples", emit=silent, stop=lambda: False)
    assert precompute(resolve(table), tmp_path / "samples", emit=silent, stop=lambda: False)["edges"] == 0


PACKED = {
    "blocks of a cut": (METIS, {}),
    "ranges, float16": ({"bulk": {"topology": "partitioned"}}, {"features": "float16"}),
    "every rank has the graph": ({}, {}),
    "4 ranks in a grid": (METIS, {"ranks": 4, "bulk": {"replication": 2}}),
    "self loops": (METIS, {"model": {"name": "gcn"}}),
    "types": (METIS, TYPED),
    "links": (METIS, LINKS),
    "learnt rows": (METIS, {"learned": {"width": 4, "beside": True}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKED)
def test_ranks_train_on_features_that_are_packed_beside_the_samples(
    kind: str, store: Path, scheduler: str, chains: Chains, tmp_path: Path
) -> None:
    table = job_of(store, scheduler, *({k: v for k, v in part.items() if k != "features"} for part in PACKED[kind]))
    form = PACKED[kind][1].get("features", "own")
    report = precompute(resolve(table), tmp_path / "packed", emit=silent, stop=lambda: False, features=form)
    again = precompute(resolve(table), tmp_path / "packed", emit=silent, stop=lambda: False, features=form)
    assert report["packed_bytes"] and again["edges"] == again["packed_bytes"] == 0
    plain, packed = chains.stored(table), trained(tmp_path / "run", table, samples=tmp_path / "packed")
    assert (plain.parameters_sha256 == packed.parameters_sha256) == (form == "own")
    sent = packed.bytes["network"]["features"]
    assert sent > 0 if "learned" in table else sent == 0, "learnt rows alone travel"
    if "dataset" in PACKED[kind][1]:
        return
    # The store alone trains the same, whose ranks need no blocks.
    alone = {k: v for k, v in table.items() if k not in ("dataset", "bulk", "partition")}
    if "learned" in table:
        with pytest.raises(InputError, match="numbers nodes by the parts of a cut"):
            trained(tmp_path / "alone", alone, samples=tmp_path / "packed")
        return
    found = trained(tmp_path / "alone", alone, samples=tmp_path / "packed")
    assert found.parameters_sha256 == packed.parameters_sha256 and found.test_accuracy is None
