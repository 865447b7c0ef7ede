"""Sampled graphs of `NeighborLoader`: repeated seeds, disjoint trees, and PyG's induced and bidirectional subgraphs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...stages.assignment import BulkRequest
from ...stages.kernels import sampling_backend
from ...stages.random import branches
from ...stages.sample.neighbor import NeighborSampler
from ...stages.sample.temporal import TimedGraph
from ...storage.graph import Graph, edges_of_rows
from .export import SampledGraph, sampled_graph

SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")


@dataclass(frozen=True, eq=False)
class Timed:
    """Times of a graph and of the seeds of some minibatches."""

    graph: TimedGraph
    last: bool
    """Draw the latest edges in place of a uniform choice."""
    moments: list[npt.NDArray[np.number]]
    """[B] times of the seeds of each minibatch: a seed's tree has no later edge."""


IdArray = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


def sample(
    sampler: NeighborSampler,
    graph: Graph,
    request: BulkRequest,
    workspace: Any,
    subgraph_type: str,
    disjoint: bool,
    timed: Timed | None = None,
) -> list[SampledGraph]:
    """The minibatches of `request`, whose seeds may repeat, as PyG's sampler returns them.

    Args:
        sampler: sampler of in-neighbours, with edge ids.
        graph: graph with edge ids.
        request: the minibatches to draw.
        workspace: buffers reused from bulk to bulk.
        subgraph_type: one of `SUBGRAPH_TYPES`.
        disjoint: True if each seed grows its own tree.
        timed: times, with trees that are disjoint; `graph` is its graph then.
    """
    assert graph.edge_id is not None and sampler.edge_ids
    count = len(request.seeds)
    apart = [i for i, seeds in enumerate(request.seeds) if disjoint or len(np.unique(seeds)) < len(seeds)]
    together = sorted(set(range(count)) - set(apart))
    out: dict[int, SampledGraph] = {}
    if together:
        seeds, indices = tuple(request.seeds[i] for i in together), tuple(request.indices[i] for i in together)
        plain = BulkRequest(request.seed, request.epoch, request.number, request.first_index, seeds, indices)
        bulk = sampler.sample(graph, plain, sampling_backend("cpu"), workspace)
        out.update((i, sampled_graph(m, graph.edge_id)) for i, m in zip(together, bulk.minibatches))
    if apart:
        keys = request.keys(sampler.num_layers)
        for i in apart:
            out[i] = sample_separately(sampler, graph, request.seeds[i], keys[i], disjoint, timed, i)
    change = {"directional": lambda g: g, "bidirectional": bidirectional, "induced": lambda g: induced(graph, g)}[
        subgraph_type
    ]
    return [change(out[i]) for i in range(count)]


def sample_separately(
    sampler: NeighborSampler,
    graph: Graph,
    seeds: IdArray,
    keys: Keys,
    disjoint: bool,
    timed: Timed | None = None,
    number: int = 0,
) -> SampledGraph:
    """One minibatch, hop by hop: each seed draws for itself, even if a node is a seed twice.

    Seeds that do not repeat draw the same bits as `NeighborSampler.sample`. Edges out of a repeated seed are edges out
    of its first position (as in torch-sparse's sampler). If trees are disjoint, a node is in each tree that finds it.

    Args:
        sampler: see `sample`.
        graph: see `sample`.
        seeds: int64 [B], the node ids.
        keys: uint64 [L], the stream of each hop.
        disjoint: see `sample`.
        timed: see `sample`.
        number: of the minibatch in `timed`.
    """
    assert graph.edge_id is not None
    count, size = len(seeds), max(graph.num_nodes, 1)
    node, tree = seeds, np.arange(count) if disjoint else np.zeros(count, np.int64)
    # A node of a tree is one number; `known` has them in ascending order, `place` the first position of each.
    known, place = np.unique(tree * size + seeds, return_index=True)
    nodes, trees, rows, columns, edges, ends = [node], [tree], [], [], [], [count]
    lengths, first = np.ones(count, np.int64), 0
    for hop, fanout in enumerate(sampler.fanout):
        if disjoint:
            key = branches(keys[hop], np.arange(count))
        elif hop == 0:
            turn = _earlier_occurrences(seeds)
            key = np.where(turn == 0, keys[0], branches(keys[0], turn))
        else:
            key, lengths = keys[hop : hop + 1], np.array([len(node)])
        if timed is None:
            kept, positions = _draw(sampler, graph, node, lengths, key, fanout)
        else:
            options = {"last": timed.last, "replace": sampler.replace}
            kept, positions = timed.graph.draw(node, timed.moments[number][tree], key[tree], fanout, **options)
        rows.append(np.repeat(tree, kept) * size + graph.indices[positions])
        columns.append(np.repeat(np.arange(first, first + len(node)), kept))
        edges.append(graph.edge_id[positions])
        new = np.setdiff1d(rows[-1], known)
        first = ends[-1]
        known, place = np.concatenate([known, new]), np.concatenate([place, np.arange(first, first + len(new))])
        order = np.argsort(known)
        known, place = known[order], place[order]
        tree, node = np.divmod(new, size)
        lengths = np.bincount(tree, minlength=count)
        nodes.append(node)
        trees.append(tree)
        ends.append(first + len(new))
    source = place[np.searchsorted(known, np.concatenate(rows))]
    return SampledGraph(
        node=torch.from_numpy(np.concatenate(nodes)),
        row=torch.from_numpy(source),
        col=torch.from_numpy(np.concatenate(columns)),
        edge=torch.from_numpy(np.concatenate(edges)),
        num_sampled_nodes=[len(n) for n in nodes],
        num_sampled_edges=[len(e) for e in edges],
        batch=torch.from_numpy(np.concatenate(trees)) if disjoint else None,
    )


