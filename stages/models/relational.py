"""Models over relations: their configuration, and the projection of each node type's features."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ...storage.typed.graph_types import GraphTypes
from ..neighbourhood.halo import HaloNeighbourhood
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
        out = h.new_empty(len(h), self.width_out)
        for rows, width, own in zip(neighbourhood.node_types(), self.widths, self.by_type):
            x = linear(h[rows.sources][:, :width].contiguous(), own.weight, own.bias) if width else own.bias[None]
            out = out.index_copy(0, rows.sources, x.expand(len(rows.sources), -1).to(out.dtype))
        return out


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
        self.width_out = width_out
        self.by_type: Any = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types.node_types)

    def forward(self, neighbourhood: Any, h: Tensor) -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        out = h.new_zeros(neighbourhood.num_dst, self.width_out)
        for rows, own in zip(neighbourhood.node_types(), self.by_type):
            out = out.index_copy(0, rows.targets, linear(h[rows.targets], own.weight, own.bias).to(out.dtype))
        return out


class Projected(nn.Module):
    """A convolution whose input is projected by node type."""

    def __init__(self, projection: Projection, conv: nn.Module) -> None:
        super().__init__()
        self.projection, self.conv = projection, conv

    def forward(self, neighbourhood: Any, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, F] -> [num_dst, width_out]."""
        return self.conv(neighbourhood, self.projection(neighbourhood, h), activation)


class RelationalConv(nn.Module):
    """A sum over relations, with the activation at the end."""

    @abstractmethod
    def messages(self, neighbourhood: Any, h: Tensor) -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out], before the activation."""

    def forward(self, neighbourhood: Any, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        if isinstance(neighbourhood, HaloNeighbourhood):
            neighbourhood, h = neighbourhood.as_block(h)
        return ACTIVATIONS[activation](self.messages(neighbourhood, h))


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
        convs: list[nn.Module] = [
            self.relational_conv(i, given.types, a, b) for i, (a, b) in enumerate(zip(widths, widths[1:]))
        ]
        convs[0] = Projected(Projection(given.widths, self.hidden), convs[0])
        return RelationalStack(convs, hidden, self.dropout, self.norm, self.activation)


class RelationalStack(Stack):
    """A stack of convolutions over relations."""

    reads_blocks = True
