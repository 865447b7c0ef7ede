"""PyTorch Geometric's modules over dictionaries of node types and relations, on blocks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from ....storage.errors import InputError, first_line
from ....storage.optional import present_items, taken
from ....storage.typed.graph_types import GraphTypes
from ...neighbourhood.base import Neighbourhood
from ...neighbourhood.block import ListNeighbourhood
from ...neighbourhood.gradients import ScatterParts
from ...nn.dropout import dropout
from ..base import ACTIVATIONS, Model
from ..relational import TypedInput, features_of
from ..small_graph import SMALL, SmallGraph, weights_tried
from .edges import forward_parameters, reads_edge_attr
from .model import check_activation, evaluating, in_block, listed
from .weights import weights_for

OF_TYPES = ("HeteroConv", "HGTConv", "HANConv")
"""Convolutions of PyG that take dictionaries."""


def takes_types(module: object) -> bool:
    """True for a module that takes dictionaries: one of `OF_TYPES`, what ``to_hetero`` made, or one whose `forward`
    takes `x_dict` and `edge_index_dict`."""
    if not isinstance(module, nn.Module):
        return False
    if any(c.__name__ in OF_TYPES for c in type(module).__mro__):
        return True
    if isinstance(module, fx.GraphModule):
        return any(isinstance(m, nn.ModuleDict) for m in module.modules())
    return {"x_dict", "edge_index_dict"} <= forward_parameters(module).keys()


class HeteroPyGModel(Model):
    """A stack of PyG modules over node types and relations, one for each layer, with dropout on each one's input and an
    activation between them.

    A layer gets the rows of each node type as ``x_dict``, and the edges of a minibatch by relation as
    ``edge_index_dict``, and returns rows of node types. As in PyG, the next layer sees only the types that this layer
    returns. Nodes of a type without features begin with one column of ones. On all edges a layer computes what PyG
    computes on the whole graph, which is tried before the first step. On a sample, a layer takes the sampled edges for
    all edges, as with PyG's own loaders. Convolutions within a `HeteroConv` also get edge features if they are made for
    them, and edge weights if they take them, corrected as in `PyGModel`.

    Trained by ``bulk`` and ``sar`` on any number of ranks.
    """

    reads_blocks = True
    keeps_edges = True

    def __init__(self, layers: Sequence[nn.Module] | nn.Module, dropout: float = 0.0, activation: str = "relu") -> None:
        """
        Args:
            layers: L modules of one hop each, nearest the input first: `HeteroConv`, `HGTConv`, what ``to_hetero``
                makes of a module of one convolution, or modules of your own with
                ``forward(x_dict, edge_index_dict)``.
            dropout: probability of dropping an element of a layer's input.
            activation: one of `base.ACTIVATIONS`, between layers.

        Raises:
            InputError: no layer, one that takes no dictionaries, or an unknown option.
        """
        super().__init__()
        layers = listed(layers)
        if not layers:
            raise InputError("HeteroPyGModel got no layers; give one for each hop")
        for layer in layers:
            if not takes_types(layer):
                raise InputError(
                    f"HeteroPyGModel got a {type(layer).__name__} among its layers; expected modules such as "
                    "HeteroConv, HGTConv or to_hetero(...), whose forward takes x_dict and edge_index_dict"
                )
        check_activation("HeteroPyGModel", dropout, activation)
        self.num_layers, self.layers = len(layers), nn.ModuleList(layers)
        self.dropout, self.activation = dropout, activation
        self.reads_edges = any(reads_edge_attr(conv) for layer in layers for conv in _convs(layer).values())
        self.widths: list[tuple[int, ...]] = []
        """Columns of each node type before each layer and after the last, 0 where there are no rows; known once it has
        been tried."""

    def fit(self, given: TypedInput, seed: int) -> int:
        """Give lazy parameters their shapes, and check that rows of these types pass through all layers.

        Args:
            given: types of the graph, and its features' widths.
            seed: seed of lazy parameters; torch's generator is left as it was.

        Returns:
            Columns of the result.

        Raises:
            InputError: a layer fails on such rows, or computes other rows on a block than on the whole graph.
        """
        with torch.random.fork_rng(devices=[]), evaluating(self):
            torch.default_generator.manual_seed(seed)
            _try_out(self, given)
        return self.widths[-1][0]

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `Model.layer`. Rows of a node type have as many columns as the widest; those beyond its own are zero.

        Raises:
            InputError: the neighbourhood is not a block, or `fit` was not called.
        """
        if not self.widths:
            raise InputError("HeteroPyGModel does not know the types of the graph yet; train it by run, or load a run")
        h = dropout(h, self.dropout, self.training, neighbourhood.names)
        block, h = in_block(neighbourhood, h)
        nodes, widths, last = block.node_types(), self.widths[i + 1], i == self.num_layers - 1
        found = self.outputs(i, block, h)
        width, parts = widths[0] if last else max(widths), []
        for rows, own in zip(nodes, widths):
            if own and not (last and rows is not nodes[0]):
                parts.append(F.pad(found[rows.name][: len(rows.targets)], (0, width - own)).to(h.dtype))
            else:
                parts.append(h.new_zeros(len(rows.targets), width))
        out = ScatterParts.apply([rows.targets for rows in nodes], *parts)
        return out if last else ACTIVATIONS[self.activation](out)

    def outputs(self, i: int, block: ListNeighbourhood, h: Tensor) -> dict[str, Tensor]:
        """Results of module i for a block, whose destinations come first: [n, D] of each node type that it has rows
        of."""
        x = {}
        for t, (rows, width) in enumerate(zip(block.node_types(), self.widths[i])):
            if width:
                x[rows.name] = features_of(h, t, rows.sources, width)
            elif not i:
                x[rows.name] = h.new_ones(len(rows.sources), 1)
        edges, extra = _edges(self.layers[i], block, h)
        layer: Any = self.layers[i]
        return present_items(layer(x, edges, **extra))


