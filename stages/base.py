"""The five policies that a training system is made of, and what passes between them.

The loop (`pipeline.training.loop`) calls these and nothing else, so it never asks which system it runs: a new system is one record of
five policies, and at most one new file for each.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..storage.dataset import Split
from ..storage.features import FeatureStore
from ..storage.graph import Graph
from ..storage.ledger import Ledger
from ..storage.partition.edge_shards import EdgeShards
from .models.base import ModelConfig
from .neighbourhood.base import Neighbourhood
from .partition.base import Partitioner


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one partitioning and one set of trained layers."""

    number: int
    first_epoch: int
    last_epoch: int
    """Exclusive. Epochs are counted over the whole run."""
    name: str = ""
    """What it trains, in words."""
    anew: bool = False
    """Whether it has an optimiser and a best epoch of its own; the next phase then starts from the parameters of that epoch."""

    @property
    def epochs(self) -> int:
        """Epochs in this phase."""
        return self.last_epoch - self.first_epoch


TAGS = 1 << 30
"""Tags that `Group.swap` takes."""


Meanwhile = Callable[[], None]
"""Work to do while numbers of other ranks are on their way."""


def nothing() -> None:
    """Nothing to do meanwhile."""


class Group(Protocol):
    """The ranks that train together.

    All ranks call the same methods in the same order, from one thread. Payload bytes that this rank sends are counted in its ledger,
    channel ``network``, under the `kind` that the caller names. A method raises PeerLostError when a peer is gone.
    """

    @property
    def rank(self) -> int:
        """This process, in [0, size)."""
        ...

    @property
    def size(self) -> int:
        """P, the number of ranks."""
        ...

    @property
    def present(self) -> Sequence[int]:
        """The ranks that were in the last sum, ascending: all, but in a group that outlives its members (`comm.survivors`)."""
        ...

    def sub(self, name: str, ranks: Sequence[int], same_thread: bool = False) -> "Group":
        """A group of its own among some of these ranks, for another thread or for a smaller circle.

        Exactly those ranks call this, at the same time. It counts in the same ledger, and closes with this group.

        Args:
            name: what else there is on the same ranks has another.
            ranks: ascending, this one among them.
            same_thread: whether the thread that uses this group will use the other too, and every rank in the same order.
        """
        ...

    def counting(self, channel: str) -> AbstractContextManager[None]:
        """Within, bytes are counted under this channel of the ledger."""
        ...

    def all_reduce(self, flat: Tensor, kind: str, meanwhile: Meanwhile = nothing) -> None:
        """Sum a contiguous tensor over the ranks, in place: the same bits on every rank.

        Args:
            flat: on all ranks of one size and dtype.
            kind: what the ledger counts it under.
            meanwhile: called at most once, while this rank's numbers are on their way: work that asks nothing of other ranks.
        """
        ...

    def any(self, flag: bool) -> bool:
        """True on every rank if `flag` is true on some rank. Counted as ``control``."""
        ...

    def broadcast(self, flat: Tensor, source: int, kind: str) -> None:
        """Overwrite a contiguous tensor with that of rank `source`."""
        ...

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        """Hand part r to rank r, and get what each rank has for this one.

        Args:
            parts: P tensors, [n_r] or [n_r, F], of one dtype and one F on all ranks; any n_r, also 0.
            kind: what the ledger counts the parts under. Sizes that ranks tell each other first count as ``control``.
            into: P tensors that fit what will arrive, for a caller who knows the sizes: nothing is allocated and no sizes travel.
                All ranks pass it, or none. Cut from one tensor (``Tensor.split``), with no rows for this rank.

        Returns:
            P tensors in the order of ranks; this rank's own is ``parts[rank]`` itself.
        """
        ...

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> "Swap":
        """Start to send `part` to rank `to` and to receive `into` from rank `source`; returns at once.

        Both sides know all sizes: an empty tensor neither travels nor is waited for. Ranks need not be in step: what belongs together
        is told by the tag.

        Args:
            part: contiguous; not to be changed until it is sent.
            to: another rank, unless `part` is empty.
            into: contiguous; not to be read until it has been received.
            source: another rank, unless `into` is empty.
            tag: in [0, `TAGS`); the same on both sides, and no other message of these two under way has it.
            kind: what the ledger counts `part` under.
        """
        ...


