"""Messages between the stages of a training system: frozen records of plain values and tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..storage.dataset import Split
from ..storage.features import FeatureStore
from ..storage.graph import Graph
from ..storage.ledger import Ledger
from ..storage.partition.edge_shards import EdgeShards
from .assignment import Steps
from .comm.base import Group
from .neighbourhood.base import Neighbourhood


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one partitioning and one set of trained layers."""

    number: int
    first_epoch: int
    last_epoch: int
    """Exclusive. Epochs are counted over the whole run."""
    name: str = ""
    """What it trains, in words."""
    fresh_optimizer: bool = False
    """Whether it has an optimiser and a best epoch of its own; the next phase then starts from the parameters of that
    epoch."""

    @property
    def epochs(self) -> int:
        """Epochs in this phase."""
        return self.last_epoch - self.first_epoch


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


class PlacedData(Protocol):
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
    neighbourhoods: tuple[Neighbourhood, ...]
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

    def steps(self, minibatches: int) -> Steps:
        """The steps of an epoch of so many minibatches (over all ranks), and this rank's part in them."""
        return Steps(minibatches, self.minibatches_per_step, self.group.size, self.group.rank)


@dataclass(frozen=True)
class Validation:
    """How a module does on the validation nodes."""

    accuracy: float
    merit: float
    """What the best epoch has most of."""


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
    matmul_precision: Literal["float32", "bfloat16"]
    group: Group
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    """A fresh one, as the configuration has it."""
