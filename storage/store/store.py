"""Stores: small metadata and arrays in one committed folder."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr

from ..array_kinds import AnyArray, ValueArray
from ..errors import StoreError, first_line
from .arrays import Rows, open_array, write_arrays
from .committed_folder import committed_folder
from .manifest import read_manifest, require_fingerprint, write_manifest
from .npy import is_npy, mapped_npy, row_pieces
from .scratch import Empty

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """An opened store. Arrays are verified when they are opened."""

    path: Path
    kind: str
    fingerprint: Mapping[str, str]
    meta: Mapping[str, Any]
    entries: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def array(self, name: str) -> zarr.Array:
        """Open the Zarr array `name`, after checking its shape, dtype and number of chunks against the manifest.

        Raises:
            StoreError: absent or not as the manifest says.
        """
        return open_array(str(self.path / "arrays" / name), name, self.entries, self.path)

    def read(self, name: str) -> AnyArray:
        """Read the whole array `name` into memory.

        Raises:
            StoreError: absent, incomplete, or a chunk fails its checksum.
        """
        return self.piece(name, slice(None))

    def read_into(self, name: str, empty: Empty) -> ValueArray:
        """Read the whole array `name` into one that `empty` makes, piece by piece. Raises StoreError like `read`."""
        z = self.mapped(name) if self.is_mappable(name) else self.array(name)
        out = empty(tuple(z.shape), z.dtype)
        try:
            for rows in row_pieces(out.shape, out.itemsize):
                out[rows] = z[rows]
        except Exception as e:
            raise _damaged(self.path, name, e) from e
        return out

    def piece(self, name: str, rows: slice) -> AnyArray:
        """Rows of the array `name`; reads only the Zarr chunks, or the bytes, that hold them. Raises StoreError like
        `read`."""
        if self.is_mappable(name):
            return np.array(self.mapped(name)[rows])
        z = self.array(name)
        try:
            return np.asarray(z[rows])
        except Exception as e:
            raise _damaged(self.path, name, e) from e

    def is_mappable(self, name: str) -> bool:
        """True if the array `name` lies in an uncompressed file."""
        return is_npy(self.entries.get(name, {}))

    def bytes_of(self, name: str) -> int:
        """Bytes of the array `name` in memory."""
        entry = self.entries[name]
        return math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize

    def mapped(self, name: str) -> AnyArray:
        """The array `name` of an uncompressed file, read-only, as a map that all processes share. Of its contents
        nothing is verified. Raises StoreError if the file is not as the manifest says."""
        return mapped_npy(self.path, name, self.entries[name])

    def value(self, key: str, kind: type[T]) -> T:
        """Value of `key` in `meta`. Raises StoreError if it is absent or of another type."""
        found = self.meta.get(key)
        if type(found) is not kind:
            raise StoreError(
                f"{self.path}: {key} is {str(found)[:80]!r}; expected {kind.__name__}: make the store again"
            )
        return found

    def require_digest(self, name: str, digest: str) -> None:
        """Raise StoreError unless `digest` is that of `name` in the fingerprint."""
        if self.fingerprint.get(name) != digest:
            raise StoreError(f"{self.path}: '{name}' does not match its digest; it is damaged: make the store again")

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(f.stat().st_size for f in self.path.rglob("*") if f.is_file())


def _damaged(path: Path, name: str, e: Exception) -> StoreError:
    return StoreError(f"{path}: array '{name}' is damaged ({first_line(e)}); make the store again")


def write_store(
    path: Path,
    kind: str,
    *,
    fingerprint: Mapping[str, str],
    meta: Mapping[str, object],
    arrays: Mapping[str, Rows],
    overwrite: bool = False,
) -> Store:
    """Write a store of small metadata and arrays, whole or not at all."""
    path = Path(path)
    with committed_folder(path, overwrite=overwrite) as folder:
        write_manifest(folder, kind, fingerprint, meta, write_arrays(folder, arrays))
    return open_store(path, kind)


def open_store(path: Path, kind: str, *, fingerprint: Mapping[str, str] | None = None) -> Store:
    """Open a store of `kind`; refuse it if `fingerprint` is given and differs.

    Raises:
        StoreError: see `read_manifest` and `require_fingerprint`.
    """
    path = Path(path)
    body = read_manifest(path, kind)
    if fingerprint is not None:
        require_fingerprint(path, body["fingerprint"], fingerprint)
    return Store(path, kind, body["fingerprint"], body["meta"], body["arrays"])
