"""Node-wise neighbour sampling (GraphSAGE; Hamilton, Ying, Leskovec, NeurIPS 2017), in bulk."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import WordArray
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Bulk
from ..assignment import BulkRequest
from ..kernels.row_block.draw import Drawn, HopRows, draw_relations, draw_rows
from ..kernels.runtime.once_per_graph import once_per_graph
from ..kernels.sampling.alias import AliasTable
from ..kernels.sampling.draws import NeighborDraws
from ..placement.row_owners import IdArray, RowsHere
from .base import per_layer
from .node_wise import NodeWiseBulks

if TYPE_CHECKING:
    from ..kernels.sampling.device_graph import RowsOnDevice
    from ..kernels.sampling.device_samples import Rows
    from ..placement.row_owners_cuda import OwnersOnDevice

Options = TypeVar("Options")


def _takes_no_graph(sampler: type[Options]) -> type[Options]:
    """The class, which answers arguments of PyG's loader and sampler of the same name in a sentence."""
    begin: Any = sampler.__init__

    @wraps(begin)
    def checked(self: object, *args: object, **options: object) -> None:
        strange = [f"a {type(a).__name__}" for a in args[:1] if not isinstance(a, int | float | Sequence | np.ndarray)]
        if strange := strange + sorted(options.keys() - signature(begin).parameters.keys()):
            raise InputError(
                f"{sampler.__name__} got {', '.join(strange)}; it has options of a run's sampler (fanout, ...) and no "
                "graph: for minibatches of a PyG graph, mr.NeighborLoader(data, num_neighbors=[10, 5])"
            )
        begin(self, *args, **options)

    sampler.__init__ = checked  # type: ignore[method-assign]
    return sampler


@_takes_no_graph
@dataclass(frozen=True)
class NeighborSampler(NodeWiseBulks):
    """Draws min(fanout, in-degree) in-neighbours of each frontier node, without replacement unless asked.

    By default each hop expands only newly found nodes (PyG's semantics): a node keeps the in-edges drawn when it was
    found, and the blocks are nested views of one edge list. With ``expand="all"`` each hop draws again for every node
    so far (DGL's blocks): more edges, and independent samples in each layer. Each edge of a uniform sample stands for
    in_degree / kept edges, without bias. With ``weighted`` each kept edge stands for (sum of the row's weights) / kept:
    unbiased with replacement; without, a ratio estimator, slightly biased. In a graph with types, each relation of a
    row is drawn separately, with its own fanout, and its sample stands for its own edges.
    Cost: O(sampled edges), and for `weighted` alias tables of 8 bytes an edge, made once (`kernels.sampling.alias`).
    Source: MLSys 2024, section on GraphSAGE, with frontier deduplication.
    """

    fanout: tuple[int, ...] = (15, 10, 5)
    """In-neighbours per node and hop, nearest the seeds first; -1 takes all."""
    replace: bool = False
    """Draw independently; an edge may come twice."""
    weighted: bool = False
    """Draw in proportion to the graph's edge weights; an edge of weight 0 is never drawn, except
    where a fanout of -1 takes the whole row, as in pyg-lib."""
    expand: Literal["new", "all"] = "new"
    """Nodes that each hop expands: newly found ones only, or again all nodes found so far."""
    edge_ids: bool = False
    """Keep the positions of each block's edges in the graph's edge arrays."""
    # A field, which cannot be set.
    # pyrefly: ignore[bad-override]
    relations: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    """Fanouts of single relations of a graph with types; all other relations have `fanout`. Keys are the relation's
    name, or ``source type,name,destination type``; a fanout of 0 leaves the relation out."""
    batch_dependency: int = 1
    """Number of consecutive minibatches of an epoch, over all ranks, that draw by the same random numbers. At the same
    hop a node has the same in-neighbours in all these minibatches, so together they read fewer rows. Each minibatch
    keeps its distribution; samples change less often from step to step. Source: Balin, LaSalle, Catalyurek,
    "Cooperative Minibatching in Graph Neural Networks" (2023), section 3.2, with numbers that change at once where
    theirs change gradually."""
    name: ClassVar[str] = "neighbor"
    kernel_name: ClassVar[str] = "neighbor"
    draws_relations_on_device: ClassVar[bool] = True
    draws_by_owners_on_device: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanout", per_layer(self, "fanout", self.fanout, self.replace))
        self.check_options()

    def record(self) -> dict[str, Any]:
        # Options at their defaults are left out, so that adding one invalidates no existing store.
        options: dict[str, Any] = {
            "replace": self.replace,
            "weighted": self.weighted,
            "expand": self.expand != "new",
            "edge_ids": self.edge_ids,
            "relations": self.relations_record,
            "batch_dependency": self.batch_dependency if self.batch_dependency > 1 else 0,
            # Weighted samples without a version were drawn by exponential races.
            "version": 2 if self.weighted else 0,
        }
        return {"sampler": self.name, "fanout": list(self.fanout), **{k: v for k, v in options.items() if v}}

    def draws(self, graph: Graph, request: BulkRequest, workspace: Any) -> NeighborDraws:
        return NeighborDraws(
            request.seeds,
            self.streams(request),
            self.fanouts(graph),
            expand=self.expand,
            replace=self.replace,
            table=_table(graph) if self.weighted else None,
            keep_positions=self.edge_ids,
            keep_weights=self._reads_weights(graph),
            workspace=workspace,
        )

    def keeps_ids(self, graph: Graph) -> bool:
        # Relations of edges are found by them.
        return self.edge_ids or not graph.types.is_single

    async def sample_by_owners_on_device(self, owners: "OwnersOnDevice", request: BulkRequest) -> Bulk:
        """Like `sample_by_owners`, drawn by the kernels of the owners' GPUs, and left on this one's. Awaits sizes."""
        from .resident import resident

        graph, made, here = owners.rows.graph, [], _OwnerDraws(self, owners)
        async for piece, drawn, values in owners.sample(request, self.streams(request), here):
            # The first values are the edges' weights, if there are any, and the last ones their positions.
            weighted = self.sends_weights(graph)
            d = drawn.weighing([values[0][x.positions] for x in drawn.lists]) if weighted else drawn
            lists = tuple(replace(x, positions=values[-1][x.positions] if self.edge_ids else None) for x in d.lists)
            made.append((piece, self.bulk_of(graph, replace(d, lists=lists))))
        return resident(request, made, self.edge_ids)

    def streams(self, request: BulkRequest) -> WordArray:
        return request.keys(self.num_layers, self.batch_dependency)

    def draw(self, block: RowsHere, hop: HopRows) -> Drawn:
        if not block.graph.types.is_single:
            assert isinstance(block.first, int)
            return draw_relations(block.graph, block.first, hop, replace=self.replace)
        return self.draw_in(block.graph, hop, block.first)

    def draw_in(self, graph: Graph, hop: HopRows, first: int | IdArray = 0) -> Drawn:
        """`draw` in rows of `graph`; for `first` see `RowsHere`."""
        table = _table(graph) if self.weighted else None
        return draw_rows(graph, first, hop, self.replace, table, self.edge_ids or self._reads_weights(graph))

    def _reads_weights(self, graph: Graph) -> bool:
        """True if `weigh` looks up the weights of single edges, for which it needs their positions."""
        return graph.is_weighted and not self.weighted


