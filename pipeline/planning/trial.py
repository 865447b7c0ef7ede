"""Trials: a run's own code on its own data, by few ranks and for a few steps, to measure what a step costs here.

A process of their own runs them. It imports what a rank needs once, and forks the ranks of each trial, so that they
start at once. A rank works as in a run, on the same data and with the same code (`trainer.train_and_evaluate`), but
only for a few steps.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import torch
from torch.distributed import FileStore

from ...stages.comm.gloo import Gloo
from ...stages.comm.solo import Solo
from ...stages.fetch.exchange import MOST_STEPS
from ...stages.kernels.runtime.threads import set_num_threads
from ...stages.messages import Part
from ...stages.sample.base import Sampler
from ...storage.dataset import Split
from ...storage.errors import PeerLostError, RunError
from ...storage.ledger import Ledger
from ...storage.minibatch import Bulk
from ..config.load import Job
from ..setup.model import Outline
from ..setup.open_data import open_data
from ..setup.open_queue import own_queue
from ..setup.parts import Parts
from ..setup.prepare import prepare, prepare_part
from ..setup.result import peak_rss_bytes
from ..telemetry.events import Event, StepDone, silent
from ..telemetry.timers import Clock
from ..training.dynamo import leave_compiler_out
from ..training.trainer import RankReport, train_and_evaluate
from .own_memory import OwnMemory

TIMEOUT_S = 120.0
"""Longest wait of a rank for another, after which that one counts as lost."""


@dataclass(frozen=True)
class TrialSpec:
    """A trial."""

    job: Job
    """Configuration with the data, ranks and epochs of the trial."""
    outline: Outline
    """Outline of the dataset."""
    parts: Path | None
    """Folder of the parts, of which each rank opens its own instead of the dataset."""
    out: Path
    """Folder of the trial's run."""
    seeds: int | None
    """Train nodes to train on: of each part in isolated training, else of all ranks. None: all."""
    row_bytes: tuple[int, int]
    """Bytes of the features of a node, and of an edge if the model reads them."""


@dataclass(frozen=True)
class TrialResult:
    """Measurements of a trial. Lists of several ranks are by rank."""

    ranks: int
    epochs: int
    steps: int
    """Steps of all epochs."""
    step_s: float
    """Seconds of a step. An incomplete last step of an epoch counts fractionally."""
    minibatches: float
    """Minibatches of an epoch over all ranks; an incomplete last one counts fractionally."""
    minibatch_bytes: float
    """Bytes of a minibatch's structure in memory; 0 without minibatches."""
    distinct: list[float]
    """Bytes of the distinct rows of one minibatch, of two, and so on, means over ranks; empty if there was no whole
    one."""
    sample_s: float
    """Seconds of sampling a minibatch, beside training."""
    fetch_s: float
    """Seconds of fetching a minibatch's rows from other ranks, beside training."""
    evaluate_s: float
    """Seconds of evaluating a split."""
    peak_rss_bytes: list[int]
    """Peak of each rank's memory; of a job that maps its graph, without the pages of files."""
    memory_bytes: list[dict[str, int]]
    """See `Result.memory_bytes`."""
    bytes: dict[str, dict[str, int]]
    """Bytes of all ranks, by channel and kind."""
    waits: dict[str, int]
    """Network messages that the first rank waited for, by kind."""


