"""Relations of a block: the edges of each type as a neighbourhood of their own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...storage.array_kinds import AnyArray, IdArray, IntArray, ValueArray
from ...storage.errors import InputError
from ...storage.graph import starts_of
from ...storage.minibatch import Block
from ...storage.optional import taken, when_present
from ...storage.typed.graph_types import GraphTypes, RelationType
from ..kernels.aggregation.lists import InLists
from .base import Message, Neighbourhood, Reduce
from .checked import ListEdges, UserMessage, weight_tensor
from .checks import alike, as_matrix, check_attention, check_edge, check_reduce, full_precision
from .stacked import Stacked, TypeMeans, stacked


@dataclass(frozen=True, eq=False)
class EdgeTypes:
    """Types of the edges of a block."""

    types: GraphTypes
    of_edges: Callable[[], AnyArray]
    """Returns the relation of each edge of the block, [e]; called when a layer first needs it."""
    of_rows: Callable[[], IdArray] | None = None
    """Returns the node type of each of the block's sources, [num_src]; None: their ids say it."""
    device: torch.device | None = None
    """Device of the rows that layers give to the block; None: the host."""


@dataclass(frozen=True, eq=False)
class PartTypes:
    """Types of the rows and the edges of one rank's part of a graph."""

    types: GraphTypes
    of_rows: IdArray
    """int64 [N], node type of each row."""
    of_edges: AnyArray
    """[e], relation of each edge, in the order of the part."""


@dataclass(frozen=True, eq=False)
class NodeRows:
    """Rows of a block that belong to nodes of one type."""

    name: str
    """The node type."""
    sources: Tensor
    """int64 [n], positions among the block's sources: rows of `h`."""
    targets: Tensor
    """int64 [m], positions among its destinations: rows of the result."""


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """Edges of one relation of a block, whichever rows they are read with."""

    type: RelationType
    """Source type, name, destination type."""
    positions: Tensor
    """int64 [num_edges], places of the edges among those of the block."""
    targets: Tensor
    """See `NodeRows.targets`, of the destination type."""
    weight: Tensor | None
    """See `ListEdges.weight`."""
    scale: Callable[[], Tensor]
    """Returns the factor of each row's sum, [num_dst], without weights."""
    features: Callable[[], Tensor]
    """Returns `ListEdges.edge_features`, the same in every call."""
    kernels: ModuleType | None
    """The aggregation backend; None: that of the rows' device."""


