"""Graphs as one block."""

from types import ModuleType

import numpy as np
import torch

from millrace.stages.neighbourhood.block import BlockNeighbourhood, types_of_edges
from millrace.stages.self_loops import degree_of
from millrace.storage.graph import Graph
from millrace.storage.minibatch import Block


def whole_graph(
    graph: Graph, dtype: torch.dtype = torch.float32, kernels: ModuleType | None = None
) -> BlockNeighbourhood:
    """The graph as one block: every node is a destination with all its in-edges."""
    nodes = np.arange(graph.num_nodes, dtype=graph.indices.dtype)
    block = Block(graph.num_nodes, nodes, graph.indptr, graph.indices, graph.edge_weight)
    rows = graph.edge_features
    edges = None if rows is None else lambda: torch.from_numpy(rows.gather(np.arange(graph.num_edges))).to(dtype)
    return BlockNeighbourhood(
        block,
        lambda: torch.from_numpy(degree_of(graph, loops=True)).to(dtype),
        kernels,
        edge_types=types_of_edges(graph, slice(None)),
        edges=edges,
    )
