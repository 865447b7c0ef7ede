"""Chooses the rows of other ranks that a rank caches: the hot ones, fixed before the run."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch

from ...storage.array_kinds import IdArray, IntArray
from ...storage.graph import Graph
from ...storage.partition.book import RangeBook
from ..comm.base import Group

HotBy = Literal["samples", "degree"]
AT_ONCE = 1 << 22
"""Ids that are sorted together."""


def choose(
    by: HotBy, count: int, graph: Graph, book: RangeBook, group: Group, previewed: Iterable[IntArray]
) -> IdArray:
    """Ids of the rows to cache: int64, ascending. All ranks of a column call this at the same time.

    Args:
        by: ``samples``: rows that this rank's own minibatches need most often. ``degree``: rows that the most
            in-neighbour lists hold, the same for all.
        count: rows to keep, at most.
        graph: the whole graph, or this rank's block of rows.
        book: maps rows to ranks of the group.
        group: the column.
        previewed: the nodes of each minibatch of this rank in an epoch to come, drawn when they are asked for.
    """
    if by == "samples":
        ids, times = counted(previewed)
    elif group.any(graph.num_nodes != book.num_nodes):
        # Ask all ranks: one block may have all rows, and the others none.
        ids, times = _listed(graph, book, group, count)
    else:
        ids, times = counted([graph.indices])
    others = book.part(ids) != group.rank
    ids, times = ids[others], times[others]
    return np.sort(ids[np.lexsort((ids, -times))[:count]])


def counted(parts: Iterable[IntArray]) -> tuple[IdArray, IdArray]:
    """Distinct ids of all parts together, ascending, and the number of occurrences of each."""
    known = np.empty(0, np.int64), np.empty(0, np.int64)
    waiting: list[IntArray] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= AT_ONCE:
            known, waiting = _merged(known, waiting), []
    return _merged(known, waiting)


def _merged(known: tuple[IdArray, IdArray], parts: list[IntArray]) -> tuple[IdArray, IdArray]:
    if not parts:
        return known
    ids, times = np.unique(np.concatenate(parts), return_counts=True)
    return added((known[0], ids.astype(np.int64)), (known[1], times))


def added(ids: tuple[IdArray, ...], times: tuple[IdArray, ...]) -> tuple[IdArray, IdArray]:
    """Distinct ids, ascending, and the sum of their counts."""
    found, place = np.unique(np.concatenate(ids), return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, place, np.concatenate(times))
    return found, total


def _listed(graph: Graph, book: RangeBook, group: Group, count: int) -> tuple[IdArray, IdArray]:
    """The `count` rows of each rank that the most lists of all ranks hold, and the number of those lists."""

    def published(ids: list[IdArray], times: list[IdArray]) -> tuple[IdArray, IdArray]:
        heard = [group.all_to_all([torch.from_numpy(p) for p in parts], "graph") for parts in (ids, times)]
        return added(*(tuple(t.numpy() for t in h) for h in heard))

    ids, times = counted([graph.indices])
    ends = np.searchsorted(ids, book.offsets[1:-1])
    ids, times = published(np.split(ids, ends), np.split(times, ends))
    best = np.lexsort((ids, -times))[:count]
    return published([ids[best]] * group.size, [times[best]] * group.size)
