"""Files of predictions by a command that is killed: nothing is seen of them, and the same command writes them."""

import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import millrace as mr
from millrace.pipeline import cli
from millrace.pipeline.inference import by_tasks, files
from millrace.pipeline.inference.predictions import Predictions
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_command import run_forked

SOURCE = "sbm:nodes=80,classes=3,degree=6,features=5,train=0.3"
OPTIONS = {"epochs": 1, "hidden": 8, "layers": 2, "threads": 1, "fanout": [3, 3], "batch_size": 30}
KINDS = [
    *[("classes", suffix) for suffix in (".parquet", ".csv", ".npy", ".zarr")],
    ("embeddings", ".parquet"),
    ("embeddings", ".npy"),
    ("pairs", ".csv"),
    *[("best", suffix) for suffix in (".parquet", ".csv", ".npy", ".zarr")],
]
"""Contents and suffix of each file that is written."""
PROGRAM = "millrace.tests.pipeline.inference.test_files"
"""This file, as a forked command finds it."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a run of classes, one of links, and pairs."""
    folder = tmp_path_factory.mktemp("world")
    mr.run(SOURCE, out=folder / "classes", **OPTIONS)
    mr.run(SOURCE, out=folder / "pairs", task="link", **OPTIONS)
    (folder / "pairs.csv").write_text("src,dst\n0,1\n7,3\n")
    return folder


def main() -> None:
    """The command, killed when its file is complete and not yet in its place; a Zarr group at its first file; with
    workers, when all layers are computed."""

    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if "--workers" in sys.argv:
        by_tasks.FileLayers.result = killed
    else:
        replace = os.replace

        def put(aside, path):
            if ".writing-" in str(aside):  # compiled kernels are saved by `os.replace` too
                killed()
            replace(aside, path)

        files.os.replace = put
    cli.main()


def content(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of all files of a folder."""
    found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return {str(p.relative_to(path)): p.read_bytes() for p in found}


def words(world: Path, what: str, out: Path, *more: str) -> list[str | Path]:
    of = {"embeddings": ["--embeddings"], "pairs": ["--pairs", world / "pairs.csv"], "best": ["--top", "3"]}
    run = world / ("pairs" if what in ("pairs", "best") else "classes")
    return ["predict", run, "--out", out, *of.get(what, []), *more]


@pytest.mark.parametrize(("what", "suffix"), KINDS)
def test_after_a_kill_the_same_command_writes_the_same_file(what, suffix, world, tmp_path):
    (folder := tmp_path / "killed").mkdir()
    out = folder / f"p{suffix}"
    assert run_forked(*words(world, what, out), program=PROGRAM, forks_workers=False)[0] == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.name.startswith(".writing-p."), "nothing is seen at the file's place"
    whole = tmp_path / f"whole{suffix}"
    for path in (out, whole):
        code, _, err = command(*words(world, what, path))
        assert code == 0, err
    assert content(out) == content(whole)
    assert list(folder.iterdir()) == [out], "what the killed command left is removed"


@pytest.mark.usefixtures("forked_workers")
def test_with_workers_too(world, tmp_path):
    out, more = tmp_path / "p.npy", ("--workers", "2")
    assert run_forked(*words(world, "classes", out, *more), program=PROGRAM)[0] == -signal.SIGKILL
    assert len(list((world / "classes").glob(".writing-layers-*"))) == 1 and not out.exists()
    code, _, err = command(*words(world, "classes", out, *more))
    assert code == 0, err
    mr.predict(world / "classes").to_npy(tmp_path / "whole.npy")
    assert content(out) == content(tmp_path / "whole.npy") and not list(tmp_path.glob(".*"))
    assert not list((world / "classes").glob(".writing-*"))


def test_a_zarr_that_is_replaced_is_whole_at_any_time(tmp_path, monkeypatch):
    """The old one is renamed before anything in it is removed."""
    seen = Predictions(np.array([0]), np.zeros((1, 2), np.float32))
    seen.to_zarr(tmp_path / "p.zarr")
    before = content(tmp_path / "p.zarr")
    replace, looks = os.replace, []

    def looked(aside, path):
        if path == tmp_path / "p.zarr":
            assert not path.exists() and content(aside.parent / "before") == before
            looks.append(path)
        replace(aside, path)

    monkeypatch.setattr(files.os, "replace", looked)
    seen.to_zarr(tmp_path / "p.zarr")
    assert looks and content(tmp_path / "p.zarr") == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet", ".zarr"])
def test_a_disk_that_fills_ends_no_process(tmp_path, suffix):
    """A file that may not grow is as a full disk; numpy's map of one would end the process by a signal."""
    count = 1 << 14
    seen = Predictions(np.arange(count), np.random.default_rng(0).standard_normal((count, 3)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 13, limits[1]))
    try:
        with pytest.raises(mr.InputError, match="cannot be written: File too large; choose another place, or free"):
            seen.write(tmp_path / f"p{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_names_of_no_rows_are_text_in_a_zarr(tmp_path):
    nothing = Predictions(np.empty(0, np.int64), np.empty((0, 2)), node_names=np.array([], object))
    nothing.write(tmp_path / "p.zarr")
    assert zarr.open_group(str(tmp_path / "p.zarr"), mode="r")["node"].shape == (0,)


def test_a_folder_that_is_missing_is_not_made(tmp_path):
    with pytest.raises(mr.InputError, match=r"none is not a folder"):
        Predictions(np.array([0]), np.zeros((1, 2))).to_npy(tmp_path / "none" / "p.npy")
    assert not list(tmp_path.iterdir())
