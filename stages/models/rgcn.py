"""R-GCN (Schlichtkrull et al., ESWC 2018, equations 2 and 3)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ...storage.typed.graph_types import GraphTypes
from .relational import MeansConv, RelationalConfig, RelationalConv


class RGCNConv(MeansConv):
    """``W_0 h_v + sum over relations r of W_r mean_r(h_u) + b``, with W_r a combination of B matrices if B is given."""

    def __init__(self, num_relations: int, bases: int, width_in: int, width_out: int) -> None:
        """
        Args:
            num_relations: R.
            bases: B; 0: every relation has a matrix of its own.
            width_in: columns of the input.
            width_out: columns of the result.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.empty(bases or num_relations, width_in, width_out))
        self.shares = nn.Parameter(torch.empty(num_relations, bases)) if bases else None
        self.own = nn.Linear(width_in, width_out)
        for matrix in (*self.weight, *([] if self.shares is None else [self.shares])):
            nn.init.xavier_uniform_(matrix.data)

    def matrices(self, types: GraphTypes) -> tuple[list[nn.Linear], list[Tensor]]:
        weight = self.weight if self.shares is None else torch.einsum("rb,bio->rio", self.shares, self.weight)
        return [self.own] * len(types.node_types), [matrix.t() for matrix in weight]


@dataclass(frozen=True)
class RGCN(RelationalConfig):
    """R-GCN: the mean over in-neighbours of each relation, times the relation's matrix. Cost per layer: one aggregation
    and one product for each relation."""

    name: ClassVar[str] = "rgcn"

    bases: int = 0
    """B, the number of basis matrices that all relations' matrices combine; 0: each relation has its own matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bases, int) or isinstance(self.bases, bool) or self.bases < 0:
            raise InputError(f"{self.name}: bases is {self.bases!r}; expected a whole number, 0 for none")

    def relational_conv(self, i: int, types: GraphTypes, width_in: int, width_out: int) -> RelationalConv:
        return RGCNConv(types.num_relations, self.bases, width_in, width_out)
