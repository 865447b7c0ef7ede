"""Bulks of the samplers that draw row by row, wherever rows lie: on the host, on a device, or with other ranks."""

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from ...storage.array_kinds import Float32Array
from ...storage.graph import Graph
from ...storage.minibatch import Bulk
from ...storage.optional import taken
from ..assignment import BulkRequest
from ..kernels import sampling_backend
from ..kernels.runtime.threads import parallel
from ..kernels.sampling.draws import NodeWiseDraws
from ..kernels.sampling.samples import NeighborSample
from ..placement.row_owners import Owners
from .base import NodeWise, check_kernel, minibatch_of
from .remote_nodewise import draw_node_wise

if TYPE_CHECKING:
    from ..kernels.minibatch_cuda.bulk import ResidentBulk
    from ..kernels.sampling.device_samples import DeviceSample


class NodeWiseBulks(NodeWise, Protocol):
    """Base of samplers that give what their kernels are asked for."""

    kernel_name: ClassVar[str]
    """Their name: ``neighbor``, and ``neighbor_pieces`` on devices. A sampler that derives from one has its kernels."""

    def draws(self, graph: Graph, request: BulkRequest, workspace: Any) -> NodeWiseDraws:
        """What kernels of the sampler's name are asked for."""

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """See `Sampler.sample`. Raises what `check` and, for the kernel ``cuda``, `check_kernel` raise."""
        self.check(graph)
        samples = getattr(kernel, self.kernel_name)(graph, self.draws(graph, request, workspace))
        made: list[Any] = [None] * len(samples)
        keeps_ids, nested = self.keeps_ids(graph), self.expand == "new"

        def finish(i: int) -> None:
            s = samples[i]
            weight = [self._weights(graph, s, h) for h in range(len(s.lists))]
            ids = [e.positions if keeps_ids else None for e in s.lists]
            made[i] = minibatch_of(request, i, s, weight, ids, nested=nested)

        if graph.is_weighted:
            parallel(finish, [(i,) for i in range(len(samples))])
        else:
            for i in range(len(samples)):
                finish(i)
        return Bulk(request.epoch, request.number, tuple(made))

    def _weights(self, graph: Graph, s: NeighborSample, h: int) -> Float32Array | None:
        """`Block.weight` of the edges of a list."""
        edges, of_graph = s.lists[h], graph.edge_weight
        if self.has_chances(graph):
            # A kept edge stands for those that were not: their number is the sample's weight.
            own = taken(of_graph, edges.positions)
            assert edges.weight is not None
            return edges.weight if own is None else edges.weight * own
        if not self.sends_weights(graph):
            return None
        kept = np.diff(edges.indptr)
        nested = np.repeat(self.fanout, np.diff([0, *s.node_ends[:-1]]))
        fanout = nested if self.expand == "new" else self.fanout[h]
        known = (of_graph, edges.positions) if edges.weight is None else (edges.weight, None)
        return self.weigh(graph, s.nodes[: len(kept)], kept, known, fanout)

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        """See `Sampler.sample_on_device`. Raises what `check` and `check_kernel` raise."""
        from ..kernels.sampling.device_graph import number_on_device
        from .resident import node_weights, resident

        check_kernel(self, "cuda")
        self.check(graph)
        kernels, typed = sampling_backend("cuda"), not graph.types.is_single
        pieces = getattr(kernels, f"{self.kernel_name}_pieces")(graph, self.draws(graph, request, workspace))

        def weigh(made: "DeviceSample") -> list[Tensor]:
            if not typed:
                scale = partial(self.scale_on_device, graph)
                return node_weights(graph, made, scale, graph.is_weighted and not self.weighted)
            found = kernels.relation_weights_of(graph, made, self.fanouts(graph) if self.poisson else None)
            if not graph.is_weighted:
                return found
            of_edges = number_on_device(graph, "edge_weight")
            return [w * of_edges[x.positions] for w, x in zip(found, made.lists)]

        made = (
            (piece, self.bulk_of(graph, d.weighing(weigh(d)) if self.sends_weights(graph) else d))
            for piece, d in pieces
        )
        return resident(request, made, self.keeps_ids(graph))

    def bulk_of(self, graph: Graph, drawn: "DeviceSample") -> "ResidentBulk":
        """The bulk of minibatches on the device."""
        from ..kernels.minibatch_cuda.bulk import ResidentBulk

        return ResidentBulk(drawn, nested=self.expand == "new", bound=self.bound(graph))

    def scale_on_device(self, graph: Graph, rows: Tensor, kept: Tensor, hop: Tensor) -> Tensor:
        """float64, `scale` of rows that were drawn in a hop, on the device."""
        from ..kernels.sampling.device_graph import number_on_device

        return number_on_device(graph, "degree" if self.weighted else "in_degree")[rows].double() / kept.clamp(min=1)

    def sample_by_owners(self, owners: Owners, request: BulkRequest) -> Bulk:
        """See `Sampler.sample_by_owners`. Raises what `check_kernel` raises."""
        check_kernel(self, "cpu", partitioned=True)
        return draw_node_wise(owners, self, request)

    def keeps_ids(self, graph: Graph) -> bool:
        """True if blocks keep the positions of their edges."""
        return self.edge_ids

    def has_chances(self, graph: Graph) -> bool:
        """True if `EdgeList.weight` of samples is 1 / the chance of an edge."""
        return not graph.types.is_single
