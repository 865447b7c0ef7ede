import gc
import weakref

import numpy as np
import pytest

from millrace.stages.kernels.runtime.once_per_graph import once_per_graph
from millrace.storage.graph import Graph, from_edges


def test_a_property_is_made_once_for_each_graph_and_goes_with_it() -> None:
    calls: list[int] = []

    @once_per_graph
    def edges(graph: Graph) -> np.ndarray:
        calls.append(graph.num_edges)
        return np.arange(graph.num_edges)

    one, two = from_edges([0, 1], [1, 0], 2), from_edges([0], [1], 2)
    assert edges(one) is edges(one) and len(edges(two)) == 1
    assert calls == [2, 1]
    left = weakref.ref(edges(one))
    del one
    gc.collect()
    assert left() is None


def test_one_that_fails_is_made_again() -> None:
    calls: list[Graph] = []

    @once_per_graph
    def fails_at_first(graph: Graph) -> int:
        calls.append(graph)
        if len(calls) < 2:
            raise ValueError("no memory")
        return 3

    graph = from_edges([0], [1], 2)
    with pytest.raises(ValueError, match="no memory"):
        fails_at_first(graph)
    assert fails_at_first(graph) == fails_at_first(graph) == 3 and len(calls) == 2
