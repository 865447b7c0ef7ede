"""Weights of Millrace's convolutions as those of PyG and DGL, and back."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ...stages.models.base import Stack
from ...stages.models.gat import GATConv
from ...stages.models.gatv2 import GATv2Conv
from ...stages.models.gcn import GCNConv
from ...stages.models.gin import GINConv
from ...stages.models.sage import SAGEConv, SAGEPoolConv
from ...storage.errors import InputError

Library = Literal["pyg", "dgl"]
State = dict[str, Tensor]
SAME, TRANSPOSED, LEADING, SCALAR, PER_HEAD = "same", "transposed", "leading", "scalar", "per head"
"""Forms of a weight over there: as it is here, transposed, with a first axis of length 1, as a vector of length 1, or,
if heads are averaged, once for each head."""


def _renamed(*weights: str) -> dict[str, tuple[str, str]]:
    """The weights' names here and there, and their forms there, which are the same if they are left out."""
    parts = [weight.split(maxsplit=2) for weight in weights]
    return {ours: (theirs, form[0] if form else SAME) for ours, theirs, *form in parts}


_MLP = [f"mlp.{k}.{part} {{}}.{k}.{part}" for k in (0, 2) for part in ("weight", "bias")]
_SAGE = _renamed("own.weight lin_r.weight", "own.bias lin_l.bias", "neighbours.weight lin_l.weight")
_V2 = ("source.weight lin_l.weight", "source.bias lin_l.bias", "target.weight lin_r.weight", "target.bias lin_r.bias")
_PYG: dict[type, dict[str, tuple[str, str]]] = {
    SAGEConv: _SAGE,
    SAGEPoolConv: _renamed("pool.weight lin.weight", "pool.bias lin.bias") | _SAGE,
    GCNConv: _renamed("linear.weight lin.weight", "bias bias"),
    GATConv: _renamed("linear.weight lin.weight", "a_src att_src leading", "a_dst att_dst leading", "bias bias"),
    GATv2Conv: _renamed(*_V2, "edge.weight lin_edge.weight", "a att leading", "bias bias"),
    GINConv: _renamed("eps eps scalar", *(name.format("nn") for name in _MLP)),
}
_DGL_SAGE = _renamed("own.weight fc_self.weight", "own.bias fc_self.bias", "neighbours.weight fc_neigh.weight")
_DGL: dict[type, dict[str, tuple[str, str]]] = {
    SAGEConv: _DGL_SAGE,
    SAGEPoolConv: _renamed("pool.weight fc_pool.weight", "pool.bias fc_pool.bias") | _DGL_SAGE,
    GCNConv: _renamed("linear.weight weight transposed", "bias bias"),
    GATConv: _renamed("linear.weight fc.weight", "a_src attn_l leading", "a_dst attn_r leading", "bias bias per head"),
    GINConv: _renamed("eps eps scalar", *(name.format("apply_func") for name in _MLP)),
}
_NAMES: dict[Library, dict[type, dict[str, tuple[str, str]]]] = {"pyg": _PYG, "dgl": _DGL}


def conv_weights(model: nn.Module, library: Library) -> list[State]:
    """The weights of a model's convolutions as those of another library, to be loaded there by ``load_state_dict``.

    ==================  ==============================================  ================================================
    here                PyG                                             DGL
    ==================  ==============================================  ================================================
    GraphSAGE, mean     ``SAGEConv(a, b)``                              ``SAGEConv(a, b, "mean")``
    GraphSAGE, max      ``SAGEConv(a, b, aggr="max", project=True)``    ``SAGEConv(a, b, "pool")``
    GCN                 ``GCNConv(a, b)``                               ``GraphConv(a, b)``, self loops in the graph
    GAT                 ``GATConv(a, b // heads, heads)``               ``GATConv(a, b // heads, heads)``, likewise
    GAT, last layer     ``GATConv(a, b, heads, concat=False)``          ``GATConv(a, b, heads)``, then the mean of heads
    GATv2               ``GATv2Conv(a, b // heads, heads)``, likewise   none
    GIN                 ``GINConv(mlp, train_eps=True)``                ``GINConv(mlp, "sum", learn_eps=True)``
    ==================  ==============================================  ================================================

    ``mlp`` is ``Sequential(Linear(a, hidden), ReLU(), Linear(hidden, b))``. Norms, activations and dropout between the
    convolutions are not among these weights. A GCN keeps a self loop of the graph in place of its own, GAT and GATv2
    replace it, as PyG's do. Where edges have weights, PyG's ``SAGEConv`` and ``GINConv`` ignore them, and Millrace's do
    not. A ``GATv2`` of features of edges has ``edge_dim``.

    Args:
        model: one of Millrace's, such as ``mr.load(folder).model``.
        library: ``pyg`` or ``dgl``.

    Returns:
        A state for each of the L convolutions; the tensors are copies.

    Raises:
        InputError: the model is another one, or a convolution has no counterpart there.
    """
    return [_translated(conv, _names(conv, library)) for conv in _convs(model, library)]


