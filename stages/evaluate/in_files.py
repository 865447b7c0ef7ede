"""Exact evaluation over files: processes share each layer, and read the rows that any of them left in the one before.

The same blocks as in `direct`, hence the same bits, for models in parts; for others, chunks of each share's own rows.
Processes may be on several machines that see the same folder.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.array_kinds import AnyArray, FloatArray
from ...storage.errors import RunError
from ...storage.features import ArrayFeatures, FeatureStore, MappedFeatures
from ...storage.graph import Graph, index_dtype, row_ranges
from ...storage.lazy_dataset import LazyGraph
from ...storage.optional import present, when_present
from ...storage.store.bytes_left import fits_in_memory
from ...storage.store.npy import HEADER_BYTES, make_npy, mapped_file, put_npy
from ...storage.store.row_file import RowFile
from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..memory.arena import give_back
from ..models.base import Stack, layered
from ..models.parts import ConvParts, LayerCounts
from ..neighbourhood.destinations import LayerRows
from ..self_loops import COLUMNS, loops_of_rows, with_loops
from .chunks import MAX_BYTES, Chunks, IdArray, Source, layer_counts, naming_features, needed_rows
from .direct import ROW_EDGES, LayerBlocks, PartsRun
from .far.blocks import FarRows
from .far.rows import HostSink, StoredRows
from .limits import Limits

PIECE_BYTES = 32 << 20
"""Bytes of an array that are copied at a time."""


@dataclass(frozen=True)
class Layout:
    """Arrays of an evaluation that `lay_out` has written."""

    folder: Path
    features: Path
    """``.npy`` [V, F]."""
    counts: tuple[LayerCounts, ...]
    """Sizes of the layers."""
    weighted: bool
    edges: Path | None = None
    """``.npy`` [E, D], features of edges, if the model reads them."""
    types: GraphTypes = SINGLE
    """Types of the graph; None: it has one of each."""
    max_bytes: int = MAX_BYTES
    """Bytes of blocks under way in one process."""
    processes: int = 1
    """That evaluate on a machine at the same time, at most."""


class ModelReads(NamedTuple):
    """Inputs of a model with so many layers, and its dtype."""

    layers: int
    dtype: torch.dtype
    edges: FeatureStore | None = None
    """Features of edges, [E, D]; None: no layer reads them."""
    loops: bool = False
    """The graph's self loops."""


def lay_out(folder: Path, graph: Graph, features: FeatureStore, wanted: IdArray, reads: ModelReads) -> Layout:
    """Write what all processes read: the graph, features that lie in no ``.npy`` file yet, and the nodes of each layer.

    Args:
        folder: seen by all processes.
        graph: V nodes; that of a store is copied piece by piece, and a mapped one stays where it is.
        features: [V, F].
        wanted: ascending nodes whose outputs are asked for.
        reads: what the model reads.

    Raises:
        RunError: the disk is full.
    """
    weighted, num_nodes = graph.is_weighted, graph.num_nodes
    standing = graph.files if isinstance(graph, LazyGraph) else {}
    shapes = {"indptr": (num_nodes + 1, "int64"), "indices": (graph.num_edges, index_dtype(num_nodes))}
    for name, (length, kind) in (shapes | ({"edge_weight": (graph.num_edges, "float32")} if weighted else {})).items():
        if name in standing:
            (folder / f"{name}.npy").symlink_to(standing[name])
            continue
        pieces: Iterable[AnyArray] = [] if isinstance(graph, LazyGraph) else [getattr(graph, name)]
        if isinstance(graph, LazyGraph):
            pieces = graph.pieces(name, PIECE_BYTES) if name != "indptr" else [graph.read_array(name)]
        _write(folder / f"{name}.npy", (length,), kind, pieces)
    if graph.edge_type is not None:
        _write(folder / "edge_type.npy", graph.edge_type.shape, graph.edge_type.dtype, [graph.edge_type])
    mapped = _graph(folder, weighted)
    # Threads that have read pieces keep memory of them.
    give_back()
    reads_loops = reads.loops and any(len(loops_of_rows(rows, first)) for first, rows in _some_rows(mapped))
    degrees = (with_loops(rows, first) if reads_loops else rows.degree for first, rows in _some_rows(mapped))
    shape = (num_nodes, COLUMNS) if reads_loops else (num_nodes,)
    _write(folder / "degree.npy", shape, torch.empty(0, dtype=reads.dtype).numpy().dtype, degrees)
    of_nodes = _file_of(features, folder / "features.npy")
    of_edges = when_present(lambda edges: _file_of(edges, folder / "edge_features.npy"), reads.edges)
    needed = needed_rows(mapped, wanted, reads.layers + 1)
    for k, mask in enumerate(needed):
        if not mask.all():
            np.save(folder / f"nodes-{k}.npy", nodes := np.flatnonzero(mask))
            place = np.zeros(len(mask), np.int32)
            place[nodes] = np.arange(len(nodes), dtype=np.int32)
            np.save(folder / f"place-{k}.npy", place)
    return Layout(folder, of_nodes, tuple(layer_counts(mapped, needed)), weighted, of_edges, graph.types)


