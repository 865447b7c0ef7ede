"""Run a function on P ranks: processes of this machine that talk through gloo, with a store held by the test's process.

Processes are forked from a server that has imported torch once, so that starting ranks costs a fraction of a second,
not seconds a rank.
"""

import importlib.util
import multiprocessing.connection
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from millrace.stages.comm.gloo import Contact, Gloo
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.forked_cluster import enter_network, fork_server

LAST_WORDS_S = 3.0
"""Longest wait for what other ranks say once one has failed."""


class RankFailedError(AssertionError):
    """A rank raised, died or did not end in time."""


def run_ranks(
    fn: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = 180.0,
    group_timeout_s: float = 120.0,
    mortal: tuple[int, ...] = (),
    host: str = "127.0.0.1",
    places: Sequence[tuple[Path, str]] = (),
) -> list[Any]:
    """Results of ``fn(group, *args)`` on each of `size` ranks.

    Args:
        fn: a function at the top level of a test file; the file is imported again in each rank.
        size: P.
        args: anything that can be pickled; the same for all ranks.
        timeout_s: time after which all ranks are killed.
        group_timeout_s: time that ranks wait for each other in a collective.
        mortal: ranks that may die; their results are None.
        host: this process's address, at which all ranks reach the store.
        places: network namespace and address of each rank; without any, all are at `host`.

    Raises:
        RankFailedError: the message has the tracebacks of ranks that failed. No process outlives this call.
    """
    context = fork_server()
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    processes, pipes = [], []
    # Plain pickles: multiprocessing's own would pass tensors as files of processes that may be gone.
    work = (str(Path(fn.__code__.co_filename).resolve()), fn.__name__, pickle.dumps(args))
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank,
                args=(theirs, work, rank, size, (host, store.port), group_timeout_s, *places[rank : rank + 1]),
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        return _collect(pipes, processes, mortal, timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _collect(pipes: list[Any], processes: list[Any], mortal: tuple[int, ...], timeout_s: float) -> list[Any]:
    results: list[Any] = [None] * len(pipes)
    failed: list[str] = []
    waiting, until = dict(zip(pipes, range(len(pipes)))), time.monotonic() + timeout_s
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
        if not ready:
            failed = failed or [f"ranks {sorted(waiting.values())} did not end within {timeout_s} s"]
            break
        for pipe in ready:
            rank = waiting.pop(pipe)
            try:
                done, results[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                if rank in mortal:
                    continue
                processes[rank].join(LAST_WORDS_S)
                failed.append(f"rank {rank} died with exit status {processes[rank].exitcode}")
            else:
                if not done:
                    failed.append(f"rank {rank} raised:\n{results[rank]}")
        if failed:
            # The first to fail may have lost the one that knows why.
            until = min(until, time.monotonic() + LAST_WORDS_S)
    if failed:
        raise RankFailedError("\n".join(failed))
    return results


def _rank(
    pipe: Any,
    work: tuple[str, str, bytes],
    rank: int,
    size: int,
    meeting: tuple[str, int],
    group_timeout_s: float,
    place: tuple[Path, str] | None = None,
) -> None:
    torch.set_num_threads(1)
    try:
        address = meeting[0]
        if place is not None:
            namespace, address = place
            enter_network(namespace)
        store = dist.TCPStore(*meeting, is_master=False)
        group = Gloo(
            dist.PrefixStore("ranks", store), rank, size, Ledger(), Contact(address, timeout_s=group_timeout_s)
        )
        file, name, args = work
        value = getattr(_load(Path(file)), name)(group, *pickle.loads(args))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
        raise
    pipe.send_bytes(pickle.dumps((True, value)))
    group.close()


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"ranks_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