class TrialProcess:
    """The process that runs trials (`main`). Use as a context manager."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """
        Args:
            environment: variables that a rank's process starts with, such as the allocator's.
        """
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._answers, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys, {__name__} as t; t.main(int(sys.argv[1]))", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.base_bytes: int = self._answer()
        """Resident size of a rank without data."""

    def __enter__(self) -> "TrialProcess":
        return self

    def __exit__(self, *error: object) -> None:
        # Its ranks are its children, in a process group of their own.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()
        self._errors.close()

    def run_trial(self, spec: TrialSpec) -> TrialResult:
        """Run a trial. Raises RunError if a rank failed."""
        self._answers.send(spec)
        if isinstance(answer := self._answer(), str):
            raise RunError(f"the trial of system '{spec.job.system}' failed: {answer}")
        return answer

    def _answer(self) -> Any:
        try:
            return self._answers.recv()
        except EOFError:
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:] or ["it printed nothing"]
            status = self._process.wait()
            raise RunError(f"the process that runs trials ended with status {status}: {last[0]}") from None


# In the process


@dataclass
class Meter:
    """Measurements of a rank beside its report."""

    steps: int = 0
    bulks: list[tuple[int, int, float]] = field(default_factory=list)
    """Minibatches, bytes and seconds of drawing of each bulk."""
    distinct: list[int] = field(default_factory=list)
    """Bytes of the rows of the first minibatch, of the first two, and so on: of distinct nodes, and of edges."""


class MeteredSampler:
    """A sampler with a meter. Rows of the first `most` minibatches with `counts` seeds are counted together."""

    def __init__(self, sampler: Sampler, meter: Meter, counts: int, most: int, row_bytes: tuple[int, int]) -> None:
        self._sampler, self._meter, self._counts, self._most, self._row_bytes = sampler, meter, counts, most, row_bytes
        self._nodes, self._edges = np.empty(0, np.int64), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample(self, *request: Any) -> Bulk:
        """See `Sampler.sample`."""
        start = time.perf_counter()
        bulk = self._sampler.sample(*request)
        seconds, drawn = time.perf_counter() - start, bulk.minibatches
        self._meter.bulks.append((len(drawn), sum(m.nbytes for m in drawn), seconds))
        for minibatch in drawn if len(self._meter.distinct) < self._most else ():
            if len(minibatch.seeds) == self._counts:
                self._nodes = np.union1d(self._nodes, minibatch.nodes)
                self._edges += sum(b.num_edges for b in minibatch.blocks[: 1 if minibatch.nested else None])
                node, edge = self._row_bytes
                self._meter.distinct.append(node * len(self._nodes) + edge * self._edges)
        return bulk


@dataclass(frozen=True)
class ShortParts(Parts):
    """`Parts` with at most `seeds` train nodes each."""

    seeds: int | None = field(kw_only=True)

    def part(self, number: int) -> Part:
        """See `Peers.part`."""
        part = super().part(number)
        return replace(part, split=shortened(part.split, self.seeds))


def shortened(split: Split, seeds: int | None) -> Split:
    """The split with `seeds` train nodes, evenly spaced since neighbouring ids may be alike. None: all of them."""
    if seeds is None or seeds >= len(split.train):
        return split
    return replace(split, train=split.train[torch.linspace(0, len(split.train) - 1, seeds).long().numpy()])


def peak_bytes() -> int:
    """Peak of this process's memory, without shared libraries: a fork begins without most of its parent's pages."""
    maps = psutil.Process().memory_maps() if sys.platform == "linux" else []
    return peak_rss_bytes() - sum(m.rss for m in maps if ".so" in m.path)


def main(pipe: int) -> NoReturn:
    """Run trials for the process at the other end of a pipe, through which `TrialSpec`s come, and go `TrialResult`s or
    messages of ranks that failed, until it closes."""
    leave_compiler_out()
    driver, base = Connection(pipe), peak_rss_bytes()
    driver.send(base)
    with suppress(EOFError):
        while True:
            driver.send(perform(driver.recv(), base))
    os._exit(0)


def perform(spec: TrialSpec, base: int) -> TrialResult | str:
    """Run a trial. Returns its measurements, or the message of the first rank that failed.

    Args:
        spec: the trial.
        base: see `TrialProcess.base_bytes`.
    """
    spec.out.mkdir(parents=True)
    with ProcessPoolExecutor(spec.job.ranks, get_context("fork")) as pool:
        ranks = [pool.submit(run_trial, spec, rank, base) for rank in range(spec.job.ranks)]
    if failed := [e for rank in ranks if (e := rank.exception()) is not None]:
        # A lost peer is a consequence; the cause is another rank's message.
        cause = min(failed, key=lambda e: isinstance(e, PeerLostError))
        return f"{type(cause).__name__}: {cause}"
    return measured(spec, *zip(*(rank.result() for rank in ranks)))


def run_trial(spec: TrialSpec, rank: int, base: int) -> tuple[RankReport, Meter]:
    """One rank's part in a trial, in a process of its own."""
    job, ledger, meter, events = spec.job, Ledger(), Meter(), list[Event]()
    start, mapped, watched = peak_bytes(), job.graph == "mapped", OwnMemory()
    torch.set_num_threads(job.threads or 1)
    set_num_threads(job.threads or 1)
    if spec.parts is None:
        data = open_data(job, None, silent)
        prepared = prepare(job, replace(data, split=shortened(data.split, spec.seeds)))
    else:
        prepared = prepare_part(job, spec.outline, spec.parts, rank, {})
        own: Any = prepared.data
        parts = ShortParts(**vars(own.peers), seeds=spec.seeds)
        part = parts.part(prepared.system.parts_before(rank))
        prepared = replace(prepared, place_data=lambda: part)
    sample: Any = prepared.system.sample
    if sample.sampler is not None:
        # Isolated ranks have queues of their own.
        bound, most = {"max_bytes": 1} if sample.is_isolated else {}, MOST_STEPS * job.train.per_step(job.ranks)
        metered = MeteredSampler(
            sample.sampler, meter, job.train.batch_size, max(MOST_STEPS, most // job.ranks), spec.row_bytes
        )
        sample = replace(sample, sampler=metered, **bound)
        prepared = replace(prepared, system=replace(prepared.system, sample=sample))
    group: Any = Solo()
    if job.ranks > 1:
        # A file, since a store's server would be a thread of the process that forks.
        meeting = FileStore(str(spec.out / "meeting"), job.ranks)
        group = Gloo(meeting, rank, job.ranks, ledger, host="127.0.0.1", timeout_s=TIMEOUT_S)
    with watched if mapped else nullcontext():
        report = train_and_evaluate(
            prepared,
            spec.out,
            own_queue(prepared, spec.out) if prepared.has_minibatches else None,
            group=group,
            ledger=ledger,
            produce=True,
            producer_alive=lambda: True,
            emit=events.append,
            stop=lambda: False,
            clock=Clock(),
        )
    meter.steps = sum(isinstance(event, StepDone) for event in events)
    grown = watched.peak_bytes - watched.start_bytes if mapped else peak_bytes() - start
    return replace(report, peak_rss_bytes=base + grown), meter


def measured(spec: TrialSpec, reports: Sequence[RankReport], meters: Sequence[Meter]) -> TrialResult:
    """The measurements of all ranks."""
    job, history, ranks, total = spec.job, reports[0].history, spec.job.ranks, meters[0].steps
    # The first epoch of each phase has one-time work. When the last one begins, sampling may be over.
    sampled = bool(job.sampler)
    last, starts = job.epochs - sampled, range(0, len(history), job.epochs)
    phases = [[e["seconds"] for e in history[i : i + job.epochs]] for i in starts]
    epoch_s = float(np.mean([np.median(phase[1:last] or phase) for phase in phases]))
    steps, minibatches = total / len(history), spec.outline.splits["train"] / job.train.batch_size
    if sampled and spec.parts is None:
        minibatches = min(minibatches, (spec.seeds or 0) / job.train.batch_size)
        steps = minibatches / job.train.per_step(ranks)
    drawn, num_bytes, _ = np.sum([bulk for m in meters for bulk in m.bulks] or [(0, 0, 0)], axis=0)
    # The first bulk's time includes loading kernels.
    later = [np.sum(m.bulks[1:] or [(0, 0, 0)], axis=0) for m in meters]
    evaluations = 1 + sum(any(key.startswith("val_") for key in epoch) for epoch in history)

    def slowest(stage: str, count: float) -> float:
        return max(r.seconds.get(stage, 0.0) for r in reports) / max(1, count)

    return TrialResult(
        ranks=ranks,
        epochs=job.epochs,
        steps=total,
        step_s=epoch_s / steps,
        minibatches=minibatches,
        minibatch_bytes=float(num_bytes / max(1, drawn)),
        distinct=[float(np.mean(sizes)) for sizes in zip(*(m.distinct for m in meters))],
        sample_s=max(float(seconds / max(1, count)) for count, _, seconds in later),
        fetch_s=slowest("exchange", sum(r.minibatches for r in reports)) * ranks,
        evaluate_s=slowest("evaluate", evaluations),
        peak_rss_bytes=[r.peak_rss_bytes for r in reports],
        memory_bytes=[r.memory_bytes for r in reports],
        bytes={
            channel: {kind: sum(r.bytes[channel][kind] for r in reports) for kind in kinds}
            for channel, kinds in reports[0].bytes.items()
        },
        waits=reports[0].waits["network"],
    )
