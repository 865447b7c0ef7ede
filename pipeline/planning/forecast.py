"""Memory and time of a run, extrapolated from its trial."""

import math
from dataclasses import dataclass, field

import numpy as np

from ...stages.feed.local_feed import Local
from ...stages.placement.chunks import Chunks
from .candidate import Candidate
from .traffic import Moved, by_channel, moves, rows_asked, tried_minibatches
from .trial import TrialResult

Parts = dict[str, int]
"""Bytes of memory by use."""
DRIVER_CORES, WORKER_CORES = 0.08, 0.03
"""Cores used by the driver and by each Dask worker while ranks train, on the machine of the README's figures."""


@dataclass(frozen=True)
class Forecast:
    """Predicted costs of a candidate. All bytes are payload."""

    label: str
    system: str
    fits: bool
    memory_bytes: int
    """Resident size of the largest rank."""
    memory: Parts
    arithmetic: str
    """The sum of `memory` in words."""
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes of the whole run over all ranks, by channel and kind."""
    bytes_per_epoch: dict[str, dict[str, int]] = field(default_factory=dict)
    epochs: int = 0
    """Epochs that the run trains."""
    steps_per_epoch: int = 0
    seconds_per_epoch: float | None = None
    """Seconds without evaluation; None without a trial, for a candidate that cannot fit."""
    network_seconds: float = 0.0
    """Seconds of these for messages on the link."""
    evaluate_seconds: float = 0.0
    """Seconds of one evaluation, which are not in `seconds_per_epoch`."""
    estimate: bool = True
    """True if a generated graph stood in for the real one, or fewer ranks for all."""


def arithmetic(memory: Parts, room: int) -> str:
    """The sum in words."""
    terms = " + ".join(f"{name} {size / 2**20:,.0f}" for name, size in memory.items())
    return f"{terms} = {sum(memory.values()) / 2**20:,.0f} MiB, of {room / 2**20:,.0f} MiB for a rank"


def refused(s: Candidate, least: Parts, room: int) -> Forecast:
    """Forecast of a candidate whose least memory does not fit."""
    total, words = sum(least.values()), "at least " + arithmetic(least, room)
    return Forecast(s.label, s.system.name, False, total, least, words, epochs=s.epochs, steps_per_epoch=s.steps)


def foresee(s: Candidate, seen: TrialResult, base: int, room: int) -> Forecast:
    """Forecast of the candidate's run, from its trial."""
    moved = moves(s, seen)
    memory, network = memory_of(s, seen, base, moved.most_seen), network_seconds(s, moved)
    return Forecast(
        label=s.label,
        system=s.system.name,
        fits=sum(memory.values()) <= room,
        memory_bytes=sum(memory.values()),
        memory=memory,
        arithmetic=arithmetic(memory, room),
        bytes=moved.total(s.epochs),
        bytes_per_epoch=by_channel(moved.per_epoch),
        epochs=s.epochs,
        steps_per_epoch=s.steps,
        seconds_per_epoch=seconds(s, seen) + network,
        network_seconds=network,
        evaluate_seconds=seen.evaluate_s * share_of_work(s) * crowding(s, seen.ranks),
        estimate=s.at.stands_in or seen.ranks < s.ranks,
    )


def least_bytes(s: Candidate, base: int) -> Parts:
    """Memory that a rank needs in any case, known without a trial."""
    share = 1.0 if s.cut is None or s.ranks == 1 else 1 / s.ranks
    if isinstance(s.system.partition, Chunks) and s.ranks > 1:
        share = 2 / s.ranks
    nodes, edges = s.at.numbers.nodes, s.at.numbers.edges
    graph, features = 8 * (nodes + 1) + (4 if nodes < 2**31 else 8) * edges, s.feature_bytes * share
    # The system can take back the pages of a mapped file.
    if s.job.graph == "mapped":
        graph = 0
    if s.cut is None and s.exchanges:
        features = s.feature_bytes * s.replication / s.ranks
    elif s.cut is None and (s.job.features in ("mapped", "zarr") or s.ranks > 1):
        features = 0
    return {"process": base, "graph": round(graph * share), "features": round(features)}


def memory_of(s: Candidate, seen: TrialResult, base: int, most_seen: int) -> Parts:
    """Memory of the largest rank, from that of the trial's largest one.

    Args:
        s: the run.
        seen: its trial.
        base: bytes of a rank without data.
        most_seen: most nodes seen by a rank of isolated training; else 0.
    """
    worst, grows = int(np.argmax(seen.peak_rss_bytes)), s.at.growth
    held = seen.memory_bytes[worst] if seen.memory_bytes else {"features": 0, "step": 0}
    step = held["step"]
    data = max(0, seen.peak_rss_bytes[worst] - base - step)
    if s.cut is not None and s.trial_cut is not None and s.ranks > 1:
        # Isolated ranks see more than their parts, and hold the features of all they see.
        isolated = most_seen and held["features"]
        grows *= most_seen * s.row_bytes / held["features"] if isolated else s.cut.most_held / s.trial_cut.most_held
    parts = {"process": base, "data": round(data * grows), "step": round(step * (1 if s.is_sampled else grows))}
    if s.exchanges:
        owned = s.replication * s.feature_bytes
        parts["data"] += round(owned / s.ranks - owned / seen.ranks)
    return parts | waiting_bytes(s, seen) if s.is_sampled else parts


