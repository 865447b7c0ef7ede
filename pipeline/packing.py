"""Packing of feature rows beside sampled minibatches, in passes over the features that bounded memory allows."""

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import numpy.typing as npt

from ..stages.fetch.ahead.units import distinct
from ..stages.partition.stage import owned_nodes
from ..stages.self_loops import degree_of
from ..storage.dataset_store import features_on_disk
from ..storage.errors import InputError, Interrupted
from ..storage.features import FeatureStore, WidenedFeatures
from ..storage.graph import Graph
from ..storage.lazy_dataset import LazyDataset
from ..storage.minibatch import IntArray, MiniBatch
from ..storage.plural import counted
from ..storage.queue.object_store import queue_at
from ..storage.queue.packed_rows import FORMS, Form, PackedRows, RowForm, RowWriter
from ..storage.queue.seed_data import SeedData
from ..storage.queue.zarr import ZarrQueue
from ..storage.store.bytes_left import bytes_left
from ..storage.store.full_disk import needing_space
from ..storage.typed.features import TypedFeatures
from ..storage.urls import is_url
from .assembly.data_part import DataPart
from .assembly.parts import Parts
from .ingest.tasks import Execute
from .setup.model import TORCH_DTYPES
from .setup.sampling import Sampling
from .telemetry.events import Emit, Note, StageAdvanced, StageEnded, StageStarted
from .telemetry.timers import Clock

WINDOW_BYTES = 64 << 20
"""Bytes of rows that are in hand at a time."""
MOST_BULKS = 200
"""Most bulks of a pass: each has two open files."""
OWN = "own"
"""Asks for the form in which the dataset keeps its rows."""
OF_TIMES = "the times of edges"
Bulk = tuple[int, int]


@dataclass(frozen=True)
class Data:
    """Where the rows beside minibatches come from, for any process that sees the files."""

    place: DataPart | Path
    """The dataset, or the folder of the parts of a cut, whose nodes are numbered part by part."""
    parts: int
    dtype: str
    """Of the dataset's features."""
    lacking: str
    """See `SeedData.of_dataset`."""
    order: str
    """See `Sampling.order`."""

    def rows(self) -> tuple[FeatureStore, npt.NDArray[np.float64]]:
        """Features, and `degrees_of`, of all nodes."""
        if isinstance(self.place, DataPart):
            return features_on_disk(Path(self.place.store)), degrees_of(self.place.open().graph, self.lacking)
        opened = Parts(self.place, TORCH_DTYPES[self.dtype], False)
        rows, degrees = zip(*(opened.rows(k, True) for k in range(self.parts)))
        offsets = (0, *np.cumsum([len(d) for d in degrees]).tolist())
        return TypedFeatures(rows, offsets), np.concatenate(degrees).reshape(offsets[-1], -1)

    def numbered(self, seeds: SeedData) -> SeedData:
        """The seeds of the dataset, as the parts number nodes."""
        if isinstance(self.place, DataPart) or seeds.meta["lacking"]:
            return seeds
        nodes = np.concatenate([owned_nodes(self.place, k) for k in range(self.parts)])
        number = np.empty(len(nodes), np.int64)
        number[nodes] = np.arange(len(nodes))
        order = np.argsort(number[seeds.train])
        return replace(seeds, train=number[seeds.train][order], labels=seeds.labels[order])


