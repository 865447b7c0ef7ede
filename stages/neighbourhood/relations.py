"""Relations of a block: the edges of each type as a neighbourhood of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ...storage.errors import InputError
from ...storage.graph import starts_of
from ...storage.minibatch import Block
from ...storage.optional import moved, present, taken
from ...storage.typed.graph_types import GraphTypes, RelationType
from ..kernels import aggregation_on
from ..kernels.aggregation.lists import InLists
from .base import Message, Reduce
from .checks import absent_rows, alike, as_matrix, check_attention, check_edge, check_reduce, full_precision
from .gradients import Maximum, Spmm
from .stacked import StackedRelations, TypeMeans


@dataclass(frozen=True, eq=False)
class EdgeTypes:
    """Types of the edges of a block."""

    types: GraphTypes
    of_edges: Callable[[], npt.NDArray[Any]]
    """Returns the relation of each edge of the block, [e]; called when a layer first needs it."""
    of_rows: Callable[[], npt.NDArray[np.int64]] | None = None
    """Returns the node type of each of the block's sources, [num_src]; None: their ids say it."""
    device: torch.device | None = None
    """Device of the rows that layers give to the block; None: the host."""


@dataclass(frozen=True, eq=False)
class PartTypes:
    """Types of the rows and the edges of one rank's part of a graph."""

    types: GraphTypes
    of_rows: npt.NDArray[np.int64]
    """int64 [N], node type of each row."""
    of_edges: npt.NDArray[Any]
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


