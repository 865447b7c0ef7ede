"""Rehearsals: a run's own code on its own data, by fewer ranks and for a few steps, to learn what a step takes here."""

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
from .trial_spec import TrialSpec

STEADY = 1
"""Epochs before this one pay for what is done once: kernels are loaded, buffers made."""


class TrialProcess:
    """The process that rehearses. Use as a context manager."""

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
        self.base_bytes = int(self._hear()["base_bytes"])
        """What a rank takes before it has any data."""

    def __enter__(self) -> "TrialProcess":
        return self

    def __exit__(self, *error: object) -> None:
        # Its ranks are children of its own, in a group that is theirs alone.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()

    def run_trial(self, cast: TrialSpec) -> "TrialResult":
        """Have it rehearsed.

        Raises:
            RunError: a rank failed.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(cast)) + "\n")
        self._process.stdin.flush()
        message = self._hear()
        if "failed" in message:
            raise RunError(f"the rehearsal of system '{cast.job['system']}' failed: {message['failed']}")
        return TrialResult.of(cast, message["ranks"])

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:]
            raise RunError(
                f"the rehearsing process ended with status {self._process.wait()}: {' '.join(last) or 'it said nothing'}"
            )
        return json.loads(line)


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
    united: list[float]
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
    """Whether an epoch was one of the run, with its smaller last minibatch."""

    @classmethod
    def of(cls, cast: TrialSpec, message: Sequence[Mapping[str, Any]]) -> "TrialResult":
        """From what the ranks say."""
        reports = [t["report"] for t in message]
        first, heard = reports[0], message[0]["heard"]
        whole = "history" in first
        steps = heard["steps"]
        # From one step to the next, within an epoch where it has several: between epochs lie other things.
        pairs = list(zip(steps, steps[1:]))
        gaps = (
            [b[1] - a[1] for a, b in pairs if a[0] == b[0]]
            or [b[1] - a[1] for a, b in pairs]
            or [steps[0][1] - heard["started"]]
        )
        epochs = [e["seconds"] for e in first["history"]] if whole else []
        per_epoch = max(1, sum(1 for epoch, _ in steps if epoch == 0))
        steady = _steady(epochs, cast)
        counted = [t["heard"] for t in message]
        handed = sum(h["minibatches"] for h in counted)
        per_step = cast.job["train"]["minibatches_per_step"] or cast.ranks
        # Where training was cut short, what had been handed on was sampled and, before more of it was, fetched.
        trained = sum(r["minibatches"] for r in reports) if whole else handed or len(steps) * per_step
        first_bulks = (
            cast.ranks * min(cast.job["queue"]["bulk_size"], -(-per_epoch * per_step // cast.ranks)) if trained else 0
        )
        evaluations = 1 + sum("val_accuracy" in e for e in first["history"]) if whole else 0
        sent: dict[str, dict[str, int]] = {}
        for channel in first["bytes"]:
            sent[channel] = {kind: sum(r["bytes"][channel][kind] for r in reports) for kind in first["bytes"][channel]}
        return cls(
            ranks=cast.ranks,
            epochs=[s for phase in steady for s in phase],
            step_s=float(np.mean([np.median(s) for s in steady])) / per_epoch
            if steady
            else float(np.mean(gaps[1:] or gaps)),
            steps=len(steps),
            minibatches=trained,
            minibatch_bytes=sum(h["minibatch_bytes"] for h in counted) / max(1, handed),
            united=[float(np.mean(sizes)) for sizes in zip(*(h["united"] for h in counted))],
            # The first bulk pays for loading kernels.
            sample_s=max(r["seconds"].get("sample", 0.0) - h["sampled_s"] for r, h in zip(reports, counted))
            * cast.ranks
            / max(1, trained - first_bulks),
            fetch_s=max(r["seconds"].get("exchange", 0.0) for r in reports) * cast.ranks / max(1, trained),
            evaluate_s=max(r["seconds"].get("evaluate", 0.0) for r in reports) / evaluations if evaluations else 0.0,
            peak_rss_bytes=[r["peak_rss_bytes"] for r in reports],
            memory_bytes=[r["memory_bytes"] for r in reports] if whole else [],
            bytes=sent,
            waits=first["waits"]["network"],
            whole=whole,
            all_seeds=cast.seeds is None or cast.seeds >= cast.outline["splits"]["train"],
        )


def _steady(epochs: list[float], cast: TrialSpec) -> list[list[float]]:
    """Of each phase, its epochs but the first; of sampled minibatches not the last either, when nothing is sampled any
    more."""
    per_phase = cast.job["epochs"]
    last = per_phase - 1 if cast.seeds is not None else per_phase
    phases = [epochs[i : i + per_phase] for i in range(0, len(epochs), per_phase)]
    return [phase[STEADY:last] or phase for phase in phases]
