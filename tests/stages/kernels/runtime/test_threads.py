import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from millrace.stages.kernels.runtime.threads import (
    get_num_threads,
    one_torch_thread,
    parallel,
    set_num_threads,
    stand_back,
)
from millrace.storage.errors import InputError

LONG_S = 120.0
"""Longer than a busy machine takes."""


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    set_num_threads(None)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_part_runs_once(threads: int) -> None:
    set_num_threads(threads)
    done = np.zeros(100, int)

    def fn(a: int, b: int) -> None:
        done[a:b] += 1

    parallel(fn, [(i, i + 3) for i in range(0, 99, 3)])
    assert (done[:99] == 1).all()
    parallel(fn, [])
    parallel(fn, [(99, 100)])
    assert done[99] == 1


def test_parts_run_at_the_same_time_and_the_caller_takes_part() -> None:
    set_num_threads(2)
    both = threading.Barrier(2, timeout=LONG_S)
    seen = set()

    def fn() -> None:
        both.wait()
        seen.add(threading.get_ident())

    parallel(fn, [(), ()])
    assert len(seen) == 2
    assert threading.get_ident() in seen


def test_another_thread_may_lower_the_number_meanwhile() -> None:
    """As an evaluation does that ends while minibatches are sampled."""

    class Lowering(list):
        def __len__(self) -> int:
            set_num_threads(1)
            return super().__len__()

    set_num_threads(2)
    done = []
    parallel(done.append, Lowering([(0,), (1,)]))
    assert sorted(done) == [0, 1]


def test_one_part_or_one_thread_stays_in_the_caller() -> None:
    seen = set()
    set_num_threads(4)
    parallel(lambda: seen.add(threading.get_ident()), [()])
    set_num_threads(1)
    parallel(lambda: seen.add(threading.get_ident()), [(), (), ()])
    assert seen == {threading.get_ident()}


def test_calls_inside_calls_and_from_many_threads_do_not_deadlock() -> None:
    set_num_threads(3)
    counts = np.zeros((6, 4, 4), int)

    def leaf(caller: int, i: int, j: int) -> None:
        time.sleep(0.0005)
        counts[caller, i, j] += 1

    def branch(caller: int, i: int) -> None:
        parallel(leaf, [(caller, i, j) for j in range(4)])

    callers = [
        threading.Thread(target=parallel, args=(branch, [(c, i) for i in range(4)]), daemon=True) for c in range(6)
    ]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in callers)
    assert (counts == 1).all()


def test_an_error_reaches_the_caller_after_all_begun_parts_have_ended() -> None:
    set_num_threads(2)
    both, ended = threading.Barrier(2, timeout=LONG_S), []

    def fn(i: int) -> None:
        both.wait()
        if i == 0:
            raise KeyError("part 0")
        time.sleep(0.05)
        ended.append(i)

    with pytest.raises(KeyError, match="part 0"):
        parallel(fn, [(0,), (1,)])
    assert ended == [1]

    def fails_in_the_pool() -> None:
        both.wait()
        if threading.current_thread() is not caller:
            raise KeyError("in the pool")

    caller = threading.current_thread()
    with pytest.raises(KeyError, match="in the pool"):
        parallel(fails_in_the_pool, [(), ()])


def test_the_number_follows_torch_until_it_is_set() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert get_num_threads() == 3
        set_num_threads(2)
        assert get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("told", [None, 2])
def test_torch_takes_one_thread_and_the_kernels_as_many_as_before(told: int | None) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        set_num_threads(told)
        with one_torch_thread():
            assert torch.get_num_threads() == 1 and get_num_threads() == (told or 3)
        assert torch.get_num_threads() == 3 and get_num_threads() == (told or 3)
        torch.set_num_threads(4)
        assert get_num_threads() == (told or 4)
    finally:
        torch.set_num_threads(before)


def test_less_than_one_thread_is_refused() -> None:
    with pytest.raises(InputError, match="0 kernel threads"):
        set_num_threads(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_its_own_pool() -> None:
    code = """
import os, threading
from millrace.stages.kernels.runtime.threads import parallel, set_num_threads
set_num_threads(2)
def both():
    barrier = threading.Barrier(2, timeout=60)
    parallel(lambda: barrier.wait(), [(), ()])
both()
child = os.fork()
if child == 0:
    both()
    os._exit(0)
os._exit(os.waitpid(child, 0)[1] != 0)
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=240, check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_a_thread_that_stands_back_takes_its_helpers_along_and_no_others() -> None:
    set_num_threads(2)
    seen: dict[str, set[int]] = {}

    def record(name: str) -> None:
        meet.wait(LONG_S)
        seen.setdefault(name, set()).add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def aside() -> None:
        stand_back()
        parallel(record, [("aside",), ("aside",)])

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    try:
        meet = threading.Barrier(2)
        thread = threading.Thread(target=aside)
        thread.start()
        thread.join()
        parallel(record, [("training",), ("training",)])
    finally:
        set_num_threads(None)
    assert seen == {"aside": {19}, "training": {before}}
