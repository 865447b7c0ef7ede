"""Fetches for ranks that train on a GPU: everything a step reads is on the device, or on its way, when the step
begins."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.features import CountedFeatures, FeatureStore, in_place
from ...storage.minibatch import MiniBatch
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.minibatch_cuda.frames import Frame
from ..kernels.minibatch_cuda.rows import Cache, gather_rows
from ..kernels.runtime.device_memory import MemoryKind, device_readable, goes_to_device, to_device, wait_for_copies
from ..kernels.sampling.device_graph import number_on_device, place_graph
from ..kernels.sampling.device_samples import DeviceList, Rows
from ..links.planned_pairs import HasTargets
from ..memory.lazy_rows import LazyRows, torch_dtype
from ..messages import Fetched, Phase, Placement, RankJob, StepRules
from ..neighbourhood.resident import EdgesOnDevice, ResidentNeighbourhood
from ..placement.chunks import Isolated
from ..placement.row_blocks import BlockRows
from ..policies import Feed, Fetcher, FetchesAhead, FetchPolicy, ReducePolicy, SamplePolicy
from ..sample.resident import ResidentMiniBatch
from .cuda_graph import StepGraph, can_record
from .isolated import Correction, Weights

UPLOAD_BYTES = 256 << 20
"""Rows of a store that is not in memory are uploaded in pieces of this size."""
STEPS_AHEAD = 3
"""Steps by which the host may be ahead of the device if each has rows of its own."""


@dataclass(frozen=True)
class DeviceGatherFetch:
    """`GatherFetch` on a device: rows lie in its memory, or are read from the host's, each at most once per
    minibatch."""

    features: MemoryKind = "auto"
    """Location of the rows."""
    cache_bytes: int = 1 << 30
    """Device memory for rows that lie on the host: those with the most out-edges."""
    topology: MemoryKind = "auto"
    """Location of neighbour lists for sampling."""
    graphs: bool = True
    """Record steps if possible."""
    _uploads: "WeakKeyDictionary[FeatureStore, Uploaded]" = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "DeviceGather":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        if job.resident and job.produce:
            place_graph(placement.graph, self.topology)
        return DeviceGather(placement, *self._rows_of(placement, job))

    def _rows_of(
        self, placement: Placement, job: RankJob
    ) -> "tuple[Uploaded, torch.device, DeviceGatherFetch, Uploaded | None]":
        """Arguments of `DeviceGather` behind the placement."""
        assert job.device is not None
        edges = None if placement.edge_features is None else self._uploaded(placement.edge_features, job)
        return self._uploaded(placement.features, job), job.device, self, edges

    def device_rows(self, features: FeatureStore, job: RankJob, locked: bool = False) -> Tensor | None:
        uploaded = self._uploaded(features, job)
        return uploaded.rows if locked or uploaded.in_device_memory else None

    def _uploaded(self, features: FeatureStore, job: RankJob) -> "Uploaded":
        """Uploaded rows, made once: fetchers and evaluation read the same rows."""
        assert job.device is not None
        if features not in self._uploads:
            self._uploads[features] = upload(self._counted(features, job), job.device, self.features)
        return self._uploads[features]

    def _counted(self, features: FeatureStore, job: RankJob) -> FeatureStore:
        """The store, whose reads count."""
        return CountedFeatures(features, job.ledger, "store")


@dataclass(frozen=True)
class DeviceCoverageFetch(DeviceGatherFetch):
    """`CoverageFetch` on a device. Each placement has lists and rows of its own there, which go with it."""

    correction: Correction = "batch"

    # pyrefly: ignore[bad-override]
    def fetcher(self, placement: Isolated, job: RankJob, module: nn.Module | None = None) -> "DeviceGather":
        """See `FetchPolicy.fetcher`. Does not depend on the module."""
        if job.resident:
            place_graph(placement.graph, self.topology)
        fetcher = DeviceGather(placement, *self._rows_of(placement, job))
        fetcher.weights = Weights(placement, self.correction)
        return fetcher

    def _counted(self, features: FeatureStore, job: RankJob) -> FeatureStore:
        """The store: its rows were counted when they were placed."""
        return features


@dataclass(frozen=True, eq=False)
class Uploaded:
    """Rows that kernels of a device can read."""

    rows: Tensor
    """[n, F]."""
    in_device_memory: bool
    """True if they lie in the device's own memory."""

    def cache(self, placement: Placement, cache_bytes: int, device: torch.device, first: int = 0) -> Cache | None:
        """Cache of the rows with the most out-edges in this graph, on the device; None if all rows lie there.

        Args:
            placement: has the edges.
            cache_bytes: maximum size.
            device: the device.
            first: node of the first row.
        """
        count = 0 if self.in_device_memory else min(cache_bytes // max(self.rows[:1].nbytes, 1), len(self.rows))
        if not count:
            return None
        end = first + len(self.rows)
        out_degree = np.bincount(placement.graph.indices, minlength=end)[first:end]
        return Cache(self.rows, _most_read(out_degree, count, device))


class LagLimit:
    """Keeps the host at most so many marks ahead of a device, since work that waits to be trained on takes memory."""

    def __init__(self, device: torch.device, marks: int) -> None:
        """
        Args:
            device: the device.
            marks: maximum lag.
        """
        self._device, self._most = device, marks
        self._marks: deque[torch.cuda.Event] = deque()

    def mark(self) -> None:
        """Set a mark on the stream of this thread."""
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
            if len(self._marks) > self._most:
                self._marks.popleft().synchronize()


class DeviceGather(HasTargets):
    """Hands out neighbourhoods over lists that stay where they were sampled. Rows on the device are only named: the
    first layer reads them in place. Rows on the host are gathered on a separate stream, one minibatch ahead of the
    training while the next one is in the same bulk."""

    exchange_s = 0.0
    weights: Weights | None = None
    """Weights of seeds, which stay on the host; None: seeds have none."""
    frames = True
    """True if `framed` has what a step reads."""

    def __init__(
        self,
        placement: Placement,
        uploaded: Uploaded,
        device: torch.device,
        policy: DeviceGatherFetch,
        edges: Uploaded | None = None,
    ) -> None:
        """
        Args:
            placement: labels and degrees.
            uploaded: source of the rows.
            device: the device.
            policy: settings.
            edges: source of the rows of edges, if the model reads them.
        """
        self._placement, self._device = placement, device
        self._base, self._near = uploaded.rows, uploaded.in_device_memory
        self._labels = cache(lambda: placement.labels.to(device))
        self._degree = cache(lambda: placement.degree.to(device))
        self._graphs = policy.graphs and self.frames
        self._steps = LagLimit(device, STEPS_AHEAD)
        self._ahead: tuple[ResidentBulk, int, Tensor, torch.cuda.Event | None] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and not self._near else None
        self._cache = uploaded.cache(placement, policy.cache_bytes, device)
        self._edges = device_edges(placement, None if edges is None else lambda ids: gather_rows(edges.rows, ids))
        wait_for_copies(device)

    def fetch(self, work: MiniBatch) -> Fetched:
        bulk, q = to_resident(work, self._device, self._edges is not None)
        bulk.await_here()
        nodes = bulk.nodes_of(q)
        h = LazyRows(self._base, nodes) if self._near else self._gather_rows(bulk, q)
        degree, of_seeds = self._targets(
            work,
            lambda: self._degrees(work, nodes),
            lambda: self._labels()[nodes[: int(bulk.node_ends[0][q])]],
        )
        neighbourhoods = resident_neighbourhoods(bulk, q, degree, self._edges)
        fetched = Fetched(work.epoch, work.index, neighbourhoods, h, **of_seeds)
        return fetched if self.weights is None else self.weights.given(fetched, work)

    def _degrees(self, work: MiniBatch, nodes: Tensor) -> Tensor:
        """[n], degrees of all nodes of a minibatch, which lie on the device."""
        return self._degree()[nodes]

    def framed(self, frame: Frame) -> Fetched:
        """Like `fetch`, for any minibatch that is in the frame when the device reads it."""
        nodes, sizes = frame.nodes, frame.layout.nodes
        degree = cache(lambda: self._degree()[nodes])
        hops = reversed(range(len(sizes) - 1))
        neighbourhoods = tuple(ResidentNeighbourhood(frame, 0, h, lambda n=sizes[h + 1]: degree()[:n]) for h in hops)
        return Fetched(0, 0, neighbourhoods, LazyRows(self._base, nodes), self._labels()[nodes[: sizes[0]]])

    def recorded(
        self, module: nn.Module, reduce: ReducePolicy, rules: StepRules, parameters: list[nn.Parameter], alone: bool
    ) -> StepGraph | None:
        return (
            StepGraph(module, self, reduce, rules, parameters, alone)
            if self._graphs and self._near and self._edges is None and self.pairs is None and can_record(module)
            else None
        )

    def _gather_rows(self, bulk: ResidentBulk, q: int) -> Tensor:
        """Rows of minibatch q; starts gathering those of the next one."""
        self._steps.mark()
        here, self._ahead = self._ahead, None
        if here is None or here[0] is not bulk or here[1] != q:
            here = self._begin(bulk, q)
        if q + 1 < bulk.size:
            self._ahead = self._begin(bulk, q + 1)
        rows, done = here[2], here[3]
        if done is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(done)
            rows.record_stream(stream)
        return rows

    def _begin(self, bulk: ResidentBulk, q: int) -> tuple[ResidentBulk, int, Tensor, torch.cuda.Event | None]:
        if self._stream is None:
            return bulk, q, gather_rows(self._base, bulk.nodes_of(q), self._cache), None
        with torch.cuda.stream(self._stream):
            bulk.await_here()
            rows, done = gather_rows(self._base, bulk.nodes_of(q), self._cache), torch.cuda.Event()
            done.record()
        return bulk, q, rows, done

    def idle(self) -> None:
        """See `Fetcher.idle`: no effect, ranks gather by themselves."""


def upload(features: FeatureStore, device: torch.device, where: MemoryKind, rows: range | None = None) -> Uploaded:
    """Put rows of a store where kernels of a device can read them.

    Args:
        features: the store; read once.
        device: the device.
        where: location of the rows, see `MemoryKind`.
        rows: consecutive rows to upload; None: all.

    Raises:
        StoreError: the store is damaged.
    """
    rows = range(features.num_rows) if rows is None else rows
    wanted, F = np.arange(rows.start, rows.stop), features.num_features
    # Decided once: uploading changes what fits.
    there_fits = goes_to_device(len(wanted) * F * features.dtype.itemsize, device, where)
    base = in_place(features, wanted)
    if base is not None:
        return Uploaded(
            device_readable(base[rows.start : rows.stop], device, "device" if there_fits else "pinned"), there_fits
        )
    there: Any = {"device": device} if there_fits else {"pin_memory": device.type == "cuda"}
    out = torch.empty((len(wanted), F), dtype=torch_dtype(features.dtype), **there)
    step = max(1, UPLOAD_BYTES // max(F * features.dtype.itemsize, 1))
    for first in range(0, len(wanted), step):
        out[first : first + step] = torch.from_numpy(features.gather(wanted[first : first + step]))
    return Uploaded(out, there_fits)


def _most_read(out_degree: npt.NDArray[np.integer], count: int, to: torch.device) -> Tensor:
    """int64 [count], on the device: the nodes with the most out-edges, which minibatches need most often."""
    first = np.argpartition(-out_degree, count - 1)[:count] if count < len(out_degree) else np.arange(len(out_degree))
    return to_device(first.astype(np.int64), to)


def device_edges(placement: Placement, rows: Callable[[Tensor], Tensor] | None) -> EdgesOnDevice | None:
    """Edges of a graph as layers read them; `rows` returns their features. None if they read nothing."""
    types = placement.graph.types
    if types.is_single and rows is None:
        return None
    return EdgesOnDevice(types, None if types.is_single else lambda ids: _relations(placement, ids), rows)


def _relations(placement: Placement, ids: Tensor) -> Tensor:
    """Relations of edges by their `Block.edge_id`, on the device."""
    if isinstance(placement, BlockRows):
        return ids % placement.graph.types.num_relations
    return number_on_device(placement.graph, "edge_type")[ids]


def resident_neighbourhoods(
    bulk: ResidentBulk, q: int, degree: Callable[[], Tensor], edges: EdgesOnDevice | None = None
) -> tuple[ResidentNeighbourhood, ...]:
    """Neighbourhoods of minibatch q, outermost first; `degree` gives the degree of each of its nodes, [n], on the
    device."""
    hops = reversed(range(bulk.num_hops))
    return tuple(
        ResidentNeighbourhood(bulk, q, h, lambda n=int(bulk.node_ends[h + 1][q]): degree()[:n], edges) for h in hops
    )


def to_resident(work: MiniBatch, device: torch.device, positions: bool = False) -> tuple[ResidentBulk, int]:
    """The minibatch on the device: a bulk, and its position there. A minibatch sampled on the host is copied, with the
    positions of its edges if they are needed."""
    return (work.bulk, work.q) if isinstance(work, ResidentMiniBatch) else (_moved(work, device, positions), 0)


def _moved(work: MiniBatch, device: torch.device, positions: bool) -> ResidentBulk:
    """Copy of a minibatch on the device, as a bulk of one."""

    def count(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([n], np.int64)

    blocks = work.blocks[::-1]  # nearest the seeds first
    held = blocks[-1:] if work.nested else blocks
    lists = [
        DeviceList(
            to_device(b.indptr.astype(np.int32, copy=False), device),
            to_device(b.indices, device),
            to_device(b.edge_id.astype(np.int64, copy=False), device) if positions and b.edge_id is not None else None,
            count(b.num_dst),
            count(b.num_edges),
        )
        for b in held
    ]
    nodes = to_device(work.nodes, device)
    return ResidentBulk(
        Rows(nodes, nodes),
        [count(blocks[0].num_dst), *(count(b.num_src) for b in blocks)],
        lists,
        [count(b.num_edges) for b in blocks],
        None if held[0].weight is None else [to_device(b.weight, device) for b in held if b.weight is not None],
        nested=work.nested,
        bound=max(int(np.diff(b.indptr).max(initial=0)) for b in held),
    )


@dataclass(frozen=True)
class DeviceMoveFetch:
    """Fetches another policy's minibatches on the host, then copies rows, labels and weights to the device, and lists
    when a layer needs them."""

    inner: FetchPolicy

    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> "MovedFetcher":
        assert job.device is not None
        inner = self.inner.fetcher(placement, job, module)
        return MovedAhead(inner, job.device) if isinstance(inner, FetchesAhead) else MovedFetcher(inner, job.device)


class MovedFetcher:
    """Results of the inner fetcher, copied to the device."""

    def __init__(self, inner: Fetcher, device: torch.device) -> None:
        """
        Args:
            inner: fetches on the host.
            device: device of the results.
        """
        self._inner, self._device = inner, device

    @property
    def exchange_s(self) -> float:
        return self._inner.exchange_s

    def idle(self) -> None:
        self._inner.idle()

    def fetch(self, work: Any) -> Fetched:
        got = self._inner.fetch(work)
        return replace(
            got,
            h=self._to_device(got.h),
            y=self._to_device(got.y),
            weight=None if got.weight is None else self._to_device(got.weight),
        )

    def _to_device(self, x: Tensor) -> Tensor:
        return x.to(self._device, non_blocking=True)


class MovedAhead(MovedFetcher):
    """`MovedFetcher` for a fetcher that works ahead."""

    # pyrefly: ignore[bad-override-mutable-attribute]
    _inner: FetchesAhead

    def ahead(self, feed: Feed, sample: SamplePolicy, phase: Phase, first: tuple[int, int]) -> Feed:
        return self._inner.ahead(feed, sample, phase, first)

    @property
    def hit_counts(self) -> dict[str, int]:
        return self._inner.hit_counts
