"""`exchange` for ranks that train on GPUs: rows stay in GPU memory and go from GPU to GPU.

NCCL wants every rank to begin the same messages in the same order, and messages of two threads have none. So the
training thread begins them, at steps that are the same on all ranks of a grid column. The GPU keeps working while the
host proceeds: rows still come ahead, on a stream of their own. Over gloo the thread that begins a message waits for it,
and fetching and training take turns.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...storage.features import FeatureStore
from ...storage.minibatch import MiniBatch
from ...storage.optional import taken, when_present
from ...storage.partition.book import RangeBook
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.minibatch_cuda.rows import Cache, gather_rows
from ..memory.lazy_rows import LazyRows
from ..messages import Placement, RankJob
from ..neighbourhood.resident import EdgesOnDevice, resident_neighbourhoods
from ..policies import Feed
from .ahead.units import Collected, Key, Plan, Unit, Units
from .exchange import ExchangedRows, OwnedFeatures
from .gather_cuda import DeviceMemory, LagLimit, Uploaded, device_edges, to_resident, upload
from .owned_rows import OwnedRows
from .rows import Taken

Bulks = dict[Key, tuple[ResidentBulk, int]]
"""Minibatches on a device."""


@dataclass(eq=False)
class OnDevice:
    """`owned_rows.Block` on a device, or in locked memory of the host."""

    rows: Tensor
    device: torch.device
    cache: Cache | None = None
    """Cache of rows that lie in host memory."""

    def empty(self, n: int) -> Tensor:
        return torch.empty((n, self.rows.shape[1]), dtype=self.rows.dtype, device=self.device)

    def take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        for ids, into in zip(asked, out):
            gather_rows(self.rows, ids, self.cache, out=into)

    def beside(self, rows: Tensor) -> "OnDevice":
        return OnDevice(rows, self.device)


def opened(policy: OwnedFeatures, placement: Placement, job: RankJob, memory: DeviceMemory) -> "ExchangedOnDevice":
    """See `RowsPolicy.open`. `memory.cache_bytes` are for own rows with the most out-edges among the edges that this
    rank knows."""
    to = job.device
    assert to is not None
    features, first, book, group, degree = policy.open_rows(placement, job, same_thread=True)

    def uploaded(rows: FeatureStore, first: int, book: RangeBook) -> Uploaded:
        return upload(rows, to, memory.features, range(first, first + int(book.sizes()[group.rank])))

    own = uploaded(features, first, book)
    kept = own.cache(placement, memory.cache_bytes, to, int(book.offsets[group.rank]))
    degree = when_present(lambda known: known.to(to), degree)
    owned = OwnedRows(OnDevice(own.rows, to, kept), book, group, degree, to)
    edges = policy.open_edges(placement, job, group)
    of_edges = None if edges is None else OwnedRows(OnDevice(uploaded(*edges).rows, to), edges[2], group, None, to)
    rows = ExchangedOnDevice(policy, placement, job, owned, of_edges)
    rows.device = to
    return rows


class ExchangedOnDevice(ExchangedRows):
    """`ExchangedRows` whose neighbourhoods are over lists on the device, like those of `DeviceRows`."""

    _units_ahead: "UnitsOnDevice"

    def _begun(self, feed: Feed, plan: Plan, prefetch_bytes: int) -> "UnitsOnDevice":
        self._units_ahead = UnitsOnDevice(feed, plan, prefetch_bytes, self)
        return self._units_ahead

    def take(self, work: MiniBatch) -> Taken:
        """See `Rows.take`: begins what is due, and makes the device wait for the rows of `work`."""
        ahead = self._units_ahead
        ahead.begin()
        bulk, q, got = ahead.rows(work)
        return Taken(
            LazyRows(got.rows, got.place),
            lambda: bulk.nodes_of(q),
            lambda degree: resident_neighbourhoods(bulk, q, degree, ahead.edges),
            got.degree,
        )

    def idle(self) -> None:
        """See `Fetcher.idle`: begins what is due, and answers the requests of others."""
        self._units_ahead.begin()


@dataclass(frozen=True, eq=False)
class _Got:
    """Rows of a unit, and what the device has with them."""

    bulks: Bulks
    rows: Collected
    positions: dict[Key, Tensor]
    """Positions of each minibatch's nodes among the ids of the unit, by minibatch; empty for a unit of one
    minibatch."""
    edges: tuple[Collected, Tensor] | None
    """Features of the edges of all minibatches, and these, int64, ascending; None if they are not read."""
    done: torch.cuda.Event | None
    """Recorded when the device has all of it."""


class UnitsOnDevice(Units):
    """A `Feed` whose rows are fetched ahead: those of the current unit and, if there is room for two, of the next.

    The training thread begins a unit when the one before the last has been trained, after waiting for its minibatches.
    Minibatches of a queue on disk may not come before others are released, so there a unit is begun when the last one
    has been trained.
    """

    def __init__(self, feed: Feed, plan: Plan, prefetch_bytes: int, rows: ExchangedRows) -> None:
        """See `Units`; the rows, and those of edges if these are read, go to the device of `rows`."""
        super().__init__(feed, rows.owned.group, plan, prefetch_bytes)
        assert rows.device is not None
        self._owned, self._of_edges, self._placement = rows.owned, rows.owned_edges, rows.placement
        self._device = device = rows.device
        self._coming = self._all()
        self._is_ahead = False
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._trained_units = LagLimit(device, 1)

    def begin(self) -> None:
        """Begin to fetch what is due. All ranks of a column call this at the same steps."""
        while True:
            for unit in self._units:
                if unit.rows is None:
                    self._load(unit)
            # The size of the first unit decides whether another one is fetched ahead.
            if not self._take():
                return

    def _take(self) -> bool:
        """Wait for the minibatches of the next unit, or draw them, if one is due; true if so."""
        unit = next(self._coming, None) if len(self._units) <= self._is_ahead else None
        if unit is None:
            return False
        unit.minibatches = self._work(unit)
        self._units.append(unit)
        return True

    def _load(self, unit: Unit) -> None:
        """Start fetching the rows of its minibatches."""
        start = time.perf_counter()
        with torch.cuda.stream(self._stream):
            bulks = {key: to_resident(m, self._device) for key, m in unit.minibatches.items()}
            ids, positions = self._united(bulks)
            got, edges, done = self._owned.collect(ids), None, None
            if self._of_edges is not None:
                edge_ids = self._edges_of(bulks)
                edges = self._of_edges.collect(edge_ids), edge_ids
            if self._stream is not None:
                done = torch.cuda.Event()
                done.record()
            unit.rows = _Got(bulks, got, positions, edges, done)
        if not self._together:
            num_bytes = got.rows.nbytes + (0 if edges is None else edges[0].rows.nbytes)
            self._is_ahead = self._agree(num_bytes) > 0 and not self._feed.stored
        self.exchange_s += time.perf_counter() - start

    def _united(self, bulks: Bulks) -> tuple[Tensor, dict[Key, Tensor]]:
        """Distinct nodes of some minibatches, and see `_Got.positions`."""
        nodes = []
        for bulk, q in bulks.values():
            bulk.await_here()
            nodes.append(bulk.nodes_of(q))
        if len(nodes) < 2:
            return nodes[0] if nodes else torch.empty(0, dtype=torch.int64, device=self._device), {}
        ids, place = torch.unique(torch.cat(nodes), return_inverse=True)
        return ids, dict(zip(bulks, place.split([len(n) for n in nodes])))

    def _edges_of(self, bulks: Bulks) -> Tensor:
        """Positions of the edges of all lists of some minibatches."""
        lists = [torch.empty(0, dtype=torch.int64, device=self._device)]
        for bulk, q in bulks.values():
            for h in range(bulk.num_hops - 1 if bulk.nested else 0, bulk.num_hops):
                positions = bulk.positions_of(q, h)
                assert positions is not None, "the sampler keeps edge_ids"
                lists.append(positions)
        return self._placement.positions_of(torch.cat(lists)).sort().values

    def get(self, epoch: int, index: int) -> MiniBatch:
        # Here, and not when they are begun: this is where training measures its waits for samples. One unit, as `begin`
        # takes one before it loads it: taking may draw it together with other ranks.
        self._take()
        work: Any = self._units[0].minibatches
        return work[epoch, index]

    def rows(self, work: MiniBatch) -> tuple[ResidentBulk, int, Collected]:
        """A minibatch from `get`, as the device has it, with the row and the degree of each of its nodes, for this
        thread's stream."""
        unit: _Got = self._units[0].rows
        got, among = unit.rows, unit.positions.get((work.epoch, work.index))
        if unit.done is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(unit.done)
            edges = () if unit.edges is None else (unit.edges[0].rows, unit.edges[0].place, unit.edges[1])
            for t in (got.rows, got.place, got.degree, among, *edges):
                if t is not None:
                    t.record_stream(here)
        bulk, q = unit.bulks[work.epoch, work.index]
        bulk.await_here()
        if among is not None:
            got = Collected(got.rows, got.place[among], taken(got.degree, among))
        return bulk, q, got

    @property
    def edges(self) -> EdgesOnDevice:
        """Edges of the unit of the last `rows`, for this thread's stream."""
        unit, data = self._units[0].rows, self._placement
        if unit.edges is None:
            return device_edges(data, None)
        got, ids = unit.edges
        return device_edges(
            data, lambda edges: gather_rows(got.rows, got.place[torch.searchsorted(ids, data.positions_of(edges))])
        )

    def release(self, epoch: int, index: int) -> None:
        """See `Feed.release`: `index` is the last of a step."""
        before = len(self._units)
        self._leave(epoch, index)
        if len(self._units) < before:
            self._trained_units.mark()
        self._feed.release(epoch, index)

    def close(self) -> None:
        """See `Feed.close`. All ranks call it after the same step."""
        self._feed.close()
