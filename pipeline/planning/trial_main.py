"""The process that runs trials: ``python -m millrace.pipeline.planning.trial_main``, started by `trial.TrialProcess`.

It imports what a rank needs once, and forks the ranks of each trial, so that they start in no time. A rank does what it
would do in a run, on the same data and through the same code (`trainer.train_and_evaluate`), only for a few steps. Each
line of standard input is a `TrialSpec`, each line of standard output what its ranks report.
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
import torch.distributed as dist

from ...stages.comm.gloo import Gloo
from ...stages.comm.solo import Solo
from ...stages.feed.local_feed import Local
from ...stages.fetch.exchange import MOST_STEPS
from ...stages.kernels.runtime.threads import set_num_threads
from ...stages.messages import Part, Phase, Placement, RankJob
from ...storage.dataset import Dataset, Split
from ...storage.errors import Interrupted
from ...storage.ledger import Ledger
from ...storage.minibatch import MiniBatch
from ..config.load import Job
from ..setup.open_queue import own_queue
from ..setup.parts import Parts
from ..setup.prepare import TORCH_DTYPES, Outline, open_data, prepare, prepare_part
from ..setup.result import peak_rss_bytes
from ..setup.shared_dataset import open_shared
from ..telemetry.events import Event, StageStarted, StepDone, silent
from ..telemetry.timers import Clock
from ..training.dynamo import leave_compiler_out
from ..training.trainer import train_and_evaluate
from .trial_spec import TrialSpec

TIMEOUT_S = 120.0
"""Ranks that wait longer for each other have lost one."""
LEAST_STEPS = 2
"""However long they take."""


@dataclass
class Heard:
    """What a rehearsing rank notices beside its report."""

    started: float = 0.0
    """When training began."""
    steps: list[tuple[int, float]] = field(default_factory=list)
    """(epoch, when), as each step was done."""
    minibatches: int = 0
    minibatch_bytes: int = 0
    united: list[int] = field(default_factory=list)
    """Distinct nodes of the first minibatch, of the first two, and so on."""
    sampled_s: float = 0.0
    """Seconds of sampling until the first step was done, in which kernels were loaded."""
    loaded_s: float = 0.0
    """Of processors, by then: where kernels are compiled for the first time, more than all that follows."""

    def __call__(self, event: Event) -> None:
        """Listen to a rank's events."""
        if isinstance(event, StageStarted) and event.stage == "train":
            self.started = time.perf_counter()
        if isinstance(event, StepDone):
            self.steps.append((event.epoch, time.perf_counter()))


class MeteredQueue:
    """A queue, or a feed, that adds up the bytes of what it hands out."""

    def __init__(self, inner: Any, heard: Heard, unites: int = 0) -> None:
        """
        Args:
            inner: what is weighed.
            heard: where it is noted.
            unites: size of the minibatches whose nodes are counted together, MOST_STEPS of them; 0: of none.
        """
        self._inner, self._heard, self._unites = inner, heard, unites
        self._nodes: Any = np.empty(0, np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, *where: Any, **how: Any) -> MiniBatch:
        """See `MinibatchQueue.get` and `Feed.get`."""
        minibatch = self._inner.get(*where, **how)
        self._heard.minibatches += 1
        self._heard.minibatch_bytes += minibatch.nbytes
        if self._unites and self._nodes is not None and len(minibatch.seeds) == self._unites:
            self._nodes = np.union1d(self._nodes, minibatch.nodes)
            self._heard.united.append(len(self._nodes))
            if len(self._heard.united) == MOST_STEPS:
                self._nodes = None
        return minibatch


@dataclass(frozen=True)
class ShortLocal(Local):
    """`Local` a bulk ahead, as in the midst of a long epoch; weighed."""

    heard: Heard = field(default_factory=Heard)

    def feed(self, placement: Placement, phase: Phase, job: RankJob, first: tuple[int, int]) -> Any:
        """See `SamplePolicy.feed`."""
        return MeteredQueue(super().feed(placement, phase, job, first), self.heard)


@dataclass(frozen=True)
class ShortParts(Parts):
    """`Parts` of which each has so many train nodes only."""

    seeds: int | None = None

    def part(self, number: int) -> Part:
        """See `Peers.part`."""
        part = super().part(number)
        return part if self.seeds is None else replace(part, split=shortened(part.split, self.seeds))


def shortened(split: Split, seeds: int | None) -> Split:
    """With train nodes that lie evenly among those of `split`: neighbouring ids may be alike."""
    if seeds is None or seeds >= len(split.train):
        return split
    return replace(split, train=split.train[torch.linspace(0, len(split.train) - 1, seeds).long().numpy()])


def library_bytes() -> int:
    """Resident pages of shared libraries in this process. A fork begins without most of those that its parent has."""
    found, counts = 0, False
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:  # no Linux
        return 0
    for line in lines:
        if line[0] in "0123456789abcdef":
            counts = ".so" in line
        elif counts and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def as_if_started(library: int) -> int:
    """The largest resident size that this process would have had, had it not been forked: with its parent's pages of
    libraries."""
    own = library_bytes()
    return peak_rss_bytes() - own + max(own, library)


