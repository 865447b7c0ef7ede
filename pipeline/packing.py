"""Packing of feature rows beside sampled minibatches, in passes over the features that bounded memory allows."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import numpy.typing as npt

from ..stages.fetch.ahead.units import distinct
from ..stages.memory.bytes_left import bytes_left
from ..stages.self_loops import degree_of
from ..storage.dataset_store import features_on_disk
from ..storage.errors import InputError, Interrupted
from ..storage.features import FeatureStore, WidenedFeatures
from ..storage.lazy_dataset import LazyDataset
from ..storage.minibatch import IntArray, MiniBatch
from ..storage.plural import counted
from ..storage.queue.packed_rows import FORMS, Form, PackedRows, RowForm, RowWriter
from ..storage.queue.zarr import ZarrQueue
from ..storage.store.full_disk import needing_space
from ..storage.typed.features import TypedFeatures
from ..storage.urls import is_url
from .assembly.parts import Parts
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
Bulk = tuple[int, int]


@dataclass(frozen=True, eq=False)
class PackedSource:
    """What the rows beside minibatches are made of."""

    features: FeatureStore
    degrees: npt.NDArray[np.float64] | None
    """float64 [V] or [V, 3], see `self_loops.degree_of`; None: they are not kept."""
    digest: str
    """Of the features: the run's `features`."""
    own: str
    """The dataset's `own_form`."""

    @classmethod
    def of_dataset(cls, sampling: Sampling, *, degrees: bool) -> "PackedSource":
        """The rows of the whole dataset, and the degrees of its nodes unless these go by the time of each seed."""
        dataset, features = sampling.dataset, cls.features_of(sampling)
        degree = degree_of(dataset.graph, True) if degrees and not sampling.reads_times else None
        return cls(features, degree, sampling.features_digest, own_form(features))

    @staticmethod
    def features_of(sampling: Sampling) -> FeatureStore:
        """The rows of the whole dataset; those of a store stay on disk."""
        dataset = sampling.dataset
        return features_on_disk(dataset.path) if isinstance(dataset, LazyDataset) else dataset.features

    @classmethod
    def of_parts(cls, sampling: Sampling, folder: Path) -> "PackedSource":
        """The rows of the parts of a cut, whose nodes are numbered part by part."""
        whole = cls.features_of(sampling)
        opened = Parts(folder, TORCH_DTYPES[str(np.dtype(whole.dtype))], False)
        rows, degrees = zip(*(opened.rows(k, True) for k in range(sampling.system.parts_before(sampling.job.ranks))))
        offsets = (0, *np.cumsum([len(d) for d in degrees]).tolist())
        degree = None if sampling.reads_times else np.concatenate(degrees)
        return cls(TypedFeatures(rows, offsets), degree, sampling.features_digest, own_form(whole))


def own_form(features: FeatureStore) -> str:
    """The form in which a dataset keeps its rows."""
    kind = features.kind if isinstance(features, WidenedFeatures | TypedFeatures) else None
    return kind or str(np.dtype(features.dtype))


