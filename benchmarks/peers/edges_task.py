"""The training task on labels of edges, as peers and Millrace share it: labels and features of all edges, a head of two
dense layers on the rows of both ends and the edge's features, and the parameters that all begin with."""

import numpy as np
import torch
from torch import Tensor, nn
from train_task import EDGE_CLASSES, EDGE_FEATURES, FANOUT, FEATURES, HIDDEN, Task


def labelled(task: Task) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 [N * PAIRS], ascending positions of the edges to train on; and of all edges, labels int64 [E] and features
    float32 [E, K]."""
    folder = task.folder / "training"
    return np.sort(task.edges()), np.load(folder / "edge_labels.npy"), np.load(folder / "edge_features.npy")


class Head(nn.Sequential):
    """Outputs of an edge from the rows of its ends and its own features."""

    def __init__(self) -> None:
        width = 2 * HIDDEN + EDGE_FEATURES
        super().__init__(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EDGE_CLASSES))

    def of(self, rows: Tensor, source: Tensor, destination: Tensor, features: Tensor) -> Tensor:
        """[b, C], of edges whose ends are at two positions [b] among the rows."""
        return self(torch.cat([rows[source], rows[destination], features], 1))


def parameters() -> list[Tensor]:
    """Parameters that all engines begin with: of each layer the weights of the row itself, those of the neighbours, and
    the bias; then weights and biases of the head."""
    widths = [FEATURES] + [HIDDEN] * len(FANOUT)
    shapes: list[tuple[int, ...]] = []
    for a, b in zip(widths, widths[1:]):
        shapes += [(b, a), (b, a), (b,)]
    shapes += [(HIDDEN, 2 * HIDDEN + EDGE_FEATURES), (HIDDEN,), (EDGE_CLASSES, HIDDEN), (EDGE_CLASSES,)]
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.uniform(-1, 1, s).astype(np.float32) / s[-1] ** 0.5) for s in shapes]


def set_parameters(given: list[Tensor]) -> None:
    """Give an engine's parameters, in the order of `parameters`, those values."""
    with torch.no_grad():
        for own, value in zip(given, parameters(), strict=True):
            own.copy_(value)
