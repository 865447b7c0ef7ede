"""Arguments of attention kernels."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ....storage.array_kinds import IdArray
from .lists import DeviceLists, InLists, IntArray, on_device, rows_on


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

    first: IdArray
    """int64 [N]."""
    own: IdArray
    """int64 [N]."""
    edge: IntArray | None = None
    """int32 or int64 [e], each edge's position among all edges of these rows; its position in the lists when absent."""

    @cached_property
    def _copies(self) -> dict[torch.device, tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def to_device(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """`first`, `own` and `edge` in the memory of `device`; copied once."""
        if device not in self._copies:
            edge = rows_on(self.edge, device)
            self._copies[device] = on_device(self.first, device), on_device(self.own, device), edge
        return self._copies[device]


@dataclass(frozen=True, eq=False)
class AttentionEdges:
    """Edges that attention goes over: all of the destinations, or one shard of many."""

    lists: InLists
    """n lists over S sources."""
    rule: AttentionRule
    numbers: EdgeNumbers | None = None
    """Keys of the edges for dropout; by default their positions in the lists."""
    rows: IntArray | None = None
    """The row of the result that each list belongs to, as in `cpu.shards`; its own when absent."""
    own: bool = True
    """True if each row attends to the source row of its number once, whatever edges it has from there. List i must then
    belong to row i."""

    def __post_init__(self) -> None:
        assert not self.own or self.rows is None

    def to_device(self, device: torch.device) -> "DeviceEdges":
        """The edges in the memory of `device`; `rows` are copied in every call."""
        names = (None, None, None) if self.numbers is None else self.numbers.to_device(device)
        return DeviceEdges(self.lists.to_device(device), self.rule, names, rows_on(self.rows, device), self.own)


class DeviceEdges(NamedTuple):
    """`AttentionEdges` on a device."""

    lists: DeviceLists
    rule: AttentionRule
    names: tuple[Tensor | None, ...]
    """Results of `EdgeNumbers.to_device`; None each without numbers."""
    rows: Tensor | None
    own: bool


class BackwardRows(NamedTuple):
    """Rows of the N destinations that the backward pass of attention reads, after all shards."""

    logit: Tensor
    """[N, H]."""
    log_sum: Tensor
    """[N, H], the logarithm of the softmax's denominator."""
    grad: Tensor
    """[N, H, D], of the result."""
    delta: Tensor
    """[N, H], <grad, out>."""
    d_logit: Tensor
    """[N, H], to which the gradient of `logit` is added, in place."""


class SharedAttention(NamedTuple):
    """Result of attention whose heads share their rows, and inputs of its backward pass."""

    out: Tensor
    """[n, H, F]."""
    logit_src: Tensor
    """[S, H], ``<a_src[h], x[u]>``."""
    logit_dst: Tensor
    """[n, H], ``<a_dst[h], x[v]>``."""
    log_sum: Tensor
    """[n, H], the logarithm of each softmax's denominator."""
