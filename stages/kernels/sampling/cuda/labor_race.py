"""Weighted LABOR on the device: races whose rows share the numbers of their sources; the bits of `reference.labor`. All
in-edges of the rows get a time, and torch sorts them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.device_memory import to_device
from ...runtime.triton_rng import TILE, launch, node_word, programs
from ..device_graph import DeviceGraph
from ..device_samples import Rows
from ..exponential_race import log2_table
from .alias import NEVER, exponential, ranked, spread
from .draw import Drawn, cumulated, degrees, edges_at
from .tables import Tables

BLOCK = TILE
_NEVER = tl.constexpr(NEVER)


@triton.jit(do_not_specialize=["num_edges"])
def _times(
    indptr, sources, nodes, owner, keys, edge_row, edge_place, weight, table, finish, num_edges, BLOCK: tl.constexpr
):
    """Finishing time of each edge, at `edge_place` in the row `edge_row`, as the bits of a float64."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
    f = tl.load(edge_row + e, mask=some, other=0)
    v = tl.load(nodes + f, mask=some, other=0).to(tl.int64)
    at = tl.load(indptr + v, mask=some, other=0) + tl.load(edge_place + e, mask=some, other=0)
    key = tl.load(keys + tl.load(owner + f, mask=some, other=0), mask=some, other=0)
    w = tl.load(weight + at, mask=some, other=0)
    time = exponential(node_word(key, tl.load(sources + at, mask=some, other=0)) >> 32, table)
    done = time.to(tl.float64) / tl.where(w > 0, w, 1).to(tl.float64)
    tl.store(finish + e, tl.where(w > 0, done.to(tl.int64, bitcast=True), _NEVER), mask=some)


def draw_by_weight(graph: DeviceGraph, rows: Rows, keys: Tensor, s: int, weight: Tensor, tables: Tables) -> Drawn:
    """Draw up to `s` in-edges of each row, in its order, and mark their sources in `tables`. The host waits for their
    numbers."""
    degree = degrees(graph, rows)
    row, at = spread(degree)
    finish = torch.empty_like(at)
    log = to_device(log2_table(), graph.device)
    launch(_times, programs(len(row), BLOCK))(
        graph.indptr, graph.indices, rows.nodes, rows.owner, keys, row, at, weight, log, finish, len(row), BLOCK=BLOCK
    )
    first, kept = cumulated(degree), torch.zeros_like(degree)
    kept.index_add_(0, row, (finish != NEVER).long())
    kept.clamp_(max=s)
    target, i = spread(kept)
    places = ranked(finish, row)[first[target] + i] - first[target]
    width = graph.max_degree + 1
    places = (torch.sort(target * width + places).values % width).int()
    return edges_at(graph, rows, cumulated(kept), places, tables)
