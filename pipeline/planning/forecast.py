"""Memory and time of a run, extrapolated from its trial."""

from dataclasses import dataclass, field, replace

import numpy as np

from ...stages.feed.local_feed import Local
from ...stages.placement.chunks import Chunks
from .candidate import Candidate
from .traffic import Moved, moves, rows_asked
from .trial import EPOCHS, TrialResult

Parts = dict[str, int]
"""Bytes of memory by use."""


@dataclass(frozen=True)
class Forecast:
    """Predicted costs of a candidate. All bytes are payload."""

    label: str
    system: str
    fits: bool
    memory_bytes: int
    """Resident size of the largest rank; of a job that maps its graph, without the pages of files."""
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


def foresee(s: Candidate, room: int, seen: TrialResult | None = None) -> Forecast:
    """Forecast of the candidate's run from its trial; without one, its least memory.

    Args:
        s: the run.
        room: bytes of a rank's memory.
        seen: the trial.
    """
    moved = Moved() if seen is None else moves(s, seen)
    memory = least_bytes(s) if seen is None else memory_of(s, seen, moved.most_seen)
    total = sum(memory.values())
    terms = " + ".join(f"{name} {size / 2**20:,.0f}" for name, size in memory.items())
    words = f"{terms} = {total / 2**20:,.0f} MiB, of {room / 2**20:,.0f} MiB for a rank"
    found = Forecast(
        s.label, s.system.name, total <= room, total, memory, words, epochs=s.epochs, steps_per_epoch=s.steps
    )
    if seen is None:
        return replace(found, arithmetic=f"at least {words}")
    # Only full batches grow with the graph; minibatches of a step that each rank trains on come one after the other.
    work = s.in_turn(s.ranks) / s.in_turn(seen.ranks) if s.is_sampled else share_of_work(s)
    # As more threads than in the trial share each core, each is slower.
    crowd, network = s.at.load(s.at.per_host) / s.at.load(seen.ranks), moved.seconds(s.at.link) if s.at.link else 0.0
    return replace(
        found,
        bytes=moved.bytes(1, s.epochs),
        bytes_per_epoch=moved.bytes(0, 1),
        seconds_per_epoch=s.fractional_steps * seen.step_s * work * crowd + network,
        network_seconds=network,
        evaluate_seconds=seen.evaluate_s * share_of_work(s) * crowd,
        estimate=s.at.stands_in or seen.ranks < s.ranks,
    )


def least_bytes(s: Candidate) -> Parts:
    """Memory of data that a rank needs in any case, known without a trial."""
    chunks = 2 if isinstance(s.system.partition, Chunks) else 1
    share = 1.0 if s.cut is None or s.ranks == 1 else chunks / s.ranks
    nodes, edges, features = s.at.numbers.nodes, s.at.numbers.edges, s.feature_bytes * share
    # The system can take back the pages of a mapped file.
    graph = 0 if s.job.graph == "mapped" else 8 * (nodes + 1) + (4 if nodes < 2**31 else 8) * edges
    mapped = s.job.features in ("mapped", "zarr") or s.ranks > 1
    if s.cut is None and s.exchanges:
        features *= s.replication / s.ranks
    elif mapped if s.cut is None else (s.job.graph, s.job.features) == ("mapped", "mapped"):
        features = 0
    elif s.cut is None:
        # Rows of each node type are as wide as they are.
        rows = s.at.dataset.features
        used = sum(of.num_rows * of.num_features for of in getattr(rows, "parts", (rows,)))
        features -= nodes * s.row_bytes[0] * (1 - used / (rows.num_rows * rows.num_features))
    return {"graph": round(graph * share), "features": round(features)}


def memory_of(s: Candidate, seen: TrialResult, most_seen: int) -> Parts:
    """Memory of the largest rank, from that of the trial's largest one.

    Args:
        s: the run.
        seen: its trial.
        most_seen: most nodes seen by a rank of isolated training; else 0.
    """
    worst, grows = int(np.argmax(seen.peak_rss_bytes)), s.at.growth
    features, step = (seen.memory_bytes[worst][use] for use in ("features", "step"))
    used = seen.peak_rss_bytes[worst] - step
    base = min(seen.base_bytes, used)
    if s.cut is not None and s.trial_cut is not None and s.ranks > 1:
        # Isolated ranks see more than their parts, and hold the features of all they see.
        isolated = most_seen and features
        grows *= most_seen * s.row_bytes[0] / features if isolated else s.cut.most_held / s.trial_cut.most_held
    data = round((used - base) * grows)
    if s.exchanges:
        data += round(s.replication * s.feature_bytes * (1 / s.ranks - 1 / seen.ranks))
    parts = {"process": base, "data": data, "step": round(step * (1 if s.is_sampled else grows))}
    return parts | waiting_bytes(s, seen) if s.is_sampled else parts


def waiting_bytes(s: Candidate, seen: TrialResult) -> Parts:
    """Memory of minibatches and rows that wait because sampling and fetching are faster than training, beyond those
    that waited in the trial.

    Of N minibatches that take s seconds to prepare and t to train on, N (1 - s / t) are ready when the last one is.
    Validation takes time from training, but not from preparation.
    """
    trial_s = train_s = max(1e-9, seen.step_s / s.in_turn(seen.ranks))
    if s.job.train.evaluate_every and s.at.dataset.split_sizes["val"]:
        train_s += seen.evaluate_s * share_of_work(s) / s.job.train.evaluate_every * s.ranks / s.minibatches
    trial, run = (seen.minibatches, seen.ranks, EPOCHS, trial_s), (s.minibatches, s.ranks, s.epochs, train_s)

    def ready(prepare_s: float, minibatches: float, ranks: int, epochs: int, train_s: float) -> float:
        return minibatches * epochs / ranks * max(0.0, 1 - prepare_s / train_s)

    parts, fetched = {}, [0.0, 0.0]
    if s.exchanges and seen.distinct:
        # A rank's own rows are copied beside those of others.
        stored = s.job.queue.kind == "zarr"
        asked = rows_asked(s, seen, *trial[:2])[1], rows_asked(s, seen, *run[:2], stored)[1]
        sizes = [rows / of[0] * seen.distinct[0] for rows, of in zip(asked, (trial, run))]
        most = [s.system.options["prefetch_bytes"] / size for size in sizes]
        fetched = [min(n, ready(max(seen.sample_s, seen.fetch_s), *of)) for n, of in zip(most, (trial, run))]
        tried, waiting = (n * (size + seen.minibatch_bytes) for n, size in zip(fetched, sizes))
        parts["rows"] = round(max(0.0, waiting - tried))
    most = s.system.sample.max_bytes if isinstance(s.system.sample, Local) else s.job.queue.max_bytes
    size = seen.minibatch_bytes if s.job.queue.kind == "memory" else 0.0
    sampled = max(0.0, ready(seen.sample_s, *run) - fetched[1] - s.job.queue.bulk_size)
    return {**parts, "bulks": round(min(most, sampled * size))}


def share_of_work(s: Candidate) -> float:
    """Work of a rank in full batches and evaluation, relative to a rank of the trial. Nodes and edges count alike."""
    growth = (s.at.growth + s.at.numbers.edges / max(1, s.at.dataset.graph.num_edges)) / 2
    return growth * (s.cut.work / s.trial_cut.work if s.cut is not None and s.trial_cut is not None else 1.0)