@dataclass(frozen=True, eq=False)
class PackedSource:
    """What the rows beside minibatches are made of."""

    features: FeatureStore
    """As far as their width and dtype are asked for."""
    rows: Callable[[], tuple[FeatureStore, npt.NDArray[np.float64]]]
    """Opens features, and `degrees_of`, of all nodes."""
    seeds: Callable[[], SeedData]
    digest: str
    """Of the features: the run's `features`."""
    own: str
    """The dataset's `own_form`."""
    degree_bytes: int
    """Least bytes of a row's degrees: a graph with self loops, which only a pass over its edges finds, has more."""
    data: Data | None
    """The same for tasks; None: they cannot open it."""

    @classmethod
    def of_sampling(cls, sampling: Sampling, parts: Path | None = None) -> "PackedSource":
        """The rows of the whole dataset, or of the parts of a cut that has renumbered the nodes."""
        dataset, features, order = sampling.dataset, cls.features_of(sampling), sampling.order
        lacking, place = _lacking(sampling), parts if order else None
        if place is None and isinstance(dataset, LazyDataset):
            place = DataPart(str(dataset.path.resolve()), dataset.name, dataset.features_access, sampling.job.graph)
        count, dtype = sampling.system.parts_before(sampling.job.ranks), str(np.dtype(features.dtype))
        data = None if place is None else Data(place, count, dtype, lacking, order)

        def rows() -> tuple[FeatureStore, npt.NDArray[np.float64]]:
            return data.rows() if data and order else (features, degrees_of(dataset.graph, lacking))

        def seeds() -> SeedData:
            found = SeedData.of_dataset(dataset, lacking, order)
            return data.numbered(found) if data else found

        least = 0 if lacking == OF_TIMES else 8
        return cls(features, rows, seeds, sampling.features_digest, own_form(features), data=data, degree_bytes=least)

    @staticmethod
    def features_of(sampling: Sampling) -> FeatureStore:
        """The rows of the whole dataset; those of a store stay on disk."""
        dataset = sampling.dataset
        return features_on_disk(dataset.path) if isinstance(dataset, LazyDataset) else dataset.features


def degrees_of(graph: Graph, lacking: str) -> npt.NDArray[np.float64]:
    """float64 [V, 1], or [V, 3] with self loops beside them; [V, 0] where degrees go by the time of each seed."""
    if lacking == OF_TIMES:
        return np.empty((graph.num_nodes, 0))
    return degree_of(graph, True).reshape(graph.num_nodes, -1)


def _lacking(sampling: Sampling) -> str:
    """What training would read that is not packed; nothing: ``""``."""
    dataset = sampling.dataset
    if dataset.of_pairs:
        return "the pairs of its seeds"
    if sampling.reads_times:
        return OF_TIMES
    return "" if dataset.graph.types.is_single else "the relations of edges"


def own_form(features: FeatureStore) -> str:
    """The form in which a dataset keeps its rows."""
    kind = features.kind if isinstance(features, WidenedFeatures | TypedFeatures) else None
    return kind or str(np.dtype(features.dtype))


def checked_form(wanted: str, features: FeatureStore) -> Form:
    """The form to keep rows in. Raises InputError if it is none."""
    form = own_form(features) if wanted == OWN else wanted
    if form not in FORMS or (form == "float64" and features.dtype != np.float64):
        raise InputError(f"features is '{wanted}'; expected one of {OWN}, {', '.join(FORMS[:-1])}")
    # pyrefly: ignore[bad-return]
    return form


