"""Sampling of all minibatches of a job into a store, ahead of training."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..stages.feed.queue_feed import BulkDraws, Receipt, sample_bulks
from ..stages.kernels import OTHER_BITS, sampling_backend
from ..stages.kernels.runtime.threads import set_num_threads
from ..stages.partition.clustered import Clustered
from ..stages.rapids import TO_SAMPLE, gpus_named
from ..storage.dataset import Dataset
from ..storage.errors import InputError, Interrupted, StoreError
from ..storage.fingerprint import digest_record
from ..storage.lazy_dataset import LazyDataset
from ..storage.plural import counted
from ..storage.queue.object_store import queue_at
from ..storage.queue.zarr import ZarrQueue
from ..storage.store.committed_folder import remove_tree
from ..storage.store.manifest import MANIFEST, require_fingerprint
from ..storage.store.own_files import own_folder
from ..storage.urls import is_url
from .assembly.data_part import graph_and_seeds
from .cluster.sample_multi_gpu import sample_across
from .config.load import Job
from .config.records import make_system
from .config.systems import SYSTEMS
from .dashboard.command import recorded_stages
from .ingest.convert import executing
from .opening import open_with_cluster
from .packing import PackedSource, Packing, checked_form
from .setup.checks import check_executor, check_parts
from .setup.open_queue import SampleStore, check_order
from .setup.run_folder import locked
from .setup.sampling import Sampling, sampling_of
from .setup.simulated_clients import check_cut
from .telemetry.control import Control
from .telemetry.events import Emit, Note, StageAdvanced, StageEnded, StageStarted


def precompute(
    job: Job,
    out: str | Path,
    *,
    emit: Emit,
    stop: Callable[[], bool],
    features: str = "",
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Fill a store with the minibatches of ``job.epochs`` epochs. Bulks already in it are kept.

    Args:
        job: the job to sample for.
        out: the store's folder, or its URL on an object store.
        features: pack the rows of each minibatch beside it, in this form (``packing.checked_form``); empty: do not.
        emit: called with every event.
        stop: called between bulks; true interrupts.
        dataset: the job's, if it is open.

    Returns:
        A record: epochs, minibatches, edges (of bulks sampled now), bytes on disk (None on an object store), features
        (the form of packed rows, or None), packed_bytes (of rows packed now), seconds.

    Raises:
        InputError: the job's system does not sample, `out` was made from something else, or the disk has no room for
            the rows.
        RunError: `out` cannot be written, or does not answer.
        Interrupted: `stop` returned true; committed bulks stay, and the same command continues from there.
    """
    place = out if is_url(out) else Path(out)
    goes_on = isinstance(place, Path) and place.exists()
    with recorded_stages("sample", job.dataset, place, emit, goes_on=goes_on) as tell:
        start = time.perf_counter()
        sampling = _sampling(job, open_with_cluster(job, None, tell, lazy=True) if dataset is None else dataset)
        if not sampling.num_train:
            raise InputError("the train split is empty: there is nothing to sample; choose another split")
        sample = _by_owners if sampling.draws_by_owners else _from_whole
        rows = _Rows(sampling, features, tell)
        edges = sample(sampling, out, rows, tell, stop)
        seconds = time.perf_counter() - start
        tell(StageEnded("sample", seconds))
    return {
        "out": str(out),
        "epochs": job.epochs,
        "minibatches": job.epochs * sampling.minibatches_per_epoch,
        "edges": edges,
        "bytes": None if is_url(out) else sum(f.stat().st_size for f in Path(out).rglob("*") if f.is_file()),
        "features": rows.form,
        "packed_bytes": rows.packed_bytes,
        "seconds": seconds,
    }


