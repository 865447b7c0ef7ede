"""Sampling on all GPUs of this machine, or of the named cluster, from a graph spread over them: `millrace sample` with
``kernel = "cugraph"``.

Every call of cuGraph is collective: if one process leaves it out, the others wait forever. Here the driver hands out
work in rounds, so that all processes take part in each. Training ranks cannot do this, since each samples at its own
pace: they sample from whole graphs, or, where a graph is too large for one GPU, train from a store that this made.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...stages.assignment import BulkRequest, SeedPlan
from ...stages.feed.queue_feed import Receipt
from ...stages.kernels import multi_gpu_sampling
from ...stages.rapids import gpu_cluster, is_named
from ...stages.sample.base import Sampler
from ...storage.dataset_store import features_access, open_dataset_store
from ...storage.errors import InputError, RunError
from ...storage.queue.object_store import queue_at
from ...storage.urls import is_url
from ..setup.open_queue import SampleStore
from ..setup.sampling import Sampling
from ..setup.shared_dataset import share

LOOK_S = 5.0
"""Seconds between checks of the driver that all processes are alive."""
PUT_S = 60.0
LEAVE_S = 60.0
"""Time for the processes of the user's own cluster to end what they do once one of them has failed."""


@dataclass(frozen=True, eq=False)
class _Order:
    """Arguments of each sampling process."""

    dataset: str
    sampler: Sampler
    batch_size: int
    seed: int
    out: str
    store: Mapping[str, Any]
    """Arguments of `ZarrQueue.create`."""


def sample_across(
    sampling: Sampling, store: SampleStore, gpus: int, stop: Callable[[], bool], on_receipt: Callable[[Receipt], None]
) -> None:
    """Sample all bulks of the job's epochs that the queue lacks, one by each GPU in a round.

    Args:
        sampling: what to sample. Each process reads the dataset from a store, its own or a copy beside `out`; a graph's
            edges are on one GPU each.
        store: of minibatches.
        gpus: P.
        stop: asked between rounds.
        on_receipt: called with what has been stored.

    Raises:
        InputError: a process of the named cluster has several threads.
        RunError: a process failed or was lost.
    """
    job, dataset, sampler = sampling.job, sampling.dataset, sampling.sample.policy.sampler
    lacking: list[tuple[int, int] | None] = [*sampling.bulks.missing(store.queue)]
    if not lacking:
        return
    lacking += [None] * (-len(lacking) % gpus)
    place = store.place
    # Processes of the user's own cluster may be on other machines: they see the store that they write to.
    with (
        gpu_cluster(gpus) as client,
        TemporaryDirectory(prefix=".sampling-", dir=None if is_url(place) else Path(place).parent) as aside,
    ):
        path = share(job, dataset, Path(aside)).store
        order = _Order(
            path, sampler, job.train.batch_size, job.seed_of("minibatches"), place, {**store.options, "sweep": False}
        )
        found = client.scheduler_info(n_workers=-1)["workers"]
        if wide := [w for w, record in found.items() if record["nthreads"] > 1]:
            raise InputError(
                f"the worker {wide[0]} has {found[wide[0]]['nthreads']} threads, but cuGraph samples in one thread of "
                "each; start `dask cuda worker` with --nthreads 1"
            )
        workers = sorted(found)
        on = [partial(client.submit, workers=[w], allow_other_workers=False, pure=False) for w in workers]
        try:
            unique = _together(client, workers[:1], [on[0](multi_gpu_sampling().new_unique_id)])[0]
            _together(client, workers, [submit(_join, order, rank, gpus, unique) for rank, submit in enumerate(on)])
            for first in range(0, len(lacking), gpus):
                if stop():
                    break
                for receipt in _together(client, workers, [s(_draw, which) for s, which in zip(on, lacking[first:])]):
                    if receipt is not None:
                        on_receipt(receipt)
        except RunError as e:
            if is_named(client) and not _all_left(on):
                raise RunError(f"{e}; first restart the workers of that cluster, which still wait in cuGraph") from e
            raise
        _together(client, workers, [submit(_leave) for submit in on])


def _all_left(on: list[Any]) -> bool:
    """Ask processes that go on to leave, after one has failed; True if all of them have."""
    from distributed import wait

    with suppress(TimeoutError):
        wait([submit(_leave) for submit in on], timeout=LEAVE_S)
        return True
    return False


def _together(client: Any, workers: list[str], futures: list[Any]) -> list[Any]:
    """Wait for one task of each process and return the results.

    Raises:
        RunError: a process failed or died. The others, which wait for it, end with the cluster.
    """
    from distributed import wait

    left = set(futures)
    while left:
        try:
            ended: Any = wait(left, timeout=LOOK_S, return_when="FIRST_COMPLETED")
            done = ended.done
        except TimeoutError:
            done = set()
        for future in done:
            try:
                future.result()
            except Exception as e:
                raise RunError(
                    f"sampling by cuGraph failed: {type(e).__name__}: {e}; fix that and give the command again"
                ) from e
        left -= done
        if left and not set(workers) <= set(client.scheduler_info(n_workers=-1)["workers"]):
            raise RunError(
                "a process that sampled on a GPU is gone, perhaps killed for memory; give the command again, which "
                "goes on"
            )
    return [f.result() for f in futures]


# One thread of each process does all of this: what cuGraph and CUDA know of a process hangs on it.
_here = threading.local()


def _join(order: _Order, rank: int, size: int, unique: Any) -> None:
    dataset = open_dataset_store(Path(order.dataset), features_access(Path(order.dataset)))
    plan = SeedPlan(dataset.split.train, order.batch_size, order.store["bulk_size"], order.seed)
    _here.kernel = multi_gpu_sampling().AcrossGpus(dataset.graph, rank, size, unique)
    queue = queue_at(order.out).create(order.out, **order.store)
    _here.opened = dataset.graph, order.sampler, plan, queue


def _draw(which: tuple[int, int] | None) -> Receipt | None:
    """Sample and store a bulk; with None, only take part in the collective calls."""
    graph, sampler, plan, queue = _here.opened
    if which is None:
        sampler.sample(graph, BulkRequest(plan.seed, 0, 0, 0, ()), _here.kernel)
        return None
    start = time.perf_counter()
    bulk = sampler.sample(graph, plan.request(*which), _here.kernel)
    seconds = time.perf_counter() - start
    queue.put(bulk, PUT_S)
    return Receipt.of_bulk(bulk, seconds)


def _leave() -> None:
    for name in ("opened", "kernel"):
        if name in vars(_here):
            own = vars(_here).pop(name)
            (own[-1] if name == "opened" else own).close()
