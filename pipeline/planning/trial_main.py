"""The process that runs trials: ``python -m millrace.pipeline.planning.trial_main``, started by `trial.TrialProcess`.

It imports what a rank needs once, and forks the ranks of each trial, so that they start at once. A rank works as in a
run, on the same data and with the same code (`trainer.train_and_evaluate`), but only for a few steps. Its argument is
the number of a pipe, through which `TrialSpec`s come and `TrialResult`s go, or the message of a rank that failed.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import torch
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from ...stages.comm.gloo import Gloo
from ...stages.comm.solo import Solo
from ...stages.feed.local_feed import Local
from ...stages.fetch.exchange import MOST_STEPS
from ...stages.kernels.runtime.threads import set_num_threads
from ...stages.messages import Part, Phase, Placement, RankJob
from ...storage.dataset import MATRIX_TASKS, Split
from ...storage.ledger import Ledger
from ...storage.minibatch import MiniBatch
from ..config.load import Job
from ..setup.model import TORCH_DTYPES
from ..setup.open_data import open_data
from ..setup.open_queue import own_queue
from ..setup.parts import Parts
from ..setup.prepare import Prepared, prepare, prepare_part
from ..setup.result import peak_rss_bytes
from ..setup.shared_dataset import open_shared
from ..telemetry.events import Event, StepDone, silent
from ..telemetry.timers import Clock
from ..training.dynamo import leave_compiler_out
from ..training.trainer import RankReport, train_and_evaluate
from .trial import TrialResult, TrialSpec

TIMEOUT_S = 120.0
"""Longest wait of a rank for another, after which that one counts as lost."""


@dataclass
class Meter:
    """Measurements of a rank beside its report."""

    steps: int = 0
    minibatches: int = 0
    minibatch_bytes: int = 0
    distinct: list[int] = field(default_factory=list)
    """Distinct nodes of the first minibatch, of the first two, and so on."""
    sampled_s: float = 0.0
    """Seconds of sampling until the end of the first step, which include loading kernels."""

    def hear(self, event: Event, clock: Clock) -> None:
        """Record a rank's event."""
        if isinstance(event, StepDone):
            self.steps += 1
            if self.steps == 1:
                self.sampled_s = clock.look()[0].get("sample", 0.0)


class MeteredQueue:
    """A queue or a feed that measures the minibatches it hands out. Nodes of the first `MOST_STEPS` minibatches with
    `counts` seeds are counted together."""

    def __init__(self, inner: Any, meter: Meter, counts: int = 0) -> None:
        self._inner, self._meter, self._counts, self._nodes = inner, meter, counts, np.empty(0, np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, *where: Any, **how: Any) -> MiniBatch:
        """See `MinibatchQueue.get` and `Feed.get`."""
        minibatch, meter = self._inner.get(*where, **how), self._meter
        meter.minibatches += 1
        meter.minibatch_bytes += minibatch.nbytes
        if self._counts and len(minibatch.seeds) == self._counts and len(meter.distinct) < MOST_STEPS:
            self._nodes = np.union1d(self._nodes, minibatch.nodes)
            meter.distinct.append(len(self._nodes))
        return minibatch


@dataclass(frozen=True)
class MeteredLocal(Local):
    """`Local` with a meter; it samples a bulk ahead, as within a long epoch."""

    meter: Meter = field(default_factory=Meter)

    def feed(self, placement: Placement, phase: Phase, job: RankJob, first: tuple[int, int]) -> Any:
        """See `SamplePolicy.feed`."""
        return MeteredQueue(super().feed(placement, phase, job, first), self.meter)


@dataclass(frozen=True)
class ShortParts(Parts):
    """`Parts` with at most `seeds` train nodes each."""

    seeds: int | None = None

    def part(self, number: int) -> Part:
        """See `Peers.part`."""
        part = super().part(number)
        return replace(part, split=shortened(part.split, self.seeds))


def shortened(split: Split, seeds: int | None) -> Split:
    """The split with `seeds` train nodes, evenly spaced since neighbouring ids may be alike. None: all of them."""
    if seeds is None or seeds >= len(split.train):
        return split
    return replace(split, train=split.train[torch.linspace(0, len(split.train) - 1, seeds).long().numpy()])


def library_bytes() -> int:
    """Resident pages of shared libraries in this process. A fork begins without most of its parent's."""
    if sys.platform != "linux":
        return 0
    return sum(m.rss for m in psutil.Process().memory_maps() if ".so" in m.path)


def main(pipe: int) -> NoReturn:
    """Run trials for the process at the other end of a pipe, until it closes."""
    leave_compiler_out()
    driver, library = Connection(pipe), library_bytes()
    driver.send(peak_rss_bytes())
    with suppress(EOFError):
        while True:
            driver.send(perform(driver.recv(), library))
    os._exit(0)


def perform(spec: TrialSpec, library: int) -> TrialResult | str:
    """Run a trial. Returns its measurements, or the message of the first rank that failed."""
    # A file, since a store's server would be a thread of this process, which forks.
    place = Path(spec.out) / "meeting"
    place.parent.mkdir(parents=True, exist_ok=True)
    ranks, answers = [], []
    for rank in range(spec.job["ranks"]):
        theirs, ours = Pipe(duplex=False)
        if not os.fork():
            _run_rank(spec, rank, str(place), library, ours)
        ours.close()
        ranks.append(theirs)
    for rank in ranks:
        try:
            answers.append(rank.recv())
        except EOFError:
            answers.append("a rank died without a message")
    for _ in ranks:
        os.wait()
    # A lost peer is a consequence; the cause is another rank's message.
    failed = sorted((a for a in answers if isinstance(a, str)), key=lambda text: "PeerLostError" in text)
    return failed[0] if failed else measured(spec, *zip(*answers))