class Swap(Protocol):
    """A message out and a message in, both under way. `what` says in words what is waited for, should it never come."""

    def received(self, what: str) -> None:
        """Wait for what comes in. Raises PeerLostError when the peer is gone."""
        ...

    def sent(self, what: str) -> None:
        """Wait until the part that goes out may be changed. Raises PeerLostError when the peer is gone."""
        ...


@dataclass(frozen=True, eq=False)
class Placement:
    """What one rank sees of the data during a phase."""

    graph: Graph
    """Rows that this rank can sample from (all of them where the topology is replicated)."""
    features: FeatureStore
    labels: Tensor
    """int64 [V] or floating [V, C]."""
    degree: Tensor
    """[V] in-degree in the whole graph (weighted: sum of weights), in the dtype of the run."""
    split: Split

    @property
    def seeds(self) -> npt.NDArray[np.int64]:
        """The training nodes that the seed plan cuts into minibatches."""
        return self.split.train

    def labels_of(self, seeds: npt.NDArray[np.integer]) -> Tensor:
        """Labels of training nodes."""
        return self.labels[torch.from_numpy(seeds.astype(np.int64))]


@dataclass(frozen=True, eq=False)
class Part:
    """What one rank opens of data that were cut into parts before it started; rows are local ids."""

    shards: EdgeShards
    owned: npt.NDArray[np.int64]
    """[N] global ids."""
    features: FeatureStore
    """[N, F]."""
    labels: Tensor
    """int64 [N] or floating [N, C]."""
    split: Split
    """Local ids."""
    peers: "Peers | None" = None
    """The other parts, for policies that look at them."""


class Peers(Protocol):
    """The parts of all ranks, in the stores that all of them can read."""

    def part(self, number: int) -> Part:
        """A whole part."""
        ...

    def rows(self, number: int) -> tuple[FeatureStore, npt.NDArray[np.float64]]:
        """[N, F] features of a part's nodes, and [N], the sum of their in-edges' weights in the whole graph."""
        ...


class Held(Protocol):
    """What a partition policy gives; the policies of one system know what else it is."""

    @property
    def graph(self) -> "Sized":
        """The structure."""
        ...

    @property
    def features(self) -> FeatureStore:
        """The rows that this rank reads."""
        ...


class Sized(Protocol):
    """Something whose size in memory is known."""

    @property
    def nbytes(self) -> int:
        """Bytes."""
        ...


@dataclass(frozen=True, eq=False)
class Fetched:
    """One piece of work with everything that forward and backward need."""

    epoch: int
    index: int
    hoods: tuple[Neighbourhood, ...]
    """L, outermost first."""
    h: Tensor
    """[num_src of hoods[0], F]; may lie in a buffer that the next fetch reuses."""
    y: Tensor
    """Labels of the seeds, int64 [B] or floating [B, C]; they are the first B rows of the model's result."""
    weight: Tensor | None = None
    """float64 [B], what each seed counts; None: all the same."""
    begun: "Begun | None" = None
    """What of the forward pass was done before the parameters were there: see `stages.train.begin`."""
    clients: "tuple[Fetched, ...]" = ()
    """The same work as so many clients would have it, where clients are simulated."""


@dataclass(frozen=True, eq=False)
class Begun:
    """The start of a forward pass, up to its first parameter."""

    entered: Any
    """What the model's `enter` gave."""
    generator: Tensor
    """The state of torch's CPU generator after it."""


class Feed(Protocol):
    """Where a rank's work comes from. Waits are bounded; a failure of the other side is raised here."""

    def get(self, epoch: int, index: int) -> Any:
        """Piece `index` of `epoch`: a MiniBatch, or whatever the neighbourhood policy of the same system understands."""
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


