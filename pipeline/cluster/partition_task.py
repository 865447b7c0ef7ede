"""Partitioning on a cluster: the driver assigns nodes to parts, Dask tasks deal rows to the parts, and one task for
each part writes it."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from distributed import Client, Future

from ...stages.partition.base import Cut, can_travel
from ...stages.partition.mend import damage_of
from ...stages.partition.quality import PartCounts
from ...stages.partition.stage import Cutter, assign_nodes, write_part
from ...storage.dataset import Dataset
from ...storage.dataset_store import KIND as DATASET_KIND
from ...storage.dataset_store import features_access, graph_access, open_stored
from ...storage.errors import MillraceError, RunError, StoreError
from ...storage.lazy_dataset import open_lazily
from ...storage.partition.book import Book, open_book, order_digest
from ...storage.partition.shuffle import ShuffledStore, begin, deal
from ...storage.store.committed_folder import ASIDE, remove_tree
from ...storage.store.store import open_store
from ..config.load import Job
from ..machine.time_limit import in_time
from ..setup.shared_dataset import share
from ..telemetry.events import Emit, Note, StageAdvanced
from .dask_cluster import gpus_to_cut, opened
from .futures import completed, result_of, seeing
from .scheduler_watch import SchedulerWatch

FORGET_S = 5.0


class Cutting:
    """The steps of `partition_dataset` by the tasks of a cluster, from a store that its workers open. The driver reads
    manifests.

    Args:
        client: of the cluster.
        dataset: the dataset's store.
        out: folder of the parts.
        watch: of the scheduler.
        emit: called with events.
    """

    def __init__(self, client: Client, dataset: Path, out: Path, watch: SchedulerWatch, emit: Emit) -> None:
        self.client, self.watch, self.emit = client, watch, emit
        self.dataset, self.out = dataset.resolve(), out.resolve()
        made = next(p for p in self.out.parents if p.exists())
        self._submit = partial(client.submit, seeing, (self.dataset.parent, made), pure=False)

    def assign(self, cut: Cut, fingerprint: dict[str, str]) -> None:
        """Make the book; by a task if the partitioner reads the graph.

        Raises:
            InputError: as the partitioner raises it.
            RunError: the task failed.
        """
        arguments = self.dataset, cut, self.out, fingerprint
        if not can_travel(cut.partitioner):
            _assign(*arguments)
            return
        tuple(_done(self.watch, [self._submit(_assign, *arguments, key=f"assign-{uuid.uuid4().hex[:8]}")]))

    def damage(self, stores: Sequence[Path], made: Mapping[str, str]) -> Iterator[tuple[Path, str | None]]:
        """See `stages.partition.mend.Find`: a task for each store."""
        batch = uuid.uuid4().hex[:8]
        futures = [
            self._submit(_damage, k, store, dict(made), key=(f"verify-{batch}", k)) for k, store in enumerate(stores)
        ]
        found = dict(_done(self.watch, futures))
        return ((store, found[k]) for k, store in enumerate(stores))

    def order(self) -> str:
        """See `storage.partition.book.order_digest`, of the book that is stored."""
        return next(iter(_done(self.watch, [self._submit(_order, self.out, key=f"order-{uuid.uuid4().hex[:8]}")])))

    def write_parts(self, parts: list[int], fingerprint: dict[str, str]) -> Iterator[tuple[int, PartCounts]]:
        """Write parts whose book is stored by the workers, while the scheduler answers.

        Until the parts are written, `out` holds their rows once more, uncompressed (see `storage.partition.shuffle`).

        Yields:
            (part, its `PartCounts`), as they are written.

        Raises:
            RunError: a part could not be written.
        """
        if not parts:
            return
        batch, client, out, dataset = uuid.uuid4().hex[:8], self.client, self.out, self.dataset
        submit, done_of = self._submit, partial(_done, self.watch)
        # What a killed call leaves under such a name goes when the next one sweeps the folder.
        folder = out / f"{ASIDE}dealt-{batch}"
        try:
            folder.mkdir()
            (num_ranges,) = done_of([submit(_begin, out, dataset, batch, parts, folder, key=f"begin-{batch}")])
            deals = (submit(_deal, out, dataset, batch, k, folder, key=(f"deal-{batch}", k)) for k in range(num_ranges))
            for done, _ in enumerate(done_of(deals), 1):
                self.emit(StageAdvanced("deal", done, num_ranges))
            keys = ((part, (f"partition-{batch}", part)) for part in parts)
            yield from done_of(submit(_write, out, batch, part, folder, fingerprint, key=key) for part, key in keys)
            with suppress(TimeoutError):
                in_time(FORGET_S, client.run, _book.cache_clear, on_error="ignore")
        finally:
            remove_tree(folder)

    def cutter(self, cut: Cut) -> Cutter:
        """The workers as those who cut."""
        return Cutter(partial(self.assign, cut), self.write_parts)


@contextmanager
def cutting_on_cluster(job: Job, dataset: Dataset, cut: Cut, out: Path, emit: Emit) -> Iterator[Cutting]:
    """Context with the workers that cut a job's dataset into parts in `out`: as many as the job has producers, at most
    one for each part; or one for each GPU, if the partitioner works there.

    Raises:
        RunError: there are no workers.
    """
    path = Path(share(job, dataset, out).store)
    job = job.model_copy(update={"device": "cpu"})  # no ranks
    with (
        _removed(path, made=path.parent == out.resolve()),
        opened(job, emit, min(job.cluster.producers, cut.parts), gpus_to_cut(job, cut.partitioner, out)) as client,
        closing(SchedulerWatch(client, job.cluster, lambda text: emit(Note(text)))) as watch,
    ):
        yield Cutting(client, path, out, watch, emit)


def _done(watch: SchedulerWatch, futures: Iterable[Future]) -> Iterator[Any]:
    """Results of tasks, as they come. A finished task is released: its files stay, and need not be written again if its
    worker is lost."""
    for future in completed(watch, [*futures]):
        try:
            result = result_of(watch, future)
        except Exception as e:
            if isinstance(e, MillraceError) and not isinstance(e, StoreError):
                raise
            raise RunError(
                f"partitioning failed: {type(e).__name__}: {e}; "
                "fix that and give the command again (a run: with --resume)"
            ) from e
        yield result


@contextmanager
def _removed(path: Path, made: bool) -> Iterator[None]:
    """Context after which a store that was made only for the workers is removed."""
    try:
        yield
    finally:
        if made:
            remove_tree(path)


@lru_cache(maxsize=1)
def _book(out: Path, batch: str) -> Book:
    """The book, which a worker opens once for all tasks of a batch."""
    return open_book(out / "book")


def _begin(out: Path, dataset: Path, batch: str, parts: list[int], folder: Path) -> int:
    return begin(open_stored(dataset), _book(out, batch).num_parts, parts, folder)


def _deal(out: Path, dataset: Path, batch: str, k: int, folder: Path) -> None:
    deal(open_stored(dataset), k, _book(out, batch), folder)


def _write(out: Path, batch: str, part: int, folder: Path, fingerprint: dict[str, str]) -> tuple[int, PartCounts]:
    return part, write_part(out, ShuffledStore(folder).part(part), _book(out, batch), part, fingerprint)


def _assign(dataset: Path, cut: Cut, out: Path, fingerprint: dict[str, str]) -> None:
    if not (out / "book").exists():  # as a task that was done again finds it
        graph = graph_access(open_store(dataset, DATASET_KIND))
        data = open_lazily(dataset, features_access(dataset), graph=graph)
        assign_nodes(data, cut, out, fingerprint)


def _order(out: Path) -> str:
    return order_digest(open_book(out / "book"))


def _damage(number: int, store: Path, made: dict[str, str]) -> tuple[int, str | None]:
    return number, damage_of(store, made)
