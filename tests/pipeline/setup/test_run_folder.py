"""The folder of a run: claimed by one process, never half-written, and not gone on with under other settings."""

import json
import subprocess
import sys

import pytest

import millrace as mr
from millrace.pipeline.config.load import read_toml, resolve
from millrace.pipeline.setup.open_data import absolute_source
from millrace.pipeline.setup.run_folder import (
    CHECKPOINTS,
    JOB,
    RESULT,
    check_resumable,
    check_run_folder,
    locked,
    write_atomically,
)
from millrace.storage.checkpoint import CheckpointStore, Cursor
from millrace.storage.errors import InputError, StoreError


def test_a_folder_is_held_by_one_process_and_let_go_when_it_dies(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from millrace.pipeline.setup.run_folder import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another process is writing"), locked(tmp_path / "run"):
            pass
        other.kill()
    with locked(tmp_path / "run"):
        check_run_folder(tmp_path / "run", resume=False)


def test_a_file_system_without_locks_is_used_unguarded(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with locked(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a", "old")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="space"):
        write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"train": {"lr": 0.5}}, r"train.lr \(was 0.003, now 0.5\);"),
        ({"model": {"name": "gat", "heads": 2}}, r"settings: model.name \(was sage, now gat\);"),
        ({"seed": 1, "epochs": 9, "threads": 2, "queue": {"kind": "zarr"}}, r"settings: seed \(was 0, now 1\);"),
        (
            {"seed": 1, "dtype": "float64", "dataset": "d", "train": {"lr": 1, "batch_size": 2, "optimizer": "sgd"}},
            "and 2 more;",
        ),
        ({"epochs": 9}, "these differ: data"),
    ],
)
def test_the_settings_that_changed_are_named(tmp_path, changes, phrase):
    (tmp_path / JOB).write_text(resolve({}).to_toml())
    CheckpointStore(tmp_path / CHECKPOINTS, {"data": "a"}).save(Cursor(0, 1), {})
    check_resumable(tmp_path, resolve({"epochs": 9}), {"data": "a"})
    with pytest.raises(StoreError, match=phrase):
        check_resumable(tmp_path, resolve(changes), {"data": "b"})


def test_settings_that_cannot_be_read_do_not_hide_what_differs(tmp_path):
    (tmp_path / JOB).write_text("epochs = [")
    CheckpointStore(tmp_path / CHECKPOINTS, {"data": "a"}).save(Cursor(0, 1), {})
    with pytest.raises(StoreError, match="these differ: data"):
        check_resumable(tmp_path, resolve({}), {"data": "b"})


def test_data_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.npz").touch()
    (tmp_path / "digits").touch()
    assert absolute_source("d.npz") == str(tmp_path / "d.npz")
    assert [absolute_source(name) for name in ("digits", "sbm:nodes=60", "ogbn-arxiv")] == [
        "digits",
        "sbm:nodes=60",
        "ogbn-arxiv",
    ]


def test_a_longer_run_that_is_interrupted_says_so(tmp_path):
    options = {"out": tmp_path / "run", "fanout": [2], "hidden": 2, "threads": 1}
    data = mr.open_dataset("sbm:nodes=60,classes=2,degree=4,features=3")
    mr.run(data, epochs=1, **options)
    asked = iter(range(1000))
    assert mr.run(data, epochs=9, resume=True, stop=lambda: next(asked) == 2, **options).status == "stopped"
    assert json.loads((tmp_path / "run" / RESULT).read_text())["status"] == "stopped"
    assert read_toml(tmp_path / "run" / JOB)["epochs"] == 9
