"""A model over a whole graph against its dense form in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millrace.storage.graph import Graph
from millrace.tests.contracts.whole_graph import whole_graph

BOUND = 1e-10


def check_dense(
    model: Any, graph: Graph, x: np.ndarray, dense: Callable[[Any, Graph, Tensor], Tensor], relative: bool = False
) -> Tensor:
    """Compare outputs, and gradients of rows and parameters. Returns the dense outputs.

    Args:
        model: a stack of layers.
        graph: of V nodes.
        x: [V, F].
        dense: the model's dense form, ``dense(model, graph, x)``.
        relative: bound differences of gradients by the largest gradient, where that exceeds 1.
    """
    rows = torch.from_numpy(x).requires_grad_()
    inputs = [rows, *model.parameters()]
    found = model([whole_graph(graph, torch.float64)] * model.num_layers, rows)
    want = dense(model, graph, rows)
    assert (found - want).abs().max() <= BOUND
    grad = torch.randn(want.shape, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad((out * grad).sum(), inputs) for out in (found, want))):
        assert (a - b).abs().max() <= BOUND * (max(1.0, float(b.abs().max())) if relative else 1.0)
    return want.detach()
