"""Bytes that a run moves between ranks and reads from stores, and those of learnt rows.

The formulas follow what `storage.ledger` counts: payload that ranks send, by kind, over all of them. Most depend on the
number of parameters and the counts of a cut; rows and ids of minibatches depend on the samples; a trial counts them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...stages.comm.gloo import ring_bytes, sum_waits
from ...stages.comm.nccl import even_ring_bytes
from ...stages.fetch.ahead.units import MOST_STEPS
from ...stages.fetch.exchange import ahead_bytes
from ...stages.learned.optimizers import OPTIMIZERS
from ...stages.memory.quantize import row_bytes
from ...stages.models.phased import PhasedModel
from ...stages.partition.cut_counts import ID_BYTES, CutCounts, halo_counts
from ...stages.policies import InputRows
from ...stages.reduce.seed_weighted import EXTRA_NUMBERS
from ...storage.array_kinds import Float64Array
from ...storage.dataset import Dataset
from ...storage.ledger import KINDS
from ..machine.gpus import backend
from ..setup.model import TORCH_DTYPES
from .candidate import Candidate
from .network import Link
from .trial import EPOCHS, TrialResult

SUMS = 3
"""Numbers that ranks add up when an epoch ends, in float64."""
Counts = defaultdict[tuple[str, str], Any]
"""Bytes by (channel, kind): of all ranks, or [P] of each."""


def row_bytes_of(s: Candidate) -> int:
    """Bytes of a learnt row; 0: there are none."""
    return s.job.learned.width * TORCH_DTYPES[s.job.dtype].itemsize


def state_rows(s: Candidate) -> int:
    """Numbers that the optimiser keeps for one of the table."""
    return len(OPTIMIZERS[s.job.learned.optimizer].moments)


def least_table(s: Candidate) -> int:
    """Bytes by which a rank decides whether its rows go to its GPU; 0 without learnt features."""
    return round((2 + state_rows(s)) * row_bytes_of(s) * s.at.numbers.nodes / s.ranks)


def _table(s: Candidate, nodes: float) -> float:
    """Bytes of all rows, with the state of their optimiser and the copy of the best epoch."""
    return (1 + state_rows(s) + s.validates) * row_bytes_of(s) * nodes


def _is_on_device(s: Candidate) -> bool:
    """True if rows are in the memory of GPUs, for a candidate that was `forecast.placed`."""
    return s.at.gpus > 0 and s.job.gpu.features == "device"


def table_on_device(s: Candidate, nodes: float, ranks: int) -> float:
    """Memory of a rank's rows on its GPU, if they are there. See `table_memory`."""
    return _table(s, nodes) / ranks if _is_on_device(s) else 0.0


def table_memory(s: Candidate, nodes: float, ranks: int, gathers: bool) -> dict[str, int]:
    """Host memory of a rank's rows, and of all rows where the first rank makes a checkpoint and does not hold them all
    there anyway, by use. None without learnt features.

    Args:
        s: the run.
        nodes: V.
        ranks: P.
        gathers: True for the first rank.
    """
    if not row_bytes_of(s):
        return {}
    whole, there = round(_table(s, nodes)), _is_on_device(s)
    own = {} if there else {"learned": round(whole / ranks)}
    return own | ({"checkpoint": whole} if gathers and (ranks > 1 or there) else {})


@dataclass(frozen=True)
class Travelled:
    """Bytes of learnt rows that ranks sent each other in a trial."""

    rows: float = 0.0
    gradients: float = 0.0
    ids: float = 0.0
    """Bytes of the ids of rows that were asked for, and of gradients."""


def travelled(s: Candidate, seen: TrialResult) -> Travelled:
    """Bytes of learnt rows in a trial: its gradients beyond the sums of the model's, and its rows. Where the dataset's
    rows travel too, those of a minibatch are in proportion to the gradients, one for each distinct row of a step."""
    if not (row := row_bytes_of(s)) or seen.ranks == 1:
        return Travelled()
    parameters = [p for p in s.model.parameters() if p.requires_grad]
    numel, itemsize = sum(p.numel() for p in parameters) + EXTRA_NUMBERS, parameters[0].element_size()
    ring = even_ring_bytes if backend(s.job) == "nccl" else ring_bytes
    of_model = seen.steps * sum(ring(numel, itemsize, r, seen.ranks) for r in range(seen.ranks))
    gradients = max(0.0, float(seen.bytes["network"]["gradients"] - of_model))
    share = distinct_share(seen, s.in_turn(seen.ranks))
    rows = gradients / share if s.exchanges else float(seen.bytes["network"]["features"])
    return Travelled(rows, gradients, (rows + gradients) / row * ID_BYTES)


