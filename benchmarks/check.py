"""Checks of a sampled minibatch: every edge exists, min(degree, fanout) distinct neighbours a row, the right rows in
each hop; of links, no own edge of a pair or its reverse, and negatives that keep the source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millrace.stages.kernels.row_block.relation_rows import RelationRows
from millrace.storage.graph import Graph


def has_edges(graph: Graph, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """bool [e]: whether src -> dst is an edge. Rows of the graph must ascend."""
    low, high = graph.indptr[dst], graph.indptr[dst + 1]
    end = high.copy()
    while (low < high).any():
        middle = (low + high) >> 1
        right = np.zeros(len(src), bool)
        live = low < high
        right[live] = graph.indices[middle[live]] < src[live]
        low, high = np.where(live & right, middle + 1, low), np.where(live & ~right, middle, high)
    found = low < end
    found[found] = graph.indices[low[found]] == src[found]
    return found


class Hop(NamedTuple):
    """The edges of a hop, see `peers.serve.Hop`; int64."""

    rows: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    kind: np.ndarray


def read(path: Path, hops: int) -> tuple[np.ndarray, list[Hop]]:
    """Seeds and hops in a file that `peers.serve.save` wrote."""
    with np.load(path) as saved:
        found = [Hop(*(saved[f"{n}{h}"].astype(np.int64) for n in Hop._fields)) for h in range(hops)]
        return saved["seeds"].astype(np.int64), found


def check(graph: Graph, path: Path, fanout: Sequence[int], expand: str) -> dict[str, Any]:
    """Prove a minibatch that `peers.serve.save` wrote.

    Args:
        graph: simple, rows ascending.
        path: of the .npz.
        fanout: nearest the seeds first.
        expand: "new": hop h+1 draws for the nodes that hop h found; "all": for every node so far.

    Returns:
        Edges at each hop and distinct nodes.

    Raises:
        ValueError: names the first thing that is wrong.
    """
    seeds, hops = read(path, len(fanout))
    own, pairs = np.empty(0, np.int64), seeds
    if pairs.ndim == 3:
        if not np.array_equal(pairs[:, 0, 0], pairs[:, 1, 0]):
            raise ValueError(f"{path.stem}: a negative has another source than its pair")
        source, destination = pairs[:, 0].T
        if not has_edges(graph, source, destination).all():
            raise ValueError(f"{path.stem}: a positive pair is no edge")
        both = np.concatenate([destination * graph.num_nodes + source, source * graph.num_nodes + destination])
        own, seeds = np.unique(both), np.unique(pairs)
    # Own edges that end in each row: a sample may lack as many, whether they were drawn or not.
    lost = np.bincount(own // graph.num_nodes, minlength=graph.num_nodes)
    known = frontier = np.sort(seeds)
    edges = []
    for h, (s, (rows, src, dst, _)) in enumerate(zip(fanout, hops)):

        def need(holds: bool, what: str, h: int = h) -> None:
            if not holds:
                raise ValueError(f"{path.stem}, hop {h + 1}: {what}")

        need(len(np.unique(rows)) == len(rows), "a row is drawn for twice")
        need(
            np.array_equal(np.sort(rows), frontier),
            f"{len(rows)} rows are drawn for; expected {len(frontier)} ({expand})",
        )
        need(bool(has_edges(graph, src, dst).all()), "an edge is not in the graph")
        drawn = np.bincount(dst, minlength=graph.num_nodes)
        missing = np.minimum(graph.in_degree[rows], s) - drawn[rows]
        need(bool(((missing >= 0) & (missing <= lost[rows])).all()), "a row has not min(degree, fanout) edges")
        need(not np.isin(dst * graph.num_nodes + src, own).any(), "a pair sees its own edge or the reverse")
        need(int(drawn[rows].sum()) == len(dst), "an edge ends in a row that is not drawn for")
        need(len(np.unique(dst * graph.num_nodes + src)) == len(dst), "a row has a neighbour twice")
        found = np.union1d(known, src)
        frontier = np.setdiff1d(found, known) if expand == "new" else found
        known = found
        edges.append(len(src))
    return {"edges_per_hop": edges, "nodes": len(known)}


def check_relations(cut: RelationRows, path: Path, fanout: Sequence[int], expand: str) -> dict[str, Any]:
    """`check` in a graph with types: min(degree, fanout) distinct neighbours of each row in each relation.

    Args:
        cut: the graph.
        path: see `check`.
        fanout: of every relation, nearest the seeds first.
        expand: see `check`.
    """
    seeds, hops = read(path, len(fanout))
    graph = cut.graph
    known = frontier = np.sort(seeds)
    edges = []
    for h, (s, (rows, src, dst, kind)) in enumerate(zip(fanout, hops)):

        def need(holds: bool, what: str, h: int = h) -> None:
            if not holds:
                raise ValueError(f"{path.stem}, hop {h + 1}: {what}")

        need(np.array_equal(np.sort(rows), frontier), f"{len(rows)} rows; expected {len(frontier)} ({expand})")
        lists = cut.rows(kind, dst)
        need(bool(has_edges(graph, src, lists).all()), "an edge is not in the graph")
        drawn = np.bincount(lists, minlength=graph.num_nodes)
        expected = np.zeros_like(drawn)
        for _, _, own in cut.parts(rows):
            expected[own] = np.minimum(graph.in_degree[own], s)
        need(np.array_equal(drawn, expected), "a relation of a row has not min(degree, fanout) edges")
        need(len(np.unique(lists * (graph.indices.max() + 1) + src)) == len(src), "a row has a neighbour twice")
        found = np.union1d(known, src)
        frontier = np.setdiff1d(found, known) if expand == "new" else found
        known = found
        edges.append(len(src))
    return {"edges_per_hop": edges, "nodes": len(known)}