class _OwnerDraws:
    def __init__(self, sampler: NeighborSampler, owners: "OwnersOnDevice") -> None:
        self._sampler, self._owners, self._graph = sampler, owners, owners.rows.graph
        self.fanout, self.replace = sampler.fanout, sampler.replace
        self.expand: str = sampler.expand
        self._fanouts = sampler.fanouts(self._graph)
        self._sends_weights = sampler.sends_weights(self._graph)
        self.has_values = sampler.edge_ids or self._sends_weights

    @cached_property
    def own(self) -> "RowsOnDevice":
        from ..kernels.sampling.device_graph import RowsOnDevice, number_on_device, on_device

        graph, rows, sampler = self._graph, self._owners.rows, self._sampler
        lists, of_rows, of_edges = on_device(graph), dict[str, Tensor](), dict[str, Tensor]()
        if sampler.edge_ids:
            of_rows["start"] = lists.indptr[:-1] + rows.first_edge
        if sampler.weighted:
            table = lists.with_table(_table(graph))
            of_edges["slots"], of_edges["weight"], of_rows["positive"] = table.slots, table.weight, table.positive
            of_rows["degree"] = number_on_device(graph, "degree")
        elif graph.is_weighted:
            of_edges["weight"] = number_on_device(graph, "edge_weight")
        return RowsOnDevice(lists, rows.first, of_rows, of_edges)

    def draw(self, block: "RowsOnDevice", rows: "Rows", keys: Tensor, hop: int) -> Any:
        sampler, graph, kernels = self._sampler, self._graph, self._owners.kernels
        options = {"replace": self.replace}
        if not graph.types.is_single:
            first = self._owners.rows.first
            return kernels.draw_typed_rows(graph, rows, keys, self._fanouts[hop], first=first, **options)
        keep = sampler.edge_ids or sampler._reads_weights(graph)
        return kernels.draw_rows(block, rows, keys, self._fanouts[hop], weighted=sampler.weighted, keep=keep, **options)

    def values(self, block: "RowsOnDevice", rows: "Rows", drawn: Any, num_edges: int) -> list[Tensor]:
        from ..kernels.sampling.device_graph import number_on_device

        found, graph, positions, kept = [], self._graph, drawn.positions, drawn.ends.diff()
        indptr, typed = block.lists.indptr, not graph.types.is_single
        if typed:
            found.append(_relation_weights(graph, positions[:num_edges], drawn.ends))
        elif self._sends_weights:
            by_weight = self._sampler.weighted
            degree = block.of_rows["degree"][rows.nodes] if by_weight else indptr[1:][rows.nodes] - indptr[rows.nodes]
            scale = degree.double() / kept.clamp(min=1)
            weight = torch.repeat_interleave(scale, kept, output_size=num_edges)
            if not by_weight:
                weight = block.of_edges["weight"][positions[:num_edges]].double() * weight
            found.append(weight.float())
        if self._sampler.edge_ids:
            before = block.of_rows["start"][rows.nodes] - indptr[rows.nodes]
            ids = positions[:num_edges] + torch.repeat_interleave(before, kept, output_size=num_edges)
            if typed:
                # See `remote_nodewise`.
                ids = ids * graph.types.num_relations + number_on_device(graph, "edge_type")[positions[:num_edges]]
            found.append(ids)
        return found


def _relation_weights(graph: Graph, positions: Tensor | None, indptr: Tensor) -> Tensor:
    """float32 [e], weights of edges that were drawn by relation, for lists that end at `indptr`."""
    from ..kernels import sampling_backend
    from ..kernels.sampling.device_graph import number_on_device

    found = sampling_backend("cuda").relation_weights(graph, positions, indptr)
    # A kept edge stands for those of its relation that were not.
    return found if not graph.is_weighted else found * number_on_device(graph, "edge_weight")[positions]


@once_per_graph
def _table(graph: Graph) -> AliasTable:
    from ..kernels import sampling_backend

    return sampling_backend("cpu").alias_table(graph)
