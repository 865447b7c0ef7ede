"""Arrays of a store as uncompressed ``.npy`` files, of which the processes of a machine can map the same pages.

The manifest's entry of such an array says ``"npy": true``; its file is ``NAME.npy`` in the store's folder.
"""

import io
import mmap
import platform
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from ..array_kinds import AnyArray, FileArray, ValueArray
from ..errors import StoreError
from .regular import opened_file
from .row_file import RowFile

HEADER_BYTES = 4096
PIECE_BYTES = 16 << 20
"""About this much is copied at a time."""
PRIVATE = mmap.MAP_PRIVATE | (0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0)
"""With ``MAP_NORESERVE``, which Python has no name for before 3.13: Linux else takes a file larger than the machine's
memory for a claim to that much of it."""


def npy_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """First bytes of an ``.npy`` file: a page, so that rows of a power of two lie in as few pages as they can."""
    file = io.BytesIO()
    form = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, form)
    short = file.getvalue()
    return short[:8] + struct.pack("<H", HEADER_BYTES - 10) + short[10:-1].ljust(HEADER_BYTES - 11) + b"\n"


def data_offset(file: Path) -> int:
    """Bytes before the numbers of an ``.npy`` file of format 1.0; those of older stores have fewer than a page."""
    with open(file, "rb") as opened:
        return 10 + int.from_bytes(opened.read(10)[8:], "little")


def npy_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> int:
    """Bytes of an ``.npy`` file."""
    return len(npy_header(dtype, shape)) + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))


def is_npy(entry: Mapping[str, object]) -> bool:
    """True if a manifest's entry is of an ``.npy`` file."""
    return "npy" in entry


def make_npy(folder: Path, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> dict[str, object]:
    """A file for an array, without contents unless it is there; returns the manifest's entry for it."""
    path, size = folder / f"{name}.npy", npy_bytes(dtype, shape)
    # That of a writer of an older version is as long as its own header says.
    if not path.exists() or path.stat().st_size != size - HEADER_BYTES + data_offset(path):
        with open(path, "ab") as file:
            file.truncate(size)
        with open(path, "r+b") as file:
            file.write(npy_header(dtype, shape))
    return {"shape": list(shape), "dtype": str(np.dtype(dtype)), "chunks": 1, "npy": True}


def put_npy(folder: Path, name: str, shape: tuple[int, ...], first: int, rows: ValueArray) -> None:
    """Write rows from `first` on into a file of `make_npy`. Several processes may write at the same time."""
    if not rows.size:
        return
    row_bytes = rows.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    path = folder / f"{name}.npy"
    with open(path, "r+b") as file:
        file.seek(data_offset(path) + first * row_bytes)
        file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def is_map(array: ValueArray) -> bool:
    """True if an array is a map of a file, or a part of one."""
    return _map_of(array) is not None


def advise(array: AnyArray, how: int) -> None:
    """Tell the system how the file that an array maps is read (``mmap.MADV_...``); no effect on other arrays."""
    if (found := _map_of(array)) is not None:
        found.madvise(how)


def _map_of(array: ValueArray) -> mmap.mmap | None:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def file_of(array: ValueArray) -> RowFile | None:
    """The file that an array is a map of, from its first row on; None if it is none, or cannot be opened any more."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if not isinstance(base, np.memmap) or base.filename is None or not array.size:
        return None
    inside = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    with suppress(OSError):
        return RowFile(Path(base.filename), base.offset + inside, array.strides[0], len(array))
    return None


def row_pieces(shape: tuple[int, ...], itemsize: int) -> Iterator[slice]:
    """Slices of rows, of about `PIECE_BYTES` each."""
    step = max(1, PIECE_BYTES // max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64))))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


def mapped(
    path: Path | BinaryIO, dtype: npt.DTypeLike, shape: tuple[int, ...], first: int = 0, order: Literal["C", "F"] = "C"
) -> FileArray:
    """The numbers of a file from byte `first` on, which the system pages in as they are touched, once for all
    processes. What is written to them stays in this process, as in memory: kernels and torch take them as such.

    Raises:
        ValueError: they are Python objects, whose addresses a file must not tell, or the file is too short.
        OSError: the limit of address space is below the file's size, or its file system does not map files.
    """
    if np.dtype(dtype).hasobject:
        raise ValueError("it holds Python objects; expected numbers")
    begin = max(0, first - 1) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY  # an empty map is an error
    size = first - begin + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    with open(path, "rb") if isinstance(path, Path) else nullcontext(path) as file:
        pages = mmap.mmap(file.fileno(), size, PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=begin)
    new: Any = np.ndarray.__new__
    found = new(np.memmap, shape, dtype, pages, first - begin, order=order)
    found.filename, found.offset = path if isinstance(path, Path) else None, first  # for `file_of`
    return found


def mapped_file(path: Path) -> FileArray:
    """The array of an ``.npy`` file, see `mapped`. Raises ValueError or OSError: it is none."""
    with opened_file(path) as file:
        if (form := _form(file)) is None:
            raise ValueError("it begins with another header")
        return mapped(path, form[2], form[0], file.tell(), "F" if form[1] else "C")


def mapped_npy(folder: Path, name: str, entry: Mapping[str, Any]) -> AnyArray:
    """The array of a file, see `mapped`.

    Raises:
        StoreError: the file is missing, or not as the manifest's entry says.
    """
    file, shape, dtype = folder / f"{name}.npy", tuple(entry["shape"]), np.dtype(entry["dtype"])
    try:
        seen = file.stat().st_size
        with opened_file(file) as opened:
            form = _form(opened)
            first = opened.tell()
    except OSError as e:
        raise StoreError(f"{file} cannot be read ({e.strerror}); make the store again") from None
    wanted = (first if form else HEADER_BYTES) + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if seen != wanted:
        raise StoreError(f"{file} has {seen} bytes; expected {wanted} bytes: make the store again")
    if form != (shape, False, dtype) or dtype.hasobject:
        raise StoreError(f"{file} does not begin as an .npy file of {dtype}{list(shape)}; make the store again")
    if wanted == first:
        return np.empty(shape, dtype)
    try:
        return mapped(file, dtype, shape, first).view(np.ndarray)
    except OSError as e:
        raise StoreError(
            f"{file} cannot be mapped ({e.strerror}): the limit of address space (ulimit -v) is below its size, or its "
            "file system does not map files; raise the limit, or copy the store to a local disk"
        ) from None


def _form(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]] | None:
    """Shape, order and dtype that the header of an ``.npy`` file of format 1.0 or 2.0 tells; None if it is none."""
    try:
        is_long = {(1, 0): False, (2, 0): True}[np.lib.format.read_magic(file)]
        return (np.lib.format.read_array_header_2_0 if is_long else np.lib.format.read_array_header_1_0)(file)
    except OSError:
        raise
    except Exception:  # for a damaged header, NumPy passes on whatever Python's parser raises
        return None
