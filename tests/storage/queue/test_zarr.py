"""The queue on disk: the contract, and what a folder can suffer."""

import errno
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import zarr

from millrace.storage.errors import QueueTimeoutError, RunError, StoreError
from millrace.storage.queue import location
from millrace.storage.queue import zarr as module
from millrace.storage.queue.zarr import ZarrQueue
from millrace.tests.contracts.messages import make_bulk
from millrace.tests.contracts.queue import LONG_S, SHORT_S, K, MinibatchQueueTests, same

MADE_OF = {"graph": "g", "sampler": "s"}


def make(path, **options):
    return ZarrQueue.create(
        path, fingerprint=MADE_OF, **{"bulk_size": K, "max_bytes": 1 << 30, "keep": "all", **options}
    )


class TestZarrQueue(MinibatchQueueTests):
    def make(self, path, *, max_bytes=1 << 30, keep="none", consumers=1, per_epoch=None, bulk_size=K):
        meta = {"minibatches_per_epoch": per_epoch}
        return make(path, bulk_size=bulk_size, max_bytes=max_bytes, keep=keep, consumers=consumers, meta=meta)


@pytest.fixture
def filled(tmp_path):
    """A folder with two bulks of epoch 0, kept for ever."""
    queue = make(tmp_path / "samples", meta={"batch_size": 2})
    for n in range(2):
        queue.put(make_bulk(0, n, K), LONG_S)
    queue.close()
    return tmp_path / "samples"


def shard(folder, number=0):
    (file,) = [p for p in (folder / "epoch-0" / f"bulk-{number}" / "arrays" / "rows" / "c").rglob("*") if p.is_file()]
    return file


