"""Sampling of all minibatches of a job into a store, ahead of training."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ..stages.feed.queue_feed import Receipt, Sampled, sample_bulks
from ..stages.kernels import OTHER_BITS, sampling_backend
from ..stages.models import RGCN
from ..stages.partition.contiguous import Contiguous
from ..stages.placement.row_blocks import Blocks
from ..stages.rapids import TO_SAMPLE, gpus_named
from ..stages.sample.base import check_kernel
from ..storage.dataset import Dataset
from ..storage.errors import InputError, Interrupted
from ..storage.lazy_dataset import LazyDataset
from ..storage.plural import counted
from ..storage.queue.object_store import queue_at
from ..storage.queue.zarr import ZarrQueue
from ..storage.urls import is_url
from .cluster.sample_multi_gpu import sample_across
from .config.load import Job
from .config.records import for_task, make_system, with_links, without_partitioner
from .dashboard.command import recorded_stages
from .opening import open_with_cluster
from .setup.checks import check_links, check_times, check_types
from .setup.fingerprint import sample_fingerprint
from .setup.open_queue import count_minibatches, seed_plan
from .setup.prepare import Prepared, keeping_edges, prepare_samples
from .setup.run_folder import locked
from .telemetry.events import Emit, Note, StageAdvanced, StageEnded, StageStarted


def precompute(job: Job, out: str | Path, *, emit: Emit, stop: Callable[[], bool]) -> dict[str, Any]:
    """Fill a store with the minibatches of ``job.epochs`` epochs. Bulks already in it are kept.

    Args:
        job: the job to sample for.
        out: the store's folder, or its URL on an object store.
        emit: called with every event.
        stop: called between bulks; true interrupts.

    Returns:
        A record: epochs, minibatches, edges (of bulks sampled now), bytes on disk (None on an object store), seconds.

    Raises:
        InputError: the job's system does not sample, or `out` was made from something else.
        RunError: `out` cannot be written, or does not answer.
        Interrupted: `stop` returned true; committed bulks stay, and the same command continues from there.
    """
    place = out if is_url(out) else Path(out)
    goes_on = isinstance(place, Path) and place.exists()
    with recorded_stages("sample", job.dataset, place, emit, goes_on=goes_on) as told:
        return _precompute(job, out, told, stop)


def _precompute(job: Job, out: str | Path, emit: Emit, stop: Callable[[], bool]) -> dict[str, Any]:
    start = time.perf_counter()
    dataset = open_with_cluster(job, None, emit, lazy=True)
    check_cut(job)
    # The minibatches do not depend on how the graph is distributed.
    system = plain = make_system(job.model_copy(update={job.system: type(job.options)()}))
    job = for_task(job, dataset, system.sample.sampler)
    check_links(job, dataset)
    check_types(job, system, dataset.graph.types, RGCN(), dataset.of_pairs)
    system = with_links(job, keeping_edges(system, dataset.graph.types), dataset)
    if not isinstance(system.sample, Sampled):  # its seed plan is the store's
        raise InputError(f"system '{system.name}' does not sample minibatches; there is nothing to precompute")
    if make_system(without_partitioner(job)).sample.record() != plain.sample.record():
        raise InputError(
            f"{job.system}.local_seeds is true, so that minibatches depend on the ranks that train; leave it out to "
            "draw samples for any of them"
        )
    check_times(job, system, dataset)
    check_kernel(system.sample.sampler, job.kernel)
    system.sample.sampler.check(dataset.graph)
    train = dataset.split_sizes["train"]
    if not train:
        raise InputError("the train split is empty: there is nothing to sample; choose another split")
    # The workers of a cluster open a store themselves.
    by_tasks = job.cluster.scheduler is not None and isinstance(dataset, LazyDataset)
    by_owners = prepare_samples(job, dataset) if by_tasks and not is_url(out) and _holds_ranges(job) else None
    if by_tasks:
        from .cluster.dask_cluster import check_reachable

        check_reachable(job.cluster)
    else:
        # Damage is told before anything is written.
        dataset.graph.check()
    minibatches = count_minibatches(job, train)
    store: dict[str, Any] = {
        "fingerprint": sample_fingerprint(job, dataset, system),
        "bulk_size": job.queue.bulk_size,
        "max_bytes": 1 << 62,
        "keep": "all",
        "meta": {"minibatches_per_epoch": minibatches, "dataset": dataset.name},
    }
    create = partial(queue_at(out).create, out, **store)
    # Anything else at `out` is refused before the folder is locked; leftovers are removed only under the lock.
    create(sweep=False).close()
    # An object store has no lock. A bulk left there by a killed writer has no manifest, and is overwritten when it is
    # sampled again.
    with nullcontext() if is_url(out) else locked(Path(out)):
        queue = create(sweep=not is_url(out), mend=None if is_url(out) else lambda text: emit(Note(text)))
        if by_owners is not None:
            fill = partial(_sample_by_owners, by_owners, queue, Path(out), store, emit)
        elif job.cluster.scheduler is not None and job.kernel in OTHER_BITS:
            fill = partial(_by_named_gpus, job, dataset, system.sample.sampler, queue, out, store, emit)
        elif by_tasks:
            assert isinstance(dataset, LazyDataset)
            fill = _by_tasks(job, dataset, queue, out, store, emit)
        else:
            fill = _producer(job, dataset, system.sample.sampler, queue, out, store)
        edges = _fill(job, minibatches, queue, fill, emit, stop, sweep=not is_url(out))
    seconds = time.perf_counter() - start
    emit(StageEnded("sample", seconds))
    return {
        "out": str(out),
        "epochs": job.epochs,
        "minibatches": job.epochs * minibatches,
        "edges": edges,
        "bytes": None if is_url(out) else sum(f.stat().st_size for f in Path(out).rglob("*") if f.is_file()),
        "seconds": seconds,
    }


def check_cut(job: Job) -> None:
    """Refuse a cut that renumbers the nodes: minibatches are drawn in the order of the dataset's ids."""
    cut = make_system(job).partition.partitioner
    if cut is None or isinstance(cut, Contiguous):
        return
    raise InputError(
        f'bulk.topology is "partitioned" and partition.method "{cut.name}", which renumbers the nodes, but samples are '
        "drawn under the dataset's own ids; leave both out, or cut first: millrace partition --into STORE, then sample "
        "that store"
    )


