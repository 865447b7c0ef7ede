"""Exact evaluation of stacks of convolutions in parts: no row is gathered, and no hidden row is kept that nobody reads.

The rows that a layer aggregates are read where the layer before has left them. A block of destinations goes through its
aggregate, the rest of its layer and the product that comes before the next aggregate, while it is in the cache: only
the result of that product is written. Threads work on blocks side by side; where blocks begin depends on the graph
alone, so any number of threads gives the same bits.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import AnyArray, IdArray, Mask
from ...storage.features import FeatureStore, in_place
from ...storage.graph import Graph, row_ranges, starts_of
from ...storage.optional import present
from ...storage.store.bytes_left import fits_in_memory
from ..kernels.runtime.threads import at_most, side_by_side
from ..memory.arena import Arena, reusing
from ..models.base import Stack
from ..models.parts import ConvParts
from ..neighbourhood.destinations import Aggregate, Destinations, LayerRows, as_bfloat16, positions
from .chunks import layer_counts
from .far.blocks import Blocks, FarBlocks, FarRows, Wave
from .far.rows import HostSink
from .limits import Limits

BLOCK_ROWS, BLOCK_EDGES = 1024, 1 << 16
"""Rows of a block, and in-edges beyond which it has fewer: it fits the cache, and takes milliseconds."""
WAVE_BLOCKS = 64
"""Blocks between two reports of progress, at most: some tenths of a second."""
ROW_EDGES = 16
"""Products of a row take about as long as so many edges."""
EDGE_BYTES = 16
"""Memory of a block for each in-edge."""
PIECE_BYTES = 64 << 20
"""Features that are read at a time where they cannot be read in place."""


def infer_in_parts(
    model: Stack, graph: Graph, features: FeatureStore, degree: Tensor, needed: Sequence[Mask], limits: Limits
) -> Tensor:
    """Rows of the last layer, ascending, [n, C]. The model has parts, is in evaluation mode, and has its parameters on
    the host, in the dtype of the degrees. `needed`: L+1 masks [V], sources of the first layer and rows of each."""
    total, done = sum(int(np.count_nonzero(mask)) for mask in needed[1:]), 0
    run, parts = PartsRun(model, graph, degree, limits, total), model.in_parts(layer_counts(graph, needed), degree)
    rows = run.entered(parts[0], features, needed[0])
    for i in range(len(parts)):
        layer = LayerBlocks(run, i, parts, np.flatnonzero(needed[i + 1]), rows)
        for count in layer.waves():
            done += count
            limits.on_progress(done, total)
        # The rows that the layer has read are dropped here.
        rows = layer.finish()
    assert isinstance(rows, LayerRows)
    return torch.from_numpy(rows.matrix)


class PartsRun:
    """One evaluation: what its layers share."""

    def __init__(self, model: Stack, graph: Graph, degree: Tensor, limits: Limits, total: int = 0) -> None:
        """`total`: rows in all, over all layers."""
        self._total = total
        self.model, self.graph, self.degree, self.limits = model, graph, degree, limits
        self.widest = max((p.shape[0] for p in model.parameters() if p.ndim > 1), default=1)
        self.dtype = degree.numpy().dtype
        self._arenas = threading.local()

    def arena(self) -> Arena:
        """Buffers of this thread, which its blocks share."""
        if not hasattr(self._arenas, "arena"):
            self._arenas.arena = Arena()
        return self._arenas.arena

    def sink(self, rows: int, part: ConvParts | None = None) -> HostSink:
        """For the rows that a part aggregates; None: other ones."""
        scratch = None if self.limits.group is not None else self.limits.scratch
        return HostSink(rows, scratch) if part is None else HostSink(rows, scratch, partial(self.summed, part))

    def summed(self, part: ConvParts, columns: int) -> int:
        """Columns of a row of so many that a part sums; the sums of several heads may be wider."""
        none = Destinations(self.graph, self.degree, np.empty(0, np.int64))
        return min(columns, part.aggregate(none).widths(columns)[0])

    def entered(self, part: ConvParts, features: FeatureStore, mask: Mask) -> LayerRows | FarRows:
        """The rows that the first layer aggregates: the features where they lie, if possible."""
        nodes = np.flatnonzero(mask)
        base = in_place(features, nodes) if features.dtype == self.dtype else None
        is_read = part.reads_rows and features.dtype == self.dtype
        if base is None and is_read and not fits_in_memory(len(nodes) * features.num_features * self.dtype.itemsize):
            return FarRows(features, np.empty(0, np.int32))
        if base is not None and part.reads_rows:
            return LayerRows(base, np.empty(0, np.int32))
        if base is not None and part.project is None:
            # Rows beyond the nodes' are never read.
            logits = None
            for piece, h in self.pieces(features, base, nodes):
                # pyrefly: ignore[not-callable]
                found = part.logits(h).numpy()
                logits = np.empty((len(base), found.shape[1]), self.dtype) if logits is None else logits
                logits[piece] = found
            return LayerRows(base, np.empty(0, np.int32), logits)
        sink, logits = self.sink(len(nodes), part), self.sink(len(nodes))
        for _ in self.enter(part, self.pieces(features, base, nodes), sink, logits):
            pass
        return self.left(sink, nodes, None if part.logits is None else logits.finish())

    def left(self, sink: HostSink, nodes: IdArray, logits: AnyArray | None) -> LayerRows | FarRows:
        """The rows that a layer has left for the next one, of ascending nodes."""
        whole = len(nodes) == self.graph.num_nodes
        place = np.empty(0, np.int32) if whole else positions(nodes, self.graph.num_nodes)
        if (stored := sink.stored()) is not None:
            return FarRows(stored, place, logits)
        return LayerRows(as_bfloat16(sink.finish()), place, logits)

    def enter(
        self, part: ConvParts, pieces: Iterable[tuple[IdArray, Tensor]], rows: HostSink, logits: HostSink
    ) -> Iterator[int]:
        """Append the rows that the first layer aggregates, and their logits if it has any, from features of nodes.
        Gives the number of rows of each piece."""
        for _, h in pieces:
            rows.append(h if part.project is None else self.kept(part.project(h)))
            if part.logits is not None:
                logits.append(part.logits(h), rows.reserved)
            yield len(h)

    def kept(self, rows: Tensor) -> Tensor:
        """Rows as they are kept for the next layer: the bits of bfloat16, if the limits say so."""
        return rows.to(torch.bfloat16).view(torch.int16) if self.limits.half else rows

    def piece_rows(self, features: FeatureStore) -> int:
        """Nodes whose features are read at a time."""
        row = max(1, features.num_features * max(self.dtype.itemsize, features.dtype.itemsize))
        return max(1, min(PIECE_BYTES, self.limits.max_bytes) // row)

    def pieces(self, features: FeatureStore, base: AnyArray | None, nodes: IdArray) -> Iterator[tuple[IdArray, Tensor]]:
        """Some of the nodes and their features after the other, in the dtype of the model."""
        step = self.piece_rows(features)
        for first in range(0, max(1, len(nodes)), step):
            piece = nodes[first : first + step]
            h = features.gather(piece) if base is None else base[piece]
            yield piece, torch.from_numpy(np.ascontiguousarray(h, self.dtype))
            # No row is done, but the caller may want to stop.
            self.limits.on_progress(0, self._total)


class LayerBlocks:
    """One layer of an evaluation, block by block."""

    def __init__(
        self,
        run: PartsRun,
        i: int,
        parts: Sequence[ConvParts],
        nodes: IdArray,
        rows: LayerRows | FarRows,
        sinks: tuple[HostSink, HostSink] | None = None,
    ) -> None:
        """Layer i from `rows` of the layer before, with the convolutions of all layers, for ascending nodes. `sinks`
        take the rows, and the logits that the next layer reads."""
        self.run, self.i, self.part, self.nodes, self._from = run, i, parts[i], nodes, rows
        self.following = parts[i + 1] if i + 1 < len(parts) else None
        self._none = rows if isinstance(rows, LayerRows) else rows.read(np.empty(0, np.int64), run.graph.num_nodes)
        self.sink, self.logits = sinks or (run.sink(len(nodes), self.following), run.sink(len(nodes)))

    def empty(self) -> list[Tensor]:
        """No rows, and no logits if there are any: they show the widths of the results."""
        return present(self._block(self._aggregate(0, 0).result(self._none)))

    def waves(self) -> Iterator[int]:
        """Compute some blocks after the other; the rows of each."""
        cuts, group = self._cuts(), self.run.limits.group
        empty = self.empty()
        sinks = [self.sink, self.logits][: len(empty)]
        for sink, rows in zip(sinks, empty):
            sink.begin(rows, self.sink.reserved)
        shares = [cuts] if group is None else self.shares(group.size)
        own = shares[0 if group is None else group.rank]
        if own and own[0][0]:
            for sink in sinks:
                sink.skip(own[0][0])
        most = max(1, min(WAVE_BLOCKS, self.run.limits.max_bytes // max(1, BLOCK_ROWS * self.sink.row_bytes)))
        for wave, aggregate, count in self._waves(own, most):
            if wave:
                low, high = wave[0][0], wave[-1][1]
                into = [sink.reserve(high - low) for sink in sinks]
                with at_most(self._blocks_at_once()):
                    side_by_side(self._into, [(a, b, low, into, aggregate) for a, b in wave])
                for sink in sinks:
                    sink.commit()
            yield count
        if group is not None:
            for source, blocks in enumerate(shares):
                for sink in sinks if blocks else ():
                    sink.spread(blocks[0][0], blocks[-1][1], source, group)
            yield len(self.nodes) - sum(b - a for a, b in own)

    def _waves(self, blocks: Blocks, most: int) -> Iterator[Wave]:
        """At most so many successive blocks, and what aggregates them."""
        rows, run = self._from, self.run
        if isinstance(rows, FarRows):
            reserved, processes = self.sink.reserved + self.logits.reserved, run.limits.processes
            far = FarBlocks(rows, run.graph, self.nodes, self._aggregate, processes=processes, reserved=reserved)
            yield from far.waves(blocks, most)
            return
        for wave in (blocks[begin : begin + most] for begin in range(0, len(blocks), most)):
            yield wave, lambda a, b: self._aggregate(a, b).result(rows), wave[-1][1] - wave[0][0]

    def _aggregate(self, a: int, b: int) -> Aggregate:
        """The aggregation of some of the layer's rows."""
        return self.part.aggregate(Destinations(self.run.graph, self.run.degree, self.nodes[a:b]))

    def shares(self, ranks: int) -> list[Blocks]:
        """Each rank's blocks: about as many edges."""
        cuts, before = self._cuts(), np.concatenate([[0], np.cumsum(self._edges() + ROW_EDGES)])
        ends = before[[b for _, b in cuts]]
        at = np.searchsorted(ends, ends[-1] * np.arange(1, ranks) // ranks, "left").tolist()
        return [cuts[a:b] for a, b in pairwise([0, *at, len(cuts)])]

    def finish(self) -> LayerRows | FarRows:
        """The rows that the next layer aggregates; the result, after the last."""
        if self.following is None:
            return LayerRows(as_bfloat16(self.sink.finish()), np.empty(0, np.int32))
        return self.run.left(self.sink, self.nodes, None if self.following.logits is None else self.logits.finish())

    def _block_size(self) -> tuple[int, int, int]:
        """Most rows of a block, most edges, and their bytes. Whatever the number of threads, which changes no bit."""
        share = max(1, self.run.limits.max_bytes // 8)
        row = 4 * max(self._none.matrix.shape[1], self.run.widest) * self.run.dtype.itemsize
        most_rows = max(1, min(BLOCK_ROWS, share // row))
        most_edges = max(1, min(BLOCK_EDGES, share // EDGE_BYTES))
        return most_rows, most_edges, most_rows * row + most_edges * EDGE_BYTES

    def _blocks_at_once(self) -> int:
        """Threads that stay below the limit together."""
        return max(1, self.run.limits.max_bytes // self._block_size()[2])

    def _edges(self) -> IdArray:
        """In-degrees of the nodes."""
        indptr = self.run.graph.indptr
        return indptr[self.nodes + 1] - indptr[self.nodes]

    def _cuts(self) -> Blocks:
        """Blocks as ranges of the layer's rows; an empty one if there are none."""
        most_rows, most_edges, _ = self._block_size()
        return [*row_ranges(starts_of(self._edges()), most_edges, most_rows)] or [(0, 0)]

    def _into(
        self, a: int, b: int, low: int, into: Sequence[AnyArray], aggregate: Callable[[int, int], Tensor]
    ) -> None:
        with torch.no_grad(), reusing(self.run.arena()):
            for target, rows in zip(into, self._block(aggregate(a, b))):
                assert rows is not None
                target[a - low : b - low] = rows.numpy()

    def _block(self, aggregated: Tensor) -> tuple[Tensor, Tensor | None]:
        h = self.run.model.combined(self.i, self.part, aggregated)
        if self.following is None:
            return h, None
        rows, logits = self.following.entered(h)
        return self.run.kept(rows), logits