def main() -> NoReturn:
    """Serve whoever holds the other end of standard input, until it closes."""
    leave_compiler_out()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps({"base_bytes": peak_rss_bytes()}) + "\n")
    library = library_bytes()
    for line in sys.stdin:
        answers.write(json.dumps(perform(TrialSpec(**json.loads(line)), library)) + "\n")
    os._exit(0)


def perform(cast: TrialSpec, library: int) -> dict[str, Any]:
    """The reports of all ranks, or in ``failed`` what the first that failed has said."""
    # A file, not a server: that would be a thread of this process, which forks.
    place = Path(cast.out) / "meeting"
    place.parent.mkdir(parents=True, exist_ok=True)
    pipes: list[Any] = []
    pids: list[int] = []
    for rank in range(cast.ranks):
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(theirs)
            _play(cast, rank, str(place), library, os.fdopen(ours, "w"))
        os.close(ours)
        pids.append(pid)
        pipes.append(os.fdopen(theirs))
    reports = [pipe.read() for pipe in pipes]
    for pid in pids:
        os.waitpid(pid, 0)
    message = [json.loads(text) if text else {"failed": "a rank died without a word"} for text in reports]
    # A rank whose peer is gone says so; the cause is what the others do not say.
    failed = sorted((t["failed"] for t in message if "failed" in t), key=lambda text: "PeerLostError" in text)
    return {"failed": failed[0]} if failed else {"ranks": message}


def _play(cast: TrialSpec, rank: int, place: str, library: int, answer: Any) -> NoReturn:
    try:
        torch.set_num_threads(cast.threads)
        set_num_threads(cast.threads)
        message = run_trial(cast, rank, place)
        message["report"]["peak_rss_bytes"] = as_if_started(library)
    except BaseException as e:
        message = {"failed": f"{type(e).__name__}: {e}", "trace": traceback.format_exc()}
    answer.write(json.dumps(message))
    answer.flush()
    os._exit(0)


def run_trial(cast: TrialSpec, rank: int, place: str) -> dict[str, Any]:
    """One rank's part in a rehearsal. Returns its `RankReport` and `Heard` as plain values."""
    job, ledger, heard = Job.model_validate(cast.job), Ledger(), Heard()
    if cast.parts is not None:
        prepared = prepare_part(job, Outline(**cast.outline), Path(cast.parts), rank, {"rehearsed": "parts"})
        parts = ShortParts(Path(cast.parts), TORCH_DTYPES[job.dtype], prepared.outline.task == "multilabel", cast.seeds)
        prepared = replace(prepared, data=parts.part(prepared.system.parts_before(rank)))
    else:
        prepared = prepare(job, _opened(cast, job))
    if isinstance(prepared.system.sample, Local):
        sample = ShortLocal(prepared.system.sample.sampler, max_bytes=1, heard=heard)
        prepared = replace(prepared, system=replace(prepared.system, sample=sample))
    group: Any = Solo()
    if cast.ranks > 1:
        group = Gloo(dist.FileStore(place, cast.ranks), rank, cast.ranks, ledger, host="127.0.0.1", timeout_s=TIMEOUT_S)  # pyright: ignore[reportPrivateImportUsage]
    unites = job.train.batch_size if cast.ranks > 1 and job.features == "owned" else 0
    queue: Any = MeteredQueue(own_queue(prepared, Path(cast.out)), heard, unites) if prepared.has_minibatches else None
    clock = Clock()

    def hear(event: Event) -> None:
        heard(event)
        if isinstance(event, StepDone) and len(heard.steps) == 1:
            heard.sampled_s, heard.loaded_s = clock.look()[0].get("sample", 0.0), time.process_time()

    def enough() -> bool:
        # Of processors: on a busy machine a rehearsal takes longer, but is no shorter.
        return len(heard.steps) > LEAST_STEPS and time.process_time() - heard.loaded_s > cast.limit_s * cast.threads

    try:
        report = asdict(
            train_and_evaluate(
                prepared,
                Path(cast.out),
                queue,
                group=group,
                ledger=ledger,
                produce=True,
                producer_alive=lambda: True,
                emit=hear,
                stop=enough,
                clock=clock,
            )
        )
    except Interrupted:
        report = {"bytes": ledger.as_record(), "waits": ledger.waits(), "seconds": clock.snapshot()}
    return {"report": report, "heard": asdict(heard)}


def _opened(cast: TrialSpec, job: Job) -> Dataset:
    dataset = (
        open_data(job, cast.dataset, silent)
        if cast.features is None
        else open_shared(Path(cast.dataset), cast.outline["name"], cast.features)
    )
    return replace(dataset, split=shortened(dataset.split, cast.seeds))


if __name__ == "__main__":
    main()