def _holds_ranges(job: Job) -> bool:
    """True if ranks would hold ranges of rows, under the ids that nodes have in the dataset."""
    policy = make_system(job).partition
    ranges = isinstance(policy.partitioner, Contiguous)
    return isinstance(policy, Blocks) and ranges and job.ranks > 1 and job.device == "cpu"


def _sample_by_owners(
    prepared: Prepared,
    queue: ZarrQueue,
    out: Path,
    store: dict[str, Any],
    emit: Emit,
    *,
    stop: Callable[[], bool],
    on_receipt: Callable[[Receipt], None],
) -> int:
    """Sample by ranks that hold a block of rows each, and tell how far they are; the number of edges. What they open is
    cut into a folder beside the store."""
    from ..storage.store.committed_folder import remove_tree
    from .supervision.supervisor import run_on_cluster

    job, folder = prepared.job, out.resolve().parent / f".sampling-{out.resolve().name}"
    present = {(e, n) for e in range(job.epochs) for n in queue.committed(e)}
    bulks = -(-store["meta"]["minibatches_per_epoch"] // job.queue.bulk_size)
    edges = 0
    if len(present) < job.epochs * bulks:
        folder.mkdir(exist_ok=True)
        given = {**store, "path": str(out.resolve())}
        reports = run_on_cluster(prepared, folder, None, None, emit, stop, fill=given)
        edges = sum(report.sampled_edges for report in reports)
    remove_tree(folder)
    return edges


def _by_tasks(
    job: Job, dataset: LazyDataset, queue: ZarrQueue, out: str | Path, store: dict[str, Any], emit: Emit
) -> Callable[..., None]:
    from .cluster.sample_on_cluster import sample_on_cluster

    bulks = -(-store["meta"]["minibatches_per_epoch"] // job.queue.bulk_size)
    return partial(sample_on_cluster, job, dataset, queue, out, bulks, emit)


def _by_named_gpus(
    job: Job,
    dataset: Dataset,
    sampler: Any,
    queue: ZarrQueue,
    out: str | Path,
    store: dict[str, Any],
    emit: Emit,
    *,
    stop: Callable[[], bool],
    on_receipt: Callable[[Receipt], None],
) -> None:
    """Sample by the GPUs of the cluster that the job names, which share the graph; if dask-cuda did not make it, as
    without GPUs: by tasks from a store, else on this machine."""
    from .cluster.dask_cluster import on_named

    with on_named(job):
        if gpus := gpus_named(TO_SAMPLE):
            sample_across(job, dataset, sampler, queue, out, store, gpus, stop=stop, on_receipt=on_receipt)
            return
    if isinstance(dataset, LazyDataset):
        fill = _by_tasks(job, dataset, queue, out, store, emit)
    else:
        fill = _producer(job, dataset, sampler, queue, out, store)
    fill(stop=stop, on_receipt=on_receipt)


def _producer(
    job: Job, dataset: Dataset, sampler: Any, queue: ZarrQueue, out: str | Path, store: dict[str, Any]
) -> Callable[..., None]:
    """The function that samples missing bulks, on this machine."""
    kernel = sampling_backend(job.kernel)
    if job.kernel in OTHER_BITS and (gpus := kernel.check_available()) > 1:
        return partial(sample_across, job, dataset, sampler, queue, out, store, gpus)
    plan, epochs = seed_plan(job, dataset), {"first_epoch": 0, "last_epoch": job.epochs}
    return partial(sample_bulks, dataset.graph, sampler, plan, kernel, queue, **epochs)


def _fill(
    job: Job,
    minibatches: int,
    queue: ZarrQueue,
    fill: Callable[..., int | None],
    emit: Emit,
    stop: Callable[[], bool],
    sweep: bool,
) -> int:
    """Sample the bulks missing from the queue, and return their number of edges."""
    total = job.epochs * -(-minibatches // job.queue.bulk_size)
    done = sum(len(queue.committed(e)) for e in range(job.epochs))
    edges = 0
    emit(
        StageStarted(
            "sample",
            f"sampling {counted(job.epochs, 'epoch')} of {counted(minibatches, 'minibatch', 'minibatches')}",
            total,
        )
    )

    def advance(receipt: Receipt) -> None:
        nonlocal done, edges
        done, edges = done + 1, edges + receipt.edges
        emit(StageAdvanced("sample", done, total))

    try:
        of_ranks = fill(stop=stop, on_receipt=advance)
        edges += of_ranks or 0
        if stop():
            raise Interrupted(
                f"interrupted with {done} of {total} bulks committed; the same command goes on from there"
            )
        queue.finish(sweep)
    finally:
        queue.close()
    return edges
