"""Files go on after the death of a process that runs tests, and no test runs twice."""

import faulthandler
import random
import subprocess
import sys
from collections import deque
from types import SimpleNamespace

import pytest

from millrace.tests.contracts import each_test_once
from millrace.tests.contracts.each_test_once import EachTestOnce

TOY = {
    "conftest.py": """
def pytest_xdist_make_scheduler(config, log):
    from millrace.tests.contracts.each_test_once import EachTestOnce
    return EachTestOnce(config, log)
""",
    "test_kills.py": """
import os, signal, pytest
@pytest.mark.parametrize("i", range(4))
def test(i):
    if i == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
""",
    **{f"test_{name}.py": "def test():\n    pass\n\ndef test_too():\n    pass\n" for name in "abc"},
}
COLLECTED = [f"test_{file}.py::test_{i}" for file, tests in enumerate((5, 1, 3, 2, 1, 4, 1, 6)) for i in range(tests)]


class Process:
    """A process of pytest-xdist: it begins a test when it knows of the next one, or that there is none."""

    def __init__(self) -> None:
        self.has_collected = self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")
        self.waiting: deque[int] = deque()

    def send_runtest_some(self, indices: list[int]) -> None:
        self.waiting.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    def can_run(self) -> bool:
        return len(self.waiting) > (0 if self.shutting_down else 1)


def run(kills: dict[str, int], drawn: random.Random) -> tuple[list[str], list[str]]:
    """Run all tests by three processes, whose events come in any order.

    Args:
        kills: tests that kill their process, with how often they do.
        drawn: what the order is drawn from.

    Returns:
        Tests that ended, and those that are named as having killed a process.
    """
    options = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=options, getvalue=lambda name: 3 * ["popen"])
    schedule = EachTestOnce(config)
    processes, ended, named = [Process() for _ in range(3)], [], []
    for process in processes:
        schedule.add_node(process)
    while True:
        ready = [p for p in processes if not p.has_collected or p.can_run()]
        if not ready:
            break
        process = drawn.choice(ready)
        if not process.has_collected:
            process.has_collected = True
            if process not in schedule.nodes:
                schedule.add_node(process)
            schedule.add_node_collection(process, COLLECTED)
            if schedule.collection_is_completed:
                schedule.schedule()
        elif kills.get(test := COLLECTED[process.waiting[0]]):
            kills[test] -= 1
            processes.remove(process)
            process.shutting_down = True
            named.append(schedule.remove_node(process))
            processes.append(Process())
            if drawn.random() < 0.5:  # it is known before it has collected tests
                schedule.add_node(processes[-1])
        else:
            ended.append(test)
            schedule.mark_test_complete(process, process.waiting.popleft())
        if schedule.tests_finished:
            for left in schedule.nodes:
                left.shutdown()
    assert schedule.tests_finished
    return ended, named


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When pytest would end for silence, in place of the watch over this test."""
    waits: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, exit: waits.append(seconds))
    return waits


@pytest.mark.parametrize("seed", range(40))
def test_every_other_test_runs_once_and_what_killed_is_named(seed: int):
    drawn = random.Random(seed)
    killing = drawn.sample(COLLECTED, drawn.randrange(7))
    ended, named = run(dict.fromkeys(killing, 5), drawn)
    assert sorted(ended + named) == sorted(COLLECTED)
    assert sorted(named) == sorted(killing)


def test_each_end_of_a_test_sets_the_limit_of_silence_anew(quiet: list[float]):
    ended, _ = run({}, random.Random(0))
    assert quiet == [each_test_once.SILENCE_S] * len(ended)


def test_a_segmentation_fault_fails_its_test_alone(tmp_path):
    for name, text in TOY.items():
        (tmp_path / name).write_text(text)
    options = ("--dist=loadfile", "--no-loadscope-reorder", "--numprocesses=2", "--rootdir=.", "-pno:cacheprovider")
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert "1 failed, 9 passed" in done.stdout, done.stdout
    assert "crashed while running 'test_kills.py::test[2]'" in done.stdout
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert 'test_kills.py", line 6 in test' in done.stderr
