"""Features of edges in PyG's convolutions: which of them read any, and how many columns."""

import inspect

from torch import nn

from ....storage.errors import InputError
from ....storage.plural import counted

NEED_EDGE_FEATURES = ("GINEConv", "NNConv", "GMMConv", "SplineConv")
"""Convolutions that read features of edges always."""
OF_DIM = ("CGConv", "GMMConv", "SplineConv")
"""Convolutions whose option `dim` is the number of columns."""


def forward_parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    """Parameters of the module's `forward`."""
    return dict(inspect.signature(module.forward).parameters)


def reads_edge_attr(conv: nn.Module) -> bool:
    """True if the convolution is made for features of edges: it needs them, an option such as `edge_dim` says so, or an
    attribute `reads_edges` of its own."""
    edge_attr = forward_parameters(conv).get("edge_attr")
    if edge_attr is None:
        return False
    said = getattr(conv, "reads_edges", None)
    if said is not None:
        return said is True
    return edge_attr.default is edge_attr.empty or _is(conv, *NEED_EDGE_FEATURES) or _declared(conv) is not None


def check_edge_columns(i: int, conv: nn.Module, described: str, width: int) -> None:
    """Refuse a convolution that is made for another number of edge features, or that does not say whether it reads any.

    Args:
        i: its layer.
        conv: the convolution.
        described: the convolution in one line.
        width: D, of the dataset; 0: it has none.

    Raises:
        InputError: the message names the change.
    """
    name = type(conv).__name__
    if not reads_edge_attr(conv):
        # PyG keeps no edge_dim that equals out_channels.
        if width and _is(conv, "GENConv") and conv.out_channels == width and not hasattr(conv, "reads_edges"):
            raise InputError(
                f"layer {i}, {described}, reads features of edges or none, which it does not say, since edge_dim and "
                f"out_channels would both be {width}; set reads_edges = True or False on it"
            )
        return
    declared = _declared(conv)
    if declared is not None and declared[0] not in (-1, width):
        option = declared[1]
        change = f"make it {name}(..., {option}={width})" if option else f"give it an nn that takes {width} columns"
        raise InputError(
            f"layer {i}, {described}, reads {counted(declared[0], 'feature')} of an edge, but edges of the dataset "
            f"have {width}; {change}"
        )


def _is(conv: nn.Module, *names: str) -> bool:
    """True if the convolution is of one of these classes, or derives from it."""
    return any(c.__name__ in names for c in type(conv).__mro__)


def _declared(conv: nn.Module) -> tuple[int, str] | None:
    """Columns that the convolution is made for, and the option that says so, if one does; -1: as many as there are.
    None: it does not say."""
    for option in ("edge_dim", "in_edge_channels", *(["dim"] if _is(conv, *OF_DIM) else [])):
        width = getattr(conv, option, None)
        if type(width) is int and width:
            return width, option
    product = getattr(conv, "lin" if _is(conv, "GINEConv") else "lin_edge", None)
    if isinstance(product, nn.Module):
        return _columns(product), "edge_dim"
    if _is(conv, "NNConv"):
        # pyrefly: ignore[missing-attribute]
        columns = (_columns(m) for m in conv.nn.modules())
        first = next((c for c in columns if c), None)
        return None if first is None else (first, "")
    return None


def _columns(product: nn.Module) -> int:
    """Columns that a product takes; 0 if it is none."""
    found = getattr(product, "in_features", getattr(product, "in_channels", 0))
    return found if isinstance(found, int) else 0
