"""Edges as one ``.npy`` file: integers [2, E], sources and destinations, or [E, 2], one edge a row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ....storage.array_kinds import IntArray
from ....storage.errors import InputError, first_line
from .csv_file import Named
from .foreign.kinds import to_npz

ENDS = ("src", "dst")


def is_npy(path: Named) -> bool:
    """True if the path has the suffix of a file by ``numpy.save``."""
    return path.name.lower().endswith(".npy")


def open_ends(path: Any) -> IntArray:
    """Sources and destinations, [2, E], which the operating system pages in as they are read. Two edges are taken for
    sources and destinations. Raises InputError: it is no such file, or holds something else."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as e:  # for a damaged header, NumPy passes on whatever Python's parser raises
        raise InputError(
            f"{path} cannot be read ({first_line(e)}); expected edges, integers [2, E], by numpy.save"
        ) from e
    fits = isinstance(array, np.ndarray) and array.ndim == 2 and 2 in array.shape and array.dtype.kind in "iu"
    if not fits:
        seen = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        how = f"; if it is an adjacency, {to_npz(path, 'np.load(a)')}" if getattr(array, "ndim", 0) == 2 else ""
        raise InputError(f"{path} holds {seen}; expected edges as integers [2, E], or [E, 2]{how}")
    return array if len(array) == 2 else array.T


def ends_table(ends: IntArray, first: int, stop: int) -> pa.Table:
    """Edges ``[first, stop)`` of `open_ends`, as a table."""
    rows = (np.ascontiguousarray(end[first:stop]) for end in ends)
    return pa.table({name: row.astype(row.dtype.newbyteorder("="), copy=False) for name, row in zip(ENDS, rows)})


def read_ends(path: Path) -> pa.Table:
    """All edges of a file, as a table. Raises InputError like `open_ends`."""
    ends = open_ends(path)
    return ends_table(ends, 0, ends.shape[1])
