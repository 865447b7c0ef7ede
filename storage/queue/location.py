"""Locations of a queue's stores: the protocol, and a folder of a file system."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import zarr

from ..errors import InputError, RunError
from ..store.arrays import write_arrays
from ..store.committed_folder import committed_folder, remove_tree, sweep_leftovers
from ..store.manifest import MANIFEST, read_manifest, write_manifest
from ..store.regular import opened_file
from ..store.row_file import PAUSE
from ..store.store import open_store
from .bulk_codec import Words

KIND, BULK_KIND, COMPLETE_KIND = "samples", "bulk", "samples-complete"
PIECE_BYTES = 1 << 20
"""Bytes that are read at once: whoever checks them finds them in the processor's cache."""


class Header(NamedTuple):
    """What the manifest of a store says, beside its arrays."""

    kind: str
    fingerprint: Mapping[str, str]
    meta: Mapping[str, Any]


class Location(Protocol):
    """Location of a queue's stores. Stores are named relative to it: "" is the queue's own, "epoch-0/bulk-2" a bulk's.

    A store is there whole or not at all. Failed reads and writes raise OSError or a `MillraceError`.
    """

    def path(self, name: str) -> str:
        """Name of a store in messages."""

    def has(self, name: str) -> bool:
        """True if a store is there."""

    def names(self, under: str) -> set[str]:
        """Next component of the names of all stores below `under`."""

    def manifest(self, name: str, kind: str) -> dict[str, Any]:
        """Verified manifest of a store. Raises StoreError as `read_manifest` does."""

    def rows(self, name: str) -> zarr.Array:
        """Packed rows of a bulk, checked against its manifest. Raises StoreError if they differ."""

    def commit(self, name: str, header: Header, words: Words | None = None, *, overwrite: bool = False) -> None:
        """Make a store, with or without packed rows. If another process commits it first, it is left alone, or
        overwritten if `overwrite`."""

    def making(self, name: str, kind: str, meta: Mapping[str, object]) -> AbstractContextManager[Path]:
        """A context with a folder to put files into, which are the store `name` once it ends without an error; `meta`
        is read then."""

    def read(self, name: str, file: str, first: int, into: memoryview) -> Iterator[memoryview]:
        """Fill a buffer with the bytes of a store's file from `first` on, and give each piece of it once it is there.
        Raises RunError if the file ends before."""

    def remove(self, name: str) -> None:
        """Remove a store; readers never see part of it."""

    def remove_empty(self, name: str) -> None:
        """Remove the folder `name` if it holds no stores."""

    def sweep(self) -> None:
        """Remove what killed writers left. Call only while no process writes."""

    def silence(self, error: Exception) -> RunError | None:
        """The error to raise if `error` means that the location did not answer; None if it concerns the data."""


def unreadable(path: str, at: int, why: str) -> RunError:
    """The error for bytes of a file that cannot be read."""
    return RunError(
        f"{path} cannot be read at byte {at} ({why}): {PAUSE}; give the `millrace sample` command again, then --resume"
    )


class FolderLocation:
    """Folder of a file system: stores are written aside and renamed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> str:
        return str(self.root / name)

    def has(self, name: str) -> bool:
        return (self.root / name).exists()

    def names(self, under: str) -> set[str]:
        """See `Location.names`. Includes folders that no longer hold a store."""
        return {p.name for p in (self.root / under).glob("*")}

    def manifest(self, name: str, kind: str) -> dict[str, Any]:
        return read_manifest(self.root / name, kind)

    def rows(self, name: str) -> zarr.Array:
        return open_store(self.root / name, BULK_KIND).array("rows")

    def commit(self, name: str, header: Header, words: Words | None = None, *, overwrite: bool = False) -> None:
        folder = self.root / name
        try:
            # A bulk is not synced: if a power cut loses it, it is sampled again, and checksums reveal a torn one.
            with committed_folder(folder, overwrite=overwrite, durable=words is None) as aside:
                entries = {} if words is None else write_arrays(aside, {"rows": words}, one_shard=True)
                write_manifest(aside, *header, entries)
        except (InputError, OSError):
            # Another process may have committed the same store a moment before. Anything else there has no manifest.
            if overwrite or not (folder / MANIFEST).exists():
                raise

    @contextmanager
    def making(self, name: str, kind: str, meta: Mapping[str, object]) -> Iterator[Path]:
        """See `Location.making`. It is not synced, as `commit` says of bulks."""
        with committed_folder(self.root / name, durable=False) as aside:
            yield aside
            write_manifest(aside, kind, {}, meta, {})

    def read(self, name: str, file: str, first: int, into: memoryview) -> Iterator[memoryview]:
        path, done = self.root / name / file, 0
        try:
            with opened_file(path) as opened:
                # The system reads ahead in large pages, for less than announcing each of them.
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                while done < len(into):
                    piece = into[done : done + PIECE_BYTES]
                    if not (got := os.preadv(opened.fileno(), [piece], first + done)):
                        raise unreadable(str(path), first + done, "it ends there")
                    yield piece[:got]
                    done += got
        except OSError as e:
            raise unreadable(str(path), first + done, e.strerror or str(e)) from e

    def remove(self, name: str) -> None:
        remove_tree(self.root / name)

    def remove_empty(self, name: str) -> None:
        with suppress(OSError):  # it holds something, or is gone
            (self.root / name).rmdir()

    def sweep(self) -> None:
        for folder in (self.root, *self.root.glob("epoch-*")):
            sweep_leftovers(folder)

    def silence(self, error: Exception) -> None:
        """None: a file system always answers."""
