"""Policies that a training system is made of: sample, fetch, reduce, schedule, beside partition (`placement.base`).

The loop (`pipeline.training.loop`) calls these and nothing else, so it never asks which system it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..storage.features import FeatureStore
from ..storage.typed.graph_types import SINGLE, GraphTypes
from .comm.base import Group, Overlap, nothing
from .messages import Fetched, Phase, RankJob, StepRules, Validation, WorkDone

if TYPE_CHECKING:
    from .models.base import ModelConfig
    from .sample.base import Sampler


RecordPart = Callable[[Callable[[], dict[str, Any]]], None]
"""Calls a function with the best parameters of a phase in place, and records the facts that it returns: plain values,
the same on every rank."""


class InputRows(NamedTuple):
    """Rows of features that a model's first layer reads, and those of the graph's edges."""

    num_features: int
    """F."""
    dtype: torch.dtype
    edge_width: int = 0
    """D, columns of the edges' features; 0: they have none."""
    types: GraphTypes = SINGLE
    """Types of the graph. All edges are of the first relation."""
    are_learned: bool = False
    """True if features get gradients too."""


class Feed(ABC):
    """Source of a rank's work. Waits are bounded; failures of the other side are raised here."""

    @abstractmethod
    def get(self, epoch: int, index: int) -> Any:
        """Piece `index` of `epoch`: a MiniBatch, or any other work that the fetch policy of the same system accepts."""

    def peek(self, epoch: int, index: int) -> Any | None:
        """Like `get`, before the previous step is done and without waiting; None if the piece is not there."""
        return None

    def expect(self, epoch: int, index: int) -> None:  # noqa: B027
        """Announce that everything up to and including that piece will be read, here or on other ranks, before more is
        released."""

    @property
    def stored(self) -> bool:
        """True if the producer's bound takes no account of `expect`."""
        return False

    @abstractmethod
    def release(self, epoch: int, index: int) -> None:
        """Declare everything up to and including that piece done, so that prefetching may continue."""

    @property
    def sample_s(self) -> float:
        """Seconds of sampling done by this process for the feed so far."""
        return 0.0

    def give_up(self) -> None:  # noqa: B027
        """Make a waiting `get` raise QueueTimeoutError soon."""

    @abstractmethod
    def close(self) -> None:
        """Stop prefetching. May be called twice."""


class SamplePolicy(Protocol):
    """Origin of the pieces of work."""

    @property
    def sampler(self) -> "Sampler | None":
        """Draws minibatches; None: the work is no minibatches."""

    uses_queue: ClassVar[bool]
    """True if minibatches of the whole graph come from a queue, which others may fill (`RankJob.queue`)."""
    is_isolated: ClassVar[bool]
    """True if each rank draws only from its own data: others may be lost, and one may have nothing in a step."""
    by_owners: ClassVar[bool]
    """True if ranks hold blocks of rows, and draw together."""

    @property
    def num_layers(self) -> int | None:
        """L that the work is made for; None fits any model."""

    def record(self) -> dict[str, Any]:
        """Everything that decides the work, as plain values, for fingerprints."""

    def num_minibatches(self, placement: Any, job: RankJob) -> int:
        """Pieces of work in an epoch, over all ranks."""

    def feed(self, placement: Any, phase: Phase, job: RankJob, first: tuple[int, int]) -> Feed:
        """Start feeding from (epoch, index) `first`."""


class FetchPolicy(ABC):
    """Turns work into tensors: the rows and neighbourhoods that the model's layers read."""

    reads_edges_on_device: ClassVar[bool] = False
    """True if layers on a device get the relations and the features of edges there."""
    takes_own_learned: ClassVar[bool] = False
    """True if a rank takes the learnt rows of its own nodes and no others, whose rows its layers visit."""

    @abstractmethod
    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> "Fetcher":
        """Make the fetcher of a phase for the module that it trains; it owns the buffers."""

    @property
    def gathers_alone(self) -> bool:
        """True if one process can gather the rows of minibatches."""
        return False

    def with_memory(self, memory: Callable[[], Any]) -> "FetchPolicy":
        """The policy of a rank that trains on a GPU, with what `memory` makes, a `gather_cuda.DeviceMemory`; itself if
        the device that it reads from the rank's job is all that it needs."""
        return self

    def device_rows(self, features: FeatureStore, job: RankJob, locked: bool = False) -> Tensor | None:
        """[V, F], all rows in the memory of the job's device, as fetchers read them; None if they lie on the host. With
        `locked`, also those in locked memory of the host, which kernels of the device read."""
        return None

    def row_traffic(self, module: nn.Module, given: InputRows) -> list[tuple[int, int]]:
        """Bytes per row that one rank reads of another, by layer: see `fetch.step_memory.row_traffic`; empty: layers
        read none.

        Args:
            module: the module to be trained; not changed.
            given: rows that it reads.
        """
        return []


