"""Trials on one rank: their processes, memory, ends and errors; the seeds that they train on."""

import os
import shlex
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.planning import trial_server
from millrace.pipeline.planning.trial_server import TrialServer, shortened
from millrace.storage.errors import RunError
from millrace.tests.contracts.forked_trials import sizes_of_files


@pytest.mark.skipif(sys.platform != "linux", reason="others do not say which pages are resident")
def test_a_forked_process_is_made_as_large_as_the_one_that_it_is_forked_from():
    first, forked, read = sizes_of_files()
    assert forked < first - (15 << 10) and read == pytest.approx(first, rel=0.05)


def started(patch: pytest.MonkeyPatch, exits: ExitStack, folder: Path, script: str) -> TrialServer:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    patch.setattr(trial_server.sys, "executable", str(program))
    return TrialServer(exits)


def test_the_process_ends_with_the_plan(tmp_path, monkeypatch):
    with ExitStack() as exits:
        server = started(monkeypatch, exits, tmp_path, "sleep 1000; sleep 1000")
        pid = server._process.pid
    for _ in range(600):  # until the system has removed the last process of its group
        with suppress(ProcessLookupError):
            os.killpg(pid, 0)
            time.sleep(0.1)
            continue
        return
    pytest.fail("it goes on")


def test_a_run_fails_with_its_reason(tmp_path, monkeypatch):
    job, log = resolve({"epochs": 1}), shlex.quote(str(tmp_path / "run.log"))
    with ExitStack() as exits:
        script = f"head -c 1 > /dev/null; echo first > {log}; echo reason >> {log}; echo 1; echo -9"
        server = started(monkeypatch, exits, tmp_path, script)
        with pytest.raises(RunError, match="the trial of system 'bulk' failed: reason"):
            server.run(job, tmp_path / "run", None)
        (tmp_path / "run.log").write_text("")
        with pytest.raises(RunError, match="failed: status -9"):
            server.run(job, tmp_path / "run", None)
        with pytest.raises(RunError, match="failed: status none: the server of trials has ended"):
            server.run(job, tmp_path / "other", None)


def test_seeds_are_spread_over_the_split():
    data = mr.open_dataset("sbm:nodes=200,classes=2,train=0.5")
    found, train = shortened(data, 3), data.split.train
    assert found.split.train.tolist() == train[[0, 49, 99]].tolist() and found.graph is data.graph
    assert shortened(data, 100) is data
