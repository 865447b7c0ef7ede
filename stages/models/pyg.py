"""PyTorch Geometric's convolutions on blocks.

A convolution computes what PyG defines on the edges that the block holds: PyG has no way to say that a sampled row stands for
its whole neighbourhood, except through edge weights, which are passed where the convolution takes them and sums.
"""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ..neighbourhood.base import Neighbourhood, destinations
from ..neighbourhood.block import ListNeighbourhood
from .base import ACTIVATIONS, Stack


def _parameters(conv: nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(conv.forward).parameters)


def _refuse(conv: nn.Module) -> None:
    """Raise InputError for a convolution that would need more than the block holds."""
    name = type(conv).__name__
    if not {"x", "edge_index"} <= _parameters(conv).keys():
        raise InputError(f"{name}.forward takes {list(_parameters(conv))}; expected a PyG convolution with x and edge_index")
    if name == "GCNConv":
        if getattr(conv, "normalize", False):
            raise InputError(
                "GCNConv would normalise by the degrees of the sampled block; make it GCNConv(..., normalize=False): "
                "it is given the weights of the whole graph, self loops included"
            )
    elif getattr(conv, "add_self_loops", False):
        raise InputError(f"{name} would add self loops to a bipartite block; make it {name}(..., add_self_loops=False)")
    elif _parameters(conv)["x"].annotation is Tensor:
        raise InputError(f"{name} takes one matrix x; expected a convolution for bipartite graphs (x, x_dst), or GCNConv")


class PyGModel(Stack):
    """A stack of PyG convolutions, with dropout on each one's input and an activation between them.

    `GCNConv` gets the weights of ``D^-1/2 (A + I) D^-1/2`` over the whole graph's degrees. Others see the source rows, the
    destination rows and the block's edges; those that sum and take `edge_weight` get the coefficients of `Neighbourhood.sum`.
    """

    def __init__(self, convs: Sequence[nn.Module], dropout: float = 0.0, activation: str = "relu") -> None:
        """
        Args:
            convs: L convolutions, nearest the input first.
            dropout: probability of dropping an element of a layer's input.
            activation: one of `base.ACTIVATIONS`, between layers.

        Raises:
            InputError: no convolution, or one that cannot work on blocks; the message names the change.
        """
        if not convs:
            raise InputError("PyGModel got no convolutions; give one for each layer")
        for conv in convs:
            _refuse(conv)
        super().__init__(convs, [0] * (len(convs) - 1), dropout, "none", activation)

    @property
    def spares_torch(self) -> bool:
        """See `Stack.spares_torch`."""
        return False

    def convolve(self, i: int, hood: Neighbourhood, h: Tensor, activation: str) -> Tensor:
        """Convolution i on a block, then the activation.

        Raises:
            InputError: the neighbourhood is not a block.
        """
        if not isinstance(hood, ListNeighbourhood):
            raise InputError(f"PyG convolutions need blocks, but got a {type(hood).__name__}; use one of Millrace's own models here")
        return ACTIVATIONS[activation](self._on_block(self.convs[i], hood, h))

    def _on_block(self, conv: nn.Module, hood: ListNeighbourhood, h: Tensor) -> Tensor:
        src, dst = hood.ends(h.device)
        if type(conv).__name__ == "GCNConv":
            own = torch.arange(hood.num_dst, device=h.device)
            scale = (hood.degree.to(h.dtype) + 1).rsqrt()
            coef = torch.cat([hood.coefficients(h.dtype) * scale[src] * scale[dst], scale[own] ** 2])
            edges = torch.stack([torch.cat([src, own]), torch.cat([dst, own])])
            return destinations(hood, conv(h, edges, coef))
        takes, extra = _parameters(conv), {}
        if "size" in takes:
            extra["size"] = (hood.num_src, hood.num_dst)
        if "edge_weight" in takes and getattr(conv, "aggr", None) in ("add", "sum"):
            extra["edge_weight"] = hood.coefficients(h.dtype)
        elif "edge_weight" in takes and hood.weight is not None:
            extra["edge_weight"] = hood.weight.to(h.device, h.dtype)
        return conv((h, destinations(hood, h)), torch.stack([src, dst]), **extra)
