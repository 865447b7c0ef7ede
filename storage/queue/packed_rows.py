"""Feature rows beside the bulks of a store of samples: those of each minibatch's distinct nodes, by ascending id.

```
<path>/features/             kind "packed-features": form and digest of the rows, number of nodes
<path>/epoch-<e>/rows-<n>/   kind "packed-rows": rows of the minibatches of bulk n, as `RowForm` keeps them, in
                             ``rows.npy``; their degrees in ``degree.npy``, where these belong to nodes
```

A minibatch's rows are read at once, and their checksum is compared each time.
"""

import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from ..array_kinds import Float64Array, FloatArray, NumberArray
from ..errors import RunError, StoreError
from ..store.manifest import are_sizes, require_fingerprint
from ..store.narrow import FeatureDtype, narrow, stored_dtype, stored_width, widen
from ..store.npy import HEADER_BYTES, make_npy, npy_bytes, put_npy
from .location import Header, Location
from .seed_data import NAME as SEEDS
from .seed_data import SeedData

CATALOGUE, KIND, ROWS_KIND = "features", "packed-features", "packed-rows"
ROWS, DEGREES = "rows.npy", "degree.npy"
Kept = npt.NDArray[np.number]
Form = Literal[FeatureDtype, "float64"]
FORMS: tuple[Form, ...] = (*get_args(FeatureDtype), "float64")
AGAIN = "give the `millrace sample --features` command again, which packs what is lacking"


@dataclass(frozen=True)
class RowForm:
    """How rows of numbers are kept."""

    name: Form
    width: int
    """F, numbers of a row."""

    @property
    def dtype(self) -> np.dtype[np.number]:
        """Of the array that keeps them."""
        return np.dtype(np.float64) if self.name == "float64" else stored_dtype(self.name)

    @property
    def columns(self) -> int:
        """Of that array."""
        return self.width if self.name == "float64" else stored_width(self.name, self.width)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.columns * self.dtype.itemsize

    def kept(self, rows: FloatArray) -> Kept:
        """Rows [n, F] as they are kept, [n, `columns`]."""
        return np.asarray(rows, np.float64) if self.name == "float64" else narrow(rows, self.name)

    def opened(self, kept: Kept, dtype: npt.DTypeLike) -> FloatArray:
        """Rows [n, F] of a floating-point type from those that are kept."""
        return (kept if self.name in ("float32", "float64") else widen(kept, self.name)).astype(dtype, copy=False)


@dataclass(frozen=True)
class _Bulk:
    """What the manifest of a bulk's rows says."""

    offsets: tuple[int, ...]
    """k+1, rows before each minibatch's."""
    sums: tuple[int, ...]
    """k, checksum of each minibatch's rows."""
    degree_sums: tuple[int, ...]
    """k, checksum of each minibatch's degrees."""
    columns: int
    """Columns of the degrees; 0: there are none."""