def set_conv_weights(model: nn.Module, convs: Sequence[Any], library: Library) -> nn.Module:
    """Give a model the weights of another library's convolutions, as `conv_weights` names them.

    Args:
        model: one of Millrace's; its norms are left alone.
        convs: L modules of the other library, or their states.
        library: ``pyg`` or ``dgl``.

    Returns:
        The model.

    Raises:
        InputError: there are not as many, names or shapes do not fit, or a module has other options than the model;
            the model is as it was.
    """
    own = _convs(model, library)
    states = [c.state_dict() if isinstance(c, nn.Module) else dict(c) for c in convs]
    if len(states) != len(own):
        raise InputError(f"there are {len(states)} convolutions for a model of {len(own)} layers; give one for each")
    for i, (ours, theirs) in enumerate(zip(own, convs)):
        if isinstance(theirs, nn.Module) and library == "pyg":
            _check_options(ours, theirs, f"layer {i}")
    found = [_here(c, s, _names(c, library), f"layer {i}") for i, (c, s) in enumerate(zip(own, states))]
    for conv, state in zip(own, found):
        conv.load_state_dict(state)
    return model


def _convs(model: nn.Module, library: Library) -> list[nn.Module]:
    if library not in get_args(Library):
        raise InputError(f"library is {library!r}; expected one of {', '.join(get_args(Library))}")
    convs = list(model.convs) if isinstance(model, Stack) else []
    if not convs or any(type(c) not in _PYG for c in convs):
        raise InputError(
            f"the model is a {type(model).__name__} of other convolutions; expected one of Millrace's own: GraphSAGE, "
            "GCN, GAT, GATv2 or GIN"
        )
    if absent := [type(c).__name__ for c in convs if type(c) not in _NAMES[library]]:
        raise InputError(f"{absent[0]} has no counterpart in {library}; expected another library or model")
    return convs


def _check_options(ours: nn.Module, theirs: nn.Module, where: str) -> None:
    """Raise InputError if a convolution of PyG's has options by which it computes something else."""
    wanted: dict[str, object] = {"flow": "source_to_target"}
    if isinstance(ours, GCNConv):
        wanted |= {"improved": False, "add_self_loops": True, "normalize": True}
    elif isinstance(ours, GATConv | GATv2Conv):
        wanted |= {"heads": ours.heads, "concat": ours.concat, "negative_slope": ours.slope}
        wanted |= {"add_self_loops": True, "residual": False}
        if isinstance(ours, GATv2Conv) and ours.edge is not None:
            wanted["fill_value"] = "mean"
    elif isinstance(ours, SAGEConv | SAGEPoolConv):
        pools = isinstance(ours, SAGEPoolConv)
        wanted |= {"aggr": "max" if pools else "mean", "normalize": False, "root_weight": True, "project": pools}
    else:
        wanted["aggr"] = "add"
    aliases = {"sum": "add"}
    for name, value in wanted.items():
        found = getattr(theirs, name, value)
        if aliases.get(found, found) != value if isinstance(found, str) else found != value:
            raise InputError(
                f"{where}: {type(theirs).__name__} has {name}={found!r}, and {type(ours).__name__} computes what "
                f"{name}={value!r} does; expected the same"
            )


def _names(conv: nn.Module, library: Library) -> dict[str, tuple[str, str]]:
    if isinstance(conv, SAGEPoolConv) and conv.pool.out_features != conv.pool.in_features:
        raise InputError(
            f"a layer pools {conv.pool.in_features} columns to {conv.pool.out_features}, and convolutions of {library} "
            "to as many as come in; only a model whose hidden width is the number of features has a counterpart"
        )
    names = _NAMES[library][type(conv)]
    if isinstance(conv, GATv2Conv) and conv.edge is None:
        names = {name: there for name, there in names.items() if name != "edge.weight"}
    return names


def _translated(conv: nn.Module, names: Mapping[str, tuple[str, str]]) -> State:
    state: State = {}
    for name, value in conv.state_dict().items():
        other, form = names[name]
        value = value.detach().clone()
        if form == TRANSPOSED:
            value = value.T.contiguous()
        elif form in (LEADING, SCALAR):
            value = value[None]
        elif form == PER_HEAD and isinstance(conv, GATConv) and not conv.concat:
            value = value.repeat(conv.heads)
        state[other] = value
    return state


def _here(conv: nn.Module, state: State, names: Mapping[str, tuple[str, str]], where: str) -> State:
    wanted, found = conv.state_dict(), {}
    if absent := sorted({other for other, _ in names.values()} ^ state.keys()):
        raise InputError(
            f"{where}: the convolution has {', '.join(sorted(state)) or 'nothing'}; expected "
            f"{', '.join(sorted(other for other, _ in names.values()))}, so {absent[0]} differs"
        )
    for name, (other, form) in names.items():
        value = state[other].detach()
        if form == TRANSPOSED:
            value = value.T
        elif form in (LEADING, SCALAR):
            value = value[0] if value.ndim else value
        elif form == PER_HEAD and isinstance(conv, GATConv) and not conv.concat:
            value = value.view(conv.heads, -1).mean(0)
        if value.shape != wanted[name].shape:
            raise InputError(
                f"{where}: {other} gives {list(value.shape)}; expected {list(wanted[name].shape)} for {name}"
            )
        found[name] = value.to(wanted[name].dtype) if isinstance(value, torch.Tensor) else value
    return found
