"""A small graph that a model is tried on before it is trained: a few nodes of each type, and edges of each relation."""

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.array_kinds import Float32Array, Float64Array, IdArray
from ...storage.errors import InputError
from ...storage.minibatch import Block
from ...storage.optional import taken, when_present
from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..neighbourhood.block import BlockNeighbourhood
from ..neighbourhood.relations import EdgeTypes
from ..self_loops import degree_rows
from .base import Model, Stack, layered
from .relational import TypedInput

SMALL = 4
"""Nodes of each type."""
Tried = tuple[int, int, TypedInput | None]
"""What a model is tried for: columns of rows and of edges' features, and types; see `rows_of_small_graph`."""


@dataclass(frozen=True, eq=False)
class SmallGraph:
    """A graph of some types, or of one."""

    types: GraphTypes
    ends: IdArray
    """[2, E], sources and destinations."""
    kinds: IdArray
    """[E], relations."""
    attr: Tensor
    """[E, D], features of edges; their type and device are those of rows."""
    weight: Float32Array | None = None
    """[E], weights of edges, or None."""
    nodes: int = SMALL
    """V of a graph of one type."""

    @classmethod
    def from_types(cls, given: TypedInput | None, edge_width: int, like: Tensor) -> "SmallGraph":
        """The graph for a model of graphs of types `given`, or of one type, whose edges have `edge_width` features."""
        rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
        types, relations, width = SINGLE, 1, edge_width
        if given is not None:
            types = replace(given.types, offsets=tuple(SMALL * t for t in range(len(given.widths) + 1)))
            relations, width = types.num_relations, max((0, *types.edge_widths))
        kinds = np.repeat(np.arange(relations), 2 * SMALL)
        first = 0 if types.is_single else SMALL * types.ends[kinds].T
        local = rng.integers(0, SMALL, (2, len(kinds)))
        # In each relation self loops of the first and last node, where its ends are of one type, and parallel edges.
        local[:, :: 2 * SMALL], local[:, 3 :: 2 * SMALL] = 0, SMALL - 1
        local[:, 2 :: 2 * SMALL] = local[:, 1 :: 2 * SMALL]
        ends = (local + first).astype(np.int64)
        return cls(types, ends, kinds, torch.rand(len(kinds), width, generator=generator).to(like))

    @property
    def num_nodes(self) -> int:
        """V."""
        return self.nodes if self.types.is_single else self.types.offsets[-1]

    @property
    def _degrees(self) -> Float64Array:
        """[V, 3], see `stages.self_loops`."""
        loops = np.flatnonzero(self.ends[0] == self.ends[1])
        degree = np.bincount(self.ends[1], self.weight, minlength=self.num_nodes)
        return degree_rows(degree, self.ends[1, loops], taken(self.weight, loops))

    def block(self, names: IdArray, num_dst: int, copies: Any = ()) -> BlockNeighbourhood:
        """All in-edges of the first `num_dst` of the nodes `names`, which hold the sources of these; or a sample, whose
        edges each stand for so many, `copies` [E]."""
        place = np.full(self.num_nodes, self.num_nodes)
        place[names] = np.arange(len(names))
        src, dst = place[self.ends]
        kept = np.lexsort((self.kinds, dst))
        kept = kept[dst[kept] < num_dst]
        weight = self.weight
        if len(copies):
            kept = kept[copies[kept] > 0]
            weight = (copies * (1 if weight is None else weight)).astype(np.float32)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(dst[kept], minlength=num_dst))])
        degree = torch.from_numpy(self._degrees[names]).to(self.attr)
        edge_types = None
        if not self.types.is_single:
            device = None if self.attr.device.type == "cpu" else self.attr.device
            edge_types = EdgeTypes(self.types, lambda: self.kinds[kept], device=device)
        found = BlockNeighbourhood(
            Block(num_dst, names, indptr, src[kept].astype(np.int32), taken(weight, kept)),
            degree,
            edges=(lambda: self.attr[kept]) if self.attr.shape[1] else None,
            edge_types=edge_types,
        )
        found.given_weight = lambda: when_present(torch.from_numpy, taken(self.weight, kept))
        return found


def weights_tried(count: int) -> Float32Array:
    """Weights of so many edges, few of them alike."""
    return ((1 + np.arange(count) % 5) / 2).astype(np.float32)


def rows_of_small_graph(
    model: nn.Module, columns: int, edge_width: int, given: TypedInput | None, weighted: bool = False, own: bool = False
) -> tuple[nn.Module, Tensor] | None:
    """A copy of a model in evaluation mode, and the rows that it gives the nodes of a small graph, [V, D]; None if it
    cannot be copied or fails there, of which training will tell more.

    Args:
        model: a user's module, or a model.
        columns: F.
        edge_width: D, columns of the edges' features; 0: they have none.
        given: types of the graph, and its features' widths; None: there is one of each.
        weighted: edges have weights other than 1.
        own: by the module's own `forward`, in place of its layers in turn.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            tried = copy.deepcopy(model).cpu().eval()
            like = next((p for p in tried.parameters() if p.is_floating_point()), torch.zeros(0))
            graph = SmallGraph.from_types(given, edge_width, like)
            if weighted:
                graph = replace(graph, weight=weights_tried(len(graph.kinds)))
            whole = graph.block(np.arange(graph.num_nodes), graph.num_nodes)
            width = columns if given is None else max(1, *given.widths)
            h = torch.linspace(-1, 1, graph.num_nodes * width).view(-1, width).to(like)
            blocks = [whole] * layered(tried).num_layers
            h = tried(blocks, h) if own else Model.forward(layered(tried), blocks, h)
        except Exception:
            return None
    return (tried, h) if isinstance(h, Tensor) and h.ndim == 2 else None


def reads_weights(model: nn.Module, given: Tried) -> bool:
    """True if a model's rows of a small graph differ with the weights of its edges, or it cannot be tried there."""
    tried = (rows_of_small_graph(model, *given, weighted=w) for w in (False, True))
    rows = [found[1] for found in tried if found is not None]
    return len(rows) < 2 or not torch.allclose(rows[0], rows[1], rtol=1e-5, atol=1e-7)


def check_forward(model: nn.Module, given: Tried) -> None:
    """Try the `forward` of a user's module, if it has one of its own; arguments as of `rows_of_small_graph`. One that
    fails there is not refused: training shows where.

    Raises:
        InputError: it gives other rows than the layers in turn, by which runs evaluate and predict.
    """
    if getattr(model.forward, "__func__", None) in (Model.forward, Stack.forward):
        return
    whole, layers = (rows_of_small_graph(model, *given, own=own) for own in (True, False))
    alike = partial(torch.allclose, rtol=1e-3, atol=1e-4, equal_nan=True)
    if whole is None or (layers and whole[1].shape == layers[1].shape and alike(whole[1], layers[1])):
        return
    raise InputError(
        f"{type(model).__name__}.forward gives other rows than its layers in turn, by which Millrace evaluates and "
        "predicts; do all of it in layer(i, neighbourhood, h), its end in the last layer, and leave forward out"
    )
