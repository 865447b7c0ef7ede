"""Hundreds of mutated inputs over all readers: none ends in a traceback or a crash, none takes long or much memory."""

import json
import mmap
import os
import sys
import time
from pathlib import Path

import pytest

from millrace.storage.errors import InputError
from millrace.tests.contracts.fresh_python import run_python
from millrace.tests.fuzz.contract import Tally, judge

INPUTS = 400
SCRIPT = Path(__file__).with_name("run.py")


@pytest.mark.slow
def test_no_input_breaks_a_reader(tmp_path):
    """In one process of its own: what crashes in compiled code ends it."""
    words = (SCRIPT, "--inputs", INPUTS, "--log", tmp_path / "log", "--json")
    code, out, err = run_python(*words, timeout=280, variables={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert code in (0, 1), f"crashed at input {(tmp_path / 'log').read_text()}: {err[-2000:]}"
    tallies = json.loads(out.splitlines()[-1])
    assert not [line for tally in tallies.values() for line in tally["broken"]]
    assert sum(tally["inputs"] for tally in tallies.values()) > INPUTS * 0.99
    # Damage that nothing refuses, or that leaves nothing to accept, would try nothing.
    assert all(tally["refused"] for tally in tallies.values())
    assert all(tally["accepted"] for tally in tallies.values()), {
        name: tally["accepted"] for name, tally in tallies.items()
    }


def fail(error):
    raise error


def work(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda: fail(KeyError("x")), "KeyError"),
        (lambda: fail(AssertionError()), "AssertionError"),
        (lambda: fail(RecursionError()), "RecursionError"),
        (lambda: fail(InputError("a\nb\nc\nd")), "told in 4 lines"),
        (lambda: fail(InputError("")), "told in 1 lines"),
        (lambda: work(0.02), "took 0.0 s"),
        # Fresh pages: the allocator may have as much at hand.
        (lambda: mmap.mmap(-1, 20 << 20).write(bytes(20 << 20)), "MiB"),
    ],
)
def test_the_contract_can_be_broken(monkeypatch, read, told):
    monkeypatch.setattr("millrace.tests.fuzz.contract.MOST_SECONDS", 0.01 if told.startswith("took") else 60)
    monkeypatch.setattr("millrace.tests.fuzz.contract.MOST_BYTES", 10 << 20)
    tally = Tally()
    judge(tally, "t", 7, read)
    assert len(tally.broken) == 1
    assert tally.broken[0].startswith("t 7: ")
    assert told in tally.broken[0]


def test_what_keeps_the_contract():
    tally = Tally()
    judge(tally, "t", 0, lambda: None)
    judge(tally, "t", 1, lambda: fail(InputError("expected a, got b")))
    assert (tally.inputs, tally.accepted, dict(tally.refused), tally.broken) == (2, 1, {"InputError": 1}, [])
