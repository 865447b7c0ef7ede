"""Weighs each seed of a rank that sees a part of the graph by the share of its neighbourhood that is there."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...storage.minibatch import MiniBatch
from ..messages import Fetched
from ..neighbourhood.full_batch import FullBatch

Correction = Literal["none", "batch", "node"]
"""Correction for missing neighbours: none; a weight for each rank's minibatch, its seeds' mean coverage; or a weight
for each seed, its coverage."""


class Weights:
    """Weights of seeds by their coverage, on the host."""

    _weight: Tensor | None = None

    def __init__(self, placement: Any, correction: Correction) -> None:
        """`placement` is an `Isolated` if seeds have weights."""
        if correction != "none":
            with np.errstate(divide="ignore"):
                # Through logarithms, since earlier versions multiplied coverages: the weights keep their bits.
                self._weight = torch.from_numpy(np.exp(np.log(placement.coverage.numpy())))

    def seed_weights(self, work: MiniBatch | FullBatch) -> Tensor | None:
        """float64 [B], weights of the seeds of `work`; None: they have none."""
        return None if self._weight is None else self._weight[torch.from_numpy(work.seeds)]

    def given(self, fetched: Fetched, work: MiniBatch | FullBatch) -> Fetched:
        """`fetched` with the weights of the seeds of `work`."""
        weight = self.seed_weights(work)
        if weight is None:
            return fetched
        if fetched.links is not None:
            # A pair has the mean coverage of the ends that its loss is of.
            weight = weight[fetched.links.pairs].flatten(1).mean(1)
        return replace(fetched, weight=weight)
