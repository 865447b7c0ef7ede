"""Requests that signals make, before, while and after steps are taken."""

import os
import signal
import subprocess
import sys

import pytest

from millrace.pipeline.cluster.signals import SAVING, STOPPING, Requests, ended_by_signals, heeded, was_interrupted
from millrace.pipeline.telemetry.events import StageStarted, StepDone
from millrace.tests.contracts.process_ends import ended

STEP = StepDone(0, 0, 1, 0.5, 1)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def as_in_a_terminal():
    """Hang-ups are not ignored, whatever started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", STOPPING)
def test_a_run_that_takes_steps_is_asked_to_stop_and_the_second_request_ends_it(number: int) -> None:
    said: list[str] = []
    before = [signal.getsignal(s) for s in STOPPING]
    with heeded(said.append) as requests:
        requests(STEP)
        send(number)
        assert requests.stop()
        assert said == ["stopping at the next step; interrupt again to stop now"]
        with pytest.raises(KeyboardInterrupt):
            send(number)
    assert [signal.getsignal(s) for s in STOPPING] == before


@pytest.mark.parametrize("events", [[], [STEP, StageStarted("evaluate", "evaluating")]])
def test_where_no_step_is_taken_a_run_ends_at_once(events: list) -> None:
    with heeded(print) as requests:
        for event in events:
            requests(event)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_a_checkpoint_is_requested_once_for_each_signal() -> None:
    said: list[str] = []
    with heeded(said.append) as requests:
        assert not requests.save()
        send(*SAVING)
        assert (requests.save(), requests.save(), requests.stop()) == (True, False, False)
        requests(STEP)
        send(*SAVING)
        assert requests.save()
    assert said == ["a checkpoint is written once the first step is done", "writing a checkpoint at the next step"]


def test_sampling_counts_as_steps() -> None:
    requests: Requests = Requests()
    requests(StageStarted("sample", "sampling"))
    assert requests.steps


def test_hangups_stay_ignored_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_by_signals():
        send(signal.SIGHUP)
    assert not was_interrupted()


def test_a_signal_that_ends_a_command_is_remembered_until_the_next_command() -> None:
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        send(signal.SIGTERM)
    assert was_interrupted()
    with ended_by_signals():
        assert not was_interrupted()


def test_what_ends_at_once_leaves_no_process_behind() -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "from millrace.pipeline.cluster import signals\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "os.kill(child.pid, signal.SIGSTOP)\n"
        "print(child.pid, flush=True)\n"
        "signals._end_at_once(signal.SIGTERM, None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130 and "interrupted" in done.stderr and "what was committed stays" in done.stderr
    assert ended([int(done.stdout)])