def test_keep_all_survives_release_and_process(filled):
    queue = make(filled)
    queue.release(5, 0)
    assert queue.committed(0) == {0, 1}
    again = ZarrQueue.open(filled, fingerprint=MADE_OF)
    assert again.bulk_size == K
    assert again.meta["batch_size"] == 2
    for i in range(2 * K):
        assert same(again.get(0, i, SHORT_S), make_bulk(0, i // K, K).minibatches[i % K])


def test_a_bulk_is_one_shard_in_one_folder(filled):
    assert shard(filled).stat().st_size > 0
    assert {p.name for p in (filled / "epoch-0").iterdir()} == {"bulk-0", "bulk-1"}


def test_a_resumed_producer_writes_only_what_is_missing(filled, monkeypatch):
    queue = make(filled)
    monkeypatch.setattr("millrace.storage.queue.zarr.pack_bulk", lambda bulk: pytest.fail("written again"))
    queue.put(make_bulk(0, 1, K), LONG_S)


def test_leftovers_of_a_killed_writer_are_swept_by_the_owner_only(filled):
    left = filled / "epoch-0" / ".writing-bulk-2-0badf00d"
    left.mkdir()
    make(filled, sweep=False)
    ZarrQueue.open(filled)
    assert left.exists()
    queue = make(filled)
    assert not left.exists()
    assert queue.committed(0) == {0, 1}
    left.mkdir()
    queue.finish()
    assert left.exists()
    queue.finish(sweep=True)
    assert not left.exists()


def test_bulks_of_an_earlier_life_are_dropped_once_passed(tmp_path):
    first = make(tmp_path / "q", keep="none")
    first.put(make_bulk(0, 0, K), LONG_S)
    first.put(make_bulk(0, 1, K, count=1), LONG_S)
    second = make(tmp_path / "q", keep="none", max_bytes=1)
    second.put(make_bulk(0, 2, K), SHORT_S)
    second.release(0, K)
    assert second.committed(0) == {2}


def test_a_damaged_bulk_of_an_earlier_life_is_dropped_like_a_full_one(tmp_path):
    make(tmp_path / "q", keep="none").put(make_bulk(0, 0, K, count=1), LONG_S)
    (tmp_path / "q/epoch-0/bulk-0/manifest.json").write_text("{")
    queue = make(tmp_path / "q", keep="none")
    queue.release(0, K - 2)
    assert queue.committed(0) == {0}
    queue.release(0, K - 1)
    assert queue.committed(0) == set()


def test_a_reader_of_a_growing_store_waits(filled):
    writer, reader = make(filled), ZarrQueue.open(filled)
    assert not reader.complete
    with pytest.raises(QueueTimeoutError, match="producer"):
        reader.get(0, 2 * K, SHORT_S)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(reader.get, 0, 2 * K, LONG_S)
        time.sleep(0.1)
        writer.put(make_bulk(0, 2, K), LONG_S)
        assert same(got.result(LONG_S), make_bulk(0, 2, K).minibatches[0])


def test_a_reader_of_a_finished_store_does_not_wait(filled):
    writer = make(filled)
    writer.finish()
    writer.finish()
    reader = ZarrQueue.open(filled)
    assert reader.complete
    with pytest.raises(StoreError, match=r"finished and holds no bulk 2 of epoch 0 .*\{'0': 2\}"):
        reader.get(0, 2 * K, LONG_S)


def test_a_finished_store_that_grows_again_is_unfinished(filled):
    writer = make(filled)
    writer.finish()
    writer.put(make_bulk(1, 0, K), LONG_S)
    assert not ZarrQueue.open(filled).complete
    writer.finish()
    assert ZarrQueue.open(filled).complete


def test_a_reader_writes_nothing(filled):
    reader = ZarrQueue.open(filled)
    with pytest.raises(AssertionError, match="opened to read"):
        reader.put(make_bulk(0, 2, K), LONG_S)
    with pytest.raises(AssertionError, match="opened to read"):
        reader.finish()
    reader.release(9, 9)
    assert reader.committed(0) == {0, 1}


def test_refuses_samples_of_something_else(filled):
    with pytest.raises(StoreError, match=r"differ: sampler \(store s, wanted t\)"):
        ZarrQueue.create(filled, fingerprint={**MADE_OF, "sampler": "t"}, bulk_size=K, max_bytes=1)
    with pytest.raises(StoreError, match="sampler"):
        ZarrQueue.open(filled, fingerprint={**MADE_OF, "sampler": "t"})
    with pytest.raises(StoreError, match=r"bulk_size \(store 3, wanted 4\)"):
        make(filled, bulk_size=4)


def test_refuses_what_is_no_queue(tmp_path):
    with pytest.raises(StoreError, match="manifest"):
        ZarrQueue.open(tmp_path / "nothing")
    (tmp_path / "mine").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        make(tmp_path / "mine")


def test_two_processes_may_make_the_folder(tmp_path, monkeypatch):
    """The other one commits between this one's look and its rename."""
    real = location.committed_folder

    def late(path, **options):
        monkeypatch.setattr(location, "committed_folder", real)
        make(path)
        return real(path, **options)

    monkeypatch.setattr(location, "committed_folder", late)
    assert make(tmp_path / "q").committed(0) == set()


def test_two_producers_may_write_one_bulk(tmp_path, monkeypatch):
    first, second = make(tmp_path / "q"), make(tmp_path / "q", sweep=False)
    real = location.write_arrays

    def late(*args, **options):
        monkeypatch.setattr(location, "write_arrays", real)
        second.put(make_bulk(0, 0, K), LONG_S)
        return real(*args, **options)

    monkeypatch.setattr(location, "write_arrays", late)
    first.put(make_bulk(0, 0, K), LONG_S)
    assert {p.name for p in (tmp_path / "q/epoch-0").iterdir()} == {"bulk-0"}
    assert same(first.get(0, 1, SHORT_S), make_bulk(0, 0, K).minibatches[1])


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    queue = make(tmp_path / "q", max_bytes=1)
    monkeypatch.setattr(location, "write_arrays", full)
    with pytest.raises(RunError, match=r"cannot write bulk 0 of epoch 0 .*No space left"):
        queue.put(make_bulk(0, 0, K), LONG_S)
    assert list((tmp_path / "q/epoch-0").iterdir()) == []
    monkeypatch.undo()
    queue.put(make_bulk(0, 1, K), SHORT_S)
    monkeypatch.setattr(location, "write_manifest", full)
    with pytest.raises(RunError, match=r"cannot finish .*No space left"):
        queue.finish()
    assert not queue.complete


def test_every_flipped_bit_is_seen(filled):
    """Wherever it is in the shard: the damaged minibatch is refused, and no other is wrong."""
    file = shard(filled)
    good = file.read_bytes()
    want = make_bulk(0, 0, K).minibatches
    for at in range(0, len(good), max(1, len(good) // 25)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        file.write_bytes(bad)
        refused = 0
        for i in range(K):
            try:
                assert same(ZarrQueue.open(filled).get(0, i, SHORT_S), want[i])
            except StoreError:
                refused += 1
        assert refused >= 1, f"byte {at} of {len(good)}"


@pytest.mark.parametrize("left", [0, 10, 0.5])
def test_a_truncated_shard_is_refused(filled, left):
    file = shard(filled)
    data = file.read_bytes()
    file.write_bytes(data[: int(left * len(data)) if isinstance(left, float) else left])
    with pytest.raises(StoreError, match="bulk-0"):
        ZarrQueue.open(filled).get(0, 0, SHORT_S)


@pytest.mark.parametrize(("consumers", "most_bytes", "reads"), [(1, 1 << 20, 1), (2, 1 << 20, K), (1, 1, K)])
def test_a_bulk_is_read_once_by_the_only_consumer(filled, monkeypatch, consumers, most_bytes, reads):
    """Unless it is large: then row by row, as where several ranks take rows in turns."""
    seen, real = [], zarr.Array.__getitem__
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda self, rows: seen.append(rows) or real(self, rows))
    monkeypatch.setattr(module, "WHOLE_BYTES", most_bytes)
    reader = ZarrQueue.open(filled, consumers=consumers)
    for i, want in enumerate(make_bulk(0, 0, K).minibatches):
        assert same(reader.get(0, i, SHORT_S), want)
    assert len(seen) == reads


def test_a_missing_shard_is_never_zeros(filled):
    reader = ZarrQueue.open(filled, consumers=2)
    reader.get(0, 0, SHORT_S)
    shard(filled).unlink()
    with pytest.raises(StoreError, match="magic number"):
        reader.get(0, 1, SHORT_S)
    with pytest.raises(StoreError, match="lacks 1 of its"):
        ZarrQueue.open(filled).get(0, 0, SHORT_S)


def test_a_missing_or_changed_manifest_is_refused(filled):
    manifest = filled / "epoch-0/bulk-0/manifest.json"
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**body, "meta": {"first_index": 0, "last_index": 1}}))
    with pytest.raises(StoreError, match="checksum"):
        ZarrQueue.open(filled).get(0, 0, SHORT_S)
    manifest.unlink()
    with pytest.raises(StoreError, match=r"holds no manifest\.json"):
        ZarrQueue.open(filled).get(0, 0, SHORT_S)


