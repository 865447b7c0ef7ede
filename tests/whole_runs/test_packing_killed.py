"""Packing that is killed, or whose features are cut short in its midst: the same command goes on to the same bits."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.pipeline import cli, packing
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.telemetry.events import silent
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import RunError, StoreError
from millrace.storage.queue.packed_rows import RowWriter
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_command import run_forked
from millrace.tests.pipeline.test_packing import JOB as WITH_DATASET

PROGRAM = "millrace.tests.whole_runs.test_packing_killed"
"""This file, as a forked command finds it."""
SOURCE = WITH_DATASET["dataset"]
JOB: dict[str, Any] = {k: v for k, v in WITH_DATASET.items() if k != "dataset"}
DIES = ("seeds-0", "rows-0", "rows-7", "rows-20", "commit-1", "commit-4")
"""Where a command is killed: before so many writes of rows, commits of a bulk's rows, or the commit of the seeds."""


def main() -> None:
    """`millrace sample`, killed as its last word says."""
    what, number = sys.argv.pop().split("-")
    packing.MOST_BULKS, packing.WINDOW_BYTES = 2, 1 << 11
    left, add, replace = [int(number)], RowWriter.add, os.rename

    def count(is_one: bool) -> None:
        left[0] -= is_one
        if is_one and left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def adding(*args: Any) -> None:
        count(what == "rows")
        add(*args)

    def moving(source: Any, target: Any, **more: Any) -> None:
        name = Path(target).name
        count((what == "commit" and name.startswith("rows-")) or (what == "seeds" and name == "seeds"))
        replace(source, target, **more)

    RowWriter.add, os.rename = adding, moving
    cli.main()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "data"
    write_dataset(path, mr.open_dataset(SOURCE), features_format="npy", graph_format="npy")
    return path


def sampled(store: Path, out: Path | str) -> list[str | Path]:
    keys = ("epochs=2", "threads=1", "queue.bulk_size=3", "train.batch_size=16", "sampler.fanout=[4,3]")
    words = [word for key in keys for word in ("--set", key)]
    return ["sample", "--dataset", store, "--features", "--out", out, *words]


def trained(samples: Path | str, out: Path) -> str:
    return mr.run(samples=samples, out=out, verbose=False, config=JOB).parameters_sha256


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.npy")}


@pytest.mark.slow
def test_after_kills_the_same_command_packs_the_same_rows(store: Path, tmp_path: Path) -> None:
    for path, deaths in (("whole", ()), ("s", DIES)):
        words = sampled(store, tmp_path / path)
        for death in deaths:
            code, _, err = run_forked(*words, death, program=PROGRAM, forks_workers=False)
            assert code == -signal.SIGKILL, f"{death}: {code} {err}"
            with pytest.raises((StoreError, mr.InputError)):
                trained(tmp_path / path, tmp_path / "run")
            assert not (tmp_path / "run").exists()
        code, _, err = command(*words)
        assert code == 0, err
    assert content(tmp_path / "s") == content(tmp_path / "whole")
    assert not list((tmp_path / "s").rglob(".*writing*"))
    live = mr.run(store, out=tmp_path / "live", verbose=False, config=JOB).parameters_sha256
    assert {trained(tmp_path / path, tmp_path / f"run-{path}") for path in ("s", "whole")} == {live}


def test_features_that_are_cut_short_while_they_are_packed(store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    data = tmp_path / "data"
    shutil.copytree(store, data)
    (file,) = data.rglob("features.npy")
    monkeypatch.setattr(packing, "MOST_BULKS", 2)
    add, left = RowWriter.add, [4]

    def cutting(*args: Any) -> None:
        add(*args)
        left[0] -= 1
        if not left[0]:
            os.truncate(file, file.stat().st_size // 4)

    monkeypatch.setattr(RowWriter, "add", cutting)
    monkeypatch.setattr(packing, "WINDOW_BYTES", 1 << 10)
    job = resolve({**JOB, "dataset": str(data)})

    def packed(out: Path) -> Any:
        precompute(job, out, emit=silent, stop=lambda: False, features="own")
        return content(out)

    with pytest.raises(
        RunError, match=r"features\.npy cannot be read at row \d+ of 300 \(it has \d+ rows now; expected"
    ):
        packed(tmp_path / "s")
    assert not list((tmp_path / "s").rglob("rows-*"))
    # Mended and given again, the command packs what lacks.
    monkeypatch.undo()
    shutil.copyfile(next(store.rglob("features.npy")), file)
    assert packed(tmp_path / "s") == packed(tmp_path / "whole")
