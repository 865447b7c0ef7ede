"""A queue that an earlier life left: what cannot be read is dropped, named, and sampled again."""

import shutil

import numpy as np
import pytest

from millrace.stages.assignment import SeedPlan
from millrace.stages.feed.queue_feed import BulkDraws, BulkSpan, sample_bulks
from millrace.stages.kernels import sampling_backend
from millrace.storage.queue.object_store import queue_at
from millrace.storage.queue.zarr import ZarrQueue
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.fuzz.forge import forge, manifest_of, sign
from millrace.tests.fuzz.targets import SAMPLER, dataset


@pytest.fixture(params=["folder", "object store"])
def fill(request):
    at = str if request.param == "folder" else "file://{}".format
    data = dataset()
    plan = SeedPlan(data.split.train, 4, 2, 0)
    meta = {"minibatches_per_epoch": plan.num_minibatches}
    options = {"fingerprint": {"s": "1"}, "bulk_size": 2, "max_bytes": 1 << 30, "keep": "all", "meta": meta}

    def fill(path, **more):
        if at is not str:
            path.mkdir(exist_ok=True)
        queue = queue_at(at(path)).create(at(path), **options, **more)
        draws = BulkDraws(data.graph, SAMPLER, plan, sampling_backend("cpu"))
        sample_bulks(draws, queue, BulkSpan(range(2), plan.num_bulks))
        queue.finish()
        return [minibatch_digest(m) for m in queue]

    return fill


def flip(bulk):
    shard = max((p for p in (bulk / "arrays").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 1
    shard.write_bytes(bytes(data))


def a_file(bulk):
    shutil.rmtree(bulk)
    bulk.write_bytes(b"")


def forged(bulk):
    def change(arrays, meta):
        arrays["rows"][0, 20] = -7

    forge(bulk, change)


def shorter(bulk):
    forge(bulk, lambda arrays, meta: arrays.update(rows=arrays["rows"][:1]))


def of_another(bulk):
    forge(bulk, lambda arrays, meta: arrays["rows"].__setitem__((slice(None), 3), np.int32(1)))


DAMAGE = {
    "flipped": flip,
    "no manifest": lambda bulk: (bulk / "manifest.json").unlink(),
    "half a manifest": lambda bulk: (bulk / "manifest.json").write_bytes((bulk / "manifest.json").read_bytes()[:40]),
    "no data": lambda bulk: shutil.rmtree(bulk / "arrays"),
    "a file": a_file,
    "forged": forged,
    "shorter": shorter,
    "of another epoch": of_another,
    "other array": lambda bulk: sign(bulk, manifest_of(bulk) | {"arrays": {}}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_bulk_is_sampled_again(tmp_path, fill, damage, request):
    if "object store" in request.node.name and damage in ("no manifest", "a file"):
        pytest.skip("an object store has no folders: a bulk without a manifest was never written")
    clean = fill(tmp_path / "q")
    DAMAGE[damage](tmp_path / "q" / "epoch-0" / "bulk-1")
    told = []
    assert fill(tmp_path / "q", mend=told.append) == clean
    assert len(told) == 1
    assert told[0].startswith("a damaged bulk was dropped, and is sampled again: ")
    assert "bulk-1" in told[0]
    assert fill(tmp_path / "q", mend=told.append) == clean
    assert len(told) == 1


def test_what_says_that_all_are_there_is_written_again(tmp_path, fill):
    clean, told = fill(tmp_path / "q"), []
    (tmp_path / "q" / "complete" / "manifest.json").write_bytes(b"{")
    assert fill(tmp_path / "q", mend=told.append) == clean
    assert len(told) == 1 and told[0].startswith("it is written again: ")


def test_a_consumer_waits_for_what_was_dropped(tmp_path, fill):
    """It may get there before the producer does."""
    fill(tmp_path / "q")
    flip(tmp_path / "q" / "epoch-1" / "bulk-0")
    told, data = [], dataset()
    plan = SeedPlan(data.split.train, 4, 2, 0)
    meta = {"minibatches_per_epoch": plan.num_minibatches}
    queue = ZarrQueue.create(
        tmp_path / "q", fingerprint={"s": "1"}, bulk_size=2, max_bytes=1 << 30, keep="all", meta=meta, mend=told.append
    )
    with pytest.raises(TimeoutError):
        queue.get(1, 0, 0.0)
    draws = BulkDraws(data.graph, SAMPLER, plan, sampling_backend("cpu"))
    sample_bulks(draws, queue, BulkSpan(range(1, 2), plan.num_bulks))
    assert queue.get(1, 0, 0.0).index == 0
    assert len(told) == 1
