"""Orders of nodes beside plain loops."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.partition import node_order as module
from millrace.storage.partition.book import TableBook
from millrace.storage.partition.node_order import node_order
from millrace.tests.contracts.messages import graphs


def by_loop(graph: Graph, owner: np.ndarray) -> list[int]:
    """Reverse Cuthill-McKee, part by part."""
    degree, order = np.diff(graph.indptr).tolist(), []
    for part in sorted(set(owner.tolist())):
        seen, found = set(), []
        for root in sorted(np.flatnonzero(owner == part).tolist(), key=lambda v: (degree[v], v)):
            queue = deque([] if root in seen else [root])
            seen.add(root)
            while queue:
                found.append(v := queue.popleft())
                row = graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()
                new = {u for u in row if owner[u] == part and u not in seen}
                seen |= new
                queue.extend(sorted(new, key=lambda u: (degree[u], u)))
        order += found[::-1]
    return order


@settings(deadline=None, max_examples=25)
@given(graphs(), st.data())
def test_orders_are_those_of_plain_loops(graph, data):
    owner = np.array(data.draw(st.lists(st.integers(0, 2), min_size=graph.num_nodes, max_size=graph.num_nodes)), int)
    book = TableBook(owner.astype(np.int32), 3)
    named = np.bincount(graph.indices, minlength=graph.num_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EDGES", data.draw(st.integers(1, 5)))
        patch.setattr(module, "ROWS", data.draw(st.integers(1, 5)))
        assert node_order(graph, "rcm", book).tolist() == by_loop(graph, owner)
        got = node_order(graph, "degree", book).tolist()
        assert got == sorted(range(graph.num_nodes), key=lambda v: (owner[v], -named[v], v))
    assert node_order(graph, "ids", book).tolist() == np.argsort(owner, kind="stable").tolist()
    assert node_order(graph, "rcm").tolist() == by_loop(graph, 0 * owner)


def test_a_shuffled_grid_gets_a_narrow_band_again():
    side, rng = 30, np.random.default_rng(0)
    ids = rng.permutation(side * side).reshape(side, side)
    pairs = np.concatenate(
        [np.stack([ids[1:], ids[:-1]]).reshape(2, -1), np.stack([ids[:, 1:], ids[:, :-1]]).reshape(2, -1)], 1
    )
    graph = from_edges(*np.concatenate([pairs, pairs[::-1]], 1), side * side)
    new = np.argsort(node_order(graph, "rcm"))
    dst = np.repeat(np.arange(side * side), graph.in_degree)
    assert np.abs(new[graph.indices] - new[dst]).max() <= side


def test_no_such_order():
    with pytest.raises(InputError, match="order is 'rmc'; expected ids, degree, rcm; did you mean 'rcm'"):
        node_order(from_edges([0], [1], 2), "rmc")
