"""LABOR-0 relation by relation on the device: the bits of `oracles.labor`. The segment of each relation of a row is a
row of its own, with the numbers of all: the kernels of `labor` walk segments, those of one fanout after the other."""

import numpy as np
import torch
from torch import Tensor

from .....storage.array_kinds import IdArray
from ...runtime.device_memory import to_device
from ..device_samples import DeviceSample, Rows, prefix_sums
from .draw import Drawn, cumulated, total
from .labor import keep_below, keep_smallest
from .relations import Segments, segments_in
from .tables import Tables

ALL = (1 << 31) - 1
"""A fanout that no row exceeds."""


def draw_labor_relations(
    segments: Segments, rows: Rows, keys: Tensor, fanout: IdArray, tables: Tables, *, poisson: bool
) -> Drawn:
    """Draw ``fanout[r]`` edges of each relation r of each row, and mark their sources in `tables`.

    Args:
        segments: of the graph.
        rows: n of them.
        keys: int64 [k], the bits of the stream of each minibatch.
        fanout: int64 [R]; -1 takes all edges.
        tables: of the bulk.
        poisson: decide each edge independently.

    The host waits for the numbers of segments and of edges and, where relations have different fanouts, for the number
    of segments of each.
    """
    graph, of = segments.graph, segments_in(segments, rows)
    wanted = to_device(fanout, keys.device)[of.relation]
    kept = torch.where(wanted < 0, of.degree, torch.minimum(wanted, of.degree))
    distinct = np.unique(fanout).tolist()
    each = [(s, Ellipsis if len(distinct) == 1 else torch.nonzero(wanted == s)[:, 0]) for s in distinct if s]
    parts = [(s, at, Rows(of.rows.nodes[at], of.rows.owner[at])) for s, at in each]
    if poisson:
        for s, at, some in parts:
            if s > 0:
                kept[at] = keep_below(graph, some, keys, s, tables, None)
    ends = cumulated(kept)
    room = total(ends)
    edges = torch.empty(room, dtype=graph.indices.dtype, device=keys.device)
    positions = torch.empty(room, dtype=torch.int64, device=keys.device)
    for s, at, some in parts:
        into = ends[:-1][at].contiguous(), edges, positions
        if s < 0 or poisson:
            keep_below(graph, some, keys, s if s > 0 else ALL, tables, into)
        else:
            keep_smallest(graph, some, keys, s, tables, into)
    return Drawn(ends[of.ends], edges, positions)


def hops_of(made: DeviceSample, h: int) -> Tensor:
    """int64, the hop in which each row of list h was drawn, by its place in the list's ``indptr``."""
    x, to = made.lists[h], made.rows.nodes.device
    places = x.rows + 1
    owner = torch.repeat_interleave(
        torch.arange(len(places), device=to), to_device(places, to), output_size=int(places.sum())
    )
    hop = torch.full_like(owner, h)
    if len(made.lists) == 1:
        # One list for all hops: a row was drawn in the hop after it was found.
        row = torch.arange(len(owner), device=to) - to_device(prefix_sums(places)[:-1], to)[owner]
        for ends in made.node_ends[:-2]:
            hop += row >= to_device(ends, to)[owner]
    return hop
