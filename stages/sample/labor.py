"""Layer-neighbour sampling (LABOR; Balin and Catalyurek, NeurIPS 2023), in bulk."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import Float64Array, IdArray, IntArray, WordArray
from ...storage.errors import InputError
from ...storage.graph import Graph
from ..assignment import BulkRequest
from ..kernels.row_block.draw import Drawn, HopRows, draw_labor, draw_relations
from ..kernels.sampling.draws import LaborDraws
from ..placement.row_owners import RowsHere
from .base import per_layer
from .node_wise import NodeWiseBulks


@dataclass(frozen=True)
class LaborSampler(NodeWiseBulks):
    """Node-wise sampling in which a minibatch draws one number per source node, so that rows agree on their neighbours.

    Each row is drawn from the distribution of `NeighborSampler` (unbiased: a kept edge stands for degree / kept), but
    all rows together find fewer distinct nodes. All hops of a minibatch share the numbers, as in the paper; minibatches
    do not. By default each hop expands only newly found nodes. With ``expand="all"`` each hop expands every node so
    far, by the same numbers, so a smaller fanout keeps some of a larger one's edges. Draws ignore edge weights unless
    ``weighted``: then each row has the distribution of a weighted `NeighborSampler`, and rows share numbers as before.
    Parallel edges share their source's number, so a row of exact size is biased towards sources without parallel edges.
    Must not be confused with LADIES, which has a size per layer. Cost: the in-degrees of the frontier.
    """

    fanout: tuple[int, ...] = (15, 10, 5)
    """In-neighbours per node and hop, nearest the seeds first; -1 takes all."""
    poisson: bool = False
    """True: `fanout` in expectation, each edge independently of the others of its row (the paper's Poisson sampling;
    weights 1 / pi); unbiased with parallel edges too. False: min(fanout, in-degree) exactly (sequential Poisson
    sampling, the paper's section A.3 and DGL's default)."""
    expand: Literal["new", "all"] = "new"
    """Nodes that each hop expands: newly found ones only, or again all nodes found so far."""
    weighted: bool = False
    """Draw in proportion to the graph's edge weights, rows of exact size; an edge of weight 0 is never drawn, except
    where a fanout of -1 takes the whole row."""
    iterations: int = 0
    """The i of the paper's LABOR-i, with `poisson` only: at each hop, sources that many rows share become more likely,
    in i iterations, so that fewer distinct nodes are found while each row's sum varies as much as before. Rows keep
    more than `fanout` edges. Each iteration reads the frontier's in-edges once more, at random. Only with the kernels
    ``cpu`` and a graph that each rank has whole."""
    edge_ids: bool = False
    """Keep the positions of each block's edges in the graph's edge arrays."""
    # A field, which cannot be set.
    # pyrefly: ignore[bad-override]
    relations: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    """See `NeighborSampler.relations`. Of a graph with types, each relation of a row is drawn as a row of its own, by
    the numbers of all."""
    batch_dependency: int = 1
    """See `NeighborSampler.batch_dependency`."""
    name: ClassVar[str] = "labor"
    kernel_name: ClassVar[str] = "labor"
    draws_relations_on_device: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanout", per_layer(self, "fanout", self.fanout, self.poisson))
        self.check_options()
        if not any(self.fanout):
            raise InputError(f"labor: fanout is {list(self.fanout)}, which draws nothing; take the sampler neighbor")
        if not isinstance(self.poisson, bool):
            raise InputError(f"poisson is {self.poisson!r}; expected true or false")
        if self.poisson and self.weighted:
            raise InputError("poisson and weighted are both true; expected one of them: weighted rows have exact sizes")
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or not 0 <= self.iterations <= 100:
            raise InputError(f"iterations is {self.iterations!r}; expected a whole number from 0 to 100")
        if self.iterations and not self.poisson:
            raise InputError(
                f"iterations is {self.iterations}, but poisson is false: each edge is kept by a chance of its own; set "
                "poisson = true"
            )

    @property
    def host_only(self) -> bool:
        """True with importance iterations."""
        return self.iterations > 0

    def record(self) -> dict[str, Any]:
        # Options at their defaults are left out, so that older stores fit.
        options: dict[str, Any] = {
            "expand": self.expand != "new",
            "weighted": self.weighted,
            "iterations": self.iterations,
        }
        options["edge_ids"] = self.edge_ids
        options["batch_dependency"] = self.batch_dependency if self.batch_dependency > 1 else 0
        options["relations"] = self.relations_record
        found = {"sampler": self.name, "fanout": list(self.fanout), "poisson": self.poisson}
        return found | {k: v for k, v in options.items() if v}

    def check(self, graph: Graph) -> None:
        """Raises what `NodeWise.check` raises, and InputError for `iterations` on a graph with types."""
        super().check(graph)
        if self.iterations and not graph.types.is_single:
            raise InputError(
                f"iterations is {self.iterations}, but the graph has several relations, each of which is drawn by "
                "itself; leave iterations out"
            )

    def draws(self, graph: Graph, request: BulkRequest, workspace: Any) -> LaborDraws:
        # One hop's streams serve all hops.
        return LaborDraws(
            request.seeds,
            request.keys(1, self.batch_dependency)[:, 0],
            self.fanouts(graph),
            expand=self.expand,
            poisson=self.poisson,
            weight=graph.edge_weight if self.weighted else None,
            iterations=self.iterations,
            keep_positions=self.edge_ids or (self.sends_weights(graph) and not self.weighted),
            workspace=workspace,
        )

    def has_chances(self, graph: Graph) -> bool:
        return self.iterations > 0 or super().has_chances(graph)

    def scale_on_device(self, graph: Graph, rows: Tensor, kept: Tensor, hop: Tensor) -> Tensor:
        if not self.poisson:
            return super().scale_on_device(graph, rows, kept, hop)
        from ..kernels.sampling.device_graph import number_on_device

        fanout = torch.tensor(self.fanout, device=hop.device)[hop]
        degree = number_on_device(graph, "in_degree")[rows].double()
        return torch.where(fanout < 0, 1.0, (degree / fanout).clamp(min=1.0))

    def streams(self, request: BulkRequest) -> WordArray:
        return np.repeat(request.keys(1, self.batch_dependency), self.num_layers, axis=1)

    def draw(self, block: RowsHere, hop: HopRows) -> Drawn:
        if not block.graph.types.is_single:
            return draw_relations(block.graph, 0, hop, labor=True, poisson=self.poisson)
        return draw_labor(block.graph, hop, self.poisson, weighted=self.weighted)

    def sends_weights(self, graph: Graph) -> bool:
        return self.poisson or super().sends_weights(graph)

    def scale(self, graph: Graph, rows: IntArray, kept: IntArray, fanout: IdArray | int) -> Float64Array:
        if not self.poisson:
            return super().scale(graph, rows, kept, fanout)
        # The inclusion probability is fanout / degree, to 2^-32.
        return np.where(np.asarray(fanout) < 0, 1.0, np.maximum(graph.in_degree_at(rows) / fanout, 1.0))
