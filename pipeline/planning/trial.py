"""Trials: short runs on this machine, whose reports tell what a step costs here."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...stages.assignment import SeedPlan
from ...stages.fetch.ahead.units import MOST_STEPS
from ...stages.kernels import sampling_backend
from ...stages.kernels.runtime.threads import set_num_threads
from ...stages.links.plan import LinkPlan
from ...stages.links.train_pairs import TrainPairs
from ...storage.dataset import pairs_of
from ..config.load import Job
from ..config.records import negatives_of
from ..telemetry.run_log import RunLog
from .candidate import Candidate

EPOCHS = 5
"""Epochs of a trial. Those of minibatches have `MOST_STEPS` steps, whose rows of other ranks are requested together."""


@dataclass(frozen=True)
class TrialResult:
    """Measurements of a trial. Lists of several ranks are by rank."""

    ranks: int
    steps: int
    """Steps of all epochs."""
    step_s: float
    """Seconds of a step. An incomplete last step of an epoch counts fractionally."""
    minibatches: float
    """Minibatches of an epoch over all ranks; an incomplete last one counts fractionally."""
    minibatch_bytes: float
    """Bytes of a minibatch's structure in memory; 0 without minibatches."""
    distinct: Sequence[float]
    """Bytes of the distinct rows of one whole minibatch of a rank, of two, and so on, means over ranks: of nodes, and
    of edges if the model reads them. Empty if there was no whole one."""
    nodes: Sequence[float]
    """The number of these nodes."""
    sample_s: float
    """Seconds of sampling a minibatch, beside training."""
    fetch_s: float
    """Seconds of fetching a minibatch's rows from other ranks, beside training."""
    evaluate_s: float
    """Seconds of evaluating a split."""
    base_bytes: int
    """Peak of a rank's memory with next to no data."""
    peak_rss_bytes: list[int]
    """Peak of each rank's memory; of a job that maps its graph, without the pages of files."""
    base_device_bytes: int
    """`base_bytes` of a GPU."""
    peak_device_bytes: list[int]
    """Peak of each rank's memory on its GPU, evaluation included; 0 on CPUs."""
    memory_bytes: list[dict[str, int]]
    """See `Result.memory_bytes`."""
    bytes: dict[str, dict[str, int]]
    """Bytes of all ranks, by channel and kind."""
    waits: dict[str, int]
    """Network messages that the first rank waited for, by kind."""


