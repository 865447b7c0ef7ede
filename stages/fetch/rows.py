"""What a source of feature rows is to the fetcher of minibatches."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...storage.features import FeatureStore
from ...storage.minibatch import MiniBatch
from ..links.planned_pairs import Degree
from ..messages import Placement, RankJob
from ..neighbourhood.base import Neighbourhood
from ..policies import RowsOfWork

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


class Rows(RowsOfWork):
    """Source of the rows of minibatches."""

    device: torch.device | None = None
    """Where rows and lists are; None: the host."""
    has_frames = False
    """True if steps may be recorded: `framed` has what they read."""

    @abstractmethod
    def take(self, work: MiniBatch) -> Taken:
        """Rows of a minibatch; waits for them if they have not arrived yet."""

    def framed(self, frame: "Frame") -> Taken:
        """Like `take`, for any minibatch that is in the frame (`minibatch_cuda.frames`) when the device reads it."""
        raise NotImplementedError


class RowsPolicy(ABC):
    """Chooses where rows come from."""

    is_owned: ClassVar[bool] = False
    """True if ranks own them between them."""

    @property
    def is_read(self) -> bool:
        """True if rows were read, and counted, when they were placed, by a rank that also draws by itself."""
        return False

    @abstractmethod
    def open(self, placement: Placement, job: RankJob, memory: Any) -> Rows:
        """Open the rows. All ranks call this at the same time.

        Args:
            placement: of this rank.
            job: of this rank.
            memory: `gather_cuda.DeviceMemory` of a rank that trains on a GPU; None: rows come to the host.
        """

    def device_rows(self, features: FeatureStore, job: RankJob, memory: Any, locked: bool = False) -> Tensor | None:
        """See `FetchPolicy.device_rows`; None also if no rank has all of them."""
        return None
