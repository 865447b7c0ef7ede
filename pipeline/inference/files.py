"""Files of predictions and embeddings: .parquet, .csv, .npy and .zarr, each whole or not there at all; and the common
part of all that `millrace predict` writes."""

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from torch import nn

from ...storage.array_kinds import AnyArray, IdArray, IntArray, ValueArray
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.node_names import NodeNames
from ...storage.optional import taken
from ...storage.store.committed_folder import folder_aside, sweep_leftovers
from ...storage.store.full_disk import is_full, new_npy
from ...storage.store.paths import check_no_url, expanded
from ..datasets import ReadOptions
from ..telemetry.events import Emit, silent
from .by_tasks import Workers
from .finished_run import TrainedRun, load
from .opened import Call

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1 << 16
"""Rows of a file that are made at a time: a table takes little memory beside the logits."""
SUFFIXES = (".parquet", ".csv", ".npy", ".zarr")


@dataclass(frozen=True, eq=False, repr=False)
class FileRows:
    """Results for n rows, of which `numpy.asarray` makes an array, and which files hold."""

    BY_ROW: ClassVar[tuple[str, ...]] = ()
    """Fields with an entry for each row, or None; the first one has some."""

    def as_array(self) -> ValueArray:
        """The numbers, [n] or [n, D]."""
        raise NotImplementedError

    def columns(self) -> dict[str, Any]:
        """Arrays by name, with an entry for each row."""
        raise NotImplementedError

    def table(self) -> "pa.Table":
        """The rows as files have them."""
        import pyarrow as pa

        return pa.table(self.columns())

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of a Zarr group of the arrays."""
        return {}

    def pieces(self, step: int) -> Iterator[Self]:
        """So many rows after the other; one piece, if there are none."""
        for first in range(0, max(1, len(self)), step):
            rows = slice(first, first + step)
            yield replace(self, **{name: taken(getattr(self, name), rows) for name in self.BY_ROW})

    def __len__(self) -> int:
        """Number of rows."""
        return len(getattr(self, self.BY_ROW[0]))

    def __array__(self, *dtype: npt.DTypeLike, **copy: bool) -> ValueArray:
        # pyrefly: ignore[no-matching-overload]
        return np.array(self.as_array(), *dtype, **copy)


def names_of(nodes: IntArray, data: Dataset) -> list[str] | IdArray | None:
    """Names of nodes as the input had them, text or integers; None where nodes have no names."""
    if data.node_names is None:
        return None
    types = data.graph.types
    return NodeNames.from_values(data.node_names).called(nodes, types.offsets)


def as_column(values: list[str] | AnyArray) -> AnyArray:
    """Names as an array of text, or of integers where all objects are integers."""
    if isinstance(values, list):
        return np.asarray(values, np.str_)
    return np.asarray(values.tolist()) if values.dtype == object and len(values) else values


def row_columns(nodes: IntArray, names: Any) -> dict[str, Any]:
    """Columns that say which node, or [n, 2] which ends, a row is of: by `names` as `names_of` gives them, or by id."""
    of: Any = nodes if names is None else names if isinstance(names, np.ndarray) else [*names]
    return {"node": as_column(of)} if nodes.ndim == 1 else {"src": as_column(of[:, 0]), "dst": as_column(of[:, 1])}


def check_suffix(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """The suffix of a path, in lower case.

    Raises:
        InputError: it is none of `suffixes`.
    """
    if path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise InputError(f"{path} ends in '{path.suffix}'; expected a file that ends in {known}")
    return path.suffix.lower()


def write_rows(
    path: str | Path,
    kind: str,
    num_rows: int,
    pieces: Iterable[FileRows],
    table: "Callable[[Any], pa.Table]" = methodcaller("table"),
) -> None:
    """Write a file of one of `SUFFIXES`.

    Args:
        path: the file.
        kind: its suffix: .npy holds what `FileRows.as_array` gives, .zarr what `columns` does.
        num_rows: rows of all pieces.
        pieces: one or more.
        table: gives the `pyarrow.Table` of a piece.

    Raises:
        InputError: it cannot be written.
    """

    def write(aside: Path) -> None:
        if kind == ".npy":
            _write_npy(aside, num_rows, (piece.as_array() for piece in pieces))
        elif kind == ".zarr":
            _write_zarr(aside, num_rows, pieces)
        else:
            _write_tables(aside, kind, map(table, pieces))

    written(Path(path), write)


def _write_npy(path: Path, num_rows: int, pieces: Iterable[ValueArray]) -> None:
    """Write the rows of arrays as one array, for `numpy.load`."""
    file, at = None, 0
    for piece in pieces:
        if file is None:
            file = new_npy(path, piece.dtype, (num_rows, *piece.shape[1:]))
        file[at : at + len(piece)] = piece
        at += len(piece)
    assert file is not None and at == num_rows
    file.flush()


def _write_tables(path: Path, kind: str, tables: "Iterator[pa.Table]") -> None:
    """Write tables one below the other, as CSV or Parquet."""
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetWriter

    first = next(tables)
    with (CSVWriter if kind == ".csv" else ParquetWriter)(path, first.schema) as writer:
        for each in chain((first,), tables):
            writer.write_table(each)


def _write_zarr(path: Path, num_rows: int, pieces: Iterable[FileRows]) -> None:
    """Write a group of arrays with one row for each node, from pieces of `PIECE_ROWS` rows but for the last."""
    import zarr

    group, at, made = zarr.open_group(str(path), mode="w", zarr_format=3), 0, {}
    for piece in pieces:
        group.attrs.update(piece.attributes)
        arrays = {name: np.asarray(array) for name, array in piece.columns().items()}
        for name, array in arrays.items():
            kind = np.dtypes.StringDType() if array.dtype.kind in "UO" else array.dtype
            if name not in made:
                rows = 1 << max(0, int(np.log2((4 << 20) // max(1, array[:1].nbytes))))
                shape, rows = (num_rows, *array.shape[1:]), max(1, min(rows, PIECE_ROWS, num_rows))
                made[name] = group.create_array(name, shape=shape, dtype=kind, chunks=(rows, *shape[1:]))
            made[name][at : at + len(array)] = array.astype(kind, copy=False)
        at += len(next(iter(arrays.values())))


def put_new(aside: Path, path: Path) -> None:
    """Put a file or a folder in its place, unless something was made there meanwhile.

    Raises:
        InputError: something was.
    """
    try:
        if aside.is_dir():
            os.rename(aside, path)
        else:
            os.link(aside, path)  # unlike a rename, never in place of a file
    except OSError as e:
        if e.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) and not os.path.lexists(path):
            os.rename(aside, path)  # a file system without hard links
            return
        made = os.path.lexists(path)
        why = "was made by somebody else meanwhile" if made else f"cannot be written ({e.strerror})"
        raise InputError(f"{path} {why}; choose another --out") from None


def written(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file or a folder as a whole or not at all. It is made in a folder beside it; one that a killed process
    left is removed first.

    Raises:
        InputError: it cannot be written.
    """
    path = expanded(path)
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: {path.parent} is not a folder; make it, or choose another")
    sweep_leftovers(path.parent, path.name)
    try:
        with folder_aside(path) as folder:
            write(aside := folder / path.name)
            if aside.is_dir() and path.is_dir():
                os.rename(path, folder / "before")
            os.replace(aside, path)
    except OSError as e:
        number = e.errno or (errno.ENOSPC if is_full(e) else None)
        why = os.strerror(number) if number else e
        raise InputError(f"{path} cannot be written: {why}; choose another place, or free some space") from None


