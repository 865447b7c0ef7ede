"""Small faults of users' machines and folders: each is a sentence, or none at all."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import millrace as mr
from millrace.pipeline import cli
from millrace.pipeline.run import peaks_of
from millrace.pipeline.telemetry.run_log import RunLog
from millrace.stages.partition.quality import PartCounts, PartitionQuality
from millrace.storage.errors import InputError, StoreError
from millrace.tests.contracts.command import command
from millrace.tests.contracts.pictures import draw_only

DATA = "sbm:nodes=60,classes=3,degree=4,features=4,train=0.5"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("faults") / "run"
    mr.run(DATA, epochs=2, fanout=[3, 2], hidden=4, out=out, verbose=False)
    return out


def test_a_report_of_the_current_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    draw_only(monkeypatch)
    code, _, said = command("report", ".")
    assert code == 0, said
    assert (run / "report" / "report.html").is_file()


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for name in (*typer.main.get_command(cli.app).commands, "--version"):
        code, _, said = command(name)
        assert (code, said) == (2, "millrace: the current folder is gone; go to one that is there, such as by `cd ~`\n")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"jobs": 3}', "[]"])
def test_a_damaged_record_of_a_sweep_is_said_to_be_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    (tmp_path / "else").touch()
    with pytest.raises((StoreError, InputError), match=r"sweep\.json is damaged|holds another sweep"):
        mr.sweep(DATA, grid={"lr": [0.1, 0.2]}, out=tmp_path, fanout=[3, 2], epochs=1, verbose=False)


@pytest.mark.parametrize("words", ["run {}", "plan {}", "sample {} --out s", "sweep {} --out w"])
def test_a_deep_job_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep.toml").write_text("x = " + "[" * 20_000 + "]" * 20_000)
    code, _, said = command(*words.format("deep.toml").split())
    assert code == 2
    assert "nested too deeply" in said
    assert len(said.splitlines()) <= 3


@pytest.mark.parametrize(
    "words", ["report {}", "predict {} --out p.csv", "check {}", "inspect {}", "run --resume --out {}"]
)
def test_a_pipe_in_place_of_any_file_of_a_run_does_not_hang(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_only(monkeypatch)  # files are read before
    for name in with_pipes(run):
        code, _, said = command(*(word.format(name) for word in words.split()))
        # What does not read the file does without it.
        assert code in (0, 2) and "Traceback" not in said and len(said.splitlines()) <= 6, (name, said)


def test_a_pipe_in_place_of_any_file_of_samples_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = ("--dataset", DATA, "--epochs", 1, "--fanout", "3,2")
    assert command("sample", *job, "--features", "float32", "--out", "samples")[0] == 0
    for name in with_pipes(tmp_path / "samples"):
        code, _, said = command("run", *job, "--samples", name, "--out", f"run-{name}")
        assert code in (0, 2) and "Traceback" not in said, (name, said)


def with_pipes(folder: Path) -> Iterator[str]:
    """Copies of a folder in the current one, each with a pipe in place of another file; only one is there at a time."""
    for number, file in enumerate(sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())):
        copied = Path(shutil.copytree(folder, f"copy-{number}", ignore=shutil.ignore_patterns("report")))
        if (copied / file).exists():
            (copied / file).unlink()
            os.mkfifo(copied / file)
            yield copied.name
        shutil.rmtree(copied)


def test_labels_beyond_int64_are_not_taken_for_unlabelled(tmp_path: Path) -> None:
    y = np.array([0, 1, 2**64 - 1, 0], np.uint64)
    np.savez(tmp_path / "d.npz", edge_index=np.array([[0, 1, 2], [1, 2, 3]]), y=y, x=np.ones((4, 2), np.float32))
    with pytest.raises(InputError, match="labels hold 18446744073709551615; expected class numbers"):
        mr.open_dataset(tmp_path / "d.npz", options=mr.ReadOptions(direction="directed"))


def test_names_with_escapes_reach_no_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31mred"
    code, _, said = command("evaluate", folder)
    assert code == 2
    assert "\x1b" not in said
    assert "\\x1b[31mred" in said


def test_memory_before_a_restart_counts() -> None:
    log = RunLog()
    empty = {name: {} for name in ("queue", "bytes", "sent_to", "hot")}
    for at, rss in enumerate([5, 900, 7]):
        pulse = {"rank": 0, "stage": "", "epoch": 0, "step": 0, "steps": 0, "rss_bytes": rss, **empty}
        log.take("Pulse", float(at), {**pulse, "seconds": {"total": float(at)}})
    reports = [SimpleNamespace(rank=rank, peak_rss_bytes=600) for rank in (0, 1)]
    assert peaks_of(reports, log) == [900, 600]


def test_empty_and_smallest_parts_are_said() -> None:
    counts = {"train": 0, "edges": 1, "cut_edges": 0, "halo": 0}
    quality = PartitionQuality(tuple(PartCounts(nodes=n, **counts) for n in (4, 0, 3)))
    assert quality.table().splitlines()[-2:] == ["smallest part  0 nodes", "empty parts    1: 1"]


def test_a_worker_that_ends_while_the_cluster_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(**options: object) -> None:
        raise RuntimeError("Nanny failed to start worker process")

    monkeypatch.setattr("millrace.pipeline.cluster.dask_cluster.LocalCluster", failed)
    words = ("--dataset", DATA, "--executor", "dask", "--fanout", "3,2", "--epochs", 1, "--out", tmp_path / "run")
    code, _, said = command("run", *words)
    assert code == 3
    assert said.splitlines()[-1] == (
        "millrace: a worker of the cluster did not start (Nanny failed to start worker process); give the command again"
    )


@pytest.mark.parametrize(
    "words",
    ["inspect {}", "run --dataset {} --out r", "convert {} --out s", "predict {run} --dataset {} --out p.csv"],
)
def test_sources_that_never_end_are_refused_at_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    suffixes = "csv csv.gz npz npy parquet pt mtx mat txt json graphml graph"
    names = ["f", *(f"f.{suffix}" for suffix in suffixes.split())]
    for name in names:
        os.mkfifo(name)
    Path("tables").mkdir()
    Path("tables/nodes.csv").write_text("id,label\n0,a\n1,b\n")
    os.mkfifo("tables/edges.csv")
    for name, kind in [
        *((n, "a pipe") for n in (*names, "tables")),
        ("/dev/zero", "a device"),
        ("/dev/null", "a device"),
    ]:
        code, _, said = command(*(word.format(name, run=run) for word in words.split()))
        assert code == 2 and f" is {kind}; expected a file" in said and len(said.splitlines()) <= 2, (name, said)


@pytest.mark.parametrize(
    "words",
    ["report {}", "run --dataset {} --out r", "init {}", "convert digits --out {}", "predict {run} --out {}.csv"],
)
def test_paths_that_are_no_text_are_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"r\xff")
    code, _, said = command(*(word.format(name, run=run) for word in words.split()))
    assert code == 2 and "not UTF-8" in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="'dataset' holds a NUL character, or a byte that is not UTF-8"):
        mr.run(dataset="digits", config={"dataset": name})


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_lies_in_the_place_of_a_model_is_named(run: Path, tmp_path: Path, kind: str) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    (copied / "model.pt").unlink()
    make = {"pipe": os.mkfifo, "folder": Path.mkdir, "device": lambda p: p.symlink_to("/dev/zero")}[kind]
    make(copied / "model.pt")
    for words in (("predict", copied, "--out", tmp_path / "p.csv"), ("evaluate", copied)):
        code, _, said = command(*words)
        assert code == 2 and "model.pt" in said and "not finished" not in said and len(said.splitlines()) <= 2, said


@pytest.mark.parametrize("words", ["predict {} --out {}.csv", "evaluate {}", "report {}", "inspect {}"])
def test_an_empty_job_of_a_run_is_damaged_and_not_the_defaults(run: Path, tmp_path: Path, words: str) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    (copied / "job.toml").write_text("# nothing\n")
    code, _, said = command(*words.format(copied, copied).split())
    assert (
        code == 2
        and said == f"millrace: {copied}/job.toml is empty, which no run writes: it is damaged; copy it again\n"
    )
