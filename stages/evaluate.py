"""Exact evaluation: layer after layer over full neighbourhoods, in bounded memory.

Every node's layer is computed once, instead of once for each seed that reaches it as sampled evaluation would (layer-wise
inference: Hamilton, Ying, Leskovec, NeurIPS 2017, algorithm 1, run over all nodes).
"""

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..storage.dataset import Dataset
from ..storage.errors import InputError, RunError, nearest
from ..storage.features import FeatureStore, MemoryFeatures
from ..storage.graph import Graph, index_dtype
from ..storage.minibatch import Block
from .models.base import as_model
from .neighbourhood.block import BlockNeighbourhood

IdArray = npt.NDArray[np.int64]
SPLITS = ("train", "val", "test")
MAX_BYTES = 256 << 20
EDGE_BYTES = 48
"""What building a block takes for an edge: position, source and stamp in 64 bits each, twice."""


def infer(
    model: nn.Module,
    graph: Graph,
    features: FeatureStore,
    degree: Tensor,
    nodes: IdArray,
    *,
    max_bytes: int = MAX_BYTES,
    scratch: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The model's outputs for `nodes`, each over all of its in-edges in every layer.

    A layer is computed in chunks of destination rows; only rows on which `nodes` depend are computed. The model runs in
    evaluation mode (no dropout, BatchNorm by its running statistics) without gradients, and gets its mode back.

    Memory: a chunk takes at most `max_bytes` for its edges, its sources with two working copies as wide as the model's widest
    weight, and its outputs. One row that alone takes more (a hub) is a chunk of its own, so the true bound is that of the
    largest in-degree; and a layer that keeps a tensor per edge (`hood.apply`) takes that on top. Beyond the chunk there are the
    results of two successive layers (in `scratch` where they are larger than `max_bytes`), those for `nodes`, and about
    (40 + L) V bytes of tables.

    Args:
        model: has `num_layers` and `layer(i, hood, h)`.
        graph: V nodes; edge weights are used if it has any.
        features: [V, F]; converted to the dtype of the model's parameters.
        degree: [V], in-degree of each node in the whole graph (weighted: the sum of its in-edges' weights).
        nodes: int64 [n] in [0, V), in any order; may repeat.
        max_bytes: see above.
        scratch: folder for nameless temporary files; without one, all results stay in memory.
        on_progress: called with (rows done, rows in all), over all layers.

    Returns:
        [n, C], in the order of `nodes`.

    Raises:
        InputError: something of the above is not as described, or a layer's result has the wrong shape.
        RunError: the scratch folder cannot be written.
    """
    as_model(model)
    _check(graph, features, degree, nodes, max_bytes)
    wanted, order = np.unique(nodes, return_inverse=True)
    needed = _needed(graph, wanted, model.num_layers)  # pyright: ignore[reportArgumentType]
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    dtype = parameters[0].dtype if parameters else torch.from_numpy(np.empty(0, features.dtype)).dtype
    widest = max((p.shape[0] for p in parameters if p.ndim > 1), default=0)
    chunks = _Chunks(graph, degree.to(dtype), max_bytes)
    total, done = sum(int(mask.sum()) for mask in needed), 0
    with evaluating(model):
        source, result = _Rows(features, None, graph.num_nodes), np.empty(0)
        for i, mask in enumerate(needed):
            rows = np.flatnonzero(mask)
            # One buffer for all chunks of a layer: fresh pages would cost as much as the rows that are copied into them.
            buffer = np.empty((0, source.store.num_features), source.store.dtype)
            sink = _Sink(len(rows), None if i == len(needed) - 1 else scratch, max_bytes)
            for dst in chunks.cut(rows, source, widest):
                hood = chunks.hood(dst)
                if hood.num_src > len(buffer):
                    buffer = np.empty((hood.num_src, source.store.num_features), source.store.dtype)
                h = torch.from_numpy(source.gather(hood.block.src, buffer[: hood.num_src])).to(dtype)
                out = model.layer(i, hood, h)  # pyright: ignore[reportCallIssue]
                if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(dst):
                    seen = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
                    raise InputError(
                        f"layer {i} of {type(model).__name__} returned {seen}; expected [{len(dst)}, D], a row per destination"
                    )
                sink.append(out.numpy())
                done += len(dst)
                if on_progress is not None:
                    on_progress(done, total)
            result = sink.finish()
            source = _Rows(MemoryFeatures(result), None if len(rows) == graph.num_nodes else rows, len(rows))
    logits = torch.from_numpy(result)
    return logits if np.array_equal(wanted, nodes) else logits[torch.from_numpy(order)]


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    degree: Tensor,
    splits: Sequence[str] = SPLITS,
    *,
    max_bytes: int = MAX_BYTES,
    scratch: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, float | None]:
    """`accuracy` of every split of `splits`, in one pass over the layers; None for a split without nodes. Arguments as in `infer`.

    Raises:
        InputError: an unknown split, or see `infer`.
    """
    for name in splits:
        if name not in SPLITS:
            raise InputError(f"split is '{name}'; expected one of {', '.join(SPLITS)}{nearest(name, SPLITS)}")
    ids = [getattr(dataset.split, name) for name in splits]
    nodes = np.concatenate([np.empty(0, np.int64), *ids])
    logits = infer(model, dataset.graph, dataset.features, degree, nodes, max_bytes=max_bytes, scratch=scratch, on_progress=on_progress)
    labels = torch.from_numpy(dataset.labels[nodes])
    parts = [len(part) for part in ids]
    return {
        name: accuracy(own, y) if len(y) else None for name, own, y in zip(splits, torch.split(logits, parts), torch.split(labels, parts))
    }


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest logit is at the label; for multi-label targets, `micro_f1`.

    Args:
        logits: [n, C].
        labels: integer [n], or [n, C] of 0 and 1.

    Raises:
        InputError: shapes do not fit, or there are no rows.
    """
    if not len(logits) or len(labels) != len(logits) or (labels.ndim != 1 and labels.shape != logits.shape):
        raise InputError(f"logits are {list(logits.shape)} and labels {list(labels.shape)}; expected [n, C] and [n] or [n, C], n >= 1")
    return quotient(tally(logits, labels))


def micro_f1(logits: Tensor, labels: Tensor) -> float:
    """F1 over all (row, class) pairs together, 2 TP / (2 TP + FP + FN), where a logit above 0 means yes; 0 where nothing is positive.

    Args:
        logits: [n, C].
        labels: [n, C] of 0 and 1.
    """
    return quotient(tally(logits, labels))


def tally(logits: Tensor, labels: Tensor) -> Tensor:
    """What `accuracy` counts, float64 [2]: those of several sets of rows may be added up."""
    if labels.ndim == 1:
        return torch.tensor([int((logits.argmax(dim=1) == labels).sum()) if len(labels) else 0, len(labels)], dtype=torch.float64)
    said, true = logits > 0, labels > 0.5
    return torch.tensor([2 * int((said & true).sum()), int(said.sum()) + int(true.sum())], dtype=torch.float64)


def quotient(counts: Tensor) -> float:
    """The accuracy that a `tally` amounts to."""
    return float(counts[0] / counts[1]) if counts[1] else 0.0


def _check(graph: Graph, features: FeatureStore, degree: Tensor, nodes: IdArray, max_bytes: int) -> None:
    n = graph.num_nodes
    if features.num_rows != n:
        raise InputError(f"features have {features.num_rows} rows; the graph has {n} nodes")
    if degree.shape != (n,):
        raise InputError(f"degree has shape {list(degree.shape)}; expected [{n}], one for each node")
    if nodes.ndim != 1 or nodes.dtype != np.int64:
        raise InputError(f"nodes are {nodes.dtype}{list(nodes.shape)}; expected an int64 vector")
    if len(nodes) and (nodes.min() < 0 or nodes.max() >= n):
        raise InputError(f"nodes lie in [{nodes.min()}, {nodes.max()}]; expected [0, {n})")
    if max_bytes < 1:
        raise InputError(f"max_bytes is {max_bytes}; expected at least 1")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of some of the nodes, by global id."""

    store: FeatureStore
    ids: IdArray | None
    """Ascending; None: all nodes."""
    count: int

    def gather(self, nodes: npt.NDArray[np.integer], out: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
        return self.store.gather(nodes if self.ids is None else np.searchsorted(self.ids, nodes), out)


class _Sink:
    """Takes the rows of a layer's result first to last, in memory or in a nameless file."""

    def __init__(self, rows: int, scratch: Path | None, max_bytes: int) -> None:
        self.rows, self.scratch, self.max_bytes = rows, scratch, max_bytes
        self.filled = 0
        self.array: npt.NDArray[Any] | None = None
        self.file: Any = None

    def append(self, chunk: npt.NDArray[Any]) -> None:
        if self.array is None and self.file is None:
            self._begin(chunk)
        if self.file is not None:
            try:
                self.file.write(np.ascontiguousarray(chunk).data)
            except OSError as e:
                raise self._full(e) from e
        else:
            assert self.array is not None
            self.array[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)

    def _begin(self, chunk: npt.NDArray[Any]) -> None:
        self.dtype, self.shape = chunk.dtype, (self.rows, chunk.shape[1])
        if self.scratch is not None and self.rows * chunk.shape[1] * chunk.itemsize > self.max_bytes:
            try:
                self.scratch.mkdir(parents=True, exist_ok=True)
                # It has no name: a killed process leaves nothing behind.
                self.file = tempfile.TemporaryFile(dir=self.scratch)  # noqa: SIM115
            except OSError as e:
                raise self._full(e) from e
        else:
            self.array = np.empty(self.shape, chunk.dtype)

    def _full(self, e: OSError) -> RunError:
        return RunError(f"evaluation cannot write to {self.scratch} ({e.strerror or e}); free space there, or name another scratch folder")

    def finish(self) -> npt.NDArray[Any]:
        assert self.filled == self.rows
        if self.file is None:
            assert self.array is not None
            return self.array
        with self.file as file:
            try:
                file.flush()
            except OSError as e:
                raise self._full(e) from e
            return np.asarray(np.memmap(file, self.dtype, "r", shape=self.shape))


def _needed(graph: Graph, wanted: IdArray, layers: int) -> list[npt.NDArray[np.bool_]]:
    """For each layer, first to last, [V] whether it must give a node's row: those of the next layer and their in-neighbours."""
    mask = np.zeros(graph.num_nodes, np.bool_)
    mask[wanted] = True
    needed = [mask]
    for _ in range(layers - 1):
        mask = needed[0].copy()
        rows = np.flatnonzero(mask)
        if len(rows) < graph.num_nodes:
            for piece in np.array_split(rows, 1 + int(graph.in_degree[rows].sum()) * EDGE_BYTES // MAX_BYTES):
                mask[graph.indices[_edges(graph, piece)]] = True
        needed.insert(0, mask)
    return needed


def _edges(graph: Graph, rows: IdArray) -> slice | IdArray:
    """Positions of the in-edges of ascending `rows`, in their order; a slice where the rows are neighbours."""
    if not len(rows):
        return slice(0, 0)
    starts = graph.indptr[rows]
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(starts[0]), int(graph.indptr[rows[-1] + 1]))
    count = graph.indptr[rows + 1] - starts
    ends = np.cumsum(count)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - count), count)


