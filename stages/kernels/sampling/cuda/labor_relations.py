"""LABOR-0 relation by relation on the device: the bits of `oracles.labor`. The segment of each relation of a row is a
row of its own, with the numbers of all: the kernels of `labor` walk segments, those of one fanout after the other."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .....storage.array_kinds import IdArray
from ...runtime.device_memory import to_device
from ..device_samples import Rows, cumulated
from .draw import Drawn, total
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
    made = Drawn.with_room(graph, ends, total(ends))
    for s, at, some in parts:
        into = replace(made, ends=ends[:-1][at].contiguous())
        if s < 0 or poisson:
            keep_below(graph, some, keys, s if s > 0 else ALL, tables, into)
        else:
            keep_smallest(graph, some, keys, s, tables, into)
    return replace(made, ends=ends[of.ends])
