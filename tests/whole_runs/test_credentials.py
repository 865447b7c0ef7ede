"""Addresses with credentials are refused before anything is written, and no file, event or message of ours holds the
secret."""

import sys

import pytest

import millrace as mr
from millrace.pipeline import cli
from millrace.pipeline.cluster import rank_main
from millrace.pipeline.telemetry.events import Note
from millrace.pipeline.telemetry.metrics_file import recorded

S3, TCP, QUERY = "s3://KEY:hunter2@bucket/p", "tcp://user:hunter2@127.0.0.1:8786", "https://host/x.npz?token=hunter2"
SBM = "sbm:nodes=60,classes=3,degree=4,features=4,train=0.5"


@pytest.mark.parametrize("url", [S3, QUERY])
@pytest.mark.parametrize(
    "options",
    [
        lambda url: {"queue": {"kind": "zarr", "location": url}},
        lambda url: {"cluster": {"scheduler": url}, "ranks": 2},
        lambda url: {"scheduler": url, "ranks": 2},
        lambda url: {"dataset": url},
        lambda url: {"start_from": url},
        lambda url: {"partition": {"owners": url}},
        lambda url: {"samples": url},
        lambda url: {"model": {"name": url}},
        lambda url: {url: 1},
        lambda url: {"config": {"train": url}},
    ],
)
def test_a_run_is_refused(url, options, tmp_path):
    events = []
    with pytest.raises(mr.InputError) as raised:
        mr.run(**{"dataset": SBM, **options(url)}, out=tmp_path / "run", emit=events.append)
    assert "hunter2" not in str(raised.value) and "***" in str(raised.value)
    assert "hunter2" not in repr(events)
    assert not (tmp_path / "run").exists()


def test_so_is_a_dataset_of_that_name(tmp_path):
    dataset = mr.open_dataset(SBM)
    object.__setattr__(dataset, "name", S3)
    with pytest.raises(mr.InputError, match=r"configuration key 'dataset' is 's3://\*\*\*@bucket/p'"):
        mr.run(dataset, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--dataset", SBM, "--set", f"queue.location={S3}"),
        ("run", "--dataset", SBM, "--scheduler", TCP, "--ranks", "2"),
        ("run", "--dataset", SBM, "--samples", QUERY),
        ("run", "--dataset", SBM, "--out", S3),
        ("run", S3),
        ("run", "--dataset", QUERY),
        ("sample", "--dataset", SBM, "--epochs", "1", "--fanout", "2,2", "--out", S3),
        ("inspect", S3),
        (S3,),
    ],
)
def test_so_is_a_command(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["millrace", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert "***" in err or "s3://" in err
    assert "hunter2" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_events_are_written_down_without_secrets(tmp_path):
    heard = []
    with recorded(tmp_path / "metrics.jsonl", heard.append, resume=False) as emit:
        emit(Note("this run: http://127.0.0.1:8787/millrace?token=hunter2"))
    assert "hunter2" not in (tmp_path / "metrics.jsonl").read_text()
    assert "hunter2" in heard[0].text, "whoever is at the terminal needs it"


def test_a_rank_tells_and_logs_its_error_without_secrets(capfd):
    try:
        try:
            raise OSError(f"{S3} is silent")
        except OSError as e:
            raise ValueError(f"no {QUERY}") from e
    except ValueError as e:
        told = rank_main._failure(e)
    assert told["text"] == "ValueError: no https://host/x.npz?***" and told["exit_code"] == 3
    log = capfd.readouterr().err
    assert "hunter2" not in log and "OSError: s3://***@bucket/p is silent" in log and "Traceback" in log
