"""Fetches minibatches: feature rows from one source, targets of seeds and degrees of nodes, each a part handed in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.features import ArrayFeatures, FeatureStore
from ...storage.minibatch import MiniBatch
from ..kernels.runtime.device_memory import to_device
from ..learned.beside import WithLearned
from ..learned.table import LearnedTable
from ..links.planned_pairs import Degree, OfSeeds, PlannedPairs
from ..memory.lazy_rows import LazyRows
from ..messages import Fetched, Phase, Placement, RankJob, StepRules
from ..policies import Feed, Fetcher, FetchPolicy, RecordedStep, ReducePolicy, SamplePolicy
from ..sample.resident import ResidentMiniBatch
from ..sample.temporal import degrees_until
from .gather import InPlace
from .isolated import Correction, Weights
from .rows import Rows, RowsPolicy, Taken

if TYPE_CHECKING:
    from ..feed.link_feed import LinksByOwners, LocalLinks, SampledLinks
    from ..kernels.minibatch_cuda.frames import Frame
    from .gather_cuda import DeviceMemory


HOST = torch.device("cpu")


class Targets(Protocol):
    """What seeds are trained on."""

    has_frames: ClassVar[bool]
    """See `Rows.has_frames`."""

    def targets(self, work: MiniBatch, degree: Degree) -> tuple[Degree, OfSeeds]:
        """Degrees that layers read, given those of the graph; and what `Fetched` has of the seeds."""

    def framed(self, frame: "Frame") -> OfSeeds:
        """What `Fetched` has of the seeds of any minibatch that is in the frame when the device reads it."""


@dataclass(frozen=True, eq=False)
class Labels:
    """`Targets` of nodes."""

    has_frames: ClassVar[bool] = True
    placement: Placement
    near: torch.device
    """Device of minibatches."""
    to: torch.device
    """Device of a step."""

    @cached_property
    def _on_device(self) -> Tensor | None:
        return self.placement.labels_on_device(self.near)

    def targets(self, work: MiniBatch, degree: Degree) -> tuple[Degree, OfSeeds]:
        labels = None if self.near == HOST or work.on_host else self._on_device
        if labels is None:
            y = self.placement.labels_of(work.seeds).to(self.to, non_blocking=True)
        else:
            y = labels[work.drawn_nodes[: len(work.seeds)]]
        return cache(degree), {"y": y}

    def framed(self, frame: "Frame") -> OfSeeds:
        assert self._on_device is not None
        return {"y": self._on_device[frame.nodes[: frame.layout.nodes[0]]]}


@dataclass(frozen=True, eq=False)
class Degrees:
    """Degrees of nodes in the whole graph, on the device of minibatches."""

    is_whole: ClassVar[bool] = True
    placement: Placement
    near: torch.device

    @cached_property
    def all(self) -> Tensor:
        """[V]."""
        return self.placement.degree.to(self.near)

    def of_work(self, work: MiniBatch, got: Taken) -> Tensor:
        """[n], of all nodes of a minibatch."""
        return self.all[got.nodes()]


class DegreesUntil(Degrees):
    """Degrees until the moments of the seeds whose trees the nodes are in; of minibatches that were drawn on the host,
    the host finds them."""

    is_whole = False

    def of_work(self, work: MiniBatch, got: Taken) -> Tensor:
        if isinstance(work, ResidentMiniBatch):
            found = work.bulk.degrees_until(work.q)
        else:
            graph = self.placement.graph
            assert graph.node_time is not None
            found = to_device(degrees_until(graph, work, graph.node_time[work.seeds]), self.near)
        return found.to(self.placement.degree.dtype)


@dataclass(frozen=True)
class Fetch(FetchPolicy):
    """Fetches each node's row at most once per minibatch; every block then aggregates locally."""

    rows: RowsPolicy = field(default_factory=InPlace)
    pairs: "SampledLinks | LinksByOwners | LocalLinks | None" = None
    """Sample policy that plans the pairs whose ends are the seeds; None: seeds have labels."""
    by_time: bool = False
    """Minibatches are drawn until the moments of their seeds."""
    correction: Correction = "none"
    """Weights of seeds where a rank sees a part of the graph."""
    learned: WithLearned | None = None
    """Says how learnt rows (`RankJob.learned`) and the dataset's are put together; None: there are none."""
    memory: "DeviceMemory | None" = None
    """Of the rank's GPU; None: minibatches come to the host."""
    reads_edges_on_device: ClassVar[bool] = True

    @property
    def gathers_alone(self) -> bool:
        return not self.rows.is_owned

    def with_memory(self, memory: Callable[[], "DeviceMemory"]) -> "Fetch":
        return replace(self, memory=memory())

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "MinibatchFetcher":
        """See `FetchPolicy.fetcher`. All ranks call this at the same time. Reads this rank's rows and nothing later.
        The module has the decoder of pairs; None: they come without scores."""
        to = job.device or HOST
        near = to if self.memory else HOST
        if self.memory and job.resident and (job.produce or self.rows.is_read):
            self.memory.place(placement.graph, self.by_time)
        degrees = (DegreesUntil if self.by_time else Degrees)(placement, near)
        targets: Targets = Labels(placement, near, to)
        if self.pairs:
            targets = PlannedPairs.from_placement(self.pairs, placement, job, module)
        weights, columns = Weights(placement, self.correction), list[LearnedColumns]()
        if self.learned:
            none = ArrayFeatures(np.empty((placement.features.num_rows, 0), self.learned.dtype))
            placement = replace(placement, features=self.learned.given or none)
            columns.append(LearnedColumns(job.learned, self.learned))
        rows: Rows = self.rows.open(placement, job, self.memory)
        return MinibatchFetcher(rows, targets, degrees, weights, to, columns)

    def device_rows(self, features: FeatureStore, job: RankJob, locked: bool = False) -> Tensor | None:
        if not self.memory or self.learned:
            return None
        return self.rows.device_rows(features, job, self.memory, locked)


