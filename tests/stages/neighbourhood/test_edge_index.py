"""A graph as an edge list: the aggregates of a block, on any graph."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from millrace.stages.neighbourhood.edge_index import EdgeIndexNeighbourhood
from millrace.storage.graph import Graph
from millrace.tests.contracts.whole_graph import whole_graph
from millrace.tests.stages.evaluate.test_layerwise import cases, hub_graph


def both(graph: Graph) -> tuple[EdgeIndexNeighbourhood, object]:
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    edges = torch.from_numpy(np.stack([graph.indices, dst]).astype(np.int64))
    weight = None if graph.edge_weight is None else torch.from_numpy(graph.edge_weight)
    plain = EdgeIndexNeighbourhood(edges, graph.num_nodes, weight, torch.float64)
    return plain, whole_graph(graph, torch.float64)


def message(h: Tensor, to: Tensor, weight: Tensor | None, slope: Tensor) -> Tensor:
    return (h - to) * slope * (1 if weight is None else 1 + weight[:, None])


def calls(n: int) -> dict:
    g = torch.Generator().manual_seed(0)

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    h, z, factor, own, a, b = made(n, 4), made(n, 2, 4), made(n), made(n), made(2, 4), made(2, 4)
    return {
        "degree": lambda m: m.degree,
        "sum": lambda m: m.sum(h),
        "sum with factors": lambda m: m.sum(h, factor, own),
        "sum of matrices": lambda m: m.sum(z),
        "mean": lambda m: m.mean(h),
        "mean beside": lambda m: m.mean_beside(h),
        "max": lambda m: m.max(h),
        "attend": lambda m: m.attend(z, a, made(n, 2) * 0 + own[:, None], 0.3),
        "attend both": lambda m: m.attend_both(z, a, b),
        "attend shared": lambda m: m.attend_shared(h, a, b),
        **{f"apply {r}": lambda m, r=r: m.apply(message, h, [a[0]], r) for r in ("sum", "mean", "max")},
    }


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_any_graph(case: tuple[Graph, np.ndarray]) -> None:
    graph, _ = case
    plain, block = both(graph)
    for name, call in calls(graph.num_nodes).items():
        torch.testing.assert_close(call(plain), call(block), rtol=1e-10, atol=1e-10, msg=lambda m, name=name: name + m)


@pytest.mark.parametrize("weighted", [False, True])
def test_hubs_nodes_without_edges_and_edges_that_are_there_twice(weighted: bool) -> None:
    plain, block = both(hub_graph(weighted))
    for call in calls(40).values():
        torch.testing.assert_close(call(plain), call(block), rtol=1e-10, atol=1e-10)
    assert (plain.num_edges, plain.num_dst, plain.num_src) == (block.num_edges, 40, 40)
