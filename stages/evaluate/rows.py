"""Results of a layer, collected first to last: on the model's device, or on the host in memory or in a file."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.errors import RunError
from ...storage.store.row_file import RowFile
from ..comm.base import Group
from ..memory.bytes_left import fits_in_memory

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

    def __init__(self, rows: int, scratch: Path | None, max_bytes: int) -> None:
        self.rows, self.scratch, self.max_bytes = rows, scratch, max_bytes
        self.filled = 0
        self.array: npt.NDArray[Any] | None = None
        self.file: Any = None

    def skip(self, n: int) -> None:
        """Leave out the next n rows, which others fill in. The rows must be in memory."""
        assert self.array is not None
        self.filled += n

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; known after the first rows."""
        return self.shape[1] * self.dtype.itemsize

    def append(self, rows: Tensor) -> None:
        """[n, D], the next rows."""
        self.begin(rows)
        chunk = rows.numpy(force=True)
        if self.file is not None:
            self._write(chunk)
        else:
            assert self.array is not None
            self.array[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)

    def begin(self, rows: Tensor) -> None:
        """Take memory for rows such as these, unless it has been taken."""
        if self.array is None and self.file is None:
            self._begin(rows.numpy(force=True))

    def reserve(self, n: int) -> npt.NDArray[Any]:
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

    def _write(self, chunk: npt.NDArray[Any]) -> None:
        try:
            self.file.write(np.ascontiguousarray(chunk).data)
        except OSError as e:
            raise self._full(e) from e

    def _begin(self, chunk: npt.NDArray[Any]) -> None:
        self.dtype, self.shape = chunk.dtype, (self.rows, chunk.shape[1])
        self._buffer = np.empty((0, chunk.shape[1]), chunk.dtype)
        num_bytes = self.rows * self.row_bytes
        if self.scratch is not None and num_bytes > self.max_bytes and not fits_in_memory(num_bytes):
            try:
                self.scratch.mkdir(parents=True, exist_ok=True)
                # It has no name, so that a killed process leaves nothing behind.
                self.file = tempfile.TemporaryFile(dir=self.scratch)  # noqa: SIM115
            except OSError as e:
                raise self._full(e) from e
        else:
            self.array = np.empty(self.shape, chunk.dtype)

    def _full(self, e: OSError) -> RunError:
        return RunError(
            f"evaluation cannot write to {self.scratch} ({e.strerror or e}); free space there, or name another "
            "scratch folder"
        )

    def stored(self) -> "StoredRows | None":
        """All rows as a store that reads the file they are in; None: they are in memory."""
        assert self.filled == self.rows
        if self.file is None:
            return None
        with self.file as file:
            try:
                file.flush()
            except OSError as e:
                raise self._full(e) from e
            return StoredRows(file.fileno(), self.scratch or Path(), self.shape, self.dtype)

    def finish(self) -> npt.NDArray[Any]:
        """All rows."""
        assert self.filled == self.rows
        if self.file is None:
            assert self.array is not None
            return self.array
        with self.file as file:
            try:
                file.flush()
            except OSError as e:
                raise self._full(e) from e
            # Copy-on-write, since torch warns of arrays that cannot be written to.
            return np.asarray(np.memmap(file, self.dtype, "c", shape=self.shape))


class StoredRows:
    """Rows in an unnamed file. See `FeatureStore`."""

    def __init__(self, handle: int, where: Path, shape: tuple[int, int], dtype: npt.DTypeLike) -> None:
        """
        Args:
            handle: of the open file, which may be closed afterwards.
            where: folder that messages name.
            shape: rows and columns.
            dtype: of the numbers.
        """
        self.num_rows, self.num_features = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._file = RowFile(Path(f"/proc/self/fd/{handle}"), 0, self.num_features * self.dtype.itemsize, self.num_rows)
        self._file.path = where

    def gather(self, ids: npt.NDArray[np.integer], out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Rows of ascending `ids`. See `FeatureStore.gather`."""
        rows = np.empty((len(ids), self.num_features), self.dtype) if out is None else out
        self._file.read(ids, rows.view(np.uint8).reshape(len(ids), self._file.row_bytes), None)
        return rows
