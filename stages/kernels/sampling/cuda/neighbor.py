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

from .....storage.errors import RunError
from ...runtime.device_memory import completed, to_device
from ..device_graph import DeviceGraph, Slots
from ..device_samples import Counts, DeviceSample, prefix_sums
from ..samples import LIMIT, Fanouts
from .draw import Drawn, draw
from .relations import Segments, draw_relations
from .renumber import Group, Hop, forget, joined, merged, number, start
from .tables import Nodes, Tables, Workspace

Draw = Callable[[Group, int, int, Tables], Awaitable[Drawn]]
"""Maps (rows, hop, fanout, tables) to the edges drawn for the rows, marked in the tables."""


async def expand(
    graph: Nodes,
    seeds: Tensor,
    counts: Counts,
    fanout: Fanouts,
    draw_hop: Draw,
    *,
    again: bool,
    workspace: Workspace,
) -> DeviceSample:
    """Hop after hop: draw and number new nodes; after the last, translate.

    Args:
        graph: its nodes.
        seeds: [sum of counts], minibatch after minibatch, in the dtype of the graph's ids.
        counts: seeds of each of the k minibatches, k > 0.
        fanout: of each hop.
        draw_hop: draws.
        again: draw for every node so far at each hop, not only for new ones.
        workspace: keeps the tables.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    tables = workspace.take(len(counts), graph)
    group = start(seeds, counts, to_device(prefix_sums(counts), seeds.device), tables)
    groups, known, node_ends = [group], counts, [counts]
    edges, edge_ends = np.zeros(len(counts), np.int64), []
    hops: list[Hop] = []
    for h, s in enumerate(fanout):
        hop, new = await number(group, await draw_hop(group, h, s, tables), known, tables)
        edges = edges + hop.counts
        edge_ends.append(hop.counts if again else edges)
        check_int32(int(edges.max()))
        known = known + new.counts
        groups = [merged([*groups, new])] if again else [*groups, new]
        group = groups[-1]
        hops.append(hop)
        node_ends.append(known)
    nodes = merged(groups)
    lists = tuple(joined([h], tables) for h in hops) if again else (joined(hops, tables),)
    forget(nodes.rows, tables)
    workspace.put_back(tables)
    return DeviceSample(nodes.rows, tuple(node_ends), lists, tuple(edge_ends))


def check_int32(edges: int) -> None:
    """Raises RunError if one minibatch has too many edges for int32."""
    if edges >= LIMIT:
        raise RunError(
            f"a minibatch would hold {edges} edges; at most {LIMIT - 1} fit: use a smaller batch_size, fanout or sizes"
        )


def neighbor(
    graph: DeviceGraph,
    seeds: Tensor,
    counts: Counts,
    keys: Tensor,
    fanout: Fanouts,
    *,
    replace: bool,
    table: Slots | None,
    again: bool,
    keep: bool,
    workspace: Workspace,
    segments: Segments | None = None,
) -> DeviceSample:
    """See `cpu.neighbor.neighbor`.

    Args:
        graph: in-neighbour lists.
        seeds: see `expand`, as `counts`, `again` and `workspace`.
        counts: int64 [k].
        keys: int64 [L, k], the bits of the streams.
        fanout: L numbers; with `segments` int64 [L, R], of each hop and relation.
        replace: draw independently.
        table: draw in proportion to the weights that it is made of, or None.
        again: draw for every node so far at each hop.
        keep: also return positions.
        workspace: keeps the tables.
        segments: of a graph with types; positions are kept.
    """

    async def draw_hop(group: Group, h: int, s: int, tables: Tables) -> Drawn:
        if segments is not None:
            return draw_relations(segments, group.rows, keys[h], np.asarray(fanout[h]), tables, replace=replace)
        if replace:
            # Before memory is allocated for them.
            check_int32(s * int(group.counts.max()))
        return draw(graph, group.rows, keys[h], s, tables, replace=replace, table=table, keep=keep)

    return completed(expand(graph, seeds, counts, fanout, draw_hop, again=again, workspace=workspace))