def draw(s: Candidate, seeds: Any, ranks: int) -> tuple[float, float, list[float], list[float]]:
    """Draw minibatches of so many ranks over `seeds` for a trial: of two epochs, or up to `EPOCHS` if these have few.

    Returns:
        Bytes of their structure for each sampled edge, seconds for each, on threads that nothing else uses,
        `TrialResult.distinct` and `TrialResult.nodes`.
    """
    job, sizes, counts = s.job, [list[int]() for _ in range(ranks)], [list[int]() for _ in range(ranks)]
    sampler: Any = s.system.sample.sampler
    batch, per_step, (row, edge_row) = job.train.batch_size, job.train.per_step(ranks), s.row_bytes
    plan = plan_of(s, seeds)
    nodes, edges, most = [np.empty(0, np.int64)] * ranks, [0] * ranks, MOST_STEPS * max(1, per_step // ranks)
    set_num_threads(s.at.threads)
    kernel = sampling_backend("cpu" if job.kernel == "cuda" else job.kernel)  # which draw the same
    drawn, seconds = [], 0.0
    for epoch in range(EPOCHS):
        start = time.perf_counter()
        drawn = sampler.sample(s.at.dataset.graph, plan.request(epoch, 0), kernel).minibatches
        seconds = time.perf_counter() - start
        for r, m in ((i % per_step % ranks, m) for i, m in enumerate(drawn[: len(seeds) // batch])):
            if len(sizes[r]) < most:
                # A node at several moments has a row for each.
                nodes[r] = np.concatenate([nodes[r], m.nodes]) if s.reads_times else np.union1d(nodes[r], m.nodes)
                edges[r] += sum(b.num_edges for b in m.blocks[: 1 if m.nested else None])
                sizes[r].append(row * len(nodes[r]) + edge_row * edges[r])
                counts[r].append(len(nodes[r]))
        if epoch and min(map(len, sizes)) == most:  # the first time includes loading kernels
            break
    set_num_threads(None)
    edge_bytes = sum(m.nbytes for m in drawn) / max(1, sum(m.num_edges for m in drawn))
    distinct, number = ([float(np.mean(of_ranks)) for of_ranks in zip(*of)] for of in (sizes, counts))
    return edge_bytes, seconds / len(drawn), distinct, number


def plan_of(s: Candidate, seeds: Any) -> SeedPlan:
    """Seeds of a trial's minibatches, all in one bulk: nodes, or ends of pairs and of their negatives."""
    job, data = s.job, s.at.dataset
    shape = seeds, job.train.batch_size, -(-len(seeds) // job.train.batch_size), job.seed_of("minibatches")
    if (pairs := pairs_of(data)) is None:
        return SeedPlan(*shape)
    negatives, time = negatives_of(job) if data.task == "link" else None, data.pair_time if s.reads_times else None
    return LinkPlan(*shape, links=TrainPairs.from_graph(data.graph, pairs, negatives, time))


def measured(
    s: Candidate, job: Job, result: Mapping[str, Any], peaks: list[int], base: tuple[int, int], seeds: Any
) -> TrialResult:
    """Measurements of a trial.

    Args:
        s: the run that is planned.
        job: the trial's.
        result: of the trial's run.
        peaks: see `TrialResult.peak_rss_bytes`.
        base: see `TrialResult.base_bytes` and `TrialResult.base_device_bytes`.
        seeds: train nodes of the trial.
    """
    seconds, on_gpu = result["seconds"], s.is_resident
    log: RunLog = result["log"]
    epochs, total = seconds["per_epoch"], max(1, result["minibatches"])
    edge_bytes, sample_s, distinct, nodes = draw(s, seeds, job.ranks) if s.is_sampled else (0.0, 0.0, [], [])
    # The first epoch of each phase has one-time work. When the last one begins, sampling may be over.
    phases = [epochs[i : i + job.epochs] for i in range(0, len(epochs), job.epochs)]
    epoch_s = float(np.mean([np.median(phase[1 : job.epochs - s.is_sampled] or phase) for phase in phases]))
    steps = log.steps_per_epoch or 1
    minibatches, per_step = len(seeds) / job.train.batch_size, job.train.per_step(job.ranks)
    whole = steps if not s.is_sampled or s.system.sample.is_isolated else minibatches / per_step
    validations = sum(bool(row["metrics"]) for row in log.epochs.values())
    evaluate_s, splits = seconds["evaluate"] / (1 + validations), s.at.dataset.split_sizes
    if s.evaluates_seeds and validations and splits["test"]:
        # The first one loads kernels.
        tests = [span.end - span.begin for span in log.spans if span.stage == "evaluate"]
        evaluate_s = tests[-1] * splits["val"] / splits["test"]
    if on_gpu or s.has_blocks:
        # On a GPU the threads that sample share that, as in the trial; ranks that sample together wait for each other.
        sample_s = seconds["sample"] / total * job.ranks
    else:
        # Threads that sample share cores with those that train.
        sample_s *= s.at.load(2 * job.ranks)
    taken = job.ranks, steps * len(epochs), epoch_s / whole, minibatches
    drawn = edge_bytes * result["sampled_edges"] / total, distinct, nodes, sample_s
    return TrialResult(
        *taken,
        *drawn,
        fetch_s=seconds["exchange"] / total * job.ranks,
        evaluate_s=evaluate_s,
        base_bytes=base[0],
        peak_rss_bytes=peaks,
        base_device_bytes=base[1],
        **{key: result[key] for key in ("peak_device_bytes", "memory_bytes")},
        bytes={channel: result["bytes"][channel] for channel in ("network", "store")},
        waits=result["waits"]["network"],
    )
