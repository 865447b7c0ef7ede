"""Layer-neighbour sampling (LABOR-0; Balin and Catalyurek, NeurIPS 2023), in bulk."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Bulk, MiniBatch, nested_blocks
from ..kernels.sampled import NeighborSample
from .base import BulkRequest
from .neighbor import NeighborSampler


@dataclass(frozen=True)
class LaborSampler:
    """Node-wise sampling in which a minibatch draws one number per source node, so that rows agree on their neighbours.

    Each row sees the law of `NeighborSampler` (unbiased: a kept edge stands for degree / kept), but the rows together find fewer
    distinct nodes. All hops of a minibatch share the numbers, as in the paper; minibatches do not. Only newly found nodes are
    expanded, and weighted graphs are drawn from uniformly, as in `NeighborSampler`.
    Rows with parallel edges: these share their source's number, so a row of exact size is biased towards sources without them.
    Must not be confused with LADIES, which has a size per layer. Cost: the in-degrees of the frontier.
    """

    fanout: tuple[int, ...] = (15, 10, 5)
    """In-neighbours per node and hop, nearest the seeds first; -1 takes all."""
    poisson: bool = False
    """True: `fanout` in expectation, each edge independently of the others of its row (the paper's Poisson sampling; weights 1 / pi);
    unbiased with parallel edges too. False: min(fanout, in-degree) exactly (sequential Poisson sampling, the paper's section A.3 and
    DGL's default)."""
    name: ClassVar[str] = "labor"

    def __post_init__(self) -> None:
        NeighborSampler(self.fanout)
        if not isinstance(self.poisson, bool):
            raise InputError(f"poisson is {self.poisson!r}; expected true or false")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.fanout)

    def record(self) -> dict[str, Any]:
        """See `Sampler.record`."""
        return {"sampler": self.name, "fanout": list(self.fanout), "poisson": self.poisson}

    def check(self, graph: Graph) -> None:
        """See `Sampler.check`. Any graph will do."""

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """See `Sampler.sample`."""
        # One hop's streams serve all hops.
        keys = request.keys(1)[:, 0]
        samples = kernel.labor(graph, request.seeds, keys, self.fanout, poisson=self.poisson, workspace=workspace)
        minibatches = (
            MiniBatch(
                request.epoch,
                request.indices[i],
                nested_blocks(s.nodes, s.node_ends, s.indptr, s.indices, self._weight(graph, s)),
                nested=True,
            )
            for i, s in enumerate(samples)
        )
        return Bulk(request.epoch, request.number, tuple(minibatches))

    def _weight(self, graph: Graph, s: NeighborSample) -> npt.NDArray[np.float32] | None:
        if not self.poisson and graph.edge_weight is None:
            return None
        assert s.positions is not None
        kept = np.diff(s.indptr)
        degree = graph.in_degree[s.nodes[: len(kept)]]
        if self.poisson:
            fanout = np.repeat(self.fanout, np.diff([0, *s.node_ends[:-1]]))
            # The inclusion probability is fanout / degree, to 2^-32.
            scale = np.where(fanout < 0, 1.0, np.maximum(degree / fanout, 1.0))
        else:
            scale = degree / np.maximum(kept, 1)
        a = 1.0 if graph.edge_weight is None else graph.edge_weight[s.positions]
        return (a * np.repeat(scale, kept)).astype(np.float32)
