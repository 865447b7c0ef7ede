"""Runs whose minibatches lie on an object store: a queue between workers and ranks, and a store to train from many
times."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import millrace as mr
from millrace.pipeline import cli
from millrace.tests.contracts.s3_server import s3_server

BUCKET = "millrace"
DATASET = "sbm:nodes=300,classes=3,degree=6,features=5,train=0.5"
JOB = {"epochs": 2, "batch_size": 16, "fanout": [4, 3], "hidden": 8, "dtype": "float64", "threads": 1}
FLAGS = ("--dataset", DATASET, "--epochs", "2", "--batch-size", "16", "--fanout", "4,3")
TRAIN = ("--hidden", "8", "--dtype", "float64", "--set", "threads=1")
BULKS = 2 * 2
"""150 seeds are 10 minibatches an epoch, in bulks of 8, for 2 epochs."""


class Bucket:
    def __init__(self, client: Any) -> None:
        self.client = client

    def names(self, prefix: str) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        return {item["Key"].removeprefix(f"{prefix}/") for page in pages for item in page.get("Contents", [])}

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_server(BUCKET) as client:
        yield Bucket(client)


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """The command, in this process."""

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["millrace", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return call


def test_samples_on_an_object_store_train_what_live_samples_do(bucket, millrace, tmp_path):
    url = f"s3://{BUCKET}/samples"
    first = millrace("sample", *FLAGS, "--out", url, "--json")
    assert first.code == 0, first.err
    record = json.loads(first.out)
    assert (record["out"], record["minibatches"], record["bytes"]) == (url, 20, None)
    assert record["edges"] > 0
    assert f"20 minibatches of 2 epochs, in {url}" not in first.err
    assert f"20 minibatches of 2 epochs in {url}" in first.err
    shards = {f"epoch-{e}/bulk-{n}/manifest.json" for e in range(2) for n in range(2)}
    assert shards | {"manifest.json", "complete/manifest.json"} == {
        n for n in bucket.names("samples") if n.endswith("manifest.json")
    }

    live = mr.run(DATASET, out=tmp_path / "live", **JOB)
    trained = millrace("train", *FLAGS, *TRAIN, "--samples", url, "--out", tmp_path / "stored", "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["parameters_sha256"] == live.parameters_sha256

    seen = millrace("inspect", url, "--json")
    assert seen.code == 0, seen.err
    held = json.loads(seen.out)
    assert {k: held[k] for k in ("holds", "complete", "epochs", "bulks")} == {
        "holds": "sampled minibatches", "complete": True, "epochs": 2, "bulks": BULKS,
    }  # fmt: skip
    assert held["made from batch_size"] == "16"
    one = json.loads(millrace("inspect", url, "--minibatch", "1,9", "--json").out)
    assert (one["minibatch"], one["seeds"]) == ("epoch 1, index 9", 150 - 9 * 16)
    assert "holds no minibatch 2,0" in millrace("inspect", url, "--minibatch", "2,0").err


def test_sampling_on_an_object_store_goes_on_where_it_stopped(bucket, millrace, tmp_path):
    whole, url = f"s3://{BUCKET}/whole", f"s3://{BUCKET}/stopped"
    for out in (whole, url):
        assert millrace("sample", *FLAGS, "--out", out).code == 0
    # What a producer leaves that is killed between a bulk's data and its manifest.
    bucket.remove("stopped/complete/manifest.json")
    bucket.remove("stopped/epoch-1/bulk-0/manifest.json")
    refused = millrace("train", *FLAGS, *TRAIN, "--samples", url, "--out", tmp_path / "run")
    assert refused.code == 2
    assert "is not finished: epoch 1 has 1 of 2 bulks" in refused.err
    again = millrace("sample", *FLAGS, "--out", url, "--json")
    assert again.code == 0, again.err
    assert 0 < json.loads(again.out)["edges"] < sum(m.num_edges for m in mr.open_queue(whole))
    assert bucket.names("stopped") == bucket.names("whole")
    for a, b in zip(mr.open_queue(url), mr.open_queue(whole), strict=True):
        assert (a.epoch, a.index, a.num_edges) == (b.epoch, b.index, b.num_edges)
        assert a.nodes.tolist() == b.nodes.tolist()


def test_a_url_with_nothing_behind_it_is_refused(bucket, millrace, tmp_path):
    for words in (
        ("inspect", f"s3://{BUCKET}/nothing"),
        ("train", *FLAGS, "--samples", f"s3://{BUCKET}/nothing", "--out", tmp_path / "run"),
    ):
        said = millrace(*words)
        assert said.code == 2
        assert f"s3://{BUCKET}/nothing" in said.err
    said = millrace("sample", *FLAGS, "--out", "s3://no-such-bucket/samples")
    assert said.code == 2
    assert "no-such-bucket" in said.err
    url = f"s3://{BUCKET}/others"
    assert millrace("sample", *FLAGS, "--epochs", "1", "--out", url).code == 0
    said = millrace("sample", *FLAGS, "--epochs", "1", "--batch-size", "8", "--out", url)
    assert said.code == 2
    assert "batch_size" in said.err


@pytest.fixture(scope="module")
def scheduler(bucket, start_cluster) -> Iterator[str]:
    """The address of a scheduler whose workers know the object store."""
    with start_cluster(3) as address:
        yield address


@pytest.mark.slow
def test_two_ranks_share_a_queue_on_an_object_store(bucket, scheduler, tmp_path):
    queue = {"kind": "zarr", "keep": "all", "bulk_size": 3}
    job = {**JOB, "ranks": 2, "cluster": {"scheduler": scheduler}}
    local = mr.run(DATASET, out=tmp_path / "local", queue=queue, **job)
    url = f"s3://{BUCKET}/queue"
    far = mr.run(DATASET, out=tmp_path / "far", queue={**queue, "location": url}, **job)
    assert far.parameters_sha256 == local.parameters_sha256
    assert not (tmp_path / "far" / "queue").exists()
    for a, b in zip(mr.open_queue(url), mr.open_queue(tmp_path / "local" / "queue"), strict=True):
        assert (a.epoch, a.index, a.nodes.tolist()) == (b.epoch, b.index, b.nodes.tolist())
    # What the run kept is not marked complete, and holds all that is needed all the same.
    stored = mr.run(DATASET, out=tmp_path / "stored", samples=url, **{**job, "cluster": {"scheduler": scheduler}})
    assert stored.parameters_sha256 == local.parameters_sha256


@pytest.mark.slow
def test_a_queue_on_an_object_store_drops_what_is_done(bucket, scheduler, tmp_path):
    url = f"s3://{BUCKET}/dropped"
    mr.run(
        DATASET,
        out=tmp_path / "run",
        ranks=2,
        queue={"kind": "zarr", "location": url},
        cluster={"scheduler": scheduler},
        **JOB,
    )
    assert bucket.names("dropped") == {"manifest.json"}
