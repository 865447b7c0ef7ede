"""Evaluation at the moments of nodes by a GPU: samples that its kernels draw, over rows in its memory."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from ...storage.features import FeatureStore
from ...storage.graph import Graph
from ..assignment import BulkRequest
from ..kernels.minibatch_cuda.rows import gather_rows
from ..kernels.sampling.device_graph import number_on_device
from ..models.base import reads_edges
from ..neighbourhood.resident import EdgesOnDevice, resident_neighbourhoods
from ..sample.resident import ResidentMiniBatch
from ..sample.temporal import TemporalSampler


@dataclass(frozen=True, eq=False)
class DeviceChunks:
    """Outputs for the seeds of a minibatch, drawn on the model's device: see `temporal.Chunk`."""

    graph: Graph
    """Graph whose lists are on the device."""
    rows: Tensor | None
    """[V, F], features of all nodes, where kernels of the device read them; None: they are read from the store."""
    edge_rows: Tensor | None = None
    """[E, D], features of all edges, likewise."""

    def __call__(
        self, model: nn.Module, graph: Graph, features: FeatureStore, sampler: TemporalSampler, request: BulkRequest
    ) -> Tensor:
        """See `temporal.Chunk`; `graph` has the same edges as that of the chunks, and their features."""
        (work,) = sampler.sample_on_device(self.graph, request).minibatches
        assert isinstance(work, ResidentMiniBatch)
        bulk, nodes = work.bulk, work.bulk.nodes_of(work.q)
        like = next(p for p in model.parameters() if p.is_floating_point())
        to = {"device": like.device, "dtype": like.dtype}
        degree = cache(lambda: bulk.degrees_until(work.q).to(like.dtype))
        of_edges = graph.edge_features if reads_edges(model) else None

        def edge_rows(ids: Tensor) -> Tensor:
            if self.edge_rows is not None:
                return gather_rows(self.edge_rows, ids).to(like.dtype)
            assert of_edges is not None
            return torch.from_numpy(of_edges.gather(ids.cpu().numpy())).to(**to)

        edges = EdgesOnDevice(
            self.graph.types,
            lambda ids: number_on_device(self.graph, "edge_type")[ids],
            None if of_edges is None else edge_rows,
            (lambda ids: number_on_device(self.graph, "edge_weight")[ids]) if graph.is_weighted else None,
        )
        if self.rows is None:
            rows = torch.from_numpy(features.gather(nodes.cpu().numpy().astype("int64"))).to(**to)
        else:
            rows = gather_rows(self.rows, nodes).to(like.dtype)
        with torch.no_grad():
            return model(resident_neighbourhoods(bulk, work.q, degree, edges), rows)
