"""From a rehearsal to a run: laws of time."""

import math

import numpy as np

from ...stages.feed.local_feed import Local
from .candidate import Candidate
from .traffic import Moved
from .trial import TrialResult
from .trial_spec import TrialSpec

DRIVER_CORES, WORKER_CORES = 0.08, 0.03
"""What the driver, and each Dask worker, took of a core while ranks trained, on the machine of the README's figures."""


def load(s: Candidate, ranks: int) -> float:
    """How many threads want each core of a machine with so many ranks; at least 1."""
    return max(1.0, ranks * s.threads / s.cores)


def tended(s: Candidate) -> float:
    """How much longer ranks take that leave no core to the driver and to Dask's workers. Rehearsals have neither."""
    if s.job.executor == "inline" or s.per_host * s.threads < s.cores:
        return 1.0
    return 1 / (1 - min(0.5, (DRIVER_CORES + s.per_host * WORKER_CORES) / s.cores))


def share_of_work(s: Candidate) -> float:
    """Of full batches and evaluation: how much more a rank of the run has to do than a rehearsing one."""
    work = 1.0
    if s.cut is not None and s.rehearsed_cut is not None:
        work = s.cut.work / s.rehearsed_cut.work
    return work * (s.growth + s.edge_growth) / 2


def seconds(s: Candidate, seen: TrialResult, cast: TrialSpec) -> float:
    """An epoch, without what messages take on a link."""
    crowd = load(s, s.per_host) / load(s, seen.ranks) * tended(s)
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


def network_seconds(s: Candidate, moved: Moved) -> float:
    """An epoch's messages over the link, by the law of `links`: kinds one after the other, but for rows that come ahead
    of training."""
    if s.link is None or s.ranks == 1:
        return 0.0
    link = s.link
    taken: dict[str, float] = {}
    for kind, waits in moved.waits.items():
        taken[kind] = moved.busiest["network", kind] / link.bandwidth + 2 * waits * link.latency_s
    return sum(taken.values())
