"""Rows of a layer that lie on disk, and the aggregates of blocks of destinations from them.

Where sources are near, the rows that some blocks read are taken into memory together. Where they are all over the file,
sums of as many destinations as memory has room for go on while the rows of all sources go by in order: each row is read
once for all of them, and once more as their own. Sums are the same to the bit, since edges are added in the order of
their lists. Lists whose sources do not ascend are read the first way.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from ....storage.array_kinds import FloatArray, IdArray, Int32Array, Mask
from ....storage.features import FeatureStore
from ....storage.graph import Graph
from ....storage.store.bytes_left import bytes_left
from ....storage.store.row_file import GAP_BYTES
from ...kernels import destinations_on_host
from ...kernels.runtime.threads import side_by_side
from ...memory.arena import give_back
from ...neighbourhood.destinations import Aggregate, LayerRows, as_bfloat16, positions
from .rows import StoredRows

Blocks = list[tuple[int, int]]
"""Successive ranges of the rows of a layer."""
Wave = tuple[Blocks, Callable[[int, int], Tensor], int]
"""Blocks, what aggregates one of them, and rows by which work has gone on: of waves without blocks too."""
Part = Literal["all", "summed", "beside"]
LEFT_SHARE = 8
"""Part of the memory left that rows in memory take."""
SUMS_SHARE = 1.3
"""Part of the memory left that sums which go on take."""
SPARE_BYTES = 96 << 20
"""Memory left that is for small things; where there is no more, half of it takes rows and sums."""
MASK_NODES = 1 << 19
"""Nodes whose positions are in memory at once."""
MOST_WINDOW = 1 << 30
"""Bytes of rows that go by between two reports of progress, at most."""
SUM_BYTES = 96
"""Memory of one of these beside its columns."""
CHUNK_BLOCKS = 16
"""Blocks whose sums go on together."""
NEAR = 1.5
"""Rows read for each destination up to which sources are near: sums that go on hardly take fewer."""


@dataclass(frozen=True, eq=False)
class FarRows:
    """Rows of a layer on disk, which blocks read some at a time."""

    store: FeatureStore
    place: Int32Array
    """[V], the row of each node that has one; empty: node v has row v."""
    logits: FloatArray | None = None
    """See `LayerRows.logits`."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return max(1, self.store.num_features * self.store.dtype.itemsize)

    @property
    def summed_bytes(self) -> int:
        """Bytes of what is summed of a row, where that lies apart."""
        summed = self.store.summed if isinstance(self.store, StoredRows) else self.store.num_features
        return max(1, summed * self.store.dtype.itemsize)

    def read(self, nodes: IdArray, num_nodes: int, part: Part = "all") -> LayerRows:
        """The rows of ascending nodes, in memory, or what is summed of them, or at least all else."""
        at = self.place[nodes] if len(self.place) else nodes
        place = positions(nodes, num_nodes)
        logits = None if self.logits is None else np.ascontiguousarray(self.logits[at])
        store, whole = self.store, self.summed_bytes == self.row_bytes or part == "all"
        if whole or not isinstance(store, StoredRows):
            rows = store.gather(at)
        else:
            rows = store.columns(at, 0) if part == "summed" else store.gather(at, parts=(1,))
        return LayerRows(as_bfloat16(rows), place, logits)

    def cost(self, mask: Mask, row_bytes: int) -> int:
        """Bytes that go by where rows of these nodes are read: gaps are read too, up to what a read takes."""
        total, most = 0, 1 + GAP_BYTES // row_bytes
        for first in range(0, len(mask), MASK_NODES):
            nodes = first + np.flatnonzero(mask[first : first + MASK_NODES])
            at = self.place[nodes] if len(self.place) else nodes
            total += int(np.minimum(np.diff(at), most).sum()) + 1
        return total * row_bytes


