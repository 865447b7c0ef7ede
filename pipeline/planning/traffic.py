"""How many bytes a run will move between ranks and read from stores: laws, from the number of parameters and the counts
of a cut.

They follow what `storage.ledger` counts: payload that ranks send, by kind, over all of them. What hangs on the samples
themselves, rows and ids of minibatches, is no law's: the plan counts it in a rehearsal.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from ...stages.comm.gloo import ring_bytes, sum_waits
from ...stages.memory.quantize import row_bytes
from ...stages.messages import Phase
from ...stages.models.lazy import Lazy
from ...stages.partition.cut_counts import CutCounts, halo_nodes
from ...stages.placement.chunk_schedule import ChunkSchedule
from ...stages.placement.chunks import Chunks
from ...stages.reduce.seed_weighted import TOLD
from ...storage.graph import Graph
from ...storage.ledger import KINDS
from ...storage.partition.book import PartitionBook
from ..config.systems import System

ID_BYTES = 8
COUNT_BYTES = 8
SUMS = 3
"""Numbers that ranks add up when an epoch ends, in float64."""


@dataclass
class Moved:
    """What a run moves."""

    once: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Bytes over all ranks, by (channel, kind), however many epochs there are."""
    per_epoch: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """The same, of one epoch; the mean where epochs differ."""
    busiest: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Of one epoch, what the rank sends that sends most of a kind."""
    waits: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Messages of one epoch that a rank waits for one after the other, by kind."""

    def total(self, epochs: int) -> dict[str, dict[str, int]]:
        """Bytes of a run, by channel and kind."""
        found: dict[str, dict[str, int]] = {"network": {}, "store": {}}
        for channel, kind in sorted({*self.once, *self.per_epoch}):
            found[channel][kind] = round(self.once[channel, kind] + epochs * self.per_epoch[channel, kind])
        return found

    def add(self, kind: str, total: float, busiest: float, waits: float) -> None:
        """Network bytes of an epoch."""
        self.per_epoch["network", kind] += total
        self.busiest["network", kind] += busiest
        self.waits[kind] += waits


def gradients(moved: Moved, system: System, model: nn.Module, steps: float, size: int, phases: Sequence[Phase]) -> None:
    """What every system's steps take: one sum over ranks of all gradients, a count, and whether to stop."""
    if size == 1:
        return
    kind = "gradients"
    for phase in phases:
        module = system.schedule.begin(phase, model)
        parameters = [p for p in module.parameters() if p.requires_grad]
        numel, itemsize = sum(p.numel() for p in parameters) + TOLD, parameters[0].element_size()
        sent = [ring_bytes(numel, itemsize, r, size) for r in range(size)]
        share = steps / len(phases)
        moved.add(kind, share * sum(sent), share * max(sent), share * sum_waits(numel, size, kind))
    # A checkpoint at the end of each phase: every rank's counters, and four sums.
    counters = size * 2 * sum(len(kinds) for kinds in KINDS.values()) + 4
    moved.once["network", "control"] += len(phases) * (2 * (size - 1) * 8 * counters + size * (size - 1))
    sums = [ring_bytes(SUMS, 8, r, size) for r in range(size)]
    moved.add("control", sum(sums), max(sums), sum_waits(SUMS, size, "control"))


def visits(moved: Moved, cut: CutCounts, traffic: Sequence[tuple[int, int]], prune: bool) -> None:
    """Full-batch training: rows and their gradients, layer by layer.

    Args:
        moved: added to.
        cut: of the run's parts.
        traffic: for each layer, bytes of a row that is sent and of the gradient of one that was read.
        prune: whether layers leave out what no train node's result depends on.
    """
    total = busiest = np.zeros(cut.size)
    for i, (there, back) in enumerate(traffic):
        rows = cut.rows[i if prune else -1]
        total = total + there * rows.sum(0) + back * rows.sum(1)
    busiest = total.max(initial=0)
    rounds = sum(1 for pair in traffic for n in pair if n) if cut.size > 1 else 0
    moved.add("activations", float(total.sum()), float(busiest), rounds)
    arrange(moved, cut, len(traffic) if prune else 0)


