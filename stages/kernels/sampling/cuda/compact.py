"""Compacts flagged in-edges of some rows on the device."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.triton_rng import launch, programs, row_of
from ..device_graph import DeviceGraph
from ..device_samples import Rows
from .draw import BLOCK, Drawn, cumulated, total
from .tables import Tables


@triton.jit(do_not_specialize=["num_rows", "num_edges", "steps"])
def _compact(
    indptr,
    sources,
    nodes,
    owner,
    ends,
    flags,
    place,
    found,
    edges,
    positions,
    num_rows,
    num_edges,
    stride,
    steps,
    BLOCK: tl.constexpr,
):
    """Write the flagged edges to their places, and mark their sources."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
    e = tl.where(some, e, 0)
    f = row_of(ends, num_rows, e, steps)
    kept = some & (tl.load(flags + e, mask=some, other=0) != 0)
    v = tl.load(nodes + f, mask=kept, other=0).to(tl.int64)
    at = tl.load(indptr + v, mask=kept, other=0) + e - tl.load(ends + f, mask=kept, other=0)
    u = tl.load(sources + at, mask=kept, other=0)
    out = tl.load(place + e, mask=kept, other=0)
    tl.store(edges + out, u, mask=kept)
    tl.store(positions + out, at, mask=kept)
    tl.store(found + tl.load(owner + f, mask=kept, other=0).to(tl.int64) * stride + u.to(tl.int64), 1, mask=kept)


def compacted(graph: DeviceGraph, rows: Rows, ends: Tensor, flags: Tensor, tables: Tables) -> Drawn:
    """The flagged in-edges of each row, in the graph's order; their sources are marked in `tables`. The host waits for
    their number.

    Args:
        graph: in-neighbour lists.
        rows: n of them.
        ends: int64 [n+1], sums of the rows' degrees.
        flags: uint8 [ends[n]], 0 or 1 for each in-edge of each row.
        tables: of the bulk.
    """
    place = cumulated(flags)
    kept = place[ends]
    room = total(kept)
    edges = torch.empty(room, dtype=graph.indices.dtype, device=graph.device)
    positions = torch.empty(room, dtype=torch.int64, device=graph.device)
    if room:
        launch(_compact, programs(len(flags), BLOCK))(
            graph.indptr, graph.indices, rows.nodes, rows.owner, ends, flags, place, tables.found, edges, positions,
            len(rows.nodes), len(flags), tables.stride, len(rows.nodes).bit_length(), BLOCK=BLOCK,
        )  # fmt: skip
    return Drawn(kept, edges, positions)
