"""The store's arrays: made by the driver, filled in by tasks by whole Zarr chunks, which are digested on the way."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import MemoryStore

from ...storage.array_kinds import AnyArray, FloatArray, IdArray
from ...storage.errors import RunError
from ...storage.fingerprint import (
    describe_features,
    digest_leaves,
    digest_of_leaves,
    feature_sample_digest,
    leaf_rows,
    sampled_rows,
)
from ...storage.store.arrays import chunk_rows, create_array
from ...storage.store.narrow import FeatureDtype, narrow, stored_dtype, stored_width, widen
from ...storage.store.npy import make_npy, put_npy
from ...storage.stored.narrow_loss import NarrowLoss
from .spill import Field
from .tasks import Run

SLICE_BYTES = 64 << 20
"""About this much is written at a time."""


class Piece(NamedTuple):
    """Values in a file, which follow those of other pieces."""

    path: Path | None
    """None: zeros."""
    rows: int
    base: float = 0
    """Added to all values."""
    offset: int = 0
    """First byte in the file."""


@dataclass(frozen=True)
class Output:
    """An array of the store, and the pieces that make it."""

    name: str
    dtype: str
    pieces: tuple[Piece, ...] = ()
    digest_dtype: str = ""
    """The dtype that it is digested in; empty: not digested."""
    entry: tuple[int, ...] = ()
    """Shape of one entry."""
    npy: bool = False
    """In a file of its own, which can be mapped, rather than a Zarr array."""

    @property
    def rows(self) -> int:
        """Its length."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return (self.rows, *self.entry)

    def slices(self) -> list[tuple[int, int]]:
        """Rows that one task writes: whole Zarr chunks."""
        step = slice_rows(self.shape, self.dtype)
        return [(first, min(first + step, self.rows)) for first in range(0, self.rows, step)]