def _file_of(features: FeatureStore, path: Path) -> Path:
    """The file that the rows lie in; written to `path` if they are in none."""
    if isinstance(features, MappedFeatures):
        return features.path.resolve()
    shape = (features.num_rows, features.num_features)
    step = max(1, PIECE_BYTES // max(1, shape[1] * features.dtype.itemsize))
    starts = range(0, shape[0], step)
    rows = (features.gather(np.arange(a, min(a + step, shape[0]))) for a in starts)
    _write(path, shape, features.dtype, rows)
    return path.resolve()


class FileLayers:
    """Layers of a model over a layout. Stage 0 is what the first layer reads, if that is not the features themselves;
    stage k is layer k-1. Each stage needs the one before in full; ranges of its rows may be computed in any process and
    order, and more than once."""

    def __init__(self, layout: Layout, model: nn.Module) -> None:
        """
        Args:
            layout: see `lay_out`.
            model: on the host, in evaluation mode.
        """
        self.layout, self.model = layout, model
        self.graph = _graph(layout.folder, layout.weighted, layout.types)
        self.degree = torch.from_numpy(_mapped(layout.folder / "degree.npy"))
        self.features = _stored(layout.features)
        self.edges = None if layout.edges is None else ArrayFeatures(_mapped(layout.edges))
        self.num_layers: int = layered(model).num_layers
        self.in_parts = isinstance(model, Stack) and model.has_parts
        """True if rows are computed in parts."""

    @property
    def stages(self) -> range:
        """Numbers of the stages to go through."""
        return range(0 if self.in_parts and self._enters else 1, self.num_layers + 1)

    def num_rows(self, k: int) -> int:
        """Rows of a stage."""
        counts = self.layout.counts
        return counts[0].num_src if k == 0 else counts[k - 1].num_dst

    def begin(self, k: int, ranges: int) -> list[tuple[int, int]]:
        """Make the files of a stage; ranges of its rows, at most so many, that take about as long."""
        with naming_features(self.model, self.features.num_features):
            empty = self._no_rows(k)
        for kind, rows in zip(("rows", "logits"), empty):
            count, columns, dtype = self.num_rows(k), rows.shape[1], rows.numpy().dtype
            # Rows that are read by the wave: what the next layer sums lies apart.
            far = kind == "rows" and not fits_in_memory(count * columns * dtype.itemsize)
            if far and (beside := columns - self._summed(k, columns)):
                _write(self._file("beside", k), (count, beside), dtype, [])
                columns -= beside
            _write(self._file(kind, k), (count, columns), dtype, [])
        if self.in_parts and k:
            return [(blocks[0][0], blocks[-1][1]) for blocks in self._blocks(k, 0, None).shares(ranges) if blocks]
        nodes = self._nodes(k, 0, self.num_rows(k))
        if k == 0:
            step = self._run.piece_rows(self.features)
            step *= max(1, -(-len(nodes) // (step * ranges)))
            return [(a, min(a + step, len(nodes))) for a in range(0, max(1, len(nodes)), step)]
        before = np.cumsum(self.graph.indptr[nodes + 1] - self.graph.indptr[nodes] + ROW_EDGES)
        total = int(before[-1]) if len(nodes) else 0
        at = np.searchsorted(before, total * np.arange(1, ranges) // ranges).tolist()
        return [(a, b) for a, b in pairwise([0, *at, len(nodes)]) if a < b] or [(0, 0)]

    def compute(self, k: int, first: int, stop: int) -> Iterator[int]:
        """Compute rows ``[first, stop)`` of a stage; a range that `begin` gave. Gives numbers of rows by which the work
        has gone on.

        Raises:
            RunError: the disk is full.
        """
        files = [self._file("rows", k), *filter(Path.exists, [self._file("beside", k)])]
        sinks = (_FileSink(files, first, stop), _FileSink([self._file("logits", k)], first, stop))
        with naming_features(self.model, self.features.num_features) if k < 2 else nullcontext():
            yield from self._compute(k, first, stop, sinks)
        for sink in sinks:
            sink.close()

    def _compute(self, k: int, first: int, stop: int, sinks: tuple[HostSink, HostSink]) -> Iterator[int]:
        if not self.in_parts:
            yield from self._in_chunks(k, self._nodes(k, first, stop), sinks[0].append)
        elif k == 0:
            nodes = self._nodes(0, first, stop)
            yield from self._run.enter(self._parts[0], self._run.pieces(self.features, None, nodes), *sinks)
        else:
            yield from self._blocks(k, first, stop, sinks).waves()

    def result(self) -> FloatArray:
        """[n, C], rows of the last layer; they stay readable when the file is removed."""
        return _mapped(self._file("rows", self.num_layers))

    @cached_property
    def _parts(self) -> list[ConvParts]:
        assert isinstance(self.model, Stack)
        return self.model.in_parts(self.layout.counts, self.degree)

    @cached_property
    def _run(self) -> PartsRun:
        assert isinstance(self.model, Stack)
        limits = Limits(self.layout.max_bytes, processes=self.layout.processes)
        return PartsRun(self.model, self.graph, self.degree, limits)

    @property
    def _enters(self) -> bool:
        """False if the first layer aggregates the features where they lie."""
        return not self._parts[0].reads_rows or self.features.dtype != self._run.dtype

    def _summed(self, k: int, columns: int) -> int:
        """Number of columns of a stage's rows that the next layer sums."""
        return self._run.summed(self._parts[k], columns) if self.in_parts and k < self.num_layers else columns

    def _no_rows(self, k: int) -> Sequence[Tensor]:
        if not self.in_parts:
            found = list[Tensor]()
            for _ in self._in_chunks(k, np.empty(0, np.int64), found.append):
                pass
            return found
        if k:
            return self._blocks(k, 0, 0).empty()
        return present(self._parts[0].entered(torch.empty(0, self.features.num_features, dtype=self.degree.dtype)))

    def _blocks(
        self, k: int, first: int, stop: int | None, sinks: tuple[HostSink, HostSink] | None = None
    ) -> LayerBlocks:
        nodes = self._nodes(k, first, self.num_rows(k) if stop is None else stop)
        return LayerBlocks(self._run, k - 1, self._parts, nodes, self._read(k - 1), sinks)

    def _read(self, k: int) -> LayerRows | FarRows:
        """The rows of a stage that is done: where they are mapped, or read by the wave."""
        path, place, logits = self._file("rows", k), self.layout.folder / f"place-{k}.npy", self._file("logits", k)
        if k == 0 and not self._enters:
            path = self.layout.features
        places = _mapped(place) if place.exists() and path != self.layout.features else np.empty(0, np.int32)
        found, beside = _mapped(logits) if logits.exists() else None, self._file("beside", k)
        if beside.exists():
            rows = [_mapped(file) for file in (path, beside)]
            files = [RowFile(f, HEADER_BYTES, a.shape[1] * a.itemsize, len(a)) for f, a in zip((path, beside), rows)]
            return FarRows(StoredRows(files, rows[0].dtype), places, found)
        store = _stored(path)
        if isinstance(store, MappedFeatures):
            return FarRows(store, places, found)
        return LayerRows(store.rows, places, found)

    def _in_chunks(self, k: int, nodes: IdArray, append: Callable[[Tensor], None]) -> Iterator[int]:
        """Hand on rows of a stage for these nodes, chunk by chunk; the number of each."""
        path, host = self.layout.folder / f"nodes-{k - 1}.npy", torch.device("cpu")
        ids = _mapped(path) if k > 1 and path.exists() else None
        rows = self.features if k == 1 else _stored(self._file("rows", k - 1))
        source = Source(rows, ids, host, self.degree.dtype, lazy=True)
        chunks = Chunks(self.model, self.graph, self.degree, self.layout.max_bytes, host, edges=self.edges)
        return chunks.layer(k - 1, nodes, source, append)

    def _nodes(self, k: int, first: int, stop: int) -> IdArray:
        path = self.layout.folder / f"nodes-{k}.npy"
        return np.asarray(_mapped(path)[first:stop]) if path.exists() else np.arange(first, stop)

    def _file(self, kind: str, k: int) -> Path:
        return self.layout.folder / f"{kind}-{k}.npy"


class _FileSink(HostSink):
    """Writes rows ``[first, stop)`` of files that have been made, each of which has some of the columns."""

    def __init__(self, paths: list[Path], first: int, stop: int) -> None:
        super().__init__(stop - first, paths[0].parent)
        self._paths, self._first = paths, first

    def _begin(self, reserved: int) -> None:
        at = 0
        for path in self._paths:
            self.file, width = path.open("r+b"), _mapped(path).shape[1]
            start = HEADER_BYTES + self._first * width * self.dtype.itemsize
            self._parts.append((self.file, start, slice(at, at := at + width)))

    def close(self) -> None:
        """Write what is left."""
        for file, _, _ in self._parts:
            self._written(file.close)


def _write(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, pieces: Iterable[AnyArray]) -> None:
    """Write an ``.npy`` file from pieces of it."""
    try:
        make_npy(path.parent, path.stem, shape, dtype)
        first = 0
        for piece in pieces:
            put_npy(path.parent, path.stem, shape, first, piece.astype(dtype, copy=False))
            first += len(piece)
    except OSError as e:
        raise RunError(f"cannot write to {path.parent} ({e.strerror or e}); free space there") from e


def _mapped(path: Path) -> AnyArray:
    """An ``.npy`` file's array, read when it is used."""
    return np.asarray(mapped_file(path))


def _stored(path: Path) -> ArrayFeatures:
    """The rows of an ``.npy`` file, mapped if memory has room for all, else read in order."""
    return ArrayFeatures(_mapped(path)) if fits_in_memory(path.stat().st_size) else MappedFeatures(path)


def _graph(folder: Path, weighted: bool, types: GraphTypes = SINGLE) -> Graph:
    indptr, indices = (_mapped(folder / f"{name}.npy") for name in ("indptr", "indices"))
    weight = _mapped(folder / "edge_weight.npy") if weighted else None
    kinds = None if types.is_single else _mapped(folder / "edge_type.npy")
    return Graph(indptr, indices, weight, types=types, edge_type=kinds)


def _some_rows(graph: Graph) -> Iterator[tuple[int, Graph]]:
    """Some of the rows after the other: the first one, and their in-edges."""
    for first, stop in row_ranges(graph.indptr, PIECE_BYTES // 8, PIECE_BYTES // 8):
        rows = graph.rows(first, stop)
        yield first, Graph(rows.indptr, rows.indices, rows.edge_weight)
