"""Laws of memory and time: from a trial to a run."""

import math
from dataclasses import dataclass, field

import numpy as np

from ...stages.placement.chunks import Chunks
from .candidate import Candidate
from .traffic import Moved, moves, rows_asked, tried_minibatches
from .trial import TrialResult

Parts = dict[str, int]
"""Bytes by what takes them."""
DRIVER_CORES, WORKER_CORES = 0.08, 0.03
"""Cores that the driver, and each Dask worker, took while ranks trained, on the machine of the README's figures."""


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
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of the whole run over all ranks, by channel and kind."""
    bytes_per_epoch: dict[str, dict[str, int]] = field(default_factory=dict)
    epochs: int = 0
    """That the run trains."""
    steps_per_epoch: int = 0
    seconds_per_epoch: float | None = None
    """Without evaluation; None where nothing was tried, for it cannot fit."""
    network_seconds: float = 0.0
    """Of these, what messages take on the link."""
    evaluate_seconds: float = 0.0
    """Of one evaluation, besides."""
    estimate: bool = True
    """Whether a generated graph stood for the real one, or fewer ranks for all."""


def arithmetic(memory: Parts, room: int) -> str:
    """The sum in words."""
    terms = " + ".join(f"{name} {size / 2**20:,.0f}" for name, size in memory.items())
    return f"{terms} = {sum(memory.values()) / 2**20:,.0f} MiB, of {room / 2**20:,.0f} MiB for a rank"


def refused(s: Candidate, least: Parts, room: int) -> Forecast:
    """What cannot fit, by what it takes at least."""
    total, words = sum(least.values()), "at least " + arithmetic(least, room)
    return Forecast(s.label, s.system.name, False, total, least, words, epochs=s.epochs, steps_per_epoch=s.steps)


def foresee(s: Candidate, seen: TrialResult, base: int, room: int) -> Forecast:
    """A run of the candidate, from its trial."""
    moved = moves(s, seen)
    memory, network = memory_of(s, seen, base, moved.most_seen), network_seconds(s, moved)
    per_epoch: dict[str, dict[str, int]] = {"network": {}, "store": {}}
    for (channel, kind), count in sorted(moved.per_epoch.items()):
        per_epoch[channel][kind] = round(count)
    return Forecast(
        label=s.label,
        system=s.system.name,
        fits=sum(memory.values()) <= room,
        memory_bytes=sum(memory.values()),
        memory=memory,
        arithmetic=arithmetic(memory, room),
        bytes=moved.total(s.epochs),
        bytes_per_epoch=per_epoch,
        epochs=s.epochs,
        steps_per_epoch=s.steps,
        seconds_per_epoch=seconds(s, seen) + network,
        network_seconds=network,
        evaluate_seconds=seen.evaluate_s * share_of_work(s) * crowding(s, seen.ranks),
        estimate=s.at.stands_in or seen.ranks < s.ranks,
    )


# --- memory ---


def least_bytes(s: Candidate, base: int) -> Parts:
    """What a rank cannot do without, found without training."""
    share = 1.0 if s.cut is None or s.ranks == 1 else 1 / s.ranks
    if isinstance(s.system.partition, Chunks) and s.ranks > 1:
        share = 2 / s.ranks
    nodes, edges = s.at.numbers.nodes, s.at.numbers.edges
    graph, features = 8 * (nodes + 1) + (4 if nodes < 2**31 else 8) * edges, s.feature_bytes * share
    if s.cut is None and s.exchanges:
        features = s.feature_bytes * s.system.options.get("replication", 1) / s.ranks
    elif s.cut is None and (s.job.features in ("mapped", "zarr") or s.ranks > 1):
        # Pages of a mapped file are the system's to take back.
        features = 0
    return {"process": base, "graph": round(graph * share), "features": round(features)}


def memory_of(s: Candidate, seen: TrialResult, base: int, most_seen: int) -> Parts:
    """What the largest rank takes, from what the largest one of the trial took.

    Args:
        s: the run.
        seen: its trial.
        base: bytes of a rank without data.
        most_seen: nodes that any rank sees, of isolated parts; else 0.
    """
    worst, grows = int(np.argmax(seen.peak_rss_bytes)), s.at.growth
    held = seen.memory_bytes[worst] if seen.memory_bytes else {"features": 0, "step": 0}
    step = held["step"]
    data = max(0, seen.peak_rss_bytes[worst] - base - step)
    if s.cut is not None and s.trial_cut is not None and s.ranks > 1:
        # Isolated ranks see more than their parts, and their features are all that they see.
        isolated = most_seen and held["features"]
        grows *= most_seen * s.row_bytes / held["features"] if isolated else s.cut.most_held / s.trial_cut.most_held
    parts = {"process": base, "data": round(data * grows), "step": round(step * (1 if s.is_sampled else grows))}
    if s.exchanges:
        owned = s.system.options.get("replication", 1) * s.feature_bytes
        parts["data"] += round(owned / s.ranks - owned / seen.ranks)
    return parts | waiting_bytes(s, seen) if s.is_sampled else parts


def waiting_bytes(s: Candidate, seen: TrialResult) -> Parts:
    """What comes to wait where sampling, and the fetching of rows, are faster than training: beyond what has waited in
    the trial.

    Of N minibatches that take s seconds to make ready and t to train on, N (1 - s / t) are ready when the last one is.
    What epochs are validated for is time that training takes, and the making ready does not.
    """
    every, per_rank = s.job.train.evaluate_every, math.ceil(s.per_step(seen.ranks) / seen.ranks)
    validation_s = seen.evaluate_s * share_of_work(s) / every if every and s.at.outline.splits["val"] else 0.0
    trial_s = max(1e-9, seen.step_s / per_rank)
    train_s = trial_s + validation_s * s.ranks / s.minibatches

    def ready(seconds: float, minibatches: float, train_s: float = train_s) -> float:
        return minibatches * max(0.0, 1 - seconds / train_s)

    parts, fetched = {}, 0.0
    if s.exchanges and seen.distinct:
        # Rows of this rank's own are copied beside those of the others.
        row, slower = seen.distinct[0] * s.row_bytes, max(seen.sample_s, seen.fetch_s)

        def held(minibatches: float, ranks: int, epochs: float, train_s: float) -> tuple[float, float]:
            size = rows_asked(s, seen, minibatches, ranks)[1] / math.ceil(round(minibatches, 9)) * row
            count = min(s.system.options["prefetch_bytes"] / size, ready(slower, minibatches * epochs / ranks, train_s))
            return count, count * (size + seen.minibatch_bytes)

        fetched, size = held(s.minibatches, s.ranks, s.epochs, train_s)
        tried = tried_minibatches(s, seen)
        in_trial = held(tried, seen.ranks, seen.minibatches / math.ceil(tried), trial_s)[1]
        parts["rows"] = round(max(0.0, size - in_trial))
    most = s.system.sample.max_bytes if s.is_local else s.job.queue.max_bytes  # pyright: ignore[reportAttributeAccessIssue]
    size = seen.minibatch_bytes if s.job.queue.kind == "memory" else 0.0
    waiting = max(0.0, ready(seen.sample_s, s.minibatches * s.epochs / s.ranks) - fetched - s.job.queue.bulk_size)
    return {**parts, "bulks": round(min(most, waiting * size))}


# --- time ---


def crowding(s: Candidate, ranks: int) -> float:
    """How much longer a rank takes than one of a trial with so many ranks: more threads want each core, and the driver
    and Dask's workers, which a trial has not, want some of the cores that ranks leave to nobody."""
    at = s.at
    load, trial_load = (max(1.0, n * at.threads / at.cores) for n in (at.per_host, ranks))
    if s.job.executor == "inline" or at.per_host * at.threads < at.cores:
        return load / trial_load
    return load / trial_load / (1 - min(0.5, (DRIVER_CORES + at.per_host * WORKER_CORES) / at.cores))