def distinct_share(seen: TrialResult, minibatches: int) -> float:
    """Distinct nodes of so many minibatches of a rank, relative to the sum of their nodes."""
    nodes = seen.nodes[:minibatches]
    return nodes[-1] / (len(nodes) * nodes[0]) if nodes else 1.0


@dataclass
class Moved:
    """Bytes that ranks move, and the messages that they wait for."""

    once: Counts = field(default_factory=lambda: Counts(float))
    """Bytes of a run that do not depend on the number of epochs."""
    per_epoch: Counts = field(default_factory=lambda: Counts(float))
    """Bytes of an epoch; their mean if epochs differ. Those of the network are by rank."""
    waits: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By kind, messages of an epoch that a rank waits for one after the other."""
    most_seen: int = 0
    """Most nodes that a rank of isolated training sees at once."""

    def bytes(self, starts: int, epochs: int) -> dict[str, dict[str, int]]:
        """Bytes of all ranks, by channel and kind, of so many starts of runs and so many epochs."""
        found: dict[str, dict[str, int]] = {"network": {}, "store": {}}
        for channel, kind in sorted({*self.once, *self.per_epoch}):
            once, each = (counts.get((channel, kind), 0.0) for counts in (self.once, self.per_epoch))
            found[channel][kind] = round(float(starts * once + epochs * np.sum(each)))
        return found

    def seconds(self, link: Link) -> float:
        """Time of an epoch's messages on a link, kinds one after the other. The rank that sends most sets the pace."""
        return sum(link.seconds(np.max(self.per_epoch["network", kind]), n) for kind, n in self.waits.items())

    def add(self, kind: str, sent: Float64Array, waits: float) -> None:
        """Count network bytes of an epoch, [P]."""
        self.per_epoch["network", kind] += sent
        self.waits[kind] += waits

    def add_sums(self, kind: str, numel: int, itemsize: int, ranks: int, times: float, on_gpus: bool = False) -> None:
        """Count sums of `numel` numbers over all ranks, as many as `times` in an epoch, over gloo, or NCCL on GPUs."""
        ring = even_ring_bytes if on_gpus else ring_bytes
        sent = np.array([ring(numel, itemsize, r, ranks) for r in range(ranks)])
        self.add(kind, times * sent, times * (2 * (ranks - 1) if on_gpus else sum_waits(numel, ranks, kind)))


def moves(s: Candidate, seen: TrialResult) -> Moved:
    """Bytes of the candidate's run, with rows of minibatches as counted in its trial."""
    moved, policy = Moved(), s.system.partition
    if s.cut is not None and s.ranks > 1:
        policy.count(_PartTraffic(moved, s, s.cut))
    # So far everything is in proportion to the graph but for sizes of messages.
    for counts in (moved.once, moved.per_epoch):
        for channel, kind in counts:
            counts[channel, kind] *= 1 if kind == "control" else s.at.growth
    if s.ranks > 1:
        _steps(moved, s)
    if policy.evaluates_on_shares:
        # Columns of learnt rows, which are set anew in each step, are counted with the others.
        moved.once["store", "features"] += s.feature_bytes + s.at.numbers.nodes * row_bytes_of(s)
    if s.system.sample.uses_queue or s.has_blocks:
        _minibatch_rows(moved, s, seen)
    return moved


def _steps(moved: Moved, s: Candidate) -> None:
    """Steps of any system: one sum over ranks of all gradients, with a count and a flag to stop."""
    model, size, schedule, on_gpus = s.model, s.ranks, s.system.schedule, backend(s.job) == "nccl"
    phases = schedule.phases(s.job.epochs, model)
    for phase in phases:
        parameters = [p for p in schedule.begin(phase, model).parameters() if p.requires_grad]
        numel = sum(p.numel() for p in parameters) + EXTRA_NUMBERS
        moved.add_sums("gradients", numel, parameters[0].element_size(), size, s.steps / len(phases), on_gpus)
    # A checkpoint at the end of each phase: every rank's counters, and four sums.
    counters = size * 2 * sum(len(kinds) for kinds in KINDS.values()) + 4
    moved.once["network", "control"] += len(phases) * (2 * (size - 1) * 8 * counters + size * (size - 1))
    moved.add_sums("control", SUMS, 8, size, 1)


