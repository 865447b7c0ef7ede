"""A job under one system, and where it is to run: what the laws of a plan start from."""

import math
from dataclasses import dataclass

from torch import nn

from ...stages.models import MODELS
from ...stages.partition.cut_counts import CutCounts
from ...stages.placement.chunk_schedule import ChunkSchedule
from ...storage.dataset import Dataset
from ...storage.partition.book import PartitionBook
from ..config.load import Job, build
from ..config.systems import System
from ..setup.model import TORCH_DTYPES, Outline
from .inputs import Numbers
from .network import Link


@dataclass(frozen=True, eq=False)
class Setting:
    """The data and the machines, the same for all candidates."""

    dataset: Dataset
    """The trial's."""
    outline: Outline
    numbers: Numbers
    """Of the run's dataset, for which a generated one may stand in."""
    stands_in: bool
    per_host: int
    """Ranks of one machine."""
    threads: int
    """Of a rank."""
    cores: int
    link: Link | None

    @property
    def growth(self) -> float:
        """Nodes of the run over those of the trial."""
        return self.numbers.nodes / self.dataset.num_nodes

    @property
    def work_growth(self) -> float:
        """The same of nodes and edges, their mean."""
        return (self.growth + self.numbers.edges / max(1, self.dataset.graph.num_edges)) / 2

    @property
    def train(self) -> int:
        """Train nodes of the run."""
        n = self.numbers
        return max(1, round(n.train * n.nodes)) if self.stands_in else len(self.dataset.split.train)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A job under one system."""

    label: str
    job: Job
    system: System
    at: Setting
    cut: CutCounts | None = None
    """The trial's graph in as many parts as the run's ranks need."""
    trial_cut: CutCounts | None = None
    """The same for the ranks of the trial."""
    book: PartitionBook | None = None

    @property
    def ranks(self) -> int:
        """P."""
        return self.job.ranks

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return TORCH_DTYPES[self.job.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """Of a feature row."""
        return self.at.outline.num_features * self.itemsize

    @property
    def feature_bytes(self) -> int:
        """Of all features of the run."""
        return self.at.numbers.nodes * self.row_bytes

    @property
    def is_local(self) -> bool:
        """True where each rank samples from its own part."""
        return self.system.sample.is_isolated

    @property
    def is_sampled(self) -> bool:
        """True where steps are over minibatches."""
        return self.system.sample.sampler is not None

    @property
    def exchanges(self) -> bool:
        """True where feature rows of minibatches travel."""
        return self.job.features == "owned" and self.ranks > 1

    def model(self) -> nn.Module:
        """As the system trains it."""
        record, outline = build("model", MODELS, self.job.model), self.at.outline
        built = self.system.schedule.build(record, outline.num_features, outline.num_classes)
        return built.to(TORCH_DTYPES[self.job.dtype])

    @property
    def minibatches(self) -> float:
        """Per epoch over all ranks; a partial last one counts fractionally."""
        return self.at.train / self.job.train.batch_size

    def per_step(self, ranks: int) -> int:
        """Minibatches in a step of so many ranks."""
        return self.job.train.minibatches_per_step or ranks

    @property
    def most_seeds(self) -> float:
        """Train nodes of the rank that has most."""
        if self.cut is None:
            return self.at.train / self.ranks
        options = self.system.options
        deal = ChunkSchedule(
            self.job.seed, self.ranks, options.get("chunks", 1), options.get("reshuffle_fraction", 0.0), "none"
        )
        most = max(int(self.cut.train[list(deal.base(r, 0))].sum()) for r in range(self.ranks))
        return most / max(1, int(self.cut.train.sum())) * self.at.train

    @property
    def steps(self) -> int:
        """Per epoch."""
        if self.is_local:
            return max(1, math.ceil(round(self.most_seeds, 6) / self.job.train.batch_size))
        return max(1, math.ceil(math.ceil(self.minibatches) / self.per_step(self.ranks))) if self.is_sampled else 1

    @property
    def epochs(self) -> int:
        """Of the run: of layer-by-layer training, all layers'."""
        return self.system.schedule.phases(self.job.epochs, self.model())[-1].last_epoch
