"""`exchange` for ranks that train on GPUs: rows stay in GPU memory and go from GPU to GPU.

NCCL wants every rank to begin the same messages in the same order, and messages of two threads have none. So the
training thread begins them, at steps that are the same on all ranks of a grid column. The GPU keeps working while the
host proceeds: rows still come ahead, on a stream of their own. Over gloo the thread that begins a message waits for it,
and fetching and training take turns.
"""

import time
from typing import Any

import torch
from torch import Tensor

from ...storage.minibatch import MiniBatch
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.minibatch_cuda.rows import gather_rows
from ..memory.lazy_rows import LazyRows
from ..messages import Placement, RankJob
from ..neighbourhood.resident import EdgesOnDevice
from ..policies import Feed
from .ahead.units import Collected, Key, Plan, Unit, Units
from .exchange import ExchangedRows, OwnedFeatures
from .gather_cuda import DeviceMemory, LagLimit, device_edges, resident_neighbourhoods, to_resident, upload
from .owned_rows import Owned
from .owned_rows_cuda import OwnedOnDevice
from .rows import Taken


def opened(policy: OwnedFeatures, placement: Placement, job: RankJob, memory: DeviceMemory) -> "ExchangedOnDevice":
    """See `RowsPolicy.open`. `memory.cache_bytes` are for own rows with the most out-edges among the edges that this
    rank knows."""
    assert job.device is not None
    features, first, book, group, degree = policy.open_rows(placement, job, same_thread=True)
    uploaded = upload(features, job.device, memory.features, range(first, first + int(book.sizes()[group.rank])))
    kept = uploaded.cache(placement, memory.cache_bytes, job.device, int(book.offsets[group.rank]))
    degree = None if degree is None else degree.to(job.device)
    owned = OwnedOnDevice(uploaded.rows, kept, book, group, degree, job.device)
    of_edges, edges = None, policy.open_edges(placement, job, group)
    if edges is not None:
        rows, first, book = edges
        mine = range(first, first + int(book.sizes()[group.rank]))
        rows = upload(rows, job.device, memory.features, mine).rows
        of_edges = OwnedOnDevice(rows, None, book, group, None, job.device)
    return ExchangedOnDevice(policy, placement, job, owned, of_edges)


class ExchangedOnDevice(ExchangedRows):
    """`ExchangedRows` whose neighbourhoods are over lists on the device, like those of `DeviceRows`."""

    _units_ahead: "UnitsOnDevice"

    def __init__(
        self,
        policy: OwnedFeatures,
        placement: Placement,
        job: RankJob,
        owned: OwnedOnDevice,
        of_edges: OwnedOnDevice | None,
    ) -> None:
        """`of_edges` are the features of edges, if the model reads them."""
        super().__init__(policy, placement, job, owned)
        self._of_edges_there, self.device = of_edges, job.device

    def _begun(self, feed: Feed, plan: Plan, prefetch_bytes: int) -> "UnitsOnDevice":
        assert self.device is not None
        self._units_ahead = UnitsOnDevice(
            feed, self._owned, plan, prefetch_bytes, self.device, self._placement, of_edges=self._of_edges_there
        )
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


class _Unit(Unit):
    def __init__(self, first_step: int, last_step: int) -> None:
        super().__init__(first_step, last_step)
        self.bulks: dict[Key, tuple[ResidentBulk, int]] = {}
        """By minibatch."""
        self.positions: dict[Key, Tensor] = {}
        """Positions of each minibatch's nodes among the ids of the unit, by minibatch; empty for a unit of one
        minibatch."""
        self.got: Collected | None = None
        self.edge_ids: Tensor | None = None
        """int64, ascending, the edges of all minibatches; None if their features are not read."""
        self.of_edges: Collected | None = None
        """Features of these."""
        self.done: torch.cuda.Event | None = None
        """Recorded when the device has all of it."""


