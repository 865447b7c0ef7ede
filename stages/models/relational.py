"""Models over relations: their configuration, and the projection of each node type's features."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ...storage.typed.graph_types import GraphTypes
from ..memory.lazy_rows import LazyTypedRows
from ..neighbourhood.gradients import Placed
from ..neighbourhood.halo import HaloNeighbourhood
from ..neighbourhood.stacked import OWN
from ..nn.dense import linear
from .base import ACTIVATIONS, Model, ModelConfig, Stack


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
        return Placed.apply([rows.sources for rows in nodes], *parts)

    def shared(self, neighbourhood: Any, h: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Rows of the node types that have features, in the order of the block, and of each other type the vector that
        its nodes share."""
        nodes = neighbourhood.node_types()
        vectors = [None if width else own.bias for width, own in zip(self.widths, self.by_type)]
        chosen = [(t, rows.sources) for t, rows in enumerate(nodes) if vectors[t] is None]
        parts = [self._rows(t, h, at) for t, at in chosen]
        if len(parts) < 2:
            return (parts[0] if parts else h.new_empty(0, self.width_out)), vectors
        every = torch.cat([at for _, at in chosen]).sort().values
        return Placed.apply([torch.searchsorted(every, at) for _, at in chosen], *parts), vectors

    def _rows(self, t: int, h: Tensor, at: Tensor) -> Tensor:
        own = self.by_type[t]
        x = h.of_type(t, at) if isinstance(h, LazyTypedRows) else h[at, : self.widths[t]]
        return linear(x, own.weight, own.bias).to(h.dtype)


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
        return Placed.apply(targets, *parts)


class Projected(nn.Module):
    """A convolution whose input is projected by node type."""

    def __init__(self, projection: Projection, conv: "RelationalConv") -> None:
        super().__init__()
        self.projection, self.conv = projection, conv

    def forward(self, neighbourhood: Any, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, F] -> [num_dst, width_out]."""
        if isinstance(self.conv, MeansConv) and not isinstance(neighbourhood, HaloNeighbourhood):
            rows, vectors = self.projection.shared(neighbourhood, h)
            return self.conv.sums(neighbourhood, rows, activation, vectors)
        return self.conv(neighbourhood, self.projection(neighbourhood, h), activation)


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
        """See `RelationalConv.messages`."""
        return self.sums(neighbourhood, h, activation)

    def sums(self, neighbourhood: Any, h: Tensor, activation: str, vectors: Sequence[Tensor | None] = ()) -> Tensor:
        """`messages`; nodes of a type with a vector, of `vectors` [T], all have that row, and `h` has those of the
        others."""
        own, matrices = self.matrices(neighbourhood.types)
        sources, nodes, parts = neighbourhood.types.ends[:, 0], neighbourhood.node_types(), []
        means = neighbourhood.means_by_type(h, tuple(v is not None for v in vectors))
        for t, (given, mine, rows) in enumerate(zip(means, own, nodes)):

            def matrix(r: int, mine: nn.Linear = mine) -> Tensor:
                return mine.weight if r == OWN else matrices[r]

            # A mean of equal rows is that row, if there is an edge: its product is one vector.
            rows_of = [vectors[t if r == OWN else sources[r]] for r in given.constant]
            shared = [matrix(r) @ row for r, row in zip(given.constant, rows_of) if row is not None]
            if given.of:
                weight = torch.cat([matrix(r) for r in given.of], 1)
                out = linear(given.rows, weight, mine.bias, "none" if shared else activation)
            else:
                out = mine.bias.expand(len(rows.targets), -1)
            if shared:
                out = ACTIVATIONS[activation](torch.addmm(out, given.present, torch.stack(shared)))
            parts.append(out.to(h.dtype))
        return Placed.apply([rows.targets for rows in nodes], *parts)


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