class LearnedColumns(NamedTuple):
    """Each node's learnt row, beside its features if the dataset's are read too. Collective.

    If the table is on the host and the other rows on a device, rows travel there and their gradients back; the host
    waits for both, and for the ids of minibatches that were drawn there. Learnt rows never come ahead: the step before
    changes them.
    """

    table: LearnedTable
    features: WithLearned
    """Says how both are put together."""

    def beside(self, h: Tensor, work: MiniBatch) -> Tensor:
        """[n, F + D], from the other rows [n, F], which have no columns if the dataset's features are not read."""
        learned = self.table.take(work.drawn_nodes).to(h.device)
        if not h.shape[1]:
            return learned
        return self.features.beside(h.gathered() if isinstance(h, LazyRows) else h, learned)


@dataclass(eq=False)
class MinibatchFetcher(Fetcher):
    """Rows of one source, targets of seeds and degrees of nodes, for the minibatches of a rank."""

    rows: Rows
    targets: Targets
    degrees: Degrees
    weights: Weights
    to: torch.device = HOST
    """Device of a step. Rows of the host are copied there; their lists, when a layer needs them."""
    columns: Sequence[LearnedColumns] = ()
    """Learnt rows, one after the other; empty: there are none."""

    @property
    def exchange_s(self) -> float:
        return self.rows.exchange_s

    @property
    def hit_counts(self) -> dict[str, int]:
        return self.rows.hit_counts

    def ahead(self, feed: Feed, sample: SamplePolicy, phase: Phase, first: tuple[int, int]) -> Feed:
        return self.rows.ahead(feed, sample, phase, first)

    def fetch(self, work: MiniBatch) -> Fetched:
        got = self.rows.take(work)

        # Most layers need no degrees, and those of all sources are as many random reads as a small gather.
        def degrees() -> Tensor:
            return self.degrees.of_work(work, got) if got.degree is None else got.degree

        degree, of_seeds = self.targets.targets(work, degrees)
        h = got.h if self.rows.device or self.to == HOST else got.h.to(self.to, non_blocking=True)
        for columns in self.columns:
            h = columns.beside(h, work)
        return self.weights.given(Fetched(work.epoch, work.index, got.layers(degree), h, **of_seeds), work)

    def framed(self, frame: "Frame") -> Fetched:
        """Like `fetch`, for any minibatch that is in the frame when the device reads it."""
        got, degree = self.rows.framed(frame), cache(lambda: self.degrees.all[frame.nodes])
        return Fetched(0, 0, got.layers(degree), got.h, **self.targets.framed(frame))

    def recorded(
        self, module: nn.Module, reduce: ReducePolicy, rules: StepRules, parameters: list[nn.Parameter], alone: bool
    ) -> RecordedStep | None:
        framed = self.rows.has_frames and self.targets.has_frames and self.degrees.is_whole
        if self.columns or not framed:
            return None
        # Needs Triton.
        graphs = import_module(".cuda_graph", __package__)
        return graphs.StepGraph(module, self, reduce, rules, parameters, alone) if graphs.can_record(module) else None

    def idle(self) -> None:
        """See `Fetcher.idle`: this rank's rows may be wanted by others, learnt ones too."""
        self.rows.idle()
        for columns in self.columns:
            columns.table.take(np.empty(0, np.int64))