class _Rows:
    """The rows that are packed beside the samples, if any are asked for."""

    def __init__(self, sampling: Sampling, wanted: str, emit: Emit) -> None:
        """Raises InputError if the form is none."""
        self._sampling, self._emit = sampling, emit
        self._packing: Packing | None = None
        self._told = False
        self.form = checked_form(wanted, PackedSource.features_of(sampling)) if wanted else None
        self.packed_bytes = 0

    def begin(self, sampling: Sampling, queue: ZarrQueue, parts: Path | None = None, *, mend: bool) -> None:
        """Begin to pack beside a queue's bulks, which are still to come; `parts` are those of a cut. Raises what
        `Packing` raises."""
        if self.form is not None:
            source = PackedSource.of_sampling(sampling, parts)
            self._packing = Packing(queue, source, self.form, self._emit, mend=mend)

    def forecast(self, receipt: Receipt) -> None:
        """Tell, once, what the rows will take, by those of a bulk. Raises InputError if there is no room for them."""
        if self._packing is not None and not self._told:
            self._told = True
            minibatches = self._sampling.job.epochs * self._sampling.minibatches_per_epoch
            self._packing.forecast(receipt.epoch, receipt.number, minibatches)

    def finish(self, queue: ZarrQueue, stop: Callable[[], bool]) -> None:
        """Pack what lacks beside the bulks, which are there. Raises what `Packing.finish` raises."""
        job, packing = self._sampling.job, self._packing
        if packing is not None:
            here = not (packing.can_share and on_cluster(job))
            with executing(job, max(job.cluster.producers, job.ranks), here, self._emit, 0) as (execute, slots):
                self.packed_bytes = packing.finish(queue, job.epochs, stop, None if here else execute, slots)
        elif queue.packed is not None:
            lacking = any(
                queue.committed(epoch) - queue.packed.committed(epoch) for epoch in range(self._sampling.job.epochs)
            )
            if lacking:
                form = queue.packed.form.name
                self._emit(Note(f"bulks lack their features, which others have: sample --features={form} packs them"))


def _sampling(job: Job, dataset: Dataset) -> Sampling:
    """The job as far as its minibatches, which its ranks draw if they hold blocks of rows; else whoever has the whole
    graph draws them, since they do not depend on how it is distributed."""
    plain = make_system(job.model_copy(update={job.system: type(job.options)()}))
    if not plain.sample.uses_queue:  # its seed plan is the store's
        raise InputError(f"system '{plain.name}' does not sample minibatches; train without precomputing")
    system = make_system(job)
    if system.sample.record() != plain.sample.record():
        raise InputError(
            f"{job.system}.local_seeds is true, so that minibatches depend on the ranks that train; leave it out to "
            "draw samples for any of them"
        )
    SYSTEMS.find(system.name).check_data(job, system)
    if system.partition.partitioner is None or system.parts_before(job.ranks) == 1:
        return sampling_of(job, dataset, plain)
    check_executor(job)
    # Owners fill a store by their processors: on GPUs they would draw the same bits.
    kernel = "cpu" if job.kernel == "cuda" else job.kernel
    drawn = job.with_defaults(device="cpu", kernel=kernel)
    sampling = sampling_of(drawn, dataset, make_system(drawn))
    check_parts(drawn, sampling.system, dataset.num_nodes)
    check_cut(sampling)
    if isinstance(cut := sampling.system.partition.partitioner, Clustered):
        from .cluster.dask_cluster import check_gpus_of_cut

        check_gpus_of_cut(job, cut)
    return sampling


def _store_of(sampling: Sampling) -> dict[str, Any]:
    """Arguments of `ZarrQueue.create`."""
    cut = sampling.system.partition.partitioner
    made = f"{sampling.system.parts_before(sampling.job.ranks)} by {cut!r}"
    options = sampling.store_options | {"max_bytes": 1 << 62, "keep": "all"}
    options["meta"] |= {"dataset": sampling.dataset.name, **({"cut": made} if sampling.order else {})}
    return options


def on_cluster(job: Job) -> bool:
    """True if Dask workers do the work."""
    return not job.cluster.starts_here or job.executor == "dask"


