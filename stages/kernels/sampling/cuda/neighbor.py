"""Bulk sampling, node by node, on the device: the minibatches of a bulk are drawn together; bits of
`oracles.neighbor`.

Functions take and return tensors on the device; the host knows only sizes. It waits once a hop, for the number of nodes
found (and once before if not even a bound is known: all in-edges, or races). `cuda.backend` converts from and to NumPy.

Tables of k V entries are used instead of sorted keys (minibatch, node): sorting an edge's 64-bit key takes about eight
passes over it, 200 bytes or more; a table takes one mark and one lookup, two cache lines, most of them in the
second-level cache, since programs run in the order of minibatches and few minibatches' tables are in use at a time (5 V
bytes each). Marks are bytes instead of bits: a bit needs an atomic operation, a byte a plain store that several
programs may do at once; scanning V bytes a hop and minibatch costs 1 ms per 3 GB. Bulks whose tables would exceed
`TABLE_BYTES` are drawn in pieces, which changes no bit: a minibatch does not depend on its bulk.

Traffic of an edge: its source's line (rows of 15 draws share some), 4 bytes written and read, a mark, a lookup in the
table and 4 bytes written: 80 to 150 bytes. Source of the skeleton: Tripathy, Yelick, Buluc, MLSys 2024.
"""

from collections.abc import Awaitable, Callable

import numpy as np
from torch import Tensor

from ...runtime.device_memory import completed, to_device
from ..device_graph import DeviceGraph, Slots
from ..device_samples import Counts, DeviceSample, prefix_sums
from ..draws import NeighborDraws, NodeWiseDraws
from ..samples import check_edges
from .draw import Drawn, draw
from .relations import Segments, draw_relations
from .renumber import Group, Hop, forget, joined, merged, number, start
from .tables import Nodes, Tables

Draw = Callable[[Group, int, int, Tables], Awaitable[Drawn]]
"""Maps (rows, hop, fanout, tables) to the edges drawn for the rows, marked in the tables."""
Seeds = tuple[Tensor, Counts]
"""All seeds, minibatch after minibatch, in the dtype of the graph's ids; and the number of those of each minibatch."""


async def expand(graph: Nodes, seeds: Seeds, asked: NodeWiseDraws, draw_hop: Draw) -> DeviceSample:
    """Hop after hop: draw and number new nodes; after the last, translate.

    Args:
        graph: its nodes.
        seeds: of k > 0 minibatches.
        asked: a fanout for each hop, and a workspace, which keeps the tables.
        draw_hop: draws.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    (flat, counts), again = seeds, asked.expand == "all"
    tables = asked.workspace.take(len(counts), graph)
    group = start(flat, counts, to_device(prefix_sums(counts), flat.device), tables)
    groups, known, node_ends = [group], counts, [counts]
    edges, edge_ends = np.zeros(len(counts), np.int64), []
    hops: list[Hop] = []
    for h, s in enumerate(asked.fanout):
        hop, new = await number(group, await draw_hop(group, h, s, tables), known, tables)
        edges = edges + hop.counts
        edge_ends.append(hop.counts if again else edges)
        check_edges(int(edges.max()))
        known = known + new.counts
        groups = [merged([*groups, new])] if again else [*groups, new]
        group = groups[-1]
        hops.append(hop)
        node_ends.append(known)
    nodes = merged(groups)
    lists = tuple(joined([h], tables) for h in hops) if again else (joined(hops, tables),)
    forget(nodes.rows, tables)
    asked.workspace.put_back(tables)
    return DeviceSample(nodes.rows, tuple(node_ends), lists, tuple(edge_ends))


def neighbor(
    graph: DeviceGraph, seeds: Seeds, keys: Tensor, asked: NeighborDraws, table: Slots | None, segments: Segments | None
) -> DeviceSample:
    """See `cpu.neighbor.neighbor`.

    Args:
        graph: in-neighbour lists.
        seeds: see `expand`.
        keys: int64 [L, k], the bits of the streams.
        asked: how hops are drawn; with `segments` fanouts are int64 [L, R], of each hop and relation.
        table: that of `asked`, on the device.
        segments: of a graph with types; positions are kept.
    """

    async def draw_hop(group: Group, h: int, s: int, tables: Tables) -> Drawn:
        replace = asked.replace
        if segments is not None:
            return draw_relations(segments, group.rows, keys[h], np.asarray(asked.fanout[h]), tables, replace=replace)
        if replace:
            # Before memory is allocated for them.
            check_edges(s * int(group.counts.max()))
        keep = asked.keep_positions or asked.keep_weights
        return draw(graph, group.rows, keys[h], s, tables, replace=replace, table=table, keep=keep)

    return completed(expand(graph, seeds, asked, draw_hop))
