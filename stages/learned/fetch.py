"""Fetches learnt feature rows of minibatches from the ranks that own them, beside the dataset's features."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.features import CountedFeatures
from ..fetch.gather import Gather
from ..memory.arena import empty
from ..memory.lazy_rows import torch_dtype
from ..messages import Placement, RankJob
from .beside import WithLearned
from .table import LearnedTable


@dataclass(frozen=True)
class LearnedFetch:
    """Gathers features as `GatherFetch` does, and takes the rows of the same nodes from `RankJob.learned`."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "LearnedGather":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        assert isinstance(placement.features, WithLearned)
        return LearnedGather(placement, placement.features, job)


class LearnedGather(Gather):
    """Each node's learnt row, after its features if the dataset's are read too. Collective: every rank takes part in a
    round."""

    def __init__(self, placement: Placement, features: WithLearned, job: RankJob) -> None:
        """
        Args:
            placement: labels and degrees.
            features: their `given` is the source of the other rows.
            job: its `learned` is the table.
        """
        edges = placement.edge_features
        super().__init__(placement, features, None if edges is None else CountedFeatures(edges, job.ledger, "store"))
        assert isinstance(job.learned, LearnedTable)
        given = features.given
        self._given = None if given is None else CountedFeatures(given, job.ledger, "store")
        self._table = job.learned

    def _rows(self, nodes: npt.NDArray[np.integer]) -> Tensor:
        learned = self._table.take(nodes)
        if self._given is None:
            return learned
        rows = empty((len(nodes), self._given.num_features), torch_dtype(self._given.dtype))
        self._given.gather(nodes, out=rows.numpy())
        return torch.cat([rows, learned], 1)

    def idle(self) -> None:
        """See `Fetcher.idle`: this rank's rows may be wanted by others."""
        self._table.take(np.empty(0, np.int64))
