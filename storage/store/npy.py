"""Arrays of a store as uncompressed ``.npy`` files, of which the processes of a machine can map the same pages.

The manifest's entry of such an array says ``"npy": true``; its file is ``NAME.npy`` in the store's folder.
"""

import io
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import StoreError

PIECE_BYTES = 16 << 20
"""About this much is copied at a time."""


def npy_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """First bytes of an ``.npy`` file."""
    file = io.BytesIO()
    form = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, form)
    return file.getvalue()


def npy_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> int:
    """Bytes of an ``.npy`` file."""
    return len(npy_header(dtype, shape)) + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))


def is_npy(entry: Mapping[str, Any]) -> bool:
    """True if a manifest's entry is of an ``.npy`` file."""
    return "npy" in entry


def make_npy(folder: Path, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> dict[str, Any]:
    """A file for an array, without contents unless it is there; returns the manifest's entry for it."""
    with open(folder / f"{name}.npy", "ab") as file:
        file.truncate(npy_bytes(dtype, shape))
    with open(folder / f"{name}.npy", "r+b") as file:
        file.write(npy_header(dtype, shape))
    return {"shape": list(shape), "dtype": str(np.dtype(dtype)), "chunks": 1, "npy": True}


def put_npy(folder: Path, name: str, shape: tuple[int, ...], first: int, rows: npt.NDArray[Any]) -> None:
    """Write rows from `first` on into a file of `make_npy`. Several processes may write at the same time."""
    if not rows.size:
        return
    row_bytes = rows.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    with open(folder / f"{name}.npy", "r+b") as file:
        file.seek(len(npy_header(rows.dtype, shape)) + first * row_bytes)
        file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def is_map(array: npt.NDArray[Any]) -> bool:
    """True if an array is a map of a file, or a part of one."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def row_pieces(shape: tuple[int, ...], itemsize: int) -> Iterator[slice]:
    """Slices of rows, of about `PIECE_BYTES` each."""
    step = max(1, PIECE_BYTES // max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64))))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


def mapped_npy(folder: Path, name: str, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The array of a file, read-only: the operating system pages it in as it is touched, once for all processes.

    Raises:
        StoreError: the file is missing, or not as the manifest's entry says.
    """
    file, shape, dtype = folder / f"{name}.npy", tuple(entry["shape"]), np.dtype(entry["dtype"])
    header, wanted = npy_header(dtype, shape), npy_bytes(dtype, shape)
    try:
        seen = file.stat().st_size
        with open(file, "rb") as opened:
            begins = opened.read(len(header))
    except OSError as e:
        raise StoreError(f"{file} cannot be read ({e.strerror}); make the store again") from None
    if seen != wanted:
        raise StoreError(f"{file} has {seen} bytes; expected {wanted} bytes: make the store again")
    if begins != header:
        raise StoreError(f"{file} does not begin as an .npy file of {dtype}{list(shape)}; make the store again")
    if wanted == len(header):
        return np.empty(shape, dtype)
    try:
        return np.memmap(file, dtype, "r", len(header), shape).view(np.ndarray)
    except OSError as e:
        raise StoreError(
            f"{file} cannot be mapped ({e.strerror}): the limit of address space (ulimit -v) is below its size, or its "
            "file system does not map files; raise the limit, or copy the store to a local disk"
        ) from None
