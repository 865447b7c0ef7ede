"""Options shared by LADIES and FastGCN."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...storage.errors import InputError, one_of
from ...storage.graph import Graph
from ...storage.minibatch import Bulk, MiniBatch
from ..assignment import BulkRequest
from ..kernels.sampling.draws import LayerDraws
from ..kernels.sampling.layerwise import DEBIAS, LayerSample
from ..placement.row_owners import Owners
from .base import per_layer
from .remote_layerwise import draw_layer_wise


@dataclass(frozen=True)
class LayerwiseSampler:
    """A number of nodes per layer."""

    sizes: tuple[int, ...] = (512, 512, 512)
    """Nodes drawn per hop and minibatch, nearest the seeds first; they join the nodes known before."""
    debias: str = "ratio"
    """ratio, bottom_k, with_replacement or none; see `LadiesSampler`."""
    edge_ids: bool = False
    """Keep the positions of each block's edges in the graph's edge arrays."""
    name: ClassVar[str]
    every_row: ClassVar[bool] = False
    """True if probabilities come from all V rows, rather than from those of the minibatch."""
    needs_topology_there: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", per_layer(self, "sizes", self.sizes, self.debias))
        if not self.sizes:
            raise InputError(
                "sizes is empty; expected one number per layer, nearest the seeds first, such as 512,512,512"
            )
        for s in self.sizes:
            if isinstance(s, bool) or not isinstance(s, int) or not 1 <= s <= 1 << 24:
                raise InputError(f"sizes {list(self.sizes)} holds {s}; expected 1 to {1 << 24} nodes per layer")
        if self.debias not in DEBIAS:
            raise InputError(f"debias is '{self.debias}'; {one_of(str(self.debias), DEBIAS)}")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.sizes)

    def record(self) -> dict[str, Any]:
        found = {"sampler": self.name, "sizes": list(self.sizes), "debias": self.debias}
        return found | ({"edge_ids": True} if self.edge_ids else {})

    def check(self, graph: Graph) -> None:
        """See `Sampler.check`. Any graph is accepted."""

    def _draws(self, request: BulkRequest, workspace: Any = None) -> LayerDraws:
        return LayerDraws(
            request.seeds,
            request.keys(self.num_layers),
            self.sizes,
            debias=self.debias,
            every_row=self.every_row,
            keep_positions=self.edge_ids,
            workspace=workspace,
        )

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        return _as_bulk(request, kernel.layers(graph, self._draws(request, workspace)))

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        from ..kernels import sampling_backend
        from ..kernels.minibatch_cuda.bulk import ResidentBulk
        from .resident import resident

        pieces = sampling_backend("cuda").layer_pieces(graph, self._draws(request, workspace))
        made = ((piece, ResidentBulk(d, nested=False, bound=None)) for piece, d in pieces)
        return resident(request, made, self.edge_ids)

    def sample_by_owners(self, owners: Owners, request: BulkRequest) -> Bulk:
        return _as_bulk(request, draw_layer_wise(owners, self._draws(request)))


def _as_bulk(request: BulkRequest, samples: Sequence[LayerSample]) -> Bulk:
    made = [MiniBatch(request.epoch, i, s.blocks(), nested=False) for i, s in zip(request.indices, samples)]
    return Bulk(request.epoch, request.number, tuple(made))
