"""Fetches for full-batch training: nothing is gathered beforehand; layers visit the rows of other ranks by
themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ...storage.features import ArrayFeatures
from ...storage.optional import when_present
from ...storage.store.bytes_left import bytes_left
from ..comm.base import Group
from ..comm.solo import Solo
from ..kernels.runtime.device_memory import to_device
from ..learned.beside import WithLearned
from ..learned.table import LearnedTable
from ..links.decoders import decoder_of
from ..messages import Fetched, PairsToScore, RankJob
from ..models.base import layered, reads_blocks
from ..neighbourhood.base import Neighbourhood
from ..neighbourhood.full_batch import FullBatch, GivenRows, View
from ..neighbourhood.halo import Halo, HaloNeighbourhood
from ..neighbourhood.relations import PartTypes
from ..neighbourhood.ring import Ring
from ..neighbourhood.sequential.neighbourhood import SequentialNeighbourhood
from ..placement.sharded import Share
from ..placement.shared_pairs import SharedPairs
from ..policies import Fetcher, FetchPolicy, InputRows
from .isolated import Correction, Weights
from .step_memory import row_traffic, step_bytes

Mode = Literal["rematerialize", "keep", "halo"]
"""Ways for a layer to read rows of other ranks: one rank after the other, and again in the backward pass; one after the
other, kept for the backward pass; all in one exchange."""
Modes = tuple[Mode, ...]
PREFETCH_BYTES = 64 << 20
UNKNOWN = 1 << 50
"""Size of a step whose memory could not be determined: fits nowhere."""


@dataclass(frozen=True)
class VisitFetch(FetchPolicy):
    """Each layer visits its neighbours on other ranks in one of the modes."""

    modes: tuple[Mode | Literal["auto"], ...] = ("auto",)
    """One for each layer, or one for all."""
    memory_bytes: int | None = None
    """Memory of a rank's tensors, for ``auto``; None: half of the free memory divided by the ranks of the machine, or
    half of that of the rank's GPU."""
    prefetch_bytes: int = PREFETCH_BYTES
    """Rows of later ranks that may be under way before they are needed."""
    learned: WithLearned | None = None
    """Says which columns of a rank's own rows are learnt (`RankJob.learned`); None: none."""
    reads_edges_on_device: ClassVar[bool] = True
    takes_own_learned: ClassVar[bool] = True

    def for_layers(self, layers: int) -> tuple[Mode | Literal["auto"], ...]:
        """Mode of each of so many layers.

        Raises:
            InputError: the number of modes is neither one nor that of the layers.
        """
        modes = self.modes * layers if len(self.modes) == 1 else self.modes
        if len(modes) != layers:
            raise InputError(
                f"sar has {len(modes)} modes for a model of {layers} layers; give one for each layer, or one for all"
            )
        return modes

    def fetcher(self, placement: Share, job: RankJob, module: nn.Module) -> "Visits":
        """See `FetchPolicy.fetcher`. Reports the modes and the memory of a step. Raises InputError: see
        `for_layers`."""
        modes = self._chosen(placement, job, module)
        visits = Visits(placement, modes, self.prefetch_bytes, job.group, job.device)
        visits.head = None if placement.pairs is None else decoder_of(module)
        visits.learned = None if self.learned is None else (job.learned, self.learned.learned_columns)
        return visits

    def row_traffic(self, module: nn.Module, given: InputRows) -> list[tuple[int, int]]:
        """See `FetchPolicy.row_traffic`. ``auto`` counts as ``halo``."""
        num_features, dtype, edge_width, types, _ = given
        wanted = self.for_layers(layered(module).num_layers)
        modes: tuple[Mode, ...] = tuple("halo" if m == "auto" or reads_blocks(module) else m for m in wanted)

        def visits(scale: int, batch: FullBatch, absent: Group) -> Sequence[Neighbourhood]:
            rows = ArrayFeatures(np.zeros((len(batch.names), num_features), torch.zeros(0, dtype=dtype).numpy().dtype))
            edges, of = batch.whole.num_edges, None
            if not types.is_single:
                of = PartTypes(types, np.full(len(batch.names), types.ends[0, 1]), np.zeros(edges, np.int64))
            edge_rows = torch.zeros((edges, edge_width), dtype=dtype) if edge_width else None
            labels = torch.zeros(len(rows.rows), dtype=torch.int64)
            share = Share(batch, rows, labels, {}, edge_rows=edge_rows, types=of)
            return Visits(share, modes, self.prefetch_bytes, absent).fetch(batch).neighbourhoods

        return row_traffic(module, given, visits)

    def _chosen(self, placement: Share, job: RankJob, module: nn.Module) -> tuple[Mode, ...]:
        """The mode of each layer."""
        modes = self.for_layers(job.num_layers)
        if reads_blocks(module):
            modes = ("halo",) * len(modes)
        if job.group.size == 1 or placement.types is not None:
            # With one rank all modes are the same. Relations are read from one block, and a step on a graph with types
            # is not tried at a small scale, whose edges would join nodes of other types than their relations do.
            return ("halo",) * len(modes)
        chosen, step = plan(
            placement, modes, self, job.group, module, learns_features=job.learned is not None, device=job.device
        )
        if job.group.rank == 0:
            names = chosen[0] if len(set(chosen)) == 1 else ", ".join(chosen)
            if step == UNKNOWN:
                job.tell(
                    f"plan: neighbours on other ranks by {names}; what a step takes is unknown, for the model could "
                    "not be tried"
                )
                return chosen
            mib = [n / 2**20 for n in (placement.graph.nbytes, placement.x.nbytes, step)]
            job.tell(
                f"plan: neighbours on other ranks by {names}; rank 0 takes {mib[0]:,.0f} MiB for edges, {mib[1]:,.0f} "
                "for features, "
                f"about {mib[2]:,.0f} for a step"
            )
        return chosen


