"""Fetches learnt feature rows from the ranks that own them, beside the dataset's features."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ...storage.features import ArrayFeatures
from ...storage.minibatch import MiniBatch
from ..memory.lazy_rows import LazyRows
from ..messages import Fetched, Phase, RankJob
from ..neighbourhood.full_batch import FullBatch
from ..placement.sharded import Share
from ..policies import Feed, Fetcher, FetchesAhead, FetchPolicy
from ..sample.resident import ResidentMiniBatch
from .beside import WithLearned
from .table import LearnedTable


@dataclass(frozen=True)
class LearnedFetch:
    """Takes the rows of `RankJob.learned` of the nodes that another policy fetches, on the host or on a device."""

    inner: FetchPolicy
    features: WithLearned
    """Say how learnt rows and the dataset's are put together."""

    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> "LearnedRows | LearnedShare":
        features = self.features
        assert isinstance(job.learned, LearnedTable)
        if isinstance(placement, Share):
            return LearnedShare(self.inner.fetcher(placement, job, module), job.learned, features)
        given = features.given
        if given is None:
            given = ArrayFeatures(np.empty((placement.features.num_rows, 0), features.dtype))
        inner: Any = self.inner.fetcher(replace(placement, features=given), job, module)
        kind = LearnedRowsAhead if isinstance(inner, FetchesAhead) else LearnedRows
        return kind(inner, job.learned, features)


class LearnedRows:
    """Each node's learnt row, beside its features if the dataset's are read too. Collective: every rank takes part in a
    round.

    If the table is on the host and the other rows on a device, rows travel there and their gradients back; the host
    waits for both, and for the ids of minibatches that were drawn there.
    """

    def __init__(self, inner: Fetcher, table: LearnedTable, features: WithLearned) -> None:
        """
        Args:
            inner: fetches all else; its rows have no columns if the dataset's features are not read.
            table: the learnt rows.
            features: says how both are put together.
        """
        self._inner, self._table, self._features = inner, table, features

    @property
    def exchange_s(self) -> float:
        return self._inner.exchange_s

    def fetch(self, work: MiniBatch) -> Fetched:
        got = self._inner.fetch(work)
        nodes = work.bulk.nodes_of(work.q) if isinstance(work, ResidentMiniBatch) else work.nodes
        learned = self._table.take(nodes).to(got.h.device)
        if not got.h.shape[1]:
            return replace(got, h=learned)
        given = got.h.gathered() if isinstance(got.h, LazyRows) else got.h
        return replace(got, h=self._features.beside(given, learned))

    def idle(self) -> None:
        """See `Fetcher.idle`: this rank's rows may be wanted by others."""
        self._inner.idle()
        self._table.take(np.empty(0, np.int64))


class LearnedShare:
    """The learnt rows of a rank's own nodes in full-batch training, beside their features. Layers send rows to other
    ranks, and their gradients back, as they do in between."""

    def __init__(self, inner: Fetcher, table: LearnedTable, features: WithLearned) -> None:
        """See `LearnedRows`; the rows of `inner` have columns for the learnt ones."""
        self._inner, self._table, self._features = inner, table, features

    @property
    def exchange_s(self) -> float:
        return self._inner.exchange_s

    def fetch(self, work: FullBatch) -> Fetched:
        got = self._inner.fetch(work)
        ids = self._table.first + work.order[: len(got.h)]
        learned, columns = self._table.take(ids).to(got.h.device), self._features.learned_columns
        parts = got.h[:, : columns.start], learned, got.h[:, columns.stop :]
        return replace(got, h=torch.cat(parts, 1))

    def idle(self) -> None:
        """See `Fetcher.idle`: never called, every rank has work."""


class LearnedRowsAhead(LearnedRows):
    """The same where the dataset's features, which ranks own between them, are fetched ahead. See `FetchesAhead`.

    Learnt rows are not: the step before changes them.
    """

    _inner: Any

    def ahead(self, feed: Feed, sample: Any, phase: Phase, first: tuple[int, int]) -> Feed:
        return self._inner.ahead(feed, sample, phase, first)

    @property
    def hit_counts(self) -> dict[str, int]:
        return self._inner.hit_counts
