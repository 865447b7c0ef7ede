"""Strategies and builders for messages: small ones, with all defects of real ones."""

import numpy as np
from hypothesis import strategies as st

from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Block, Bulk, MiniBatch, nested_blocks


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 12, max_edges: int = 40) -> Graph:
    """Empty rows, isolated nodes, self loops, multi-edges, one node, no nodes, no edges; with or without weights and
    ids."""
    n = draw(st.integers(0, max_nodes))
    e = draw(st.integers(0, max_edges)) if n else 0
    ends = st.lists(st.integers(0, max(n - 1, 0)), min_size=e, max_size=e)
    src, dst = np.array(draw(ends), np.int64), np.array(draw(ends), np.int64)
    weight = np.linspace(0.0, 2.0, e) if draw(st.booleans()) else None
    return from_edges(src, dst, n, edge_weight=weight, keep_edge_id=draw(st.booleans()))


def make_minibatch(
    rng: np.random.Generator,
    ends: tuple[int, ...],
    *,
    epoch: int = 0,
    index: int = 0,
    nested: bool = True,
    weight: bool = True,
    edge_id: bool = True,
    ids: type[np.integer] = np.int64,
    max_degree: int = 3,
) -> MiniBatch:
    """A random minibatch with ``ends[h]`` nodes known after h hops."""
    high = 2**40 if ids is np.int64 else 2**30
    nodes = (rng.permutation(ends[-1]) + rng.integers(high)).astype(ids)

    def edges(rows_of: list[tuple[int, int]]) -> tuple[np.ndarray, ...]:
        """Rows whose sources lie below a bound: [(number of rows, bound), ...]."""
        bound = np.concatenate([np.full(n, b, np.int64) for n, b in rows_of])
        degree = rng.integers(0, max_degree + 1, len(bound))
        indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int32)
        indices = rng.integers(0, np.repeat(bound, degree)).astype(np.int32)
        w = rng.random(len(indices), np.float32) if weight else None
        return indptr, indices, w, rng.integers(0, 2**40, len(indices)) if edge_id else None

    if nested:
        sizes = np.diff((0, *ends[:-1]))
        blocks = nested_blocks(nodes, ends, *edges(list(zip(sizes, ends[1:]))))
    else:
        blocks = tuple(
            Block(ends[h], nodes[: ends[h + 1]], *edges([(ends[h], ends[h + 1])]))
            for h in reversed(range(len(ends) - 1))
        )
    return MiniBatch(epoch, index, blocks, nested).check()


@st.composite
def minibatches(draw: st.DrawFn, epoch: int = 0, index: int = 0) -> MiniBatch:
    """Any number of layers, one seed, no edges, nested or not, either width of ids."""
    growth = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    ends = tuple(int(n) for n in np.cumsum([draw(st.integers(1, 4)), *growth]))
    return make_minibatch(
        np.random.default_rng(draw(st.integers(0, 2**32))),
        ends,
        epoch=epoch,
        index=index,
        nested=draw(st.booleans()),
        weight=draw(st.booleans()),
        edge_id=draw(st.booleans()),
        ids=draw(st.sampled_from([np.int32, np.int64])),
        max_degree=draw(st.integers(0, 3)),
    )


def make_bulk(epoch: int, number: int, bulk_size: int, count: int | None = None, *, nodes: int = 12) -> Bulk:
    """Bulk `number` of an epoch; the same arguments give the same bits."""
    rng = np.random.default_rng([epoch, number])
    first = number * bulk_size
    return Bulk(
        epoch,
        number,
        tuple(
            make_minibatch(rng, (2, 5, nodes), epoch=epoch, index=first + i)
            for i in range(bulk_size if count is None else count)
        ),
    ).check()
