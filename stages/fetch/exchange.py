"""Fetch with features that the ranks own between them: each row lies in the memory of one rank, and travels to those that ask for it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.features import CountedFeatures, FeatureStore, FloatArray
from ...storage.partition_book import RangeBook
from ..arena import empty
from ..base import Group, Placement, RankJob
from ..rows import NamedRows, torch_dtype
from .gather import Gather

LOAD_BYTES = 64 << 20
"""Rows are loaded in slices of about this size, since a store may hold a second copy of what it converts."""


@dataclass(frozen=True)
class Exchanged:
    """Rank r keeps rows [V r // P, V (r+1) // P) in memory, read once from the store, and serves them to the others.

    For each minibatch, ids and then rows travel once from rank to rank. A rank without work takes part with `Fetcher.idle`: all
    ranks fetch equally often.
    """

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "Exchange":
        """See `NeighbourhoodPolicy.fetcher`. Reads this rank's rows from `placement.features`, which holds all V, and nothing later."""
        return Exchange(placement, SharedFeatures(CountedFeatures(placement.features, job.ledger, "store"), job.group))


class Exchange(Gather):
    """`Gather` over rows that other ranks own."""

    def __init__(self, placement: Placement, features: "SharedFeatures") -> None:
        """See `Gather`."""
        super().__init__(placement, features)
        self._shared = features

    def _rows(self, nodes: npt.NDArray[np.integer]) -> Tensor:
        # In the order in which they came: what reads them finds them through their places.
        arrived, place = self._shared.collect(nodes)
        return NamedRows(arrived, place)

    def idle(self) -> None:
        """See `Fetcher.idle`: answers what the others ask for."""
        self._shared.collect(np.empty(0, np.int64))


class SharedFeatures:
    """V rows of F features, of which each rank holds its own. A `FeatureStore`, but all ranks gather together, and in step.

    The ledger counts, as sent by this rank: the bytes of rows under ``features``; 8 for each id, and 8 (P-1) for their numbers, under
    ``control``. Own rows never travel.
    """

    def __init__(self, features: FeatureStore, group: Group) -> None:
        """
        Args:
            features: all V rows; this rank's are read here. Not kept.
            group: the ranks.

        Raises:
            StoreError: the store is damaged.
        """
        self._group = group
        self._book = RangeBook(features.num_rows * np.arange(group.size + 1, dtype=np.int64) // group.size)
        first, end = (int(i) for i in self._book.offsets[group.rank : group.rank + 2])
        self._own = np.empty((end - first, features.num_features), features.dtype)
        step = max(1, LOAD_BYTES // max(1, features.num_features * features.dtype.itemsize))
        for at in range(first, end, step):
            ids = np.arange(at, min(at + step, end))
            features.gather(ids, out=self._own[at - first : at - first + len(ids)])

    @property
    def num_rows(self) -> int:
        """See `FeatureStore.num_rows`."""
        return self._book.num_nodes

    @property
    def num_features(self) -> int:
        """See `FeatureStore.num_features`."""
        return self._own.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `FeatureStore.dtype`."""
        return self._own.dtype

    def gather(self, ids: npt.NDArray[np.integer], out: FloatArray | None = None) -> FloatArray:
        """See `FeatureStore.gather` and `collect`."""
        arrived, place = self.collect(ids)
        return np.take(arrived, place, axis=0, out=out, mode="clip")

    def collect(self, ids: npt.NDArray[np.integer]) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """Rows of `ids` in the order in which they came, and the place of each: ``rows[place]`` is what `gather` gives.

        Every rank calls this at the same time, with ids of its own or none.

        Raises:
            IndexError: an id is out of range.
            PeerLostError: a peer is gone.
        """
        group, rank = self._group, self._group.rank
        owner = self._book.part(ids)
        # Own rows come after those of all others, so that what travels lies in one piece. Two-byte keys are sorted in linear time.
        source = np.where(owner == rank, group.size, owner).astype(np.uint16)
        order = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=group.size + 1).tolist()
        local = torch.from_numpy((ids - self._book.offsets[owner])[order])
        *wanted, own = local.split(counts)
        asked = group.all_to_all(wanted, "control")

        width, dtype = self.num_features, torch_dtype(self.dtype)
        answers = empty((sum(len(a) for a in asked), width), dtype).split([len(a) for a in asked])
        arrived = empty((len(ids), width), dtype)
        *into, mine = arrived.split(counts)
        for rows, out_rows in zip([*asked, own], [*answers, mine]):
            # Checked where they were asked for; mode="clip" skips the buffering that mode="raise" needs with `out`.
            np.take(self._own, rows.numpy(), axis=0, out=out_rows.numpy(), mode="clip")
        group.all_to_all(list(answers), "features", into)

        place = np.empty(len(ids), np.int64)
        place[order] = np.arange(len(ids))
        return arrived.numpy(), place
