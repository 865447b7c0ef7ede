"""LABOR by the skeleton of `reference.skeleton`, in SciPy: slow and simple, the oracle of `cpu.labor`.

Source: Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023: section 3.2 with equal probabilities and with
importance (its fixed-point iterations), and section A.3 (sequential Poisson) for rows of exact size.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from millrace.stages.kernels.sampling import exponential_race
from millrace.stages.kernels.sampling.draws import LaborDraws
from millrace.stages.kernels.sampling.samples import NeighborSample
from millrace.stages.random import node_words
from millrace.storage.graph import Graph
from millrace.tests.oracles.sampling.neighbor import extract_rows
from millrace.tests.oracles.sampling.skeleton import edges_of, select


def labor(graph: Graph, asked: LaborDraws) -> list[NeighborSample]:
    """See `cpu.labor.labor`: the same arguments, the same bits."""
    seeds, keys, fanout, expand = asked.seeds, asked.keys, asked.fanout, asked.expand
    poisson, weight, iterations, keep_positions = asked.poisson, asked.weight, asked.iterations, asked.keep_positions
    A, k = edges_of(graph), len(seeds)
    nodes = [np.asarray(s, np.int64) for s in seeds]
    begin, ends = [0] * k, [[len(s)] for s in nodes]
    rows: list[list[list[npt.NDArray[np.int64]]]] = [[] for _ in range(k)]
    scales: list[list[list[npt.NDArray[np.float32]]]] = [[] for _ in range(k)]
    for s in fanout:
        for q in range(k):
            fresh: list[npt.NDArray[np.int64]] = []
            scale: list[npt.NDArray[np.float32]] = []
            frontier = nodes[q][begin[q] :]
            pi = importance(graph, frontier, s, iterations)
            P = sp.csr_array(select([np.array([v]) for v in frontier], graph.num_nodes) @ A)
            P.sort_indices()
            for r in range(len(frontier)):
                positions = P.indices[P.indptr[r] : P.indptr[r + 1]].astype(np.int64)
                words = node_words(int(keys[q]), graph.indices[positions])
                if not graph.types.is_single:
                    kept, inverse = _keep_relations(graph, positions, words, s, poisson)
                    scale.append(inverse)
                elif iterations:
                    p = chances(pi[graph.indices[positions]], s)
                    kept = np.flatnonzero((words >> np.uint64(32)).astype(np.float64) < p * 2.0**32)
                    scale.append((1 / p[kept]).astype(np.float32))
                else:
                    kept = _keep(words, s, poisson, None if weight is None else weight[positions])
                fresh.append(positions[kept])
            rows[q].append(fresh)
            scales[q].append(scale)
            sources = graph.indices[np.concatenate(fresh)] if fresh else np.empty(0, np.int64)
            begin[q] = len(nodes[q]) if expand == "new" else 0
            nodes[q] = np.concatenate([nodes[q], np.setdiff1d(sources, nodes[q]).astype(np.int64)])
            ends[q].append(len(nodes[q]))
    samples = []
    for q in range(k):
        lists = [[r for hop in rows[q] for r in hop]] if expand == "new" else rows[q]
        keep_positions = keep_positions or not graph.types.is_single
        edges = tuple(extract_rows(graph, nodes[q], each, keep_positions) for each in lists)
        if iterations or not graph.types.is_single:
            factors = [[r for hop in scales[q] for r in hop]] if expand == "new" else scales[q]
            edges = tuple(
                replace(e, weight=np.concatenate([np.empty(0, np.float32), *f])) for e, f in zip(edges, factors)
            )
        samples.append(NeighborSample(nodes[q].astype(graph.indices.dtype), tuple(ends[q]), edges))
    return samples


def _keep_relations(
    graph: Graph,
    positions: npt.NDArray[np.int64],
    words: npt.NDArray[np.uint64],
    fanout: npt.NDArray[np.int64],
    poisson: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """`_keep` of each relation of a row, one after the other, and the inverse chances of what is kept."""
    assert graph.edge_type is not None
    kinds, kept, inverse = graph.edge_type[positions], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for r in np.flatnonzero(fanout):
        own, s = np.flatnonzero(kinds == r), int(fanout[r])
        kept.append(own[_keep(words[own], s, poisson, None)])
        n = len(kept[-1])
        divisor = s if poisson and s > 0 else max(n, 1)
        inverse.append(np.full(n, max(len(own) / divisor, 1.0), np.float32))
    return np.concatenate(kept), np.concatenate(inverse)


def factor(pi: npt.NDArray[np.float32], s: int) -> float:
    """The c of a row whose d sources have importance `pi`.

    Its edges are kept with chances p = min(1, c pi) such that sum(1 / p) = d^2 / s: a sum over the row then varies as
    much as with d chances of s / d. A row of at most s edges keeps all of them.
    """
    inverse = 1 / pi.astype(np.float64)
    if len(pi) <= s:
        return float(inverse.max(initial=0.0))
    target = float(len(pi)) * float(len(pi)) / float(s)
    c, full = _sum(inverse) / target, 0
    # c only grows: sources become certain, one after the other, until the rest makes up for them.
    while (certain := c * pi.astype(np.float64) >= 1).sum() > full:
        full = int(certain.sum())
        c = _sum(inverse[~certain]) / (target - full)
    return c


def chances(pi: npt.NDArray[np.float32], s: int) -> npt.NDArray[np.float64]:
    """Chance of each edge of a row whose sources have importance `pi`."""
    if s < 0 or len(pi) <= s:
        return np.ones(len(pi))
    return np.minimum(factor(pi, s) * pi.astype(np.float64), 1)


def importance(graph: Graph, frontier: npt.NDArray[np.int64], s: int, iterations: int) -> npt.NDArray[np.float32]:
    """float32 [V], importance of the sources of the frontier's in-edges, at first 1: each iteration multiplies it by
    the largest c of the rows that have the source. The expected number of distinct sources does not rise thereby."""
    pi = np.ones(graph.num_nodes, np.float32)
    for _ in range(iterations if iterations and s >= 0 else 0):
        new = np.zeros_like(pi)
        for v in frontier:
            sources = graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
            x = pi[sources]
            np.maximum.at(new, sources, (factor(x, s) * x.astype(np.float64)).astype(np.float32))
        pi = new
    return pi


def _sum(values: npt.NDArray[np.float64]) -> float:
    """In order, one after the other: `np.sum` adds in another order."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


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
