"""Arguments of attention kernels beside the arrays."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .lists import IntArray


@dataclass(frozen=True)
class AttentionRule:
    """Constants of one attention call; the backward pass replays them."""

    slope: float
    """Slope of the leaky ReLU below zero."""
    dropout: float
    """Probability of dropping a coefficient, in [0, 1)."""
    key: int
    """64-bit key of the dropout's stream (`stages.random`): edge e (the row's own edge: number of edges + row) and head
    h are kept iff ``draw(node_words(key, e), h) >= threshold``. `EdgeNumbers` may give the edges other numbers."""

    @property
    def threshold(self) -> int:
        """`dropout` as a 32-bit fixed-point number: the comparison is exact on every backend."""
        return int(self.dropout * 2**32)

    @property
    def keep_scale(self) -> float:
        """Factor of a kept coefficient."""
        return 1.0 / (1.0 - self.dropout)


@dataclass(frozen=True, eq=False)
class EdgeNumbers:
    """Numbers of edges for attention dropout, so that a coefficient is dropped alike however a graph is partitioned.

    Edge q of the lists, at row v, has the number ``first[v] + edge[q]``; the row's own edge has ``own[v]``. Without an
    `EdgeNumbers` it is q, and the number of edges + v.
    """

    first: npt.NDArray[np.int64]
    """int64 [N]."""
    own: npt.NDArray[np.int64]
    """int64 [N]."""
    edge: IntArray | None = None
    """int32 or int64 [e], each edge's position among all edges of these rows; its position in the lists when absent."""

    @cached_property
    def _copies(self) -> dict[torch.device, tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def to_device(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """`first`, `own` and `edge` in the memory of `device`; copied once."""
        from .lists import on_device

        if device not in self._copies:
            edge = None if self.edge is None else on_device(self.edge, device)
            self._copies[device] = on_device(self.first, device), on_device(self.own, device), edge
        return self._copies[device]
