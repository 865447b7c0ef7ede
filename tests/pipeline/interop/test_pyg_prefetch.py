"""Threads and cores on which `NeighborLoader` samples, as PyG's context managers ask for them. `test_loaders.py` tests
the thread itself."""

import os
import sys
import threading
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from millrace import NeighborLoader
from millrace.stages.kernels.runtime.threads import get_num_threads, keep_to, parallel, set_num_threads
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError

linux = pytest.mark.skipif(sys.platform != "linux", reason="cores are chosen on Linux")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[int]]]:
    """Threads and cores of whoever sampled, in a process that has four kernel threads."""
    found: list[tuple[int, set[int]]] = []
    real = NeighborSampler.sample

    def sample(self: NeighborSampler, *args: Any) -> Any:
        found.append((get_num_threads(), os.sched_getaffinity(0) if sys.platform == "linux" else set()))
        return real(self, *args)

    set_num_threads(None)
    monkeypatch.setattr(NeighborSampler, "sample", sample)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    return found


def loader(workers: int) -> NeighborLoader:
    return NeighborLoader(
        Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]])), [2], batch_size=3, num_workers=workers
    )


def test_multithreading(seen: list[tuple[int, set[int]]]) -> None:
    one = loader(3)
    for threads in (1, None, 2):
        with one.enable_multithreading(threads):
            list(one)
    list(one)
    assert [threads for threads, _ in seen] == [3, 3, 4, 4]
    wrong: list[tuple[int, Any, str]] = [
        (0, 1, "num_workers of 1 or more"),
        (2, 5, "expected 1 to 4"),
        (2, 0, "expected 1"),
        (2, "a", "is 'a'"),
    ]
    for workers, threads, message in wrong:
        with pytest.raises(InputError, match=message), loader(workers).enable_multithreading(threads):
            pass


@linux
def test_cpu_affinity(seen: list[tuple[int, set[int]]]) -> None:
    one, there = loader(1), os.sched_getaffinity(0)
    last = max(there)
    for cores in ([last], [[last]], None):
        with one.enable_cpu_affinity(cores):
            list(one)
    list(one)
    assert [cores for _, cores in seen] == [{last}, {last}, {min(there)}, there] and os.sched_getaffinity(0) == there
    for workers, cores, message in (
        (0, None, "num_workers of 1"),
        (1, [0, 1], "2 cores for num_workers 1"),
        (1, [4096], "holds core 4096"),
        (1, 3, "loader_cores is 3; expected a list"),
    ):
        with pytest.raises(InputError, match=message), loader(workers).enable_cpu_affinity(cores):
            pass


@linux
def test_those_who_help_keep_to_the_cores_too() -> None:
    core, found = max(os.sched_getaffinity(0)), []
    both = threading.Barrier(2, timeout=120)

    def part(_: int) -> None:
        both.wait()
        found.append((threading.get_ident(), os.sched_getaffinity(0)))

    def run() -> None:
        keep_to(2, frozenset([core]))
        parallel(part, [(0,), (1,)])

    set_num_threads(2)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        set_num_threads(None)
    assert len({ident for ident, _ in found}) == 2 and [cores for _, cores in found] == [{core}] * 2


@linux
def test_cores_that_are_not_there() -> None:
    with pytest.raises(InputError, match=r"cores \[4096\] cannot be used"):
        keep_to(None, frozenset([4096]))