def arrange(moved: Moved, cut: CutCounts, pruned_layers: int) -> None:
    """What ranks tell each other before a full batch: which rows they read, and how many of them in which layers."""
    pairs = cut.size * (cut.size - 1)
    levels = pruned_layers + 2 if pruned_layers else 1
    ids = cut.boundary + (int(cut.rows[0].sum()) if pruned_layers else 0)
    moved.once["network", "graph"] += ID_BYTES * (ids + pairs * levels)
    # Sizes travel before each of these messages.
    moved.once["network", "control"] += COUNT_BYTES * pairs * (2 + pruned_layers)


def handed_on(moved: Moved, cut: CutCounts, model: Lazy, dtype: torch.dtype) -> None:
    """Layer after layer: rows of the boundary once for each phase that passes messages; their names and degrees
    before."""
    arrange(moved, cut, 0)
    moved.once["network", "graph"] += 2 * ID_BYTES * cut.boundary
    for k, width in enumerate(model.phase_widths):
        if model.phase(k).passes_messages:
            moved.once["network", "features" if k == 0 else "activations"] += cut.boundary * row_bytes(
                width, model.phases.rounding, dtype
            )


def features_read(moved: Moved, num_nodes: int, num_features: int, itemsize: int) -> None:
    """Every rank reads its own rows, once."""
    moved.once["store", "features"] += num_nodes * num_features * itemsize


def chunks_read(
    moved: Moved,
    graph: Graph,
    book: PartitionBook,
    cut: CutCounts,
    policy: Chunks,
    seed: int,
    super_epochs: int,
    row_size: int,
) -> int:
    """Isolated parts: what ranks read from stores, chunk by chunk, in so many super-epochs.

    Args:
        moved: added to.
        graph: the whole.
        book: who owns what: a chunk is a part.
        cut: of the same.
        policy: what is seen.
        seed: of the run.
        super_epochs: of the run; the mean of the first few stands for the others.
        row_size: bytes of a feature row.

    Returns:
        The most nodes that any rank sees at once.
    """
    ranks = cut.size // policy.per_rank
    deal = ChunkSchedule(seed, ranks, policy.per_rank, policy.reshuffle_fraction, policy.rotation)
    most, looked = 0, min(super_epochs, max(2, ranks))
    found: list[tuple[float, float]] = []
    before: list[set[int]] = [set() for _ in range(ranks)]
    for t in range(looked):
        graph_bytes = feature_bytes = 0.0
        for rank in range(ranks):
            chunks = [*deal.base(rank, t), *deal.variable(rank, t)]
            own = int(cut.nodes[chunks].sum())
            halo = halo_nodes(graph, book, chunks) if policy.halo and len(chunks) < cut.size else 0
            seen = round(halo * policy.halo)
            most = max(most, own + seen)
            if set(chunks) == before[rank] and policy.halo in (0, 1):
                continue
            new = [c for c in chunks if c not in before[rank]]
            before[rank] = set(chunks)
            graph_bytes += sum(shard_bytes(cut, c, graph.edge_weight is not None) for c in new)
            feature_bytes += (int(cut.nodes[new].sum()) + seen) * row_size
        found.append((graph_bytes, feature_bytes))
    first, later = np.array(found[0]), np.array(found[1:]).mean(0) if looked > 1 else np.zeros(2)
    read = first + (super_epochs - 1) * later
    moved.once["store", "graph"] += read[0]
    moved.once["store", "features"] += read[1]
    return most


def shard_bytes(cut: CutCounts, part: int, weighted: bool) -> int:
    """Of a part's `EdgeShards`: three splits, a row and a count for each list, two numbers an edge, the sources, the
    first edges."""
    edges, sources = int(cut.edges[part]), int(cut.rows[-1, part].sum())
    edge_ids = 4 if edges < 2**31 else 8
    per_edge = 4 + edge_ids + (4 if weighted else 0)
    return 24 * (cut.size + 1) + 8 * int(cut.lists[part]) + per_edge * edges + 4 * sources + 8 * int(cut.nodes[part])