def plan(
    share: Share,
    modes: Sequence[Mode | Literal["auto"]],
    policy: VisitFetch,
    group: Group,
    module: nn.Module,
    device: torch.device | None = None,
    learns_features: bool = False,
) -> tuple[tuple[Mode, ...], int]:
    """Modes to use, the same on all ranks, and the bytes of a step with them on this rank.

    One exchange is faster than one for each rank, and kept rows need not come again. So layers are moved from ``halo``
    to ``keep``, and from there to ``rematerialize``, only while a step does not fit on every rank; the move that helps
    most comes first.
    """
    chosen: tuple[Mode, ...] = tuple("halo" if m == "auto" else m for m in modes)
    spare = bytes_left() // group.size if device is None else torch.cuda.mem_get_info(device)[0]
    room = (policy.memory_bytes or spare // 2) - share.graph.nbytes - share.x.nbytes
    room -= 0 if share.edge_rows is None else share.edge_rows.nbytes

    def steps(candidates: list[tuple[Mode, ...]]) -> list[list[int]]:
        """Bytes beyond the limit that each choice takes, on each rank."""
        table = torch.zeros((group.size, len(candidates)), dtype=torch.int64)
        for c, candidate in enumerate(candidates):
            table[group.rank, c] = measured(candidate) - room
        group.all_reduce(table.view(-1), "control")
        return table.T.tolist()

    @cache
    def measured(candidate: tuple[Mode, ...]) -> int:
        def visits(scale: int, batch: FullBatch, absent: Group) -> Sequence[Neighbourhood]:
            edges = when_present(lambda rows: rows.new_zeros(batch.whole.num_edges, rows.shape[1]), share.edge_rows)
            small = replace(share, graph=batch, edge_rows=edges)
            return Visits(small, candidate, policy.prefetch_bytes // scale, absent).fetch(batch).neighbourhoods

        try:
            given = InputRows(share.x.shape[1], share.x.dtype, are_learned=learns_features)
            found = step_bytes(module, share.graph, group.size, given, visits)
        except Exception:  # a user's module may not be copyable; all ranks must reach the table above
            return UNKNOWN
        return found if device is None else found + _edge_numbers(module, share, candidate)

    beyond = max(steps([chosen])[0])
    while beyond > 0:
        moves = [i for i, m in enumerate(modes) if m == "auto" and chosen[i] != "rematerialize"]
        if not moves:
            break
        # Layer i one step nearer to ``rematerialize``.
        frugal: dict[Mode, Mode] = {"halo": "keep", "keep": "rematerialize"}
        candidates = [(*chosen[:i], frugal[chosen[i]], *chosen[i + 1 :]) for i in moves]
        beyond, best = min((max(ranks), c) for c, ranks in enumerate(steps(candidates)))
        chosen = candidates[best]
    return chosen, measured(chosen)


def _edge_numbers(module: nn.Module, share: Share, modes: Sequence[Mode]) -> int:
    """Bytes at most of what attention's backward pass stores on a GPU, and not on the host: a number for each head of
    the edges that are read at a time, of one layer."""
    heads = max((h for m in module.modules() if isinstance(h := getattr(m, "heads", 0), int)), default=0)
    edges = 0
    for view, mode in zip(share.graph.layers, modes):
        each = [shard.lists.num_edges for shard in view.shards]
        edges = max(edges, sum(each) if mode == "halo" else max(each))
    return edges * heads * share.x.element_size()


class Visits(Fetcher):
    """Neighbourhoods over one rank's share."""

    head: Any = None
    """Makes outputs of labelled edges from rows of nodes; None: nodes are labelled, or nothing is trained."""
    learned: tuple[LearnedTable, slice] | None = None
    """The learnt rows of own nodes, and their columns; None: there are none. Layers send rows to other ranks, and
    their gradients back, as they do in between."""
    weights: Weights | None = None
    """Weights of seeds; None: they have none."""
    index = 0
    """Names the work, so that dropout depends on it. With one index for all ranks it is a function of the epoch and of
    the row's name, not of its owner."""

    def __init__(
        self, share: Share, modes: Modes, prefetch_bytes: int, group: Group, device: torch.device | None = None
    ) -> None:
        """There is a mode for each layer, whose rows go to the device, or stay on the host."""
        self.share, self._modes, self._ahead_bytes, self.group = share, modes, prefetch_bytes, group
        self._device = device
        of = (share.x, share.labels, share.edge_rows) if device is None else share.to_device(device)
        self._x, self._labels, edge_rows = of
        self._given = GivenRows(self._x.dtype, edge_rows, device)
        self.device = self._x.device
        """Device that computes the layers."""
        self._halos: dict[int, Halo] = {}
        self._waited_s = 0.0
        self._ring = Ring(group, prefetch_bytes, device)
        self._pairs = when_present(self._of_pairs, share.pairs)

    def fetch(self, work: FullBatch) -> Fetched:
        ring = Ring(self.group, self._ahead_bytes, self._device)
        # The last pass's statistics are complete when the next pass begins.
        self._waited_s, self._ring = self.exchange_s, ring
        neighbourhoods = tuple(
            self._neighbourhood(work, view, i, mode, ring)
            for i, (view, mode) in enumerate(zip(work.layers, self._modes))
        )
        y, links = self._labels[: work.num_seeds], None
        if self._pairs is not None and (pairs := self.share.pairs) is not None:
            y, links = self._pairs
            links = replace(links, decoder=self.head, all_rows=lambda rows: pairs.all_rows(rows, ring))
        h = self._x[: work.layers[0].num_src]
        if self.learned is not None:
            table, columns = self.learned
            rows = table.take(table.first + work.order[: len(h)]).to(h.device)
            h = torch.cat((h[:, : columns.start], rows, h[:, columns.stop :]), 1)
        fetched = Fetched(work.epoch, self.index, neighbourhoods, h, y, links=links)
        return fetched if self.weights is None else self.weights.given(fetched, work)

    def _of_pairs(self, pairs: SharedPairs) -> tuple[Tensor, PairsToScore]:
        """Labels of the rank's edges, and these, on the device."""
        positions = torch.from_numpy(pairs.positions[:, None])
        known = pairs.labels.values, pairs.labels.features
        values, features = (when_present(lambda a: to_device(a, self.device), each) for each in known)
        assert values is not None
        there = None if self._device is None else positions.to(self._device)
        return values, PairsToScore(positions, None, there, labelled=True, features=features)

    def everything(self, batch: FullBatch, module: nn.Module, layers: int) -> tuple[tuple[Neighbourhood, ...], Tensor]:
        """Neighbourhoods for all rows, pruned or not, and the features: for evaluating the module."""
        ring = Ring(self.group, self._ahead_bytes, self._device)
        mode = "halo" if reads_blocks(module) else "rematerialize"
        return tuple(self._neighbourhood(batch, batch.whole, i, mode, ring) for i in range(layers)), self._x

    def _neighbourhood(self, batch: FullBatch, view: View, layer: int, mode: Mode, ring: Ring) -> Neighbourhood:
        if mode != "halo" and self.group.size > 1:
            return SequentialNeighbourhood(batch, view, layer, ring, self._given, keep=mode == "keep")
        # With one rank the modes are the same.
        if id(view) not in self._halos:
            self._halos[id(view)] = Halo(batch, view, self._given, self.share.types)
        return HaloNeighbourhood(self._halos[id(view)], ring)

    @property
    def exchange_s(self) -> float:
        return self._waited_s + self._ring.waited_s


@dataclass(frozen=True)
class CoverageVisitFetch(VisitFetch):
    """Layers read all rows of this rank's view; seeds are weighted according to the correction."""

    correction: Correction = "batch"

    def fetcher(self, placement: Any, job: RankJob, module: nn.Module) -> Visits:
        """See `FetchPolicy.fetcher`: of a placement `WholeView`. Does not depend on the module."""
        visits = Visits(placement, ("halo",) * job.num_layers, 0, Solo(), job.device)
        # Rows are named within the view: the rank's number gives each rank dropout of its own.
        visits.weights, visits.index = Weights(placement.seen, self.correction), job.group.rank
        return visits
