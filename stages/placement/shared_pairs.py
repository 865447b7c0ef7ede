"""Labelled edges over ranks that hold parts: each rank has those into its nodes, and reads the rows of their sources
from the ranks that hold these."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...storage.dataset import IdArray
from ...storage.links.pairs import PairArray, PairLabels, Pairs, places_in
from ..comm.base import Group
from ..neighbourhood.full_batch import View
from ..neighbourhood.halo import Exchange
from ..neighbourhood.ring import Ring


@dataclass(frozen=True, eq=False)
class SharedPairs:
    """The train edges into a rank's nodes."""

    positions: PairArray
    """int64 [n, 2], of their ends among the rows of this rank's seeds and, after these, those of other ranks."""
    labels: PairLabels
    """[n]."""
    view: View
    """The rows that travel for them: `View.wanted` of this rank's seeds."""
    counts: list[int]
    """Rows that come from each rank."""

    @classmethod
    def divided(cls, pairs: Pairs, owned: IdArray, order: IdArray, group: Group) -> "SharedPairs":
        """All ranks call this at the same time. Messages count as ``graph``.

        Args:
            pairs: all labelled edges, by global ids.
            owned: int64 [N], global ids of this rank's nodes.
            order: int64 [N], these in the order of their rows; `seeds_of` comes first.
            group: the ranks.
        """
        assert pairs.labels is not None
        numbers = pairs.sets["train"]
        ends, names = pairs.table[numbers, :2], owned[order]
        mine = np.isin(ends[:, 1], owned)
        ends, numbers, rows = ends[mine], numbers[mine], len(seeds_of(pairs, owned))
        source, destination = (places_in(names, column) for column in ends.T)
        asked = np.unique(ends[source < 0, 0])
        message = group.all_to_all([torch.from_numpy(asked)] * group.size, "graph")
        here = [places_in(names, ids.numpy()) for ids in message]
        here[group.rank] = np.full(len(asked), -1)
        told = group.all_to_all([torch.from_numpy(places >= 0) for places in here], "graph")
        come = [np.flatnonzero(has.numpy()) for has in told]
        # Rows come rank by rank, each in the order in which they were asked for.
        arrived = np.full(len(asked), -1)
        arrived[np.concatenate(come)] = rows + np.arange(sum(map(len, come)))
        if len(asked):
            far = source < 0
            source[far] = arrived[np.searchsorted(asked, ends[far, 0])]
        wanted = tuple(places[places >= 0].astype(np.int32) for places in here)
        positions = np.stack([source, destination], axis=1)
        return cls(positions, pairs.labels.take(numbers), View(rows, rows, (), wanted), [len(c) for c in come])

    def all_rows(self, rows: Tensor, ring: Ring) -> Tensor:
        """[B, D] -> [B + R, D], the rows of this rank's seeds, and of sources on other ranks. All ranks call this at
        the same time, and their backward passes."""
        own = rows[: self.view.num_src]
        return own if ring.group.size == 1 else Exchange.apply(own, self, ring)


def seeds_of(pairs: Pairs, owned: IdArray) -> IdArray:
    """int64, positions in `owned` of the nodes that are ends of train edges, whoever trains on these."""
    return np.flatnonzero(np.isin(owned, np.unique(pairs.table[pairs.sets["train"], :2]))).astype(np.int64)