class _PartTraffic(NamedTuple):
    """Adds up the bytes that ranks with parts move, besides gradients. See `PartTraffic`."""

    moved: Moved
    s: Candidate
    cut: CutCounts

    def visits(self, prune: bool) -> None:
        """Full-batch training: rows and gradients by layer. A pruned layer omits rows that no train node depends on."""
        moved, s, cut = self
        width, dtype, types = s.at.numbers.edge_features, TORCH_DTYPES[s.job.dtype], s.at.dataset.graph.types
        learned, features = s.job.learned, s.job.learned.num_read(s.at.numbers.features)
        traffic = s.system.fetch.row_traffic(s.model, InputRows(features, dtype, width, types, learned.width > 0))
        rows = [cut.rows[i if prune else -1] for i in range(len(traffic))]
        total = sum((there * r.sum(0) + back * r.sum(1) for (there, back), r in zip(traffic, rows)), np.zeros(cut.size))
        moved.add("activations", total, int(np.count_nonzero(traffic)))
        arranged = cut.arrange_bytes(len(traffic) if prune else 0)
        moved.once["network", "graph"], moved.once["network", "control"] = arranged
        if s.at.dataset.has_edge_labels:
            _rows_of_edges(moved, s, cut)

    def boundaries(self) -> None:
        moved, s, cut = self
        model = s.model
        assert isinstance(model, PhasedModel)
        arranged, moved.once["network", "control"] = cut.arrange_bytes()
        moved.once["network", "graph"] = arranged + 2 * ID_BYTES * cut.boundary
        for k, width in enumerate(model.phase_widths):
            if model.phase(k).passes_messages:
                row = row_bytes(width, model.phases.rounding, TORCH_DTYPES[s.job.dtype])
                moved.once["network", "features" if k == 0 else "activations"] += cut.boundary * row

    def views(self, halo: float) -> None:
        """The mean of the first few super-epochs stands for those that follow."""
        moved, s, cut = self
        graph, super_epochs = s.at.dataset.graph, len(s.system.schedule.phases(s.job.epochs, s.model))
        schedule, before = s.schedule, [set[int]() for _ in range(s.ranks)]
        read, (row, edge_row) = np.zeros((min(super_epochs, max(2, s.ranks)), 2)), s.row_bytes
        for t, rank in np.ndindex(len(read), s.ranks):
            chunks = {*schedule.base(rank, t), *schedule.variable(rank, t)}
            nodes, edges = halo_counts(graph, cut.book, [*chunks]) if len(chunks) < cut.size else (0, 0)
            around, new = round(nodes * halo), [*chunks - before[rank]]
            edges = int(cut.edges[[*chunks]].sum()) - round(edges * (1 - halo))
            moved.most_seen = max(moved.most_seen, int(cut.nodes[[*chunks]].sum()) + around)
            # A halo that is drawn is read again, also around the same chunks.
            if chunks != before[rank] or 0 < halo < 1:
                lists = sum(cut.shard_bytes(c, graph.edge_weight is not None) for c in new)
                read[t] += lists, row * (int(cut.nodes[new].sum()) + around) + edge_row * edges
            before[rank] = chunks
        later = read[1:].sum(0) / max(1, len(read) - 1)
        for kind, first, again in zip(("graph", "features"), read[0], later):
            moved.once["store", kind] += first + (super_epochs - 1) * again