class Relation(ListEdges):
    """Edges of one relation of a block.

    Calls read the rows of all sources of the block, and return one row for each destination of the relation's type:
    row i belongs to row ``targets[i]`` of the block's result. Rows without an edge of the relation give zeros.
    ``positions``, int64 [num_edges], are the places of the edges among those of the block.
    """

    def __init__(self, of: RelationEdges, lists: Any, sources: Tensor, local: Any) -> None:
        """
        Args:
            of: its edges.
            lists: see `ListEdges.lists`.
            sources: see `NodeRows.sources`, of the relation's source type.
            local: int64 [num_src], the place of each source among those of its type.
        """
        super().__init__(of.kernels, of.features)
        self._of, self.type, self.name, self.positions = of, of.type, of.type[1], of.positions
        self.lists, self.sources, self.targets, self._local = lists, sources, of.targets, local
        self.num_src, self.num_dst, self.num_edges = lists.num_src, lists.num_dst, lists.num_edges

    @property
    def weight(self) -> Tensor | None:
        return self._of.weight

    @cached_property
    def compact(self) -> "Relation":
        """The same edges over the rows ``h[sources]`` only."""
        everything = torch.arange(len(self.sources), device=self.targets.device)
        return Relation(self._of, self.lists.renumbered(self._local, len(everything)), everything, everything)

    def _sum_scale(self, dtype: torch.dtype) -> Tensor:
        return self._of.scale().to(dtype)

    def _all(self, h: Tensor) -> Tensor:
        """Rows of all that lists read, of those that a call is given."""
        return h

    def _rows(self, h: Tensor, reduce: Reduce) -> Tensor:
        x = as_matrix(self._all(h), self.lists.num_src, "h")
        return self._reduce(self.lists, x, reduce).reshape(self.num_dst, *h.shape[1:])

    def sum(self, h: Tensor) -> Tensor:
        """Estimate of the sum over the row's in-edges of this relation: [num_src, ...] -> [num_dst, ...]. Raises
        InputError for a wrong shape, dtype or device, as do the other calls."""
        return self._rows(h, "sum")

    def mean(self, h: Tensor) -> Tensor:
        """`sum` divided by the row's sum of coefficients: [num_src, ...] -> [num_dst, ...]."""
        return self._rows(h, "mean")

    def max(self, h: Tensor) -> Tensor:
        """Largest value over the present in-edges: [num_src, ...] -> [num_dst, ...]."""
        return self._rows(h, "max")

    def attend(
        self,
        z: Tensor,
        a_src: Tensor,
        logit_dst: Tensor,
        slope: float = 0.2,
        dropout: float = 0.0,
        logit_edge: Tensor | None = None,
    ) -> Tensor:
        """Softmax attention over the present in-edges of this relation, without the row itself:
        ``e_uv = leaky_relu(<a_src, z[u]> + logit_dst[v] + logit_edge[uv], slope)``.

        Args:
            z: [num_src, H, D].
            a_src: [H, D].
            logit_dst: [num_dst, H].
            slope: slope of the leaky ReLU below zero.
            dropout: probability of dropping an attention coefficient, by torch's generator; pass 0 in evaluation.
            logit_edge: [num_edges, H]; zeros when absent.

        Returns:
            [num_dst, H, D].
        """
        z, a_src, logit_dst = alike(z=self._all(z), a_src=a_src, logit_dst=logit_dst)
        check_attention(z, a_src, logit_dst, self.lists.num_src, self.num_dst)
        check_edge(logit_edge, self.num_edges)
        src, dst = super().ends(z.device)
        logits = (z * a_src).sum(-1)[src] + logit_dst[dst]
        logits = F.leaky_relu(logits if logit_edge is None else logits + full_precision(logit_edge), slope)
        each = self.lists.of_edges
        # A softmax does not change by a shift; this one keeps its exponentials at most 1.
        with torch.no_grad():
            largest = self._reduce(each, logits.detach().contiguous(), "max")
        exponentials = torch.exp(logits - largest[dst])
        total = self._reduce(each, exponentials.contiguous(), "plain")
        share = F.dropout(exponentials / total[dst], dropout)
        messages = (share[:, :, None] * z[src]).flatten(1)
        return self._reduce(each, messages.contiguous(), "plain").view(-1, *z.shape[1:])

    def apply(
        self,
        message: Message,
        h: Tensor,
        own: Tensor,
        params: Sequence[Tensor] = (),
        reduce: Reduce = "sum",
        edge: Tensor | None = None,
    ) -> Tensor:
        """User-defined message function ``message(h_src, h_dst, weight, *params)``, reduced over the in-edges of this
        relation: [num_src, ...], [num_dst, ...] -> [num_dst, D].

        Args:
            message: see `Neighbourhood.apply`.
            h: rows of the sources.
            own: rows of the relation's destinations, such as ``h[targets]``.
            params: further arguments of `message`.
            reduce: see `Neighbourhood.apply`.
            edge: [num_edges, ...], values of the edges, differentiable: `edge_features`, or what is computed of them.
        """
        check_reduce(reduce)
        check_edge(edge, self.num_edges)
        h = self._all(h)
        as_matrix(h, self.lists.num_src, "h")
        as_matrix(own, self.num_dst, "own")
        return self._applied(UserMessage(message, params, reduce, edge, own), h)

    def __repr__(self) -> str:
        return f"Relation({','.join(self.type)}: {self.num_edges:,} edges into {self.num_dst:,} rows)"


