"""GraphSAGE over relations: a SAGE convolution for each relation, and their sum (PyG's `to_hetero` of SAGE)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ...storage.typed.graph_types import GraphTypes
from .relational import MeansConv, OwnByType, RelationalConfig, RelationalConv


class RSAGEConv(MeansConv):
    """``W_t h_v + b_t + sum over relations r of W_r mean_r(h_u)`` for v of type t."""

    def __init__(self, types: GraphTypes, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = OwnByType(types, width_in, width_out)
        self.neighbours: Any = nn.ModuleList(nn.Linear(width_in, width_out, bias=False) for _ in types.relations)

    def matrices(self, types: GraphTypes) -> tuple[Sequence[nn.Linear], list[Tensor]]:
        return self.own.by_type, [n.weight for n in self.neighbours]


@dataclass(frozen=True)
class RSAGE(RelationalConfig):
    """GraphSAGE with matrices of each node type and of each relation. Cost per layer: one aggregation and one product
    for each relation."""

    name: ClassVar[str] = "rsage"

    def relational_conv(self, i: int, types: GraphTypes, width_in: int, width_out: int) -> RelationalConv:
        return RSAGEConv(types, width_in, width_out)