def waiting_bytes(s: Candidate, seen: TrialResult) -> Parts:
    """Memory of minibatches and rows that wait because sampling and fetching are faster than training, beyond those
    that waited in the trial.

    Of N minibatches that take s seconds to prepare and t to train on, N (1 - s / t) are ready when the last one is.
    Validation takes time from training, but not from preparation.
    """
    train = s.job.train
    every, per_rank = train.evaluate_every, math.ceil(train.per_step(seen.ranks) / seen.ranks)
    validates = every and s.at.dataset.split_sizes["val"]
    validation_s = seen.evaluate_s * share_of_work(s) / every if validates else 0.0
    trial_s = max(1e-9, seen.step_s / per_rank)
    train_s = trial_s + validation_s * s.ranks / s.minibatches

    def ready(seconds: float, minibatches: float, train_s: float = train_s) -> float:
        return minibatches * max(0.0, 1 - seconds / train_s)

    parts, fetched = {}, 0.0
    if s.exchanges and seen.distinct:
        # A rank's own rows are copied beside those of the others.
        row, slower = seen.distinct[0] * s.row_bytes, max(seen.sample_s, seen.fetch_s)

        def held(minibatches: float, ranks: int, epochs: float, train_s: float) -> tuple[float, float]:
            size = rows_asked(s, seen, minibatches, ranks)[1] / math.ceil(round(minibatches, 9)) * row
            count = min(s.system.options["prefetch_bytes"] / size, ready(slower, minibatches * epochs / ranks, train_s))
            return count, count * (size + seen.minibatch_bytes)

        fetched, size = held(s.minibatches, s.ranks, s.epochs, train_s)
        tried = tried_minibatches(s, seen)
        in_trial = held(tried, seen.ranks, seen.minibatches / math.ceil(tried), trial_s)[1]
        parts["rows"] = round(max(0.0, size - in_trial))
    most = s.system.sample.max_bytes if isinstance(s.system.sample, Local) else s.job.queue.max_bytes
    size = seen.minibatch_bytes if s.job.queue.kind == "memory" else 0.0
    waiting = max(0.0, ready(seen.sample_s, s.minibatches * s.epochs / s.ranks) - fetched - s.job.queue.bulk_size)
    return {**parts, "bulks": round(min(most, waiting * size))}


def crowding(s: Candidate, ranks: int) -> float:
    """Slow-down of a rank compared with a trial of so many ranks: more threads share each core, and the driver and
    Dask's workers, which a trial lacks, need cores if ranks leave none free."""
    at = s.at
    load, trial_load = (max(1.0, n * at.threads / at.cores) for n in (at.per_host, ranks))
    if s.job.executor == "inline" or at.per_host * at.threads < at.cores:
        return load / trial_load
    return load / trial_load / (1 - min(0.5, (DRIVER_CORES + at.per_host * WORKER_CORES) / at.cores))


def share_of_work(s: Candidate) -> float:
    """Work of a rank in full batches and evaluation, relative to a rank of the trial."""
    work = s.cut.work / s.trial_cut.work if s.cut is not None and s.trial_cut is not None else 1.0
    return work * s.at.work_growth


def seconds(s: Candidate, seen: TrialResult) -> float:
    """Seconds of an epoch, without messages on a link."""
    crowd = crowding(s, seen.ranks)
    if not s.is_sampled:
        return seen.step_s * share_of_work(s) * crowd
    if s.is_local:
        return max(1.0, s.most_seeds / s.job.train.batch_size) * seen.step_s * crowd
    # The trial ran whole epochs if the train split is small enough.
    if seen.all_seeds and seen.ranks == s.ranks and not s.at.stands_in and seen.epochs:
        return float(np.median(seen.epochs)) * crowd
    per_step, tried = (s.job.train.per_step(ranks) for ranks in (s.ranks, seen.ranks))
    rounds = math.ceil(per_step / s.ranks) / math.ceil(tried / seen.ranks)
    return min(s.steps, s.minibatches / per_step) * rounds * seen.step_s * crowd


def network_seconds(s: Candidate, moved: Moved) -> float:
    """Seconds of an epoch's messages on the link, kinds one after the other, by the formula of `network`."""
    link = s.at.link
    if link is None or s.ranks == 1:
        return 0.0
    return sum(moved.busiest[k] / link.bandwidth + 2 * waits * link.latency_s for k, waits in moved.waits.items())
