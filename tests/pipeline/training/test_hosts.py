"""Ranks by machine, and the threads of those that wait."""

import os

from millrace.pipeline.training.hosts import machine_number, ranks_by_host, threads_of
from millrace.stages.kernels.runtime.threads import get_num_threads, set_num_threads
from millrace.tests.contracts.thread_ranks import run_threads


def test_ranks_are_found_by_machine():
    numbers = [7, 2**52 - 1, 7, 9, 2**52 - 1]
    found = run_threads(lambda group: ranks_by_host(group, numbers[group.rank]), 5)
    assert found == [[[0, 2], [1, 4], [3]]] * 5


def test_a_machine_has_one_number(monkeypatch):
    number = machine_number()
    assert number == machine_number()
    assert 0 <= number < 2**52
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert machine_number() != number


def test_threads_of_waiting_ranks_are_used_up_to_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(6), raising=False)
    set_num_threads(2)
    try:
        for ranks, want in ((1, 2), (2, 4), (3, 6), (9, 6)):
            with threads_of(ranks):
                assert get_num_threads() == want
            assert get_num_threads() == 2
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(1))
        with threads_of(4):
            assert get_num_threads() == 2, "not fewer than were asked for"
    finally:
        set_num_threads(None)
