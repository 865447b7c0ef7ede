"""GraphSAGE over relations: a SAGE convolution for each relation, and their sum (PyG's `to_hetero` of SAGE)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ...storage.typed.graph_types import GraphTypes
from ..nn.dense import linear
from .relational import OwnByType, RelationalConfig, RelationalConv


class RSAGEConv(RelationalConv):
    """``W_t h_v + b_t + sum over relations r of W_r mean_r(h_u)`` for v of type t."""

    def __init__(self, types: GraphTypes, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = OwnByType(types, width_in, width_out)
        self.neighbours: Any = nn.ModuleList(nn.Linear(width_in, width_out, bias=False) for _ in types.relations)

    def messages(self, neighbourhood: Any, h: Tensor) -> Tensor:
        """See `RelationalConv.messages`."""
        out = self.own(neighbourhood, h)
        for relation, neighbours in zip(neighbourhood.relations(), self.neighbours):
            out = out.index_add(0, relation.targets, linear(relation.mean(h), neighbours.weight).to(out.dtype))
        return out


@dataclass(frozen=True)
class RSAGE(RelationalConfig):
    """GraphSAGE with matrices of each node type and of each relation. Cost per layer: one aggregation and one product
    for each relation."""

    name: ClassVar[str] = "rsage"

    def relational_conv(self, i: int, types: GraphTypes, width_in: int, width_out: int) -> RelationalConv:
        """See `RelationalConfig.relational_conv`."""
        return RSAGEConv(types, width_in, width_out)