def slice_rows(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Rows of about `SLICE_BYTES`, in whole Zarr chunks."""
    kind = np.dtype(dtype)
    chunk = chunk_rows(shape, kind.itemsize)
    row = max(1, kind.itemsize * int(np.prod(shape[1:], dtype=np.int64)))
    return chunk * max(1, SLICE_BYTES // (row * chunk))


def write_outputs(run: Run, store: Path, outputs: Sequence[Output]) -> tuple[dict[str, Any], dict[str, str]]:
    """Write arrays of a store by tasks. Returns the manifest's entries for them, and the digests of those that have
    some."""
    entries = {o.name: make_npy(store, o.name, o.shape, o.dtype) for o in outputs if o.npy}
    entries |= make_arrays(store, {o.name: (o.shape, o.dtype) for o in outputs if not o.npy})
    items = [(store, output, *rows) for output in outputs for rows in output.slices()]
    leaves: dict[str, list[bytes]] = {output.name: [] for output in outputs}
    for (_, output, *_), record in zip(items, run("arrays", "writing arrays", write_slice, items)):
        leaves[output.name].append(bytes.fromhex(record["leaves"]))
    digested = (output for output in outputs if output.digest_dtype)
    return entries, {o.name: digest_of_leaves(o.digest_dtype, o.shape, leaves[o.name]) for o in digested}


def make_arrays(store: Path, arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Any]:
    """Make Zarr arrays of these shapes and dtypes unless they are there; return the manifest's entries for them."""
    group, entries = zarr.open_group(str(store / "arrays"), mode="a"), {}
    for name, (shape, dtype) in arrays.items():
        where = zarr.open_group(MemoryStore(), mode="w") if name in group else group
        entries[name] = create_array(where, name, shape, dtype)[1]
    return entries


def put_rows(store: Path, name: str, first: int, rows: AnyArray) -> None:
    """Write rows that begin with a Zarr chunk, and end with one or with the array."""
    with zarr.config.set({"array.write_empty_chunks": True}):
        z = zarr.open_array(str(store / "arrays" / name), mode="r+", zarr_format=3)
        z[first : first + len(rows)] = rows


def write_slice(store: Path, output: Output, first: int, stop: int) -> dict[str, Any]:
    """Write rows ``[first, stop)`` of an array."""
    rows = read_pieces(output, first, stop)
    if output.npy:
        put_npy(store, output.name, output.shape, first, rows)
    else:
        put_rows(store, output.name, first, rows)
    return {"leaves": digest_leaves(rows, output.digest_dtype).hex() if output.digest_dtype else ""}


def read_pieces(output: Output, first: int, stop: int) -> AnyArray:
    """Rows ``[first, stop)`` of an array from its pieces. Raises RunError: a file is incomplete."""
    out, before = np.zeros((stop - first, *output.entry), output.dtype), 0
    row = out.itemsize * int(np.prod(output.entry, dtype=np.int64))
    for piece in output.pieces:
        low, high = max(first, before), min(stop, before + piece.rows)
        if low < high:
            part = out[low - first : high - first]
            if piece.path is not None:
                with open(piece.path, "rb") as file:
                    file.seek(piece.offset + (low - before) * row)
                    if part.size and file.readinto(part.reshape(-1).view(np.uint8).data) != part.nbytes:
                        raise RunError(f"{piece.path} is incomplete; remove its folder and convert again")
            if piece.base:
                part += np.asarray(piece.base, out.dtype)
        before += piece.rows
    return out


class Matrix(NamedTuple):
    """Features of the store: where and how they are written."""

    store: Path
    shape: tuple[int, int]
    """V, F."""
    npy: bool
    """In a file of their own, ``features.npy``, rather than a Zarr array."""
    dtype: str = "float32"
    kind: FeatureDtype | None = None
    """Rows are narrowed to it when they are written; digests are those of the rows as they are read again."""
    suffix: str = ""
    """Suffix of the name of the array or file, one for each node type."""
    nodes_before: int = 0
    """Nodes of the types before."""
    num_nodes: int | None = None
    """Nodes of all types; None: these are all."""

    @property
    def name(self) -> str:
        """Name of the array, or of the file without its ending."""
        return f"features{self.suffix}"

    @property
    def kept(self) -> tuple[tuple[int, int], str]:
        """Shape and dtype as they are written."""
        if self.kind is None:
            return self.shape, self.dtype
        return (self.shape[0], stored_width(self.kind, self.shape[1])), str(stored_dtype(self.kind))

    @property
    def chunk(self) -> int:
        """Rows that are written, and digested, as one."""
        return leaf_rows(self.dtype, self.shape)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Arrays of a row that is spilled: its node's number, and its features."""
        return (Field("int64"), Field(self.dtype, (self.shape[1],)))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * self.shape[1]

    def make(self) -> dict[str, Any]:
        """Make the file or the array, unless it is there; return the manifest's entries for it."""
        for path in (self._sample, self._given):
            with open(path, "ab") as file:
                file.truncate(len(self._sampled()) * self.row_bytes)
        if not self.npy:
            return make_arrays(self.store, {self.name: self.kept})
        make_npy(self.store, self.name, *self.kept)
        return {}

    def put(self, first: int, rows: FloatArray, record: dict[str, Any]) -> str:
        """Write rows that begin and end like those of `put_rows`; return the digests of their leaves. What is lost is
        added in `record`."""
        rows = kept = np.ascontiguousarray(rows)
        if self.kind is not None:
            self._put_sample(first, rows, self._given)
            kept, given = narrow(rows, self.kind), rows
            rows = widen(kept, self.kind)
            if self.kind != "float32":
                loss = NarrowLoss.of_record(record["loss"]) + NarrowLoss.from_rows(given, rows, self.kind)
                record["loss"] = loss.record()
        self._put_sample(first, rows, self._sample)
        if self.npy:
            put_npy(self.store, self.name, self.kept[0], first, kept)
        elif kept.size:
            put_rows(self.store, self.name, first, kept)
        return digest_leaves(rows, self.dtype).hex()

    @property
    def _sample(self) -> Path:
        """File of the rows that the manifest's digest of a sample is made of."""
        return self.store.with_name(f"sample{self.suffix}")

    @property
    def _given(self) -> Path:
        """File of the same rows before they were narrowed."""
        return self.store.with_name(f"given{self.suffix}")

    def _sampled(self) -> IdArray:
        """Numbers of these rows."""
        count = self.shape[0]
        sampled = sampled_rows(count if self.num_nodes is None else self.num_nodes) - self.nodes_before
        return sampled[(sampled >= 0) & (sampled < count)]

    def _put_sample(self, first: int, rows: FloatArray, path: Path) -> None:
        sampled = self._sampled()
        low, high = np.searchsorted(sampled, (first, first + len(rows))).tolist()
        if low < high:
            with open(path, "r+b") as file:
                file.seek(low * self.row_bytes)
                file.write(rows[sampled[low:high] - first].tobytes())

    def sample(self, given: bool = False) -> FloatArray:
        """The sampled rows, once all are put; with `given` before they were narrowed."""
        path = self._given if given else self._sample
        return np.fromfile(path, self.dtype).reshape(len(self._sampled()), self.shape[1])

    def lost(self, loss: NarrowLoss, names: Sequence[str]) -> list[str]:
        """Notes on what narrowing lost. Raises InputError: see `NarrowLoss.check`."""
        if self.kind in (None, "float32") or not self.shape[1]:
            return []
        return loss.check(self.kind, names, self.sample(given=True), self.sample())

    def sample_digest(self) -> str:
        """Digest of a sample of the rows, once all are put. See `feature_sample_digest`."""
        return feature_sample_digest(self.shape[0], self.sample())

    def whole_chunks(self, first: int, stop: int) -> tuple[int, int]:
        """Rows of the chunks that begin in ``[first, stop)``: each is written by one task."""
        begin, end = (min(-(-row // self.chunk) * self.chunk, self.shape[0]) for row in (first, stop))
        return begin, end

    def put_stream(self, first: int, stop: int, parts: Iterable[FloatArray]) -> dict[str, Any]:
        """Write rows ``[first, stop)``, those of `whole_chunks`, which come in parts."""
        step = self.chunk * max(1, SLICE_BYTES // (max(1, self.row_bytes) * self.chunk))
        record: dict[str, Any] = {"leaves": [], "loss": NarrowLoss.none(self.shape[1]).record()}
        held, at, count = list[FloatArray](), first, 0
        for rows in parts:
            while len(rows):
                end = min(at + step, stop)
                held.append(rows[: end - at - count])
                rows, count = rows[len(held[-1]) :], count + len(held[-1])
                if at + count == end:
                    block = held[0] if len(held) == 1 else np.concatenate(held)
                    record["leaves"].append((at, self.put(at, block, record)))
                    at, count, held = end, 0, []
        return record


@dataclass(frozen=True)
class Written:
    """Features of one node type that are written."""

    matrix: Matrix
    leaves: dict[int, str]
    """Digests of leaves by first row."""
    loss: NarrowLoss

    @classmethod
    def by_tasks(cls, matrix: Matrix, records: Sequence[dict[str, Any]]) -> "Written":
        """Features that tasks have written, by the records of `Matrix.put_stream`."""
        loss = sum((NarrowLoss.of_record(r["loss"]) for r in records), NarrowLoss.none(matrix.shape[1]))
        return cls(matrix, {first: leaf for r in records for first, leaf in r["leaves"]}, loss)

    def fingerprint(self) -> str:
        shape, dtype = self.matrix.shape, self.matrix.dtype
        leaves = [bytes.fromhex(self.leaves[first]) for first in sorted(self.leaves)]
        return describe_features(*shape, dtype, digest_of_leaves(dtype, shape, leaves))


def sample_of(features: Sequence[Written]) -> FloatArray:
    """Sampled rows of all types, with zeros beyond the columns of each; of types without features, one column."""
    found = [each.matrix.sample() for each in features]
    width = max(1, *(rows.shape[1] for rows in found))
    return np.concatenate([np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in found])
