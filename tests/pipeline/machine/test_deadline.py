"""A command that a signal has not ended ends all the same, with what it has started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from millrace.pipeline.machine import deadline
from millrace.pipeline.machine.deadline import END_S, limit_s, temporary_folder
from millrace.tests.contracts.forked_command import ForkedCommand
from millrace.tests.contracts.process_ends import command_of, ended

BEGIN = """
import hashlib, os, signal, subprocess, sys, time
from pathlib import Path
from millrace.pipeline.machine.deadline import checkpoints_in, ended_in_time, leave_in_time, removed_at_end

signal.signal(signal.SIGTERM, lambda *_: None)
place = Path(sys.argv[1])
"""
BUSY = """
with ended_in_time({signal.SIGTERM}), removed_at_end(str(place / "left")):
    child = subprocess.Popen(["sleep", "600"])
    child.send_signal(signal.SIGSTOP)
    (place / "left").mkdir()
    print(child.pid, flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", (1 << 31) - 1)  # one instruction of Python's, for an hour
"""
SAVING = """
aside = place / ".writing-step-0-1"
aside.mkdir()
with ended_in_time({signal.SIGTERM}), checkpoints_in(place), open(aside / "state", "ab", buffering=0) as file:
    print("ready", flush=True)
    for _ in range(40):
        file.write(b"x")
        time.sleep(0.1)
"""
LEAVING = """
import multiprocessing

child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
child.start()
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
leave_in_time(3)
sys.exit(3)  # Python waits for the child
"""


def started(script: str, place: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BEGIN + script, str(place)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "MILLRACE_STOP_S": "0.5"}
    )


def test_a_kernel_that_works_for_an_hour_and_a_stopped_child_are_ended(tmp_path: Path) -> None:
    process = started(BUSY, tmp_path)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said == "millrace: interrupted; ended 1 of its processes; what was committed stays\n"
    assert ended([child])
    assert not (tmp_path / "left").exists()


def test_a_stopped_child_does_not_keep_a_command_that_is_done(tmp_path: Path) -> None:
    process = started(LEAVING, tmp_path)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (3, "millrace: ended 1 of its processes\n")
    assert ended([child])


def test_a_limit_that_is_no_number_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_STOP_S", "soon")
    assert limit_s() == END_S
    monkeypatch.setenv("MILLRACE_STOP_S", "2.5")
    assert limit_s() == 2.5


def test_a_checkpoint_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    process = started(SAVING, tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    # Whether the process ends by itself then, or is ended, is a matter of which thread is the first to notice.
    assert process.returncode in (0, 130)
    assert (tmp_path / ".writing-step-0-1" / "state").stat().st_size == 40


def test_a_checkpoint_may_be_committed_while_its_bytes_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = tmp_path / ".writing-step-0-1"
    aside.mkdir()
    (aside / "state").write_bytes(b"x")

    def committed_meanwhile(folder: Path, pattern: str) -> Iterator[Path]:
        assert pattern == ".writing-*/*"
        yield folder / aside.name / "state"
        aside.rename(folder / "step-0-1")
        raise FileNotFoundError(aside)

    monkeypatch.setattr(Path, "glob", committed_meanwhile)
    with deadline.checkpoints_in(tmp_path):
        assert deadline._bytes_written() == 1


@pytest.mark.slow
def test_a_run_with_a_stopped_rank_ends(tmp_path: Path) -> None:
    run = ["run", "--dataset", "sbm:nodes=300,classes=3,features=4", "--ranks", "2", "--out", tmp_path / "run"]
    more = ["--epochs", "1000000", "--fanout", "3,3", "--hidden", "4", "--set", "cluster.dashboard_port=0"]
    said = tmp_path / "said"
    process = ForkedCommand(*run, *more, err=said, variables={"MILLRACE_STOP_S": "1"})
    try:
        while not said.exists() or "loss" not in said.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        ranks = [c for c in psutil.Process(process.pid).children(recursive=True) if "rank_main" in command_of(c)]
        ranks[0].send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        # Nothing else would end it: the rank is stopped, and nobody continues it.
        assert process.wait(300) == 130 and "of its processes" in said.read_text()
        assert ended(rank.pid for rank in ranks)
    finally:
        process.kill()


def test_temporary_folders_that_killed_commands_left_are_removed_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("own-killed", "own-of-others", "else"):
        (tmp_path / name).mkdir()
    (tmp_path / "own-killed" / ".held").touch()
    with temporary_folder("own-") as one, temporary_folder("own-") as two:
        assert {p.name for p in tmp_path.iterdir()} == {"own-of-others", "else", Path(one).name, Path(two).name}
