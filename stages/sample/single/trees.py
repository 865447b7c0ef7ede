"""Minibatches with one edge list, drawn alone: disjoint trees, repeated seeds, times; and all edges among some nodes.

A graph with types is one graph here too, with the ids of all its nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ....storage.array_kinds import IdArray, NumberArray, WordArray
from ....storage.graph import Graph, edges_of_rows
from ....storage.optional import taken
from ...kernels.row_block.draw import HopRows
from ...kernels.row_block.relation_rows import RelationRows
from ...random import branches
from ..neighbor import NeighborSampler
from ..temporal import TimedGraph
from .hgt import earlier_occurrences

NONE: IdArray = np.empty(0, np.int64)
Keys = WordArray


@dataclass(frozen=True, eq=False)
class Times:
    """Times of a graph's edges."""

    graph: TimedGraph
    """The graph, or its rows by relation, in the order of time."""
    last: tuple[bool, ...]
    """For each relation: draw the latest edges in place of a uniform choice."""
    of_nodes: NumberArray | None
    """[V], if an edge's time is that of its source; None: edges have their own."""
    node_types: frozenset[str | None]
    """Node types that have times; the type of a `Data` is None."""


@dataclass(frozen=True, eq=False)
class Timed:
    """Times for some minibatches."""

    times: Times
    moments: list[NumberArray]
    """[B] times of the seeds of each minibatch: a seed's tree has no later edge."""


@dataclass(frozen=True, eq=False)
class EdgeList:
    """A minibatch with a single edge list, by hop and then by destination."""

    node: IdArray
    """int64 [n], global ids: the seeds, then each hop's new nodes."""
    row: IdArray
    """int64 [e], positions of the edges' sources in `node`."""
    col: IdArray
    """int64 [e], positions of their destinations; ascending."""
    edge: IdArray
    """int64 [e], the edges' ids."""
    num_sampled_nodes: list[int] | None = None
    """L+1 numbers: the seeds, then each hop's new nodes; None if edges are not ordered by hop."""
    num_sampled_edges: list[int] | None = None
    """L numbers: the edges of each hop, or None."""
    batch: IdArray | None = None
    """int64 [n], the seed whose tree each node is in, if every seed has its own tree."""


def drawable(graph: Graph) -> Graph:
    """The graph without its edges of weight 0: none is drawn, whether some neighbours are asked for or all."""
    if graph.edge_weight is None or graph.edge_weight.all():
        return graph
    kept = graph.edge_weight > 0
    indptr = np.concatenate([[0], np.cumsum(kept)])[graph.indptr]
    ids, kinds = (taken(a, kept) for a in (graph.edge_id, graph.edge_type))
    weight = graph.edge_weight[kept]
    return replace(graph, indptr=indptr, indices=graph.indices[kept], edge_weight=weight, edge_id=ids, edge_type=kinds)


