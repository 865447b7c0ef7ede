"""Fetch for full-batch training: nothing is gathered beforehand; layers visit the rows of other ranks by themselves."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...storage.errors import InputError
from ..base import Fetched, Group, RankJob
from ..full_batch import FullBatch, View
from ..neighbourhood.base import Neighbourhood
from ..neighbourhood.halo import Halo, HaloNeighbourhood
from ..neighbourhood.ring import Ring
from ..neighbourhood.sequential import SequentialNeighbourhood
from ..partition.sharded import Share

Mode = Literal["rematerialize", "keep", "halo"]
"""How a layer sees the rows of other ranks: one rank after the other, and again in the backward pass; one after the other, kept for the
backward pass; all in one exchange."""
AHEAD_BYTES = 64 << 20


@dataclass(frozen=True)
class Visited:
    """Each layer visits its neighbours on other ranks in one of the modes."""

    modes: tuple[Mode | Literal["auto"], ...] = ("auto",)
    """One for each layer, or one for all."""
    memory_bytes: int | None = None
    """For ``auto``: what a rank's tensors may take; None: half of what the machine has to spare for each of its ranks."""
    ahead_bytes: int = AHEAD_BYTES
    """Rows of the ranks to come that may be under way before they are needed."""

    def for_layers(self, layers: int) -> tuple[Mode | Literal["auto"], ...]:
        """The mode of each of so many layers.

        Raises:
            InputError: as many modes as neither one nor the layers.
        """
        modes = self.modes * layers if len(self.modes) == 1 else self.modes
        if len(modes) != layers:
            raise InputError(f"sar has {len(modes)} modes for a model of {layers} layers; give one for each layer, or one for all")
        return modes

    def fetcher(self, placement: Share, job: RankJob) -> "Visits":
        """See `NeighbourhoodPolicy.fetcher`. Raises InputError: see `for_layers`."""
        modes = self.for_layers(job.num_layers)
        return Visits(placement, tuple("rematerialize" if m == "auto" else m for m in modes), self.ahead_bytes, job.group)


class Visits:
    """Neighbourhoods over one rank's share. See `Fetcher`."""

    def __init__(self, share: Share, modes: tuple[Mode, ...], ahead_bytes: int, group: Group) -> None:
        """
        Args:
            share: of this rank.
            modes: one for each layer.
            ahead_bytes: see `Visited`.
            group: the ranks.
        """
        self._share, self._modes, self._ahead_bytes, self._group = share, modes, ahead_bytes, group
        self._halos: dict[int, Halo] = {}

    def fetch(self, work: FullBatch) -> Fetched:
        """See `Fetcher.fetch`."""
        ring = Ring(self._group, self._ahead_bytes)
        hoods = tuple(self._hood(work, view, i, mode, ring) for i, (view, mode) in enumerate(zip(work.layers, self._modes)))
        # The same for all ranks: dropout is a function of the epoch and of what a row is, not of who holds it.
        return Fetched(work.epoch, 0, hoods, self._share.x[: work.layers[0].num_src], self._share.labels[: work.num_seeds])

    def everything(self, batch: FullBatch, layers: int) -> tuple[tuple[Neighbourhood, ...], Tensor]:
        """Neighbourhoods for all rows, pruned or not, and the features: what evaluation sees."""
        ring = Ring(self._group, self._ahead_bytes)
        return tuple(self._hood(batch, batch.whole, i, "rematerialize", ring) for i in range(layers)), self._share.x

    def _hood(self, batch: FullBatch, view: View, layer: int, mode: Mode, ring: Ring) -> Neighbourhood:
        if mode != "halo" and self._group.size > 1:
            return SequentialNeighbourhood(batch, view, layer, ring, self._dtype, keep=mode == "keep")
        # With one rank the modes are the same: there is nobody to visit.
        if id(view) not in self._halos:
            self._halos[id(view)] = Halo(batch, view, self._dtype)
        return HaloNeighbourhood(self._halos[id(view)], self._group)

    @property
    def _dtype(self) -> torch.dtype:
        return self._share.x.dtype

    def idle(self) -> None:
        """See `Fetcher.idle`: there is work for every rank."""