class PackedRows:
    """The rows of a store of samples. Reading is thread-safe."""

    def __init__(self, location: Location, bulk_size: int, body: Mapping[str, Any]) -> None:
        """
        Args:
            location: of the store.
            bulk_size: minibatches of a bulk.
            body: manifest of the catalogue.

        Raises:
            StoreError: it does not say what the rows are.
        """
        meta = body["meta"]
        # Earlier versions have columns of degrees here, for all bulks.
        form, counts = meta.get("form"), [meta.get("width"), meta.get("num_nodes"), meta.get("degree_columns", 0)]
        if form not in FORMS or not are_sizes(counts):
            raise StoreError(f"{location.path(CATALOGUE)} says form {str(form)[:40]}, sizes {counts}; sample again")
        self.form = RowForm(form, counts[0])
        self.num_nodes: int = counts[1]
        """V."""
        self._columns: int = counts[2]
        self.is_exact = bool(meta.get("exact"))
        """True if the rows are those of the dataset, to the bit."""
        self.fingerprint: dict[str, str] = body["fingerprint"]
        self._location, self._bulk_size = location, bulk_size
        self._known: dict[str, _Bulk] = {}
        self._epochs = sys.maxsize

    @classmethod
    def opened_at(cls, location: Location, bulk_size: int) -> Self | None:
        """The rows of the store at a location; None: it has none."""
        if not location.has(CATALOGUE):
            return None
        return cls(location, bulk_size, location.manifest(CATALOGUE, KIND))

    @classmethod
    def begun(cls, location: Location, bulk_size: int, fingerprint: Mapping[str, str], **meta: Any) -> Self:
        """Begin to pack rows, or go on.

        Args:
            location: of the store.
            bulk_size: minibatches of a bulk.
            fingerprint: of the features, and the rows' form.
            meta: the other facts of the catalogue.

        Raises:
            StoreError: there are rows of other features, or in another form.
        """
        location.commit(CATALOGUE, Header(KIND, fingerprint, meta))
        body = location.manifest(CATALOGUE, KIND)
        require_fingerprint(location.path(CATALOGUE), body["fingerprint"], fingerprint)
        return cls(location, bulk_size, body)

    def cycled(self, epochs: int) -> "PackedRows":
        """The same, where stored epoch e mod `epochs` stands for epoch e."""
        found = copy(self)
        found._epochs = epochs
        return found

    def committed(self, epoch: int) -> set[int]:
        """Numbers of the epoch's bulks whose rows are there."""
        names = self._location.names(f"epoch-{epoch}")
        return {int(name.removeprefix("rows-")) for name in names if name.startswith("rows-") and name[5:].isdigit()}

    def has_degrees(self, epoch: int) -> bool:
        """True if the epoch's rows have their degrees beside them."""
        return all(self._bulk(epoch, number * self._bulk_size)[0].columns for number in self.committed(epoch))

    @property
    def seeds(self) -> SeedData | None:
        """What else training reads; None: an earlier version packed the rows. Raises StoreError if it is damaged."""
        return SeedData.read(self._location) if self.has_seeds else None

    @property
    def has_seeds(self) -> bool:
        """True if `seeds` are there."""
        return self._location.has(SEEDS)

    def keep_seeds(self, seeds: SeedData) -> None:
        """Keep that. Raises StoreError if the store has that of other seeds."""
        seeds.write(self._location)

    def count(self, epoch: int, index: int) -> int:
        """Distinct nodes of a minibatch. Raises StoreError if its rows are not there."""
        bulk, at = self._bulk(epoch, index)
        return bulk.offsets[at + 1] - bulk.offsets[at]

    def rows(self, epoch: int, index: int, dtype: npt.DTypeLike, empty: Callable[..., Kept] = np.empty) -> FloatArray:
        """[n, F] rows of the distinct nodes of a minibatch, by ascending id, in an array that `empty` makes.

        Raises:
            StoreError: they are not there, or damaged.
            RunError: the file has become shorter, or the disk fails.
        """
        kept = empty((self.count(epoch, index), self.form.columns), self.form.dtype)
        self._read("rows", epoch, index, kept)
        return self.form.opened(kept, dtype)

    def degrees(self, epoch: int, index: int) -> Float64Array:
        """[n], or [n, 3] with self loops beside them: degrees of the distinct nodes of a minibatch. See `rows`."""
        columns = self._bulk(epoch, index)[0].columns
        found = np.empty((self.count(epoch, index), columns))
        self._read("degrees", epoch, index, found)
        return found[:, 0] if columns == 1 else found

    def drop_damaged(self, epoch: int, mend: Callable[[str], None]) -> None:
        """Drop the epoch's rows that cannot be read, and tell why."""
        for number in sorted(self.committed(epoch)):
            try:
                self.verify(epoch, number)
            except (StoreError, RunError) as e:
                self._known.pop(f"epoch-{epoch}/rows-{number}", None)
                self._location.remove(f"epoch-{epoch}/rows-{number}")
                mend(f"damaged rows were dropped, and are packed again: {e}")

    def verify(self, epoch: int, number: int) -> None:
        """Read all rows and degrees of a bulk. Raises what `rows` raises."""
        first = number * self._bulk_size
        bulk, _ = self._bulk(epoch, first)
        for at in range(len(bulk.sums)):
            self.rows(epoch, first + at, self.form.dtype if self.form.name == "float64" else np.float32)
            if bulk.columns:
                self.degrees(epoch, first + at)

    @contextmanager
    def writing(self, epoch: int, number: int, counts: Sequence[int], columns: int) -> Iterator["RowWriter"]:
        """Write a bulk's rows, which are there once the block ends without an error.

        Args:
            epoch: of the bulk.
            number: of the bulk.
            counts: distinct nodes of each of its minibatches.
            columns: of the degrees; 0: there are none.

        Raises:
            OSError: the disk is full.
        """
        meta = dict[str, list[int] | int]()
        with self._location.making(f"epoch-{epoch}/rows-{number}", ROWS_KIND, meta) as folder:
            writer = RowWriter(folder, self.form, columns, counts)
            yield writer
            meta |= {"offsets": writer.offsets, "sums": writer.sums, "degree_sums": writer.degree_sums}
            meta["degree_columns"] = columns

    def _read(self, what: Literal["rows", "degrees"], epoch: int, index: int, into: Kept) -> None:
        """Fill an array, and compare its checksum, which the system's reading ahead leaves time for."""
        (bulk, at), name, seen = self._bulk(epoch, index), self._name(epoch, index), 0
        file, sums = (ROWS, bulk.sums) if what == "rows" else (DEGREES, bulk.degree_sums)
        if into.nbytes:
            first, view = bulk.offsets[at] * into[0].nbytes, into.reshape(-1).view(np.uint8).data
            for piece in self._location.read(name, file, HEADER_BYTES + first, view):
                seen = zlib.crc32(piece, seen)
        if seen != sums[at]:
            where = self._location.path(name)
            raise StoreError(f"{where}: the {what} of minibatch {index} do not match their checksum; {AGAIN}")

    def _name(self, epoch: int, index: int) -> str:
        return f"epoch-{epoch % self._epochs}/rows-{index // self._bulk_size}"

    def _bulk(self, epoch: int, index: int) -> tuple[_Bulk, int]:
        """The bulk of a minibatch, and its place there."""
        name, at = self._name(epoch, index), index % self._bulk_size
        found = self._known.get(name)
        if found is None:
            try:
                meta = self._location.manifest(name, ROWS_KIND)["meta"]
            except StoreError as e:
                raise StoreError(f"{e}; {AGAIN}") from None
            columns = meta.get("degree_columns", self._columns)
            offsets, sums, of_degrees = (meta.get(key) for key in ("offsets", "sums", "degree_sums"))
            is_sound = all(map(are_sizes, (offsets, sums, of_degrees, [columns]))) and offsets == sorted(offsets)
            is_sound = is_sound and len(offsets) - 1 == len(sums) == len(of_degrees) and columns in (0, 1, 3)
            if not is_sound or not are_sizes([offsets[-1] * self.form.row_bytes]):
                raise StoreError(f"{self._location.path(name)} does not say where its rows are; {AGAIN}")
            if size := offsets[-1] * self.form.row_bytes:  # no array is made for rows that the file does not hold
                list(self._location.read(name, ROWS, HEADER_BYTES + size - 1, memoryview(bytearray(1))))
            found = self._known[name] = _Bulk(tuple(offsets), tuple(sums), tuple(of_degrees), columns)
        if at >= len(found.sums):
            raise StoreError(f"{self._location.path(name)} has no rows of minibatch {index}; {AGAIN}")
        return found, at


