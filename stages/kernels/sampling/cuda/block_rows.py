"""Node-wise sampling of a graph whose rows lie on several GPUs: draws of the owner of some rows, and the minibatches
that whoever asked makes of the answers.

An owner draws as in a whole graph, by keys that know the id of its first row, and marks nothing. The answers are lists
of edges, in the order in which they came: whoever asked takes all of each, row after row, by the kernel that takes all
in-edges of rows, and marks their sources in its own tables. Those have entries for all V nodes.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .....storage.array_kinds import IdArray
from .....storage.graph import Graph
from ....random import NODE
from ...runtime.device_memory import to_device
from ..device_graph import DeviceGraph, RowsOnDevice, Slots
from ..device_samples import DeviceSample, Rows
from ..draws import NeighborDraws
from ..samples import check_edges
from .draw import Drawn, draw
from .neighbor import expand
from .relations import draw_relations, segments_of
from .renumber import Group
from .tables import Tables


@dataclass(frozen=True, eq=False)
class Answers:
    """Edges that owners have drawn for n rows, one answer after the other, as they came."""

    order: Tensor
    """int64 [n], the row that each answers."""
    ends: Tensor
    """int64 [n+1], the edges of each are those between two."""
    sources: Tensor
    """[e], ids."""


Ask = Callable[[Rows, int], Awaitable[Answers]]
"""Maps rows of a hop, and its number, to the answers of their owners."""


@dataclass(frozen=True)
class AllNodes:
    """The nodes of a graph of which this device has some rows."""

    num_nodes: int
    device: torch.device


def draw_rows(
    block: RowsOnDevice, rows: Rows, keys: Tensor, fanout: int, *, replace: bool, weighted: bool, keep: bool
) -> Drawn:
    """The draws of `neighbor` for rows of a block, or of several, in one hop.

    Args:
        block: the rows.
        rows: n of them, by their number.
        keys: int64 [m], the bits of the streams that `Rows.owner` counts.
        fanout: edges of a row at most; -1: all.
        replace: draw independently.
        weighted: draw by weight.
        keep: also return positions.
    """
    # A draw is keyed by the node's id; the kernels know its number in the block.
    each = np.array([NODE], np.uint64).view(np.int64)
    if isinstance(block.first, int):
        keys = keys + int((each * block.first)[0])
    else:
        keys = keys[rows.owner] + (block.first[rows.nodes] - rows.nodes) * int(each[0])
        rows = Rows(rows.nodes, torch.arange(len(rows.nodes), dtype=torch.int32, device=keys.device))
    table = Slots(block.of_edges["slots"], block.of_edges["weight"], block.of_rows["positive"]) if weighted else None
    return draw(block.lists, rows, keys, fanout, None, replace=replace, table=table, keep=keep)


def draw_typed_rows(graph: Graph, rows: Rows, keys: Tensor, fanout: IdArray, *, first: int, replace: bool) -> Drawn:
    """`draw_rows` of a block with types, whose first row has the id `first`; `fanout` is that of each relation, [R].
    The host waits twice."""
    return draw_relations(segments_of(graph), rows, keys, fanout, None, replace=replace, first=first)


def rows_of(lists: DeviceGraph, numbers: Tensor, num_edges: int) -> Drawn:
    """All edges of some rows, whose number is known, with their positions."""
    rows = Rows(numbers, torch.zeros(len(numbers), dtype=torch.int32, device=numbers.device))
    return draw(lists, rows, numbers, -1, None, replace=False, table=None, keep=True, num_edges=num_edges)


async def neighbor_of_owners(nodes: AllNodes, asked: NeighborDraws, dtype: torch.dtype, ask: Ask) -> DeviceSample:
    """`neighbor` by owners of rows.

    Args:
        nodes: of the graph.
        asked: k > 0 minibatches, of which owners have the keys, and a workspace; if positions are kept, they are places
            of edges among all that came, hop after hop.
        dtype: of ids.
        ask: gets the edges of a hop.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    came = 0

    async def draw_hop(group: Group, h: int, s: int, tables: Tables) -> Drawn:
        nonlocal came
        if asked.replace:
            check_edges(s * int(group.counts.max()))
        answers = await ask(group.rows, h)
        drawn = _in_order(answers, group.rows, tables, asked.keep_positions)
        if drawn.positions is not None:
            drawn.positions.add_(came)
        came += len(answers.sources)
        return drawn

    flat = to_device(np.concatenate([np.asarray(s, np.int64) for s in asked.seeds]), nodes.device).to(dtype)
    counts = np.array([len(s) for s in asked.seeds], np.int64)
    return await expand(nodes, (flat, counts), asked, draw_hop)


def _in_order(answers: Answers, rows: Rows, tables: Tables, keep: bool) -> Drawn:
    """All edges, row after row, marked; positions are places among them as they came."""
    place = torch.empty_like(answers.order)
    place[answers.order] = torch.arange(len(place), device=place.device)
    lists = DeviceGraph(answers.ends, answers.sources, max_degree=0)
    return draw(
        lists, Rows(place, rows.owner), answers.order, -1, tables,
        replace=False, table=None, keep=keep, num_edges=len(answers.sources),
    )  # fmt: skip
