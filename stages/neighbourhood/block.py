"""A sampled block, or a whole graph as one block, as a neighbourhood in the memory of this process."""

from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IdArray
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Block
from ...storage.optional import moved, when_present
from ...storage.typed.graph_types import GraphTypes
from ..kernels.aggregation.attention_args import AttentionEdges, AttentionRule, EdgeNumbers
from ..kernels.aggregation.lists import InLists, WeightedLists, on_device
from .base import Loops
from .checked import BARE, CheckedNeighbourhood, Factors, Kind, ListEdges, Reduction, weight_tensor
from .checks import absent_rows
from .gradients import Attend, AttendShared
from .loops import degrees_alone, loops_of_all
from .relations import EdgeTypes, NodeRows, Relation, TypedEdges, TypedRows, no_types
from .relations_cuda import DeviceTypedRows
from .stacked import TypeMeans


class ListNeighbourhood(ListEdges, CheckedNeighbourhood):
    """Aggregation over the edges of lists. See `Neighbourhood` for what each call computes.

    Results are on the device of the rows, in float32 or float64. A subclass provides the lists.
    """

    spans_ranks = False
    given_weight: Callable[[], Tensor | None] | None = None
    """What `own_weight` returns, set by whoever makes a sample; None: there is no correction."""
    names: IdArray | None = None
    """See `Neighbourhood.names`; set likewise."""
    numbers: EdgeNumbers | None = None
    """Keys of edges for attention dropout, set likewise; None: their positions in the lists."""

    def __init__(
        self,
        degree: Tensor | Callable[[], Tensor],
        kernels: ModuleType | None = None,
        edges: Callable[[], Tensor] | None = None,
    ) -> None:
        """
        Args:
            degree: [num_src], in-degree in the whole graph of each source (weighted: the sum of its in-edges' weights),
                or [num_src, 3] with its self loops beside it (`stages.self_loops`); or a function that returns them,
                called when a layer first needs them.
            kernels: the aggregation backend; by default that of the rows' device.
            edges: returns `edge_features`, called when a layer first needs them; None: there are none.
        """
        super().__init__(kernels, edges)
        self._degree = degree

    def own_weight(self) -> Tensor | None:
        """The edges' own weights, [e], without a sampler's correction; None: all are 1. Raises InputError if they are
        not there."""
        # A function kept in `__init__` would keep this object alive until garbage is collected.
        return self.weight if self.given_weight is None else self.given_weight()

    @property
    def degree_rows(self) -> Tensor:
        """`degree`, with self loops beside it if they are known: [num_src] or [num_src, 3]."""
        if not isinstance(self._degree, Tensor):
            self._degree = self._degree()
        return self._degree

    @property
    def degree(self) -> Tensor:
        return degrees_alone(self.degree_rows)

    @property
    def loops(self) -> Loops | None:
        if (found := loops_of_all(rows := self.degree_rows, self.num_dst)) is None:
            return None
        # Of a sample the coefficients say how often each loop counts. Padding after the last edge is no row's.
        of_loops = self.coefficients(rows) * self.is_loop(rows.device)
        ones = rows.new_ones(self.num_src, 1)
        return found._replace(present=self._kernels(ones).spmm(WeightedLists(self.lists, of_loops), ones)[:, 0])

    def is_loop(self, device: torch.device) -> Tensor:
        return self.lists.sources_on(device) == self._rows_on(self.lists, device)

    @property
    def _typed(self) -> Any:
        """Rows and edges by type: `TypedRows`, or the like. Raises InputError if the graph has one type of edges."""
        raise no_types()

    @property
    def has_edge_features(self) -> bool:
        """True if `edge_features` can be read."""
        return self._make_edges is not absent_rows

    def relations(self) -> tuple[Relation, ...]:
        """The block's edges by relation, in the order of the graph's relations. Raises InputError if the graph has one
        type of edges."""
        return self._typed.relations

    def node_types(self) -> tuple[NodeRows, ...]:
        """The block's rows by node type, in the order of the graph's. Raises InputError if the graph has one type of
        nodes."""
        return self._typed.nodes

    @property
    def types(self) -> GraphTypes:
        """Types of the graph. Raises InputError if it has one type of edges."""
        return self._typed.types

    def means_by_type(
        self, h: Tensor, chosen: tuple[bool, ...] = (), flagged: tuple[bool, ...] = ()
    ) -> list[TypeMeans]:
        """Own rows and means over each relation, for all relations at once and for each node type.

        Args:
            h: [num_src, D]; with `chosen`, rows of the sources of these node types alone.
            chosen: for each node type, True if its rows are read; by default all are.
            flagged: for each node type, True if `TypeMeans.present` tells of edges from it; by default none.
        """
        count = len(self.types.node_types)
        return self._typed.means(h, chosen or (True,) * count, flagged or (False,) * count)

    def _reduced(self, kind: Reduction, x: Tensor, factors: Factors = BARE) -> Tensor:
        return self._reduce(self.lists, x, kind, factors)

    def _attend(self, kind: Kind, z: Tensor, a_src: Tensor, dst: Tensor, rule: AttentionRule) -> Tensor:
        over = self._kernels(z), AttentionEdges(self.lists, rule, self.numbers)
        if kind == "shared":
            return AttendShared.apply(z, a_src, dst, over)
        return Attend.apply(z, a_src, dst, over, kind == "both")