def _checksum(array: NumberArray, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, before)


class RowWriter:
    """Writes the rows of a bulk, of each minibatch in their order."""

    def __init__(self, folder: Path, form: RowForm, degree_columns: int, counts: Sequence[int]) -> None:
        """
        Args:
            folder: where to make the files, whose space is reserved.
            form: of the rows.
            degree_columns: 0: no degrees are written.
            counts: distinct nodes of each minibatch.
        """
        self._folder, self._form = folder, form
        self.offsets = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        self.sums, self.degree_sums = [0] * len(counts), [0] * len(counts)
        self._next = self.offsets[:-1]
        self._shapes = {ROWS: (self.offsets[-1], form.columns), DEGREES: (self.offsets[-1], degree_columns)}
        for name, dtype in ((ROWS, form.dtype), (DEGREES, np.dtype(np.float64)))[: 2 if degree_columns else 1]:
            make_npy(folder, name.removesuffix(".npy"), self._shapes[name], dtype)
            with open(folder / name, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, npy_bytes(dtype, self._shapes[name]))

    def add(self, at: int, kept: Kept, degrees: Float64Array) -> None:
        """Write the next rows of minibatch `at` of the bulk, as they are kept, and their degrees, [n, columns]."""
        if not len(kept):
            return
        first = self._next[at]
        put_npy(self._folder, "rows", self._shapes[ROWS], first, kept)
        self.sums[at] = _checksum(kept, self.sums[at])
        if degrees.size:
            self.degree_sums[at] = _checksum(degrees, self.degree_sums[at])
            put_npy(self._folder, "degree", self._shapes[DEGREES], first, degrees.reshape(len(kept), -1))
        self._next[at] = first + len(kept)
