"""Feature stores: V rows of F features, in memory, memory-mapped, or in Zarr. All gather rows by global id."""

import mmap
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import zarr

from .array_kinds import FloatArray, IdArray, IntArray
from .errors import InputError, StoreError, first_line
from .ledger import Ledger
from .store.narrow import FeatureDtype, row_width, stored_dtype, stored_width, widen
from .store.npy import advise, mapped_file
from .store.row_file import Reads, RowFile
from .store.store import Store, open_store, write_store

KIND = "features"
WIDENED_BYTES = 1 << 20
"""Bytes of narrow rows that are gathered together, so that they are widened in the processor's cache."""


@runtime_checkable
class FeatureStore(Protocol):
    """V rows of F numbers that can be gathered by id. Gathering is thread-safe."""

    @property
    def num_rows(self) -> int:
        """V."""

    @property
    def num_features(self) -> int:
        """F."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """float32 or float64."""

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        """Rows of `ids`, [n, F].

        Args:
            ids: [n] in [0, V); may repeat.
            out: [n, F] of this store's dtype, C-contiguous, to write into; made when absent.

        Raises:
            IndexError: an id is out of range.
            StoreError: the store is damaged.
        """


def check_ids(ids: IntArray, num_rows: int) -> None:
    """Raise IndexError unless all ids are those of rows."""
    if len(ids) and (ids.min() < 0 or ids.max() >= num_rows):
        raise IndexError(f"feature rows [{ids.min()}, {ids.max()}] asked for; there are {num_rows}")


class ArrayFeatures:
    """Features in one array, in memory or mapped from a file (`MappedFeatures`)."""

    def __init__(self, rows: FloatArray, narrow: bool = False) -> None:
        """
        Args:
            rows: [V, F].
            narrow: they may have any dtype, for `WidenedFeatures`.
        """
        if rows.ndim != 2 or not (narrow or rows.dtype in (np.float32, np.float64)):
            raise InputError(f"features are {rows.dtype}{list(rows.shape)}; expected float32 or float64 [V, F]")
        self.rows, self.dtype = rows, rows.dtype
        self.num_rows, self.num_features = rows.shape

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        check_ids(ids, self.num_rows)
        # mode="clip" skips the buffering that mode="raise" needs with `out`; ids were checked above.
        return np.take(self.rows, ids, axis=0, out=out, mode="clip")


class MappedFeatures(ArrayFeatures):
    """Features in an ``.npy`` file: rows that the system has in its cache of pages are read where it maps them; others
    from the disk, in order."""

    def __init__(self, path: Path, narrow: bool = False) -> None:
        try:
            rows = mapped_file(path)
        except FileNotFoundError:
            raise InputError(f"{path} does not exist; expected an .npy file of features [V, F]") from None
        except Exception as e:  # for a damaged header, NumPy passes on whatever Python's parser raises
            raise StoreError(f"{path} is not a complete .npy file ({first_line(e)}); write the features again") from e
        super().__init__(rows, narrow)
        self.path = Path(path)
        advise(rows, mmap.MADV_RANDOM)
        row_bytes = rows.itemsize * rows.shape[1] if rows.flags.c_contiguous else 0
        self._file = RowFile(self.path, rows.offset, row_bytes, len(rows))

    @property
    def reads(self) -> Reads:
        """What this thread has read from the disk."""
        return self._file.reads

    def is_cached(self, ids: IntArray) -> bool:
        """True if rows of `ids` are better read where they are mapped. Raises RunError if the file has become
        shorter."""
        return self._file.is_cached(ids)

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        """See `FeatureStore.gather`. Raises RunError if the file has become shorter, or the disk fails."""
        check_ids(ids, self.num_rows)
        if self.is_cached(ids):
            return super().gather(ids, out)
        if out is None:
            out = np.empty((len(ids), self.num_features), self.rows.dtype)
        ids = np.asarray(ids)
        raw = out.view(np.uint8).reshape(len(ids), self._file.row_bytes)
        if np.all(ids[1:] >= ids[:-1]):
            self._file.read(ids, raw, None)
        else:
            order = np.argsort(ids, kind="stable")
            self._file.read(ids[order], raw, order)
        return out


class ZarrFeatures:
    """Features in a committed Zarr store of kind ``features``; rows are read by whole Zarr chunks, each checksummed."""

    def __init__(self, path: Path) -> None:
        store = open_store(Path(path), KIND)
        self.path = Path(path)
        self._open(store, "rows")

    @classmethod
    def inside(cls, store: Store, name: str, narrow: bool = False) -> "ZarrFeatures":
        """Features in the array `name` of a store that holds other arrays too, `narrow` as in `ArrayFeatures`."""
        self = cls.__new__(cls)
        self.path = store.path
        self._open(store, name, narrow)
        return self

    def _open(self, store: Store, name: str, narrow: bool = False) -> None:
        self._array: zarr.Array = store.array(name)
        if self._array.ndim != 2:
            raise StoreError(f"{store.path}: '{name}' has shape {list(self._array.shape)}; expected [V, F]")
        if not narrow and self._array.dtype not in (np.float32, np.float64):
            raise StoreError(
                f"{store.path}: '{name}' is {self._array.dtype}; expected float32 or float64: write the store again"
            )
        (self.num_rows, self.num_features), self.dtype = self._array.shape, np.dtype(self._array.dtype)

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        check_ids(ids, self.num_rows)
        if out is None:
            out = np.empty((len(ids), self.num_features), self.dtype)
        if not len(ids) or not self.num_features:
            return out
        # One read for each Zarr chunk that is needed: ids are visited in the order of their chunks and scattered back.
        size = self._array.chunks[0]
        chunk = np.asarray(ids) // size
        order = np.argsort(chunk, kind="stable")
        bounds = np.flatnonzero(np.diff(chunk[order])) + 1
        for part in np.split(order, bounds):
            first = int(chunk[part[0]]) * size
            try:
                rows = np.asarray(self._array[first : first + size])
            except Exception as e:
                raise StoreError(
                    f"{self.path}: feature rows from {first} are damaged ({e}); write the store again"
                ) from e
            local = np.asarray(ids)[part] - first
            begin, end = int(part[0]), int(part[-1]) + 1
            if end - begin == len(part) and out.dtype == rows.dtype:
                # Sorted ids go straight to their places. Without a mode, take would check the ids again and copy.
                np.take(rows, local, axis=0, out=out[begin:end], mode="clip")
            else:
                out[part] = rows[local]
        return out


def write_features(
    path: Path, rows: FloatArray, *, fingerprint: dict[str, str] | None = None, overwrite: bool = False
) -> ZarrFeatures:
    """Write rows [V, F] as a committed Zarr store and open it."""
    ArrayFeatures(rows)
    write_store(Path(path), KIND, fingerprint=fingerprint or {}, meta={}, arrays={"rows": rows}, overwrite=overwrite)
    return ZarrFeatures(path)


class ConvertedFeatures:
    """Another store's rows in another floating-point type, converted as they are gathered."""

    def __init__(self, inner: FeatureStore, dtype: npt.DTypeLike) -> None:
        self.inner = inner
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.num_rows, self.num_features = inner.num_rows, inner.num_features

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        rows = self.inner.gather(ids)
        converted: Any = np.empty(rows.shape, self.dtype) if out is None else out
        converted[...] = rows
        return converted