@dataclass(frozen=True, eq=False)
class RankJob:
    """What the policies may know of the run: plain values, the same on every rank but for `group`."""

    seed: int
    batch_size: int
    bulk_size: int
    epochs: int
    dtype: torch.dtype
    kernel: Any
    """The sampling kernels, a module of `stages.kernels`."""
    group: Group
    ledger: Ledger
    queue: Any = None
    """An opened MinibatchQueue for systems that use one."""
    produce: bool = True
    """Fill the queue from inside this process (false when it was filled beforehand or elsewhere)."""
    minibatches_per_step: int = 1
    """M, over all ranks."""
    producer_alive: Callable[[], bool] = lambda: True
    """Whether whoever fills the queue from elsewhere may still add to it; asked while waiting."""

    tell: Callable[[str], None] = lambda text: None
    """Called with a sentence that the user should read."""
    num_layers: int = 1
    """L of the model."""
    folder: Path | None = None
    """Of the run, which all ranks see."""
    generation: int = 0
    """How often the ranks of this run have been started before."""
    fingerprint: str = ""
    """A digest of everything that decides the parameters of this run."""
    device: torch.device | None = None
    """Whose memory a step's tensors lie in, the model's too; None: the host's."""
    resident: bool = False
    """Whether minibatches are drawn on `device` and stay there."""
    needs_all_rows: bool = False
    """Whether training depends on nodes that no seed's result does, as batch normalisation over all nodes makes it."""

    def is_mine(self, index: int) -> bool:
        """Whether this rank trains on minibatch `index` of an epoch: rank r takes every P-th of a step's, from the r-th on."""
        return index % self.minibatches_per_step % self.group.size == self.group.rank


class PartitionPolicy(Protocol):
    """How graph, features and seeds are laid out over ranks."""

    @property
    def partitioner(self) -> Partitioner | None:
        """How data are cut into stored parts before several ranks start, each of which then opens its own part alone; None: ranks
        open the whole."""
        ...

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Any = None) -> Held:
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


class NeighbourhoodPolicy(Protocol):
    """How a layer's neighbours are seen: from work to tensors."""

    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> "Fetcher":
        """Made once per phase for the module that it trains; owns the buffers."""
        ...


@runtime_checkable
class KeepsRows(NeighbourhoodPolicy, Protocol):
    """A policy whose fetchers read rows that were put on the device once."""

    def rows_there(self, features: FeatureStore, job: RankJob) -> Tensor | None:
        """[V, F], all rows in the memory of the job's device, as fetchers read them; None if they lie on the host."""
        ...


@dataclass(frozen=True)
class Validation:
    """How a module does on the validation nodes."""

    accuracy: float
    merit: float
    """What the best epoch has most of."""


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
    def told(self) -> dict[str, int]:
        """How much of what was needed was there already: plain counts."""
        ...


@runtime_checkable
class RecordsSteps(Fetcher, Protocol):
    """A `Fetcher` that can have steps on its work recorded and played again."""

    def recorded(self, module: nn.Module, rules: "StepRules", parameters: list[nn.Parameter], alone: bool) -> "RecordedStep | None":
        """What plays steps of this module, for a `ReducePolicy` by which every seed counts the same; None: they cannot be recorded.

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


@dataclass(frozen=True)
class WorkDone:
    """What a piece of work contributed."""

    loss_sum: float | Tensor
    """Summed over its seeds, unweighted; a scalar on the device of those who train there, who must not wait for it."""
    seeds: int
    weight: float | None = None
    """What its seeds count together; None: each one."""


@dataclass(frozen=True)
class StepRules:
    """How a piece of work is trained on, the same for all of a run."""

    seed: int
    task: Literal["multiclass", "multilabel"]
    products: Literal["float32", "bfloat16"]
    group: Group
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    """A fresh one, as the configuration has it."""


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
        self, parameters: list[nn.Parameter], count: float, group: Group, flag: bool = False, meanwhile: Meanwhile = nothing
    ) -> tuple[float, bool]:
        """Turn the accumulated gradients of this rank into the step's gradient on every rank.

        Args:
            parameters: their `.grad` holds the sum over this rank's seeds (None counts as zero).
            count: what this rank's seeds in the step count.
            group: the ranks.
            flag: raised by a rank that all ranks are to hear of; it travels with the gradients.
            meanwhile: see `Group.all_reduce`.

        Returns:
            The count over all ranks (zero: there was nothing to learn from, skip the step), and whether any has raised the flag.
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
        """Everything that decides parameters beside how long the last phase goes on, as plain values, for fingerprints."""
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

    def begin(self, phase: Phase, model: nn.Module, resumed: bool) -> nn.Module:
        """The module that this phase trains; `resumed`: the model holds what an earlier life of the run had reached in it."""
        ...
