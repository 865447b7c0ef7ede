"""Committed folders of checked arrays: the one mechanism under every store.

A store is a folder with a Zarr v3 group ``arrays/`` and a ``manifest.json``. It is written aside and renamed into
place, so it is there whole or not at all. Every Zarr chunk carries a CRC-32C; the manifest carries the shape, dtype and
chunk count of every array (Zarr itself reads a missing chunk as zeros, without an error) and a checksum of its own.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store as ZarrStore
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import StorePath

from .errors import InputError, StoreError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
CHUNK_BYTES = 4 << 20
"""Zarr chunks hold about this many bytes before compression."""
CHUNKS_PER_WRITE = 16
"""Rows are handed to Zarr so many chunks at a time: enough to compress in parallel, few enough to bound memory."""
ASIDE = ".writing-"
"""What begins like this is on its way, or is left of a writer that was killed."""
_REMOVED = ".removed-"
_NAME = re.compile(r"[^./\\\0][^/\\\0]*")
"""Of an array."""
T = TypeVar("T")


class Rows(Protocol):
    """What can be written as an array: a NumPy array, or anything that gives its rows by slices, first to last, once
    each."""

    @property
    def shape(self) -> tuple[int, ...]:
        """At least one dimension."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        ...

    def __getitem__(self, rows: slice, /) -> npt.NDArray[Any]:
        """Rows ``[rows.start, rows.stop)``."""
        ...


def first_line(error: Exception) -> str:
    """An error for use within a sentence: some libraries append a dump of their insides, or of the input."""
    return str(error).partition("\n")[0][:300]


def canonical_json(record: Any) -> bytes:
    """The one byte string that stands for a record of plain values, whatever the order of its keys."""
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{_REMOVED}{uuid.uuid4().hex}")
    os.rename(path, aside)
    return aside


