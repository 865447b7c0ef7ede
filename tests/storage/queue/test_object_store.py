"""The queue on an object store: the contract against a real S3 server, and what a network and a bucket can suffer."""

import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import obstore
import pytest
from moto.moto_server.werkzeug_app import MotoRequestHandler
from moto.server import ThreadedMotoServer

from millrace.storage.errors import MissingExtraError, QueueTimeoutError, RunError, StoreError
from millrace.storage.minibatch import Block, Bulk, MiniBatch
from millrace.storage.queue import object_store
from millrace.storage.queue.object_store import ObjectQueue, is_url, queue_at
from millrace.storage.queue.zarr import ZarrQueue
from millrace.tests.contracts.messages import make_bulk
from millrace.tests.contracts.queue import LONG_S, SHORT_S, K, MinibatchQueueTests, same
from millrace.tests.contracts.s3_server import s3_server

MADE_OF = {"graph": "g", "sampler": "s"}
BUCKET = "bucket"
BULK = "epoch-0/bulk-0"
SHARD = f"{BULK}/arrays/rows/c/0/0"


def serve():
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    return server, "http://{}:{}".format(*server.get_host_and_port())


@pytest.fixture(scope="module")
def wire():
    """Requests that reached the server: (method, path, range)."""
    return []


@pytest.fixture(scope="module", autouse=True)
def s3(wire):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            MotoRequestHandler,
            "log_request",
            lambda self, *_: wire.append((self.command, self.path, self.headers.get("Range"))),
        )
        with s3_server(BUCKET) as client:
            yield client


class Objects:
    """The objects below a URL, past everything that is tested."""

    def __init__(self, client, url):
        self.client, self.url, self.prefix = client, url, url.removeprefix(f"s3://{BUCKET}/") + "/"

    def names(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix)
        return {item["Key"].removeprefix(self.prefix) for page in pages for item in page.get("Contents", [])}

    def __getitem__(self, key):
        return self.client.get_object(Bucket=BUCKET, Key=self.prefix + key)["Body"].read()

    def __setitem__(self, key, value):
        self.client.put_object(Bucket=BUCKET, Key=self.prefix + key, Body=bytes(value))

    def __delitem__(self, key):
        self.client.delete_object(Bucket=BUCKET, Key=self.prefix + key)


def make(url, **options):
    return ObjectQueue.create(
        url, fingerprint=MADE_OF, **{"bulk_size": K, "max_bytes": 1 << 30, "keep": "all", **options}
    )


def read(url):
    return ObjectQueue.open(url, fingerprint=MADE_OF)


class TestOnS3(MinibatchQueueTests):
    def make(self, path, *, max_bytes=1 << 30, keep="none", consumers=1, per_epoch=None, bulk_size=K):
        meta = {"minibatches_per_epoch": per_epoch}
        return make(
            f"s3://{BUCKET}{path}", bulk_size=bulk_size, max_bytes=max_bytes, keep=keep, consumers=consumers, meta=meta
        )


class TestInMemory(MinibatchQueueTests):
    def make(self, path, *, max_bytes=1 << 30, keep="none", consumers=1, per_epoch=None, bulk_size=K):
        meta = {"minibatches_per_epoch": per_epoch}
        return make("memory:///", bulk_size=bulk_size, max_bytes=max_bytes, keep=keep, consumers=consumers, meta=meta)


@pytest.fixture
def empty(s3, tmp_path):
    """Objects of a prefix of its own, where nothing is yet."""
    return Objects(s3, f"s3://{BUCKET}{tmp_path}")


@pytest.fixture
def filled(empty):
    """The objects of a store with two bulks of epoch 0, kept for ever."""
    queue = make(empty.url, meta={"batch_size": 2})
    for n in range(2):
        queue.put(make_bulk(0, n, K), LONG_S)
    queue.close()
    return empty


def test_the_objects_are_the_files_of_a_folder(filled, tmp_path):
    folder = ZarrQueue.create(
        tmp_path / "q", fingerprint=MADE_OF, bulk_size=K, max_bytes=1 << 30, keep="all", meta={"batch_size": 2}
    )
    for n in range(2):
        folder.put(make_bulk(0, n, K), LONG_S)
    make(filled.url).finish()
    folder.finish()
    files = {str(p.relative_to(tmp_path / "q")): p.read_bytes() for p in (tmp_path / "q").rglob("*") if p.is_file()}
    assert SHARD in files
    assert {key: filled[key] for key in filled.names()} == files