def test_a_bulk_in_the_wrong_place_is_refused(filled):
    shutil.copytree(filled / "epoch-0/bulk-0", filled / "epoch-0/bulk-7")
    with pytest.raises(StoreError, match=r"holds \(epoch, index\) \(0, 0\); expected \(0, 21\)"):
        ZarrQueue.open(filled).get(0, 7 * K, SHORT_S)


def test_only_a_few_bulks_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.storage.queue.zarr.OPENED_BULKS", 2)
    queue = make(tmp_path / "q")
    for n in range(4):
        queue.put(make_bulk(0, n, K), LONG_S)
    for i in (0, 3, 6, 9, 0):
        assert queue.get(0, i, SHORT_S).index == i
    assert len(queue._opened) == 2


def test_iterating_gives_every_minibatch_in_order(filled):
    writer = make(filled)
    for key in [(1, 1), (1, 0), (0, 10)]:
        writer.put(make_bulk(*key, K), LONG_S)
    shutil.rmtree(filled / "epoch-0" / "bulk-10")
    want = [m for key in [(0, 0), (0, 1), (1, 0), (1, 1)] for m in make_bulk(*key, K).minibatches]
    for _ in range(2):
        seen = list(ZarrQueue.open(filled))
        assert len(seen) == len(want)
        assert all(map(same, seen, want))
        writer.finish()
    shutil.rmtree(filled / "epoch-0" / "bulk-1")
    with pytest.raises(StoreError, match="bulk-1"):
        list(ZarrQueue.open(filled))