class _Chunks:
    """Cuts rows into chunks under the bound, and builds their blocks."""

    def __init__(self, graph: Graph, degree: Tensor, max_bytes: int) -> None:
        self.graph, self.degree, self.max_bytes = graph, degree, max_bytes
        self._table = np.empty(graph.num_nodes, index_dtype(graph.num_edges))

    def cut(self, rows: IdArray, source: _Rows, widest: int) -> Iterator[IdArray]:
        """Successive pieces of `rows`, as long as the bound allows; one empty piece for no rows, which tells the result's width."""
        width = source.store.num_features
        wide = max(width, widest)
        itemsize = max(self.degree.element_size(), source.store.dtype.itemsize)
        source_bytes, row_bytes = (width + 2 * wide) * itemsize, 2 * wide * itemsize
        before = np.concatenate([[0], np.cumsum(self.graph.in_degree[rows])])

        def cost(end: int) -> int:
            edges = int(before[end] - before[start])
            sources = min(end - start + edges, source.count)
            return edges * EDGE_BYTES + sources * source_bytes + (end - start) * row_bytes

        start, stop = 0, 0
        while not stop or start < len(rows):
            stop = start + max(1, bisect_right(range(start + 1, len(rows) + 1), self.max_bytes, key=cost))
            yield rows[start:stop]
            start = stop

    def hood(self, dst: IdArray) -> BlockNeighbourhood:
        """The block of ascending `dst` with all their in-edges; its sources are `dst`, then the other in-neighbours in order."""
        graph, table = self.graph, self._table
        indptr = np.zeros(len(dst) + 1, np.int64)
        np.cumsum(graph.in_degree[dst], out=indptr[1:])
        edges = _edges(graph, dst)
        sources = graph.indices[edges]
        # Of the edges that share a source one stamp stays, whichever: it finds the distinct sources without a sort or an O(V) scan.
        stamp = np.arange(len(sources), dtype=table.dtype)
        table[sources] = stamp
        table[dst] = -1
        src = np.concatenate([dst.astype(sources.dtype), np.sort(sources[table[sources] == stamp])])
        table[src] = np.arange(len(src), dtype=table.dtype)
        weight = None if graph.edge_weight is None else graph.edge_weight[edges]
        block = Block(len(dst), src, indptr, table[sources].astype(np.int32), weight)
        return BlockNeighbourhood(block, self.degree[torch.from_numpy(src)])
