"""Graphs to be cut into parts: small ones with all defects, one with blocks, one with pairs, and copies of a graph."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import millrace as mr
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Bulk


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Isolated nodes, self loops, multi-edges, one node, no nodes, no edges."""
    n = draw(st.integers(0, 12))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40)) if n else []
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    return from_edges(src, dst, n)


def copied(graph: Graph, copies: int) -> Graph:
    """So many copies of a graph side by side: node v of copy i is ``i * V + v``. What is drawn for one of them is
    independent of the others, so that laws need few minibatches."""
    at, weight = np.arange(copies), graph.edge_weight
    return Graph(
        np.append(0, np.add.outer(graph.num_edges * at, graph.indptr[1:]).ravel()),
        np.add.outer(graph.num_nodes * at, graph.indices).ravel().astype(graph.indices.dtype),
        None if weight is None else np.tile(weight, copies),
    ).check()


def outcomes(bulk: Bulk, rows: int, nodes: int) -> dict[tuple[tuple[int, ...], ...], int]:
    """Counts of the sources that the rows 0, 1, .. of a graph of so many nodes had together, in all of its copies in
    minibatches of one layer."""
    codes = []
    for m in bulk.minibatches:
        b = m.blocks[0]
        code = np.zeros(b.num_dst, np.int64)
        np.add.at(code, np.repeat(np.arange(b.num_dst), np.diff(b.indptr)), 1 << b.src[b.indices] % nodes)
        codes.append(code.reshape(-1, rows) << nodes * np.arange(rows))
    found, counts = np.unique(np.concatenate(codes).sum(1), return_counts=True)
    each = [
        tuple(tuple(u for u in range(nodes) if c >> nodes * v + u & 1) for v in range(rows)) for c in found.tolist()
    ]
    return dict(zip(each, counts.tolist()))


def sbm(nodes: int = 600, blocks: int = 4, degree: int = 16, seed: int = 1) -> Graph:
    rng = np.random.default_rng(seed)
    block = rng.integers(blocks, size=nodes)
    src, dst = rng.integers(nodes, size=(2, nodes * degree * 4))
    keep = rng.random(len(src)) < np.where(block[src] == block[dst], 0.9, 0.02)
    return from_edges(np.r_[src[keep], dst[keep]], np.r_[dst[keep], src[keep]], nodes)


def links_of_multi_edges(nodes: int) -> mr.Dataset:
    """Pairs of a graph with multi-edges and weights, some of which are there twice."""
    data = mr.open_dataset(f"sbm:nodes={nodes},classes=4,degree=8,features=6")
    graph = data.graph
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    src, twice = graph.indices.astype(np.int64), np.arange(0, graph.num_edges, 5)
    weight = np.random.default_rng(0).random(len(src) + len(twice)) + 0.5
    whole = from_edges(np.r_[src, src[twice]], np.r_[dst, dst[twice]], graph.num_nodes, edge_weight=weight)
    return mr.link_dataset(replace(data, graph=whole), seed=3)
