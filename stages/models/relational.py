"""Models over relations: their configuration, and the projection of each node type's features; and a model that reads
neither relations nor neighbours."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ...storage.typed.graph_types import GraphTypes
from ..memory.lazy_rows import LazyRows, LazyTypedRows, head
from ..neighbourhood.base import Neighbourhood
from ..neighbourhood.gradients import ScatterParts
from ..neighbourhood.halo import HaloNeighbourhood
from ..neighbourhood.stacked import OWN
from ..nn.dense import linear
from .base import ACTIVATIONS, Model, ModelConfig, Stack, reads_edges


class TypedInput(NamedTuple):
    """Properties of a graph with types that a model is built for."""

    types: GraphTypes
    widths: tuple[int, ...]
    """Feature columns of each node type, [T]; 0: it has none."""

    def record(self) -> dict[str, Any]:
        """Plain values that `of_record` takes."""
        return {**self.types.record(), "widths": list(self.widths)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "TypedInput":
        """The input of a `record`. Raises InputError if it is not one."""
        types = GraphTypes.of_record(record)
        widths = record.get("widths")
        if not isinstance(widths, list | tuple) or len(widths) != len(types.node_types):
            raise InputError("widths are not a number for each node type")
        return cls(types, tuple(int(w) for w in widths))


class Rows(NamedTuple):
    """Rows of the nodes of some types."""

    x: Tensor
    """[n, F], in the order of the block."""
    matrix: Tensor | None = None
    """[D, F], which they are multiplied by; None: they are not."""
    types: tuple[bool, ...] = ()
    """True for each of the node types, [T]; empty: all."""


class Projection(nn.Module):
    """``W_t x + b_t`` for a node of type t, of whose row the first ``widths[t]`` columns are features. Nodes of a type
    without features share the vector b_t."""

    def __init__(self, widths: Sequence[int], width_out: int) -> None:
        super().__init__()
        self.widths, self.width_out = tuple(widths), width_out
        self.by_type: Any = nn.ModuleList(_projection(width, width_out) for width in widths)

    def forward(self, neighbourhood: Any, h: Tensor) -> Tensor:
        """[num_src, F] -> [num_src, width_out]."""
        nodes = neighbourhood.node_types()
        parts = [
            self._rows(t, h, rows.sources) if width else own.bias.expand(len(rows.sources), -1)
            for t, (rows, width, own) in enumerate(zip(nodes, self.widths, self.by_type))
        ]
        return ScatterParts.apply([rows.sources for rows in nodes], *parts)

    def apart(self, neighbourhood: Any, h: Tensor) -> tuple[list[Rows], list[Tensor]]:
        """x and W_t of each node type with features, and the b_t of all."""
        count, found = len(self.widths), []
        for t, (rows, width) in enumerate(zip(neighbourhood.node_types(), self.widths)):
            if width:
                only = tuple(i == t for i in range(count))
                found.append(Rows(features_of(h, t, rows.sources, width), self.by_type[t].weight, only))
        if not found:
            found.append(Rows(torch.empty(0, 1, dtype=h.dtype, device=h.device), None, (False,) * count))
        return found, [own.bias for own in self.by_type]

    def _rows(self, t: int, h: Tensor, at: Tensor) -> Tensor:
        own = self.by_type[t]
        return linear(features_of(h, t, at, self.widths[t]), own.weight, own.bias).to(h.dtype)


def features_of(h: Tensor, t: int, at: Tensor, width: int) -> Tensor:
    """[m, width] features of the rows `at` of h, all of node type t; of lazy rows they are lazy too."""
    if isinstance(h, LazyTypedRows):
        return h.of_type(t, at)
    return (h.gathered() if isinstance(h, LazyRows) else h)[at, :width]


def _projection(width: int, width_out: int) -> nn.Module:
    if width:
        return nn.Linear(width, width_out)
    alone = nn.Module()
    alone.bias = nn.Parameter(torch.randn(width_out))
    return alone


class OwnByType(nn.Module):
    """``W_t h_v + b_t`` of each destination v of type t."""

    def __init__(self, types: GraphTypes, width_in: int, width_out: int) -> None:
        super().__init__()
        self.by_type: Any = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types.node_types)

    def forward(self, neighbourhood: Any, h: Tensor) -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        targets = [rows.targets for rows in neighbourhood.node_types()]
        parts = [linear(h[at], own.weight, own.bias) for at, own in zip(targets, self.by_type)]
        return ScatterParts.apply(targets, *parts)


class RelationalConv(nn.Module):
    """A sum over relations, with the activation at the end."""

    @abstractmethod
    def messages(self, neighbourhood: Any, h: Tensor, activation: str) -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out], with the activation."""

    def forward(self, neighbourhood: Any, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        if isinstance(neighbourhood, HaloNeighbourhood):
            neighbourhood, h = neighbourhood.as_block(h)
        return self.messages(neighbourhood, h, activation)


class MeansConv(RelationalConv):
    """``W_t h_v + b_t + sum over relations r of W_r mean_r(h_u)`` for v of type t."""

    @abstractmethod
    def matrices(self, types: GraphTypes) -> tuple[Sequence[nn.Linear], Sequence[Tensor]]:
        """W_t and b_t of each node type; W_r of each relation, [width_out, width_in]."""

    def messages(self, neighbourhood: Any, h: Tensor, activation: str) -> Tensor:
        return self.sums(neighbourhood, [Rows(h)], activation)

    def sums(
        self, neighbourhood: Any, inputs: Sequence[Rows], activation: str, vectors: Sequence[Tensor] = ()
    ) -> Tensor:
        """`messages` of rows ``h_u = M x_u + b_t`` for u of type t.

        Args:
            neighbourhood: the edges.
            inputs: x and M, of disjoint sets of node types; M x is zero for other types.
            activation: one of `dense.FUSED`.
            vectors: b_t of each node type, [D]; by default zeros.
        """
        own, matrices = self.matrices(neighbourhood.types)
        sources, nodes, parts = neighbourhood.types.ends[:, 0], neighbourhood.node_types(), []
        flagged = [tuple(i == 0 for _ in vectors) for i in range(len(inputs))]
        means = [neighbourhood.means_by_type(given.x, given.types, f) for given, f in zip(inputs, flagged)]
        for t, (mine, rows) in enumerate(zip(own, nodes)):

            def matrix(r: int, mine: nn.Linear = mine) -> Tensor:
                return mine.weight if r == OWN else matrices[r]

            out, first = mine.bias.expand(len(rows.targets), -1), means[0][t]
            fused = activation if not vectors and len(inputs) == 1 else "none"
            for i, (given, found) in enumerate(zip(inputs, means)):
                if found[t].of:
                    # (W M) mean(x) = W mean(M x), with fewer rows to multiply than there are sources.
                    weight = [matrix(r) if given.matrix is None else matrix(r) @ given.matrix for r in found[t].of]
                    product = linear(found[t].rows, torch.cat(weight, 1), None if i else mine.bias, fused)
                    out = out + product if i else product
            if first.flagged:
                # A mean of equal rows is that row, if there is an edge: its product is one vector.
                shared = [matrix(r) @ vectors[t if r == OWN else sources[r]] for r in first.flagged]
                out = torch.addmm(out, first.present, torch.stack(shared))
            out = out if fused == activation else ACTIVATIONS[activation](out)
            parts.append(out.to(mine.bias.dtype))
        return ScatterParts.apply([rows.targets for rows in nodes], *parts)


class Projected(nn.Module):
    """A convolution whose input is projected by node type."""

    def __init__(self, projection: Projection, conv: "RelationalConv") -> None:
        super().__init__()
        self.projection, self.conv, self.reads_edges = projection, conv, reads_edges(conv)

    def forward(self, neighbourhood: Any, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, F] -> [num_dst, width_out]."""
        if isinstance(self.conv, MeansConv) and not isinstance(neighbourhood, HaloNeighbourhood):
            inputs, vectors = self.projection.apart(neighbourhood, h)
            return self.conv.sums(neighbourhood, inputs, activation, vectors)
        return self.conv(neighbourhood, self.projection(neighbourhood, h), activation)


@dataclass(frozen=True)
class RelationalConfig(ModelConfig):
    """Options of the models over relations; they begin with a projection of each node type's features to `hidden`
    columns."""

    reads_relations: ClassVar[bool] = True

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        """Not for graphs with one type of nodes and edges. Raises InputError."""
        raise InputError(
            f"the model {self.name} reads relations, but the graph has one type of nodes and edges; use sage, or a "
            "graph with types (see from_relations)"
        )

    @abstractmethod
    def relational_conv(self, i: int, types: GraphTypes, width_in: int, width_out: int) -> RelationalConv:
        """Convolution of layer i."""

    def build_typed(self, given: TypedInput, num_outputs: int) -> Model:
        """Build the model for a graph with types, [., F] -> [., num_outputs]."""
        hidden = [self.hidden] * (self.layers - 1)
        widths = [self.hidden, *hidden, num_outputs]
        convs: list[Any] = [
            self.relational_conv(i, given.types, a, b) for i, (a, b) in enumerate(zip(widths, widths[1:]))
        ]
        convs[0] = Projected(Projection(given.widths, self.hidden), convs[0])
        return RelationalStack(convs, hidden, self.dropout, self.norm, self.activation)


class RelationalStack(Stack):
    """A stack of convolutions over relations."""

    reads_blocks = True


class OwnRows(nn.Module):
    """The first D columns of ``h_v``: rows of a graph with types may be wider than a type's features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, F] -> [num_dst, D]."""
        own = head(h, neighbourhood.num_dst)
        return own if own.shape[1] == self.width else own[:, : self.width]


@dataclass(frozen=True)
class Identity(ModelConfig):
    """A node's row is what the model reads of it, with dropout: with learnt features and the decoder `distmult` or
    `complex` it is the knowledge graph embedding of that name. One layer, which reads no neighbours: take
    ``fanout = 0``. For graphs with and without types."""

    name: ClassVar[str] = "identity"
    reads_relations: ClassVar[bool] = True
    layers: int = 1
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers != 1:
            raise InputError(
                f"identity: layers is {self.layers}, but the model reads no neighbours; give one fanout, such as 0"
            )

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        if width_in != width_out:
            raise InputError(
                f"the model identity gives the {width_in} columns that it reads, but {width_out} are wanted; set "
                "link.width or learned.width so that they agree, with learned.beside = false if the dataset has "
                "features of its own"
            )
        return OwnRows(width_out)

    def build_typed(self, given: TypedInput, num_outputs: int) -> Model:
        """Build the model for a graph with types, [., F] -> [., num_outputs]. Raises what `conv` raises."""
        convs = [self.conv(0, width, num_outputs) for width in given.widths]
        return Stack(convs[:1], [], self.dropout, self.norm, self.activation)
