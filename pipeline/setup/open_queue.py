"""Opening of a run's queue by its producers, ranks and driver."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...stages.capabilities import Need
from ...stages.partition.contiguous import Contiguous
from ...storage.errors import InputError, StoreError
from ...storage.minibatch import Bulk, Expected, MiniBatch
from ...storage.plural import counted
from ...storage.queue.base import MemoryQueue, MinibatchQueue
from ...storage.queue.bulk_codec import packed_bytes
from ...storage.queue.cycle import Cycled
from ...storage.queue.location import KIND
from ...storage.queue.object_store import queue_at
from ...storage.queue.packed_rows import CATALOGUE
from ...storage.queue.seed_data import SampledDataset
from ...storage.queue.zarr import ZarrQueue
from ...storage.store.bytes_left import bytes_left
from ...storage.store.committed_folder import remove_tree
from ...storage.store.manifest import read_manifest, require_fingerprint
from ...storage.urls import is_url
from ..config.capabilities import Asked
from ..config.refusals import refuse
from ..config.schema import Queue
from ..telemetry.quantities import amount
from .prepare import Prepared
from .run_folder import is_locked, locked
from .sampling import Sampling

FOLDER = "queue"
PACKED = "packed"
"""Entry of a run's fingerprint: the form of features that were packed beside samples, if it rounds."""


def open_queue(location: str | Path, **options: Any) -> ZarrQueue:
    """Open a store of sampled minibatches for reading, at a path or a URL. Iterating over it gives every minibatch in
    order.

    Args:
        location: the store's folder, or an object store's URL such as ``s3://bucket/prefix``.
        options: see `ZarrQueue.open`.

    Raises:
        StoreError: the store does not exist, or is damaged.
    """
    if not isinstance(location, str | Path):
        raise InputError(f"location is of type {type(location).__name__}; expected a store's folder or URL")
    return queue_at(location).open(location, **options)


def is_being_written(samples: str | Path) -> bool:
    """True while a live process adds to a store of samples.

    A store on an object store has no lock, so it counts as finished.
    """
    return not is_url(samples) and is_locked(Path(samples))


def expected(prepared: Sampling) -> Expected:
    """Seeds and number of layers that the run's minibatches must have."""
    dataset = prepared.dataset
    # Any node may be the end of a negative.
    is_seed = np.full(dataset.num_nodes, dataset.of_pairs)
    if not dataset.of_pairs:
        is_seed[dataset.split.train] = True
    return Expected(is_seed, prepared.system.sample.num_layers)


def location(prepared: Sampling, out: Path) -> str:
    """Path or URL of the run's Zarr queue."""
    return prepared.job.queue.location or str(out / FOLDER)


def cut_as(prepared: Sampling, samples: str | Path) -> Sampling:
    """The run, in the order of nodes of a store of samples if ranks will renumber them by a cut that is still to be
    made; `Training.begin` compares the orders then."""
    cut = prepared.system.partition.partitioner
    if not prepared.draws_by_owners or cut is None or isinstance(cut, Contiguous):
        return prepared
    return replace(prepared, order=open_queue(samples).fingerprint.get("order", ""))


def check_order(sampling: Sampling, samples: str | Path, queue: ZarrQueue) -> None:
    """Refuse samples that were drawn in another order of the nodes. Raises StoreError."""
    if (drawn := queue.fingerprint.get("order", "")) == sampling.order:
        return
    seen = f"in the order of a cut, {str(queue.meta.get('cut', 'of another run'))[:80]}" if drawn else "in that of ids"
    wanted = f"of {sampling.system.partition.partitioner!r}" if sampling.order else "of ids"
    raise StoreError(
        f"{samples} was drawn {seen}, but this job numbers its nodes in the order {wanted}; cut once, by `millrace "
        "partition --out PARTS`, and give partition.owners=PARTS with bulk.topology=partitioned to both commands"
    )


