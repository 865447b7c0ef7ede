"""A job under one system, with the data and machines that it is planned for: inputs of a plan's formulas."""

import math
from dataclasses import dataclass

import numpy as np
from torch import nn

from ...stages.models.base import reads_edges
from ...stages.partition.cut_counts import CutCounts
from ...stages.placement.chunk_schedule import ChunkSchedule
from ...stages.sample.base import reads_times
from ...storage.array_kinds import IntArray
from ...storage.dataset import Dataset
from ..config.load import Job
from ..config.systems import System
from ..setup.model import TORCH_DTYPES, Outline, model_of
from .inputs import Numbers
from .network import Link


@dataclass(frozen=True, eq=False)
class Setting:
    """Data and machines, the same for all candidates."""

    dataset: Dataset
    """Dataset of the trials, which may stand in for the run's."""
    numbers: Numbers
    """Numbers of the run's dataset."""
    outline: Outline
    """Outline of the dataset of the trials, with the task of the run's."""
    stands_in: bool
    per_host: int
    """Ranks of a machine."""
    threads: int
    """Threads of a rank."""
    cores: int
    gpus: int
    """GPUs of a machine; 0: ranks train on CPUs."""
    device_room: int
    """Memory of a rank's GPU."""
    link: Link | None

    @property
    def growth(self) -> float:
        """Nodes of the run over those of the trials."""
        return self.numbers.nodes / self.dataset.num_nodes

    def load(self, ranks: int) -> float:
        """Threads for each core of a machine with so many ranks, if they share cores; else 1."""
        return max(1.0, ranks * self.threads / self.cores)

    def crowd(self, ranks: int) -> float:
        """Slowness of a machine's ranks that train beside each other: threads for each core, or ranks for each GPU."""
        return max(1.0, ranks / self.gpus) if self.gpus else self.load(ranks)

    @property
    def train(self) -> int:
        """Train nodes, or pairs, of the run."""
        return max(1, round(self.numbers.train * self.numbers.nodes))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A job under one system."""

    label: str
    job: Job
    system: System
    at: Setting
    cut: CutCounts | None = None
    """The trials' graph in the parts of the run's ranks."""
    trial_cut: CutCounts | None = None
    """The trials' graph in the parts of a trial's ranks."""

    @property
    def ranks(self) -> int:
        """P."""
        return self.job.ranks

    @property
    def is_cut(self) -> bool:
        """True if ranks hold parts of the graph."""
        return self.cut is not None

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes of the dataset's features of a node, and of an edge if the model reads them."""
        learned, n = self.job.learned, self.at.numbers
        widths = n.features * (learned.beside or not learned.width), n.edge_features * reads_edges(self.model)
        node, edge = (width * TORCH_DTYPES[self.job.dtype].itemsize for width in widths)
        return node, edge

    @property
    def feature_bytes(self) -> int:
        """Bytes of all these features."""
        node, edge = self.row_bytes
        return self.at.numbers.nodes * node + self.at.numbers.edges * edge

    @property
    def replication(self) -> int:
        """Number of ranks that hold each row of owned features."""
        return self.system.options.get("replication", 1)

    @property
    def is_sampled(self) -> bool:
        """True if steps train on minibatches."""
        return self.system.sample.sampler is not None

    @property
    def is_resident(self) -> bool:
        """True if minibatches stay on the GPU that draws them."""
        return self.at.gpus > 0 and self.is_sampled and self.job.kernel == "cuda"

    @property
    def validates(self) -> bool:
        """True if validations come between epochs."""
        return self.job.train.evaluate_every > 0 and self.at.dataset.split_sizes["val"] > 0

    @property
    def reads_times(self) -> bool:
        """True if minibatches are drawn at the times of seeds."""
        return reads_times(self.system.sample.sampler)

    @property
    def evaluates_seeds(self) -> bool:
        """True if what evaluating a split costs goes by its seeds, or its pairs."""
        return self.reads_times or self.at.numbers.of_pairs

    @property
    def exchanges(self) -> bool:
        """True if ranks send each other the feature rows of minibatches."""
        return (self.job.features == "owned" or self.has_blocks) and self.ranks > 1

    @property
    def has_blocks(self) -> bool:
        """True if each rank has a block of the graph's rows."""
        return self.system.partition.has_blocks

    @property
    def model(self) -> nn.Module:
        """The model as the system trains it."""
        return model_of(self.job, self.at.outline, self.system, None).build()

    @property
    def minibatches(self) -> float:
        """Minibatches of an epoch over all ranks; a partial last one counts fractionally."""
        return self.at.train / self.job.train.batch_size

    def in_turn(self, ranks: int) -> int:
        """Minibatches of a step that a rank of so many trains on, one after the other."""
        return math.ceil(self.job.train.per_step(ranks) / ranks)

    @property
    def fractional_steps(self) -> float:
        """Steps of an epoch; an incomplete last one counts fractionally."""
        if not self.is_sampled:
            return 1.0
        if not self.system.sample.is_isolated:
            return self.minibatches / self.job.train.per_step(self.ranks)
        # The rank with most train nodes has most minibatches.
        share, schedule = 1 / self.ranks, self.schedule
        if self.cut is not None:
            train = self._train_by_parts(self.cut)
            share = max(
                train[np.ix_((*schedule.base(rank, 0), *schedule.variable(rank, 0)), schedule.base(rank, 0))].sum()
                for rank in range(self.ranks)
            ) / max(1, train.sum())
        return max(1.0, float(share) * self.minibatches)

    @property
    def schedule(self) -> ChunkSchedule:
        """Parts that each rank sees in each phase."""
        return self.system.partition.schedule(self.job.seed_of("minibatches"), self.ranks)

    def _train_by_parts(self, cut: CutCounts) -> IntArray:
        """[P, P], train pairs by the parts of their sources and destinations; train nodes on the diagonal."""
        data = self.at.dataset
        if not data.of_pairs:
            return np.diag(cut.train)
        source, destination = cut.book.part(data.pair_table[data.split.train, :2].T)
        return np.bincount(source * cut.size + destination, minlength=cut.size**2).reshape(cut.size, cut.size)

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return max(1, math.ceil(round(self.fractional_steps, 6)))

    @property
    def epochs(self) -> int:
        """Epochs of the run; with layer-by-layer training, those of all layers."""
        return self.system.schedule.phases(self.job.epochs, self.model)[-1].last_epoch
