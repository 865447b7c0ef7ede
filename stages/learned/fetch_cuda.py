"""Fetches learnt feature rows for ranks that train on a GPU: the table stays on the host, and the rows of a minibatch
travel to the device, their gradients back."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.features import FeatureStore
from ...storage.minibatch import MiniBatch
from ..fetch.gather_cuda import DeviceGather, DeviceGatherFetch, Uploaded
from ..kernels.sampling.device_graph import place_graph
from ..memory.lazy_rows import LazyRows, torch_dtype
from ..messages import Fetched, Placement, RankJob, StepRules
from ..sample.resident import ResidentMiniBatch
from .beside import WithLearned
from .table import LearnedTable


@dataclass(frozen=True)
class DeviceLearnedFetch(DeviceGatherFetch):
    """`LearnedFetch` on a device. The dataset's features lie where `DeviceGatherFetch` has them."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "DeviceLearned":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        if job.resident and job.produce:
            place_graph(placement.graph, self.topology)
        assert isinstance(job.learned, LearnedTable)
        fetcher = DeviceLearned(placement, *self._rows_of(placement, job))
        fetcher.table = job.learned
        return fetcher

    def rows_there(self, features: FeatureStore, job: RankJob) -> Tensor | None:
        """See `KeepsRows.rows_there`: learnt rows are on the host."""
        return None

    def _uploaded(self, features: FeatureStore, job: RankJob) -> Uploaded:
        if not isinstance(features, WithLearned):
            return super()._uploaded(features, job)
        if features.given is not None:
            return super()._uploaded(features.given, job)
        return Uploaded(torch.empty(features.num_rows, 0, dtype=torch_dtype(features.dtype), device=job.device), True)


class DeviceLearned(DeviceGather):
    """Each node's learnt row, after its features if the dataset's are read too. Collective: every rank takes part in a
    round. The host waits for the ids of minibatches that were drawn on the device, and for gradients."""

    table: LearnedTable

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`."""
        got = super().fetch(work)
        nodes = work.bulk.nodes_of(work.q).cpu().numpy() if isinstance(work, ResidentMiniBatch) else work.nodes
        learned = self.table.take(nodes).to(self._device)
        if not got.h.shape[1]:
            return replace(got, h=learned)
        given = got.h.gathered() if isinstance(got.h, LazyRows) else got.h
        return replace(got, h=torch.cat([given, learned], 1))

    def recorded(self, module: nn.Module, rules: StepRules, parameters: list[nn.Parameter], alone: bool) -> None:
        """See `RecordsSteps.recorded`: rows come from the host in each step."""

    def idle(self) -> None:
        """See `Fetcher.idle`: this rank's rows may be wanted by others."""
        self.table.take(np.empty(0, np.int64))