def _rows_of_edges(moved: Moved, s: Candidate, cut: CutCounts) -> None:
    """Rows of the sources of labelled edges, which the owners of the destinations read, and their gradients."""
    data = s.at.dataset
    source, destination = data.pair_table[data.split.train, :2].T
    reader = cut.book.part(destination)
    asked = np.unique(np.stack([source, reader], axis=1)[cut.book.part(source) != reader], axis=0)
    owner = cut.book.part(asked[:, 0])
    there, back = (np.bincount(part, minlength=cut.size) for part in (owner, asked[:, 1]))
    row = float(s.at.outline.row_width * TORCH_DTYPES[s.job.dtype].itemsize)
    moved.add("activations", (row * (there + back)).astype(np.float64), 2)
    # Ids go to all ranks, which answer by a byte each.
    moved.once["network", "graph"] += (cut.size - 1) * len(asked) * (ID_BYTES + 1)
    moved.once["network", "control"] += 2 * ID_BYTES * cut.size * (cut.size - 1)


def _minibatch_rows(moved: Moved, s: Candidate, seen: TrialResult) -> None:
    """Rows and ids of sampled minibatches, as counted in the trial."""
    uploads = s.at.gpus > 0 and not s.exchanges
    for kind in ("minibatches",) if uploads or s.exchanges else ("minibatches", "features"):
        each = seen.bytes["store"][kind] / (EPOCHS * by_rows(seen.minibatches, seen))
        moved.per_epoch["store", kind] += each * by_rows(s.minibatches, seen)
    if uploads:  # or copies to locked memory, before the first epoch
        moved.once["store", "features"] += seen.bytes["store"]["features"] * s.at.growth * s.ranks / seen.ranks
    learned = _learned_rows(moved, s, seen)
    if not s.exchanges:
        return
    c = s.replication
    moved.once["store", "features"] += s.feature_bytes * c
    # All but one block of the rows that a column of the grid holds belong to other ranks.
    share = (1 - c / s.ranks) / (1 - c / seen.ranks)
    first, later = rows_asked(s, seen, s.minibatches, s.ranks)
    begun, again = rows_asked(s, seen, seen.minibatches, seen.ranks)
    counted = seen.bytes["network"]
    words, rows = counted["control"] - learned.ids - seen.steps * seen.ranks * (seen.ranks - 1), counted["features"]
    sent = {"features": rows - learned.rows, "control": words}
    if s.has_blocks:
        sent["graph"] = _degree_bytes(s, seen, sent["features"])
        _sampled_by_owners(moved, s, seen, sent["graph"], share)
    for kind, count in sent.items():
        each = count / (begun + (EPOCHS - 1) * again) * share
        waits = 0 if learned.rows or kind == "graph" else seen.waits[kind] / seen.steps * s.steps
        moved.add(kind, np.full(s.ranks, later * each / s.ranks), waits)
        moved.once["network", kind] += (first - later) * each


def _degree_bytes(s: Candidate, seen: TrialResult, rows: float) -> float:
    """Bytes of the degrees that came with the trial's rows, which no other rank knows. Rows of edges have none."""
    node = s.row_bytes[0]
    of_nodes = rows * node * seen.nodes[0] / seen.distinct[0] if seen.distinct and seen.distinct[0] else 0.0
    return of_nodes / max(1, node) * TORCH_DTYPES[s.job.dtype].itemsize


def _sampled_by_owners(moved: Moved, s: Candidate, seen: TrialResult, degrees: float, share: float) -> None:
    """Ids of rows that are sampled by their owners, and the drawn edges. Before the first step each rank learns the
    train nodes of the others with their labels, or the edges that pairs of its own are."""
    tried = seen.bytes["network"]["graph"] - _first_messages(s, seen.ranks, seen.minibatches, s.at.dataset)
    each = (tried - degrees) / (EPOCHS * by_rows(seen.minibatches, seen)) * share
    moved.add("graph", np.full(s.ranks, each * by_rows(s.minibatches, seen) / s.ranks), 0)
    moved.waits["graph"] += seen.waits["graph"] / seen.steps * s.steps
    moved.once["network", "graph"] += _first_messages(s, s.ranks, s.minibatches, None)


def _first_messages(s: Candidate, ranks: int, minibatches: float, tried: Dataset | None) -> float:
    """Bytes that ranks send when they place their blocks; of the trial on the dataset `tried`, or of the run."""
    c, data = s.replication, s.at.dataset
    blocks, growth = ranks // c, 1.0 if tried is not None else s.at.growth
    if data.of_pairs:
        # The edges that pairs are, where these are to be taken out of samples.
        hidden = data.task == "link" or data.hides_pairs
        numel = round(2 * len(data.labels) * growth) if hidden else 0
        renumbered = 0 if _has_ranges(s) else (ranks - 1) * c * ID_BYTES * data.num_nodes * growth
        return c * sum(ring_bytes(numel, 8, r, blocks) for r in range(blocks)) + renumbered
    of_labels = 8 if data.labels.ndim == 1 else data.labels.shape[1] * TORCH_DTYPES[s.job.dtype].itemsize
    return c * (blocks - 1) * minibatches * s.job.train.batch_size * (ID_BYTES + of_labels)


