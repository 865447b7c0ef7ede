"""Minibatch queue on disk: shared, replayable, each bulk one committed store with a single Zarr shard.

A queue lies at a `Location`: a folder of a file system here, a prefix of an object store in `object_store`.

```
<path>/manifest.json         kind "samples": what made the store, bulk_size, minibatches_per_epoch
<path>/epoch-<e>/bulk-<n>/   kind "bulk": int32 [k, cap] (see bulk_codec), a Zarr chunk per minibatch, one Zarr shard
<path>/complete/             kind "samples-complete": bulks of each epoch, written by `finish`
<path>/features/             rows of features beside the bulks, if there are any: see `packed_rows`
```
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import zarr

from ..errors import InputError, MillraceError, RunError, StoreError, first_line
from ..minibatch import Bulk, Expected, MiniBatch
from ..store.manifest import require_fingerprint
from .base import BoundedQueue, BulkKey, Keep
from .bulk_codec import Words, pack_bulk, unpack_row
from .location import BULK_KIND, COMPLETE_KIND, KIND, FolderLocation, Header, Location
from .packed_rows import PackedRows

COMPLETE = "complete"
OPENED_BULKS = 16
WHOLE_BYTES = 64 << 20
"""A bulk up to this size is read at once by the only consumer: each read takes Zarr a millisecond, however small."""
_EPOCH, _BULK = re.compile(r"epoch-(\d+)"), re.compile(r"bulk-(\d+)")


class ZarrQueue(BoundedQueue):
    """Bulks as committed stores in one folder, written by this process or by others.

    A bulk that is in the folder already is not written again, so an interrupted producer continues where it stopped.
    Release positions live in memory: bulks left by an earlier run are dropped once they are passed, and do not count
    against the bound.

    Iterating gives every minibatch that is there, by epoch and index, without waiting.

    Make one with `create` or `open`.
    """

    stored = True
    _reads_bulks = True
    """True if bulks may be read whole."""
    _poll_s = 0.02
    _remedy = "free space, lower the queue's bound or keep less"

    def __init__(
        self,
        path: str | Path,
        fingerprint: Mapping[str, str],
        meta: Mapping[str, Any],
        *,
        max_bytes: int,
        keep: Keep,
        consumers: int,
        read_only: bool,
        expected: Expected | None = None,
        mend: Callable[[str], None] | None = None,
    ) -> None:
        size, n = meta.get("bulk_size"), meta.get("minibatches_per_epoch")
        if type(size) is not int or size < 1 or not (n is None or (type(n) is int and n >= 0)):
            raise StoreError(
                f"{path} says bulk_size {str(size)[:80]}, minibatches_per_epoch {str(n)[:80]}; make the store again"
            )
        super().__init__(bulk_size=size, max_bytes=max_bytes, keep=keep, consumers=consumers, minibatches_per_epoch=n)
        self.path = path
        self._location = self._location_at(path)
        self.fingerprint = dict(fingerprint)
        self.meta = dict(meta)
        self._read_only = read_only
        self._expected = expected
        self._mend = mend
        self._sound: set[BulkKey] = set()
        """Bulks that were written here or read whole, if damaged ones are to be dropped."""
        self._complete: Mapping[str, int] | None = None
        self._opened: OrderedDict[BulkKey, zarr.Array] = OrderedDict()
        self._opening = threading.Lock()
        self._read: tuple[BulkKey, Words] | None = None
        """The bulk that was read last, if it was read whole."""
        self._packed: PackedRows | None = None
        self._tidy = 0
        """Epochs before this one have no empty folder left."""

    @staticmethod
    def _location_at(path: str | Path) -> Location:
        return FolderLocation(Path(path))

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        fingerprint: Mapping[str, str],
        bulk_size: int,
        max_bytes: int,
        keep: Keep = "none",
        consumers: int = 1,
        meta: Mapping[str, Any] | None = None,
        sweep: bool = True,
        expected: Expected | None = None,
        mend: Callable[[str], None] | None = None,
    ) -> Self:
        """Make a queue in a folder, or continue the one that is there.

        Args:
            path: the folder; made when absent, joined when it was made from the same things.
            fingerprint: description of what the minibatches are made from (graph, partitioning, sampler, seed, ...).
            bulk_size: k, minibatches in a bulk.
            max_bytes: the bound, in bytes of packed bulks.
            keep: when bulks are dropped.
            consumers: how many consumers must release a bulk.
            meta: plain values for readers. With ``minibatches_per_epoch`` a `get` beyond the end of an epoch is refused
                at once.
            sweep: remove what killed writers left. Allowed only while no other process writes there: producers that
                join pass False.
            expected: required properties of minibatches; others are refused when they are read.
            mend: drops a damaged bulk of an earlier run, which then counts as absent, and reports it to this function.
                Each bulk found is read whole once for this.

        Raises:
            InputError: an argument is out of range.
            StoreError: the folder holds something else, or minibatches made from something else (lists the differing
                keys).
        """
        meta = {**(meta or {}), "bulk_size": bulk_size}
        if bulk_size < 1:
            raise InputError(f"queue bulk_size={bulk_size}; expected at least 1")
        bounds: dict[str, Any] = {"max_bytes": max_bytes, "keep": keep, "consumers": consumers}
        self = cls(path, fingerprint, meta, read_only=False, expected=expected, mend=mend, **bounds)
        self._location.commit("", Header(KIND, fingerprint, meta))
        body = self._location.manifest("", KIND)
        require_fingerprint(path, body["fingerprint"], fingerprint)
        require_fingerprint(path, _shape(body["meta"]), _shape(meta))
        if sweep:
            self._location.sweep()
        if mend is not None:
            self._mend_complete(mend)
        for epoch in self.epochs() if keep != "all" else ():
            for number in self.committed(epoch):
                self._last[epoch, number] = self._last_on_disk((epoch, number))
        return self

    @property
    def packed(self) -> PackedRows | None:
        if self._packed is None:
            self._packed = PackedRows.opened_at(self._location, self.bulk_size)
        return self._packed

    def pack(self, fingerprint: Mapping[str, str], mend: Callable[[str], None] | None, **meta: object) -> PackedRows:
        """Begin to pack rows beside the bulks, or go on: see `PackedRows.begun`. `mend` is told of damaged ones, which
        are dropped."""
        self._packed = PackedRows.begun(self._location, self.bulk_size, fingerprint, **meta)
        if mend is not None:
            for epoch in self.epochs():
                self._packed.drop_damaged(epoch, mend)
        return self._packed

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        fingerprint: Mapping[str, str] | None = None,
        consumers: int = 1,
        expected: Expected | None = None,
    ) -> Self:
        """Open a store of minibatches for reading only: finished, or still being written (then `get` waits). Nothing is
        dropped.

        Args:
            path: its folder.
            fingerprint: refuse the store when it was made from something else.
            consumers: how many ranks read.
            expected: see `create`.

        Raises:
            StoreError: absent, damaged, or made from something else (lists the keys that differ).
        """
        body = cls._location_at(path).manifest("", KIND)
        if fingerprint is not None:
            require_fingerprint(path, body["fingerprint"], fingerprint)
        options: dict[str, Any] = {"max_bytes": 1, "keep": "all", "consumers": consumers, "expected": expected}
        return cls(path, body["fingerprint"], body["meta"], read_only=True, **options)

    def __iter__(self) -> Iterator[MiniBatch]:
        """All minibatches that are there. Raises StoreError for a damaged one, and for a bulk that a finished store
        lacks."""
        counts = self._complete if self.complete else None
        for epoch in self.epochs() if counts is None else sorted(map(int, counts)):
            for number in sorted(self.committed(epoch)) if counts is None else range(counts[str(epoch)]):
                for row in range(self._rows((epoch, number)).shape[0]):
                    yield self._load((epoch, number), row)

    def epochs(self) -> list[int]:
        """Epochs with at least one bulk that is there (in a folder: or was there), ascending."""
        return sorted(int(m[1]) for name in self._location.names("") if (m := _EPOCH.fullmatch(name)))

    def _last_on_disk(self, key: BulkKey) -> int:
        """Index of a bulk's last minibatch. A damaged bulk counts as a full one: the index only decides when it is
        dropped."""
        full = (key[1] + 1) * self.bulk_size - 1
        try:
            last = self._location.manifest(_name(key), BULK_KIND)["meta"].get("last_index")
        except StoreError:
            return full
        return last if type(last) is int else full

    def committed(self, epoch: int) -> set[int]:
        """Numbers of the epoch's bulks that are there."""
        found = {int(m[1]) for name in self._location.names(f"epoch-{epoch}") if (m := _BULK.fullmatch(name))}
        return found if self._mend is None else {number for number in found if self._has((epoch, number))}

    def _mend_complete(self, mend: Callable[[str], None]) -> None:
        try:
            _ = self.complete
        except StoreError as e:
            self._location.remove(COMPLETE)
            mend(f"it is written again: {e}")

    @property
    def complete(self) -> bool:
        """True if `finish` was called: no more bulks will come."""
        if self._complete is None and self._location.has(COMPLETE):
            bulks = self._location.manifest(COMPLETE, COMPLETE_KIND)["meta"].get("bulks")
            if not isinstance(bulks, dict) or not all(
                k.isdecimal() and len(k) < 19 and type(n) is int for k, n in bulks.items()
            ):
                raise StoreError(
                    f"{self._location.path(COMPLETE)} does not say how many bulks each epoch has; sample again"
                )
            self._complete = bulks
        return self._complete is not None

    def finish(self, sweep: bool = False) -> None:
        """Record durably that every bulk is there. Readers then stop waiting for missing ones. `sweep`: as in
        `create`."""
        assert not self._read_only, "this queue was opened to read"
        counts = {str(epoch): len(self.committed(epoch)) for epoch in self.epochs()}
        try:
            header = Header(COMPLETE_KIND, self.fingerprint, {"bulks": counts})
            self._location.commit(COMPLETE, header, overwrite=True)
        except (OSError, MillraceError) as e:
            raise RunError(
                f"cannot finish the minibatches in {self.path} ({e}); {self._remedy}, then run again: what is there "
                "is kept"
            ) from e
        self._complete = counts
        if sweep:
            self._location.sweep()

    def put(self, bulk: Bulk, timeout_s: float) -> None:
        assert not self._read_only, "this queue was opened to read"
        super().put(bulk, timeout_s)

    def _has(self, key: BulkKey) -> bool:
        if self._mend is None:
            return key in self._opened or self._location.has(_name(key))
        with self._changed:
            return key in self._sound or (self._location.has(_name(key)) and self._is_sound(key, self._mend))

    def _is_sound(self, key: BulkKey, mend: Callable[[str], None]) -> bool:
        """True if all of a bulk can be read; drops it otherwise."""
        n, first = self.minibatches_per_epoch, key[1] * self.bulk_size
        try:
            rows = self._rows(key).shape[0]
            if n is not None and rows != (want := min(self.bulk_size, n - first)):
                raise StoreError(f"{self._location.path(_name(key))} has {rows} minibatches; expected {want}")
            for row in range(rows):
                self._load(key, row)
        except StoreError as e:
            self._drop(key)
            mend(f"a damaged bulk was dropped, and is sampled again: {e}")
            return False
        self._sound.add(key)
        return True

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
            # A bulk was missing, or more are wanted: readers must wait for it until the next `finish`.
            self._location.remove(COMPLETE)
            self._complete = None
        meta = {"first_index": bulk.first_index, "last_index": bulk.minibatches[-1].index}
        try:
            self._location.commit(_name((bulk.epoch, bulk.number)), Header(BULK_KIND, {}, meta), pack_bulk(bulk))
        except (OSError, MillraceError) as e:
            raise RunError(
                f"cannot write bulk {bulk.number} of epoch {bulk.epoch} to {self.path} ({e}); {self._remedy}, then "
                "resume: what is there is kept"
            ) from e
        if self._mend is not None:
            self._sound.add((bulk.epoch, bulk.number))

    def _rows(self, key: BulkKey) -> zarr.Array:
        with self._opening:
            if key in self._opened:
                self._opened.move_to_end(key)
                return self._opened[key]
        rows = self._location.rows(_name(key))
        with self._opening:
            self._opened[key] = rows
            while len(self._opened) > OPENED_BULKS:
                self._opened.popitem(last=False)
        return rows

    def _load(self, key: BulkKey, row: int) -> MiniBatch:
        folder, rows = self._location.path(_name(key)), self._rows(key)
        if rows.ndim != 2 or row >= rows.shape[0]:
            raise StoreError(f"{folder} has {rows.shape[0]} minibatches; number {row} of it asked for")
        try:
            words = self._words(key, row, rows)
        except Exception as e:
            damage = StoreError(
                f"{folder}: minibatch {row} is damaged ({first_line(e)}); remove the folder and sample it again"
            )
            raise self._location.silence(e) or damage from e
        m = unpack_row(words, f"{folder}, minibatch {row}")
        if self._expected is not None:
            self._expected.refuse(m, f"{folder}, minibatch {row}")
        want = (key[0], key[1] * self.bulk_size + row)
        if (m.epoch, m.index) != want:
            raise StoreError(
                f"{folder}, minibatch {row} holds (epoch, index) {(m.epoch, m.index)}; expected {want}: sample it again"
            )
        return m

    def _words(self, key: BulkKey, row: int, rows: zarr.Array) -> Words:
        """One row of a bulk."""
        held = self._read
        if held is not None and held[0] == key:
            return held[1][row]
        if self._reads_bulks and len(self._passed) == 1 and rows.nbytes <= WHOLE_BYTES:
            # If any row is damaged, this one may still be sound.
            with suppress(Exception):
                self._read = held = (key, np.asarray(rows[:]))
                return held[1][row]
        return np.asarray(rows[row])

    def _drop(self, key: BulkKey) -> None:
        with self._opening:
            self._opened.pop(key, None)
            self._read = None
        self._sound.discard(key)
        self._location.remove(_name(key))
        # No process writes bulks of earlier epochs any more.
        for epoch in range(self._tidy, key[0]):
            self._location.remove_empty(f"epoch-{epoch}")
        self._tidy = max(self._tidy, key[0])


def _name(key: BulkKey) -> str:
    return f"epoch-{key[0]}/bulk-{key[1]}"


def _shape(meta: Mapping[str, Any]) -> dict[str, str]:
    return {k: str(meta.get(k)) for k in ("bulk_size", "minibatches_per_epoch")}