@dataclass(eq=False)
class FarBlocks:
    """Blocks of a layer whose sources lie on disk."""

    rows: FarRows
    """Rows of the sources."""
    graph: Graph
    nodes: IdArray
    """Of the layer's rows, ascending."""
    aggregate: Callable[[int, int], Aggregate]
    """What a range of these rows aggregates."""
    processes: int
    """That evaluate on this machine at the same time."""
    reserved: int
    """Bytes that results will take, and have not yet."""
    _sums: FloatArray = field(default_factory=lambda: np.empty(0))
    """Memory of sums that go on."""

    def waves(self, blocks: Blocks, most: int) -> Iterator[Wave]:
        """All of the blocks, in order, at most so many together."""
        ascend = len(self.nodes) and destinations_on_host().lists_ascend(
            self.graph.indptr, self.graph.indices, self.nodes
        )
        # What the layer before has freed is left too.
        give_back()
        left = max(SPARE_BYTES // 2, bytes_left() - self.reserved - SPARE_BYTES) // self.processes
        room = max(1, left // LEFT_SHARE // self.rows.row_bytes)
        # Sums that were not worth it are asked for again after a quarter of their blocks: asking goes over their edges.
        begin, again, near = 0, 0, blocks[:most]
        while begin < len(blocks):
            near, sources = self._near(blocks[begin : begin + min(most, 2 * len(near))], room)
            row, summed = self.rows.row_bytes, self.rows.summed_bytes
            each = self.rows.cost(sources, row) / max(1, near[-1][1] - near[0][0])
            if ascend and begin >= again and each > NEAR * row:
                far = self._far(blocks[begin:], int(left / SUMS_SHARE))
                of_far = self._sources(far, and_own=False)
                if self.rows.cost(of_far, summed) / (far[-1][1] - far[0][0]) + row < each:
                    yield from self._swept(far, of_far, room, most)
                    begin += len(far)
                    continue
                again = begin + max(1, len(far) // 4)
            rows = self.rows.read(np.flatnonzero(sources), self.graph.num_nodes)
            yield near, lambda a, b, rows=rows: self.aggregate(a, b).result(rows), near[-1][1] - near[0][0]
            begin += len(near)

    def _near(self, blocks: Blocks, room: int) -> tuple[Blocks, Mask]:
        """The first blocks, of which all that they read has room, and that; at least one."""
        while np.count_nonzero(sources := self._sources(blocks, and_own=True)) > room and len(blocks) > 1:
            blocks = blocks[: len(blocks) // 2]
        return blocks, sources

    def _far(self, blocks: Blocks, room: int) -> Blocks:
        """The first blocks, whose sums have room; at least one."""
        each = self.aggregate(0, 0)
        row = SUM_BYTES + each.widths(self.rows.store.num_features)[0] * each.real.itemsize
        stops = np.array([b for _, b in blocks]) - blocks[0][0]
        return blocks[: max(1, int(np.searchsorted(stops, room // row, "right")))]

    def _sources(self, blocks: Blocks, and_own: bool) -> Mask:
        """Sources of some blocks."""
        nodes, mask = self.nodes[blocks[0][0] : blocks[-1][1]], np.zeros(self.graph.num_nodes, np.bool_)
        mask[nodes] = and_own
        destinations_on_host().mark_sources(self.graph.indptr, self.graph.indices, nodes, mask)
        return mask

    def _swept(self, blocks: Blocks, sources: Mask, room: int, most: int) -> Iterator[Wave]:
        """Blocks whose sums go on while the rows of their sources go by."""
        first, stop, num_nodes = blocks[0][0], blocks[-1][1], self.graph.num_nodes
        cuts = [a for a, _ in blocks[::CHUNK_BLOCKS]]
        chunks = [(a, b, self.aggregate(a, b)) for a, b in zip(cuts, [*cuts[1:], stop])]
        width = chunks[0][2].widths(self.rows.store.num_features)[0]
        if len(self._sums) < (stop - first) * width:
            self._sums = np.empty((stop - first) * width, chunks[0][2].real)
        so_far = self._sums[: (stop - first) * width].reshape(-1, width)
        parts = [(each, so_far[a - first : b - first]) for a, b, each in chunks]
        everywhere = LayerRows(np.empty((0, 0), so_far.dtype), self.rows.place, self.rows.logits)
        side_by_side(lambda each, into: each.begin(everywhere, into), parts)
        # The next rows come while these are added: three windows and their copies are in memory beside the sums.
        step, done = max(1, min(room * self.rows.row_bytes // 4, MOST_WINDOW) // self.rows.summed_bytes), 0

        def window(at: int) -> LayerRows:
            return self.rows.read(at + np.flatnonzero(sources[at : at + step]), num_nodes, "summed")

        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(window, 0)
            for last in range(step, num_nodes + step, step):
                rows, coming = coming.result(), reader.submit(window, last)
                side_by_side(lambda each, into, rows=rows, last=last: each.add(rows, last, into), parts)
                count = (stop - first) * min(last, num_nodes) // num_nodes - done
                done += count
                yield [], lambda a, b: Tensor(), count
        most = max(1, min(most, room // 4 // max(b - a for a, b in blocks)))
        for wave in (blocks[at : at + most] for at in range(0, len(blocks), most)):
            rows = self.rows.read(self.nodes[wave[0][0] : wave[-1][1]], num_nodes, "beside")

            def end(a: int, b: int, rows: LayerRows = rows) -> Tensor:
                begins, _, each = chunks[bisect_right(cuts, a) - 1]
                return each.result(rows, slice(a - begins, b - begins), so_far[a - first : b - first])

            yield wave, end, 0
