"""The five policies that a training system is made of: partition, sample, fetch, reduce, schedule.

The loop (`pipeline.training.loop`) calls these and nothing else, so it never asks which system it runs.
"""

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..storage.features import FeatureStore
from .comm.base import Group, Overlap, nothing
from .messages import Fetched, Part, Phase, PlacedData, Placement, RankJob, StepRules, Validation, WorkDone
from .models.base import ModelConfig
from .partition.base import Partitioner
from .sample.base import Sampler


class Feed(Protocol):
    """Source of a rank's work. Waits are bounded; failures of the other side are raised here."""

    def get(self, epoch: int, index: int) -> Any:
        """Piece `index` of `epoch`: a MiniBatch, or any other work that the fetch policy of the same system accepts."""
        ...

    def release(self, epoch: int, index: int) -> None:
        """Declare everything up to and including that piece done, so that prefetching may continue."""
        ...

    @property
    def sample_s(self) -> float:
        """Seconds of sampling done by this process for the feed so far."""
        ...

    def close(self) -> None:
        """Stop prefetching. May be called twice."""
        ...


@runtime_checkable
class PeeksAhead(Feed, Protocol):
    """A `Feed` that can be asked for a piece before the previous step is done."""

    def peek(self, epoch: int, index: int) -> Any | None:
        """Like `get`, but without waiting; None if the piece is not there."""
        ...


class PartitionPolicy(Protocol):
    """Layout of graph, features and seeds over ranks."""

    @property
    def partitioner(self) -> Partitioner | None:
        """Partitioner of the stored parts that several ranks open, one each; None: ranks open the whole data."""
        ...

    evaluates_on_shares: ClassVar[bool]
    """True if `place` gives a `placement.sharded.Share` of the whole graph, on which ranks evaluate together."""
    has_blocks: ClassVar[bool]
    """True if `place` gives a `placement.row_blocks.BlockRows`: each rank has a block of the graph's rows."""
    changes: ClassVar[bool]
    """True if `place` gives other data in each phase; else one call is for all phases."""

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Any = None) -> PlacedData:
        """This rank's view of the data in this phase; `before` is the view of the previous phase."""
        ...


class SamplePolicy(Protocol):
    """Origin of the pieces of work."""

    @property
    def sampler(self) -> Sampler | None:
        """Draws minibatches; None: the work is no minibatches."""
        ...

    uses_queue: ClassVar[bool]
    """True if minibatches of the whole graph come from a queue, which others may fill (`RankJob.queue`)."""
    is_isolated: ClassVar[bool]
    """True if each rank draws only from its own data: others may be lost, and one may have nothing in a step."""
    by_owners: ClassVar[bool]
    """True if ranks hold blocks of rows, and draw together."""

    @property
    def num_layers(self) -> int | None:
        """L that the work is made for; None fits any model."""
        ...

    def record(self) -> dict[str, Any]:
        """Everything that decides the work, as plain values, for fingerprints."""
        ...

    def num_minibatches(self, placement: Any, job: RankJob) -> int:
        """Pieces of work in an epoch, over all ranks."""
        ...

    def feed(self, placement: Any, phase: Phase, job: RankJob, first: tuple[int, int]) -> Feed:
        """Start feeding from (epoch, index) `first`."""
        ...


class FetchPolicy(Protocol):
    """Turns work into tensors: the rows and neighbourhoods that the model's layers read."""

    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> "Fetcher":
        """Make the fetcher of a phase for the module that it trains; it owns the buffers."""
        ...


@runtime_checkable
class KeepsRows(FetchPolicy, Protocol):
    """A policy whose fetchers read rows that were put on the device once."""

    def device_rows(self, features: FeatureStore, job: RankJob, locked: bool = False) -> Tensor | None:
        """[V, F], all rows in the memory of the job's device, as fetchers read them; None if they lie on the host. With
        `locked`, also those in locked memory of the host, which kernels of the device read."""
        ...


class Fetcher(Protocol):
    """Turns work into `Fetched`."""

    def fetch(self, work: Any) -> Fetched:
        """Gather features, labels and degrees, and build the neighbourhoods."""
        ...

    def idle(self) -> None:
        """Take part in one round of fetching in which this rank has no work."""
        ...

    @property
    def exchange_s(self) -> float:
        """Seconds that layers have waited for rows of other ranks so far."""
        ...


