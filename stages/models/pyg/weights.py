"""Edge weights of PyG's convolutions on samples, by what they do with messages."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ....storage.optional import moved
from ...neighbourhood.checked import ListEdges
from .edges import forward_parameters
from .normalised import is_normalised

SUMS = ("SumAggregation", "add", "sum")
MEANS = ("MeanAggregation", "mean")


def reads_weights(conv: nn.Module) -> bool:
    """True if the convolution takes edge weights."""
    return "edge_weight" in forward_parameters(conv)


def aggregates(conv: nn.Module, *names: str) -> bool:
    """True if the convolution's aggregation is one of these modules of PyG, or has such a name."""
    module = getattr(conv, "aggr_module", None)
    return (str(getattr(conv, "aggr", "")) if module is None else type(module).__name__) in names


def needs_own_weights(module: nn.Module) -> bool:
    """True if a convolution of PyG's takes edge weights and does not sum: it gets them without the correction."""
    return any(reads_weights(m) and not is_normalised(m) and not aggregates(m, *SUMS) for m in module.modules())


def weights_for(
    conv: nn.Module, edges: ListEdges, own_weight: Callable[[], Tensor | None], like: Tensor
) -> Tensor | None:
    """The `edge_weight` that a convolution gets, [e]; None: it takes none, or all are 1.

    Args:
        conv: sums get the coefficients of `Neighbourhood.sum`, means the edges' weights times what makes the sample's
            mean one over the sampler's corrections, and others the edges' weights.
        edges: of a block, or of one relation.
        own_weight: returns the weights of these edges, see `ListNeighbourhood.own_weight`.
        like: rows.
    """
    if not reads_weights(conv):
        return None
    if aggregates(conv, *SUMS):
        return edges.coefficients(like)
    own, weight = moved(own_weight(), like), moved(edges.weight, like)
    if weight is None or not aggregates(conv, *MEANS):
        return own
    # Of an edge of weight 0 nobody knows the correction, or needs it.
    share = weight if own is None else torch.where(own > 0, weight / own, 0.0)
    _, to = edges.ends(like.device)
    sums = like.new_zeros(2, edges.num_dst).index_add(1, to, torch.stack([(share > 0).to(like), share]))
    share = share * (sums[0] / sums[1].clamp(min=torch.finfo(like.dtype).tiny))[to]
    return share if own is None else own * share