def _run_rank(spec: TrialSpec, rank: int, place: str, library: int, answer: Any) -> NoReturn:
    try:
        report, meter = run_trial(spec, rank, place)
        # As if the process had been started, not forked: with its parent's pages of libraries.
        missing = max(0, library - library_bytes())
        answer.send((replace(report, peak_rss_bytes=peak_rss_bytes() + missing), meter))
    except BaseException as e:
        answer.send(f"{type(e).__name__}: {e}")
    os._exit(0)


def run_trial(spec: TrialSpec, rank: int, place: str) -> tuple[RankReport, Meter]:
    """One rank's part in a trial."""
    job, ledger, meter, clock, out = Job.model_validate(spec.job), Ledger(), Meter(), Clock(), Path(spec.out)
    torch.set_num_threads(job.threads or 1)
    set_num_threads(job.threads or 1)
    prepared = _prepare(spec, job, rank)
    if isinstance(prepared.system.sample, Local):
        sample = MeteredLocal(prepared.system.sample.sampler, max_bytes=1, meter=meter)
        prepared = replace(prepared, system=replace(prepared.system, sample=sample))
    group: Any = Solo()
    if job.ranks > 1:
        group = Gloo(FileStore(place, job.ranks), rank, job.ranks, ledger, host="127.0.0.1", timeout_s=TIMEOUT_S)
    counts = job.train.batch_size if job.ranks > 1 and job.features == "owned" else 0
    queue: Any = MeteredQueue(own_queue(prepared, out), meter, counts) if prepared.has_minibatches else None
    report = train_and_evaluate(
        prepared,
        out,
        queue,
        group=group,
        ledger=ledger,
        produce=True,
        producer_alive=lambda: True,
        emit=lambda event: meter.hear(event, clock),
        stop=lambda: False,
        clock=clock,
    )
    return report, meter


def _prepare(spec: TrialSpec, job: Job, rank: int) -> Prepared:
    """The job with its data, of which `spec.seeds` nodes are trained on."""
    if spec.parts is not None:
        prepared = prepare_part(job, spec.outline, Path(spec.parts), rank, {"rehearsed": "parts"})
        parts = ShortParts(Path(spec.parts), TORCH_DTYPES[job.dtype], spec.outline.task in MATRIX_TASKS, spec.seeds)
        part = parts.part(prepared.system.parts_before(rank))
        return replace(prepared, place_data=lambda: part)
    if spec.features is None:
        data = open_data(job, spec.dataset, silent)
    else:
        data = open_shared(Path(spec.dataset), spec.outline.name, spec.features, job.graph).as_read()
    return prepare(job, replace(data, split=shortened(data.split, spec.seeds)))


def measured(spec: TrialSpec, reports: Sequence[RankReport], meters: Sequence[Meter]) -> TrialResult:
    """The measurements of all ranks."""
    first, job, sampled = reports[0], spec.job, spec.seeds is not None
    ranks, epochs, train = job["ranks"], job["epochs"], spec.outline.splits["train"]
    # The first epoch of each phase has one-time work. When the last one begins, sampling may be over.
    phases = [[e["seconds"] for e in first.history[i : i + epochs]] for i in range(0, len(first.history), epochs)]
    epoch_s = float(np.mean([np.median(phase[1 : epochs - sampled] or phase) for phase in phases]))
    per_step, minibatches = job["train"]["minibatches_per_step"] or ranks, train / job["train"]["batch_size"]
    steps = meters[0].steps / len(first.history)
    if sampled and spec.parts is None:
        minibatches = min(spec.seeds or 0, train) / job["train"]["batch_size"]
        steps = minibatches / per_step
    trained, handed = sum(r.minibatches for r in reports), sum(m.minibatches for m in meters)
    # The first bulk's time includes loading kernels.
    first_bulk = min(job["queue"]["bulk_size"], -(-meters[0].steps // len(first.history) * per_step // ranks)) * ranks
    evaluations = 1 + sum(any(key.startswith("val_") for key in epoch) for epoch in first.history)

    def slowest(stage: str, count: float, apart: Sequence[float] = (0.0,) * ranks) -> float:
        return max(r.seconds.get(stage, 0.0) - a for r, a in zip(reports, apart)) / max(1, count)

    return TrialResult(
        ranks=ranks,
        epochs=epochs,
        steps=meters[0].steps,
        step_s=epoch_s / steps,
        minibatches=minibatches,
        minibatch_bytes=sum(m.minibatch_bytes for m in meters) / max(1, handed),
        distinct=[float(np.mean(sizes)) for sizes in zip(*(m.distinct for m in meters))],
        sample_s=slowest("sample", trained - first_bulk, [m.sampled_s for m in meters]) * ranks if sampled else 0.0,
        fetch_s=slowest("exchange", trained) * ranks,
        evaluate_s=slowest("evaluate", evaluations),
        peak_rss_bytes=[r.peak_rss_bytes for r in reports],
        memory_bytes=[r.memory_bytes for r in reports],
        bytes={
            channel: {kind: sum(r.bytes[channel][kind] for r in reports) for kind in kinds}
            for channel, kinds in first.bytes.items()
        },
        waits=first.waits["network"],
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