def attend_together(
    relations: Sequence[Relation],
    z: Sequence[Tensor],
    logits: Sequence[Tensor],
    matrices: Tensor,
    num_dst: int,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax attention over the present in-edges of all relations together, without the row itself.

    Args:
        relations: R relations of a block.
        z: [n, H, D], for each relation a row of each of its `Relation.sources`.
        logits: [e, H], for each relation, of its edges.
        matrices: [R, H, D, D'], factor of the rows of each relation.
        num_dst: destinations of the block.
        dropout: probability of dropping an attention coefficient, by torch's generator; pass 0 in evaluation.

    Returns:
        [num_dst, H, D'], zeros for rows without in-edges.
    """
    matrices, z, logits = full_precision(matrices), [*map(full_precision, z)], [*map(full_precision, logits)]
    H, width = matrices.shape[1], matrices.shape[3]
    # A softmax does not change by a shift; this one keeps its exponentials at most 1.
    most = matrices.new_full((num_dst, H), -torch.inf)
    with torch.no_grad():
        for relation, logit in zip(relations, logits):
            own = relation._reduce(relation.lists.of_edges, logit.detach().contiguous(), "max")
            own = torch.where(torch.as_tensor(relation.lists.kept)[:, None] > 0, own, -torch.inf)
            most[relation.targets] = torch.maximum(most[relation.targets], own)
    total, out = matrices.new_zeros(num_dst, H), matrices.new_zeros(num_dst, H, width)
    for r, (relation, logit) in enumerate(zip(relations, logits)):
        src, dst = relation.compact.ends(logit.device)
        shares = torch.exp(logit - most[relation.targets[dst]])
        own = relation._reduce(relation.lists.of_edges, shares.contiguous(), "plain")
        total = total.index_add(0, relation.targets, own)
        messages = (F.dropout(shares, dropout)[:, :, None] * z[r][src]).flatten(1)
        rows = relation._reduce(relation.lists.of_edges, messages.contiguous(), "plain")
        rows = torch.einsum("nhd,hde->nhe", rows.view(-1, H, z[r].shape[2]), matrices[r])
        out = out.index_add(0, relation.targets, rows)
    return out / (total + (total == 0))[:, :, None]


def no_types() -> InputError:
    """Error for a graph without relations."""
    return InputError(
        "a layer asks for relations, but the graph has one type of nodes and edges; train on a graph with types: see "
        "from_relations"
    )


class TypedEdges(ABC):
    """Nodes and edges of a block, by their types."""

    def __init__(
        self, of: Neighbourhood, types: GraphTypes, nodes: Iterable[NodeRows], kernels: ModuleType | None = None
    ) -> None:
        """
        Args:
            of: the block, whose degrees and features of edges are read when they are needed.
            types: of the graph.
            nodes: rows of each node type.
            kernels: see `Relation`.
        """
        self._of, self.types, self._kernels = of, types, kernels
        self.nodes: tuple[NodeRows, ...] = tuple(nodes)
        """Rows of each node type, in their order."""
        self._stacked: dict[Any, Stacked] = {}

    @property
    @abstractmethod
    def relations(self) -> tuple[Relation, ...]:
        """All relations, in their order; those without an edge here too."""

    @property
    @abstractmethod
    def _kept(self) -> Any:
        """Edges of each destination of the block, [num_dst]."""

    @abstractmethod
    def _stack(self, chosen: tuple[bool, ...], flagged: tuple[bool, ...]) -> Stacked:
        """Lists of the relations of the chosen node types."""

    def means(self, h: Tensor, chosen: tuple[bool, ...], flagged: tuple[bool, ...]) -> list[TypeMeans]:
        if (chosen, flagged) not in self._stacked:
            self._stacked[chosen, flagged] = self._stack(chosen, flagged)
        return self._stacked[chosen, flagged].means(h, self._kernels)

    def _relation(self, r: int, lists: Any, at: Tensor, weight: Tensor | None, places: Any) -> Relation:
        """A relation of these lists, whose edges are at these positions of the block."""
        src, dst = self.types.ends[r].tolist()
        targets = self.nodes[dst].targets

        def scale() -> Tensor:
            # A row that is there as a whole counts once; one of a sample without weights for its degree / kept.
            kept = torch.as_tensor(self._kept).clamp(min=1)
            return (self._of.degree[: len(kept)].double() / kept)[targets]

        @cache
        def features() -> Tensor:
            return self._of.edge_features[at, : self.types.edge_widths[r]]

        edges = RelationEdges(self.types.relations[r], at, targets, weight, scale, features, kernels=self._kernels)
        return Relation(edges, lists, self.nodes[src].sources, places)


class TypedRows(TypedEdges):
    """`TypedEdges` of a block in host memory."""

    def __init__(self, of: Neighbourhood, block: Block, edges: EdgeTypes, kernels: ModuleType | None) -> None:
        """
        Args:
            of: see `TypedEdges`.
            block: its edges.
            edges: their types.
            kernels: see `Relation`.
        """
        of_rows = edges.types.types_of(block.src) if edges.of_rows is None else edges.of_rows()
        nodes, places = [], np.empty(block.num_src, np.int64)
        for t, name in enumerate(edges.types.node_types):
            sources = np.flatnonzero(of_rows == t)
            targets = sources[: np.searchsorted(sources, block.num_dst)]
            places[sources] = np.arange(len(sources))
            nodes.append(NodeRows(name, torch.from_numpy(sources), torch.from_numpy(targets)))
        super().__init__(of, edges.types, nodes, kernels)
        self._block, self._of_rows, self._places, self._edges = block, of_rows, places, edges

    @cached_property
    def _kinds(self) -> ValueArray:
        """Relation of each edge, [e]."""
        return self._edges.of_edges()

    @property
    def _kept(self) -> IntArray:
        return np.diff(self._block.indptr)

    def _stack(self, chosen: tuple[bool, ...], flagged: tuple[bool, ...]) -> Stacked:
        return stacked(self._block, self.types, self._of_rows, self._kinds, chosen, flagged)

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        block, kinds, types = self._block, self._kinds, self.types
        order = np.argsort(kinds, kind="stable")
        bounds = np.searchsorted(kinds[order], np.arange(types.num_relations + 1))
        # A destination is a source of the same number, so its place among the destinations of its type is that among
        # the sources.
        rows = self._places[np.repeat(np.arange(block.num_dst), self._kept)]
        indices, found = np.asarray(block.indices), []
        for r, (_, dst) in enumerate(types.ends):
            at = order[bounds[r] : bounds[r + 1]]
            indptr = starts_of(np.bincount(rows[at], minlength=len(self.nodes[dst].targets)))
            lists = InLists.from_arrays(indptr, indices[at], block.num_src)
            weight = when_present(weight_tensor, taken(block.weight, at))
            found.append(self._relation(r, lists, torch.from_numpy(at), weight, self._places))
        return tuple(found)
