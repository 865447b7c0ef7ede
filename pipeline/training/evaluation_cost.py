"""Cost of a validation beside that of an epoch, from counts of edges and rows."""

from collections.abc import Sequence

import numpy as np
from torch import nn

from ...stages.evaluate.chunks import layer_counts, needed_rows
from ...stages.models.base import Stack
from ...stages.neighbourhood.base import EDGE_COST, EdgeCounts
from ...storage.graph import Graph

SHARE = 0.2
"""Share of an epoch beyond which a validation is worth a note."""
LEAST = 1 << 35
"""Multiply-adds of a validation below which it is not: about a second of one core."""


def _layers(model: nn.Module, num_layers: int) -> list[tuple[int, int]]:
    """(columns that are aggregated, elements of weights) of each layer; a module of unknown layers has equal ones."""
    modules = list(model.convs) if isinstance(model, Stack) else [model] * num_layers
    share = 1 if isinstance(model, Stack) else num_layers
    found = []
    for module in modules:
        weights = [p for p in module.parameters() if p.ndim > 1]
        largest = max(weights, key=lambda p: p.numel(), default=None)
        found.append((1 if largest is None else min(largest.shape), sum(p.numel() for p in weights) // share))
    return found


def multiply_adds(model: nn.Module, counts: Sequence[EdgeCounts], *, training: bool) -> float:
    """Multiply-adds of a pass through all layers, an aggregated number counting as `EDGE_COST`.

    Training multiplies twice more for gradients and aggregates once more, but for the rows of features, which have
    none.
    """
    total = 0.0
    for i, (n, (width, weights)) in enumerate(zip(counts, _layers(model, len(counts)))):
        passes = (3, 2) if training and i else (2, 1) if training else (1, 1)
        total += passes[0] * n.num_dst * weights + passes[1] * EDGE_COST * n.num_edges * width
    return total


def validation_note(
    model: nn.Module, minibatch: Sequence[EdgeCounts], minibatches: int, graph: Graph, val: np.ndarray, every: int
) -> str | None:
    """A sentence on the cost of a validation, if it takes more than `SHARE` of an epoch and `LEAST`.

    Args:
        model: the trained model.
        minibatch: layers of one minibatch.
        minibatches: of an epoch, over all ranks.
        graph: the whole graph.
        val: nodes of the split.
        every: epochs between two validations; 0: there is one, in the end.
    """
    epoch = minibatches * multiply_adds(model, minibatch, training=True)
    if not every or not len(val) or not epoch:
        return None
    # No closure of the split has more rows than the graph.
    whole = layer_counts(graph, [np.ones(graph.num_nodes, np.bool_)] * (len(minibatch) + 1))
    worth = max(SHARE * epoch, LEAST)
    if multiply_adds(model, whole, training=False) <= worth:
        return None
    layers = layer_counts(graph, needed_rows(graph, np.unique(val), len(minibatch) + 1))
    if (cost := multiply_adds(model, layers, training=False)) <= worth:
        return None
    edges, often = sum(n.num_edges for n in layers), "each epoch" if every == 1 else f"every {every} epochs"
    return (
        f"a validation aggregates over {edges:,} edges, about {100 * cost / epoch:.0f} % of the work of an epoch, "
        f"after {often}; "
        "set train.evaluate_every to validate less often"
    )
