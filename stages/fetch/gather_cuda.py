"""Rows of ranks that train on a GPU: they lie there, or in memory of the host that it reads."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IdArray
from ...storage.features import FeatureStore, in_place
from ...storage.graph import Graph
from ...storage.minibatch import MiniBatch
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.minibatch_cuda.frames import Frame
from ..kernels.minibatch_cuda.rows import Cache, gather_rows
from ..kernels.runtime.device_memory import MemoryKind, device_readable, goes_to_device, to_device, wait_for_copies
from ..kernels.sampling.device_graph import number_on_device, place_graph
from ..kernels.sampling.device_samples import DeviceList, DeviceSample, Rows
from ..memory.lazy_rows import LazyRows, torch_dtype
from ..messages import Placement
from ..neighbourhood.resident import EdgesOnDevice, ResidentNeighbourhood, resident_neighbourhoods
from ..sample.resident import ResidentMiniBatch
from ..sample.temporal import timed_graph
from .rows import Rows as RowSource
from .rows import Taken

UPLOAD_BYTES = 256 << 20
"""Rows of a store that is not in memory are uploaded in pieces of this size."""
STEPS_AHEAD = 3
"""Steps by which the host may be ahead of the device if each has rows of its own."""


@dataclass(frozen=True)
class DeviceMemory:
    """Where a rank's GPU finds what it reads."""

    features: MemoryKind = "auto"
    """Location of the rows: the device's memory, or the host's, from where each is read at most once per minibatch."""
    cache_bytes: int = 1 << 30
    """Device memory for rows that lie on the host: those with the most out-edges."""
    topology: MemoryKind = "auto"
    """Location of neighbour lists for sampling."""
    graphs: bool = True
    """Record steps if possible."""
    _uploads: "WeakKeyDictionary[FeatureStore, Uploaded]" = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def place(self, graph: Graph, by_time: bool) -> None:
        """Place neighbour lists, in the order of time if minibatches are drawn until moments."""
        if by_time:
            timed_graph(graph).on_device(self.topology)
        else:
            place_graph(graph, self.topology)

    def uploaded(self, features: FeatureStore, read: FeatureStore, device: Any) -> "Uploaded":
        """Rows of a store, uploaded once, from `read`: fetchers and evaluation read the same rows."""
        if features not in self._uploads:
            self._uploads[features] = upload(read, device, self.features)
        return self._uploads[features]