def open_samples(prepared: Sampling, samples: str | Path, *, to_read: bool = True) -> MinibatchQueue:
    """The stored minibatches that a job trains from: complete, or still being written by a live process.

    Args:
        prepared: the run.
        samples: a path or URL.
        to_read: minibatches are to be read, and checked against the train nodes; false: only counted.

    Raises:
        StoreError: the store does not exist, is damaged, or was made from something else.
        InputError: minibatches of some epochs are missing.
    """
    job = prepared.job
    # Ranks with blocks of rows check minibatches themselves: the nodes may have other numbers.
    seeds = expected(prepared) if to_read and not prepared.draws_by_owners else None
    queue = open_queue(samples, expected=seeds)
    check_order(prepared, samples, queue)
    require_fingerprint(samples, queue.fingerprint, prepared.samples_fingerprint)
    check_packed(prepared, samples, queue)
    if job.queue.reuse == "cycle":
        return Cycled(queue)
    bulks = -(-prepared.minibatches_per_epoch // queue.bulk_size)
    lacking = next((e for e in range(job.epochs) if len(queue.committed(e)) < bulks), None)
    # A live producer that stops before these epochs are complete says so when it ends; the queue then refuses the
    # missing ones.
    if lacking is None or is_being_written(samples):
        return queue
    if queue.complete and lacking not in queue.epochs():
        raise InputError(
            f"{samples} holds {counted(lacking, 'epoch')}, but epochs is {job.epochs}; lower epochs, sample more, or "
            "start over when it ends, with --reuse cycle"
        )
    raise InputError(
        f"{samples} is not finished: epoch {lacking} has {len(queue.committed(lacking))} of {bulks} bulks; run its "
        "`millrace sample` command again, which samples the missing ones"
    )


def with_packed(prepared: Prepared, samples: str | Path | None) -> Prepared:
    """The run, whose fingerprint says in what form it reads features if stored samples have them beside them in one
    that rounds. Raises StoreError if there is no such store."""
    if samples is None or not prepared.has_minibatches:
        return prepared
    packed = open_queue(samples).packed
    if packed is None or packed.is_exact:
        return prepared
    return replace(prepared, fingerprint=prepared.fingerprint | {PACKED: packed.form.name})


def check_packed(sampling: Sampling, samples: str | Path, queue: ZarrQueue) -> None:
    """Refuse rows beside stored samples that the job cannot train on.

    Raises:
        StoreError: they are of other features.
        InputError: some are lacking, or the job needs what is not there.
    """
    packed, job = queue.packed, sampling.job
    if packed is None:
        return
    made = {"features": packed.fingerprint.get("features", ""), "form": packed.form.name}
    require_fingerprint(f"{samples}/{CATALOGUE}", made, {**made, "features": sampling.features_digest})
    epochs = queue.epochs() if job.queue.reuse == "cycle" else range(job.epochs)
    lacking = sum(len(queue.committed(epoch) - packed.committed(epoch)) for epoch in epochs)
    if lacking:
        again = "wait until it is done" if is_being_written(samples) else "run its `millrace sample` command again"
        raise InputError(
            f"{samples} packs features beside its samples, but {lacking} bulks of the epochs lack theirs; {again}"
        )
    if sampling.reads_edges:
        seen = f"the model reads features of edges, and {samples} packs those of nodes alone"
        refuse(Need.PACKED_EDGES, {Need.PACKED_EDGES: Asked(seen, "--samples")}, job)
    if share := sampling.system.options.get("cache_fraction"):
        raise InputError(
            f"bulk.cache_fraction is {share}, but {samples} has the features of each minibatch beside it, so that no "
            "rank asks others for any; leave it out"
        )
    alone = isinstance(sampling.whole, SampledDataset)
    if (alone or sampling.draws_by_owners) and not sampling.reads_times and not packed.has_degrees(0):
        raise InputError(
            f"{samples} was packed without the degrees of nodes by an earlier version; sample and pack into another "
            "folder, or name the dataset and leave bulk.topology out"
        )


def holds_seeds(samples: str | Path | None) -> bool:
    """True if stored samples have features and the labels of their seeds beside them."""
    if not samples:
        return False
    try:
        with closing(open_queue(samples)) as queue:
            return bool(queue.packed) and queue.packed.has_seeds
    except StoreError:  # whoever reads them says why
        return False


def own_queue(prepared: Sampling, out: Path, tell: Callable[[str], None] = lambda text: None) -> MinibatchQueue:
    """The queue that a rank fills for itself in a thread: in memory, or in the run's folder. `tell` is called as
    `repaired_queue` does, and where memory is short of the bytes that the job asks for."""
    q, per_epoch, ranks = prepared.job.queue, prepared.minibatches_per_epoch, prepared.job.ranks
    if q.kind == "memory":
        # A rank samples only its own minibatches: k of them out of k P. Rows and the model need memory too.
        rows = prepared.system.options.get("prefetch_bytes", "auto")
        left = bytes_left()
        left -= 0 if rows == "auto" else min(ranks * rows, left * 3 // 4)
        most = max(1, min(q.max_bytes, left // (8 * ranks)))
        if most < q.max_bytes != Queue().max_bytes:
            asked = f"queue.max_bytes is {amount(q.max_bytes)}, but memory is short"
            tell(f"{asked}: sampled minibatches that wait take {amount(most)} of a rank at most")
        return MemoryQueue(bulk_size=q.bulk_size * ranks, max_bytes=most, keep=q.keep, minibatches_per_epoch=per_epoch)
    # Who draws by owners of rows begins no bulk before there is room for it.
    most = 1 << 62 if prepared.draws_by_owners else q.max_bytes
    queue = repaired_queue(prepared, out, tell, max_bytes=most, keep=q.keep, expected=expected(prepared))
    queue.bound = q.max_bytes
    return queue


def repaired_queue(prepared: Sampling, out: Path, tell: Callable[[str], None], **options: Any) -> Any:
    """The run's queue without the damaged bulks of an earlier generation, which are sampled again.

    Args:
        prepared: the run.
        out: the run's folder.
        tell: called with a sentence about each damaged bulk.
        options: see `ZarrQueue.create`.
    """
    where = location(prepared, out)
    if prepared.job.queue.location is None and Path(where).exists():
        try:
            read_manifest(Path(where), KIND)
        except StoreError as e:
            remove_tree(Path(where))
            tell(f"the run's queue was damaged, and is sampled again: {e}")
    return shared_queue(prepared, where, mend=tell, **options)


def shared_queue(prepared: Sampling, where: str, **options: Any) -> Any:
    """Create or join the run's queue at `where`. Options: see `ZarrQueue.create`; those who read from it give what is
    `expected`."""
    return queue_at(where).create(where, **prepared.store_options, **options)


@contextmanager
def lock_queue_folder(prepared: Sampling, samples: str | Path | None) -> Iterator[None]:
    """Lock the folder that the configuration sets for the run's queue against other runs. A queue on an object store
    cannot be locked.

    Raises:
        InputError: another process uses the folder.
        StoreError: the folder holds something else, or minibatches made from something else.
    """
    q = prepared.job.queue
    folder = q.location if samples is None and q.kind == "zarr" and prepared.has_minibatches else None
    if folder is None or is_url(folder):
        yield
        return
    # The queue is made first: a folder with nothing but a lock is not a queue.
    shared_queue(prepared, folder, max_bytes=q.max_bytes, keep="all", sweep=False).close()
    with locked(Path(folder)):
        yield


def check_samples(prepared: Sampling, samples: str | Path | None) -> None:
    """Refuse sampled minibatches for a system that trains on none."""
    if samples is not None and not prepared.has_minibatches:
        refuse(Need.STORED, {Need.STORED: Asked(f"--samples is {samples}", "it")}, prepared.job)


@dataclass(frozen=True)
class SampleStore:
    """A store of minibatches that is filled."""

    queue: ZarrQueue
    """The driver's own end."""
    out: str | Path
    """Its folder, or its URL."""
    options: dict[str, Any]
    """Arguments of `ZarrQueue.create`, for other processes."""

    @property
    def place(self) -> str:
        """Its URL, or its folder, absolute."""
        return str(self.out) if is_url(self.out) else str(Path(self.out).resolve())


@dataclass(frozen=True)
class QueueEnd:
    """A rank's end of a queue of minibatches."""

    queue: MinibatchQueue | None = None
    """None: the system trains on no queued minibatches."""
    produce: bool = True
    """True if the rank fills it in a thread of its own; False: others do, or have done."""
    producer_alive: Callable[[], bool] = lambda: True
    """See `RankJob.producer_alive`."""


def queue_for_rank(
    prepared: Sampling, where: str | None, samples: str | None, tell: Callable[[str], None] = lambda text: None
) -> QueueEnd:
    """A rank's end of the queue at `where`, of a store of samples, or of its own queue: see `own_queue`."""
    if not prepared.has_minibatches:
        return QueueEnd()
    if samples is not None:
        return QueueEnd(open_samples(prepared, samples), False, lambda: is_being_written(samples))
    if where is not None and prepared.draws_by_owners:
        # The driver counts what ranks put, and drops what all have released.
        return QueueEnd(shared_queue(prepared, where, max_bytes=1 << 62, keep="all", sweep=False))
    if where is not None:
        # The driver watches these producers, and ends the ranks if sampling fails.
        seen = {"fingerprint": prepared.samples_fingerprint, "expected": expected(prepared)}
        return QueueEnd(open_queue(where, **seen), False)
    return QueueEnd(own_queue(prepared, Path(), tell))


class ReportingQueue:
    """A queue that reports what is put and released, for use where that is counted in another process."""

    def __init__(self, queue: MinibatchQueue, tell: Callable[[dict[str, Any]], None], per_epoch: int) -> None:
        """
        Args:
            queue: a rank's end of a queue.
            tell: called with messages: ``released`` (epoch, index), ``committed`` (epoch, number, last index, bytes).
            per_epoch: minibatches in an epoch.
        """
        self._queue, self._tell, self._per_epoch = queue, tell, per_epoch
        self._said = (-1, -1)
        self.stored, self.packed = queue.stored, queue.packed
        self.bulk_size = queue.bulk_size

    @property
    def level(self) -> dict[str, int]:
        return self._queue.level

    def release(self, epoch: int, index: int, consumer: int = 0) -> None:
        """See `MinibatchQueue.release`. Reported at the end of each bulk, since only whole bulks free memory."""
        self._queue.release(epoch, index, consumer)
        # The last bulk of an epoch may be short.
        passed = (epoch, self._per_epoch if index + 1 == self._per_epoch else (index + 1) // self.bulk_size)
        if passed != self._said:
            self._said = passed
            self._tell({"released": [epoch, index]})

    def put(self, bulk: Bulk, timeout_s: float) -> None:
        self._queue.put(bulk, timeout_s)
        if self.stored:
            last = bulk.minibatches[-1].index
            self._tell({"committed": [bulk.epoch, bulk.number, last, packed_bytes(bulk)]})

    def get(self, epoch: int, index: int, timeout_s: float) -> MiniBatch:
        return self._queue.get(epoch, index, timeout_s)

    def committed(self, epoch: int) -> set[int]:
        return self._queue.committed(epoch)

    def fail(self, error: BaseException) -> None:
        self._queue.fail(error)

    def close(self) -> None:
        self._queue.close()
