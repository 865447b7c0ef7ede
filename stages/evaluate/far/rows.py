"""Results of a layer, collected first to last: on the model's device, or on the host in memory or in a file."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....storage.array_kinds import AnyArray, IntArray, ValueArray
from ....storage.errors import RunError
from ....storage.store.bytes_left import fits_in_memory
from ....storage.store.npy import mapped
from ....storage.store.row_file import RowFile
from ...comm.base import Group

MESSAGE_BYTES = 64 << 20
"""Rows that ranks tell each other at a time."""


class DeviceSink:
    """Collects the rows of a layer's result, first to last, on the model's device."""

    def __init__(self, rows: int) -> None:
        self._count, self._filled = rows, 0
        self._rows: Tensor | None = None

    def append(self, chunk: Tensor) -> None:
        """[n, D], the next rows."""
        if self._rows is None:
            self._rows = chunk.new_empty(self._count, chunk.shape[1])
        self._rows[self._filled : self._filled + len(chunk)] = chunk
        self._filled += len(chunk)

    def finish(self) -> Tensor:
        """All rows."""
        assert self._rows is not None and self._filled == self._count
        return self._rows


class HostSink:
    """Collects the rows of a layer's result, first to last, on the host, in memory or in an unnamed file."""

    def __init__(self, rows: int, scratch: Path | None, summed: Callable[[int], int] = int) -> None:
        """`summed`: of so many columns, the first ones that the next layer sums. In a file they lie apart."""
        self.rows, self.scratch, self._summed = rows, scratch, summed
        self.filled = 0
        self.array: AnyArray | None = None
        self.file: Any = None
        self._parts: list[tuple[Any, int, slice]] = []
        """Files, where the first row lies in each, and its columns there."""

    def skip(self, n: int) -> None:
        """Leave out the next n rows, which others fill in. The rows must be in memory."""
        assert self.array is not None
        self.filled += n

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; known after the first rows."""
        return self.shape[1] * self.dtype.itemsize

    @property
    def reserved(self) -> int:
        """Bytes of memory that rows to come will take."""
        return 0 if self.array is None else self.array[self.filled :].nbytes

    def append(self, rows: Tensor, reserved: int = 0) -> None:
        """[n, D], the next rows. `reserved`: see `begin`."""
        self.begin(rows, reserved)
        chunk = rows.numpy(force=True)
        if self.file is not None:
            self._write(chunk)
        else:
            assert self.array is not None
            self.array[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)

    def begin(self, rows: Tensor, reserved: int = 0) -> None:
        """Take memory for rows such as these, unless it has been taken, beside so many bytes that others will take."""
        if self.array is None and self.file is None:
            self._buffer = rows[:0].numpy(force=True)
            self.dtype, self.shape = self._buffer.dtype, (self.rows, rows.shape[1])
            self._begin(reserved)

    def reserve(self, n: int) -> AnyArray:
        """Memory for the next n rows, to be filled before `commit`. `begin` or `append` must have been called."""
        self._pending = n
        if self.array is not None:
            return self.array[self.filled : self.filled + n]
        if len(self._buffer) < n:
            self._buffer = np.empty((n, self.shape[1]), self.dtype)
        return self._buffer[:n]

    def commit(self) -> None:
        """Take the rows in `reserve`."""
        if self.file is not None:
            self._write(self._buffer[: self._pending])
        self.filled += self._pending

    def spread(self, first: int, last: int, source: int, group: Group) -> None:
        """Take rows [first, last) from rank `source`, which has computed them. All ranks call this."""
        assert self.array is not None
        step = max(1, MESSAGE_BYTES // max(1, self.row_bytes))
        for low in range(first, last, step):
            group.broadcast(torch.from_numpy(self.array[low : min(low + step, last)]), source, "activations")
        self.filled = max(self.filled, last)

    def _write(self, chunk: ValueArray) -> None:
        for file, first, columns in self._parts:
            part = np.ascontiguousarray(chunk[:, columns])
            self._written(partial(file.seek, first + self.filled * part.shape[1] * part.itemsize))
            self._written(partial(file.write, part.data))

    def _written(self, do: Callable[[], object]) -> object:
        """The result of what writes. Raises RunError if the disk is full."""
        try:
            return do()
        except OSError as e:
            raise RunError(
                f"evaluation cannot write to {self.scratch} ({e.strerror or e}); free space there, or name another "
                "scratch folder"
            ) from e

    def _begin(self, reserved: int) -> None:
        if self.scratch is not None and not fits_in_memory(self.rows * self.row_bytes + reserved):
            self._written(partial(self.scratch.mkdir, parents=True, exist_ok=True))
            # It has no name, so that a killed process leaves nothing behind.
            self.file = self._written(partial(tempfile.TemporaryFile, dir=self.scratch))
            summed = slice(0, self._summed(self.shape[1]))
            beside = self.rows * summed.stop * self.dtype.itemsize
            self._parts = [(self.file, 0, summed), (self.file, beside, slice(summed.stop, self.shape[1]))]
        else:
            self.array = np.empty(self.shape, self.dtype)

    def stored(self) -> "StoredRows | None":
        """All rows as a store that reads the file they are in; None: they are in memory."""
        assert self.filled == self.rows
        if self.file is None:
            return None
        with self.file as file:
            self._written(file.flush)
            path, rows = Path(f"/proc/self/fd/{file.fileno()}"), self.rows
            widths = [(first, (of.stop - of.start) * self.dtype.itemsize) for _, first, of in self._parts]
            files = [RowFile(path, first, row, rows) for first, row in widths]
            for each in files:
                each.path = self.scratch or path
            return StoredRows(files, self.dtype)

    def finish(self) -> AnyArray:
        """All rows."""
        assert self.filled == self.rows
        if self.file is None:
            assert self.array is not None
            return self.array
        with self.file as file:
            self._written(file.flush)
            return np.asarray(mapped(file, self.dtype, self.shape))


class StoredRows:
    """Rows in files, the first columns of all apart from the others. See `FeatureStore`."""

    def __init__(self, files: Sequence[RowFile], dtype: npt.DTypeLike) -> None:
        """
        Args:
            files: the columns that are summed, and the others.
            dtype: of the numbers.
        """
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.num_rows, self._files = files[0].num_rows, files
        self.summed, beside = (file.row_bytes // self.dtype.itemsize for file in files)
        self.num_features = self.summed + beside
        self._parts = slice(0, self.summed), slice(self.summed, self.num_features)

    def gather(self, ids: IntArray, out: AnyArray | None = None, parts: tuple[int, ...] = (0, 1)) -> AnyArray:
        """Rows of ascending `ids`, see `FeatureStore.gather`; or only these parts of their columns."""
        if out is None and self.summed == self.num_features:
            return self.columns(ids, 0)
        rows = np.empty((len(ids), self.num_features), self.dtype) if out is None else out
        for part in parts:
            rows[:, self._parts[part]] = self.columns(ids, part)
        return rows

    def columns(self, ids: IntArray, part: int) -> AnyArray:
        """The first columns of rows (part 0), or the others."""
        file = self._files[part]
        rows = np.empty((len(ids), file.row_bytes // self.dtype.itemsize), self.dtype)
        file.read(ids, rows.view(np.uint8).reshape(len(ids), file.row_bytes), None)
        return rows
