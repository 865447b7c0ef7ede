"""Summary of a run: a headline, findings, and a few numbers."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...storage.plural import counted
from ..setup.result import STOPPED
from ..telemetry.main_metric import main_metric_of
from ..telemetry.quantities import duration
from .reading import RunRecord
from .timeline import ROWS, WAITING, Timeline

WORTH_SAYING = 0.10
"""Share of the ranks' time below which a stage appears in tables only."""
SLOW_START = 0.25
"""Share of a run's time before its first step above which the summary mentions it, and the time after it gets its own
picture."""
FEWER_SEEDS = 8
"""Where an epoch is one step, a batch size of about one in so many is advised."""
BOTTLENECK = 0.25
"""Share of the ranks' time in training above which a stage counts as a bottleneck."""


@dataclass(frozen=True, eq=False)
class Summary:
    """A run in a few numbers. Seconds and shares are computed from the ranks' pulses, and empty without them."""

    headline: str
    findings: list[str]
    seconds: list[dict[str, float]]
    """Seconds of each rank, by stage of `ROWS`."""
    shares: dict[str, float]
    """Share of all ranks' time, by stage."""
    waits: list[list[float]]
    """See `Timeline.waits`."""
    bytes: dict[str, dict[str, int]]
    """Bytes by channel and kind, from the result, or else from pulses."""
    sent: dict[str, list[list[int]]]
    """[P][P] bytes of messages from rank to rank, by channel."""
    peak_rss_bytes: list[int]
    total_s: float
    epochs: int

    def as_record(self, run: RunRecord) -> dict[str, Any]:
        """The summary as plain values, for JSON."""
        result = run.result or {}
        return {
            "run": str(run.folder),
            "status": run.status,
            "headline": self.headline,
            "findings": self.findings,
            **{key: result.get(key, run.config.get(key)) for key in ("system", "dataset", "ranks")},
            **{key: result.get(key) for key in ("val_accuracy", "test_accuracy", "train_loss", "best_epoch")},
            **{key: result.get(key) or {} for key in ("val_metrics", "test_metrics")},
            "epochs": self.epochs,
            "seconds": {"total": self.total_s, "per_rank": self.seconds},
            "shares": self.shares,
            "waits": self.waits,
            "bytes": self.bytes,
            "sent": self.sent,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def summarise(run: RunRecord, line: Timeline | None) -> Summary:
    """Summarise a run from its folder and its timeline."""
    seconds = [line.seconds(rank) for rank in line.ranks] if line else []
    whole = sum(sum(s.values()) for s in seconds)
    shares = {name: sum(s[name] for s in seconds) / whole for name in ROWS} if whole else {}
    waits = line.waits().tolist() if line and len(seconds) > 1 else []
    result, logs = run.result or {}, [log for _, log in sorted(run.log.ranks.items())]
    peaks = [int(max(log.beats["rss_bytes"])) for log in logs]
    total_s = result.get("seconds", {}).get("total") or (line.length if line else 0.0)
    counted = {k: v for k, v in result.get("bytes", {}).items() if k != "per_rank"} or _added(
        [log.lives[-1]["bytes"] for log in logs]
    )
    epochs = result.get("epochs", len(run.log.epochs))
    return Summary(
        headline=_headline(run, shares, total_s, epochs),
        findings=_findings(run, line, waits),
        seconds=seconds,
        shares=shares,
        waits=waits,
        bytes=counted,
        sent=_sent(run),
        peak_rss_bytes=result.get("peak_rss_bytes") or peaks,
        total_s=total_s,
        epochs=epochs,
    )


def _added(records: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    added: dict[str, dict[str, int]] = {}
    for record in records:
        for channel, kinds in record.items():
            for kind, num_bytes in kinds.items():
                added.setdefault(channel, {})[kind] = added.get(channel, {}).get(kind, 0) + num_bytes
    return added


def _sent(run: RunRecord) -> dict[str, list[list[int]]]:
    """Bytes over all generations of a rank; repeated work counts again."""
    found = [
        (r, channel, to)
        for r, log in run.log.ranks.items()
        for life in log.lives
        for channel, to in _messages(life["sent_to"])
    ]
    size = max([len(to) for *_, to in found] + [r + 1 for r, *_ in found], default=0)
    tables: dict[str, np.ndarray[Any, Any]] = {}
    for rank, channel, to in found:
        tables.setdefault(channel, np.zeros((size, size), np.int64))[rank, : len(to)] += np.array(to, np.int64)
    return {channel: table.tolist() for channel, table in tables.items()}


def _messages(sent_to: dict[str, dict[str, list[int]]]) -> list[tuple[str, list[int]]]:
    return [(channel, to) for channel, kinds in sent_to.items() for to in kinds.values()]


def _headline(run: RunRecord, shares: dict[str, float], total_s: float, epochs: int) -> str:
    result, config = run.result, run.config
    model = (result or {}).get("model") or config.get("model.name", "a model")
    size = (
        f" ({result['num_nodes']:,} nodes, {result['num_edges']:,} edges)"
        if result and {"num_nodes", "num_edges"} <= result.keys()
        else ""
    )
    ranks = counted(int((result or config).get("ranks") or 1), "rank")
    # A dataset of a script is stored in the run's folder; its result has the name.
    data = (result or {}).get("dataset") or config.get("dataset")
    said = f"{model} was trained with {config.get('system')} on {data}{size} by {ranks}: {counted(epochs, 'epoch')} in "
    said += duration(total_s)
    if result is None:
        asked = config.get("epochs")
        ended = (
            "it is running"
            if run.running
            else f"it has not finished (resume with: millrace run --resume --out {run.folder})"
        )
        said += f" of {asked} asked for so far; {ended}"
    elif result.get("status") == STOPPED:
        said += (
            f" of {config.get('epochs')} asked for; it was stopped (resume with: millrace run --resume --out "
            f"{run.folder})"
        )
    elif (tested := main_metric_of(result, "test"))[1] is not None:
        said += f", test {tested[0]} {tested[1]:.4f}"
    if shares:
        largest = sorted(((share, name) for name, share in shares.items() if share >= WORTH_SAYING), reverse=True)[:3]
        whose = "the rank's" if ranks == "1 rank" else "the ranks'"
        largest = [
            (share, name if name != "other" else "other (starting, checkpoints, and time outside all stages)")
            for share, name in largest
        ]
        (share, name), *rest = largest
        said += (
            f". Of {whose} time "
            f"{_listed([f'{share:.0%} went to {name}', *(f'{share:.0%} to {name}' for share, name in rest)])}"
        )
    return said + "."


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _findings(run: RunRecord, line: Timeline | None, waits: list[list[float]]) -> list[str]:
    found = []
    if line and line.ranks:
        found += _began_late(run, line)
        found += _held_up(run, line)
        found += _waited_for(line, np.array(waits))
    for lost in (run.result or {}).get("lost", []):
        found.append(
            f"Rank {lost['rank']} was lost; the others went on without its {counted(lost['seeds'], 'seed')} in "
            f"{counted(lost['epochs'], 'epoch')}."
        )
    if run.result and run.result.get("train_loss") is None:
        found.append("The training loss is not finite: the run has diverged.")
    return found + _single_steps(run)


def _single_steps(run: RunRecord) -> list[str]:
    """A sentence if each epoch of minibatches was one step of the optimiser."""
    result, size = run.result or {}, run.config.get("train.batch_size")
    epochs, minibatches = result.get("epochs", 0), result.get("minibatches", 0)
    if not size or not epochs or not 0 < minibatches <= epochs * result.get("minibatches_per_step", 0):
        return []
    smaller = 1 << max(0, (size // FEWER_SEEDS).bit_length() - 1)
    return [
        f"Each epoch was one step of the optimiser, {counted(epochs, 'step')} in all: minibatches of {size:,} seeds "
        f"hold all that are trained on. Smaller ones take more steps, e.g. --batch-size {smaller}."
    ]


def first_step(run: RunRecord, line: Timeline) -> float:
    """Time of the first step's end, in seconds of the timeline; the timeline's end if there was none."""
    first = min((at for at, *_ in run.log.steps.values()), default=None)
    return line.length if first is None else float(line.positions(first))


def _began_late(run: RunRecord, line: Timeline) -> list[str]:
    """A sentence on the time before the first step, if it was long."""
    first = first_step(run, line)
    if not SLOW_START * line.length < first < line.length:
        return []
    before = line.over_ranks(last=first)
    name = max(before, key=lambda stage: before[stage])
    return [
        f"The first step was done after {duration(first)} of {duration(line.length)} (mostly {name}): data is opened, "
        "processes start, and kernels are compiled; later runs on this machine reuse compiled kernels."
    ]


def _held_up(run: RunRecord, line: Timeline) -> list[str]:
    """Sentences on bottlenecks after the first epoch, when all kernels are compiled."""
    times = [e["time"] for _, e in sorted(run.log.epochs.items())]
    if len(times) < 2:
        return []
    seconds = line.over_ranks(*line.positions([times[0], times[-1]]).tolist())
    whole = sum(seconds.values())
    if not whole:
        return []
    stored = not run.log.levels and not any(any(log.beats["sample"]) for log in run.log.ranks.values())
    advice = {
        "queue_wait": (
            "Reading stored samples is a bottleneck: {share} of the time after the first epoch went to waiting for "
            "minibatches. Put the store on a faster disk, or use larger minibatches."
            if stored
            else "Sampling is a bottleneck: {share} of the time after the first epoch went to waiting for minibatches. "
            "Sample once with `millrace sample`, or give sampling more threads or cluster.producers."
        ),
        "fetch": (
            "Fetching is a bottleneck: {share} of the time after the first epoch went to gathering rows, or to "
            "waiting for them."
        ),
        "exchange": (
            "Exchanges are a bottleneck: {share} of the time after the first epoch went to waiting for rows of other "
            "ranks."
        ),
        "evaluate": (
            "{share} of the time after the first epoch went to validation; a larger train.evaluate_every makes it "
            "rarer."
        ),
    }
    return [
        text.format(share=f"{seconds[name] / whole:.0%}")
        for name, text in advice.items()
        if seconds[name] > BOTTLENECK * whole
    ]


def _waited_for(line: Timeline, waits: "np.ndarray[Any, Any]") -> list[str]:
    if waits.size < 4:
        return []
    numbers, caused = list(line.ranks), waits.sum(axis=0)
    slow = int(caused.argmax())
    others = (len(numbers) - 1) * line.length
    if caused[slow] < WORTH_SAYING * others or math.isclose(caused[slow], 0):
        return []
    computed = {rank: line.seconds(rank)["forward_backward"] for rank in numbers}
    theirs = sum(s for rank, s in computed.items() if rank != numbers[slow]) / (len(numbers) - 1)
    return [
        f"The others waited for rank {numbers[slow]}: {duration(caused[slow])} in all, {caused[slow] / others:.0%} of "
        f"their time, in {' and '.join(WAITING)}. It computed for {duration(computed[numbers[slow]])} "
        f"(forward_backward), they for {duration(theirs)} on average."
    ]


def last_event_clause(run: RunRecord) -> str:
    """A clause on the time since the last event of a running run."""
    return (
        ""
        if run.log.last is None
        else f"last heard from {duration(max(0.0, time.time() - run.log.last))} before this report was written"
    )
