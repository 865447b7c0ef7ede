"""Compiled assignment of nodes to parts in one pass, each by the parts of its earlier neighbours."""

from ..runtime.jit import njit


@njit(nogil=True, cache=True)
def assign(indptr, indices, first, part_of, sizes, count, least, gain, cost):
    """Assign the nodes first, first + 1, ... one after the other to the part i with the largest ``gain[s] n -
    cost[s]``, where part i has n of the node's in-neighbours and s nodes so far; ties go to the smallest part, then to
    the first. O(edges + nodes + P).

    Args:
        indptr: int64 [rows + 1].
        indices: int [e], in-neighbours.
        first: the first row's node.
        part_of: int32 [V], -1 for nodes to come; written.
        sizes: int64 [P], nodes of each part; written.
        count: int64 [P], zeros, before and after.
        least: int64 [2], the least size, and a part before which none has it; zeros before the first node; written.
        gain: float64 [C], positive, does not rise. A part of C nodes is full; P C is at least V.
        cost: float64 [C], does not fall.
    """
    parts, capacity = len(sizes), len(gain)
    for row in range(len(indptr) - 1):
        # Among parts without a neighbour the smallest is best, and sizes only grow, so that a scan finds it.
        while sizes[least[1]] != least[0]:
            least[1] += 1
            if least[1] == parts:
                least[0] += 1
                least[1] = 0
        for e in range(indptr[row], indptr[row + 1]):
            i = part_of[indices[e]]
            if i >= 0:
                count[i] += 1
        best = least[1]
        most = gain[sizes[best]] * count[best] - cost[sizes[best]]
        for e in range(indptr[row], indptr[row + 1]):
            i = part_of[indices[e]]
            if i < 0:
                continue
            s = sizes[i]
            if s < capacity and count[i] > 0:
                score = gain[s] * count[i] - cost[s]
                if score > most or (score == most and (s < sizes[best] or (s == sizes[best] and i < best))):
                    most, best = score, i
            count[i] = 0
        part_of[first + row] = best
        sizes[best] += 1