def _from_whole(sampling: Sampling, out: str | Path, rows: _Rows, emit: Emit, stop: Callable[[], bool]) -> int:
    """Sample by processes that have the whole graph each; the number of edges."""
    job, dataset = sampling.job, sampling.dataset
    # The workers of a cluster open a store themselves.
    by_tasks = on_cluster(job) and isinstance(dataset, LazyDataset)
    if by_tasks:
        from .cluster.dask_cluster import check_reachable

        check_reachable(job.cluster)
    else:
        # Damage is told before anything is written, and what this machine lacks.
        dataset.graph.check()
        if not on_cluster(job):
            _ = sampling_backend(job.kernel)
    store = _store_of(sampling)
    create = partial(queue_at(out).create, out, **store)
    is_new = not is_url(out) and not Path(out).exists()
    # Anything else at `out` is refused before the folder is locked; leftovers are removed only under the lock.
    create(sweep=False).close()
    # An object store has no lock. A bulk left there by a killed writer has no manifest, and is overwritten when it is
    # sampled again.
    with _without_room(out, is_new), nullcontext() if is_url(out) else locked(Path(out)):
        queue = create(sweep=not is_url(out), mend=None if is_url(out) else lambda text: emit(Note(text)))
        rows.begin(sampling, queue, mend=not is_url(out))
        if not job.cluster.starts_here and job.kernel in OTHER_BITS:
            fill = _by_named_gpus
        elif by_tasks:
            fill = _by_tasks
        else:
            fill = _producer(sampling)
        set_num_threads(job.threads)
        try:
            edges = _fill(sampling, SampleStore(queue, out, store), fill, rows, Control(emit, stop))
            rows.finish(queue, stop)
            return edges
        finally:
            set_num_threads(None)
            queue.close()


@contextmanager
def _without_room(out: str | Path, is_new: bool) -> Iterator[None]:
    """Remove a new store if the disk has no room for its rows."""
    try:
        yield
    except InputError:
        if is_new:
            remove_tree(Path(out))
        raise


def _by_owners(sampling: Sampling, out: str | Path, rows: _Rows, emit: Emit, stop: Callable[[], bool]) -> int:
    """Cut the graph, and sample by ranks that hold a block of rows each; the number of edges. What they open lies in a
    folder beside the store until it is complete."""
    from .cluster.dask_cluster import check_reachable
    from .supervision.rank_work import Filling
    from .supervision.supervisor import run_on_cluster

    check_reachable(sampling.job.cluster)
    place = str(out) if is_url(out) else str(Path(out).resolve())
    if _is_complete(sampling, place, rows):
        return 0
    name = f"{digest_record({'out': place})[:12]}" if is_url(out) else Path(place).name
    folder = (Path.cwd() if is_url(out) else Path(place).parent) / f".sampling-{name}"
    own_folder(folder)
    with ExitStack() as exits:
        exits.enter_context(locked(folder))
        queues = list[ZarrQueue]()

        def create(cut: Sampling, parts: Path) -> dict[str, Any]:
            store = _store_of(cut)
            if _exists(place):
                check_order(cut, place, queue_at(place).open(place))
            queue_at(place).create(place, sweep=False, **store).close()
            if not is_url(place):
                exits.enter_context(locked(Path(place)))
            mend = None if is_url(place) else lambda text: emit(Note(text))
            queues.append(queue_at(place).create(place, sweep=not is_url(place), mend=mend, **store))
            rows.begin(cut, queues[0], parts, mend=mend is not None)
            _announce(cut, emit)
            return store

        try:
            reports = run_on_cluster(Filling(sampling, place, create), folder, Control(emit, stop))
            if stop():  # ranks may be done before they hear of it
                raise Interrupted("interrupted; what is committed stays, and the same command goes on from there")
            queues[0].finish(sweep=not is_url(place))
            rows.finish(queues[0], stop)
        except InputError:
            remove_tree(folder)
            raise
        finally:
            for queue in queues:
                queue.close()
    remove_tree(folder)
    return sum(report.sampled_edges for report in reports)


def _exists(place: str) -> bool:
    """True if there is a store already."""
    if not is_url(place):
        return (Path(place) / MANIFEST).exists()
    try:
        _ = queue_at(place).open(place)
    except StoreError:
        return False
    return True


