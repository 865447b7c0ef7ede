"""What a plan knows of one candidate before it is rehearsed."""

import math
from dataclasses import dataclass

from torch import nn

from ...stages.feed.local_feed import Local
from ...stages.feed.queue_feed import Sampled
from ...stages.models import MODELS
from ...stages.partition.cut_counts import CutCounts
from ...stages.placement.chunk_schedule import ChunkSchedule
from ...storage.dataset import Dataset
from ...storage.partition.book import PartitionBook
from ..config.load import Job, build
from ..config.systems import System
from ..setup.prepare import TORCH_DTYPES, Outline
from .network import Link


@dataclass(frozen=True, eq=False)
class Candidate:
    """One candidate."""

    label: str
    job: Job
    system: System
    dataset: Dataset
    """What is rehearsed on."""
    outline: Outline
    nodes: int
    """V of the run; that of `dataset` unless it stands in."""
    edges: int
    train: int
    """Train nodes of the run."""
    stands_in: bool
    cut: CutCounts | None
    """`dataset` in as many parts as the run's ranks need."""
    rehearsed_cut: CutCounts | None
    book: PartitionBook | None
    per_host: int
    """Ranks of one machine."""
    threads: int
    """Of a rank."""
    cores: int
    link: Link | None

    @property
    def ranks(self) -> int:
        """P."""
        return self.job.ranks

    @property
    def growth(self) -> float:
        """How many times as large the run's graph is as the one that is rehearsed on."""
        return self.nodes / self.dataset.num_nodes

    @property
    def edge_growth(self) -> float:
        """The same for edges."""
        return self.edges / max(1, self.dataset.graph.num_edges)

    @property
    def itemsize(self) -> int:
        """Of a number."""
        return TORCH_DTYPES[self.job.dtype].itemsize

    @property
    def feature_bytes(self) -> int:
        """Of all features."""
        return self.nodes * self.outline.num_features * self.itemsize

    @property
    def graph_bytes(self) -> int:
        """Of in-neighbour lists: V + 1 places and E ids."""
        return 8 * (self.nodes + 1) + (4 if self.nodes < 2**31 else 8) * self.edges

    @property
    def sampled(self) -> bool:
        """Whether steps are over minibatches."""
        return isinstance(self.system.sample, Sampled | Local)

    @property
    def exchanges(self) -> bool:
        """Whether feature rows of minibatches travel."""
        return self.job.features == "owned" and self.ranks > 1

    @property
    def replication(self) -> int:
        """c."""
        return self.job.bulk.replication

    def model(self) -> nn.Module:
        """As the system trains it."""
        record = build("model", MODELS, self.job.model)
        built = self.system.schedule.build(record, self.outline.num_features, self.outline.num_classes)
        return built.to(TORCH_DTYPES[self.job.dtype])

    @property
    def most_seeds(self) -> float:
        """Train nodes of the rank that has most."""
        if self.cut is None:
            return self.train / self.ranks
        per_rank = self.job.grappa.chunks if self.system.name == "grappa" else 1
        deal = ChunkSchedule(
            self.job.seed,
            self.ranks,
            per_rank,
            self.job.grappa.reshuffle_fraction if self.system.name == "grappa" else 0.0,
            "none",
        )
        share = max(int(self.cut.train[list(deal.base(r, 0))].sum()) for r in range(self.ranks)) / max(
            1, int(self.cut.train.sum())
        )
        return share * self.train

    @property
    def minibatches(self) -> float:
        """Of an epoch, over all ranks; a smaller one at the end counts for what it is."""
        return self.train / self.job.train.batch_size

    @property
    def steps(self) -> int:
        """Of an epoch."""
        if isinstance(self.system.sample, Local):
            return max(1, math.ceil(round(self.most_seeds, 6) / self.job.train.batch_size))
        if isinstance(self.system.sample, Sampled):
            return max(1, math.ceil(math.ceil(self.minibatches) / (self.job.train.minibatches_per_step or self.ranks)))
        return 1

    @property
    def epochs(self) -> int:
        """That are trained: of layer-by-layer training, all layers'."""
        return self.system.schedule.phases(self.job.epochs, self.model())[-1].last_epoch