class WidenedFeatures:
    """Rows that a store keeps narrower (`store.narrow`), as float32, widened as they are gathered."""

    dtype = np.dtype(np.float32)

    def __init__(self, kept: ArrayFeatures | ZarrFeatures, kind: FeatureDtype) -> None:
        """
        Args:
            kept: the rows as they are kept.
            kind: how they are.

        Raises:
            InputError: the rows are no such ones.
        """
        columns = kept.num_features
        if kept.dtype != stored_dtype(kind) or columns != stored_width(kind, row_width(kind, columns)):
            raise InputError(f"features kept as {kind} are {kept.dtype}[{kept.num_rows}, {kept.num_features}]")
        self.kept = kept
        self.kind: FeatureDtype = kind
        self.num_rows, self.num_features = kept.num_rows, row_width(kind, columns)

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        """See `FeatureStore.gather`. A few rows at a time are between the two forms."""
        ids = np.asarray(ids)
        if out is None:
            out = np.empty((len(ids), self.num_features), np.float32)
        if is_read_together(self.kept, ids):
            return widen(self.kept.gather(ids), self.kind, out)
        check_ids(ids, self.num_rows)
        step = max(1, WIDENED_BYTES // max(1, self.kept.num_features * self.kept.dtype.itemsize))
        for i in range(0, len(ids), step):
            widen(self.kept.gather(ids[i : i + step]), self.kind, out[i : i + step])
        return out


class CountedFeatures:
    """Another store's rows; counts the bytes gathered in a ledger."""

    def __init__(self, inner: FeatureStore, ledger: Ledger, channel: str) -> None:
        self.inner, self.ledger, self.channel = inner, ledger, channel
        self.num_rows, self.num_features, self.dtype = inner.num_rows, inner.num_features, inner.dtype

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        rows = self.inner.gather(ids, out)
        self.count(len(rows))
        return rows

    def count(self, rows: int) -> None:
        """Count so many rows that were read by another way."""
        self.ledger.add(self.channel, "features", rows * self.num_features * self.dtype.itemsize)


def is_read_together(features: FeatureStore, ids: IntArray) -> bool:
    """True if reading rows of `ids` takes less time together than one after the other: they are on disk, in pages that
    the system has not cached, or in Zarr chunks. Raises RunError if a file has become shorter."""
    if isinstance(features, CountedFeatures | ConvertedFeatures):
        return is_read_together(features.inner, ids)
    if isinstance(features, WidenedFeatures):
        return is_read_together(features.kept, ids)
    return isinstance(features, ZarrFeatures) or (isinstance(features, MappedFeatures) and not features.is_cached(ids))


def in_place(features: FeatureStore, ids: IntArray) -> FloatArray | None:
    """All rows as one C-contiguous array, in memory or mapped, for a caller that reads `ids` in place; None if they
    must be gathered.

    A counted store counts them, once each, as if they had been gathered.

    Raises:
        IndexError: an id is out of range.
    """
    if isinstance(features, CountedFeatures):
        rows = in_place(features.inner, ids)
        if rows is not None:
            features.count(len(ids))
        return rows
    if not isinstance(features, ArrayFeatures) or not features.rows.flags.c_contiguous:
        return None
    check_ids(ids, features.num_rows)
    if is_read_together(features, ids):
        return None
    return np.asarray(features.rows)


class ReorderedFeatures:
    """Rows of a feature store under other numbers. See `FeatureStore`."""

    def __init__(self, features: FeatureStore, order: IdArray) -> None:
        self.features, self._order = features, order
        self.num_rows, self.num_features, self.dtype = len(order), features.num_features, features.dtype

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        check_ids(ids, self.num_rows)
        return self.features.gather(self._order[ids], out)
