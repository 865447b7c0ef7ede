"""Fetch for minibatches: gather the rows that a minibatch names, into buffers that the next one reuses."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.features import CountedFeatures, FeatureStore
from ...storage.minibatch import MiniBatch
from ..base import Fetched, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood


@dataclass(frozen=True)
class Gathered:
    """Features are gathered once per minibatch, each node's row once; every block then aggregates locally."""

    def fetcher(self, placement: Placement, job: RankJob) -> "Gather":
        """See `NeighbourhoodPolicy.fetcher`."""
        return Gather(placement, CountedFeatures(placement.features, job.ledger, "store"))


class Gather:
    """Holds one buffer for feature rows. A `Fetched` is valid until the next call, so backward comes first."""

    def __init__(self, placement: Placement, features: FeatureStore) -> None:
        """
        Args:
            placement: labels and degrees.
            features: where rows come from.
        """
        self._placement = placement
        self._features = features
        self._rows = np.empty((0, features.num_features), features.dtype)

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`."""
        data, nodes = self._placement, work.nodes
        self._rows = roomy(self._rows, len(nodes))
        rows = self._features.gather(nodes, out=self._rows[: len(nodes)])
        ids = torch.from_numpy(nodes.astype(np.int64, copy=False))
        degree = data.degree[ids]
        hoods = tuple(BlockNeighbourhood(b, degree[: b.num_src]) for b in work.blocks)
        return Fetched(work.epoch, work.index, hoods, torch.from_numpy(rows), self._labels(ids, work))

    def idle(self) -> None:
        """See `Fetcher.idle`: ranks gather by themselves."""

    def _labels(self, ids: Tensor, work: MiniBatch) -> Any:
        return self._placement.labels[ids[: work.blocks[-1].num_dst]]


def roomy(buffer: np.ndarray, num_rows: int) -> np.ndarray:
    """`buffer`, or a new one if it has fewer than `num_rows` rows."""
    if num_rows <= len(buffer):
        return buffer
    # Grown with slack: fresh pages cost half a millisecond a megabyte, so sizes that creep up must not pay each time.
    return np.empty((num_rows * 5 // 4, *buffer.shape[1:]), buffer.dtype)
