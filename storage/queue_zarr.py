"""The minibatch queue on disk: shared, replayable, each bulk one committed store with a single Zarr shard.

```
<path>/manifest.json              kind "samples": what made the store, bulk_size, minibatches_per_epoch
<path>/epoch-<e>/bulk-<n>/        kind "bulk": int32 [k, cap] (see bulk_codec), a Zarr chunk per minibatch, one Zarr shard
<path>/complete/                  kind "samples-complete": bulks of each epoch, written by `finish`
```
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from .bulk_codec import pack_bulk, unpack_row
from .errors import InputError, RunError, StoreError
from .minibatch import Bulk, MiniBatch
from .queue import BoundedQueue, BulkKey, Keep
from .store import (
    MANIFEST,
    committed_folder,
    open_store,
    read_manifest,
    remove_tree,
    require_fingerprint,
    sweep_leftovers,
    write_arrays,
    write_manifest,
)

KIND, BULK_KIND, COMPLETE_KIND = "samples", "bulk", "samples-complete"
OPENED_BULKS = 16
_EPOCH, _BULK = re.compile(r"epoch-(\d+)"), re.compile(r"bulk-(\d+)")


class ZarrQueue(BoundedQueue):
    """Bulks as committed stores in one folder, written by this process or by others.

    A bulk that is in the folder already is not written again, so an interrupted producer goes on where it stopped. Release
    positions live in memory: bulks left by an earlier life are dropped once they are passed, and do not count against the bound.

    Iterating over it gives every minibatch that is there, by epoch and index, without waiting.

    Make one with `create` or `open`.
    """

    stored = True
    _poll_s = 0.02

    def __init__(
        self,
        path: Path,
        fingerprint: Mapping[str, str],
        meta: Mapping[str, Any],
        *,
        max_bytes: int,
        keep: Keep,
        consumers: int,
        read_only: bool,
    ) -> None:
        n = meta.get("minibatches_per_epoch")
        super().__init__(bulk_size=meta["bulk_size"], max_bytes=max_bytes, keep=keep, consumers=consumers, minibatches_per_epoch=n)
        self.path = path
        self.fingerprint = dict(fingerprint)
        self.meta = dict(meta)
        self._read_only = read_only
        self._complete: Mapping[str, int] | None = None
        self._opened: OrderedDict[BulkKey, zarr.Array] = OrderedDict()
        self._opening = threading.Lock()

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        fingerprint: Mapping[str, str],
        bulk_size: int,
        max_bytes: int,
        keep: Keep = "none",
        consumers: int = 1,
        meta: Mapping[str, Any] | None = None,
        sweep: bool = True,
    ) -> "ZarrQueue":
        """Make a queue in a folder, or go on with the one that is there.

        Args:
            path: the folder; made when absent, joined when it was made from the same things.
            fingerprint: what the minibatches are made from (graph, partitioning, sampler, seed, ...).
            bulk_size: k, minibatches in a bulk.
            max_bytes: the bound, in bytes of packed bulks.
            keep: when bulks are dropped.
            consumers: how many consumers must release a bulk.
            meta: what readers should know, plain values. With ``minibatches_per_epoch`` an epoch's end is seen at once, and a
                `get` beyond it is refused.
            sweep: remove what killed writers left. Only while no other process writes there: producers that join pass False.

        Raises:
            InputError: an argument is out of range.
            StoreError: the folder holds something else, or minibatches made from something else (lists the differing keys).
        """
        path, meta = Path(path), {**(meta or {}), "bulk_size": bulk_size}
        self = cls(path, fingerprint, meta, max_bytes=max_bytes, keep=keep, consumers=consumers, read_only=False)
        if not (path / MANIFEST).exists():
            try:
                with committed_folder(path) as folder:
                    write_manifest(folder, KIND, fingerprint, meta, {})
            except (StoreError, OSError):
                # Either another process made it meanwhile, or something else is there: the manifest tells.
                if not (path / MANIFEST).exists():
                    raise
        body = read_manifest(path, KIND)
        require_fingerprint(path, body["fingerprint"], fingerprint)
        require_fingerprint(path, _shape(body["meta"]), _shape(meta))
        if sweep:
            for folder in (path, *path.glob("epoch-*")):
                sweep_leftovers(folder)
        for epoch in self.epochs() if keep != "all" else ():
            for number in self.committed(epoch):
                self._last[epoch, number] = self._last_on_disk((epoch, number))
        return self

    @classmethod
    def open(cls, path: Path, *, fingerprint: Mapping[str, str] | None = None, consumers: int = 1) -> "ZarrQueue":
        """Open a store of minibatches to read it only: finished, or still being written (then a `get` waits). Nothing is dropped.

        Args:
            path: its folder.
            fingerprint: refuse the store when it was made from something else.
            consumers: how many ranks read.

        Raises:
            StoreError: absent, damaged, or made from something else (lists the keys that differ).
        """
        path = Path(path)
        body = read_manifest(path, KIND)
        if fingerprint is not None:
            require_fingerprint(path, body["fingerprint"], fingerprint)
        return cls(path, body["fingerprint"], body["meta"], max_bytes=1, keep="all", consumers=consumers, read_only=True)

    def __iter__(self) -> Iterator[MiniBatch]:
        """Every minibatch that is there. Raises StoreError for a damaged one, and for a bulk that a finished store lacks."""
        counts = self._complete if self.complete else None
        for epoch in self.epochs() if counts is None else sorted(map(int, counts)):
            for number in sorted(self.committed(epoch)) if counts is None else range(counts[str(epoch)]):
                for row in range(self._rows((epoch, number)).shape[0]):
                    yield self._load((epoch, number), row)

    def _folder(self, key: BulkKey) -> Path:
        return self.path / f"epoch-{key[0]}" / f"bulk-{key[1]}"

    def epochs(self) -> list[int]:
        """Numbers of the epochs of which some bulk is or was in the folder, ascending."""
        return sorted(int(m[1]) for p in self.path.glob("epoch-*") if (m := _EPOCH.fullmatch(p.name)))

    def _last_on_disk(self, key: BulkKey) -> int:
        """Index of a bulk's last minibatch; a damaged one is taken for a full one: it only decides when it is dropped."""
        try:
            return read_manifest(self._folder(key), BULK_KIND)["meta"]["last_index"]
        except StoreError:
            return (key[1] + 1) * self.bulk_size - 1

    def committed(self, epoch: int) -> set[int]:
        """Numbers of the epoch's bulks that are in the folder."""
        return {int(m[1]) for p in (self.path / f"epoch-{epoch}").glob("bulk-*") if (m := _BULK.fullmatch(p.name))}

    @property
    def complete(self) -> bool:
        """Whether `finish` was called: nothing more will come."""
        if self._complete is None and (self.path / "complete").exists():
            self._complete = read_manifest(self.path / "complete", COMPLETE_KIND)["meta"]["bulks"]
        return self._complete is not None

    def finish(self) -> None:
        """Say, durably, that every bulk is there. Readers then wait no more for one that is missing."""
        assert not self._read_only, "this queue was opened to read"
        counts = {str(epoch): len(self.committed(epoch)) for epoch in self.epochs()}
        try:
            with committed_folder(self.path / "complete", overwrite=True) as folder:
                write_manifest(folder, COMPLETE_KIND, self.fingerprint, {"bulks": counts}, {})
        except (OSError, InputError) as e:
            raise RunError(f"cannot finish the minibatches in {self.path} ({e}); free space and run again: what is there is kept") from e
        self._complete = counts

    def put(self, bulk: Bulk, timeout_s: float) -> None:
        """See `MinibatchQueue.put`."""
        assert not self._read_only, "this queue was opened to read"
        super().put(bulk, timeout_s)

    def _has(self, key: BulkKey) -> bool:
        return key in self._opened or self._folder(key).exists()

    def _is_final(self, key: BulkKey, index: int) -> bool:
        return super()._is_final(key, index) or (self._read_only and self.complete)

    def _why_absent(self, key: BulkKey, index: int) -> str:
        if self._read_only and self.complete:
            return (
                f"{self.path} is finished and holds no bulk {key[1]} of epoch {key[0]} (minibatch {index}); it holds "
                f"{self._complete} bulks by epoch: sample more epochs, or make the store again"
            )
        return super()._why_absent(key, index)

    def _save(self, bulk: Bulk) -> None:
        if self.complete:
            # Something was missing, or more is wanted: readers must wait for it again until the next `finish`.
            remove_tree(self.path / "complete")
            self._complete = None
        folder = self._folder((bulk.epoch, bulk.number))
        meta = {"first_index": bulk.first_index, "last_index": bulk.minibatches[-1].index}
        try:
            # Not synced: a bulk that a power cut loses is sampled again, and checksums tell a torn one.
            with committed_folder(folder, durable=False) as aside:
                entries = write_arrays(aside, {"rows": pack_bulk(bulk)}, one_shard=True)
                write_manifest(aside, BULK_KIND, {}, meta, entries)
        except (OSError, InputError) as e:
            # Another producer may have committed the same bulk, bit for bit, a moment before.
            if not (folder / MANIFEST).exists():
                raise RunError(
                    f"cannot write bulk {bulk.number} of epoch {bulk.epoch} to {self.path} ({e}); free space, lower the queue's bound or "
                    "keep less, then resume: what is there is kept"
                ) from e

    def _rows(self, key: BulkKey) -> zarr.Array:
        with self._opening:
            if key in self._opened:
                self._opened.move_to_end(key)
                return self._opened[key]
        rows = open_store(self._folder(key), BULK_KIND).array("rows")
        with self._opening:
            self._opened[key] = rows
            while len(self._opened) > OPENED_BULKS:
                self._opened.popitem(last=False)
        return rows

    def _load(self, key: BulkKey, row: int) -> MiniBatch:
        folder, rows = self._folder(key), self._rows(key)
        if row >= rows.shape[0]:
            raise StoreError(f"{folder} has {rows.shape[0]} minibatches; number {row} of it asked for")
        try:
            words = np.asarray(rows[row])
        except Exception as e:
            raise StoreError(f"{folder}: minibatch {row} is damaged ({e}); remove the folder and sample it again") from e
        m = unpack_row(words, f"{folder}, minibatch {row}")
        want = (key[0], key[1] * self.bulk_size + row)
        if (m.epoch, m.index) != want:
            raise StoreError(f"{folder}, minibatch {row} holds (epoch, index) {(m.epoch, m.index)}; expected {want}: sample it again")
        return m

    def _drop(self, key: BulkKey) -> None:
        with self._opening:
            self._opened.pop(key, None)
        remove_tree(self._folder(key))


def _shape(meta: Mapping[str, Any]) -> dict[str, str]:
    return {k: str(meta.get(k)) for k in ("bulk_size", "minibatches_per_epoch")}
