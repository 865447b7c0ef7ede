"""Edges of pairs, case by case."""

import numpy as np
import pytest

from millrace.stages.links.own_edges import own_edges, ways
from millrace.storage.typed.graph_types import GraphTypes

NAMES = tuple(("a", name, "a") for name in ("knows", "likes", "liked_by", "cites"))
TYPES = GraphTypes(("a",), (0, 9), NAMES, pair_relations=((1, 2), (0, 0), (3,)))


@pytest.mark.parametrize(
    ("group", "straight", "turned"),
    [((3,), (3,), ()), ((1, 2), (1,), (2,)), ((0, 0), (0,), (0,)), ((0, 2, 0), (0, 2), (2, 0))],
)
def test_ways(group, straight, turned):
    assert ways(group) == (straight, turned)


def edges_of(pairs, relation, types=TYPES):
    destination, source, kind = own_edges(np.array(pairs).reshape(-1, 2), relation, types)
    kinds = [None] * len(source) if kind is None else kind.tolist()
    return sorted(zip(source.tolist(), kinds, destination.tolist()), key=str)


def test_of_one_relation_all_between_the_ends_both_ways():
    assert edges_of([[3, 5], [1, 1]], None, None) == sorted(
        [(3, None, 5), (5, None, 3), (1, None, 1), (1, None, 1)], key=str
    )


def test_of_several_each_has_those_of_its_relation():
    found = edges_of([[3, 5], [4, 6], [7, 8], [2, 0]], np.array([1, 0, 3, 1]))
    wanted = [(3, 1, 5), (5, 2, 3), (2, 1, 0), (0, 2, 2), (4, 0, 6), (6, 0, 4), (7, 3, 8)]
    assert found == sorted(wanted, key=str)
    assert edges_of([], np.empty(0, np.int64)) == []