def _has_ranges(s: Candidate) -> bool:
    """True if blocks are ranges of ids."""
    assert s.cut is not None
    return bool((np.diff(s.cut.book.part(np.arange(s.cut.book.num_nodes))) >= 0).all())


def _learned_rows(moved: Moved, s: Candidate, seen: TrialResult) -> Travelled:
    """Learnt rows of minibatches, and their gradients, with the ids of both. Returns those of the trial."""
    tried = travelled(s, seen)
    if not tried.rows:
        return tried
    # All but a rank's own share of the nodes belong to others.
    share = (1 - 1 / s.ranks) / (1 - 1 / seen.ranks)
    times = by_rows(s.minibatches, seen) / (EPOCHS * by_rows(seen.minibatches, seen)) * share
    # Fewer ranks have more minibatches of a step each, whose gradients are added up.
    alike = distinct_share(seen, s.in_turn(s.ranks)) / distinct_share(seen, s.in_turn(seen.ranks))
    ids = tried.ids * (tried.rows + alike * tried.gradients) / (tried.rows + tried.gradients)
    for kind, count in (("features", tried.rows), ("gradients", alike * tried.gradients), ("control", ids)):
        # The model's gradients wait for as many messages as `_steps` says.
        waits = s.steps if kind == "gradients" else seen.waits[kind] / seen.steps * s.steps
        moved.add(kind, np.full(s.ranks, times * count / s.ranks), waits)
    return tried


def rows_asked(s: Candidate, seen: TrialResult, minibatches: float, ranks: int) -> tuple[float, float]:
    """Rows requested in the first epoch and each later one, in rows of one minibatch, by bytes, else by number.

    The minibatches of a few steps are fetched together, each node's row once (`RowsAhead`), unless they come from
    files; the trial has counted the rows that this leaves. The first step of a run is fetched alone.

    Args:
        s: the run.
        seen: its trial.
        minibatches: minibatches in an epoch; the last one may be incomplete.
        ranks: ranks that train on them.
    """
    distinct = (seen.distinct if any(seen.distinct) else seen.nodes) or [1.0]
    per_rank, together = s.job.train.per_step(ranks) / ranks, 1
    steps = by_rows(minibatches, seen) / ranks / per_rank
    if s.job.queue.kind == "memory" and len(distinct) > 1:
        room = ahead_bytes(s.system.options.get("prefetch_bytes", "auto"))
        together = max(1, min(MOST_STEPS, int(room // max(1, per_rank * seen.distinct[0]))))

    def rows(steps: float) -> float:
        times, rest = divmod(steps, together)
        each = times * rows_of(distinct, together * per_rank) + rows_of(distinct, rest * per_rank)
        return ranks * each / distinct[0]

    return rows(min(1.0, steps)) + rows(max(0.0, steps - 1)), rows(steps)


def by_rows(minibatches: float, seen: TrialResult) -> float:
    """Minibatches in multiples of a whole one's rows. An incomplete last one has more than its share: of n independent
    draws of rows, whose next one finds a share r of new ones, the rows are in proportion to 1 - r^n."""
    whole, part = divmod(minibatches, 1)
    rows = seen.distinct if any(seen.distinct) else seen.nodes
    r = rows[1] / rows[0] - 1 if len(rows) > 1 else 1.0
    return whole + ((1 - r**part) / (1 - r) if 0 < r < 1 else part)


def rows_of(distinct: Sequence[float], minibatches: float) -> float:
    """Bytes of the rows of several minibatches together, on average over ranks: linear between the counts, which is
    exact where some ranks have one minibatch more than others, and beyond them."""
    *_, before, last = counts = [0.0, *distinct]
    beyond = max(0.0, minibatches - len(distinct)) * (last - before)
    return float(np.interp(minibatches, range(len(counts)), counts)) + beyond