class RowsOfWork(ABC):  # noqa: B024
    """What gets the rows of work on one rank: by itself, and nothing ahead, unless it says more."""

    def idle(self) -> None:  # noqa: B027
        """Take part in one round of fetching in which this rank has no work."""

    @property
    def exchange_s(self) -> float:
        """Seconds that layers have waited for rows of other ranks so far."""
        return 0.0

    @property
    def hit_counts(self) -> dict[str, int]:
        """Counters of cache hits: plain counts."""
        return {}

    def ahead(self, feed: Feed, sample: "SamplePolicy", phase: Phase, first: tuple[int, int]) -> Feed:
        """Start to fetch the work of `feed`, from (epoch, index) `first`, ahead of the training.

        Returns:
            The feed to train from; it closes the other.
        """
        return feed


class Fetcher(RowsOfWork):
    """Turns work into `Fetched`. All ranks call `ahead`, `validated` and `finish` at the same time."""

    @abstractmethod
    def fetch(self, work: Any) -> Fetched:
        """Gather features, labels and degrees, and build the neighbourhoods."""

    def validated(self, module: nn.Module, whole: Callable[[], Validation]) -> Validation:
        """Validation result after an epoch: that of the `whole` model, or of this phase's module if phases train parts
        of the model."""
        return whole()

    def finish(self, module: nn.Module, record: RecordPart) -> None:
        """End the phase. Where phases train parts of the model, leave the rows that the next one reads.

        Args:
            module: the module of this phase.
            record: records the phase.
        """

    def recorded(
        self, module: nn.Module, reduce: "ReducePolicy", rules: "StepRules", parameters: list[nn.Parameter], alone: bool
    ) -> "RecordedStep | None":
        """Object that replays steps of this module, recorded; None if they cannot be recorded.

        Args:
            module: the trained module.
            reduce: a policy that allows it.
            rules: settings of the steps.
            parameters: the parameters that need gradients.
            alone: whether each step has one piece of work.
        """
        return None


class RecordedStep(Protocol):
    """Recorded forward and backward passes for pieces of work of the same shape."""

    def contribute(self, work: object) -> "WorkDone | None":
        """See `ReducePolicy.contribute`. None if this piece cannot be replayed and is still to be done."""


class ReducePolicy(Protocol):
    """Combines losses and gradients of one step over minibatches and ranks."""

    allows_recording: ClassVar[bool]
    """True if `contribute` is one forward and backward pass with the weights of `weigh`, so that a recorded step
    (`Fetcher.recorded`) does the same."""
    shares_batch_norm: ClassVar[bool]
    """True if `statistics` keeps batch normalisation right over all ranks."""
    has_local_optimizers: ClassVar[bool]
    """True if `contribute` trains with optimisers of its own, whose changes `optimizer` only averages."""

    def optimizer(self, parameters: list[nn.Parameter], rules: StepRules) -> torch.optim.Optimizer:
        """Optimiser that takes a step along the gradient of `reduce`."""

    def weigh(self, weight: Tensor, group: Group) -> tuple[Tensor, float]:
        """Weights with which seeds count that have these weights (`Fetched.weight`), and their sum. May be called once
        for each piece of work, by all ranks at the same time."""

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        """Add the gradient of this piece of work to the parameters of the module."""

    def statistics(self, module: nn.Module, group: Group) -> "Statistics":
        """Object that keeps the statistics of the module's batch normalisations right; made once per phase."""

    def reduce(
        self, parameters: list[nn.Parameter], count: float, group: Group, flag: bool = False, overlap: Overlap = nothing
    ) -> tuple[float, bool]:
        """Turn the accumulated gradients of this rank into the step's gradient on every rank.

        Args:
            parameters: their `.grad` holds the sum over this rank's seeds (None counts as zero).
            count: total weight of this rank's seeds in the step.
            group: the ranks.
            flag: true on a rank that wants to alert all ranks; travels with the gradients.
            overlap: see `Group.all_reduce`.

        Returns: The count over all ranks (zero: no seed contributed, skip the step), and true if any rank's flag is.
        """


class Statistics(Protocol):
    """Batch normalisation over minibatches and ranks."""

    def minibatch(self, position: int, of: int) -> AbstractContextManager[None]:
        """Context of forward and backward of one of this rank's pieces of work, `position` in [0, of) of the step."""

    def finish(self, of: int) -> None:
        """End a step of `of` pieces of work; called on every rank."""


class SchedulePolicy(Protocol):
    """Order in which parts of the model are trained."""

    takes_modules: ClassVar[bool]
    """True if it trains any module as it is, including the user's own; else `build` makes the model of a record."""

    def record(self, epochs: int) -> dict[str, Any]:
        """Everything that decides parameters, except the length of the last phase, as plain values for fingerprints."""

    def build(self, config: "ModelConfig", num_features: int, num_classes: int) -> nn.Module:
        """Build the whole model.

        Raises:
            InputError: it cannot be trained with this schedule.
        """

    def phases(self, epochs: int, model: nn.Module) -> tuple[Phase, ...]:
        """Phases of a run with this many configured epochs."""

    def begin(self, phase: Phase, model: nn.Module) -> nn.Module:
        """Module that this phase trains: the model, or a part of it that shares its parameters."""
