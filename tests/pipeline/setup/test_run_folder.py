"""The folder of a run: claimed by one process, never half-written, and not gone on with under other settings."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.commands.shared.job_table import job_table
from millrace.pipeline.config.load import read_run_table, read_toml, resolve
from millrace.pipeline.setup.open_data import absolute_source
from millrace.pipeline.setup.run_folder import (
    CHECKPOINTS,
    JOB,
    RESULT,
    check_holds_run,
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
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


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
    check_resumable(tmp_path, resolve({"epochs": 9}), {"data": "a"}, None)
    with pytest.raises(StoreError, match=phrase):
        check_resumable(tmp_path, resolve(changes), {"data": "b"}, None)


def test_settings_that_cannot_be_read_do_not_hide_what_differs(tmp_path):
    (tmp_path / JOB).write_text("epochs = [")
    CheckpointStore(tmp_path / CHECKPOINTS, {"data": "a"}).save(Cursor(0, 1), {})
    with pytest.raises(StoreError, match="these differ: data"):
        check_resumable(tmp_path, resolve({}), {"data": "b"}, None)


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


EARLIER = "sbm:nodes=300,classes=3,degree=6,features=8,train=0.4"
OF_VERSION_1 = {
    "graph": "a908c936c5913988cdcf3ed673e1a0a4352d9f81a5ea3d5f6971db8f54592e31",
    "sampler": '{"fanout": [4, 3], "sampler": "neighbor"}',
    "seeds": "14c9b6a396e9c4639ce0cdea31f935e16efed04c0cb90e641e99776a7712ade6",
    "seed": "0",
    "batch_size": "30",
    "features": "4d703dae2689c01a91018e5bc41f2cac659468f0005f88675e8954f015fb0e29",
    "labels": "dacf7a46827a073b42bb90cbcfb1dd6fc5df858df03612735dd757ff3e6931d9",
    "model": "6895017e1823fbd9db677e187a7aabcfb241eb095868ec12ac83c3d900ccbb63",
    "train": "57298b23f5fef24c6e1e3e2a6abe70fa34bda297b0c3b1ccb2885a0487b37aad",
}
"""Fingerprint that version 04fca63 wrote for a run of `EARLIER` with the options below."""
OPTIONS = {"fanout": [4, 3], "hidden": 8, "layers": 2, "epochs": 3, "threads": 1, "batch_size": 30, "verbose": False}


def as_of_version_1(folder):
    """Give a run's folder the layout of version 04fca63."""
    for path in (folder / CHECKPOINTS).glob("*/manifest.json"):
        body = json.loads(path.read_text()) | {"schema_version": 1, "fingerprint": OF_VERSION_1}
        del body["checksum"]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        path.write_text(json.dumps({**body, "checksum": hashlib.sha256(text.encode()).hexdigest()}))
    text = (folder / JOB).read_text()
    for now, then in (
        ("matmul_precision =", "products ="),
        ("slow_peer_warning_s =", "wait_note_s ="),
        ("cache_fraction =", "hot ="),
        ("[grappa]\n", "[grappa]\nhops = 2\nkappa = 0.0\n"),
    ):
        assert text.count(now) == 1, now
        text = text.replace(now, then)
    (folder / JOB).write_text(text)
    result = json.loads((folder / RESULT).read_text())
    for key in ("num_features", "num_classes", "task", "class_names"):
        del result[key]
    (folder / RESULT).write_text(json.dumps(result))


def test_a_run_of_an_earlier_version_goes_on_to_the_same_bits_and_predicts(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    wanted, asked = mr.run(EARLIER, out=whole, **OPTIONS), iter(range(1000))
    mr.run(EARLIER, out=cut, stop=lambda: next(asked) == 5, **OPTIONS)
    before = mr.predict(whole).logits
    for folder in (whole, cut):
        as_of_version_1(folder)
    with pytest.raises(InputError, match="it is called 'train"):
        resolve(read_toml(cut / JOB))
    assert resolve(job_table(cut / JOB, {}, None, started=True)).epochs == 3
    other = f"{EARLIER},seed=1"
    with pytest.raises(StoreError, match=r"started with other settings: dataset"):
        mr.run(other, out=cut, resume=True, **OPTIONS)
    resumed = mr.run(EARLIER, out=cut, resume=True, **OPTIONS)
    assert resumed.parameters_sha256 == wanted.parameters_sha256 and resumed.num_classes == 3
    assert {json.loads(p.read_text())["schema_version"] for p in cut.glob("checkpoints/*/manifest.json")} == {2}
    np.testing.assert_array_equal(mr.predict(whole).logits, before)
    assert mr.load(whole).result.num_features == 8
    with pytest.raises(StoreError, match="earlier version of Millrace, and trained on parts"):
        check_resumable(whole, resolve(read_run_table(whole / JOB)), {"parts": "1"}, None)


def test_a_folder_of_runs_names_one_of_them(tmp_path):
    for name in ("001", "000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.toml").touch()
    check_holds_run(tmp_path / "000")
    with pytest.raises(mr.InputError, match=rf"holds no run \(no job.toml\); .* a run, such as {tmp_path}/000$"):
        check_holds_run(tmp_path)
    with pytest.raises(mr.InputError, match=r"expected the folder of a finished run$"):
        check_holds_run(tmp_path / "none", "a finished run")