class Packing:
    """The rows of a store of samples while they are made."""

    def __init__(self, queue: ZarrQueue, source: PackedSource, form: Form, emit: Emit, *, mend: bool) -> None:
        """
        Args:
            queue: the store; its bulks need not be there yet.
            source: of the rows.
            form: how they are kept.
            emit: called with events.
            mend: rows that are there are read, and damaged ones dropped: only while no other process writes there.

        Raises:
            StoreError: the store has rows of other features, or in another form.
        """
        features = source.features
        self._queue, self._source, self._emit = queue, source, emit
        self.rows: PackedRows = queue.pack(
            {"features": source.digest, "form": form},
            (lambda text: emit(Note(text))) if mend else None,
            form=form,
            width=features.num_features,
            num_nodes=features.num_rows,
            exact=form in (source.own, str(np.dtype(features.dtype))),
        )
        self._row_bytes = self.rows.form.row_bytes + source.degree_bytes
        self._is_remote = is_url(queue.path)
        self.can_share = bool(source.data)
        """True if tasks can open the rows."""

    def forecast(self, epoch: int, number: int, minibatches: int) -> None:
        """Tell what all rows will take, by those of one bulk.

        Args:
            epoch: of the bulk.
            number: of the bulk.
            minibatches: to be packed in all.

        Raises:
            InputError: the disk has not enough room.
        """
        counts = [len(ids) for ids in ids_of(self._queue, (epoch, number))]
        rows = -(-sum(counts) * minibatches // max(1, len(counts)))
        if not self._is_remote:
            self._check_disk(rows, minibatches)
        self._emit(
            Note(
                f"features of {counted(minibatches, 'minibatch', 'minibatches')}, as {self.rows.form.name}: about "
                f"{_shown(rows * self._row_bytes)} beside the samples"
            )
        )

    def finish(
        self, queue: ZarrQueue, epochs: int, stop: Callable[[], bool], execute: Execute | None = None, slots: int = 1
    ) -> int:
        """Pack the rows that lack beside the bulks of some epochs, which `queue` reads; returns their bytes.

        Args:
            queue: the bulks, which are there.
            epochs: number of these.
            stop: asked between parts; true interrupts.
            execute: runs tasks elsewhere; None: this process packs.
            slots: tasks at a time.

        Raises:
            InputError: the disk has not enough room.
            RunError: it is full all the same; what is committed stays.
            Interrupted: `stop` said so; likewise.
        """
        clock, self._queue = Clock(), queue
        lacking = [
            (epoch, number)
            for epoch in range(epochs)
            for number in sorted(self._queue.committed(epoch) - self.rows.committed(epoch))
        ]
        counts = {bulk: sum(len(ids) for ids in ids_of(queue, bulk)) for bulk in lacking}
        rows = sum(counts.values())
        if lacking and not self._is_remote:
            self._check_disk(rows, len(lacking) * queue.bulk_size)
        self.rows.keep_seeds(self._source.seeds())
        if not lacking:
            return 0
        groups = list(self._groups(counts, slots))
        windows = [self._windows(sum(counts[b] for b in group)) for group in groups]
        text = f"packing the features of {len(lacking):,} bulks, {_shown(rows * self._row_bytes)}"
        self._emit(StageStarted("pack", text, sum(windows)))
        done = 0
        with clock.measure("pack"), closing(self._packed(groups, windows, execute)) as steps:
            for step in steps:
                done += step
                self._emit(StageAdvanced("pack", done, sum(windows)))
                if stop():
                    raise Interrupted(
                        f"interrupted with {done} of {sum(windows)} parts of the features packed; the same command "
                        "goes on with the bulks that lack them"
                    )
        self._emit(StageEnded("pack", clock.seconds["pack"]))
        return rows * self._row_bytes

    def _packed(self, groups: Sequence[Sequence[Bulk]], windows: list[int], execute: Execute | None) -> Generator[int]:
        """Pack groups of bulks; the number of windows at each step."""
        if not (execute and self._source.data):
            features, degrees = self._source.rows()
            for group, count in zip(groups, windows):
                yield from pack(self._queue, self.rows, features, degrees, group, count)
            return
        place = str(self._queue.path) if self._is_remote else str(Path(self._queue.path).resolve())
        order = self._source.data, self._source.digest, place
        for number, _ in execute("pack", [(pack_task, *order, group, n) for group, n in zip(groups, windows)]):
            yield windows[number]

    def _windows(self, rows: int) -> int:
        """Number of ranges of nodes, of about `WINDOW_BYTES` of rows each among so many that are asked for."""
        wide = self._source.features.num_features * self._source.features.dtype.itemsize
        return max(1, -(-min(rows, self.rows.num_nodes) * max(wide, 1) // WINDOW_BYTES))

    def _groups(self, counts: Mapping[Bulk, int], slots: int) -> Iterator[list[Bulk]]:
        """Bulks that are packed in one pass: their ids fit memory, and their files a temporary folder if they are sent
        elsewhere. Each of `slots` tasks at a time has some."""
        room = max(1, bytes_left() // 64 // slots)  # ids, and their share of a window
        if self._is_remote:
            room = min(room, shutil.disk_usage(gettempdir()).free // 2 // slots // max(1, self._row_bytes))
        most = min(MOST_BULKS, -(-len(counts) // slots))
        group, held = list[Bulk](), 0
        for bulk, rows in counts.items():
            if group and (held + rows > room or len(group) == most):
                yield group
                group, held = [], 0
            group.append(bulk)
            held += rows
        if group:
            yield group

    def _check_disk(self, rows: int, minibatches: int) -> None:
        """Raise InputError unless there is room for so many rows."""
        place = Path(self._queue.path)
        need, free = rows * self._row_bytes, shutil.disk_usage(place).free
        if need > free:
            narrow = rows * (
                RowForm("int8", self.rows.form.width).row_bytes + self._row_bytes - self.rows.form.row_bytes
            )
            less = f", give --features=int8 ({_shown(narrow)}) and another --out" if narrow < need else ""
            raise InputError(
                f"the features of {counted(minibatches, 'minibatch', 'minibatches')} take {_shown(need)} of disk in "
                f"{place} as {self.rows.form.name}, where {_shown(free)} are free; free some, sample fewer epochs{less}"
            )


def pack_task(data: Data, digest: str, place: str, group: Sequence[Bulk], windows: int) -> dict[str, int]:
    """A task: pack a group of bulks of the store at a folder or URL, from features with a digest."""
    queue = queue_at(place).open(place)
    assert queue.packed is not None
    features, degrees = _opened(data, digest)
    for _ in pack(queue, queue.packed, features, degrees, group, windows):
        pass
    return {}


@lru_cache(1)
def _opened(data: Data, digest: str) -> tuple[FeatureStore, npt.NDArray[np.float64]]:
    """Rows and degrees that tasks share in a process. Another store may come to lie where `data` is: the digest tells
    them apart."""
    return data.rows()


def pack(
    queue: ZarrQueue,
    rows: PackedRows,
    features: FeatureStore,
    degrees: npt.NDArray[np.float64],
    group: Sequence[Bulk],
    windows: int,
) -> Generator[int]:
    """Pack the rows of some bulks in one pass over the features, by so many ranges of nodes; 1 after each of them.

    Raises:
        RunError: the disk is full; bulks that are committed stay.
    """
    bounds = [rows.num_nodes * i // windows for i in range(windows + 1)]
    columns = degrees.shape[1]
    with needing_space(queue.path), ExitStack() as made:
        ids = {bulk: ids_of(queue, bulk) for bulk in group}
        writers = {b: made.enter_context(rows.writing(*b, [len(own) for own in ids[b]], columns)) for b in group}
        for first, last in zip(bounds, bounds[1:]):
            _pack(writers, ids, rows.form, features, degrees, (first, last))
            yield 1


def _pack(
    writers: Mapping[Bulk, RowWriter],
    ids: Mapping[Bulk, list[IntArray]],
    form: RowForm,
    features: FeatureStore,
    degrees: npt.NDArray[np.float64],
    span: tuple[int, int],
) -> None:
    """Write the rows of a range of nodes of all minibatches of a group."""
    pieces = [
        (bulk, at, own[slice(*np.searchsorted(own, span))])
        for bulk, of_bulk in ids.items()
        for at, own in enumerate(of_bulk)
    ]
    asked = np.concatenate([np.empty(0, np.int64), *(own for _, _, own in pieces)])
    if not len(asked):
        return
    first, last = span
    known, place = distinct(asked - first, last - first)
    known += first
    kept = form.kept(features.gather(known))
    of_known = degrees[known]
    begin = 0
    for bulk, at, own in pieces:
        rows = place[begin : begin + len(own)]
        begin += len(own)
        writers[bulk].add(at, kept[rows], of_known[rows])


def ids_of(queue: ZarrQueue, bulk: Bulk) -> list[IntArray]:
    """Distinct nodes of each minibatch of a bulk that is there, ascending."""
    return [np.unique(m.nodes) for m in _minibatches(queue, bulk)]


def _minibatches(queue: ZarrQueue, bulk: Bulk) -> Iterator[MiniBatch]:
    """The minibatches of a bulk that is there."""
    epoch, number = bulk
    first, per_epoch = number * queue.bulk_size, queue.minibatches_per_epoch
    last = first + queue.bulk_size if per_epoch is None else min(first + queue.bulk_size, per_epoch)
    for index in range(first, last):
        yield queue.get(epoch, index, 1.0)


def _shown(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.2f} MiB"