class BlockNeighbourhood(ListNeighbourhood):
    """`ListNeighbourhood` over the edges of one block, for rows on the CPU or on a CUDA device. On the CPU the block's
    arrays are shared, not copied, if their layout allows; to a device they travel once."""

    def __init__(
        self,
        block: Block,
        degree: Tensor | Callable[[], Tensor],
        kernels: ModuleType | None = None,
        edge_types: EdgeTypes | TypedEdges | None = None,
        edges: Callable[[], Tensor] | None = None,
    ) -> None:
        """
        Args:
            block: one layer's edges.
            degree: see `ListNeighbourhood`.
            kernels: the aggregation backend; by default that of the rows' device.
            edge_types: of a graph with types; or its rows and edges, by type.
            edges: see `ListNeighbourhood`.

        Raises:
            InputError: degree has another shape.
        """
        if isinstance(degree, Tensor) and degree.shape[:1] != (block.num_src,):
            raise InputError(
                f"degree has shape {list(degree.shape)}; the block has {block.num_src} sources: pass one degree for "
                "each"
            )
        super().__init__(degree, kernels, edges)
        self.num_dst, self.num_src, self.num_edges = block.num_dst, block.num_src, block.num_edges
        self.block = block
        self._edge_types = edge_types

    @cached_property
    def _typed(self) -> Any:
        edges = self._edge_types
        if edges is None:
            raise no_types()
        if isinstance(edges, TypedEdges):
            return edges
        if edges.device is None:
            return TypedRows(self, self.block, edges, self._given)
        to = edges.device
        of_rows = edges.types.types_of(self.block.src) if edges.of_rows is None else edges.of_rows()
        there = on_device(of_rows, to), on_device(edges.of_edges().astype(np.int32, copy=False), to)
        return DeviceTypedRows(self, edges.types, *there, self.lists.to_device(to), moved(self.weight, to))

    @cached_property
    def lists(self) -> InLists:
        """The block's edges as the kernels read them."""
        return InLists.from_arrays(self.block.indptr, self.block.indices, self.num_src)

    @cached_property
    def weight(self) -> Tensor | None:
        """`Block.weight` as a tensor, float32 [e]."""
        return when_present(weight_tensor, self.block.weight)

    def _sum_scale(self, dtype: torch.dtype) -> Tensor:
        kept = torch.from_numpy(self.lists.kept).clamp(min=1).to(dtype)
        return self.degree[: self.num_dst].to(dtype) / kept.to(self.degree.device)


def types_of_edges(graph: Graph, positions: Any, device: torch.device | None = None) -> EdgeTypes | None:
    """Types of the edges at some positions of a graph, for rows on a device or on the host; None if it has one type of
    edges. Raises InputError if positions are needed and not there."""
    if graph.types.is_single:
        return None
    if positions is None:
        raise InputError("blocks of a graph with types need the positions of their edges; set edge_ids = true")

    return EdgeTypes(graph.types, lambda: graph.edge_relations[positions], device=device)