def remove_tree(path: Path) -> None:
    """Remove a folder, or a file that lies in its place, so that no reader sees half of it: it is renamed aside
    first."""
    if path.is_dir():
        shutil.rmtree(_set_aside(path), ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep_leftovers(folder: Path, of: str = "") -> int:
    """Remove what killed writers left directly in `folder`, and say how many folders that were.

    A writer that lives holds its folder where the file system has locks, and is left alone. Elsewhere it loses its
    work, or has committed
    it whole: its folder is renamed before anything in it is removed.

    Args:
        folder: where stores are written.
        of: only of a store with this name, of all by default.
    """
    removed = 0
    for p in list(folder.glob(".*")):
        meant = (
            re.fullmatch(re.escape(f"{ASIDE}{of}-") + "[0-9a-f]{8}", p.name)
            if of
            else p.name.startswith((ASIDE, _REMOVED))
        )
        if meant and not _is_held(p):
            with suppress(FileNotFoundError):
                shutil.rmtree(_set_aside(p), ignore_errors=True)
                removed += 1
    return removed


def _hold(folder: Path) -> int:
    """A descriptor that holds a folder until it is closed, or its process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _is_held(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return False


def fsync_tree(path: Path) -> None:
    """Make every file below `path` durable before it is renamed into place."""
    for folder, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                os.fsync(f.fileno())
        _fsync_folder(folder)


def _fsync_folder(folder: str | Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def committed_folder(path: Path, *, overwrite: bool = False, durable: bool = True) -> Iterator[Path]:
    """A folder to write into that appears at `path` when the block ends without an error, and never otherwise.

    Raises:
        StoreError: `path` exists and `overwrite` is false.
        InputError: the parent cannot be written.
    """
    if path.exists() and not overwrite:
        raise StoreError(f"{path} exists already; choose another path, or remove it first")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{ASIDE}{path.name}-{uuid.uuid4().hex[:8]}")
        aside.mkdir()
        holding = _hold(aside)
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror or e}") from e
    try:
        yield aside
        if durable:
            fsync_tree(aside)
        # The old store goes only once the new one stands: between the two renames there is no slow work.
        old = _set_aside(path) if overwrite and path.exists() else None
        os.rename(aside, path)
        if durable:
            _fsync_folder(path.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        os.close(holding)


def manifest_text(kind: str, fingerprint: Mapping[str, str], meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """The manifest of a store, with its checksum."""
    body = {
        "format": f"millrace-{kind}",
        "schema_version": SCHEMA_VERSION,
        "fingerprint": dict(fingerprint),
        "meta": dict(meta),
        "arrays": dict(arrays),
    }
    body["checksum"] = hashlib.sha256(canonical_json(body)).hexdigest()
    return json.dumps(body, indent=1, sort_keys=True)


def write_manifest(
    folder: Path, kind: str, fingerprint: Mapping[str, str], meta: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write the manifest of a store (last, as its commit record)."""
    (folder / MANIFEST).write_text(manifest_text(kind, fingerprint, meta, arrays))


def no_manifest(path: Path | str) -> StoreError:
    """What to raise where a store was expected and no manifest lies."""
    return StoreError(
        f"{path} holds no {MANIFEST}: it is not a Millrace store, or it was never committed; make it again"
    )


def read_manifest(path: Path, kind: str) -> dict[str, Any]:
    """Read and verify a manifest.

    Raises:
        StoreError: absent, damaged, of another kind, or of another schema version.
    """
    try:
        text = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise no_manifest(path) from None
    except NotADirectoryError:
        raise StoreError(f"{path} is a file; expected the folder of a Millrace {kind} store") from None
    except (OSError, ValueError) as e:
        raise StoreError(f"{path}/{MANIFEST} cannot be read ({e}); make the store again") from None
    return parse_manifest(text, path, kind)


def parse_manifest(text: bytes, path: Path | str, kind: str) -> dict[str, Any]:
    """Verify the text of the manifest of the store at `path`.

    Raises:
        StoreError: damaged, of another kind, or of another schema version.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path}/{MANIFEST} is damaged ({first_line(e)}); make the store again") from e
    if not isinstance(body, dict) or body.get("format") != f"millrace-{kind}":
        seen = body.get("format") if isinstance(body, dict) else type(body).__name__
        raise StoreError(f"{path} holds '{str(seen)[:80]}'; expected 'millrace-{kind}'")
    if body.get("schema_version") != SCHEMA_VERSION:
        seen = str(body.get("schema_version"))[:80]
        raise StoreError(
            f"{path} has schema version {seen}; this Millrace reads version {SCHEMA_VERSION}: make the store again"
        )
    checksum = body.pop("checksum", None)
    if checksum != hashlib.sha256(canonical_json(body)).hexdigest():
        raise StoreError(f"{path}/{MANIFEST} does not match its checksum; the store is damaged: make it again")
    if not _is_well_formed(body):
        raise StoreError(
            f"{path}/{MANIFEST} is not laid out as a manifest; expected fingerprint, meta and arrays: make the store again"
        )
    return body


def _is_well_formed(body: Mapping[str, Any]) -> bool:
    fingerprint, meta, arrays = (body.get(key) for key in ("fingerprint", "meta", "arrays"))
    if not (isinstance(fingerprint, dict) and isinstance(meta, dict) and isinstance(arrays, dict)):
        return False
    return all(isinstance(v, str) for v in fingerprint.values()) and all(_is_entry(*item) for item in arrays.items())


def _is_entry(name: str, entry: Any) -> bool:
    """Whether `entry` says of an array what `write_arrays` says of one."""
    if not (isinstance(entry, dict) and _NAME.fullmatch(name)):
        return False
    shape, dtype, chunks = (entry.get(key) for key in ("shape", "dtype", "chunks"))
    try:
        numeric = isinstance(dtype, str) and np.dtype(dtype).kind in "biuf"
    except (TypeError, ValueError):
        numeric = False
    counts = [*shape, chunks] if isinstance(shape, list) and shape else [None]
    return numeric and all(type(n) is int and 0 <= n < 1 << 62 for n in counts)


def require_fingerprint(path: Path | str, seen: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Refuse a store that was made from something else.

    Raises:
        StoreError: lists the keys that differ.
    """
    differing = sorted(k for k in set(seen) | set(expected) if seen.get(k) != expected.get(k))
    if differing:
        pairs = [(k, seen.get(k, "absent")[:200], expected.get(k, "absent")[:200]) for k in differing[:8]]
        rows = ", ".join(f"{k[:80]} (store {here}, wanted {wanted})" for k, here, wanted in pairs)
        raise StoreError(f"{path} was made from something else; these differ: {rows}")


def _chunk_rows(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    row_bytes = max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64)))
    return (max(1, min(max(shape[0], 1), CHUNK_BYTES // row_bytes)), *(max(1, s) for s in shape[1:]))


def write_arrays(folder: Path | ZarrStore, arrays: Mapping[str, Rows], *, one_shard: bool = False) -> dict[str, Any]:
    """Write arrays into ``folder/arrays`` and return the manifest's entries for them.

    Args:
        folder: what `committed_folder` gave; or a Zarr store, in place of ``folder/arrays``.
        arrays: by name; read by ascending slices, so an array need never be in memory as a whole.
        one_shard: write each array as one Zarr shard, in one write, with a Zarr chunk per row: a row is then read
            alone.
    """
    group = zarr.open_group(str(folder / "arrays") if isinstance(folder, Path) else folder, mode="w")
    entries = {}
    for name, value in arrays.items():
        shape, dtype = tuple(value.shape), np.dtype(value.dtype)
        chunks = (1, *shape[1:]) if one_shard else _chunk_rows(shape, dtype.itemsize)
        z = group.create_array(
            name,
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            shards=shape if one_shard else None,
            compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
            config={"write_empty_chunks": True},
        )
        if np.prod(shape, dtype=np.int64):
            step = shape[0] if one_shard else chunks[0] * CHUNKS_PER_WRITE
            for start in range(0, shape[0], step):
                stop = min(start + step, shape[0])
                z[start:stop] = value[start:stop]
        entries[name] = {"shape": list(shape), "dtype": str(dtype), "chunks": _num_chunks(shape, chunks)}
    return entries


def _num_chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    return math.prod(-(-s // c) for s, c in zip(shape, chunks))


def open_array(at: str | StorePath, name: str, entries: Mapping[str, Any], path: Path | str) -> zarr.Array:
    """The Zarr array at `at`, after proof that it is what the manifest of the store at `path` says of `name`.

    Raises:
        StoreError: absent or not as the manifest says.
    """
    entry = entries.get(name)
    if entry is None:
        raise StoreError(f"{path} has no array '{name}'; it holds {sorted(entries)}")
    try:
        z = zarr.open_array(at, mode="r", zarr_format=3)
        # Chunks are counted last: how many there ought to be is known to be as the manifest says by then.
        there = _num_chunks(z.shape, z.shards or z.chunks)
        seen = (list(z.shape), str(z.dtype), _num_chunks(z.shape, z.chunks))
        want = (entry["shape"], entry["dtype"], entry["chunks"])
        if seen == want and (missing := there - _chunks_there(at, z, there)):
            seen = (*seen[:2], f"{there - missing} of {there}")
    except Exception as e:
        raise StoreError(f"{path}: array '{name}' cannot be opened ({first_line(e)}); make the store again") from e
    if seen != want:
        raise StoreError(
            f"{path}: array '{name}' has (shape, dtype, chunks) {seen}; the manifest says {want}: make the store again"
        )
    return z


def _chunks_there(at: str | StorePath, z: zarr.Array, expected: int) -> int:
    """How many of an array's `expected` stored chunks there are. Zarr's own count takes time that grows with the square
    of it."""
    if not isinstance(at, str):
        return z.nchunks_initialized * expected // max(1, z.nchunks)
    grid, root = [-(-n // c) for n, c in zip(z.shape, z.shards or z.chunks)], os.path.join(at, "c")
    found = 0
    for folder, _, names in os.walk(root):
        above = os.path.relpath(folder, root).split(os.sep) if folder != root else []
        for name in names:
            key = [*above, name]
            found += len(key) == len(grid) and all(
                k.isdecimal() and int(k) < n and k == str(int(k)) for k, n in zip(key, grid)
            )
    return found


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
        """The Zarr array `name`, after proof that its shape, dtype and number of chunks are those of the manifest.

        Raises:
            StoreError: absent or not as the manifest says.
        """
        return open_array(str(self.path / "arrays" / name), name, self.entries, self.path)

    def read(self, name: str) -> npt.NDArray[Any]:
        """The whole array `name` in memory.

        Raises:
            StoreError: absent, incomplete, or a chunk fails its checksum.
        """
        return self.piece(name, slice(None))

    def piece(self, name: str, rows: slice) -> npt.NDArray[Any]:
        """Some rows of the array `name`; only the Zarr chunks that hold them are read. Raises StoreError like
        `read`."""
        z = self.array(name)
        try:
            return np.asarray(z[rows])
        except Exception as e:
            raise StoreError(f"{self.path}: array '{name}' is damaged ({first_line(e)}); make the store again") from e

    def value(self, key: str, kind: type[T]) -> T:
        """A value of `meta`. Raises StoreError: it is absent, or of another kind."""
        found = self.meta.get(key)
        if type(found) is not kind:
            raise StoreError(
                f"{self.path}: {key} is {str(found)[:80]!r}; expected {kind.__name__}: make the store again"
            )
        return found

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(f.stat().st_size for f in self.path.rglob("*") if f.is_file())


def write_store(
    path: Path,
    kind: str,
    *,
    fingerprint: Mapping[str, str],
    meta: Mapping[str, Any],
    arrays: Mapping[str, Rows],
    overwrite: bool = False,
) -> Store:
    """Write a store of small metadata and arrays, whole or not at all."""
    path = Path(path)
    with committed_folder(path, overwrite=overwrite) as folder:
        write_manifest(folder, kind, fingerprint, meta, write_arrays(folder, arrays))
    return open_store(path, kind)


def open_store(path: Path, kind: str, *, fingerprint: Mapping[str, str] | None = None) -> Store:
    """Open a store of `kind`, and refuse it when `fingerprint` is given and differs.

    Raises:
        StoreError: see `read_manifest` and `require_fingerprint`.
    """
    path = Path(path)
    body = read_manifest(path, kind)
    if fingerprint is not None:
        require_fingerprint(path, body["fingerprint"], fingerprint)
    return Store(path, kind, body["fingerprint"], body["meta"], body["arrays"])
