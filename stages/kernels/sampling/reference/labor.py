"""LABOR-0 by the skeleton of `reference.skeleton`, in SciPy: slow and simple, the oracle of `cpu.labor`.

Source: Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023, section 3.2 with equal probabilities, and section
A.3 (sequential Poisson) for rows of exact size.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .....storage.graph import Graph
from ....random import node_words
from .. import exponential_race
from ..samples import NeighborSample
from .neighbor import extract_rows
from .skeleton import edges_of, select


def labor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Sequence[int],
    *,
    poisson: bool = False,
    weight: npt.NDArray[np.float32] | None = None,
    expand: str = "new",
    keep_positions: bool = True,
    workspace: object = None,
) -> list[NeighborSample]:
    """Sample k minibatches node by node, with one random number per source node and minibatch.

    Args:
        graph: in-neighbour lists.
        seeds: k vectors of distinct node ids.
        keys: uint64 [k], the stream of each minibatch: all its hops share it.
        fanout: L numbers, nearest the seeds first; -1 takes every in-edge.
        poisson: keep an edge into v iff its source's number is below fanout / degree(v); else keep the min(fanout,
            degree) edges whose sources have the smallest numbers (of parallel edges, the first).
        weight: float32 [E], with rows of exact size only: a source's number u becomes the time -log2(u) / weight of
            each of its edges, and a row keeps its first edges (an exponential race that rows share); never an edge of
            weight 0.
        expand: see `reference.neighbor.neighbor`.
        keep_positions: see there.
        workspace: buffers to reuse (compiled kernels only).

    Returns:
        k samples, rows in the graph's own order.
    """
    A, k = edges_of(graph), len(seeds)
    nodes = [np.asarray(s, np.int64) for s in seeds]
    begin, ends = [0] * k, [[len(s)] for s in nodes]
    rows: list[list[list[npt.NDArray[np.int64]]]] = [[] for _ in range(k)]
    for s in fanout:
        for q in range(k):
            fresh: list[npt.NDArray[np.int64]] = []
            frontier = nodes[q][begin[q] :]
            P = sp.csr_array(select([np.array([v]) for v in frontier], graph.num_nodes) @ A)
            P.sort_indices()
            for r in range(len(frontier)):
                positions = P.indices[P.indptr[r] : P.indptr[r + 1]].astype(np.int64)
                words = node_words(int(keys[q]), graph.indices[positions])
                fresh.append(positions[_keep(words, s, poisson, None if weight is None else weight[positions])])
            rows[q].append(fresh)
            sources = graph.indices[np.concatenate(fresh)] if fresh else np.empty(0, np.int64)
            begin[q] = len(nodes[q]) if expand == "new" else 0
            nodes[q] = np.concatenate([nodes[q], np.setdiff1d(sources, nodes[q]).astype(np.int64)])
            ends[q].append(len(nodes[q]))
    samples = []
    for q in range(k):
        lists = [[r for hop in rows[q] for r in hop]] if expand == "new" else rows[q]
        edges = tuple(extract_rows(graph, nodes[q], each, keep_positions) for each in lists)
        samples.append(NeighborSample(nodes[q].astype(graph.indices.dtype), tuple(ends[q]), edges))
    return samples


def _keep(
    words: npt.NDArray[np.uint64], s: int, poisson: bool, weight: npt.NDArray[np.float32] | None
) -> npt.NDArray[np.int64]:
    degree = len(words)
    if weight is not None and s >= 0:
        times = exponential_race.keys(words >> np.uint64(32), weight)
        return np.sort(np.argsort(times, kind="stable")[: min(s, np.count_nonzero(weight))])
    if s < 0 or degree <= s:
        return np.arange(degree)
    if poisson:
        return np.array([i for i in range(degree) if (int(words[i]) >> 32) * degree < s << 32], np.int64)
    return np.sort(np.argsort(words, kind="stable")[:s])
