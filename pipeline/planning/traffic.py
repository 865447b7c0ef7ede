"""Bytes that a run moves between ranks and reads from stores.

The formulas follow what `storage.ledger` counts: payload that ranks send, by kind, over all of them. Most depend on the
number of parameters and the counts of a cut; rows and ids of minibatches depend on the samples, and are counted in a
trial.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...stages.comm.gloo import ring_bytes, sum_waits
from ...stages.fetch.exchange import MOST_STEPS
from ...stages.fetch.visit import VisitFetch
from ...stages.fetch.visit import row_bytes as visited_bytes
from ...stages.memory.quantize import row_bytes
from ...stages.models.lazy import Lazy
from ...stages.partition.cut_counts import CutCounts, halo_nodes
from ...stages.placement.boundary import WithBoundary
from ...stages.placement.chunk_schedule import ChunkSchedule
from ...stages.placement.chunks import Chunks
from ...stages.placement.sharded import Sharded
from ...stages.reduce.seed_weighted import EXTRA_NUMBERS
from ...storage.ledger import KINDS
from ..setup.model import TORCH_DTYPES
from .candidate import Candidate
from .trial import TrialResult

ID_BYTES = COUNT_BYTES = 8
SUMS = 3
"""Numbers that ranks add up when an epoch ends, in float64."""
FIXED = ("gradients", "control")
"""Kinds of message whose size does not depend on the graph's."""


def by_channel(counts: Mapping[tuple[str, str], float]) -> dict[str, dict[str, int]]:
    """Counts by (channel, kind) as nested tables of whole numbers."""
    return {c: {kind: round(n) for (at, kind), n in sorted(counts.items()) if at == c} for c in ("network", "store")}


@dataclass
class Moved:
    """Bytes over all ranks by (channel, kind), and the messages that ranks wait for."""

    once: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Bytes of a run that do not depend on the number of epochs."""
    per_epoch: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Bytes of an epoch; their mean if epochs differ."""
    busiest: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By kind, bytes that the busiest rank sends in an epoch."""
    waits: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By kind, messages of an epoch that a rank waits for one after the other."""
    most_seen: int = 0
    """Most nodes that a rank of isolated training sees at once."""

    def total(self, epochs: int) -> dict[str, dict[str, int]]:
        """Bytes of a run, by channel and kind."""
        keys = {*self.once, *self.per_epoch}
        return by_channel({k: self.once.get(k, 0.0) + epochs * self.per_epoch.get(k, 0.0) for k in keys})

    def add(self, kind: str, total: float, busiest: float, waits: float) -> None:
        """Count network bytes of an epoch."""
        self.per_epoch["network", kind] += total
        self.busiest[kind] += busiest
        self.waits[kind] += waits

    def add_sums(self, kind: str, numel: int, itemsize: int, ranks: int, times: float) -> None:
        """Count sums of `numel` numbers over all ranks, as many as `times` in an epoch."""
        sent = [ring_bytes(numel, itemsize, r, ranks) for r in range(ranks)]
        self.add(kind, times * sum(sent), times * max(sent), times * sum_waits(numel, ranks, kind))

    def grow(self, growth: float) -> None:
        """Multiply all counts that are in proportion to the graph."""
        for counts in (self.once, self.per_epoch):
            for channel, kind in counts:
                counts[channel, kind] *= 1 if kind in FIXED else growth
        for kind in self.busiest:
            self.busiest[kind] *= 1 if kind in FIXED else growth


def moves(s: Candidate, seen: TrialResult) -> Moved:
    """Bytes of the candidate's run, with rows of minibatches as counted in its trial."""
    moved, policy = Moved(), s.system.partition
    if s.ranks > 1:
        _steps(moved, s)
    if isinstance(policy, Sharded):
        moved.once["store", "features"] += s.at.dataset.num_nodes * s.row_bytes
    if s.cut is not None and s.ranks > 1:
        if isinstance(policy, WithBoundary):
            _layer_by_layer(moved, s, s.cut)
        elif isinstance(policy, Sharded):
            _visits(moved, s, s.cut, policy.prune)
        elif isinstance(policy, Chunks):
            _chunks(moved, s, s.cut, policy)
    if s.system.sample.uses_queue:
        _minibatch_rows(moved, s, seen)
    if s.at.stands_in:
        moved.grow(s.at.growth)
    return moved


