"""PyG's convolutions that normalise by degrees: on a block they get those of the whole graph."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...neighbourhood.base import destinations
from ...neighbourhood.block import ListNeighbourhood
from ...neighbourhood.loops import gcn_scale

HONOURED = {"GCNConv": ("in_channels", "out_channels", "add_self_loops", "normalize", "bias")}
"""For each convolution that gets other edges or weights here than PyG's own `forward` makes, the options that are
honoured; any other that is not at its default is refused."""


def is_normalised(conv: object) -> bool:
    """True for a `GCNConv` of PyG, or a subclass that computes its edges and their weights in the same way."""
    for kind in type(conv).__mro__:
        if kind.__name__ in HONOURED and kind.__module__.startswith("torch_geometric."):
            # pyrefly: ignore[missing-attribute]
            return type(conv).forward is kind.forward
    return False


def unhonoured(conv: object) -> list[str]:
    """Options of a convolution of `HONOURED` that it would not honour here, as ``improved=True``."""
    found = []
    kind = next(c for c in type(conv).__mro__ if c.__name__ in HONOURED)
    for name, option in inspect.signature(kind).parameters.items():
        value = getattr(conv, name, option.default)
        if name in HONOURED[kind.__name__] or option.default is option.empty or value == option.default:
            continue
        found.append(f"{name}={value!r}")
    return found


def reads_loops(conv: nn.Module) -> bool:
    """True for a convolution that adds self loops where the graph has none."""
    return is_normalised(conv) and bool(conv.normalize and conv.add_self_loops)


def normalised(conv: nn.Module, neighbourhood: ListNeighbourhood, h: Tensor) -> Tensor:
    """A `GCNConv` with the weights of its normalised adjacency over the whole graph, in place of the block's."""
    edges = torch.stack(neighbourhood.ends(h.device))
    coef = neighbourhood.coefficients(h)
    if conv.normalize:
        if conv.add_self_loops:
            loops, own = neighbourhood.loops, coef.new_ones(neighbourhood.num_dst)
            if loops is not None:
                others = edges[0] != edges[1]
                edges, coef, own = edges[:, others], coef[others], destinations(neighbourhood, loops.weight).to(own)
            itself = torch.arange(neighbourhood.num_dst, device=h.device)
            edges = torch.cat([edges, torch.stack([itself, itself])], dim=1)
            coef = torch.cat([coef, own])
            scale = (neighbourhood.degree.to(h) + 1).rsqrt() if loops is None else gcn_scale(loops).to(h)
        else:
            degree = neighbourhood.degree.to(h.device, h.dtype)
            scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
        coef = coef * scale[edges[0]] * scale[edges[1]]
    with _without_normalising(conv):
        return destinations(neighbourhood, conv(h, edges, coef))


@contextmanager
def _without_normalising(conv: nn.Module) -> Iterator[None]:
    before = vars(conv)["normalize"]
    vars(conv)["normalize"] = False
    try:
        yield
    finally:
        vars(conv)["normalize"] = before
