"""Nodes as callers name them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from millrace.stages.nodes import node_ids
from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.storage.typed.graph_types import GraphTypes

MASK = np.array([False, True, False, True])


def dataset():
    graph = from_edges([0, 1], [1, 2], 4)
    split = Split(np.array([0]), np.array([1]), np.array([2, 3]))
    return Dataset("d", graph, ArrayFeatures(np.ones((4, 2))), np.zeros(4, np.int64), split, 2)


@pytest.mark.parametrize(
    ("nodes", "ids"),
    [
        (None, [0, 1, 2, 3]),
        (2, [2]),
        (np.uint8(3), [3]),
        ([], []),
        ([3, 1, 3], [3, 1, 3]),
        ((2, 0), [2, 0]),
        ({3, 1}, [1, 3]),
        (range(2), [0, 1]),
        (np.array([2, 1], np.int32), [2, 1]),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.from_numpy(MASK), [1, 3]),
        (MASK, [1, 3]),
        ("test", [2, 3]),
    ],
)
def test_ids_in_any_form(nodes, ids):
    seen = node_ids(nodes, 4, dataset())
    assert (seen.dtype, seen.tolist()) == (np.int64, ids)


@pytest.mark.parametrize(
    ("nodes", "phrase"),
    [
        ([0, 4], r"nodes lie in \[0, 4\]; expected \[0, 4\)"),
        ([-1], r"nodes lie in \[-1, -1\]"),
        ([10**20], r"nodes lie in \[1(0{20}), 1(0{20})\]; expected \[0, 4\)"),
        ([0.5], r"nodes are float64\[1\]; expected ids"),
        ([[1, 2]], r"nodes are int64\[1, 2\]; expected ids"),
        ([[1], [2, 3]], "nodes are a list that is no array"),
        (MASK[:3], r"nodes are a mask \[3\]; expected \[4\]"),
        ("tets", "nodes are 'tets'.*did you mean 'test'"),
        (["a", "b", "c", "d"], "nodes are 'a', 'b', 'c', ...; expected ids"),
        ({"a": 1}, "nodes are object"),
    ],
)
def test_anything_else_is_a_sentence(nodes, phrase):
    with pytest.raises(InputError, match=phrase):
        node_ids(nodes, 4, dataset())


def test_a_graph_alone_has_no_splits():
    with pytest.raises(InputError, match="nodes are 'test'"):
        node_ids("test", 4)


def test_a_name_of_several_types_is_refused():
    graph = replace(from_edges([0, 1], [1, 2], 4), types=GraphTypes(("a", "b"), (0, 2, 4), (("a", "r", "b"),)))
    named = replace(dataset(), graph=graph, node_names=("ada", "bob", "cyd", "ada"))
    assert node_ids(["cyd", "bob"], 4, named).tolist() == [2, 1]
    assert node_ids(["ada"], 2, named).tolist() == [0]
    with pytest.raises(
        InputError, match="nodes of several types are called 'ada'; give the name of a node type, or in Python ids"
    ):
        node_ids(["bob", "ada"], 4, named)


def test_nodes_by_name():
    named = replace(dataset(), node_names=("ada", "bob", "cyd", "test"))
    assert node_ids(["cyd", "ada"], 4, named).tolist() == [2, 0]
    assert node_ids("bob", 4, named).tolist() == [1]
    assert node_ids("test", 4, named).tolist() == [2, 3]
    assert node_ids([3], 4, named).tolist() == [3]
    with pytest.raises(InputError, match="'eve'"):
        node_ids(["ada", "eve"], 4, named)