def checked_form(wanted: str, features: FeatureStore) -> Form:
    """The form to keep rows in. Raises InputError if it is none."""
    form = own_form(features) if wanted == OWN else wanted
    if form not in FORMS or (form == "float64" and features.dtype != np.float64):
        allowed = ", ".join(FORMS[:-1])
        raise InputError(f"--features is '{wanted}'; expected one of {allowed}, or none for the dataset's own form")
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
        self._degrees = source.degrees
        columns = 0 if self._degrees is None else self._degrees.reshape(features.num_rows, -1).shape[1]
        self._queue, self._source, self._emit = queue, source, emit
        self.rows: PackedRows = queue.pack(
            {"features": source.digest, "form": form},
            (lambda text: emit(Note(text))) if mend else None,
            form=form,
            width=features.num_features,
            num_nodes=features.num_rows,
            degree_columns=columns,
            exact=form in (source.own, str(np.dtype(features.dtype))),
        )
        self._row_bytes = self.rows.form.row_bytes + 8 * columns

    @property
    def _is_remote(self) -> bool:
        return is_url(self._queue.path)

    def forecast(self, epoch: int, number: int, minibatches: int) -> None:
        """Tell what all rows will take, by those of one bulk.

        Args:
            epoch: of the bulk.
            number: of the bulk.
            minibatches: to be packed in all.

        Raises:
            InputError: the disk has not enough room.
        """
        counts = [len(ids) for ids in self._ids((epoch, number))]
        rows = -(-sum(counts) * minibatches // max(1, len(counts)))
        if not self._is_remote:
            self._check_disk(rows, minibatches)
        self._emit(
            Note(
                f"features of {counted(minibatches, 'minibatch', 'minibatches')}, as {self.rows.form.name}: about "
                f"{_shown(rows * self._row_bytes)} beside the samples"
            )
        )

    def finish(self, queue: ZarrQueue, epochs: int, stop: Callable[[], bool]) -> int:
        """Pack the rows that lack beside the bulks of some epochs, which `queue` reads; returns their bytes.

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
        counts = {bulk: [len(ids) for ids in self._ids(bulk)] for bulk in lacking}
        rows = sum(map(sum, counts.values()))
        if not lacking:
            return 0
        if not self._is_remote:
            self._check_disk(rows, sum(map(len, counts.values())))
        groups = list(self._groups(counts))
        windows = sum(len(self._windows(sum(sum(counts[b]) for b in group))) for group in groups)
        text = f"packing the features of {len(lacking):,} bulks, {_shown(rows * self._row_bytes)}"
        self._emit(StageStarted("pack", text, windows))
        done = 0
        with clock.measure("pack"):
            for group in groups:
                with needing_space(self._queue.path), ExitStack() as made:
                    writers = {b: made.enter_context(self.rows.writing(*b, counts[b])) for b in group}
                    ids = {b: self._ids(b) for b in group}
                    for first, last in self._windows(sum(sum(counts[b]) for b in group)):
                        self._pack(writers, ids, first, last)
                        done += 1
                        self._emit(StageAdvanced("pack", done, windows))
                        if stop():
                            raise Interrupted(
                                f"interrupted with {done} of {windows} parts of the features packed; the same command "
                                "goes on with the bulks that lack them"
                            )
        self._emit(StageEnded("pack", clock.seconds["pack"]))
        return rows * self._row_bytes

    def _pack(
        self,
        writers: Mapping[Bulk, RowWriter],
        ids: Mapping[Bulk, list[npt.NDArray[np.integer]]],
        first: int,
        last: int,
    ) -> None:
        """Write the rows of the nodes [first, last) of all minibatches of a group."""
        pieces = [
            (bulk, at, own[slice(*np.searchsorted(own, (first, last)))])
            for bulk, of_bulk in ids.items()
            for at, own in enumerate(of_bulk)
        ]
        asked = np.concatenate([np.empty(0, np.int64), *(own for _, _, own in pieces)])
        if not len(asked):
            return
        known, place = distinct(asked - first, last - first)
        known += first
        kept = self.rows.form.kept(self._source.features.gather(known))
        degrees = None if self._degrees is None else self._degrees[known]
        begin = 0
        for bulk, at, own in pieces:
            rows = place[begin : begin + len(own)]
            begin += len(own)
            writers[bulk].add(at, kept[rows], None if degrees is None else degrees[rows])

    def _windows(self, rows: int) -> list[tuple[int, int]]:
        """Ranges of nodes, of about `WINDOW_BYTES` of rows each among so many that are asked for."""
        nodes = self.rows.num_nodes
        wide = self._source.features.num_features * self._source.features.dtype.itemsize
        count = max(1, -(-min(rows, nodes) * max(wide, 1) // WINDOW_BYTES))
        bounds = [nodes * i // count for i in range(count + 1)]
        return list(zip(bounds, bounds[1:]))

    def _groups(self, counts: Mapping[Bulk, Sequence[int]]) -> Iterator[list[Bulk]]:
        """Bulks that are packed in one pass: their ids fit memory, and their files a temporary folder if they are sent
        elsewhere."""
        room = max(1, bytes_left() // 64)  # ids, and their share of a window
        if self._is_remote:
            room = min(room, shutil.disk_usage(gettempdir()).free // 2 // max(1, self._row_bytes))
        group, held = list[Bulk](), 0
        for bulk, of_bulk in counts.items():
            if group and (held + sum(of_bulk) > room or len(group) == MOST_BULKS):
                yield group
                group, held = [], 0
            group.append(bulk)
            held += sum(of_bulk)
        if group:
            yield group

    def _ids(self, bulk: Bulk) -> list[IntArray]:
        """Distinct nodes of each minibatch of a bulk, ascending."""
        return [np.unique(m.nodes) for m in _minibatches(self._queue, bulk)]

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


def _minibatches(queue: ZarrQueue, bulk: Bulk) -> Iterator[MiniBatch]:
    """The minibatches of a bulk that is there."""
    epoch, number = bulk
    first, per_epoch = number * queue.bulk_size, queue.minibatches_per_epoch
    last = first + queue.bulk_size if per_epoch is None else min(first + queue.bulk_size, per_epoch)
    for index in range(first, last):
        yield queue.get(epoch, index, 1.0)


def _shown(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.2f} MiB"
