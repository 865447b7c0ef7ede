"""Compiled joining of edge shards into in-neighbour lists, in two passes of a counting sort."""

from ..runtime.jit import njit


@njit(nogil=True, cache=True)
def count_edges(rows, counts, indices, place, first, degree):
    """Count the edges of a shard whose source is in the joined graph.

    Args:
        rows: int32 [R], the shard's rows, ascending.
        counts: int32 [R], edges of each.
        indices: int32 [e], a position among the shard's sources, row by row.
        place: int [S], number of each source in the joined graph; -1: absent.
        first: number of the shard's row 0 in the joined graph.
        degree: int64 [V], in-edges of each joined node; added to.
    """
    e = 0
    for i in range(len(rows)):
        here = 0
        for j in range(e, e + counts[i]):
            here += place[indices[j]] >= 0
        e += counts[i]
        degree[first + rows[i]] += here


@njit(nogil=True, cache=True)
def join_edges(rows, counts, indices, place, first, weight, cursor, out, out_weight, loops):
    """Append the edges of a shard to their rows' lists.

    Args:
        rows: as before, with counts, indices, place and first.
        counts: see above.
        indices: see above.
        place: see above.
        first: see above.
        weight: float32 [e], or empty.
        cursor: int64 [V], next free position of each list; advanced.
        out: int [E], lists of sources; written.
        out_weight: float32 [E], or empty; written.
        loops: int64 [V], edges from a node to itself; added to.
    """
    e = 0
    for i in range(len(rows)):
        row = first + rows[i]
        at = cursor[row]
        for j in range(e, e + counts[i]):
            source = place[indices[j]]
            if source >= 0:
                out[at] = source
                if len(out_weight):
                    out_weight[at] = weight[j]
                loops[row] += source == row
                at += 1
        e += counts[i]
        cursor[row] = at