def share_of_work(s: Candidate) -> float:
    """Of full batches and evaluation: how much more a rank of the run has to do than one of the trial."""
    work = s.cut.work / s.trial_cut.work if s.cut is not None and s.trial_cut is not None else 1.0
    return work * s.at.work_growth


def seconds(s: Candidate, seen: TrialResult) -> float:
    """An epoch, without what messages take on a link."""
    crowd = crowding(s, seen.ranks)
    if not s.is_sampled:
        return seen.step_s * share_of_work(s) * crowd
    if s.is_local:
        return max(1.0, s.most_seeds / s.job.train.batch_size) * seen.step_s * crowd
    # A train split that is smaller than a trial's is tried as it is.
    if seen.all_seeds and seen.ranks == s.ranks and not s.at.stands_in and seen.epochs:
        return float(np.median(seen.epochs)) * crowd
    per_step, tried = s.per_step(s.ranks), s.per_step(seen.ranks)
    rounds = math.ceil(per_step / s.ranks) / math.ceil(tried / seen.ranks)
    return min(s.steps, s.minibatches / per_step) * rounds * seen.step_s * crowd


def network_seconds(s: Candidate, moved: Moved) -> float:
    """An epoch's messages over the link, kinds one after the other, by the law of `network`."""
    link = s.at.link
    if link is None or s.ranks == 1:
        return 0.0
    return sum(moved.busiest[k] / link.bandwidth + 2 * waits * link.latency_s for k, waits in moved.waits.items())
