"""Trials: a run's own code on its own data, by few ranks and for a few steps, to learn what a step takes here."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...storage.errors import RunError


@dataclass(frozen=True)
class TrialSpec:
    """A trial, as plain values."""

    job: dict[str, Any]
    """A resolved configuration, of as many epochs as are tried."""
    dataset: str
    """What `open_dataset` takes, where `features` is None; else the folder of a store that all ranks open."""
    features: str | None
    outline: dict[str, Any]
    """Of the dataset."""
    parts: str | None
    """Folder of the parts, of which each rank opens its own instead of the dataset."""
    out: str
    """Folder of the trial's run."""
    ranks: int
    threads: int
    """Of each rank."""
    seeds: int | None
    """Train nodes to train on: of each part under isolated training, else of all ranks. None: all."""
    limit_s: float
    """A rank cuts its training short after so many seconds of each of its threads."""

    @property
    def all_seeds(self) -> bool:
        """True where an epoch is one of the run, with its smaller last minibatch."""
        return self.seeds is None or self.seeds >= self.outline["splits"]["train"]


class TrialProcess:
    """The process that runs trials (`trial_main`). Use as a context manager."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """
        Args:
            environment: variables that a rank's process would start with, such as the allocator's.
        """
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millrace.pipeline.planning.trial_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            text=True,
            start_new_session=True,
        )
        self.base_bytes = int(self._answer()["base_bytes"])
        """What a rank takes before it has any data."""

    def __enter__(self) -> "TrialProcess":
        return self

    def __exit__(self, *error: object) -> None:
        # Its ranks are children of its own, in a group that is theirs alone.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()

    def run_trial(self, spec: TrialSpec) -> "TrialResult":
        """Run one. Raises RunError: a rank failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(spec)) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "failed" in answer:
            raise RunError(f"the rehearsal of system '{spec.job['system']}' failed: {answer['failed']}")
        return TrialResult.of(spec, answer["ranks"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:] or ["it said nothing"]
        raise RunError(f"the rehearsing process ended with status {self._process.wait()}: {last[0]}")


@dataclass(frozen=True)
class TrialResult:
    """What was seen. Where there are several ranks, lists are by rank."""

    ranks: int
    epochs: list[float]
    """Seconds of each whole epoch, those that pay for what is done once left out where there are others."""
    step_s: float
    """Seconds of a step."""
    steps: int
    """Of all epochs."""
    minibatches: int
    """Of all ranks and epochs."""
    minibatch_bytes: float
    """Structure of one, in memory; 0 where there are none."""
    distinct: list[float]
    """Distinct nodes of one minibatch, of two, and so on, the mean over ranks; empty where nobody asks."""
    sample_s: float
    """Seconds of sampling a minibatch, beside training."""
    fetch_s: float
    """Seconds of fetching a minibatch's rows from other ranks, beside training."""
    evaluate_s: float
    """Seconds of evaluating a split; 0 where training was cut short."""
    peak_rss_bytes: list[int]
    memory_bytes: list[dict[str, int]]
    """As `Result.memory_bytes`; empty where training was cut short."""
    bytes: dict[str, dict[str, int]]
    """Of all ranks, by channel and kind."""
    waits: dict[str, int]
    """Of the first rank, over the network, by kind."""
    whole: bool
    """Whether all epochs were done."""
    all_seeds: bool
    """See `TrialSpec.all_seeds`."""

    @classmethod
    def of(cls, spec: TrialSpec, ranks: Sequence[Mapping[str, Any]]) -> "TrialResult":
        """From what the ranks say."""
        reports, meters = [r["report"] for r in ranks], [r["meter"] for r in ranks]
        first, steps, whole = reports[0], meters[0]["steps"], "history" in reports[0]
        per_epoch = max(1, sum(epoch == 0 for epoch, _ in steps))
        steady = _steady([e["seconds"] for e in first["history"]], spec) if whole else []
        # From one step to the next, within an epoch where it has several: between epochs lie other things.
        pairs = list(zip(steps, steps[1:]))
        gaps = [b[1] - a[1] for a, b in pairs if a[0] == b[0]] or [b[1] - a[1] for a, b in pairs]
        gaps = gaps or [steps[0][1] - meters[0]["started"]]
        handed, per_step = (
            sum(m["minibatches"] for m in meters),
            spec.job["train"]["minibatches_per_step"] or spec.ranks,
        )
        # Where training was cut short, what had been handed on was sampled and, before more of it was, fetched.
        trained = sum(r["minibatches"] for r in reports) if whole else handed or len(steps) * per_step
        # The first bulk pays for loading kernels.
        bulks = min(spec.job["queue"]["bulk_size"], -(-per_epoch * per_step // spec.ranks)) * spec.ranks
        evaluations = 1 + sum("val_accuracy" in e for e in first["history"]) if whole else 0

        def slowest(stage: str, count: int) -> float:
            apart = [m["sampled_s"] if stage == "sample" else 0.0 for m in meters]
            return max(r["seconds"].get(stage, 0.0) - a for r, a in zip(reports, apart)) / max(1, count)

        return cls(
            ranks=spec.ranks,
            epochs=[s for phase in steady for s in phase],
            step_s=float(np.mean([np.median(s) for s in steady]) / per_epoch if steady else np.mean(gaps[1:] or gaps)),
            steps=len(steps),
            minibatches=trained,
            minibatch_bytes=sum(m["minibatch_bytes"] for m in meters) / max(1, handed),
            distinct=[float(np.mean(sizes)) for sizes in zip(*(m["distinct"] for m in meters))],
            sample_s=slowest("sample", trained - bulks if trained else 1) * spec.ranks,
            fetch_s=slowest("exchange", trained) * spec.ranks,
            evaluate_s=slowest("evaluate", evaluations) if evaluations else 0.0,
            peak_rss_bytes=[r["peak_rss_bytes"] for r in reports],
            memory_bytes=[r["memory_bytes"] for r in reports] if whole else [],
            bytes={
                channel: {kind: sum(r["bytes"][channel][kind] for r in reports) for kind in kinds}
                for channel, kinds in first["bytes"].items()
            },
            waits=first["waits"]["network"],
            whole=whole,
            all_seeds=spec.all_seeds,
        )


def _steady(epochs: list[float], spec: TrialSpec) -> list[list[float]]:
    """Of each phase, its epochs but the first, which pays for what is done once; of sampled minibatches not the last
    either, when nothing is sampled any more."""
    n = spec.job["epochs"]
    phases = [epochs[i : i + n] for i in range(0, len(epochs), n)]
    return [phase[1 : n - 1 if spec.seeds is not None else n] or phase for phase in phases]
