"""Checks of PyG convolutions: needs that a block cannot meet, and shapes that do not fit a dataset."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ....storage.errors import InputError, first_line
from ....storage.minibatch import Block
from ....storage.plural import counted
from ....storage.typed.graph_types import SINGLE
from ...neighbourhood.block import BlockNeighbourhood
from ..base import Model
from ..small_graph import SmallGraph, weights_tried
from .edges import check_edge_columns, forward_parameters, reads_edge_attr
from .normalised import is_normalised, unhonoured
from .weights import MEANS, SUMS, aggregates, reads_weights

TRIED = (
    (0, 0), (2, 0), (1, 0), (1, 0), (3, 1), (1, 1), (1, 1), (5, 1), (0, 2), (5, 2), (1, 3), (4, 3), (2, 4), (6, 4),
    (6, 6), (4, 4), (2, 6),
)  # fmt: skip
"""Edges of the graph that a model is tried on, as (source, destination): self loops, one of them twice, and parallel
edges; nothing leads to node 5, and node 7 has no edges."""
TRIED_NODES = 8
ASKED = ((5, 7, 2, 0, 3, 1, 4, 6), (3, 0, 7), (6, 1), (2,))
"""Destinations of the blocks: all nodes first."""


def refuse(conv: object) -> None:
    """Refuse a convolution that would need more than a block holds, or would ignore some of its options.

    Raises:
        InputError: the message names the change.
    """
    name = type(conv).__name__
    if not isinstance(conv, nn.Module):
        raise InputError(
            f"PyGModel got a {name} among its convolutions; expected PyG convolutions such as SAGEConv(64, 32)"
        )
    takes = forward_parameters(conv)
    if not {"x", "edge_index"} <= takes.keys():
        between = (
            "; activation and dropout go between layers by PyGModel(..., activation=..., dropout=...)"
            if _is_plain(conv)
            else ""
        )
        raise InputError(
            f"{name}.forward takes {list(takes)}; expected a PyG convolution with x and edge_index{between}"
        )
    _check_no_relations(conv, name)
    needed = [
        p.name
        for p in takes.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if more := [p for p in needed if p not in ("x", "edge_index", "edge_attr")]:
        raise InputError(
            f"{name}.forward needs {', '.join(more)} too; expected a PyG convolution that x, edge_index and "
            "edge_attr are enough for"
        )
    if getattr(conv, "flow", "source_to_target") != "source_to_target":
        raise InputError(
            f"{name} has flow='{conv.flow}', but a block's rows are its targets; leave flow out and turn the "
            "dataset's edges"
        )
    if getattr(conv, "cached", False):
        raise InputError(f"{name} has cached=True, which keeps the edges of one block for all; leave cached out")
    if is_normalised(conv) and (others := unhonoured(conv)):
        raise InputError(f"{name} has {', '.join(others)}, which is not honoured on blocks; leave it out")


def is_network(module: object) -> bool:
    """True for a whole model of `torch_geometric.nn.models` whose layers are known: GraphSAGE, GCN, GAT, PNA, ..."""
    basic = next((c for c in type(module).__mro__ if c.__name__ == "BasicGNN"), None)
    # pyrefly: ignore[missing-attribute]
    return basic is not None and type(module).forward is basic.forward


def check_on_blocks(model: Model, num_features: int, edge_width: int) -> None:
    """Refuse a model of PyG's that computes other rows for the nodes of a block than on the whole graph: one that
    normalises by degrees of the block, reaches further than one hop, or looks at all rows at once.

    A small graph is tried with random rows, with weights and without, as blocks that hold a part of it. It has self
    loops, parallel edges, and nodes without edges.

    Args:
        model: a `PyGModel` with its shapes, in evaluation mode.
        num_features: F.
        edge_width: D, columns of the edges' features; 0: they have none.

    Raises:
        InputError: names the convolution, or what comes between convolutions.
    """
    generator = torch.Generator().manual_seed(0)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))
    # SplineConv takes coordinates from 0 to 1.
    attr = torch.rand(len(TRIED), edge_width, generator=torch.Generator().manual_seed(1)).to(like)
    ends = np.array(TRIED).T
    graphs = [
        SmallGraph(SINGLE, ends, np.zeros(len(TRIED), np.int64), attr, w, TRIED_NODES)
        for w in (None, weights_tried(len(TRIED)))
    ]
    edges = torch.from_numpy(ends).to(like.device)
    width = num_features
    for i in range(model.num_layers):
        x = torch.randn(TRIED_NODES, width, generator=generator).to(like)
        for graph in graphs:
            values = {"edge_attr": attr}
            if graph.weight is not None:
                values["edge_weight"] = torch.from_numpy(graph.weight).to(like)
            try:
                # pyrefly: ignore[not-callable]
                whole = model.plain_layer(i, x, edges, values)
            except Exception:  # PyG takes no graph that is not bipartite here
                whole = None
            for asked in ASKED:
                names = np.concatenate([asked, np.setdiff1d(ends[0, np.isin(ends[1], asked)], asked)])
                try:
                    out = model.layer(i, graph.block(names, len(asked)), x[names])
                except InputError:
                    raise
                except Exception as e:
                    # pyrefly: ignore[bad-argument-type, bad-index]
                    said = f"layer {i}, {_short(model.convs[i])}, fails on a block, where some nodes have no in-edges"
                    raise InputError(f"{said} ({type(e).__name__}: {first_line(e)}); use another convolution") from e
                # The first block is the whole graph.
                whole = out[np.argsort(asked)] if whole is None else whole
                if not torch.allclose(out, whole[list(asked)], rtol=1e-3, atol=1e-4, equal_nan=True):
                    # pyrefly: ignore[bad-argument-type, bad-index]
                    raise InputError(f"layer {i}, {_short(model.convs[i])}, {_other_rows(model, i)}")
                width = out.shape[1]
            _check_on_sample(model, i, graph, x, values)


def _check_on_sample(model: Model, i: int, graph: SmallGraph, x: Tensor, values: dict[str, Tensor]) -> None:
    """Refuse a convolution whose edge weights give other rows on a sample than PyG's, over as many copies of each edge
    as the sampler's correction says, or over the sampled edges: see `weights_for`."""
    conv = model.get_submodule(f"convs.{i}")
    if not reads_weights(conv) or is_normalised(conv):
        return
    copies = np.arange(len(TRIED)) * 2 % 5
    at = np.repeat(np.arange(len(TRIED)), copies if aggregates(conv, *SUMS, *MEANS) else copies > 0)
    out, edges = model.layer(i, graph.block(np.arange(TRIED_NODES), TRIED_NODES, copies), x), graph.ends[:, at]
    try:
        # pyrefly: ignore[not-callable]
        whole = model.plain_layer(i, x, torch.from_numpy(edges).to(x.device), {k: v[at] for k, v in values.items()})
    except Exception:  # PyG takes no graph that is not bipartite here
        return
    if not torch.allclose(out, whole, rtol=1e-3, atol=1e-4, equal_nan=True):
        wrong = "on a sample its rows are not those of the edges that the sampled ones stand for"
        raise InputError(f"layer {i}, {_short(conv)}: {wrong}; multiply each message by edge_weight once, or take none")


