"""From a rehearsal to a run: laws of memory and time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from ..stages.fetch.exchange import MOST_STEPS
from ..stages.fetch.visit import Visited, row_bytes
from ..stages.models import MODELS
from ..stages.models.lazy import Lazy
from ..stages.partition.boundary import WithBoundary
from ..stages.partition.chunks import Chunks
from ..stages.partition.cut_counts import CutCounts
from ..stages.partition.deal import Deal
from ..stages.partition.sharded import Sharded
from ..stages.sample.local import Local
from ..stages.sample.produce import Sampled
from ..storage.dataset import Dataset
from ..storage.partition_book import PartitionBook
from . import plan_bytes
from .config import Job, build
from .links import Link
from .plan_bytes import Moved
from .prepare import TORCH_DTYPES, Outline
from .rehearsal import Rehearsed
from .systems import System
from .understudy_cast import Cast

Parts = dict[str, int]


@dataclass(frozen=True, eq=False)
class Situation:
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
        deal = Deal(self.job.seed, self.ranks, per_rank, self.job.grappa.moved if self.system.name == "grappa" else 0.0, "none")
        share = max(int(self.cut.train[list(deal.base(r, 0))].sum()) for r in range(self.ranks)) / max(1, int(self.cut.train.sum()))
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


@dataclass(frozen=True)
class Forecast:
    """What a candidate would take. All bytes are payload."""

    label: str
    system: str
    fits: bool
    memory_bytes: int
    """Resident size of the rank that takes most."""
    memory: Parts
    """What that is made of."""
    arithmetic: str
    """The same in words."""
    bytes: dict[str, dict[str, int]]
    """Of the whole run over all ranks, by channel and kind."""
    bytes_per_epoch: dict[str, dict[str, int]]
    epochs: int
    """That the run trains."""
    steps_per_epoch: int
    seconds_per_epoch: float | None
    """Without evaluation; None where nothing was rehearsed, for it cannot fit."""
    network_seconds: float
    """Of these, what messages take on the link."""
    evaluate_seconds: float
    """Of one evaluation, besides."""
    estimate: bool
    """Whether a generated graph stood for the real one, or fewer ranks for all."""

    @classmethod
    def refused(cls, s: Situation, least: Parts, room: int) -> "Forecast":
        """What cannot fit, by what it takes at least."""
        total = sum(least.values())
        return cls(
            s.label,
            s.system.name,
            False,
            total,
            least,
            "at least " + arithmetic(least, room),
            {},
            {},
            s.epochs,
            s.steps,
            None,
            0.0,
            0.0,
            True,
        )


def least_bytes(s: Situation, base: int) -> Parts:
    """What a rank cannot do without, found without training."""
    if isinstance(s.system.partition, Chunks):
        share = 1.0 if s.ranks == 1 else min(1.0, (1 + (s.ranks > 1)) / s.ranks)
    else:
        share = 1.0 if s.cut is None else 1 / s.ranks
    features = s.feature_bytes * share
    if s.cut is None and s.exchanges:
        features = s.feature_bytes * s.replication / s.ranks
    elif s.cut is None and (s.job.features in ("mapped", "zarr") or s.ranks > 1):
        # Pages of a mapped file are the system's to take back.
        features = 0
    return {"process": base, "graph": round(s.graph_bytes * share), "features": round(features)}


def arithmetic(parts: Parts, room: int) -> str:
    """The sum in words."""
    terms = " + ".join(f"{name} {size / 2**20:,.0f}" for name, size in parts.items())
    return f"{terms} = {sum(parts.values()) / 2**20:,.0f} MiB, of {room / 2**20:,.0f} MiB for a rank"


def foresee(s: Situation, seen: Rehearsed, cast: Cast, base: int, room: int) -> Forecast:
    """A run of the candidate, from its rehearsal."""
    moved, most_seen = moves(s, seen)
    memory = memory_of(s, seen, base, most_seen)
    network = network_seconds(s, moved)
    total = sum(memory.values())
    per_epoch: dict[str, dict[str, int]] = {"network": {}, "store": {}}
    for (channel, kind), count in sorted(moved.per_epoch.items()):
        per_epoch[channel][kind] = round(count)
    epochs = s.epochs
    return Forecast(
        label=s.label,
        system=s.system.name,
        fits=total <= room,
        memory_bytes=total,
        memory=memory,
        arithmetic=arithmetic(memory, room),
        bytes=moved.total(epochs),
        bytes_per_epoch=per_epoch,
        epochs=epochs,
        steps_per_epoch=s.steps,
        seconds_per_epoch=seconds(s, seen, cast) + network,
        network_seconds=network,
        evaluate_seconds=seen.evaluate_s * share_of_work(s) * load(s, s.per_host) / load(s, seen.ranks),
        estimate=s.stands_in or seen.ranks < s.ranks,
    )


def moves(s: Situation, seen: Rehearsed) -> tuple[Moved, int]:
    """Bytes of the run, and for isolated parts the most nodes that a rank sees."""
    moved, model, dtype, most = Moved(), s.model(), TORCH_DTYPES[s.job.dtype], 0
    phases = s.system.schedule.phases(s.job.epochs, model)
    plan_bytes.gradients(moved, s.system, model, s.steps, s.ranks, phases)
    policy = s.system.partition
    if isinstance(policy, Sharded):
        plan_bytes.features_read(moved, s.dataset.num_nodes, s.outline.num_features, s.itemsize)
    if s.cut is not None and s.ranks > 1:
        assert s.book is not None
        if isinstance(policy, WithBoundary):
            assert isinstance(model, Lazy)
            plan_bytes.handed_on(moved, s.cut, model, dtype)
        elif isinstance(policy, Sharded):
            assert isinstance(s.system.neighbourhood, Visited)
            traffic = row_bytes(s.system.neighbourhood, model, s.outline.num_features, dtype)
            plan_bytes.visits(moved, s.cut, traffic, policy.prune)
        elif isinstance(policy, Chunks):
            row = s.outline.num_features * s.itemsize
            most = plan_bytes.chunks_read(moved, s.dataset.graph, s.book, s.cut, policy, s.job.seed, len(phases), row)
    _minibatch_rows(s, seen, moved)
    if s.stands_in:
        _grow(moved, s.growth)
    return moved, most


def _minibatch_rows(s: Situation, seen: Rehearsed, moved: Moved) -> None:
    """What the rows of sampled minibatches take, as counted in the rehearsal."""
    if not isinstance(s.system.sample, Sampled):
        return
    if s.job.queue.kind == "zarr":
        moved.per_epoch["store", "minibatches"] += seen.minibatch_bytes * s.minibatches / s.growth
    if not s.exchanges:
        # The last minibatch of an epoch is counted whole only where it was rehearsed, as small as it is.
        minibatches = math.ceil(s.minibatches) if seen.all_seeds and not s.stands_in else s.minibatches
        per_epoch = minibatches / max(1, seen.minibatches)
        moved.per_epoch["store", "features"] += seen.bytes["store"]["features"] * per_epoch / s.growth
        return
    c = s.replication
    moved.once["store", "features"] += s.feature_bytes * c / s.growth
    # Of the rows that a column of the grid holds, all but one block are other ranks'.
    share = (1 - c / s.ranks) / (1 - c / seen.ranks)
    first, later = rows_asked(s, seen, s.minibatches, s.ranks)
    rehearsed, again = rows_asked(s, seen, *_rehearsed(s, seen))
    epochs = seen.minibatches / math.ceil(_rehearsed(s, seen)[0])
    asked = rehearsed + max(0.0, epochs - 1) * again if epochs > 1 else rehearsed * epochs
    words = seen.bytes["network"]["control"] - seen.steps * seen.ranks * (seen.ranks - 1)
    for kind, count in (("features", seen.bytes["network"]["features"]), ("control", words)):
        # What does not grow with the graph is grown in the end all the same.
        each = count / asked * share / (s.growth if kind == "features" else 1)
        moved.add(kind, later * each, later * each / s.ranks, seen.waits[kind] / max(1, seen.steps) * s.steps)
        moved.once["network", kind] += (first - later) * each


def _rehearsed(s: Situation, seen: Rehearsed) -> tuple[float, int]:
    """Minibatches of a rehearsed epoch, and ranks."""
    if seen.all_seeds:
        return len(s.dataset.split.train) / s.job.train.batch_size, seen.ranks
    return float(MOST_STEPS * (s.job.train.minibatches_per_step or seen.ranks)), seen.ranks


def rows_asked(s: Situation, seen: Rehearsed, minibatches: float, ranks: int) -> tuple[float, float]:
    """Rows that ranks ask for in the first epoch and in each later one, in rows of one minibatch.

    The minibatches of a few steps are fetched together, each row once (`fetch.exchange.RowsAhead`): how many rows that leaves was counted.

    Args:
        s: the run.
        seen: its rehearsal.
        minibatches: of an epoch; the last one may be less than whole.
        ranks: that train on them.
    """
    per_step, count = s.job.train.minibatches_per_step or ranks, math.ceil(round(minibatches, 9))
    united = seen.united or [1.0]
    together = 1
    if s.job.queue.kind != "zarr" and len(united) > 1:
        step = per_step / ranks * united[0] * s.outline.num_features * s.itemsize
        together = max(1, min(MOST_STEPS, int(s.job.bulk.ahead_bytes // max(1, step))))

    def unit(first: int, last: int) -> float:
        held = np.zeros(ranks)
        for i in range(first * per_step, min(last * per_step, count)):
            held[i % per_step % ranks] += min(1.0, minibatches - i)
        return float(sum(rows_of(united, m) for m in held)) / united[0]

    def epoch(step: int) -> float:
        steps = -(-count // per_step)
        full = max(0, (steps - 1 - step) // together)
        return full * unit(0, together) * (full > 0) + unit(step + full * together, steps)

    return unit(0, 1) + (epoch(1) if count > per_step else 0.0), epoch(0)


def rows_of(united: Sequence[float], minibatches: float) -> float:
    """Distinct nodes of so many minibatches together: powers between what was counted, and beyond it."""
    if minibatches <= 0:
        return 0.0
    if len(united) == 1:
        return united[0] * minibatches
    i = min(max(int(minibatches), 1), len(united) - 1)
    power = math.log(united[i] / united[i - 1]) / math.log((i + 1) / i)
    return united[i - 1] * (minibatches / i) ** power


def _grow(moved: Moved, growth: float) -> None:
    """All that is in proportion to the graph."""
    for table in (moved.once, moved.per_epoch, moved.busiest):
        for key in table:
            if key[1] not in ("gradients", "control"):
                table[key] *= growth


def memory_of(s: Situation, seen: Rehearsed, base: int, most_seen: int) -> Parts:
    """What the largest rank takes, from what the largest rehearsing one took."""
    worst = int(np.argmax(seen.peak_rss_bytes))
    held = seen.memory_bytes[worst] if seen.memory_bytes else {"graph": 0, "features": 0, "step": 0}
    step = held["step"]
    data = max(0, seen.peak_rss_bytes[worst] - base - step)
    grows = s.growth
    if s.cut is not None and s.rehearsed_cut is not None and s.ranks > 1:
        row = s.outline.num_features * s.itemsize
        # Isolated ranks see more than their parts, and their features are all that they see.
        grows *= most_seen * row / held["features"] if most_seen and held["features"] else s.cut.most_held / s.rehearsed_cut.most_held
    if not s.sampled:
        step *= grows
    parts = {"process": base, "data": round(data * grows), "step": round(step)}
    if s.exchanges:
        owned = s.replication * s.feature_bytes
        parts["data"] += round(owned / s.ranks - owned / s.growth / seen.ranks * s.growth)
    if s.sampled:
        parts |= waiting_bytes(s, seen)
    return parts


def waiting_bytes(s: Situation, seen: Rehearsed) -> Parts:
    """What comes to wait where sampling, and the fetching of rows, are faster than training: beyond what has waited in the rehearsal.

    Of N minibatches that take s seconds to make ready and t to train on, N (1 - s / t) are ready when the last one is.
    """
    per_rank = math.ceil((s.job.train.minibatches_per_step or seen.ranks) / seen.ranks)
    train_s = max(1e-9, seen.step_s / per_rank)
    mine = s.minibatches * s.epochs / s.ranks

    def ready(seconds: float, minibatches: float) -> float:
        return minibatches * max(0.0, 1 - seconds / train_s)

    parts, fetched = {}, 0.0
    if s.exchanges and seen.united:
        # Rows of this rank's own are copied beside those of the others.
        row, slower = seen.united[0] * s.outline.num_features * s.itemsize, max(seen.sample_s, seen.fetch_s)

        def held(minibatches: float, ranks: int, epochs: float) -> tuple[float, float]:
            size = rows_asked(s, seen, minibatches, ranks)[1] / math.ceil(round(minibatches, 9)) * row
            count = min(s.job.bulk.ahead_bytes / size, ready(slower, minibatches * epochs / ranks))
            return count, count * (size + seen.minibatch_bytes)

        fetched, size = held(s.minibatches, s.ranks, s.epochs)
        rehearsed = _rehearsed(s, seen)
        parts["rows"] = round(max(0.0, size - held(*rehearsed, seen.minibatches / math.ceil(rehearsed[0]))[1]))
    most = s.job.queue.max_bytes if not isinstance(s.system.sample, Local) else s.system.sample.max_bytes
    size = seen.minibatch_bytes if s.job.queue.kind == "memory" else 0.0
    waiting = max(0.0, ready(seen.sample_s, mine) - fetched - s.job.queue.bulk_size)
    return {**parts, "bulks": round(min(most, waiting * size))}


def load(s: Situation, ranks: int) -> float:
    """How many threads want each core of a machine with so many ranks; at least 1."""
    return max(1.0, ranks * s.threads / s.cores)


def share_of_work(s: Situation) -> float:
    """Of full batches and evaluation: how much more a rank of the run has to do than a rehearsing one."""
    work = 1.0
    if s.cut is not None and s.rehearsed_cut is not None:
        work = s.cut.work / s.rehearsed_cut.work
    return work * (s.growth + s.edge_growth) / 2


def seconds(s: Situation, seen: Rehearsed, cast: Cast) -> float:
    """An epoch, without what messages take on a link."""
    crowd = load(s, s.per_host) / load(s, seen.ranks)
    if not s.sampled:
        return seen.step_s * share_of_work(s) * crowd
    if isinstance(s.system.sample, Local):
        return s.most_seeds / s.job.train.batch_size * seen.step_s * crowd if s.steps > 1 else seen.step_s * crowd
    per_step, rehearsed = (s.job.train.minibatches_per_step or p for p in (s.ranks, seen.ranks))
    rounds = math.ceil(per_step / s.ranks) / math.ceil(rehearsed / seen.ranks)
    full = min(s.steps, max(s.minibatches / per_step, 0))
    # A train split that is smaller than what would be rehearsed is rehearsed as it is.
    whole = cast.seeds is not None and cast.seeds >= len(s.dataset.split.train)
    if whole and seen.ranks == s.ranks and not s.stands_in and seen.epochs:
        return float(np.median(seen.epochs)) * crowd
    return full * rounds * seen.step_s * crowd


def network_seconds(s: Situation, moved: Moved) -> float:
    """An epoch's messages over the link, by the law of `links`: kinds one after the other, but for rows that come ahead of training."""
    if s.link is None or s.ranks == 1:
        return 0.0
    link = s.link
    taken: dict[str, float] = {}
    for kind, waits in moved.waits.items():
        taken[kind] = moved.busiest["network", kind] / link.bandwidth + 2 * waits * link.latency_s
    return sum(taken.values())
