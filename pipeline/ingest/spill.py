"""Records spilled to disk by *cells*, ranges of what they will be sorted by.

Every task writes one file. It holds runs, each the records of one batch in the order of their cells, and an index says
where each cell of each run begins, so that any range of cells is one stretch of a run. Runs are read in the order in
which they were written, and tasks in the order of their numbers: equal records keep the order of the input.
"""

import os
import uuid
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...storage.array_kinds import AnyArray, IdArray, IntArray
from ...storage.errors import RunError
from ...storage.graph import starts_of

CELLS = 2048
"""Most cells: NumPy sorts 16-bit numbers by radix, and stretches should be worth a seek."""


class Field(NamedTuple):
    """One array of a record."""

    dtype: str
    shape: tuple[int, ...] = ()
    """Shape of one entry."""

    @property
    def nbytes(self) -> int:
        """Bytes of one entry."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))


def shift_of(count: int, most: int | None = None) -> int:
    """Number of bits to drop from numbers below `count` to get their cell, of which there are at most `most`: by
    default `CELLS`."""
    return max(0, (max(count, 1) - 1) // (CELLS if most is None else most)).bit_length()


def cells_of(count: int, most: int | None = None) -> int:
    """Number of cells for numbers below `count`."""
    return (max(count, 1) - 1 >> shift_of(count, most)) + 1


class Cells:
    """Cells of numbers that lie in ranges, such as the nodes of several types: each range has cells of its own, equally
    many at most, so that a short one with many records is divided too."""

    def __init__(self, offsets: Sequence[int]) -> None:
        """`offsets` are the first number of each range, and the end of the last."""
        self._offsets, counts = offsets, np.diff(offsets).tolist()
        most = max(1, CELLS // len(counts))
        self._shifts = [shift_of(count, most) for count in counts]
        self._firsts = np.cumsum([0, *(cells_of(count, most) for count in counts)]).tolist()

    def __len__(self) -> int:
        return self._firsts[-1]

    def numbered(self, numbers: IntArray, kind: int) -> npt.NDArray[np.int16]:
        """int16, cells of numbers in range `kind`."""
        within = numbers - self._offsets[kind] if kind else numbers
        cells = (within >> self._shifts[kind]).astype(np.int16)
        return cells + np.int16(self._firsts[kind]) if kind else cells

    def begin(self, cell: int) -> int:
        """First number of a cell; behind the last cell, the end."""
        kind = min(int(np.searchsorted(self._firsts, cell, side="right")), len(self._shifts)) - 1
        within = self._offsets[kind] + (cell - self._firsts[kind] << self._shifts[kind])
        return min(within, self._offsets[kind + 1])


class RunWriter:
    """Writes the file of one task. Leave its context to commit it."""

    def __init__(self, folder: Path, number: int, fields: Sequence[Field], cells: int) -> None:
        self._path, self._fields, self._cells = _data(folder, number), fields, cells
        self._aside = self._path.with_name(f".{uuid.uuid4().hex}")
        self._bounds: list[IdArray] = []

    def __enter__(self) -> "RunWriter":
        self._path.parent.mkdir(exist_ok=True)
        self._file = open(self._aside, "wb")
        return self

    def add(self, cell: npt.NDArray[np.int16], *arrays: AnyArray) -> None:
        """Write a run of records, each array with an entry for each."""
        order = np.argsort(cell, kind="stable")
        bounds = starts_of(np.bincount(cell, minlength=self._cells))
        for field, array in zip(self._fields, arrays, strict=True):
            self._file.write(np.ascontiguousarray(array[order], field.dtype).data)
        self._bounds.append(bounds)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._file.close()
        if kind is None:
            bounds = np.stack(self._bounds) if self._bounds else np.zeros((0, self._cells + 1), np.int64)
            index = self._aside.with_suffix(".npy")
            np.save(index, bounds)
            os.replace(index, self._path.with_suffix(".npy"))
            os.replace(self._aside, self._path)
        else:
            self._aside.unlink(missing_ok=True)


def cell_sizes(folders: Sequence[Path], tasks: int, cells: int) -> IdArray:
    """int64 [cells], records of all tasks in each, in all folders."""
    total = np.zeros(cells, np.int64)
    for folder, number in product(folders, range(tasks)):
        total += np.diff(_bounds(folder, number), axis=1).sum(axis=0)
    return total


def groups_of(sizes: IntArray, most: int) -> list[tuple[int, int]]:
    """Ranges of cells with at most `most` edges each, or one cell."""
    groups, first, held = [], 0, 0
    for cell, size in enumerate(sizes.tolist()):
        if held and held + size > most:
            groups.append((first, cell))
            first, held = cell, 0
        held += size
    return [*groups, (first, len(sizes))]


def read_cells(folder: Path, tasks: int, fields: Sequence[Field], first: int, stop: int) -> list[AnyArray]:
    """Records of the cells ``[first, stop)`` of all tasks, an array for each field. Raises RunError: a file is
    incomplete."""
    bounds = [np.asarray(_bounds(folder, n)[:, [first, stop, -1]]) for n in range(tasks)]
    count = sum(int((b[:, 1] - b[:, 0]).sum()) for b in bounds)
    out = [np.empty((count, *field.shape), field.dtype) for field in fields]
    at, record = 0, sum(field.nbytes for field in fields)
    for number, rows in enumerate(bounds):
        begin = 0
        with open(_data(folder, number), "rb") as file:
            for low, high, size in rows.tolist():
                block = begin
                for field, array in zip(fields, out):
                    piece = array[at : at + high - low]
                    file.seek(block + low * field.nbytes)
                    if piece.size and file.readinto(piece.reshape(-1).view(np.uint8).data) != piece.nbytes:
                        raise RunError(f"{file.name} is incomplete; remove its folder and convert again")
                    block += size * field.nbytes
                at += high - low
                begin += size * record
    return out


def _bounds(folder: Path, number: int) -> IdArray:
    return np.load(_data(folder, number).with_suffix(".npy"), mmap_mode="r")


def _data(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.runs"
