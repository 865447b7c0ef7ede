"""LABOR-0 on the device: every in-edge of the frontier is looked at once by the program that has its stretch; bits as `labor_reference`.

Poisson draws decide an edge by itself. Rows of exact size take the smallest words of each row: two stable sorts of all the rows'
in-edges, by word and then by row.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .compact_cuda import compacted
from .draw_cuda import BLOCK, Drawn, Rows, cumulated, degrees, ranked, total
from .graph_cuda import DeviceGraph, Tables, Workspace
from .number_cuda import Counts, Group
from .sample_cuda import DeviceSample, expand
from .words_cuda import launch, node_word, programs, row_of

_SIGN = tl.constexpr(1 << 63)


@triton.jit(do_not_specialize=["num_rows", "num_edges", "steps", "fanout"])
def _look(
    indptr, sources, nodes, owner, keys, ends, words, row, flags, num_rows, num_edges, steps, fanout,
    POISSON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Flag the edges that are kept whatever the others are; without POISSON, also write their words, in signed order, and rows."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
    e = tl.where(some, e, 0)
    f = row_of(ends, num_rows, e, steps)
    first = tl.load(ends + f, mask=some, other=0)
    degree = tl.load(ends + f + 1, mask=some, other=0) - first
    v = tl.load(nodes + f, mask=some, other=0).to(tl.int64)
    u = tl.load(sources + tl.load(indptr + v, mask=some, other=0) + e - first, mask=some, other=0)
    word = node_word(tl.load(keys + tl.load(owner + f, mask=some, other=0), mask=some, other=0), u)
    kept = (fanout < 0) | (degree <= fanout)
    if POISSON:
        kept = kept | ((word >> 32) * degree.to(tl.uint64) < (fanout.to(tl.uint64) << 32))
    else:
        tl.store(words + e, (word ^ _SIGN).to(tl.int64, bitcast=True), mask=some)
        tl.store(row + e, f, mask=some)
    tl.store(flags + e, kept, mask=some)


def _draw(graph: DeviceGraph, rows: Rows, keys: Tensor, s: int, tables: Tables, poisson: bool) -> Drawn:
    n, degree = len(rows.nodes), degrees(graph, rows)
    ends = cumulated(degree)
    count = total(ends)
    steps = n.bit_length()
    flags = torch.empty(count, dtype=torch.uint8, device=graph.device)
    exact = s >= 0 and not poisson
    words = torch.empty(count if exact else 0, dtype=torch.int64, device=graph.device)
    row = torch.empty(count if exact else 0, dtype=torch.int32, device=graph.device)
    lists = (graph.indptr, graph.indices, rows.nodes, rows.owner)
    if count:
        launch(_look, programs(count, BLOCK))(*lists, keys, ends, words, row, flags, n, count, steps, s, POISSON=not exact, BLOCK=BLOCK)
    if exact:
        order = ranked(words, row)
        rank = torch.arange(count, device=graph.device) - ends[row]
        # `order` lists row after row, so element i of it is in the row of edge i.
        flags.scatter_(0, order, (rank < s).to(torch.uint8))
    return compacted(graph, rows, ends, flags, tables)


def labor(
    graph: DeviceGraph, seeds: Tensor, counts: Counts, keys: Tensor, fanout: Sequence[int], *, poisson: bool, workspace: Workspace
) -> DeviceSample:
    """See `labor_reference.labor`.

    Args:
        graph: in-neighbour lists.
        seeds: see `sample_cuda.expand`, as `counts` and `workspace`.
        counts: int64 [k].
        keys: int64 [k], the bits of the streams.
        fanout: L numbers.
        poisson: decide each edge by itself.
        workspace: keeps the tables.
    """

    def draw_hop(group: Group, h: int, s: int, tables: Tables) -> Drawn:
        return _draw(graph, group.rows, keys, s, tables, poisson)

    return expand(graph, seeds, counts, fanout, draw_hop, again=False, workspace=workspace)
