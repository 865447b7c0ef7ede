"""GAT over relations: attention within each relation, and the sum over relations (PyG's `HeteroConv` of `GATConv`)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...storage.typed.graph_types import GraphTypes
from ..neighbourhood.relations import Relation
from ..nn.dense import linear
from .base import ACTIVATIONS
from .gat import AttentionConfig, Heads, HeadsConv
from .gine import check_edge_width
from .relational import OwnByType, RelationalConfig, RelationalConv


class RGATConv(HeadsConv, RelationalConv):
    """``W_t h_v + b_t + sum over relations r of attention_r`` for v of type t; softmax over the in-neighbours of one
    relation, of ``leaky_relu(<a_r, W_r h_u> + <a'_r, W_r h_v> + <a''_r, E_r e_uv>)``; the last term is there for
    relations whose edges have features. H heads, concatenated or averaged."""

    def __init__(self, types: GraphTypes, width_in: int, heads: Heads, reads_edges: bool) -> None:
        super().__init__(heads)
        self.reads_edges, each = reads_edges, (heads.count, heads.width)
        R = types.num_relations
        self.own = OwnByType(types, width_in, heads.width_out)
        self.weight = nn.Parameter(torch.empty(R, heads.wide, width_in))
        self.a_src = nn.Parameter(torch.empty(R, *each))
        self.a_dst = nn.Parameter(torch.empty(R, *each))
        for p in (*self.weight, *self.a_src, *self.a_dst):
            nn.init.xavier_uniform_(p.data)
        wide = {str(r): w for r, w in enumerate(types.edge_widths) if w and reads_edges}
        self.edge: Any = nn.ModuleDict({r: nn.Linear(w, heads.wide, bias=False) for r, w in wide.items()})
        self.a_edge: Any = nn.ParameterDict({r: nn.Parameter(torch.empty(each)) for r in wide})
        for p in (*(own.weight for own in self.edge.values()), *self.a_edge.values()):
            # pyrefly: ignore[bad-argument-type]
            nn.init.xavier_uniform_(p)

    def messages(self, neighbourhood: Any, h: Tensor, activation: str) -> Tensor:
        out, drop = self.own(neighbourhood, h), self.drop
        for r, relation in enumerate(neighbourhood.relations()):
            weight, shape = self.weight[r], (-1, self.heads, self.head_width)
            z = linear(h[relation.sources], weight).view(shape)
            # <a, W h> = <W^T a, h>: destinations need no product with the whole matrix.
            to_logit = torch.einsum("hd,hdf->hf", self.a_dst[r], weight.view(self.heads, self.head_width, -1))
            logit = linear(h[relation.targets], to_logit)
            found = relation.compact.attend(z, self.a_src[r], logit, self.slope, drop, self._of_edges(r, relation))
            out = out.index_add(0, relation.targets, self.joined(found).to(out.dtype))
        return ACTIVATIONS[activation](out)

    def _of_edges(self, r: int, relation: Relation) -> Tensor | None:
        """[e, H], what the features of a relation's edges add to their logits."""
        if str(r) not in self.edge:
            return None
        edge, own = relation.edge_features, self.edge[str(r)]
        check_edge_width(edge, own.in_features)
        # <a, E e> = <E^T a, e>: edges need no product with the whole matrix.
        return linear(edge, torch.einsum("hd,hdf->hf", self.a_edge[str(r)], own.weight.view(*self.a_src.shape[1:], -1)))


@dataclass(frozen=True)
class RGAT(AttentionConfig, RelationalConfig):
    """GAT over relations: heads are concatenated in hidden layers and averaged in the last. Cost per layer: one product
    and one attention, with memory for each edge, for each relation."""

    name: ClassVar[str] = "rgat"

    edge_width: int = -1
    """Columns of the features of edges that logits read: -1 for those that each relation has, 0 for none. A run writes
    the widest relation's number here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.width_or_none("edge_width")

    def relational_conv(self, i: int, types: GraphTypes, width_in: int, width_out: int) -> RelationalConv:
        return RGATConv(types, width_in, self.of_layer(i, width_out), self.edge_width > 0)
