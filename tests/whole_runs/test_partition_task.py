"""Parts that Dask tasks write are the parts that this process writes."""

import hashlib
import subprocess
import sys

import pytest
from distributed import Client

import millrace as mr
from millrace.pipeline.partition_task import parts_by

SBM = "sbm:nodes=2000,classes=4,train=0.4"


def millrace(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "millrace.pipeline", "partition", SBM, "--parts", "3", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def digests(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_parts_are_the_same_and_nothing_else_is_left(tmp_path):
    here = millrace("--out", tmp_path / "here")
    there = millrace(
        "--out", tmp_path / "there", "--set", "executor=dask", "--set", "cluster.producers=2", "--set", "cluster.dashboard_port=0"
    )
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert "dashboard: http://127.0.0.1" in there.stderr
    assert len(digests(tmp_path / "here")) > 10
    assert digests(tmp_path / "here") == digests(tmp_path / "there")


@pytest.mark.parametrize("key", ["cluster.producers=0", "cluster.scheduler=tcp://10.9.9.9:1"])
def test_what_cannot_be_is_refused(tmp_path, key):
    done = millrace("--out", tmp_path / "out", "--set", "executor=dask", "--set", key)
    assert done.returncode == 2
    assert key.partition("=")[0] in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_part_that_cannot_be_made_is_a_sentence(scheduler, tmp_path):
    """The workers find no dataset."""
    with Client(scheduler) as client, pytest.raises(mr.RunError, match=r"^partitioning failed: StoreError: .*none.*--resume"):
        list(parts_by(client, tmp_path, tmp_path / "none", [0, 1], {}))
