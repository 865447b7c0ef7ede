"""The process that runs trials: ``python -m millrace.pipeline.planning.trial_main``, started by `trial.TrialProcess`.

It imports what a rank needs once, and forks the ranks of each trial, so that they start at once. A rank works as in a
run, on the same data and with the same code (`trainer.train_and_evaluate`), but only for a few steps. Each line of
standard input is a `TrialSpec`, each line of standard output has the messages of its ranks.
"""

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from ...stages.comm.gloo import Gloo
from ...stages.comm.solo import Solo
from ...stages.feed.local_feed import Local
from ...stages.fetch.exchange import MOST_STEPS
from ...stages.kernels.runtime.threads import set_num_threads
from ...stages.messages import Part, Phase, Placement, RankJob
from ...storage.dataset import MATRIX_TASKS, Split
from ...storage.errors import Interrupted
from ...storage.ledger import Ledger
from ...storage.minibatch import MiniBatch
from ..config.load import Job
from ..setup.model import TORCH_DTYPES, Outline
from ..setup.open_data import open_data
from ..setup.open_queue import own_queue
from ..setup.parts import Parts
from ..setup.prepare import Prepared, prepare, prepare_part
from ..setup.result import peak_rss_bytes
from ..setup.shared_dataset import open_shared
from ..telemetry.events import Event, StageStarted, StepDone, silent
from ..telemetry.timers import Clock
from ..training.dynamo import leave_compiler_out
from ..training.trainer import train_and_evaluate
from .trial import TrialSpec

TIMEOUT_S = 120.0
"""Longest wait of a rank for another, after which that one counts as lost."""
LEAST_STEPS = 2
"""Steps of a trial, however long they take."""


@dataclass
class Meter:
    """Measurements of a rank beside its report."""

    started: float = 0.0
    """Time when training began."""
    steps: list[tuple[int, float]] = field(default_factory=list)
    """Epoch and time of each finished step."""
    minibatches: int = 0
    minibatch_bytes: int = 0
    distinct: list[int] = field(default_factory=list)
    """Distinct nodes of the first minibatch, of the first two, and so on."""
    sampled_s: float = 0.0
    """Seconds of sampling until the end of the first step, which include loading kernels."""
    loaded_s: float = 0.0
    """Processor seconds by then; if kernels are compiled for the first time, more than of everything after."""

    def hear(self, event: Event, clock: Clock) -> None:
        """Record a rank's event."""
        if isinstance(event, StageStarted) and event.stage == "train":
            self.started = time.perf_counter()
        if isinstance(event, StepDone):
            self.steps.append((event.epoch, time.perf_counter()))
            if len(self.steps) == 1:
                self.sampled_s, self.loaded_s = clock.look()[0].get("sample", 0.0), time.process_time()


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
            if len(meter.distinct) == MOST_STEPS:
                self._nodes = np.empty(0, np.int64)
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
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:  # not Linux
        return 0
    found, counts = 0, False
    for line in lines:
        if line[0] in "0123456789abcdef":
            counts = ".so" in line
        elif counts and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def main() -> NoReturn:
    """Run trials for the process at the other end of standard input, until it closes."""
    leave_compiler_out()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps({"base_bytes": peak_rss_bytes()}) + "\n")
    library = library_bytes()
    for line in sys.stdin:
        answers.write(json.dumps(perform(TrialSpec(**json.loads(line)), library)) + "\n")
    os._exit(0)