def _steps(moved: Moved, s: Candidate) -> None:
    """Steps of any system: one sum over ranks of all gradients, with a count and a flag to stop."""
    model, size = s.model(), s.ranks
    phases = s.system.schedule.phases(s.job.epochs, model)
    for phase in phases:
        parameters = [p for p in s.system.schedule.begin(phase, model).parameters() if p.requires_grad]
        numel = sum(p.numel() for p in parameters) + EXTRA_NUMBERS
        moved.add_sums("gradients", numel, parameters[0].element_size(), size, s.steps / len(phases))
    # A checkpoint at the end of each phase: every rank's counters, and four sums.
    counters = size * 2 * sum(len(kinds) for kinds in KINDS.values()) + 4
    moved.once["network", "control"] += len(phases) * (2 * (size - 1) * 8 * counters + size * (size - 1))
    moved.add_sums("control", SUMS, 8, size, 1)


def _visits(moved: Moved, s: Candidate, cut: CutCounts, prune: bool) -> None:
    """Full-batch training: rows and their gradients, layer by layer. A pruned layer leaves out rows that no train node
    depends on."""
    assert isinstance(s.system.fetch, VisitFetch)
    traffic = visited_bytes(s.system.fetch, s.model(), s.at.numbers.features, TORCH_DTYPES[s.job.dtype])
    total = np.zeros(cut.size)
    for i, (there, back) in enumerate(traffic):
        rows = cut.rows[i if prune else -1]
        total = total + there * rows.sum(0) + back * rows.sum(1)
    rounds = sum(1 for pair in traffic for n in pair if n)
    moved.add("activations", float(total.sum()), float(total.max(initial=0)), rounds)
    arrange(moved, cut, len(traffic) if prune else 0)


def arrange(moved: Moved, cut: CutCounts, pruned_layers: int) -> None:
    """Messages before a full batch: the rows that ranks read from each other, and how many of them in which layers."""
    pairs = cut.size * (cut.size - 1)
    levels = pruned_layers + 2 if pruned_layers else 1
    ids = cut.boundary + (int(cut.rows[0].sum()) if pruned_layers else 0)
    moved.once["network", "graph"] += ID_BYTES * (ids + pairs * levels)
    # Sizes travel before each of these messages.
    moved.once["network", "control"] += COUNT_BYTES * pairs * (2 + pruned_layers)


def _layer_by_layer(moved: Moved, s: Candidate, cut: CutCounts) -> None:
    """Rows of the boundary once for each phase that passes messages, after their ids and degrees."""
    model = s.model()
    assert isinstance(model, Lazy)
    arrange(moved, cut, 0)
    moved.once["network", "graph"] += 2 * ID_BYTES * cut.boundary
    for k, width in enumerate(model.phase_widths):
        if model.phase(k).passes_messages:
            row = row_bytes(width, model.phases.rounding, TORCH_DTYPES[s.job.dtype])
            moved.once["network", "features" if k == 0 else "activations"] += cut.boundary * row


def _chunks(moved: Moved, s: Candidate, cut: CutCounts, policy: Chunks) -> None:
    """Reads of isolated ranks from stores, chunk by chunk and super-epoch by super-epoch. The mean of the first few
    super-epochs stands for those that follow."""
    assert s.book is not None
    graph, super_epochs = s.at.dataset.graph, len(s.system.schedule.phases(s.job.epochs, s.model()))
    schedule = ChunkSchedule(
        s.job.seed_of("minibatches"), s.ranks, policy.per_rank, policy.reshuffle_fraction, policy.rotation
    )
    found = np.zeros((min(super_epochs, max(2, s.ranks)), 2))
    before: list[set[int]] = [set() for _ in range(s.ranks)]
    for t in range(len(found)):
        for rank in range(s.ranks):
            chunks = [*schedule.base(rank, t), *schedule.variable(rank, t)]
            halo = halo_nodes(graph, s.book, chunks) if policy.halo and len(chunks) < cut.size else 0
            around = round(halo * policy.halo)
            moved.most_seen = max(moved.most_seen, int(cut.nodes[chunks].sum()) + around)
            if set(chunks) == before[rank] and policy.halo in (0, 1):
                continue
            new = [c for c in chunks if c not in before[rank]]
            before[rank] = set(chunks)
            lists = sum(shard_bytes(cut, c, graph.edge_weight is not None) for c in new)
            found[t] += lists, (int(cut.nodes[new].sum()) + around) * s.row_bytes
    read = found[0] + (super_epochs - 1) * (found[1:].mean(0) if len(found) > 1 else 0.0)
    moved.once["store", "graph"] += read[0]
    moved.once["store", "features"] += read[1]


