"""Orders of nodes in which those that are used together, or often, have neighbouring numbers."""

import numpy as np
import numpy.typing as npt

from ..array_kinds import IntArray, Mask
from ..errors import InputError, nearest
from ..graph import Graph, edges_of_rows
from ..stored.graph import StoredGraph
from .book import PartitionBook, RangeBook

ORDERS = ("ids", "degree", "rcm")
"""By ascending number; by descending out-degree; reverse Cuthill-McKee."""
EDGES = 1 << 22
"""About so many edges are looked at together."""
ROWS = 1 << 20

Ids = npt.NDArray[np.int64]


def check_order(order: str) -> None:
    """Raise InputError unless `order` is one of `ORDERS`."""
    if order not in ORDERS:
        raise InputError(f"order is '{str(order)[:80]}'; expected {', '.join(ORDERS)}{nearest(order, ORDERS)}")


def node_order(graph: Graph | StoredGraph, order: str, book: PartitionBook | None = None) -> Ids:
    """An order of the nodes, part by part.

    ``degree``: nodes that many rows name come first, so that their features share pages. ``rcm``: nodes are found
    breadth first over in-edges within a part, those found from one row by ascending degree, beginning with the lowest
    degree; the whole is then reversed (Cuthill and McKee, ACM 1969; George 1971). Equal nodes are in the order of their
    numbers.

    Args:
        graph: V nodes; for ``rcm``, which reads rows in an order of its own, in memory or mapped.
        order: one of `ORDERS`.
        book: the parts; by default the whole graph is one.

    Returns:
        int64 [V], the old number of each new node.

    Raises:
        InputError: there is no such order.
    """
    check_order(order)
    book = RangeBook(np.array([0, graph.num_nodes])) if book is None else book
    owner = book.part(np.arange(graph.num_nodes))
    # NumPy sorts 16-bit integers by radix.
    owner = owner.astype(np.int16) if book.num_parts < 1 << 15 else owner
    if order == "ids":
        return np.argsort(owner, kind="stable")
    if order == "degree":
        by_degree = np.argsort(-_out_degrees(graph), kind="stable")
        return by_degree[np.argsort(owner[by_degree], kind="stable")]
    assert isinstance(graph, Graph)
    found, sizes = _cuthill_mckee(graph, owner), book.sizes()
    ends = np.cumsum(sizes)
    # Position i of the part [begin, end) becomes begin + end - 1 - i.
    return found[np.repeat(2 * ends - sizes - 1, sizes) - np.arange(graph.num_nodes)]


def _out_degrees(graph: Graph | StoredGraph) -> Ids:
    """Number of rows' entries that name each node."""
    counts, first = np.zeros(graph.num_nodes, np.int64), 0
    while first < graph.num_nodes:
        starts = graph.first_edge(first, min(first + ROWS, graph.num_nodes) + 1)
        stop = first + max(1, int(np.searchsorted(starts, starts[0] + EDGES, side="right")) - 1)
        stop = min(stop, graph.num_nodes)
        counts += np.bincount(graph.rows(first, stop).indices, minlength=graph.num_nodes)
        first = stop
    return counts


def _cuthill_mckee(graph: Graph, owner: IntArray) -> Ids:
    """Nodes part by part, as they are found breadth first."""
    total, degree = graph.num_nodes, np.diff(graph.indptr)
    by_degree = np.argsort(degree, kind="stable")
    rank = np.empty(total, np.int64)
    rank[by_degree] = np.arange(total)
    roots = by_degree[np.argsort(owner[by_degree], kind="stable")]
    found, seen, count, at = np.empty(total, np.int64), np.zeros(total, bool), 0, 0
    while count < total:
        at = _unseen(seen, roots, at)
        new = roots[at : at + 1]
        if not degree[new[0]]:  # the nodes of a part that have no edges come first, and are taken together
            few = roots[at : at + ROWS]
            new = few[: np.argmin(np.append((degree[few] == 0) & (owner[few] == owner[few[0]]), False))]
        begin = count
        seen[new], found[count : count + len(new)] = True, new
        count += len(new)
        while begin < count:
            nodes = found[begin : min(begin + ROWS, count)]
            nodes = nodes[: max(1, int(np.searchsorted(np.cumsum(degree[nodes]), EDGES)))]
            parents, edges = edges_of_rows(graph.indptr[nodes], degree[nodes])
            parent, sources = np.repeat(np.arange(len(nodes)), np.diff(parents)), graph.indices[edges]
            kept = ~seen[sources] & (owner[sources] == owner[nodes[0]])
            # By parent and then by degree; of those that several parents have, the first.
            ranks = np.sort(parent[kept] * np.int64(total) + rank[sources[kept]]) % total
            new = by_degree[ranks[np.sort(np.unique(ranks, return_index=True)[1])]]
            seen[new], found[count : count + len(new)] = True, new
            begin, count = begin + len(nodes), count + len(new)
    return found


def _unseen(seen: Mask, roots: Ids, at: int) -> int:
    """Position of the first root from `at` on that has not been seen; there is one."""
    step = 64
    while (window := seen[roots[at : at + step]]).all():
        at, step = at + len(window), min(2 * step, ROWS)
    return at + int(np.argmin(window))
