"""Locations of a stored queue's bulks: the protocol, and a folder of a file system."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import zarr

from ..errors import InputError, RunError
from ..store.arrays import write_arrays
from ..store.committed_folder import committed_folder, remove_tree, sweep_leftovers
from ..store.manifest import MANIFEST, read_manifest, write_manifest
from ..store.store import open_store
from .bulk_codec import Words

KIND, BULK_KIND, COMPLETE_KIND = "samples", "bulk", "samples-complete"


class Place(Protocol):
    """Where the stores of a queue lie. Stores go by names below it: "" is the queue's own, "epoch-0/bulk-2" a bulk's.

    A store is there whole or not at all. What cannot be read or written raises OSError or the error family.
    """

    def path(self, name: str) -> str:
        """What messages call a store."""
        ...

    def has(self, name: str) -> bool:
        """Whether a store is there."""
        ...

    def names(self, under: str) -> set[str]:
        """The next part of the name of every store below `under`."""
        ...

    def manifest(self, name: str, kind: str) -> dict[str, Any]:
        """Its verified manifest. Raises StoreError as `read_manifest` does."""
        ...

    def rows(self, name: str) -> zarr.Array:
        """The packed rows of a bulk, as its manifest says they are. Raises StoreError otherwise."""
        ...

    def commit(
        self,
        name: str,
        kind: str,
        fingerprint: Mapping[str, str],
        meta: Mapping[str, Any],
        words: Words | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Make a store, with packed rows or without. One that another process commits first is left alone, or
        overwritten."""
        ...

    def remove(self, name: str) -> None:
        """Remove a store; readers never see half of it."""
        ...

    def remove_empty(self, name: str) -> None:
        """Remove what holds stores below `name`, once it holds none."""
        ...

    def sweep(self) -> None:
        """Remove what killed writers left. Only while nobody writes."""
        ...

    def silence(self, error: Exception) -> RunError | None:
        """What to raise when `error` says that the place did not answer, rather than what lies there."""
        ...


class FolderPlace:
    """A folder of a file system: stores are written aside and renamed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> str:
        """See `Place.path`."""
        return str(self.root / name)

    def has(self, name: str) -> bool:
        """See `Place.has`."""
        return (self.root / name).exists()

    def names(self, under: str) -> set[str]:
        """See `Place.names`; with those of folders that no longer hold a store."""
        return {p.name for p in (self.root / under).glob("*")}

    def manifest(self, name: str, kind: str) -> dict[str, Any]:
        """See `Place.manifest`."""
        return read_manifest(self.root / name, kind)

    def rows(self, name: str) -> zarr.Array:
        """See `Place.rows`."""
        return open_store(self.root / name, BULK_KIND).array("rows")

    def commit(
        self,
        name: str,
        kind: str,
        fingerprint: Mapping[str, str],
        meta: Mapping[str, Any],
        words: Words | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """See `Place.commit`."""
        folder = self.root / name
        try:
            # A bulk is not synced: one that a power cut loses is sampled again, and checksums tell a torn one.
            with committed_folder(folder, overwrite=overwrite, durable=words is None) as aside:
                entries = {} if words is None else write_arrays(aside, {"rows": words}, one_shard=True)
                write_manifest(aside, kind, fingerprint, meta, entries)
        except (InputError, OSError):
            # Another process may have committed the same a moment before; if something else is there, its manifest is
            # missing.
            if overwrite or not (folder / MANIFEST).exists():
                raise

    def remove(self, name: str) -> None:
        """See `Place.remove`."""
        remove_tree(self.root / name)

    def remove_empty(self, name: str) -> None:
        """See `Place.remove_empty`."""
        with suppress(OSError):  # it holds something, or is gone
            (self.root / name).rmdir()

    def sweep(self) -> None:
        """See `Place.sweep`."""
        for folder in (self.root, *self.root.glob("epoch-*")):
            sweep_leftovers(folder)

    def silence(self, error: Exception) -> None:
        """A file system answers."""