class UnitsOnDevice(Units[_Unit]):
    """A `Feed` whose rows are fetched ahead: those of the current unit and, if there is room for two, of the next.

    The training thread begins a unit when the one before the last has been trained, after waiting for its minibatches.
    Minibatches of a queue on disk may not come before others are released, so there a unit is begun when the last one
    has been trained.
    """

    _unit = _Unit

    def __init__(
        self,
        feed: Feed,
        owned: Owned[Tensor],
        plan: Plan,
        prefetch_bytes: int,
        device: torch.device,
        placement: Placement,
        of_edges: OwnedOnDevice | None = None,
    ) -> None:
        """
        Args:
            feed: gives this rank's minibatches.
            owned: own rows, and access to the others.
            plan: range of work to come.
            prefetch_bytes: see `OwnedFeatures`.
            device: where rows go.
            placement: has the edges.
            of_edges: features of edges, if they are read too; of the same group.
        """
        super().__init__(feed, owned.group, plan, prefetch_bytes)
        self._owned, self._of_edges, self._device, self._placement = owned, of_edges, device, placement
        self._coming = self._all()
        self._is_ahead = False
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._trained_units = LagLimit(device, 1)

    def begin(self) -> None:
        """Begin to fetch what is due. All ranks of a column call this at the same steps."""
        while True:
            for unit in self._units:
                if unit.got is None:
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

    def _load(self, unit: _Unit) -> None:
        """Start fetching the rows of its minibatches."""
        start = time.perf_counter()
        with torch.cuda.stream(self._stream):
            unit.bulks = {key: to_resident(m, self._device, positions=True) for key, m in unit.minibatches.items()}
            unit.got = got = self._owned.collect(self._united(unit))
            if self._of_edges is not None:
                unit.edge_ids = self._edges_of(unit)
                unit.of_edges = self._of_edges.collect(unit.edge_ids)
            if self._stream is not None:
                unit.done = torch.cuda.Event()
                unit.done.record()
        if not self._together:
            num_bytes = got.rows.nbytes + (0 if unit.of_edges is None else unit.of_edges.rows.nbytes)
            self._is_ahead = self._agree(num_bytes) > 0 and not self._feed.stored
        self.exchange_s += time.perf_counter() - start

    def _united(self, unit: _Unit) -> Tensor:
        """Distinct nodes of its minibatches."""
        nodes = []
        for bulk, q in unit.bulks.values():
            bulk.await_here()
            nodes.append(bulk.nodes_of(q))
        if len(nodes) < 2:
            return nodes[0] if nodes else torch.empty(0, dtype=torch.int64, device=self._device)
        ids, place = torch.unique(torch.cat(nodes), return_inverse=True)
        unit.positions = dict(zip(unit.bulks, place.split([len(n) for n in nodes])))
        return ids

    def _edges_of(self, unit: _Unit) -> Tensor:
        """Positions of the edges of all lists of its minibatches."""
        lists = [torch.empty(0, dtype=torch.int64, device=self._device)]
        for bulk, q in unit.bulks.values():
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
        unit = self._units[0]
        got, among = unit.got, unit.positions.get((work.epoch, work.index))
        assert got is not None
        if unit.done is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(unit.done)
            edges = () if unit.of_edges is None else (unit.of_edges.rows, unit.of_edges.place, unit.edge_ids)
            for t in (got.rows, got.place, got.degree, among, *edges):
                if t is not None:
                    t.record_stream(here)
        bulk, q = unit.bulks[work.epoch, work.index]
        bulk.await_here()
        if among is not None:
            got = Collected(got.rows, got.place[among], None if got.degree is None else got.degree[among])
        return bulk, q, got

    @property
    def edges(self) -> EdgesOnDevice | None:
        """Edges of the unit of the last `rows`, for this thread's stream."""
        ids, got, data = self._units[0].edge_ids, self._units[0].of_edges, self._placement
        if ids is None or got is None:
            return device_edges(data, None)
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