@dataclass(frozen=True, eq=False)
class Uploaded:
    """Rows that kernels of a device can read."""

    rows: Tensor
    """[n, F]."""
    in_device_memory: bool
    """True if they lie in the device's own memory."""

    def cache(self, placement: Placement, cache_bytes: int, device: torch.device, first: int = 0) -> Cache | None:
        """Cache of the rows with the most out-edges in the placement, on the device, of so many bytes at most; None if
        all rows lie there. `first`: node of the first row."""
        count = 0 if self.in_device_memory else min(cache_bytes // max(self.rows[:1].nbytes, 1), len(self.rows))
        if not count:
            return None
        end = first + len(self.rows)
        out_degree = np.bincount(placement.graph.indices, minlength=end)[first:end]
        # What minibatches need most often.
        most = np.argpartition(-out_degree, count - 1)[:count] if count < len(self.rows) else np.arange(count)
        return Cache(self.rows, to_device(most.astype(np.int64), device))


class LagLimit:
    """Keeps the host at most so many marks ahead of a device, since work that waits to be trained on takes memory."""

    def __init__(self, device: torch.device, marks: int) -> None:
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


class DeviceRows(RowSource):
    """Rows beside lists that stay where they were sampled. Those on the device are only named: the first layer reads
    them in place. Rows on the host are gathered on a separate stream, one minibatch ahead of the training while the
    next one is in the same bulk. All that a step reads is on the device, or on its way, when the step begins."""

    def __init__(
        self,
        placement: Placement,
        uploaded: Uploaded,
        memory: DeviceMemory,
        device: torch.device | None,
        edges: Uploaded | None = None,
    ) -> None:
        """`edges` has the features of edges, if the model reads them."""
        assert device is not None
        self.device, self._to = device, device
        self._base, self._near = uploaded.rows, uploaded.in_device_memory
        self._steps = LagLimit(device, STEPS_AHEAD)
        self._ahead: tuple[ResidentBulk, int, Tensor, torch.cuda.Event | None] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and not self._near else None
        self._cache = uploaded.cache(placement, memory.cache_bytes, device)
        self._edges = device_edges(placement, None if edges is None else lambda ids: gather_rows(edges.rows, ids))
        self.has_frames = memory.graphs and self._near and edges is None and placement.graph.types.is_single
        wait_for_copies(device)

    def take(self, work: MiniBatch) -> Taken:
        bulk, q = to_resident(work, self._to)
        bulk.await_here()
        nodes = bulk.nodes_of(q)
        h = LazyRows(self._base, nodes) if self._near else self._gather_rows(bulk, q)
        return Taken(h, lambda: nodes, lambda degree: resident_neighbourhoods(bulk, q, degree, self._edges))

    def framed(self, frame: Frame) -> Taken:
        nodes, sizes = frame.nodes, frame.layout.nodes
        return Taken(
            LazyRows(self._base, nodes),
            lambda: nodes,
            lambda degree: tuple(
                ResidentNeighbourhood(frame, 0, h, lambda n=sizes[h + 1]: degree()[:n])
                for h in reversed(range(len(sizes) - 1))
            ),
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
            stream = torch.cuda.current_stream(self._to)
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


def upload(features: FeatureStore, device: torch.device, where: MemoryKind, rows: range | None = None) -> Uploaded:
    """Put these rows of a store, or all, where kernels of a device can read them; read once. Raises StoreError if the
    store is damaged."""
    rows = range(features.num_rows) if rows is None else rows
    wanted, F = np.arange(rows.start, rows.stop), features.num_features
    # Decided once: uploading changes what fits.
    there_fits = goes_to_device(len(wanted) * F * features.dtype.itemsize, device, where)
    if (base := in_place(features, wanted)) is not None:
        kind = "device" if there_fits else "pinned"
        return Uploaded(device_readable(base[rows.start : rows.stop], device, kind), there_fits)
    there: Any = {"device": device} if there_fits else {"pin_memory": device.type == "cuda"}
    out = torch.empty((len(wanted), F), dtype=torch_dtype(features.dtype), **there)
    step = max(1, UPLOAD_BYTES // max(F * features.dtype.itemsize, 1))
    for first in range(0, len(wanted), step):
        out[first : first + step] = torch.from_numpy(features.gather(wanted[first : first + step]))
    return Uploaded(out, there_fits)


def device_edges(placement: Placement, rows: Callable[[Tensor], Tensor] | None) -> EdgesOnDevice:
    """Edges of a graph as layers read them; `rows` returns their features."""

    def relations(ids: Tensor) -> Tensor:
        return placement.relations_on_device(ids, lambda: number_on_device(placement.graph, "edge_type"))

    return EdgesOnDevice(placement.graph.types, relations, rows, placement.weights_of)


def to_resident(work: MiniBatch, device: torch.device) -> tuple[ResidentBulk, int]:
    """The minibatch on the device: a bulk, and its position there. A minibatch sampled on the host is copied."""
    if isinstance(work, ResidentMiniBatch):
        return work.bulk, work.q

    def count(n: int) -> IdArray:
        return np.array([n], np.int64)

    blocks = work.blocks[::-1]  # nearest the seeds first
    held = blocks[-1:] if work.nested else blocks
    lists = tuple(
        DeviceList(
            to_device(b.indptr.astype(np.int32, copy=False), device),
            to_device(b.indices, device),
            to_device(b.edge_id.astype(np.int64, copy=False), device) if b.edge_id is not None else None,
            count(b.num_dst),
            count(b.num_edges),
            weight=None if b.weight is None else to_device(b.weight, device),
        )
        for b in held
    )
    nodes = to_device(work.nodes, device)
    node_ends = count(blocks[0].num_dst), *(count(b.num_src) for b in blocks)
    bulk = ResidentBulk(
        DeviceSample(Rows(nodes, nodes), node_ends, lists, tuple(count(b.num_edges) for b in blocks)),
        nested=work.nested,
        bound=max(int(np.diff(b.indptr).max(initial=0)) for b in held),
    )
    return bulk, 0
