"""A run on the console: plain lines in a log, a live bar on a terminal, and nothing that a reader or a name can
break."""

import io
import os
import pty
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

import millrace as mr
from millrace.pipeline.telemetry import console
from millrace.pipeline.telemetry.console import Terminal
from millrace.pipeline.telemetry.events import EpochDone, Note, StageAdvanced, StageEnded, StageStarted, StepDone


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(events, quiet_s=0.0, monkeypatch=None) -> list[str]:
    file = io.StringIO()
    if monkeypatch is not None:
        monkeypatch.setattr(console, "QUIET_S", quiet_s)
    with Terminal(Console(file=file, highlight=False, soft_wrap=True)) as terminal:
        for event in events:
            terminal(event)
    return file.getvalue().splitlines()


RUN = [
    StageStarted("open", "opening data"),
    StageEnded("open", 1.0, "data: 3 nodes"),
    Note("something was mended"),
    StageStarted("train", "training sage with bulk", 2),
    StepDone(0, 0, 2, 0.5, 10),
    StepDone(0, 1, 2, 0.25, 10),
    EpochDone(0, 2, 0.375, 0.5, 1.0, True),
    StepDone(1, 0, 2, 0.125, 10),
    EpochDone(1, 2, 0.125, None, 1.0, False),
    StageEnded("train", 2.0),
]


def test_a_log_has_the_beginning_the_end_and_little_between(monkeypatch):
    assert lines(RUN, 100.0, monkeypatch) == [
        "data: 3 nodes",
        "note: something was mended",
        "training sage with bulk",
        "epoch 2/2: loss 0.1250, 1.00 s",
    ]
    assert lines(RUN, 0.0, monkeypatch)[3:] == [
        "epoch 1, step 1/2: loss 0.5000",
        "epoch 1, step 2/2: loss 0.2500",
        "epoch 1/2: loss 0.3750, validation 0.5000 (best), 1.00 s",
        "epoch 2, step 1/2: loss 0.1250",
        "epoch 2/2: loss 0.1250, 1.00 s",
    ]


def test_a_log_speaks_at_most_every_two_seconds(monkeypatch):
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.5
        return now

    monkeypatch.setattr(console.time, "monotonic", clock)
    seen = lines(StageAdvanced("sample", n, 1000) for n in range(100))
    assert 100 * 0.5 / (console.QUIET_S + 1.0) - 3 <= len(seen) <= 100 * 0.5 / console.QUIET_S
    assert seen[0].startswith("sample: ")
    assert seen[0].endswith(" of 1,000")


@pytest.mark.parametrize("name", ["a[/b].npz", "[bold]x", ":fire:", "x" * 300])
def test_names_are_printed_as_they_are(name):
    assert lines([Note(name), StageStarted("train", name)]) == [f"note: {name}", name]
    screen = Screen()
    with Terminal(Console(file=screen, force_terminal=True, width=1000, color_system=None)) as terminal:
        terminal(StageStarted("open", f"opening {name}"))
        terminal(StageEnded("open", 1.0, f"{name}: 3 nodes"))
    assert f"opening {name}" in screen.getvalue()
    assert f"{name}: 3 nodes" in screen.getvalue()


def test_a_terminal_shows_a_bar_that_follows_the_work():
    screen = Screen()
    with Terminal(Console(file=screen, force_terminal=True, width=200, color_system=None)) as terminal:
        for event in RUN:
            terminal(event)
            if terminal._bar is not None:
                terminal._bar.refresh()
        (task,) = terminal._bar.tasks if terminal._bar is not None else ()
        assert (task.completed, task.total) == (2, 2)
    assert "epoch 1, step 1/2: loss 0.5000" in screen.getvalue()
    assert "note: something was mended" in screen.getvalue()


def test_no_bar_where_it_would_be_garbage(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert lines(RUN[:2]) == ["data: 3 nodes"]
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    with Terminal(Console(file=screen, force_terminal=True, soft_wrap=True, highlight=False)) as terminal:
        terminal(RUN[1])
    assert screen.getvalue() == "data: 3 nodes\n"


def test_a_log_that_nobody_reads_is_left():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as file:
        terminal = Terminal(console._Console(file=file))
        terminal(Note("x"))
        terminal(Note("y"))
        assert terminal.console.quiet
        # What is still in the file's own buffer would fail once more when it is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_on_a_real_terminal_the_bar_goes_and_the_words_stay():
    code = (
        "from millrace.pipeline.telemetry.console import Terminal\n"
        "from millrace.pipeline.telemetry.events import StageStarted, StageEnded\n"
        "with Terminal() as t:\n"
        "    t(StageStarted('open', 'opening data'))\n"
        "    t(StageEnded('open', 1.0, 'data: 3 nodes'))\n"
    )
    main, side = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run([sys.executable, "-c", code], stderr=side, check=True, env=env)
    os.close(side)
    seen = b""
    try:
        while chunk := os.read(main, 65536):
            seen += chunk
    except OSError:
        pass  # how Linux says that the other side is closed
    os.close(main)
    assert b"opening data" in seen
    assert b"data: 3 nodes" in seen
    assert b"\x1b[2K" in seen.rpartition(b"data: 3 nodes")[2]  # the bar's line is erased at the end


def test_a_log_names_a_stage_only_once_it_takes_long(monkeypatch):
    monkeypatch.setattr(console, "LATE_S", 0.05)
    file = io.StringIO()
    with Terminal(Console(file=file, highlight=False, soft_wrap=True)) as terminal:
        terminal(StageStarted("open", "opening something large"))
        deadline = time.monotonic() + 120
        while not file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        terminal(StageEnded("open", 1.0, "opened"))
        monkeypatch.setattr(console, "LATE_S", 0.2)
        terminal(StageStarted("open", "opening something small"))
        terminal(StageEnded("open", 0.0))
        time.sleep(0.4)
    assert file.getvalue().splitlines() == ["opening something large", "opened"]


# --- from Python ---


def test_a_call_from_python_tells_as_the_command_line_does(tmp_path, capsys):
    options = {"epochs": 3, "fanout": [2], "hidden": 2, "threads": 1}
    mr.run("sbm:nodes=60,classes=2,degree=4,features=3", out=tmp_path / "a", **options)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "training sage with bulk" in printed.err.splitlines()
    assert printed.err.splitlines()[-1].startswith("epoch 3/3: loss")
    assert len(re.findall(r"^epoch", printed.err, re.MULTILINE)) <= 3, "a line for each epoch at most"
    assert all(c.isprintable() for line in printed.err.splitlines() for c in line), "no control characters in a log"
    seen = []
    mr.run("sbm:nodes=60,classes=2,degree=4,features=3", out=tmp_path / "b", verbose=False, **options)
    mr.run("sbm:nodes=60,classes=2,degree=4,features=3", out=tmp_path / "c", emit=seen.append, **options)
    assert capsys.readouterr() == ("", "")
    assert sum(isinstance(e, EpochDone) for e in seen) == 3


def test_a_notebook_has_plain_lines_on_standard_output(monkeypatch, capsys):
    class OutStream(io.StringIO):
        pass

    OutStream.__module__ = "ipykernel.iostream"
    shown = OutStream()
    monkeypatch.setattr(sys, "stdout", shown)
    with console.console_events(None, True) as told:
        told(Note("so it is"))
    assert shown.getvalue() == "note: so it is\n"
    assert capsys.readouterr().err == ""


def test_a_shell_of_no_columns_hides_nothing(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "0")
    with Terminal() as terminal:
        terminal(Note("seen"))
    assert capsys.readouterr().err == "note: seen\n"
