"""The head of a model of labelled edges: outputs of an edge from the rows of its two ends."""

import torch
from torch import Tensor, nn

from ...storage.errors import InputError


class EdgeHead(nn.Module):
    """Two dense layers on the rows of an edge's source and destination, and on the edge's own features, side by
    side."""

    def __init__(self, width: int, num_features: int, num_outputs: int) -> None:
        """
        Args:
            width: D, columns of a node's row.
            num_features: K, features of an edge.
            num_outputs: C.
        """
        super().__init__()
        self.width = width
        self.first, self.second = nn.Linear(2 * width + num_features, width), nn.Linear(width, num_outputs)

    def forward(self, source: Tensor, destination: Tensor, *features: Tensor) -> Tensor:
        """[b, D], [b, D] and, if edges have features, [b, K] -> [b, C]."""
        if source.shape[-1] != self.width:
            raise InputError(
                f"the model gives nodes rows of {source.shape[-1]} columns, but link.width is {self.width}; make them "
                "equal, or give the model a decoder of its own"
            )
        rows = torch.cat([source, destination, *(f.to(source.dtype) for f in features)], -1)
        return self.second(torch.relu(self.first(rows)))