def perform(spec: TrialSpec, library: int) -> dict[str, Any]:
    """Messages of all ranks, or under ``failed`` that of the first one that failed."""
    # A file, since a store's server would be a thread of this process, which forks.
    place = Path(spec.out) / "meeting"
    place.parent.mkdir(parents=True, exist_ok=True)
    pids, pipes = [], []
    for rank in range(spec.ranks):
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(theirs)
            _run_rank(spec, rank, str(place), library, ours)
        os.close(ours)
        pids.append(pid)
        pipes.append(os.fdopen(theirs))
    texts = [pipe.read() for pipe in pipes]
    for pid in pids:
        os.waitpid(pid, 0)
    ranks = [json.loads(text) if text else {"failed": "a rank died without a message"} for text in texts]
    # A lost peer is a consequence; the cause is another rank's message.
    failed = sorted((r["failed"] for r in ranks if "failed" in r), key=lambda text: "PeerLostError" in text)
    return {"failed": failed[0]} if failed else {"ranks": ranks}


def _run_rank(spec: TrialSpec, rank: int, place: str, library: int, answer: int) -> NoReturn:
    try:
        message = run_trial(spec, rank, place)
        # As if the process had been started, not forked: with its parent's pages of libraries.
        own = library_bytes()
        message["report"]["peak_rss_bytes"] = peak_rss_bytes() - own + max(own, library)
    except BaseException as e:
        message = {"failed": f"{type(e).__name__}: {e}", "trace": traceback.format_exc()}
    with os.fdopen(answer, "w") as out:
        json.dump(message, out)
    os._exit(0)


def run_trial(spec: TrialSpec, rank: int, place: str) -> dict[str, Any]:
    """One rank's part in a trial. Returns its `RankReport` and `Meter` as plain values."""
    job, ledger, meter, clock, out = Job.model_validate(spec.job), Ledger(), Meter(), Clock(), Path(spec.out)
    threads = job.threads or 1
    torch.set_num_threads(threads)
    set_num_threads(threads)
    prepared = _prepare(spec, job, rank)
    if isinstance(prepared.system.sample, Local):
        sample = MeteredLocal(prepared.system.sample.sampler, max_bytes=1, meter=meter)
        prepared = replace(prepared, system=replace(prepared.system, sample=sample))
    group: Any = Solo()
    if spec.ranks > 1:
        store = FileStore(place, spec.ranks)
        group = Gloo(store, rank, spec.ranks, ledger, host="127.0.0.1", timeout_s=TIMEOUT_S)
    counts = job.train.batch_size if spec.ranks > 1 and job.features == "owned" else 0
    queue: Any = MeteredQueue(own_queue(prepared, out), meter, counts) if prepared.has_minibatches else None

    def enough() -> bool:
        # Processor time: on a busy machine a trial takes longer, but has as many steps.
        return len(meter.steps) > LEAST_STEPS and time.process_time() - meter.loaded_s > spec.limit_s * threads

    try:
        report = asdict(
            train_and_evaluate(
                prepared,
                out,
                queue,
                group=group,
                ledger=ledger,
                produce=True,
                producer_alive=lambda: True,
                emit=lambda event: meter.hear(event, clock),
                stop=enough,
                clock=clock,
            )
        )
    except Interrupted:
        report = {"bytes": ledger.as_record(), "waits": ledger.waits(), "seconds": clock.snapshot()}
    return {"report": report, "meter": asdict(meter)}


def _prepare(spec: TrialSpec, job: Job, rank: int) -> Prepared:
    """The job with its data, of which `spec.seeds` nodes are trained on."""
    if spec.parts is not None:
        prepared = prepare_part(job, Outline(**spec.outline), Path(spec.parts), rank, {"rehearsed": "parts"})
        parts = ShortParts(Path(spec.parts), TORCH_DTYPES[job.dtype], prepared.outline.task in MATRIX_TASKS, spec.seeds)
        part = parts.part(prepared.system.parts_before(rank))
        return replace(prepared, place_data=lambda: part)
    if spec.features is None:
        data = open_data(job, spec.dataset, silent)
    else:
        data = open_shared(Path(spec.dataset), spec.outline["name"], spec.features, job.graph).as_read()
    return prepare(job, replace(data, split=shortened(data.split, spec.seeds)))


if __name__ == "__main__":
    main()