class Relation:
    """Edges of one relation of a block.

    Calls read the rows of all sources of the block, and return one row for each destination of the relation's type:
    row i belongs to row ``targets[i]`` of the block's result. Rows without an edge of the relation give zeros.
    """

    positions: Tensor
    """int64 [num_edges], places of the relation's edges among those of the block."""

    def __init__(
        self,
        type: RelationType,
        lists: Any,
        sources: Tensor,
        targets: Tensor,
        coefficient: Any,
        scale: Callable[[], Tensor | None],
        local: Any,
        kernels: ModuleType | None,
        edges: Callable[[], Tensor] = absent_rows,
    ) -> None:
        """
        Args:
            type: source type, name, destination type.
            lists: the edges, `InLists`.
            sources: see `NodeRows.sources`, of the relation's source type.
            targets: see `NodeRows.targets`, of its destination type.
            coefficient: float32 [e], see `Block.weight`.
            scale: returns the factor of each row's sum, [num_dst], without coefficients; None: it is 1.
            local: int64 [num_src], the place of each source among those of its type.
            kernels: the aggregation backend; by default that of the rows' device.
            edges: returns `edge_features`; by default the edges of the block have none.
        """
        self.type, self.name, self.sources, self.targets = type, type[1], sources, targets
        self.lists: Any = lists
        self.num_src, self.num_dst, self.num_edges = lists.num_src, lists.num_dst, lists.num_edges
        """Rows that are read, rows of the result, and edges present."""
        self._coefficient, self._make_scale, self._local, self._given = coefficient, scale, local, kernels
        self._make_edges = edges

    @cached_property
    def edge_features(self) -> Tensor:
        """[num_edges, D], features of the present edges of this relation, as many columns as it has; 0 columns if only
        edges of other relations have features.

        Raises:
            InputError: no edges have features, or the model does not say that it reads them.
        """
        return self._make_edges()

    @cached_property
    def compact(self) -> "Relation":
        """The same edges over the rows ``h[sources]`` only."""
        lists, everything = self._renumbered()
        return type(self)(
            self.type, lists, torch.as_tensor(everything), self.targets, self._coefficient, self._make_scale,
            local=everything, kernels=self._given,
            edges=lambda: self.edge_features,
        )  # fmt: skip

    def _renumbered(self) -> tuple[Any, Any]:
        """Lists that name each source by its place among those of its type, and all places."""
        indices, count = self._local[self.lists.indices].astype(self.lists.indices.dtype), len(self.sources)
        return InLists(self.lists.indptr, indices, count), np.arange(count)

    @property
    def kept(self) -> Tensor:
        """int64 [num_dst], edges of each row."""
        return torch.from_numpy(self.lists.kept)

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """int64 [e] each, the source and the destination of every edge as rows of `h` and of the result."""
        src, dst = torch.from_numpy(self.lists.indices).to(device), torch.from_numpy(self.lists.rows).to(device)
        return src.long(), dst.long()

    @cached_property
    def _edges(self) -> InLists:
        """Lists in which every edge is a source of its own."""
        return InLists(self.lists.indptr, np.arange(self.num_edges, dtype=self.lists.indices.dtype), self.num_edges)

    @cached_property
    def weight(self) -> Tensor | None:
        """float32 [num_edges], `Block.weight` of the relation's edges."""
        given = self._coefficient
        return None if given is None else torch.from_numpy(np.require(given, np.float32, ["C", "A", "W"]))

    def coefficients(self, like: Tensor) -> Tensor:
        """[num_edges], coefficient of each edge in `sum`, in the dtype of `like` and on its device."""
        if self.weight is not None:
            return self.weight.to(like)
        scale = self._row_scale("sum", like)
        _, dst = self.ends(like.device)
        return like.new_ones(self.num_edges) if scale is None else scale[dst]

    def _row_scale(self, reduce: Reduce, like: Tensor) -> Tensor | None:
        if self.weight is not None:
            if reduce == "sum":
                return None
            total = torch.from_numpy(np.bincount(self.lists.rows, self._coefficient, minlength=self.num_dst))
            return torch.where(total > 0, 1 / total, 0.0).to(like)
        if reduce == "mean":
            return 1 / self.kept.clamp(min=1).to(like)
        return moved(self._make_scale(), like)

    def _reduce(self, lists: InLists, x: Tensor, reduce: Reduce) -> Tensor:
        kernels: Any = self._given or aggregation_on(x.device)
        if reduce == "max":
            return Maximum.apply(x, kernels, lists)
        if reduce == "plain":
            return Spmm.apply(x, None, kernels, lists, None, None)
        return Spmm.apply(x, None, kernels, lists, moved(self.weight, x.device), self._row_scale(reduce, x))

    def _rows(self, h: Tensor, reduce: Reduce) -> Tensor:
        x = as_matrix(h, self.num_src, "h")
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
        z, a_src, logit_dst = alike(z=z, a_src=a_src, logit_dst=logit_dst)
        check_attention(z, a_src, logit_dst, self.num_src, self.num_dst)
        check_edge(logit_edge, self.num_edges)
        src, dst = self.ends(z.device)
        logits = (z * a_src).sum(-1)[src] + logit_dst[dst]
        logits = F.leaky_relu(logits if logit_edge is None else logits + full_precision(logit_edge), slope)
        kernels: Any = self._given or aggregation_on(z.device)
        # A softmax does not change by a shift; this one keeps its exponentials at most 1.
        with torch.no_grad():
            largest = Maximum.apply(logits.detach().contiguous(), kernels, self._edges)
        exponentials = torch.exp(logits - largest[dst])
        total = Spmm.apply(exponentials.contiguous(), None, kernels, self._edges, None, None)
        share = F.dropout(exponentials / total[dst], dropout)
        messages = (share[:, :, None] * z[src]).flatten(1)
        return Spmm.apply(messages.contiguous(), None, kernels, self._edges, None, None).view(-1, *z.shape[1:])

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
        as_matrix(h, self.num_src, "h")
        as_matrix(own, self.num_dst, "own")
        src, dst = self.ends(h.device)
        weight = moved(self.weight, h.device, h.dtype)
        messages = message(h[src], own[dst], weight, *present([edge]), *params)
        x = as_matrix(messages, self.num_edges, "the message's result")
        return self._reduce(self._edges, x, reduce).reshape(self.num_dst, *messages.shape[1:])

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
    kernels: Any = [r._given or aggregation_on(rows.device) for r, rows in zip(relations, z)]
    # A softmax does not change by a shift; this one keeps its exponentials at most 1.
    most = matrices.new_full((num_dst, H), -torch.inf)
    with torch.no_grad():
        for relation, kernel, logit in zip(relations, kernels, logits):
            own = Maximum.apply(logit.detach().contiguous(), kernel, relation._edges)
            own = torch.where(relation.kept[:, None] > 0, own, -torch.inf)
            most[relation.targets] = torch.maximum(most[relation.targets], own)
    total, out = matrices.new_zeros(num_dst, H), matrices.new_zeros(num_dst, H, width)
    for r, (relation, kernel, logit) in enumerate(zip(relations, kernels, logits)):
        src, dst = relation.compact.ends(logit.device)
        shares = torch.exp(logit - most[relation.targets[dst]])
        own = Spmm.apply(shares.contiguous(), None, kernel, relation._edges, None, None)
        total = total.index_add(0, relation.targets, own)
        messages = (F.dropout(shares, dropout)[:, :, None] * z[r][src]).flatten(1)
        rows = Spmm.apply(messages.contiguous(), None, kernel, relation._edges, None, None)
        rows = torch.einsum("nhd,hde->nhe", rows.view(-1, H, z[r].shape[2]), matrices[r])
        out = out.index_add(0, relation.targets, rows)
    return out / (total + (total == 0))[:, :, None]