def sample_separately(
    sampler: NeighborSampler | None,
    graph: Graph,
    seeds: IdArray,
    keys: Keys,
    disjoint: bool,
    timed: Timed | None = None,
    number: int = 0,
    relations: RelationRows | None = None,
) -> EdgeList:
    """One minibatch, hop by hop: each seed draws for itself, even if a node is a seed twice.

    Without types, seeds that do not repeat draw the same bits as `NeighborSampler.sample`. Edges out of a repeated seed
    are edges out of its first position (as in torch-sparse's sampler). If trees are disjoint, a node is in each tree
    that finds it. With types, the edges of a hop are by relation, then by destination.

    Args:
        sampler: of in-neighbours, with edge ids; None: no hops.
        graph: graph with edge ids.
        seeds: int64 [B], the node ids.
        keys: uint64 [L], the stream of each hop.
        disjoint: True if each seed grows its own tree.
        timed: times, with trees that are disjoint.
        number: of the minibatch in `timed`.
        relations: rows of `graph`, if it has types.
    """
    rows_of = graph if relations is None else relations.graph
    rows_of = rows_of if timed is None else timed.times.graph.graph
    count, size = len(seeds), max(graph.num_nodes, 1)
    node, tree = seeds, np.arange(count) if disjoint else np.zeros(count, np.int64)
    # A node of a tree is one number; `known` has them in ascending order, `place` the first position of each.
    known, place = np.unique(tree * size + seeds, return_index=True)
    nodes, trees, ends, first = [node], [tree], [count], 0
    rows: list[IdArray] = [NONE]
    columns, edges = [NONE], [NONE]
    for hop in range(0 if sampler is None else sampler.num_layers):
        assert sampler is not None
        if disjoint:
            key, segment = branches(keys[hop], np.arange(count)), tree
        elif hop == 0:
            turn = earlier_occurrences(seeds)
            key, segment = np.where(turn == 0, keys[0], branches(keys[0], turn)), np.arange(count)
        else:
            key, segment = keys[hop : hop + 1], np.zeros(len(node), np.int64)
        drawn: list[tuple[IdArray, IdArray]] = []
        for r, at, row, fanout in _parts(sampler, relations, node, hop):
            if timed is None:
                lengths = np.bincount(segment[at], minlength=len(key))
                kept, positions = _draw(sampler, rows_of, row, lengths, key, fanout)
            else:
                moments = timed.moments[number][tree[at]]
                options = {"last": timed.times.last[r], "replace": sampler.replace}
                kept, positions = timed.times.graph.draw(row, moments, key[tree[at]], fanout, **options)
            drawn.append((np.repeat(at, kept), positions))
        column, positions = (np.concatenate(arrays) for arrays in zip((NONE, NONE), *drawn))
        rows.append(tree[column] * size + rows_of.indices[positions].astype(np.int64, copy=False))
        columns.append(first + column)
        edges.append(rows_of.input_edges[positions])
        new = np.setdiff1d(rows[-1], known)
        first = ends[-1]
        known, place = np.concatenate([known, new]), np.concatenate([place, np.arange(first, first + len(new))])
        order = np.argsort(known)
        known, place = known[order], place[order]
        tree, node = np.divmod(new, size)
        nodes.append(node)
        trees.append(tree)
        ends.append(first + len(new))
    source = place[np.searchsorted(known, np.concatenate(rows))]
    return EdgeList(
        node=np.concatenate(nodes),
        row=source,
        col=np.concatenate(columns),
        edge=np.concatenate(edges),
        num_sampled_nodes=[len(n) for n in nodes],
        num_sampled_edges=[len(e) for e in edges[1:]],
        batch=np.concatenate(trees) if disjoint else None,
    )


def _parts(
    sampler: NeighborSampler, relations: RelationRows | None, node: IdArray, hop: int
) -> Iterator[tuple[int, IdArray, IdArray, int]]:
    """The draws of a hop: for each relation its number, the positions of rows in `node`, the rows, and the fanout."""
    if relations is None:
        yield 0, np.arange(len(node)), node, sampler.fanout[hop]
        return
    fanout = sampler.by_relation(relations.types)[hop]
    yield from ((r, at, row, int(fanout[r])) for r, at, row in relations.parts(node) if fanout[r])


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
    drawn = sampler.draw_in(graph, HopRows(rows, np.append(starts, len(rows)), keys[segment], fanout))
    assert drawn.positions is not None
    return drawn.kept, drawn.positions


def edges_among(graph: Graph, node: IdArray) -> EdgeList:
    """All edges of the graph among some nodes, by destination. Takes memory for all in-edges of these nodes."""
    _, positions = edges_of_rows(graph.indptr[node], graph.in_degree[node])
    order = np.argsort(node, kind="stable")
    ascending, source = node[order], graph.indices[positions]
    # A node found more than once (a repeated seed) counts at its first position.
    at = np.minimum(np.searchsorted(ascending, source), len(node) - 1)
    inside = ascending[at] == source
    column = np.repeat(np.arange(len(node)), graph.in_degree[node])
    return EdgeList(node, order[at][inside], column[inside], graph.input_edges[positions[inside]])


def both_ways(found: EdgeList) -> EdgeList:
    """The sampled edges and their reverses, each pair of nodes once, by destination and source.

    A reverse has the edge id of the edge that it reverses, unless it was sampled itself; of parallel edges the first is
    kept. PyG leaves this open.
    """
    count, row, col, edge = max(len(found.node), 1), *(np.asarray(a) for a in (found.row, found.col, found.edge))
    pair, first = np.unique(np.concatenate([col * count + row, row * count + col]), return_index=True)
    column, source = np.divmod(pair, count)
    return EdgeList(found.node, source, column, np.concatenate([edge, edge])[first], batch=found.batch)
