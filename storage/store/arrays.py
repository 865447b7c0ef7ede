"""Zarr arrays of a store, checked against its manifest."""

import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.codec import Codec
from zarr.abc.store import Store as ZarrStore
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec
from zarr.storage import StorePath

from ..array_kinds import AnyArray
from ..errors import StoreError, first_line
from .npy import make_npy, put_npy, row_pieces
from .regular import opened_file

CHUNK_BYTES = 4 << 20
"""Zarr chunks hold about this many bytes before compression."""
CHUNKS_PER_WRITE = 16
"""Zarr chunks written at a time: enough to compress in parallel, few enough to bound memory."""


class Rows(Protocol):
    """Anything that can be written as an array: a NumPy array, or an object that gives slices of rows, first to last,
    once each."""

    @property
    def shape(self) -> tuple[int, ...]:
        """At least one dimension."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""

    def __getitem__(self, rows: slice, /) -> AnyArray:
        """Rows ``[rows.start, rows.stop)``."""


def chunk_rows(shape: tuple[int, ...], itemsize: int) -> int:
    """Rows of a Zarr chunk. Writers of one array share it by whole chunks."""
    row_bytes = max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64)))
    return max(1, min(max(shape[0], 1), CHUNK_BYTES // row_bytes))


def create_array(
    group: zarr.Group, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike, *, one_shard: bool = False
) -> tuple[zarr.Array, dict[str, object]]:
    """An array without contents, and the manifest's entry for it."""
    kind = np.dtype(dtype)
    chunks = (1, *shape[1:]) if one_shard else (chunk_rows(shape, kind.itemsize), *(max(1, s) for s in shape[1:]))
    z = group.create_array(
        name,
        shape=shape,
        dtype=kind,
        chunks=chunks,
        shards=shape if one_shard else None,
        compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    return z, {"shape": list(shape), "dtype": str(kind), "chunks": _num_chunks(shape, chunks)}


def write_arrays(
    folder: Path | ZarrStore, arrays: Mapping[str, Rows], *, one_shard: bool = False, npy: Collection[str] = ()
) -> dict[str, Any]:
    """Write arrays into ``folder/arrays`` and return the manifest's entries for them.

    Args:
        folder: from `committed_folder`; or a Zarr store, in place of ``folder/arrays``.
        arrays: by name; read by ascending slices, so an array need never be in memory as a whole.
        one_shard: write each array as one Zarr shard, in one write, with a Zarr chunk per row: a row is then read
            alone.
        npy: arrays that become uncompressed files in `folder`, which can be mapped.
    """
    group = zarr.open_group(str(folder / "arrays") if isinstance(folder, Path) else folder, mode="w")
    entries = {}
    for name, value in arrays.items():
        shape = tuple(value.shape)
        if name in npy:
            assert isinstance(folder, Path)
            entries[name] = make_npy(folder, name, shape, value.dtype)
            for rows in row_pieces(shape, value.dtype.itemsize):
                put_npy(folder, name, shape, rows.start, value[rows])
            continue
        z, entries[name] = create_array(group, name, shape, value.dtype, one_shard=one_shard)
        if np.prod(shape, dtype=np.int64):
            step = shape[0] if one_shard else z.chunks[0] * CHUNKS_PER_WRITE
            for start in range(0, shape[0], step):
                stop = min(start + step, shape[0])
                z[start:stop] = value[start:stop]
    return entries


def _num_chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    return math.prod(-(-s // c) for s, c in zip(shape, chunks))


def open_array(at: str | StorePath, name: str, entries: Mapping[str, Any], path: Path | str) -> zarr.Array:
    """Open the Zarr array at `at` and check it against the entry `name` in the manifest of the store at `path`.

    Raises:
        StoreError: absent or not as the manifest says.
    """
    entry = entries.get(name)
    if entry is None:
        raise StoreError(
            f"{path} has no array '{name}', but {', '.join(sorted(entries)) or 'no others'}; make the store again"
        )
    try:
        if isinstance(at, str):
            opened_file(Path(at, "zarr.json")).close()
        z = zarr.open_array(at, mode="r", zarr_format=3)
        # Chunks are counted last: only then is the number expected known to match the manifest.
        there = _num_chunks(z.shape, z.shards or z.chunks)
        seen = (list(z.shape), str(z.dtype), _num_chunks(z.shape, z.chunks))
        want = (entry["shape"], entry["dtype"], entry["chunks"])
        if seen == want and (unknown := _unwritten(getattr(z.metadata, "codecs", ()))):
            raise ValueError(f"its {unknown[0]} is none that Millrace writes")
        missing = there - _stored_chunks(at, z, there) if seen == want else 0
    except Exception as e:
        raise StoreError(f"{path}: array '{name}' cannot be opened ({first_line(e)}); make the store again") from e
    if seen != want:
        raise StoreError(
            f"{path}: array '{name}' has (shape, dtype, chunks) {seen}; the manifest says {want}: make the store again"
        )
    if missing:
        raise StoreError(f"{path}: array '{name}' lacks {missing} of its {there} files; make the store again")
    return z


def _unwritten(codecs: Iterable[Codec]) -> list[str]:
    """Classes of codecs that no array of ours has, also within Zarr shards: those of other packages run their code."""
    own = [c for s in codecs for c in ((*s.codecs, *s.index_codecs) if isinstance(s, ShardingCodec) else (s,))]
    return [type(c).__name__ for c in own if not isinstance(c, BytesCodec | BloscCodec | Crc32cCodec)]


def _stored_chunks(at: str | StorePath, z: zarr.Array, expected: int) -> int:
    """Number of an array's `expected` stored chunks that exist. Zarr's own count takes quadratic time."""
    if not isinstance(at, str):
        return z.nchunks_initialized * expected // max(1, z.nchunks)
    grid, root = [-(-n // c) for n, c in zip(z.shape, z.shards or z.chunks)], os.path.join(at, "c")

    def count(folder: str, sizes: list[int]) -> int:
        with os.scandir(folder) as names:
            keys = [e for e in names if e.name.isdecimal() and int(e.name) < sizes[0] and e.name == str(int(e.name))]
        if len(sizes) == 1:
            return sum(e.is_file() for e in keys)
        return sum(count(e.path, sizes[1:]) for e in keys if e.is_dir())

    return count(root, grid) if os.path.isdir(root) else 0
