"""Drawing in-edges relation by relation on the device: bits of `oracles.neighbor`.

Edges of a row are sorted by relation, so a relation is a segment of the row, and the segments of all rows are the rows
of a graph with the same edges. A hop lists the segments of its rows, and draws within each: those that keep all of
their edges take them, the others get places by Floyd's algorithm, as in `draw`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .....storage.array_kinds import IdArray
from .....storage.graph import Graph
from ...runtime.device_memory import to_device, wait_for_copies
from ...runtime.once_per_graph import once_per_graph
from ...runtime.triton_rng import draw_word, launch, node_word, tile_of_rows
from ..device_graph import DeviceGraph, number_on_device, on_device
from ..device_samples import Rows, cumulated
from .draw import Drawn, edges_at, picked, tiles, total
from .tables import Tables


@dataclass(frozen=True, eq=False)
class Segments:
    """Edges of one relation and row of a graph with types, on the device: S segments, none of which is empty."""

    graph: DeviceGraph
    """The graph whose rows are the segments."""
    relation: Tensor
    """[S], relation of each."""
    of_rows: Tensor
    """int64 [V+1], where the segments of each row begin."""

    @classmethod
    def from_graph(cls, graph: Graph) -> "Segments":
        """Find the segments: 9 bytes for each, and 8 for each node."""
        on, kinds = on_device(graph), number_on_device(graph, "edge_type")
        first = torch.ones(graph.num_edges + 1, dtype=torch.bool, device=on.device)
        first[1:-1] = kinds[1:] != kinds[:-1]
        first[on.indptr] = True
        begin = torch.nonzero(first)[:, 0]
        longest = int(torch.diff(begin).max()) if len(begin) > 1 else 0
        rows = DeviceGraph(begin, on.indices, longest, on.placed)
        found = cls(rows, kinds[begin[:-1]], torch.searchsorted(begin, on.indptr))
        # Other threads, whose streams do not wait for this one's, read it too.
        wait_for_copies(on.device)
        return found


# A property of the graph: kept as long as it is.
@once_per_graph
def segments_of(graph: Graph) -> Segments:
    """Segments of a graph with types, found once."""
    return Segments.from_graph(graph)


@dataclass(frozen=True, eq=False)
class SegmentsOfRows:
    """Segments of some rows, row after row."""

    rows: Rows
    """S' of them, as rows of `Segments.graph`."""
    relation: Tensor
    """int64 [S'], relation of each."""
    degree: Tensor
    """int64 [S'], edges of each."""
    row: Tensor
    """int64 [S'], the row of each, in [0, n)."""
    ends: Tensor
    """int64 [n+1], where the segments of each row begin."""


def segments_in(segments: Segments, rows: Rows) -> SegmentsOfRows:
    """The segments of n rows. The host waits for their number."""
    nodes, to = rows.nodes.long(), rows.owner.device
    begin = segments.of_rows[nodes]
    ends = cumulated(segments.of_rows[nodes + 1] - begin)
    count = total(ends)
    row = torch.repeat_interleave(torch.arange(len(nodes), device=to), torch.diff(ends), output_size=count)
    segment = begin[row] + torch.arange(count, device=to) - ends[row]
    degree = segments.graph.indptr[segment + 1] - segments.graph.indptr[segment]
    return SegmentsOfRows(Rows(segment, rows.owner[row]), segments.relation[segment].long(), degree, row, ends)


@triton.jit(do_not_specialize=["num_rows", "most"])
def _segment_positions(
    nodes, relation, owner, keys, degree, kept, ends, places, num_rows, most,
    REPLACE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Positions of kept[f] edges of segment f; 0 leaves the segment's positions as they are. `most` is the largest."""
    f, live, v, q = tile_of_rows(nodes, owner, num_rows, ROWS)
    r = tl.load(relation + f, mask=live, other=0)
    key = draw_word(tl.load(keys + q, mask=live, other=0).to(tl.uint64), r)
    word = node_word(key, v)[:, None]
    length = tl.load(degree + f, mask=live, other=1)[:, None]
    count = tl.load(kept + f, mask=live, other=0)[:, None]
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    pick = picked(word, length, column, count, most, REPLACE)
    e = tl.load(ends + f, mask=live, other=0)[:, None] + column
    tl.store(places + e, pick, mask=live[:, None] & (column < count))


def draw_relations(
    segments: Segments,
    rows: Rows,
    keys: Tensor,
    fanout: IdArray,
    tables: Tables | None,
    *,
    replace: bool,
    first: int = 0,
) -> Drawn:
    """Draw up to ``fanout[r]`` edges of each relation r of each row, and mark their sources in `tables`.

    Args:
        segments: of the graph.
        rows: n of them.
        keys: int64 [k], the bits of the stream of each minibatch.
        fanout: int64 [R]; -1 takes all edges.
        tables: of the bulk; None: nothing is marked.
        replace: draw independently.
        first: id of the first row, if the graph is a block of one.

    The host waits for the numbers of segments and of edges.
    """
    of, to, nodes = segments_in(segments, rows), keys.device, rows.nodes.long()
    degree, owner, count = of.degree, of.rows.owner, len(of.row)
    wanted = to_device(fanout, to)[of.relation]
    whole = wanted < 0 if replace else (wanted < 0) | (wanted >= degree)
    kept = torch.where(whole, degree, wanted)
    ends = cumulated(kept)
    room = total(ends)
    each = torch.repeat_interleave(ends[:-1], kept, output_size=room)
    places = (torch.arange(room, device=to) - each).int()
    most = int(fanout.max(initial=0)) if replace else min(int(fanout.max(initial=0)), segments.graph.max_degree)
    if room and most > 0:
        drawn = torch.where(whole, 0, wanted)
        grid, shape = tiles(count, most, replace)
        args = nodes[of.row] + first, of.relation, owner, keys, degree, drawn, ends, places, count, most
        launch(_segment_positions, *grid)(*args, REPLACE=replace, **shape)
    found = edges_at(segments.graph, of.rows, ends, places, tables)
    return Drawn(ends[of.ends], found.sources, found.positions)


def weights(
    segments: Segments, positions: Tensor, indptr: Tensor, drawn: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    indptr = indptr.long()
    begin, e = segments.graph.indptr, len(positions)
    segment = torch.searchsorted(begin, positions, right=True) - 1
    # Each minibatch's `indptr` begins with 0, so the last difference of one is that to the next.
    kept = torch.diff(indptr, append=indptr[-1:]).clamp(min=0)
    row = torch.repeat_interleave(torch.arange(len(kept), device=kept.device), kept, output_size=e)
    length = (begin[segment + 1] - begin[segment]).double()
    if drawn is not None:
        hop, fanout = drawn
        s = fanout[hop[row], segments.relation[segment].long()]
        return torch.where(s > 0, length / s, 1.0).clamp(min=1.0).float()
    first = torch.ones(e, dtype=torch.bool, device=positions.device)
    first[1:] = (segment[1:] != segment[:-1]) | (row[1:] != row[:-1])
    run = torch.cumsum(first, 0) - 1
    count = torch.zeros(e, dtype=torch.int64, device=run.device).index_add_(0, run, torch.ones_like(run))
    return (length / count[run].double()).float()
