"""Trials: a run's own code on its own data, by few ranks and for a few steps, to measure what a step costs here."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

from ...storage.errors import RunError
from ..setup.model import Outline


@dataclass(frozen=True)
class TrialSpec:
    """A trial."""

    job: dict[str, Any]
    """Resolved configuration with the ranks and epochs of the trial, as plain values."""
    dataset: str
    """Anything that `open_dataset` takes, if `features` is None; else the folder of a store that all ranks open."""
    features: str | None
    outline: Outline
    """Outline of the dataset."""
    parts: str | None
    """Folder of the parts, of which each rank opens its own instead of the dataset."""
    out: str
    """Folder of the trial's run."""
    seeds: int | None
    """Train nodes to train on: of each part in isolated training, else of all ranks. None: all."""


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
    """Distinct nodes of one minibatch, of two, and so on, means over ranks; empty if not needed."""
    sample_s: float
    """Seconds of sampling a minibatch, beside training."""
    fetch_s: float
    """Seconds of fetching a minibatch's rows from other ranks, beside training."""
    evaluate_s: float
    """Seconds of evaluating a split."""
    peak_rss_bytes: list[int]
    memory_bytes: list[dict[str, int]]
    """See `Result.memory_bytes`."""
    bytes: dict[str, dict[str, int]]
    """Bytes of all ranks, by channel and kind."""
    waits: dict[str, int]
    """Network messages that the first rank waited for, by kind."""


class TrialProcess:
    """The process that runs trials (`trial_main`). Use as a context manager."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """
        Args:
            environment: variables that a rank's process starts with, such as the allocator's.
        """
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._answers, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millrace.pipeline.planning.trial_main", str(theirs.fileno())],
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
            raise RunError(f"the trial of system '{spec.job['system']}' failed: {answer}")
        return answer

    def _answer(self) -> Any:
        try:
            return self._answers.recv()
        except EOFError:
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:] or ["it printed nothing"]
            raise RunError(
                f"the process that runs trials ended with status {self._process.wait()}: {last[0]}"
            ) from None
