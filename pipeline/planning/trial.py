"""Trials: a run's own code on its own data, by few ranks and for a few steps, to measure what a step costs here."""

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
    """Resolved configuration with the ranks and epochs of the trial."""
    dataset: str
    """Anything that `open_dataset` takes, if `features` is None; else the folder of a store that all ranks open."""
    features: str | None
    outline: dict[str, Any]
    """Outline of the dataset."""
    parts: str | None
    """Folder of the parts, of which each rank opens its own instead of the dataset."""
    out: str
    """Folder of the trial's run."""
    seeds: int | None
    """Train nodes to train on: of each part in isolated training, else of all ranks. None: all."""
    limit_s: float
    """Seconds of each thread after which a rank cuts its training short."""

    @property
    def ranks(self) -> int:
        """Ranks of the trial."""
        return self.job["ranks"]

    @property
    def all_seeds(self) -> bool:
        """True if an epoch of the trial is one of the run, including its incomplete last minibatch."""
        return self.seeds is None or self.seeds >= self.outline["splits"]["train"]


class TrialProcess:
    """The process that runs trials (`trial_main`). Use as a context manager."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """
        Args:
            environment: variables that a rank's process starts with, such as the allocator's.
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
        """Resident size of a rank without data."""

    def __enter__(self) -> "TrialProcess":
        return self

    def __exit__(self, *error: object) -> None:
        # Its ranks are its children, in a process group of their own.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()

    def run_trial(self, spec: TrialSpec) -> "TrialResult":
        """Run a trial. Raises RunError if a rank failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(spec)) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "failed" in answer:
            raise RunError(f"the trial of system '{spec.job['system']}' failed: {answer['failed']}")
        return TrialResult.of(spec, answer["ranks"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:] or ["it printed nothing"]
        raise RunError(f"the process that runs trials ended with status {self._process.wait()}: {last[0]}")


@dataclass(frozen=True)
class TrialResult:
    """Measurements of a trial. Lists of several ranks are by rank."""

    ranks: int
    epochs: list[float]
    """Seconds of each whole epoch, leaving out epochs with one-time work if there are others."""
    step_s: float
    """Seconds of a step."""
    steps: int
    """Steps of all epochs."""
    minibatches: int
    """Minibatches of all ranks and epochs."""
    minibatch_bytes: float
    """Bytes of a minibatch's structure in memory; 0 without minibatches."""
    distinct: list[float]
    """Distinct nodes of one minibatch, of two, and so on, means over ranks; empty if not needed."""
    sample_s: float
    """Seconds of sampling a minibatch, beside training."""
    fetch_s: float
    """Seconds of fetching a minibatch's rows from other ranks, beside training."""
    evaluate_s: float
    """Seconds of evaluating a split; 0 if training was cut short."""
    peak_rss_bytes: list[int]
    memory_bytes: list[dict[str, int]]
    """See `Result.memory_bytes`; empty if training was cut short."""
    bytes: dict[str, dict[str, int]]
    """Bytes of all ranks, by channel and kind."""
    waits: dict[str, int]
    """Network messages that the first rank waited for, by kind."""
    whole: bool
    """True if all epochs were trained."""
    all_seeds: bool
    """See `TrialSpec.all_seeds`."""

    @classmethod
    def of(cls, spec: TrialSpec, ranks: Sequence[Mapping[str, Any]]) -> "TrialResult":
        """The measurements, from the messages of all ranks."""
        reports, meters = [r["report"] for r in ranks], [r["meter"] for r in ranks]
        first, steps, whole = reports[0], meters[0]["steps"], "history" in reports[0]
        per_epoch = max(1, sum(epoch == 0 for epoch, _ in steps))
        steady = _steady([e["seconds"] for e in first["history"]], spec) if whole else []
        # From step to step within an epoch, if it has several: other work lies between epochs.
        pairs = list(zip(steps, steps[1:]))
        gaps = [b[1] - a[1] for a, b in pairs if a[0] == b[0]] or [b[1] - a[1] for a, b in pairs]
        gaps = gaps or [steps[0][1] - meters[0]["started"]]
        handed = sum(m["minibatches"] for m in meters)
        per_step = spec.job["train"]["minibatches_per_step"] or spec.ranks
        # If training was cut short, every minibatch handed out had been sampled, and fetched before the next one.
        trained = sum(r["minibatches"] for r in reports) if whole else handed or len(steps) * per_step
        # The first bulk's time includes loading kernels.
        bulks = min(spec.job["queue"]["bulk_size"], -(-per_epoch * per_step // spec.ranks)) * spec.ranks
        evaluations = 1 + sum(any(key.startswith("val_") for key in e) for e in first["history"]) if whole else 0

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
    """Epochs of each phase without the first, which has one-time work, and, with sampled minibatches, without the last,
    when sampling is over."""
    n = spec.job["epochs"]
    phases = [epochs[i : i + n] for i in range(0, len(epochs), n)]
    return [phase[1 : n - 1 if spec.seeds is not None else n] or phase for phase in phases]