@dataclass(frozen=True, eq=False)
class FileRequest:
    """A finished run, the file that its predictions go to, and who computes them."""

    run: Path
    """Folder of a finished run."""
    out: Path
    """The file: .parquet, .csv (no embeddings), .npy or .zarr; it does not exist."""
    dataset: str | None = None
    """Dataset to predict; None: the run's own."""
    options: ReadOptions | None = None
    """Options of reading it: see `predict`."""
    model: nn.Module | None = None
    """See `load`."""
    emit: Emit = silent
    """Called with every event."""
    workers: int = 1
    """See `predict`, also for what follows."""
    scheduler: str | None = None
    cluster: Mapping[str, Any] | None = None
    device: str | None = None
    """See `load`."""

    @property
    def computing(self) -> dict[str, Any]:
        """Keyword arguments of `predict` and its like that say who computes, and who is told."""
        return {"workers": self.workers, "scheduler": self.scheduler, "cluster": self.cluster, "emit": self.emit}

    @property
    def call(self) -> Call:
        """Call of the model, on the dataset and by the workers of the request."""
        by = Workers.from_arguments(self.workers, self.scheduler, self.cluster)
        return Call(self.dataset, self.options, by, self.emit)

    @property
    def arguments(self) -> dict[str, Any]:
        """`computing`, with the dataset and how it is read."""
        return {"dataset": self.dataset, "options": self.options, **self.computing}

    def open_dataset(self, trained: TrainedRun, labelled: bool) -> Dataset:
        """The request's dataset: see `TrainedRun.open_dataset`."""
        return trained.open_dataset(self.dataset, emit=self.emit, labelled=labelled, options=self.options)

    def write(
        self, predict: Callable[[TrainedRun, Path], Mapping[str, Any]], embeddings: bool = False
    ) -> dict[str, Any]:
        """Load the run, write the file by `predict`, and record it.

        Args:
            predict: writes the file that it is given, and returns what the record says of it: numbers of rows; the
                dataset's name, if it is not what the request calls it.
            embeddings: the file will hold embeddings.

        Returns:
            A record of plain values: run, model, dataset, what `predict` returns, file, seconds.

        Raises:
            InputError: the file exists or cannot be written; or the run is not finished.
        """
        check_suffix(self.out, tuple(s for s in SUFFIXES if not (embeddings and s == ".csv")))
        check_new_path(self.out)
        start = time.perf_counter()
        trained = load(self.run, model=self.model, device=self.device, emit=self.emit)
        sweep_leftovers(self.out.parent, self.out.name)
        with folder_aside(self.out) as folder:
            record = predict(trained, folder / self.out.name)
            put_new(folder / self.out.name, self.out)
        return {
            "run": str(self.run),
            "model": trained.result.model,
            "dataset": trained.result.dataset if self.dataset is None else self.dataset,
            **record,
            "out": str(self.out),
            "seconds": time.perf_counter() - start,
        }

    def check_probabilities(self, trained: TrainedRun, wanted: bool) -> None:
        """Raise InputError if probabilities of all classes are `wanted` of a run that predicts values."""
        if wanted and trained.result.task == "regression":
            raise InputError(
                f"--all-probabilities is given, but {self.run} predicts values, of a regression; leave it out"
            )


def check_new_path(out: Path) -> None:
    """Raise InputError unless a new file can be made at `out`."""
    check_no_url(out, "a file on a file system")
    if os.path.lexists(out):
        raise InputError(f"{out} already exists; choose another --out")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder; choose another --out")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"{out.parent} cannot be written: permission denied; choose another --out")