def _convs(layer: nn.Module) -> dict[Any, nn.Module]:
    """Convolutions of a `HeteroConv` by relation; of another module none."""
    hetero: Any = layer
    return dict(hetero.convs.items()) if any(c.__name__ == "HeteroConv" for c in type(layer).__mro__) else {}


def _edges(layer: nn.Module, block: ListNeighbourhood, h: Tensor) -> tuple[dict[Any, Tensor], dict[str, Any]]:
    """Edges of a block by relation, [2, e] each, from positions among the sources of their type to positions among the
    destinations; and further arguments of the layer."""
    edges, weights, attributes, convs = {}, {}, {}, _convs(layer)
    for relation in block.relations():
        edges[relation.type] = torch.stack(relation.compact.ends(h.device))
        conv = convs.get(relation.type)
        if conv is None:
            continue
        if reads_edge_attr(conv):
            attributes[relation.type] = relation.edge_features
        own = relation.positions
        weights[relation.type] = weights_for(conv, relation, lambda at=own: taken(block.own_weight(), at), h)
    given = {"edge_attr_dict": attributes, "edge_weight_dict": present_items(weights)}
    return edges, {name: values for name, values in given.items() if values}


def _try_out(model: HeteroPyGModel, given: TypedInput) -> None:
    """Run each layer on a small graph of the same types, as a whole and on a block, and note its widths."""
    model.widths = [given.widths]
    generator = torch.Generator().manual_seed(0)
    like = next((p for p in model.parameters() if not is_lazy(p) and p.is_floating_point()), torch.zeros(0))
    graph = SmallGraph.from_types(given, 0, like)
    types, names = given.types, np.arange(graph.num_nodes)
    first = names % SMALL < SMALL // 2
    # Half the nodes of each type are its destinations.
    order, count = np.concatenate([names[first], names[~first]]), int(first.sum())
    graphs = graph, replace(graph, weight=weights_tried(len(graph.kinds)))
    blocks = [(tried.block(names, len(names)), tried.block(order, count)) for tried in graphs]
    for i, layer in enumerate(model.layers):
        said = f"layer {i}, a {type(layer).__name__},"
        _check_relations(said, layer, types)
        widths = model.widths[i]
        sizes = [(name, width if i else width or 1) for name, width in zip(types.node_types, widths)]
        h = torch.zeros(len(names), max(1, *widths)).to(like)
        for t, width in enumerate(widths):
            h[SMALL * t : SMALL * (t + 1), :width] = torch.randn(SMALL, width, generator=generator).to(like)
        try:
            found = model.outputs(i, blocks[0][0], h)
        except InputError:
            raise
        except Exception as e:
            lost = [n for n, width in sizes if i and not width]
            if lost:
                read = [r for r in types.relations if {r[0], r[2]} & {*lost} and _reads_relation(layer, r)]
                unfed = "; ".join(map(",".join, read))
                raise InputError(
                    f"{said} reads {' and '.join(lost)}, which {'have' if lost[1:] else 'has'} no rows after layer "
                    f"{i - 1}, as no relation of that layer leads there; add one that does, such as the reverse of a "
                    f"relation (T.ToUndirected), or leave what reads it out of layer {i}: {unfed}"
                ) from e
            raise InputError(
                f"{said} fails on rows of {', '.join(f'{n} ({w} columns)' for n, w in sizes if w)} "
                f"({type(e).__name__}: {first_line(e)}); correct the layer"
            ) from e
        _check_rows(said, found, types.node_types, i == model.num_layers - 1)
        model.widths.append(tuple(found[n].shape[1] if n in found else 0 for n in types.node_types))
        try:
            pairs = [(model.layer(i, half, h[half.block.src]), model.layer(i, all_, h)[first]) for all_, half in blocks]
        except Exception as e:
            raise InputError(f"{said} fails on a block ({type(e).__name__}: {first_line(e)}); correct the layer") from e
        if not all(torch.allclose(out, whole, rtol=1e-3, atol=1e-4) for out, whole in pairs):
            raise InputError(
                f"{said} computes other rows on a block than on the whole graph; use one whose row for a node depends "
                "on the node's own row and in-edges alone, one layer for each hop"
            )


def _reads_relation(layer: nn.Module, relation: tuple[str, str, str]) -> bool:
    """True unless a layer says that it has no convolution of a relation."""
    convs = _convs(layer)
    return not convs or relation in convs


def _check_relations(said: str, layer: nn.Module, types: GraphTypes) -> None:
    """Refuse convolutions of relations that are not there, or that read features of edges that have none."""
    for relation, conv in _convs(layer).items():
        name = type(conv).__name__
        if relation not in types.relations:
            raise InputError(
                f"{said} has a {name} for the relation {','.join(relation)}, which the graph does not have; "
                f"expected one of {'; '.join(map(','.join, types.relations))}"
            )
        if reads_edge_attr(conv) and not (types.edge_widths and types.edge_widths[types.relations.index(relation)]):
            raise InputError(f"{said} has a {name} that reads edge features; give edges of {','.join(relation)} some")


def _check_rows(said: str, found: Any, node_types: Sequence[str], last: bool) -> None:
    """Refuse a layer's result unless it has a matrix for node types, and in the end for the one that is predicted."""
    for name, rows in found.items():
        if name not in node_types or rows.shape[:-1] != (SMALL,):
            raise InputError(f"{said} returned {list(rows.shape)} for '{name}'; expected [n, D] for node types")
    if last and node_types[0] not in found:
        raise InputError(f"{said} returns no rows of the node type '{node_types[0]}', which is predicted; return them")