def shard_bytes(cut: CutCounts, part: int, weighted: bool) -> int:
    """Bytes of a part's `EdgeShards`: three splits, a row and a count for each list, two numbers an edge, the sources,
    the first edges."""
    edges, sources = int(cut.edges[part]), int(cut.rows[-1, part].sum())
    per_edge = 4 + (4 if edges < 2**31 else 8) + (4 if weighted else 0)
    return 24 * (cut.size + 1) + 8 * int(cut.lists[part]) + per_edge * edges + 4 * sources + 8 * int(cut.nodes[part])


def _minibatch_rows(moved: Moved, s: Candidate, seen: TrialResult) -> None:
    """Rows and ids of sampled minibatches, as counted in the trial. They do not depend on the graph's size, so they are
    divided by the growth that `Moved.grow` multiplies by."""
    growth = s.at.growth
    if s.job.queue.kind == "zarr":
        moved.per_epoch["store", "minibatches"] += seen.minibatch_bytes * s.minibatches / growth
    if not s.exchanges:
        # An incomplete last minibatch counts as a whole only if the trial had it too.
        minibatches = math.ceil(s.minibatches) if seen.all_seeds and not s.at.stands_in else s.minibatches
        per_epoch = minibatches / max(1, seen.minibatches)
        moved.per_epoch["store", "features"] += seen.bytes["store"]["features"] * per_epoch / growth
        return
    c = s.replication
    moved.once["store", "features"] += s.feature_bytes * c / growth
    # All but one block of the rows that a column of the grid holds belong to other ranks.
    share = (1 - c / s.ranks) / (1 - c / seen.ranks)
    first, later = rows_asked(s, seen, s.minibatches, s.ranks)
    tried = tried_minibatches(s, seen)
    begun, again = rows_asked(s, seen, tried, seen.ranks)
    epochs = seen.minibatches / math.ceil(tried)
    asked = begun + (epochs - 1) * again if epochs > 1 else begun * epochs
    words = seen.bytes["network"]["control"] - seen.steps * seen.ranks * (seen.ranks - 1)
    for kind, count in (("features", seen.bytes["network"]["features"]), ("control", words)):
        each = count / asked * share / (growth if kind == "features" else 1)
        moved.add(kind, later * each, later * each / s.ranks, seen.waits[kind] / max(1, seen.steps) * s.steps)
        moved.once["network", kind] += (first - later) * each


def tried_minibatches(s: Candidate, seen: TrialResult) -> float:
    """Minibatches in an epoch of the trial."""
    if seen.all_seeds:
        return s.at.dataset.split_sizes["train"] / s.job.train.batch_size
    return float(MOST_STEPS * s.job.train.per_step(seen.ranks))


def rows_asked(s: Candidate, seen: TrialResult, minibatches: float, ranks: int) -> tuple[float, float]:
    """Rows requested in the first epoch and in each later one, in multiples of one minibatch's rows.

    The minibatches of a few steps are fetched together, each row once (`fetch.exchange.RowsAhead`); the trial has
    counted the rows that this leaves.

    Args:
        s: the run.
        seen: its trial.
        minibatches: minibatches in an epoch; the last one may be incomplete.
        ranks: ranks that train on them.
    """
    per_step, count = s.job.train.per_step(ranks), math.ceil(round(minibatches, 9))
    distinct, together = seen.distinct or [1.0], 1
    if s.job.queue.kind != "zarr" and len(distinct) > 1:
        step = per_step / ranks * distinct[0] * s.row_bytes
        together = max(1, min(MOST_STEPS, int(s.system.options["prefetch_bytes"] // max(1, step))))

    def unit(first: int, last: int) -> float:
        held = np.zeros(ranks)
        for i in range(first * per_step, min(last * per_step, count)):
            held[i % per_step % ranks] += min(1.0, minibatches - i)
        return float(sum(rows_of(distinct, m) for m in held)) / distinct[0]

    def epoch(step: int) -> float:
        steps = -(-count // per_step)
        full = max(0, (steps - 1 - step) // together)
        return full * unit(0, together) * (full > 0) + unit(step + full * together, steps)

    return unit(0, 1) + (epoch(1) if count > per_step else 0.0), epoch(0)


def rows_of(distinct: Sequence[float], minibatches: float) -> float:
    """Distinct nodes of several minibatches together: a power law between the counts and beyond them."""
    if minibatches <= 0:
        return 0.0
    if len(distinct) == 1:
        return distinct[0] * minibatches
    i = min(max(int(minibatches), 1), len(distinct) - 1)
    power = math.log(distinct[i] / distinct[i - 1]) / math.log((i + 1) / i)
    return distinct[i - 1] * (minibatches / i) ** power