def _other_rows(model: Model, i: int) -> str:
    """What is wrong with a layer whose rows are others on a block, and what to change."""
    wrong = "computes other rows on a block than on the whole graph"
    norm = model.norms[i] if i < len(getattr(model, "norms", ())) else None  # pyrefly: ignore
    if type(norm).__name__ == "LayerNorm" and getattr(norm, "mode", "") == "graph":
        return (
            f"is followed by a LayerNorm with mode='graph', which normalises over all rows and {wrong}; expected one "
            "over each row: norm_kwargs={'mode': 'node'}"
        )
    if norm is not None and type(norm).__name__ not in ("Identity", "BatchNorm", "BatchNorm1d", "LayerNorm"):
        wrong = f"or the {type(norm).__name__} after it, {wrong}"
    return (
        f"{wrong}; use one whose row for a node depends on the node's own row and in-edges alone: a convolution of one "
        "hop, without normalisation over all rows"
    )


def _given(rows: Tensor) -> Callable[[], Tensor] | None:
    """Returns the features of a neighbourhood's edges; None if they have no columns."""
    return (lambda: rows) if rows.shape[1] else None


def _is_plain(module: nn.Module) -> bool:
    plain = nn.Dropout, nn.modules.batchnorm._BatchNorm
    return isinstance(module, plain) or type(module).__module__ == "torch.nn.modules.activation"