def test_a_store_in_a_folder_by_url(tmp_path):
    url = f"file://{tmp_path}"
    queue = make(url)
    queue.put(make_bulk(0, 0, K), LONG_S)
    queue.finish()
    for reader in (ObjectQueue.open(url), ZarrQueue.open(tmp_path)):
        assert [m.index for m in reader] == [0, 1, 2]
    (tmp_path / SHARD).write_bytes((tmp_path / SHARD).read_bytes()[:40])
    with pytest.raises(StoreError, match=r"bulk-0: minibatch 0 is damaged"):
        ObjectQueue.open(url).get(0, 0, SHORT_S)


def test_kept_for_other_processes(filled):
    queue = make(filled.url)
    queue.release(5, 0)
    assert queue.committed(0) == {0, 1}
    again = read(filled.url)
    assert (again.bulk_size, again.meta["batch_size"], again.epochs()) == (K, 2, [0])
    for i in range(2 * K):
        assert same(again.get(0, i, SHORT_S), make_bulk(0, i // K, K).minibatches[i % K])


def test_a_resumed_producer_writes_only_what_is_missing(filled, wire):
    queue = make(filled.url, sweep=False)
    wire.clear()
    queue.put(make_bulk(0, 1, K), LONG_S)
    assert {method for method, _, _ in wire} == {"HEAD"}


def test_the_manifest_is_written_last(empty, wire):
    queue = make(empty.url)
    wire.clear()
    queue.put(make_bulk(0, 0, K), LONG_S)
    written = [path.partition("/epoch-0/bulk-0/")[2] for method, path, _ in wire if method == "PUT"]
    assert len(written) == 4
    assert written[-1] == "manifest.json"


@pytest.mark.parametrize("after", range(4))
def test_a_killed_put_is_invisible_and_written_over(empty, monkeypatch, after):
    queue, real, puts = make(empty.url), obstore.put, iter(range(10))

    def put(*args, **options):
        if next(puts) == after:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(obstore, "put", put)
    with pytest.raises(KeyboardInterrupt):
        queue.put(make_bulk(0, 0, K), LONG_S)
    monkeypatch.undo()
    assert len(empty.names()) == after + 1
    reader = read(empty.url)
    assert reader.committed(0) == set()
    assert list(reader) == []
    with pytest.raises(QueueTimeoutError):
        reader.get(0, 0, SHORT_S)
    if after:
        empty[next(k for k in empty.names() if k != "manifest.json")] = b"half"
    make(empty.url, sweep=False).put(make_bulk(0, 0, K), LONG_S)
    assert same(reader.get(0, 1, SHORT_S), make_bulk(0, 0, K).minibatches[1])


def test_leftovers_of_a_killed_writer_are_swept_by_the_owner_only(filled):
    whole = filled.names()
    filled["epoch-0/bulk-7/arrays/rows/c/0/0"] = b"half"
    filled["mine/arrays/zarr.json"] = b"of somebody else"
    make(filled.url, sweep=False)
    read(filled.url)
    assert len(filled.names()) == len(whole) + 2
    make(filled.url)
    assert filled.names() == whole | {"mine/arrays/zarr.json"}


def test_a_dropped_bulk_leaves_no_objects_and_its_manifest_goes_first(empty, monkeypatch):
    queue = make(empty.url, keep="none")
    queue.put(make_bulk(0, 0, K), LONG_S)
    real, deleted = obstore.delete, []
    monkeypatch.setattr(obstore, "delete", lambda store, keys: (deleted.append(keys), real(store, keys)))
    queue.release(0, K - 1)
    assert empty.names() == {"manifest.json"}
    assert deleted[0] == [f"{BULK}/manifest.json"]


def test_bulks_of_an_earlier_life_are_dropped_once_passed(empty):
    first = make(empty.url, keep="none")
    first.put(make_bulk(0, 0, K), LONG_S)
    first.put(make_bulk(0, 1, K, count=1), LONG_S)
    second = make(empty.url, keep="none", max_bytes=1)
    second.put(make_bulk(0, 2, K), SHORT_S)
    second.release(0, K)
    assert second.committed(0) == {2}


def test_a_minibatch_is_read_by_the_ranges_of_the_index_and_one_chunk(empty, wire):
    queue = make(empty.url, bulk_size=16)
    queue.put(make_bulk(0, 0, 16, nodes=3000), LONG_S)
    size = len(empty[SHARD])
    reader = read(empty.url)
    reader.get(0, 0, SHORT_S)
    wire.clear()
    assert same(reader.get(0, 9, SHORT_S), make_bulk(0, 0, 16, nodes=3000).minibatches[9])
    assert [(method, path.endswith(SHARD)) for method, path, _ in wire] == [("GET", True)] * 2
    index, chunk = (wanted.removeprefix("bytes=") for _, _, wanted in wire)
    start, end = map(int, chunk.split("-"))
    assert int(index.removeprefix("-")) <= 16 * 16 + 4
    assert 0 < end - start + 1 < size / 8


def test_a_large_shard_is_put_in_parts(empty, wire):
    edges = 1_600_000
    weight = np.random.default_rng(0).random(edges, np.float32)
    block = Block(1, np.array([7]), np.array([0, edges], np.int32), np.zeros(edges, np.int32), weight)
    queue, bulk = make(empty.url), Bulk(0, 0, (MiniBatch(0, 0, (block,), nested=False),))
    wire.clear()
    queue.put(bulk, LONG_S)
    assert sum("uploadId" in path and "partNumber" in path for _, path, _ in wire) >= 2
    assert same(read(empty.url).get(0, 0, SHORT_S), bulk.minibatches[0])


def test_a_waiting_reader_asks_a_few_times_a_second(filled, wire):
    reader = read(filled.url)
    wire.clear()
    with pytest.raises(QueueTimeoutError, match="producer"):
        reader.get(0, 2 * K, 0.7)
    assert 4 <= len(wire) <= 14, "two requests (the bulk, the end) at each look: at most at 0, 0.2, 0.4, 0.6 and 0.7 s"


def test_a_reader_of_a_growing_store_waits(filled):
    writer, reader = make(filled.url), read(filled.url)
    assert not reader.complete
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(reader.get, 0, 2 * K, LONG_S)
        time.sleep(0.1)
        writer.put(make_bulk(0, 2, K), LONG_S)
        assert same(got.result(LONG_S), make_bulk(0, 2, K).minibatches[0])


def test_a_finished_store_is_whole_until_it_grows(filled):
    writer = make(filled.url)
    writer.finish()
    writer.finish()
    reader = read(filled.url)
    assert reader.complete
    assert [m.index for m in reader] == list(range(2 * K))
    with pytest.raises(StoreError, match=r"finished and holds no bulk 2 of epoch 0 .*\{'0': 2\}"):
        reader.get(0, 2 * K, LONG_S)
    writer.put(make_bulk(1, 0, K), LONG_S)
    assert not read(filled.url).complete


def test_refuses_samples_of_something_else(filled):
    with pytest.raises(StoreError, match=r"differ: sampler \(store s, wanted t\)"):
        ObjectQueue.open(filled.url, fingerprint={**MADE_OF, "sampler": "t"})
    with pytest.raises(StoreError, match=r"bulk_size \(store 3, wanted 4\)"):
        make(filled.url, bulk_size=4)


def test_refuses_what_is_no_queue(empty):
    with pytest.raises(StoreError, match=r"^s3://bucket/.* holds no manifest\.json"):
        read(empty.url)


def test_the_first_of_two_makers_is_kept(empty, monkeypatch):
    """The other one commits between this one's look and its put."""
    real = obstore.put

    def late(*args, **options):
        monkeypatch.setattr(obstore, "put", real)
        ObjectQueue.create(empty.url, fingerprint={"graph": "another"}, bulk_size=K, max_bytes=1)
        return real(*args, **options)

    monkeypatch.setattr(obstore, "put", late)
    with pytest.raises(StoreError, match=r"graph \(store another, wanted g\)"):
        make(empty.url)


def test_servers_without_conditional_puts(empty, monkeypatch):
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    make(empty.url).put(make_bulk(0, 0, K), LONG_S)
    assert read(empty.url).get(0, 0, SHORT_S).index == 0


@pytest.mark.parametrize("before", range(4))
def test_two_producers_may_write_one_bulk(empty, monkeypatch, before):
    """The second writes the whole bulk before one of the four objects of the first."""
    first, second = make(empty.url), make(empty.url, sweep=False)
    real, puts = obstore.put, iter(range(10))

    def put(*args, **options):
        if next(puts) == before:
            second.put(make_bulk(0, 0, K), LONG_S)
        return real(*args, **options)

    monkeypatch.setattr(obstore, "put", put)
    first.put(make_bulk(0, 0, K), LONG_S)
    assert next(puts) == 8, "both wrote four objects"
    assert same(read(empty.url).get(0, 1, SHORT_S), make_bulk(0, 0, K).minibatches[1])
    assert read(empty.url).committed(0) == {0}


def test_two_producers_race_for_every_bulk(empty):
    queues, start = [make(empty.url, sweep=False) for _ in range(2)], threading.Barrier(2)

    def produce(queue):
        for n in range(4):
            start.wait(LONG_S)
            queue.put(make_bulk(0, n, K), LONG_S)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(produce, q) for q in queues]:
            future.result(LONG_S)
    want = [m for n in range(4) for m in make_bulk(0, n, K).minibatches]
    assert all(map(same, read(empty.url), want))
    assert len(list(read(empty.url))) == len(want)


def test_every_flipped_bit_is_seen(filled):
    """Wherever it is in the shard: the damaged minibatch is refused, and no other is wrong."""
    good, want = filled[SHARD], make_bulk(0, 0, K).minibatches
    for at in range(0, len(good), max(1, len(good) // 6)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        filled[SHARD] = bad
        refused = 0
        for i in range(K):
            try:
                assert same(read(filled.url).get(0, i, SHORT_S), want[i])
            except StoreError:
                refused += 1
        assert refused >= 1, f"byte {at} of {len(good)}"


@pytest.mark.parametrize("left", [0, 10, 0.5])
def test_a_truncated_shard_is_refused(filled, left):
    data = filled[SHARD]
    filled[SHARD] = data[: int(left * len(data)) if isinstance(left, float) else left]
    with pytest.raises(StoreError, match="bulk-0"):
        read(filled.url).get(0, 0, SHORT_S)


def test_a_missing_shard_is_never_zeros(filled):
    reader = read(filled.url)
    reader.get(0, 0, SHORT_S)
    del filled[SHARD]
    with pytest.raises(StoreError, match="magic number"):
        reader.get(0, 1, SHORT_S)
    with pytest.raises(StoreError, match="lacks 1 of its"):
        read(filled.url).get(0, 0, SHORT_S)


def test_missing_or_other_array_documents_are_refused(filled):
    key = f"{BULK}/arrays/rows/zarr.json"
    document = json.loads(filled[key])
    filled[key] = json.dumps({**document, "data_type": "float32", "fill_value": 0.0}).encode()
    with pytest.raises(StoreError, match="the manifest says"):
        read(filled.url).get(0, 0, SHORT_S)
    del filled[key]
    with pytest.raises(StoreError, match="'rows' cannot be opened"):
        read(filled.url).get(0, 0, SHORT_S)


def test_another_manifest_is_refused(filled):
    manifest = f"{BULK}/manifest.json"
    body = json.loads(filled[manifest])
    for text, message in [
        (json.dumps({**body, "meta": {"first_index": 0, "last_index": 1}}).encode(), "checksum"),
        (filled["manifest.json"], "holds 'millrace-samples'; expected 'millrace-bulk'"),
        (json.dumps({**body, "schema_version": 99}).encode(), "schema version 99"),
        (b"{", "damaged"),
    ]:
        filled[manifest] = text
        with pytest.raises(StoreError, match=message):
            read(filled.url).get(0, 0, SHORT_S)


def test_a_bulk_in_the_wrong_place_is_refused(filled):
    for key in filled.names():
        if key.startswith(f"{BULK}/"):
            filled[key.replace("bulk-0", "bulk-7")] = filled[key]
    with pytest.raises(StoreError, match=r"holds \(epoch, index\) \(0, 0\); expected \(0, 21\)"):
        read(filled.url).get(0, 7 * K, SHORT_S)


def test_a_missing_bucket_is_a_sentence():
    for use in (make, read):
        with pytest.raises(
            StoreError, match=r"^s3://no-such-bucket/q cannot be used .*NoSuchBucket.*see that the bucket"
        ) as caught:
            use("s3://no-such-bucket/q")
        assert "\n" not in str(caught.value)


@pytest.fixture
def answer(monkeypatch):
    """An endpoint that answers every request with one status."""
    servers = []

    def start(status):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_PUT = do_GET  # noqa: N815

            def log_message(self, *args):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{servers[-1].server_port}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refusal_is_the_users_to_mend(answer, status):
    answer(status)
    for use in (make, read):
        with pytest.raises(StoreError, match=rf"s3://bucket/q cannot be used .*{status}.*keys in the environment"):
            use("s3://bucket/q")


def test_a_server_at_fault_may_answer_later(answer):
    answer(503)
    with pytest.raises(RunError, match=r"s3://bucket/q does not answer .*503.*AWS_ENDPOINT_URL"):
        read("s3://bucket/q")


def test_an_endpoint_where_nobody_listens(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    start = time.monotonic()
    with pytest.raises(RunError, match="s3://bucket/q does not answer"):
        make("s3://bucket/q")
    assert time.monotonic() - start < 120


def test_an_endpoint_that_never_answers_is_given_up(monkeypatch):
    assert object_store.REQUEST_TIMEOUT_S + object_store.RETRY_TIMEOUT_S < 30
    monkeypatch.setattr(object_store, "REQUEST_TIMEOUT_S", 1)
    monkeypatch.setattr(object_store, "RETRY_TIMEOUT_S", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(RunError, match="does not answer"):
            make("s3://bucket/q")
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # a request of 1 s is not begun again after 1 s
            silent.accept()


def test_an_endpoint_without_tls_must_be_allowed(monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError, match=r"cannot be used .*AWS_ALLOW_HTTP"):
        read(f"s3://{BUCKET}/q")


def test_a_server_that_goes_away_in_mid_run(filled, monkeypatch):
    server, endpoint = serve()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    writer, reader = make(filled.url), read(filled.url)
    reader.get(0, 0, SHORT_S)
    real = obstore.put

    def goes(*args, **options):
        monkeypatch.setattr(obstore, "put", real)
        server.stop()
        server._server.server_close()
        return real(*args, **options)

    monkeypatch.setattr(obstore, "put", goes)
    with pytest.raises(
        RunError, match=r"cannot write bulk 2 of epoch 0 .*does not answer.*then resume: what is there is kept"
    ):
        writer.put(make_bulk(0, 2, K), LONG_S)
    for act in (
        lambda: reader.get(0, 1, LONG_S),  # of an opened bulk
        lambda: reader.get(0, K, LONG_S),
        lambda: reader.committed(0),
        lambda: writer.put(make_bulk(0, 3, K), LONG_S),
        writer.finish,
    ):
        with pytest.raises(RunError, match="does not answer"):
            act()


@pytest.mark.parametrize("url", ["ftp://host/q", "s3://", "file:///no/such/folder"])
def test_a_url_that_is_not_usable(url):
    with pytest.raises(StoreError, match="cannot be used"):
        make(url)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"s3://bucket/q needs obstore.*\.\[cloud\]"):
        read("s3://bucket/q")


def test_a_location_is_a_url_or_a_path(filled, tmp_path):
    assert [is_url(x) for x in ("s3://b/q", "memory:///", "runs/x", "/a/b://c", Path("runs"))] == [
        True,
        True,
        False,
        False,
        False,
    ]
    for location in (filled.url, str(tmp_path / "q"), tmp_path / "q"):
        queue = queue_at(location).create(location, fingerprint=MADE_OF, bulk_size=K, max_bytes=1 << 20, keep="all")
        queue.put(make_bulk(0, 0, K), LONG_S)
        queue.close()
        assert same(
            queue_at(location).open(location, fingerprint=MADE_OF).get(0, 1, SHORT_S), make_bulk(0, 0, K).minibatches[1]
        )
    assert queue_at(filled.url) is ObjectQueue
    assert queue_at(tmp_path) is ZarrQueue
