"""Parts that Dask tasks write are the parts that this process writes."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from distributed import Client

import millrace as mr
from millrace.pipeline.cluster import partition_task
from millrace.pipeline.cluster.partition_task import Cutting
from millrace.pipeline.cluster.scheduler_watch import SchedulerWatch
from millrace.pipeline.config.schema import ClusterOptions
from millrace.stages.partition.base import Cut
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.stage import Cutter, cut_dataset, partition_dataset
from millrace.storage.dataset_store import write_dataset
from millrace.storage.partition import shuffle
from millrace.storage.partition.book import RangeBook, write_book
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_cluster import forked_cluster

SBM = "sbm:nodes=2000,classes=4,train=0.4"


def partition(*arguments):
    return command("partition", SBM, "--parts", 3, *arguments)


def digests(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@forked_cluster()
def test_parts_are_the_same_and_nothing_else_is_left(tmp_path):
    here, _, _ = partition("--out", tmp_path / "here")
    there, _, err = partition(
        "--out",
        tmp_path / "there",
        "--set",
        "executor=dask",
        "--set",
        "cluster.producers=2",
        "--set",
        "cluster.dashboard_port=0",
    )
    assert (here, there) == (0, 0), err
    assert "dashboard: http://127.0.0.1" in err
    assert len(digests(tmp_path / "here")) > 10
    assert digests(tmp_path / "here") == digests(tmp_path / "there")


@pytest.mark.parametrize("key", ["cluster.producers=0", "cluster.scheduler=tcp://10.9.9.9:1"])
def test_what_cannot_be_is_refused(tmp_path, key):
    code, _, err = partition("--out", tmp_path / "out", "--set", "executor=dask", "--set", key)
    assert code == 2
    assert key.partition("=")[0] in err
    assert not (tmp_path / "out").exists()


def watch(client):
    return SchedulerWatch(client, ClusterOptions(), print)


def test_many_ranges_of_rows_are_dealt(by_value, scheduler, tmp_path):
    """Workers deal ranges of 16 KiB, here parts are taken from memory: the same files, and the workers keep no book."""
    dataset = mr.open_dataset(SBM)
    write_dataset(tmp_path / "data", dataset, features_format="npy")
    told, held = [], []
    with Client(scheduler) as client:
        cut, there = Cut(Hash(), 7), tmp_path / "there"
        tasks = Cutting(client, tmp_path / "data", there, watch(client), told.append)

        def by_tasks(parts, fingerprint):
            for written in tasks.write_parts(parts, fingerprint):
                held.append(client.run_on_scheduler(deals_held))
                yield written

        client.run(set_range_bytes, 16 << 10)
        partition_dataset(dataset, Hash(), 7, tmp_path / "here")
        cut_dataset(dataset, cut, there, cutter=replace(Cutter.here(dataset, cut, there), write_parts=by_tasks))
        client.run(set_range_bytes, shuffle.RANGE_BYTES, shuffle.STRETCH_BYTES)
        assert set(client.run(books_held).values()) == {0}
    # Were they held, a worker's loss would have its ranges dealt again while parts are read from them.
    assert held == [0] * 7
    assert digests(tmp_path / "here") == digests(tmp_path / "there")
    ranges = told[0].total
    assert ranges > 10
    assert [(e.stage, e.done, e.total) for e in told] == [("deal", k + 1, ranges) for k in range(ranges)]


def set_range_bytes(of_all, of_a_part=0):
    shuffle.RANGE_BYTES, shuffle.STRETCH_BYTES = of_all, of_a_part


def deals_held(dask_scheduler):
    return sum("deal-" in str(key) for key in dask_scheduler.tasks)


def books_held():
    return partition_task._book.cache_info().currsize


def test_a_full_disk_while_rows_are_dealt_is_a_sentence_and_leaves_nothing(by_value, scheduler, tmp_path):
    dataset = mr.open_dataset(SBM)
    write_dataset(tmp_path / "data", dataset, features_format="npy")
    with Client(scheduler) as client:
        client.run(fill_the_disk)
        cut, out = Cut(Hash(), 2), tmp_path / "out"
        tasks = Cutting(client, tmp_path / "data", out, watch(client), lambda event: None)
        try:
            with pytest.raises(mr.RunError, match=r"^partitioning failed: OSError: .*No space left.*--resume"):
                cut_dataset(dataset, cut, out, cutter=tasks.cutter(cut))
        finally:
            client.run(empty_the_disk)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["book"]


def fill_the_disk():
    def full(*_):
        raise OSError(28, "No space left on device")

    partition_task.deal = full


def empty_the_disk():
    partition_task.deal = shuffle.deal


def test_a_part_that_cannot_be_made_is_a_sentence(scheduler, tmp_path):
    """The workers find no dataset."""
    write_book(tmp_path / "book", RangeBook(np.array([0, 3, 5])))
    with (
        Client(scheduler) as client,
        pytest.raises(mr.RunError, match=r"^partitioning failed: StoreError: .*none.*--resume"),
    ):
        list(Cutting(client, tmp_path / "none", tmp_path, watch(client), print).write_parts([0, 1], {}))
    assert [p.name for p in tmp_path.iterdir()] == ["book"]
