"""Compiled label propagation over rows of a graph: it finds clusters, collects the edges between them, and improves
parts.

Rows come in stretches: `indptr` int64 [rows + 1] and `indices` int [e], the in-neighbours of the nodes from `first` on.
Self loops say nothing.
"""

import numpy as np

from ..runtime.jit import njit

_ODD = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def cluster(indptr, indices, first, weight, cluster_of, load, count, most, key):
    """Move each node to the cluster with most of its in-neighbours among those that stay within `most`; a node stays
    where no cluster has more, and other ties go by the clusters' pseudo-random ranks.

    Args:
        indptr: see above, with indices and first.
        indices: see above.
        first: see above.
        weight: int32 [V], of each node.
        cluster_of: int [V]; written.
        load: int64 [V], weight of each cluster; written.
        count: int32 [V], zeros, before and after.
        most: the largest weight of a cluster.
        key: uint64, which the ranks depend on.

    Returns:
        Nodes that moved.
    """
    moved = 0
    for row in range(len(indptr) - 1):
        begin, end, node = indptr[row], indptr[row + 1], first + row
        own, heavy = cluster_of[node], weight[node]
        for e in range(begin, end):
            if indices[e] != node:
                count[cluster_of[indices[e]]] += 1
        best, near, rank = own, count[own], np.uint64(0)
        for e in range(begin, end):
            c = cluster_of[indices[e]]
            n = count[c]
            count[c] = 0
            if c == own or n == 0 or n < near or load[c] + heavy > most:
                continue
            r = (np.uint64(c) ^ key) * _ODD
            if n > near or (best != own and r > rank):
                best, near, rank = c, n, r
        if best != own:
            load[own] -= heavy
            load[best] += heavy
            cluster_of[node] = best
            moved += 1
    return moved


@njit(nogil=True, cache=True)
def collect_edges(indptr, indices, first, cluster_of, clusters, keys, state):
    """Append the edges between clusters to `keys`. If it is full, every second edge is left out, from the beginning on,
    then every second one of these, and so on.

    Args:
        indptr: see above, with indices and first.
        indices: see above.
        first: see above.
        cluster_of: int [V], in [0, clusters).
        clusters: C.
        keys: int64 [an even number]; written: ``lower * C + higher`` of the two clusters.
        state: int64 [3], edges between clusters so far, how many of them a key stands for (a power of two), and keys so
            far; zero, one and zero before the first row; written.
    """
    seen, each, used = state
    for row in range(len(indptr) - 1):
        a = np.int64(cluster_of[first + row])
        for e in range(indptr[row], indptr[row + 1]):
            b = np.int64(cluster_of[indices[e]])
            if a == b:
                continue
            seen += 1
            if seen & (each - 1):
                continue
            if used == len(keys):
                for i in range(1, used, 2):
                    keys[i // 2] = keys[i]
                used, each = used // 2, 2 * each
                if seen & (each - 1):
                    continue
            keys[used] = min(a, b) * clusters + max(a, b)
            used += 1
    state[0], state[1], state[2] = seen, each, used


@njit(nogil=True, cache=True)
def add_loads(part_of, weight, load):
    """Add the weights of all nodes to the loads of their parts.

    Args:
        part_of: int [V].
        weight: int32 [V, K].
        load: int64 [P, K]; added to.
    """
    for node in range(len(part_of)):
        for k in range(weight.shape[1]):
            load[part_of[node], k] += weight[node, k]


@njit(nogil=True, cache=True)
def _fullness(load, part, weight, node, limit, sign):
    """The largest load of a part over its limit, of those that a node adds to, with its weight added so many times."""
    full = 0.0
    for k in range(len(limit)):
        if weight[node, k]:
            full = max(full, (load[part, k] + sign * weight[node, k]) / limit[k])
    return full


@njit(nogil=True, cache=True)
def refine(indptr, indices, first, weight, part_of, load, limit, count, loss):
    """Move each node to the part with most of its in-neighbours among those with room for it; ties go to the emptier
    part. A part that is too full gives nodes away, up to a loss, if need be to the part that is then emptiest.

    Args:
        indptr: see above, with indices and first.
        indices: see above.
        first: see above.
        weight: int32 [V, K], of each node.
        part_of: int32 [V]; written.
        load: int64 [P, K], weight of each part; written.
        limit: int64 [K], positive: a part with more is too full, and one that would get more has no room.
        count: int32 [P], zeros, before and after.
        loss: share of its in-neighbours that a node may lose if it leaves a part that is too full; 1: all.

    Returns:
        Nodes that moved.
    """
    moved = 0
    for row in range(len(indptr) - 1):
        begin, end, node = indptr[row], indptr[row + 1], first + row
        own = np.int64(part_of[node])
        for e in range(begin, end):
            if indices[e] != node:
                count[part_of[indices[e]]] += 1
        best, near = own, np.int64(count[own])
        full = _fullness(load, own, weight, node, limit, 0)
        over = full > 1
        if over:
            near = max(0, near - np.int64(loss * (end - begin)))
        for e in range(begin, end):
            p = np.int64(part_of[indices[e]])
            n = np.int64(count[p])
            count[p] = 0
            if p == own or n == 0 or n < near:
                continue
            there = _fullness(load, p, weight, node, limit, 1)
            if there <= 1 and (n > near or there < full):
                best, near, full = p, n, there
        if over and best == own and near == 0:
            for p in range(len(load)):
                there = _fullness(load, p, weight, node, limit, 1)
                if there < full:
                    best, full = np.int64(p), there
        if best != own:
            for k in range(len(limit)):
                load[own, k] -= weight[node, k]
                load[best, k] += weight[node, k]
            part_of[node] = best
            moved += 1
    return moved