def _is_complete(sampling: Sampling, place: str, rows: _Rows) -> bool:
    """True if a store has all bulks already, by the same cut, and the rows that are asked for.

    Raises:
        StoreError: it is of something else.
    """
    if not _exists(place):
        return False
    queue = queue_at(place).open(place)
    cut = replace(sampling, order=queue.fingerprint.get("order", ""))
    wanted = _store_of(cut)
    require_fingerprint(place, queue.fingerprint, wanted["fingerprint"])
    bulks = -(-cut.minibatches_per_epoch // queue.bulk_size)
    epochs = range(sampling.job.epochs)
    whole = all(len(queue.committed(epoch)) >= bulks for epoch in epochs)
    if rows.form is not None:
        packed = queue.packed
        whole &= packed is not None and all(len(packed.committed(epoch)) >= bulks for epoch in epochs)
        if packed is not None:
            require_fingerprint(place, packed.fingerprint, {"features": sampling.features_digest, "form": rows.form})
    return whole and queue.complete and queue.meta.get("cut") == wanted["meta"].get("cut")


Fill = Callable[[Sampling, SampleStore, Control, Callable[[Receipt], None]], None]
"""Samples the bulks that a store lacks, until the control says stop, and calls back with each that is stored."""


def _by_tasks(sampling: Sampling, store: SampleStore, control: Control, on_receipt: Callable[[Receipt], None]) -> None:
    """Sample by the tasks of a cluster."""
    from .cluster.sample_on_cluster import sample_on_cluster

    sample_on_cluster(sampling, store, control, on_receipt)


def _by_named_gpus(
    sampling: Sampling, store: SampleStore, control: Control, on_receipt: Callable[[Receipt], None]
) -> None:
    """Sample by the GPUs of the cluster that the job names, which share the graph; if dask-cuda did not make it, as
    without GPUs: by tasks from a store, else on this machine."""
    from .cluster.dask_cluster import on_named

    with on_named(sampling.job):
        if gpus := gpus_named(TO_SAMPLE):
            sample_across(sampling, store, gpus, control.stop, on_receipt)
            return
    fill = _by_tasks if isinstance(sampling.dataset, LazyDataset) else _producer(sampling)
    fill(sampling, store, control, on_receipt)


def _producer(sampling: Sampling) -> Fill:
    """The function that samples missing bulks, on this machine."""
    sample = sampling.sample
    kernel = sampling_backend(sample.kernel)
    if sample.kernel in OTHER_BITS and (gpus := kernel.check_available()) > 1:
        return lambda of, store, control, told: sample_across(of, store, gpus, control.stop, told)
    data = graph_and_seeds(sampling.dataset)
    draws = BulkDraws(data.graph, sample.policy.sampler, sample.plan(data), kernel)
    return lambda of, store, control, told: sample_bulks(
        draws, store.queue, of.bulks, stop=control.stop, on_receipt=told
    )


def _announce(sampling: Sampling, emit: Emit) -> int:
    """Tell what is sampled; the number of bulks."""
    job, minibatches = sampling.job, sampling.minibatches_per_epoch
    total = job.epochs * sampling.bulks.per_epoch
    what = f"{counted(job.epochs, 'epoch')} of {counted(minibatches, 'minibatch', 'minibatches')}"
    emit(StageStarted("sample", f"sampling {what}", total))
    return total


def _fill(sampling: Sampling, store: SampleStore, fill: Fill, rows: _Rows, control: Control) -> int:
    """Sample the bulks missing from the queue, and return their number of edges."""
    queue, emit = store.queue, control.emit
    total, edges = _announce(sampling, emit), 0
    done = sum(len(queue.committed(e)) for e in range(sampling.job.epochs))

    def advance(receipt: Receipt) -> None:
        nonlocal done, edges
        done, edges = done + 1, edges + receipt.edges
        emit(StageAdvanced("sample", done, total))
        rows.forecast(receipt)

    fill(sampling, store, control, advance)
    if control.stop():
        raise Interrupted(f"interrupted with {done} of {total} bulks committed; the same command goes on from there")
    queue.finish(sweep=not is_url(queue.path))
    return edges