@runtime_checkable
class PhaseFetcher(Fetcher, Protocol):
    """A `Fetcher` of a system whose phases train parts of the model. All ranks call its methods at the same time."""

    def validate(self, module: nn.Module) -> Validation:
        """Validation result of this phase's module."""
        ...

    def finish(self, module: nn.Module) -> dict[str, Any]:
        """Leave the rows that the next phase reads, computed with the best parameters of this one.

        Returns:
            Facts to report: plain values, the same on every rank.
        """
        ...


@runtime_checkable
class FetchesAhead(Fetcher, Protocol):
    """A `Fetcher` that works ahead of the training. All ranks call its methods at the same time."""

    def ahead(self, feed: Feed, sample: "SamplePolicy", phase: Phase, first: tuple[int, int]) -> Feed:
        """Start to fetch the work of `feed`, from (epoch, index) `first`.

        Returns:
            The feed to train from; it closes the other.
        """
        ...

    @property
    def hit_counts(self) -> dict[str, int]:
        """Counters of cache hits: plain counts."""
        ...


@runtime_checkable
class RecordsSteps(Fetcher, Protocol):
    """A `Fetcher` whose steps can be recorded and replayed."""

    def recorded(
        self,
        module: nn.Module,
        reduce: "ReducePolicy",
        rules: "StepRules",
        parameters: list[nn.Parameter],
        alone: bool,
    ) -> "RecordedStep | None":
        """Object that replays steps of this module; None if they cannot be recorded.

        Args:
            module: the trained module.
            reduce: a policy that allows it.
            rules: settings of the steps.
            parameters: the parameters that need gradients.
            alone: whether each step has one piece of work.
        """
        ...


class RecordedStep(Protocol):
    """Recorded forward and backward passes for pieces of work of the same shape."""

    def contribute(self, work: Any) -> "WorkDone | None":
        """See `ReducePolicy.contribute`. None if this piece cannot be replayed and is still to be done."""
        ...


class ReducePolicy(Protocol):
    """Combines losses and gradients of one step over minibatches and ranks."""

    allows_recording: ClassVar[bool]
    """True if `contribute` is one forward and backward pass with the weights of `weigh`, so that a recorded step
    (`RecordsSteps`) does the same."""
    shares_batch_norm: ClassVar[bool]
    """True if `statistics` keeps batch normalisation right over all ranks."""
    has_local_optimizers: ClassVar[bool]
    """True if `contribute` trains with optimisers of its own, whose changes `optimizer` only averages."""

    def optimizer(self, parameters: list[nn.Parameter], rules: StepRules) -> torch.optim.Optimizer:
        """Optimiser that takes a step along the gradient of `reduce`."""
        ...

    def weigh(self, weight: Tensor, group: Group) -> tuple[Tensor, float]:
        """Weights with which seeds count that have these weights (`Fetched.weight`), and their sum. May be called once
        for each piece of work, by all ranks at the same time."""
        ...

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        """Add the gradient of this piece of work to the parameters of the module."""
        ...

    def statistics(self, module: nn.Module, group: Group) -> "Statistics":
        """Object that keeps the statistics of the module's batch normalisations right; made once per phase."""
        ...

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
        ...


class Statistics(Protocol):
    """Batch normalisation over minibatches and ranks."""

    def minibatch(self, position: int, of: int) -> AbstractContextManager[None]:
        """Context of forward and backward of one of this rank's pieces of work, `position` in [0, of) of the step."""
        ...

    def finish(self, of: int) -> None:
        """End a step of `of` pieces of work; called on every rank."""
        ...


class SchedulePolicy(Protocol):
    """Order in which parts of the model are trained."""

    takes_modules: ClassVar[bool]
    """True if it trains any module as it is, including the user's own; else `build` makes the model of a record."""

    def record(self, epochs: int) -> dict[str, Any]:
        """Everything that decides parameters, except the length of the last phase, as plain values for fingerprints."""
        ...

    def build(self, config: ModelConfig, num_features: int, num_classes: int) -> nn.Module:
        """Build the whole model.

        Raises:
            InputError: it cannot be trained with this schedule.
        """
        ...

    def phases(self, epochs: int, model: nn.Module) -> tuple[Phase, ...]:
        """Phases of a run with this many configured epochs."""
        ...

    def begin(self, phase: Phase, model: nn.Module) -> nn.Module:
        """Module that this phase trains: the model, or a part of it that shares its parameters."""
        ...
