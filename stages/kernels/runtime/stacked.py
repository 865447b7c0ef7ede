"""In-edges of a block as lists by relation, compiled."""

from .jit import JIT, njit


@njit(**JIT)
def stack(
    indptr, indices, kinds, weight, place, listed, flagged, rank, begin, begin_flags, own, own_flag, ends, total,
    sources, coef, flags
):  # fmt: skip
    """Put each edge of some relations into the list of its destination and relation, and set a flag of its destination
    and relation for each edge of some.

    Args:
        indptr: int64 [n+1].
        indices: int32 [e].
        kinds: [e], relation of each edge.
        weight: float32 [e].
        place: int32 [num_src], the number by which a list calls a source.
        listed: bool [R], True for relations that have lists.
        flagged: bool [R], True for relations that have flags.
        rank: int64 [2, R], place of a relation among the lists, and among the flags, of a destination.
        begin: int64 [n], first list of each destination.
        begin_flags: int64 [n], first flag.
        own: bool [n], True for destinations with a list of their own, in front.
        own_flag: bool [n], True for destinations with a flag of their own, in front.
        ends: int64 [lists+1], zeros; becomes the lists' boundaries.
        total: float64 [lists], zeros; becomes the sum of their weights, 1 for one's own.
        sources: int32 [e+n], filled list by list.
        coef: float32 [e+n], their weights.
        flags: bool, zeros; becomes True where there is an edge of weight above 0, and in front.
    """
    n = len(begin)
    for v in range(n):
        if own[v]:
            ends[begin[v] + 1] += 1
            total[begin[v]] = 1
        if own_flag[v]:
            flags[begin_flags[v]] = True
        for e in range(indptr[v], indptr[v + 1]):
            r = kinds[e]
            if listed[r]:
                at = begin[v] + rank[0, r]
                ends[at + 1] += 1
                total[at] += weight[e]
            if flagged[r] and weight[e] > 0:
                flags[begin_flags[v] + rank[1, r]] = True
    for i in range(1, len(ends)):
        ends[i] += ends[i - 1]
    # `ends` moves along with what is filled, and back by one place at the end.
    for v in range(n):
        if own[v]:
            at = ends[begin[v]]
            sources[at], coef[at] = place[v], 1
            ends[begin[v]] = at + 1
        for e in range(indptr[v], indptr[v + 1]):
            r = kinds[e]
            if listed[r]:
                i = begin[v] + rank[0, r]
                at = ends[i]
                sources[at], coef[at] = place[indices[e]], weight[e]
                ends[i] = at + 1
    for i in range(len(ends) - 1, 0, -1):
        ends[i] = ends[i - 1]
    ends[0] = 0
