"""PyTorch Geometric's convolutions on blocks.

A convolution computes what PyG defines on the edges that the block holds: PyG has no way to say that a sampled row
stands for its whole neighbourhood, except through edge weights, which are passed where the convolution takes them and
sums.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...storage.errors import InputError
from ..neighbourhood.base import Neighbourhood, destinations
from ..neighbourhood.block import BlockNeighbourhood, ListNeighbourhood
from ..neighbourhood.halo import HaloNeighbourhood
from ..neighbourhood.pieces import pieces
from .base import ACTIVATIONS, Stack
from .pyg_checks import forward_parameters, refuse, try_out

EDGE_BYTES = 256 << 20
"""Memory of the edges that a convolution gets at a time in evaluation."""
ROWS_PER_EDGE = 3
"""Rows that PyG keeps for an edge: the gathered row, the message, and one in between."""


def takes_weights(conv: nn.Module) -> bool:
    """True if the convolution sums its messages times edge weights."""
    return type(conv).__name__ == "GCNConv" or (
        "edge_weight" in forward_parameters(conv) and getattr(conv, "aggr", None) in ("add", "sum")
    )


class PyGModel(Stack):
    """A stack of PyG convolutions, with dropout on each one's input and an activation between them.

    `GCNConv` gets the weights of ``D^-1/2 (A + I) D^-1/2`` over the whole graph's degrees. Others see the source rows,
    the destination rows and the block's edges; those that sum and take `edge_weight` get the coefficients of
    `Neighbourhood.sum`.

    Trained by ``bulk``, ``grappa`` and ``sar`` on any number of ranks, under ``sar`` with the mode ``halo``; ``retexo``
    takes Millrace's own models only. What PyG keeps for each edge is bounded in evaluation, not in training.
    """

    reads_blocks = True

    def __init__(self, convs: Sequence[nn.Module], dropout: float = 0.0, activation: str = "relu") -> None:
        """
        Args:
            convs: L convolutions, nearest the input first.
            dropout: probability of dropping an element of a layer's input.
            activation: one of `base.ACTIVATIONS`, between layers.

        Raises:
            InputError: no convolution, one that cannot work on blocks (the message names the change), or an unknown
                activation.
        """
        convs = [convs] if isinstance(convs, nn.Module) and not isinstance(convs, nn.ModuleList) else list(convs)
        if not convs:
            raise InputError("PyGModel got no convolutions; give one for each layer")
        for conv in convs:
            refuse(conv)
        if activation not in ACTIVATIONS:
            raise InputError(f"PyGModel: activation is {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
        if not 0 <= dropout < 1:
            raise InputError(f"PyGModel: dropout is {dropout!r}; expected a number, at least 0 and below 1")
        super().__init__(convs, [0] * (len(convs) - 1), dropout, "none", activation)

    @property
    def spares_torch(self) -> bool:
        """See `Stack.spares_torch`."""
        return False

    def fit(self, num_features: int, seed: int) -> int:
        """Give lazy parameters their shapes, and check that features of this width pass through all layers.

        Args:
            num_features: F.
            seed: seed of lazy parameters; torch's generator is left as it was.

        Returns:
            Columns of the result.

        Raises:
            InputError: a width that does not fit, or a convolution that fails on a block.
        """
        before = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(seed)
            return try_out(self, self.convs, num_features)
        finally:
            torch.default_generator.set_state(before)

    def convolve(self, i: int, neighbourhood: Neighbourhood, h: Tensor, activation: str) -> Tensor:
        """Convolution i on a block, then the activation.

        Raises:
            InputError: the neighbourhood is not a block.
        """
        if isinstance(neighbourhood, HaloNeighbourhood):
            neighbourhood, h = neighbourhood.as_block(h)
        if not isinstance(neighbourhood, ListNeighbourhood):
            raise InputError(
                f"PyG convolutions need blocks, but got a {type(neighbourhood).__name__}; use one of Millrace's own "
                "models here"
            )
        return ACTIVATIONS[activation](self._bounded(self.convs[i], neighbourhood, h))

    def _bounded(self, conv: nn.Module, neighbourhood: ListNeighbourhood, h: Tensor) -> Tensor:
        """Apply the convolution; without gradients in bounded memory, since PyG keeps rows for each edge."""
        if not torch.is_grad_enabled() and isinstance(neighbourhood, BlockNeighbourhood) and h.device.type == "cpu":
            widest = max([h.shape[1], *(p.shape[0] for p in conv.parameters() if not is_lazy(p) and p.ndim)])
            most = max(1, EDGE_BYTES // (ROWS_PER_EDGE * widest * h.itemsize))
            if neighbourhood.num_edges > most:
                return torch.cat([self._on_block(conv, piece, h[rows]) for piece, rows in pieces(neighbourhood, most)])
        return self._on_block(conv, neighbourhood, h)

    def _on_block(self, conv: nn.Module, neighbourhood: ListNeighbourhood, h: Tensor) -> Tensor:
        src, dst = neighbourhood.ends(h.device)
        if type(conv).__name__ == "GCNConv":
            own = torch.arange(neighbourhood.num_dst, device=h.device)
            scale = (neighbourhood.degree.to(h.dtype) + 1).rsqrt()
            coef = torch.cat([neighbourhood.coefficients(h.dtype) * scale[src] * scale[dst], scale[own] ** 2])
            edges = torch.stack([torch.cat([src, own]), torch.cat([dst, own])])
            return destinations(neighbourhood, conv(h, edges, coef))
        takes, extra = forward_parameters(conv), {}
        if "size" in takes:
            extra["size"] = (neighbourhood.num_src, neighbourhood.num_dst)
        if takes_weights(conv):
            extra["edge_weight"] = neighbourhood.coefficients(h.dtype)
        elif "edge_weight" in takes and neighbourhood.weight is not None:
            extra["edge_weight"] = neighbourhood.weight.to(h.device, h.dtype)
        return conv((h, destinations(neighbourhood, h)), torch.stack([src, dst]), **extra)
