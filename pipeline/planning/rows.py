"""From a rehearsal to a run: laws of the rows that minibatches ask for, and of what comes to wait."""

import math
from collections.abc import Sequence

import numpy as np

from ...stages.feed.local_feed import Local
from ...stages.feed.queue_feed import Sampled
from ...stages.fetch.exchange import MOST_STEPS
from .candidate import Candidate
from .time import share_of_work
from .traffic import Moved
from .trial import TrialResult


def minibatch_rows(s: Candidate, seen: TrialResult, moved: Moved) -> None:
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


def _rehearsed(s: Candidate, seen: TrialResult) -> tuple[float, int]:
    """Minibatches of a rehearsed epoch, and ranks."""
    if seen.all_seeds:
        return len(s.dataset.split.train) / s.job.train.batch_size, seen.ranks
    return float(MOST_STEPS * (s.job.train.minibatches_per_step or seen.ranks)), seen.ranks


def rows_asked(s: Candidate, seen: TrialResult, minibatches: float, ranks: int) -> tuple[float, float]:
    """Rows that ranks ask for in the first epoch and in each later one, in rows of one minibatch.

    The minibatches of a few steps are fetched together, each row once (`fetch.exchange.RowsAhead`): how many rows that
    leaves was counted.

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
        together = max(1, min(MOST_STEPS, int(s.job.bulk.prefetch_bytes // max(1, step))))

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


def waiting_bytes(s: Candidate, seen: TrialResult) -> dict[str, int]:
    """What comes to wait where sampling, and the fetching of rows, are faster than training: beyond what has waited in
    the rehearsal.

    Of N minibatches that take s seconds to make ready and t to train on, N (1 - s / t) are ready when the last one is.
    What epochs are validated for is time that training takes, and the making ready does not.
    """
    per_rank = math.ceil((s.job.train.minibatches_per_step or seen.ranks) / seen.ranks)
    every = s.job.train.evaluate_every
    validation_s = seen.evaluate_s * share_of_work(s) / every if every and s.outline.splits["val"] else 0.0
    rehearsed_s = max(1e-9, seen.step_s / per_rank)
    train_s = rehearsed_s + validation_s * s.ranks / s.minibatches
    mine = s.minibatches * s.epochs / s.ranks

    def ready(seconds: float, minibatches: float, train_s: float = train_s) -> float:
        return minibatches * max(0.0, 1 - seconds / train_s)

    parts, fetched = {}, 0.0
    if s.exchanges and seen.united:
        # Rows of this rank's own are copied beside those of the others.
        row, slower = seen.united[0] * s.outline.num_features * s.itemsize, max(seen.sample_s, seen.fetch_s)

        def held(minibatches: float, ranks: int, epochs: float, train_s: float) -> tuple[float, float]:
            size = rows_asked(s, seen, minibatches, ranks)[1] / math.ceil(round(minibatches, 9)) * row
            count = min(s.job.bulk.prefetch_bytes / size, ready(slower, minibatches * epochs / ranks, train_s))
            return count, count * (size + seen.minibatch_bytes)

        fetched, size = held(s.minibatches, s.ranks, s.epochs, train_s)
        rehearsed = _rehearsed(s, seen)
        parts["rows"] = round(
            max(0.0, size - held(*rehearsed, seen.minibatches / math.ceil(rehearsed[0]), rehearsed_s)[1])
        )
    most = s.job.queue.max_bytes if not isinstance(s.system.sample, Local) else s.system.sample.max_bytes
    size = seen.minibatch_bytes if s.job.queue.kind == "memory" else 0.0
    waiting = max(0.0, ready(seen.sample_s, mine) - fetched - s.job.queue.bulk_size)
    return {**parts, "bulks": round(min(most, waiting * size))}