def _check_no_relations(conv: nn.Module, name: str) -> None:
    several = int(str(getattr(conv, "num_relations", 1)))
    for kind in (c.__name__ for c in type(conv).__mro__):
        if kind in ("RGCNConv", "RGATConv") or (kind == "FiLMConv" and several > 1):
            raise InputError(
                f"{name} needs a type for each edge, which a PyG model does not get here; use a convolution without "
                "relations"
            )


def try_out(model: Model, convs: Iterable[nn.Module], num_features: int, edge_width: int) -> int:
    """Run each layer once on a block of three edges: lazy parameters get their shapes, and convolutions that cannot
    work are refused.

    Args:
        model: made of these convolutions; runs in evaluation mode without gradients, and gets its mode back.
        convs: L.
        num_features: F.
        edge_width: D, columns of the edges' features; 0: they have none.

    Returns:
        Columns of the last layer's result.

    Raises:
        InputError: a convolution takes other widths, or fails.
    """
    block = Block(2, np.arange(3), np.array([0, 2, 3]), np.array([1, 2, 0], np.int32))
    modes = [(module, module.training) for module in model.modules()]
    width, source = num_features, "the dataset"
    model.eval()
    try:
        with torch.no_grad():
            for i, conv in enumerate(convs):
                # pyrefly: ignore[not-callable]
                read = model.columns(i, width)
                _check_width(i, conv, read, source)
                check_edge_columns(i, conv, _short(conv), edge_width)
                known = next(
                    (p for p in model.parameters() if not is_lazy(p) and p.is_floating_point()), torch.zeros(0)
                )
                zeros = partial(torch.zeros, dtype=known.dtype, device=known.device)
                degree = torch.full((3,), 2.0, device=known.device)
                neighbourhood = BlockNeighbourhood(block, degree, edges=_given(zeros(3, edge_width)))
                try:
                    out = model.layer(i, neighbourhood, zeros(3, width))
                except InputError:
                    raise
                except Exception as e:
                    said = " ".join(str(e).split())[:200] or type(e).__name__
                    beside = f" and {counted(edge_width, 'feature')} of edges" if reads_edge_attr(conv) else ""
                    raise InputError(
                        f"layer {i}, {_short(conv)}, cannot take {width} columns from {source}{beside} ({said})"
                    ) from e
                if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != neighbourhood.num_dst:
                    seen = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
                    rows = neighbourhood.num_dst
                    raise InputError(
                        f"layer {i}, {_short(conv)}, returned {seen} for {rows} rows; expected [{rows}, D]"
                    )
                width, source = out.shape[1], f"layer {i}"
    finally:
        for module, mode in modes:
            module.training = mode
    return width


def _check_width(i: int, conv: nn.Module, width: int, source: str) -> None:
    taken = getattr(conv, "in_channels", None)
    widths = taken if isinstance(taken, tuple | list) else (taken,)
    for given in widths:
        if type(given) is int and given >= 0 and given != width:
            which = "the first convolution" if i == 0 else f"layer {i}"
            raise InputError(
                f"{which}, {_short(conv)}, takes {given} columns, but {source} gives {width}; make it "
                f"{type(conv).__name__}({width}, ...)"
            )


def _short(conv: nn.Module) -> str:
    """The convolution in one line."""
    text = " ".join(repr(conv).split())
    return text if len(text) <= 60 else type(conv).__name__
