"""Packs clusters of nodes into parts of even weight, whole if possible."""

import heapq

import numpy as np

from ...storage.array_kinds import Int32Array, IntArray


def pack(cluster: IntArray, weight: IntArray, parts: int) -> Int32Array:
    """Pack whole clusters into parts, the heaviest first, each into the lightest part (longest processing time first;
    Graham, 1969).

    No part is heavier than the mean part and the heaviest cluster together, nor than the lightest part by more than
    that cluster. The result depends on which nodes are together, not on the clusters' numbers.

    Args:
        cluster: int [V], any numbers.
        weight: int [V], weight of each node, at least 0.
        parts: P.

    Returns:
        int32 [V], the part of each node.
    """
    _, first, member = np.unique(cluster, return_index=True, return_inverse=True)
    heavy = np.zeros(len(first), np.int64)
    np.add.at(heavy, member, weight)
    part_of = np.empty(len(first), np.int32)
    lightest = [(0, p) for p in range(parts)]
    for c in np.lexsort((first, -heavy)):
        load, p = lightest[0]
        part_of[c] = p
        heapq.heapreplace(lightest, (load + int(heavy[c]), p))
    return part_of[member]


def lay_out(coarse: IntArray, fine: IntArray, weight: IntArray, parts: int) -> Int32Array:
    """Lay clusters end to end, the heaviest first, and divide them into stretches of equal weight: few clusters have
    nodes in several parts.

    No part is heavier than the mean part and one node together. The result depends on which nodes are together, not on
    numbers.

    Args:
        coarse: int [V], clusters to keep together.
        fine: int [V], order within them: if one is divided, few of these are.
        weight: int [V], weight of each node, at least 0.
        parts: P.

    Returns:
        int32 [V], the part of each node.
    """
    _, first, member = np.unique(coarse, return_index=True, return_inverse=True)
    _, first_fine, member_fine = np.unique(fine, return_index=True, return_inverse=True)
    heavy = np.zeros(len(first), np.int64)
    np.add.at(heavy, member, weight)
    order = np.lexsort((first_fine[member_fine], first[member], -heavy[member]))
    weights = weight[order].astype(np.int64)
    before = np.cumsum(weights) - weights
    part_of = np.empty(len(order), np.int32)
    part_of[order] = np.minimum(before * parts // max(1, int(weights.sum())), parts - 1)
    return part_of