def _earlier_occurrences(seeds: IdArray) -> IdArray:
    """Number of earlier occurrences of each seed."""
    order = np.argsort(seeds, kind="stable")
    _, begin, times = np.unique(seeds[order], return_index=True, return_counts=True)
    turn = np.empty(len(seeds), np.int64)
    turn[order] = np.arange(len(seeds)) - np.repeat(begin, times)
    return turn


def _draw(
    sampler: NeighborSampler, graph: Graph, rows: IdArray, lengths: IdArray, keys: Keys, fanout: int
) -> tuple[IdArray, IdArray]:
    """Draw in-edges for each of `rows`: the number kept, [n], and their positions in the graph, [e]. Each segment of
    `lengths` has its own key."""
    if fanout < 0 or not len(rows):
        return graph.in_degree[rows], edges_of_rows(graph.indptr[rows], graph.in_degree[rows])[1]
    # The kernel's buffers are as wide as its longest segment, and a draw depends on its key and row only: long segments
    # are cut.
    width = -(-len(rows) // len(lengths))
    pieces = -(-lengths // width)
    segment = np.repeat(np.arange(len(lengths)), pieces)
    within = np.arange(len(segment)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = (np.cumsum(lengths) - lengths)[segment] + width * within
    drawn = sampler.draw_in(graph, rows, np.append(starts, len(rows)), keys[segment], fanout)
    assert drawn.positions is not None
    return drawn.kept, drawn.positions


def induced(graph: Graph, found: SampledGraph) -> SampledGraph:
    """All edges of the graph among the sampled nodes, by destination. Takes memory for all in-edges of these nodes."""
    assert graph.edge_id is not None
    node = found.node.numpy()
    _, positions = edges_of_rows(graph.indptr[node], graph.in_degree[node])
    order = np.argsort(node, kind="stable")
    ascending, source = node[order], graph.indices[positions]
    # A node found more than once (a repeated seed) counts at its first position.
    at = np.minimum(np.searchsorted(ascending, source), len(node) - 1)
    inside = ascending[at] == source
    column = np.repeat(np.arange(len(node)), graph.in_degree[node])
    return SampledGraph(
        node=found.node,
        row=torch.from_numpy(order[at][inside]),
        col=torch.from_numpy(column[inside]),
        edge=torch.from_numpy(graph.edge_id[positions[inside]]),
        num_sampled_nodes=None,
        num_sampled_edges=None,
    )


def bidirectional(found: SampledGraph) -> SampledGraph:
    """The sampled edges and their reverses, each pair of nodes once, by destination and source.

    A reverse has the edge id of the edge that it reverses, unless it was sampled itself; of parallel edges the first is
    kept. PyG leaves this open.
    """
    assert found.edge is not None
    count = max(len(found.node), 1)
    row, col, edge = found.row.numpy(), found.col.numpy(), found.edge.numpy()
    pair, first = np.unique(np.concatenate([col * count + row, row * count + col]), return_index=True)
    column, source = np.divmod(pair, count)
    return SampledGraph(
        node=found.node,
        row=torch.from_numpy(source),
        col=torch.from_numpy(column),
        edge=torch.from_numpy(np.concatenate([edge, edge])[first]),
        num_sampled_nodes=None,
        num_sampled_edges=None,
        batch=found.batch,
    )


def as_pyg(found: SampledGraph, input_id: torch.Tensor, time: torch.Tensor | None = None) -> Any:
    """A `torch_geometric.sampler.SamplerOutput`, whose edges are columns of ``edge_index``; `time` is the seeds'."""
    from torch_geometric.sampler import SamplerOutput

    return SamplerOutput(
        node=found.node,
        row=found.row,
        col=found.col,
        edge=found.edge,
        batch=found.batch,
        num_sampled_nodes=found.num_sampled_nodes,
        num_sampled_edges=found.num_sampled_edges,
        metadata=(input_id, time),
    )
