"""`temporal` for ranks that train on a GPU."""

from dataclasses import dataclass

from torch import Tensor, nn

from ...storage.minibatch import MiniBatch
from ..kernels.runtime.device_memory import to_device
from ..messages import Placement, RankJob
from ..sample.resident import ResidentMiniBatch
from ..sample.temporal import timed_graph
from .gather_cuda import DeviceGather, DeviceGatherFetch
from .temporal import degrees_of


@dataclass(frozen=True)
class DeviceTemporalFetch(DeviceGatherFetch):
    """`TemporalFetch` on a device."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "DeviceTemporal":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        if job.resident and job.produce:
            timed_graph(placement.graph).on_device(self.topology)
        return DeviceTemporal(placement, *self._rows_of(placement, job))


class DeviceTemporal(DeviceGather):
    """`DeviceGather` with the degrees of nodes until the moments of their trees; of minibatches that were drawn on the
    host, the host finds them."""

    frames = False

    def _degrees(self, work: MiniBatch, nodes: Tensor) -> Tensor:
        if isinstance(work, ResidentMiniBatch):
            found = work.bulk.degrees_until(work.q)
        else:
            found = to_device(degrees_of(work, self._placement), self._device)
        return found.to(self._placement.degree.dtype)