def no_types() -> InputError:
    """Error for a graph without relations."""
    return InputError(
        "a layer asks for relations, but the graph has one type of nodes and edges; train on a graph with types: see "
        "from_relations"
    )


class TypedRows:
    """Nodes and edges of a block, by their types."""

    def __init__(
        self,
        block: Block,
        degree: Callable[[], Tensor],
        edges: EdgeTypes,
        kernels: ModuleType | None,
        rows: Callable[[], Tensor] = absent_rows,
    ) -> None:
        """
        Args:
            block: one layer's edges.
            degree: returns the in-degrees of its sources, [num_src].
            edges: their types.
            kernels: see `Relation`.
            rows: returns the features of all edges of the block, [e, D]; by default they have none.
        """
        self.types, self._block, self._degree, self._kernels = edges.types, block, degree, kernels
        self._rows = rows
        of_rows = self.types.types_of(block.src) if edges.of_rows is None else edges.of_rows()
        nodes, places = [], np.empty(block.num_src, np.int64)
        for t, name in enumerate(self.types.node_types):
            sources = np.flatnonzero(of_rows == t)
            targets = sources[: np.searchsorted(sources, block.num_dst)]
            places[sources] = np.arange(len(sources))
            nodes.append(NodeRows(name, torch.from_numpy(sources), torch.from_numpy(targets)))
        self.nodes: tuple[NodeRows, ...] = tuple(nodes)
        """Rows of each node type, in their order."""
        self._of_rows, self._places, self._edges = of_rows, places, edges
        self._stacked: dict[Any, StackedRelations] = {}

    @cached_property
    def _kinds(self) -> npt.NDArray[np.generic]:
        """Relation of each edge, [e]."""
        return self._edges.of_edges()

    def means(self, h: Tensor, chosen: tuple[bool, ...], flagged: tuple[bool, ...]) -> list[TypeMeans]:
        if (chosen, flagged) not in self._stacked:
            made = StackedRelations(self._block, self.types, self._of_rows, self._kinds, chosen, flagged)
            self._stacked[chosen, flagged] = made
        return self._stacked[chosen, flagged].means(h, self._kernels)

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        """All relations, in their order; those without an edge here too."""
        block, kinds, types = self._block, self._kinds, self.types
        order = np.argsort(kinds, kind="stable")
        bounds = np.searchsorted(kinds[order], np.arange(types.num_relations + 1))
        # A destination is a source of the same number, so its place among the destinations of its type is that among
        # the sources.
        rows = self._places[np.repeat(np.arange(block.num_dst), np.diff(block.indptr))]
        indices = np.asarray(block.indices)
        return tuple(
            self._relation(types, r, order[bounds[r] : bounds[r + 1]], rows, indices)
            for r in range(types.num_relations)
        )

    def _relation(
        self, types: GraphTypes, r: int, at: npt.NDArray[np.intp], rows: npt.NDArray[np.int64], indices: Any
    ) -> Relation:
        block, (src, dst) = self._block, types.ends[r]
        targets = self.nodes[dst].targets
        indptr = starts_of(np.bincount(rows[at], minlength=len(targets)))
        lists = InLists.from_arrays(indptr, indices[at], block.num_src)

        def scale() -> Tensor | None:
            # A row that is there as a whole counts once; one of a sample without weights for its degree / kept.
            kept = torch.from_numpy(np.diff(block.indptr)).clamp(min=1)
            return (self._degree()[: block.num_dst].double() / kept)[targets]

        def features() -> Tensor:
            return self._rows()[torch.from_numpy(at), : types.edge_widths[r]]

        weight = taken(block.weight, at)
        relation = Relation(
            types.relations[r], lists, self.nodes[src].sources, targets, weight, scale,
            local=self._places, kernels=self._kernels, edges=features,
        )  # fmt: skip
        relation.positions = torch.from_numpy(at)
        return relation
