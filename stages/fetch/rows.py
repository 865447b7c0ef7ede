"""What a source of feature rows is to the fetcher of minibatches."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ...storage.minibatch import MiniBatch
from ..learned.beside import WithLearned
from ..learned.table import LearnedTable
from ..links.planned_pairs import Degree
from ..memory.lazy_rows import LazyRows
from ..messages import Phase, Placement, RankJob
from ..neighbourhood.base import Neighbourhood
from ..policies import Feed, SamplePolicy
from ..sample.resident import ResidentMiniBatch

if TYPE_CHECKING:
    from ..kernels.minibatch_cuda.frames import Frame


class Taken(NamedTuple):
    """Rows and lists of a minibatch, where a step reads them."""

    h: Tensor
    """[n, F]."""
    nodes: Callable[[], Tensor]
    """Returns the nodes, integers [n], where their degrees are looked up."""
    layers: Callable[[Degree], tuple[Neighbourhood, ...]]
    """Makes the neighbourhoods, outermost first."""
    degree: Tensor | None = None
    """[n], degrees in the whole graph, if they came with the rows."""


class Rows(ABC):
    """Source of the rows of minibatches on one rank: by itself, and nothing ahead, unless it says more."""

    device: torch.device | None = None
    """Where rows and lists are; None: the host."""
    has_frames = False
    """True if steps may be recorded: `framed` has what they read."""

    @property
    def exchange_s(self) -> float:
        """Seconds that layers have waited for rows of other ranks so far."""
        return 0.0

    @property
    def hit_counts(self) -> dict[str, int]:
        """Counters of cache hits."""
        return {}

    def ahead(self, feed: Feed, sample: SamplePolicy, phase: Phase, first: tuple[int, int]) -> Feed:
        """The feed to train from, whose rows are fetched ahead from `first` on."""
        return feed

    @abstractmethod
    def take(self, work: MiniBatch) -> Taken:
        """Rows of a minibatch; waits for them if they have not arrived yet."""

    def framed(self, frame: "Frame") -> Taken:
        """Like `take`, for any minibatch that is in the frame (`minibatch_cuda.frames`) when the device reads it."""
        raise NotImplementedError

    def idle(self) -> None:  # noqa: B027
        """Take part in a round in which this rank has no work."""


class RowsPolicy(Protocol):
    """Chooses where rows come from."""

    is_owned: ClassVar[bool]
    """True if ranks own them between them."""

    @property
    def is_read(self) -> bool:
        """True if rows were read when they were placed, by a rank that also draws by itself."""
        ...

    def open(self, placement: Placement, job: RankJob, memory: Any) -> Rows:
        """Open the rows. All ranks call this at the same time.

        Args:
            placement: of this rank.
            job: of this rank.
            memory: `gather_cuda.DeviceMemory` of a rank that trains on a GPU; None: rows come to the host.
        """
        ...


class _Around(Rows):
    """Base of sources that change what another one has."""

    def __init__(self, inner: Rows) -> None:
        self.inner, self.device = inner, inner.device

    @property
    def exchange_s(self) -> float:
        return self.inner.exchange_s

    @property
    def hit_counts(self) -> dict[str, int]:
        return self.inner.hit_counts

    def ahead(self, feed: Feed, sample: SamplePolicy, phase: Phase, first: tuple[int, int]) -> Feed:
        return self.inner.ahead(feed, sample, phase, first)

    def idle(self) -> None:
        self.inner.idle()


class Moved(_Around):
    """Rows that come to the host, copied to a device; lists are copied when a layer needs them."""

    def __init__(self, inner: Rows, to: torch.device) -> None:
        super().__init__(inner)
        self._to = to

    def take(self, work: MiniBatch) -> Taken:
        got = self.inner.take(work)
        return got._replace(h=got.h.to(self._to, non_blocking=True))


class Beside(_Around):
    """Each node's learnt row, beside its features if the dataset's are read too. Collective.

    If the table is on the host and the other rows on a device, rows travel there and their gradients back; the host
    waits for both, and for the ids of minibatches that were drawn there. Learnt rows never come ahead: the step before
    changes them.
    """

    def __init__(self, inner: Rows, table: LearnedTable, features: WithLearned) -> None:
        """
        Args:
            inner: the other rows, without columns if the dataset's features are not read.
            table: the learnt rows.
            features: says how both are put together.
        """
        super().__init__(inner)
        self._table, self._features = table, features

    def take(self, work: MiniBatch) -> Taken:
        got = self.inner.take(work)
        nodes = work.bulk.nodes_of(work.q) if isinstance(work, ResidentMiniBatch) else work.nodes
        learned = self._table.take(nodes).to(got.h.device)
        if not got.h.shape[1]:
            return got._replace(h=learned)
        given = got.h.gathered() if isinstance(got.h, LazyRows) else got.h
        return got._replace(h=self._features.beside(given, learned))

    def idle(self) -> None:
        """See `Fetcher.idle`: this rank's rows may be wanted by others."""
        super().idle()
        self._table.take(np.empty(0, np.int64))
