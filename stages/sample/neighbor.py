"""Node-wise neighbour sampling (GraphSAGE; Hamilton, Ying, Leskovec, NeurIPS 2017), in bulk."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Bulk, MiniBatch, nested_blocks
from .base import BulkRequest


@dataclass(frozen=True)
class NeighborSampler:
    """min(fanout, in-degree) in-neighbours of each frontier node, uniformly, without replacement.

    Only newly found nodes are expanded (PyG's semantics): a node keeps the in-edges it was given when it was found, and the
    blocks are nested views of one edge list. Unbiased: a sampled row stands for its whole neighbourhood by in_degree / kept.
    Must not be confused with samplers that expand the whole frontier again at each hop (DGL's blocks).
    Cost: O(sampled edges). Source: MLSys 2024, section on GraphSAGE, with frontier deduplication.
    """

    fanout: tuple[int, ...] = (15, 10, 5)
    """In-neighbours per node and hop, nearest the seeds first; -1 takes all."""
    name: ClassVar[str] = "neighbor"

    def __post_init__(self) -> None:
        if not self.fanout:
            raise InputError("fanout is empty; expected one number per layer, nearest the seeds first, such as 15,10,5")
        for s in self.fanout:
            if isinstance(s, bool) or not isinstance(s, int) or (s < 1 and s != -1) or s > 1 << 16:
                raise InputError(f"fanout {list(self.fanout)} holds {s}; expected 1 to 65536, or -1 for every in-neighbour")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.fanout)

    def record(self) -> dict[str, Any]:
        """See `Sampler.record`."""
        return {"sampler": self.name, "fanout": list(self.fanout)}

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """See `Sampler.sample`."""
        edge_weight = graph.edge_weight
        samples = kernel.neighbor(
            graph, request.seeds, request.keys(self.num_layers), self.fanout, keep_positions=edge_weight is not None, workspace=workspace
        )
        minibatches = []
        for i, s in enumerate(samples):
            weight = None
            if edge_weight is not None:
                # An edge of a sampled row stands for degree/kept edges of its kind (Horvitz-Thompson, uniform inclusion).
                kept = np.diff(s.indptr)
                scale = graph.in_degree[s.nodes[: len(kept)]] / np.maximum(kept, 1)
                weight = (edge_weight[s.positions] * np.repeat(scale, kept)).astype(np.float32)
            blocks = nested_blocks(s.nodes, s.node_ends, s.indptr, s.indices, weight)
            minibatches.append(MiniBatch(request.epoch, request.first_index + i, blocks, nested=True))
        return Bulk(request.epoch, request.number, tuple(minibatches))
