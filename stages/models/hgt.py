"""Heterogeneous graph transformer (Hu et al., WWW 2020, section 3)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...storage.typed.graph_types import GraphTypes
from ..neighbourhood.relations import attend_together
from ..nn.dense import linear
from .base import ACTIVATIONS
from .gat import HeadsConfig
from .relational import RelationalConfig, RelationalConv


class HGTConv(RelationalConv):
    """``A_t gelu(sum over in-neighbours u of share_u V_u M_r)`` for v of type t, mixed with h_v by a learnt weight.

    Shares are a softmax over the in-neighbours of all relations together, of ``<K_u W_r, Q_v> p_r / sqrt(D)``, for each
    of H heads of D columns. K, Q and V are products of rows with matrices of their types, W, M and p belong to
    relations. In the last layer a matrix for all types follows.
    """

    def __init__(
        self, types: GraphTypes, width: int, heads: int, width_out: int | None, attention_dropout: float
    ) -> None:
        """
        Args:
            types: of the graph.
            width: columns of the input, and of all heads together.
            heads: H.
            width_out: columns of the last layer's result; None: `width`, without a matrix at the end.
            attention_dropout: probability of dropping a share.
        """
        super().__init__()
        self.heads, self.head_width, self.attention_dropout = heads, width // heads, attention_dropout
        R, D = types.num_relations, width // heads
        self.ends = types.ends.tolist()
        self.keys: Any = nn.ModuleList(nn.Linear(width, width) for _ in types.node_types)
        self.values: Any = nn.ModuleList(nn.Linear(width, width) for _ in types.node_types)
        self.queries: Any = nn.ModuleList(nn.Linear(width, width) for _ in types.node_types)
        self.to_key = nn.Parameter(torch.empty(R, heads, D, D))
        self.to_value = nn.Parameter(torch.empty(R, heads, D, D))
        self.prior = nn.Parameter(torch.ones(R, heads))
        self.skip = nn.Parameter(torch.ones(len(types.node_types)))
        self.finish: Any = nn.ModuleList(nn.Linear(width, width) for _ in types.node_types)
        self.head = None if width_out is None else nn.Linear(width, width_out)
        for matrix in (*self.to_key.flatten(0, 1), *self.to_value.flatten(0, 1)):
            nn.init.xavier_uniform_(matrix.data)

    def messages(self, neighbourhood: Any, h: Tensor, activation: str) -> Tensor:
        nodes, relations = neighbourhood.node_types(), neighbourhood.relations()
        shape = (-1, self.heads, self.head_width)

        def projected(by_type: Any, t: int, rows: Tensor) -> Tensor:
            return linear(h[rows], by_type[t].weight, by_type[t].bias).view(shape)

        keys = [projected(self.keys, t, rows.sources) for t, rows in enumerate(nodes)]
        values = [projected(self.values, t, rows.sources) for t, rows in enumerate(nodes)]
        queries = [projected(self.queries, t, rows.targets) for t, rows in enumerate(nodes)]
        logits, z = [], []
        for r, (relation, (source, target)) in enumerate(zip(relations, self.ends)):
            # <K W, Q> = <K, Q W^T>: destinations are fewer than sources.
            asked = torch.einsum("nhe,hde->nhd", queries[target], self.to_key[r])
            src, dst = relation.compact.ends(h.device)
            scale = self.prior[r] / self.head_width**0.5
            logits.append((keys[source][src] * asked[dst]).sum(-1) * scale)
            z.append(values[source])
        drop = self.attention_dropout if self.training else 0.0
        found = attend_together(relations, z, logits, self.to_value, neighbourhood.num_dst, drop)
        active = nn.functional.gelu(found.flatten(1))
        out = torch.zeros_like(active)
        for rows, own, skip in zip(nodes, self.finish, self.skip):
            mine = linear(active[rows.targets], own.weight, own.bias)
            share = torch.sigmoid(skip)
            out = out.index_copy(0, rows.targets, share * mine + (1 - share) * h[rows.targets])
        out = out if self.head is None else linear(out, self.head.weight, self.head.bias)
        return ACTIVATIONS[activation](out)


@dataclass(frozen=True)
class HGT(HeadsConfig, RelationalConfig):
    """Heterogeneous graph transformer: attention over the in-neighbours of all relations together, with matrices of
    node types and of relations. Cost per layer: products for each node type and relation, and memory for each edge."""

    name: ClassVar[str] = "hgt"

    activation: str = "none"
    """relu, elu or none; between layers. A layer has an activation of its own, gelu."""

    def relational_conv(self, i: int, types: GraphTypes, width_in: int, width_out: int) -> RelationalConv:
        last = i == self.layers - 1
        return HGTConv(types, width_in, self.heads, width_out if last else None, self.attention_dropout)
