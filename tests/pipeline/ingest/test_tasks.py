"""Stages of tasks: what is recorded is not done again, and sizes in words."""

import errno
import json
import os

import pytest

from millrace.pipeline.ingest.tasks import Stages, done_record, inline, parse_memory
from millrace.pipeline.telemetry.events import StageAdvanced, StageEnded, StageStarted
from millrace.storage.errors import InputError, RunError

CALLS: list[int] = []


def square(n):
    CALLS.append(n)
    return {"square": n * n}


def full(n):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def test_recorded_tasks_are_not_done_again(tmp_path):
    events = []
    stages = Stages(tmp_path, inline, events.append)
    assert stages.run("squares", "squaring", square, [(2,), (3,)]) == [{"square": 4}, {"square": 9}]
    assert [type(e) for e in events] == [StageStarted, StageAdvanced, StageAdvanced, StageEnded]
    done_record(tmp_path, "squares", 0).unlink()
    (tmp_path / "done" / ".left").write_text("half")
    assert Stages(tmp_path, inline, events.append).run("squares", "squaring", square, [(2,), (3,)])[0] == {"square": 4}
    assert CALLS == [2, 3, 2]
    assert json.loads(done_record(tmp_path, "squares", 0).read_text()) == {"square": 4}
    assert stages.run_here("here", lambda: square(5)) == stages.run_here("here", lambda: square(6)) == {"square": 25}


def test_a_full_disk_is_said_in_a_sentence(tmp_path):
    with pytest.raises(RunError, match=r"no space is left for .*; free some and give the same command again"):
        Stages(tmp_path, inline, lambda event: None).run("full", "filling", full, [(1,)])
    assert not list((tmp_path / "done").iterdir())


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GiB", 1 << 30),
        ("512 MB", 512_000_000),
        ("2e9", 2_000_000_000),
        (1000, 1000),
        ("1.5k", 0),
        ("1.5KB", 1500),
        (".5KB", 500),
    ],
)
def test_sizes(text, size):
    if size:
        assert parse_memory(text) == size
        return
    with pytest.raises(InputError, match="expected a size such as 1GiB"):
        parse_memory(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "nan", "lots", "1e40", "1e999"])
def test_no_sizes(text):
    with pytest.raises(InputError, match="expected a size such as 1GiB"):
        parse_memory(text)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "3"])
def test_a_task_whose_record_is_damaged_is_done_again(tmp_path, text):
    stages = Stages(tmp_path, inline, lambda event: None)
    record = done_record(tmp_path, "squares", 0)
    record.write_text(text)
    assert stages.run("squares", "squaring", square, [(2,)]) == [{"square": 4}]
    record.unlink()
    os.mkfifo(record)
    assert stages.run("squares", "squaring", square, [(2,)]) == [{"square": 4}] and CALLS == [2, 2]
    assert json.loads(record.read_text()) == {"square": 4}
