"""The five policies that a training system is made of: partition, sample, fetch, reduce, schedule.

The loop (`pipeline.training.loop`) calls these and nothing else, so it never asks which system it runs.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..storage.features import FeatureStore
from .comm.base import Group, Overlap, nothing
from .messages import Fetched, Part, Phase, PlacedData, Placement, RankJob, StepRules, Validation, WorkDone
from .models.base import ModelConfig
from .partition.base import Partitioner


class Feed(Protocol):
    """Where a rank's work comes from. Waits are bounded; a failure of the other side is raised here."""

    def get(self, epoch: int, index: int) -> Any:
        """Piece `index` of `epoch`: a MiniBatch, or whatever the neighbourhood policy of the same system
        understands."""
        ...

    def release(self, epoch: int, index: int) -> None:
        """Everything up to and including that piece is done with: whoever works ahead may go on."""
        ...

    @property
    def sample_s(self) -> float:
        """Seconds of sampling that this process has done for the feed so far."""
        ...

    def close(self) -> None:
        """Stop whatever works ahead. May be called twice."""
        ...


@runtime_checkable
class PeeksAhead(Feed, Protocol):
    """A `Feed` that can be asked for a piece before the step before is done."""

    def peek(self, epoch: int, index: int) -> Any | None:
        """What `get` gives, if it is there: nothing is waited for."""
        ...


class PartitionPolicy(Protocol):
    """How graph, features and seeds are laid out over ranks."""

    @property
    def partitioner(self) -> Partitioner | None:
        """How data are cut into stored parts before several ranks start, each of which then opens its own part alone;
        None: ranks open the whole."""
        ...

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Any = None) -> PlacedData:
        """This rank's view of the data in this phase; `before` is what this gave for the phase before it."""
        ...


class SamplePolicy(Protocol):
    """How pieces of work come to be."""

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
    """How a layer's neighbours are seen: from work to tensors."""

    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> "Fetcher":
        """Made once per phase for the module that it trains; owns the buffers."""
        ...


@runtime_checkable
class KeepsRows(FetchPolicy, Protocol):
    """A policy whose fetchers read rows that were put on the device once."""

    def rows_there(self, features: FeatureStore, job: RankJob) -> Tensor | None:
        """[V, F], all rows in the memory of the job's device, as fetchers read them; None if they lie on the host."""
        ...


class Fetcher(Protocol):
    """Turns work into `Fetched`."""

    def fetch(self, work: Any) -> Fetched:
        """Gather features, labels and degrees, and build the neighbourhoods."""
        ...

    def idle(self) -> None:
        """Take part in one round of fetching without work of one's own."""
        ...

    @property
    def exchange_s(self) -> float:
        """Seconds that layers have waited for rows of other ranks so far."""
        ...


@runtime_checkable
class PhaseFetcher(Fetcher, Protocol):
    """A `Fetcher` of a system whose phases train parts of the model. All ranks call its methods at the same time."""

    def validate(self, module: nn.Module) -> Validation:
        """How this phase's module does on the validation nodes."""
        ...

    def finish(self, module: nn.Module) -> dict[str, Any]:
        """Leave to the next phase what it reads, from the best parameters of this one.

        Returns:
            What there is to tell of it: plain values, the same on every rank.
        """
        ...


@runtime_checkable
class FetchesAhead(Fetcher, Protocol):
    """A `Fetcher` that works ahead of the training. All ranks call its methods at the same time."""

    def ahead(self, feed: Feed, sample: "SamplePolicy", phase: Phase, first: tuple[int, int]) -> Feed:
        """Start to fetch what `feed` gives, from (epoch, index) `first`.

        Returns:
            The feed to train from; it closes the other.
        """
        ...

    @property
    def hit_counts(self) -> dict[str, int]:
        """How much of what was needed was there already: plain counts."""
        ...


@runtime_checkable
class RecordsSteps(Fetcher, Protocol):
    """A `Fetcher` that can have steps on its work recorded and played again."""

    def recorded(
        self, module: nn.Module, rules: "StepRules", parameters: list[nn.Parameter], alone: bool
    ) -> "RecordedStep | None":
        """What plays steps of this module, for a `ReducePolicy` by which every seed counts the same; None: they cannot
        be recorded.

        Args:
            module: what is trained.
            rules: how.
            parameters: whose gradients are wanted.
            alone: whether each step has one piece of work.
        """
        ...


class RecordedStep(Protocol):
    """Forward and backward of pieces of work that look alike."""

    def contribute(self, work: Any) -> "WorkDone | None":
        """See `ReducePolicy.contribute`; None: this piece is another matter, and still to be done."""
        ...


class ReducePolicy(Protocol):
    """How losses and gradients of one step are put together over minibatches and ranks."""

    def optimizer(self, parameters: list[nn.Parameter], rules: StepRules) -> torch.optim.Optimizer:
        """What takes a step along the gradient that `reduce` gives."""
        ...

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        """Add what this piece of work has to say to the gradients of the module's parameters."""
        ...

    def statistics(self, module: nn.Module, group: Group) -> "Statistics":
        """What keeps the statistics of the module's batch normalisations right; made once per phase."""
        ...

    def reduce(
        self, parameters: list[nn.Parameter], count: float, group: Group, flag: bool = False, overlap: Overlap = nothing
    ) -> tuple[float, bool]:
        """Turn the accumulated gradients of this rank into the step's gradient on every rank.

        Args:
            parameters: their `.grad` holds the sum over this rank's seeds (None counts as zero).
            count: what this rank's seeds in the step count.
            group: the ranks.
            flag: raised by a rank that all ranks are to hear of; it travels with the gradients.
            overlap: see `Group.all_reduce`.

        Returns: The count over all ranks (zero: there was nothing to learn from, skip the step), and whether any has
            raised the flag.
        """
        ...


class Statistics(Protocol):
    """Batch normalisation over minibatches and ranks."""

    def minibatch(self, position: int, of: int) -> AbstractContextManager[None]:
        """Around forward and backward of one of this rank's pieces of work, `position` in [0, of) of the step."""
        ...

    def finish(self, of: int) -> None:
        """At the end of a step of `of` pieces of work, on every rank."""
        ...


class SchedulePolicy(Protocol):
    """What is trained when."""

    def record(self, epochs: int) -> dict[str, Any]:
        """Everything that decides parameters beside how long the last phase goes on, as plain values, for
        fingerprints."""
        ...

    def build(self, config: ModelConfig, num_features: int, num_classes: int) -> nn.Module:
        """The whole model.

        Raises:
            InputError: it cannot be trained like this.
        """
        ...

    def phases(self, epochs: int, model: nn.Module) -> tuple[Phase, ...]:
        """The run's phases, where the configuration says so many epochs."""
        ...

    def begin(self, phase: Phase, model: nn.Module) -> nn.Module:
        """The module that this phase trains: the model, or a part of it that shares its parameters."""
        ...
