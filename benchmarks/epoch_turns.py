"""Two engines that run at the same time and take turns of seconds, so that a slow minute of the host does not decide
their ratio.

One engine is stopped (SIGSTOP, all its processes) while the other trains. What is left of a step at the end of a turn
is done in the next turn, so that the steps of all turns, over their seconds, are exact to one step.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil

START_S = 300.0
"""An engine has trained its first epoch within this time."""
LOOK_S = 0.02


class Paused:
    """A process of `train_millrace.py` that trains without end, and all that it starts."""

    def __init__(self, script: Path, task: dict[str, Any], variables: dict[str, str]) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._steps = Path(self._scratch.name) / "steps"
        task = {**task, "options": {**task["options"], "steps": str(self._steps)}}
        environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"} | variables
        environment |= {
            "TMPDIR": self._scratch.name,
            "OMP_NUM_THREADS": str(task["threads"]),
            "MKL_NUM_THREADS": str(task["threads"]),
        }
        self._log = open(Path(self._scratch.name) / "log", "w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, script, "--task", json.dumps(task)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self._await(task["minibatches"])
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> "Paused":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def steps(self) -> int:
        """Done, as far as has been told."""
        try:
            return int(self._steps.read_text() or 0)
        except FileNotFoundError:
            return 0

    def turn(self, seconds: float) -> tuple[int, float]:
        """Go on for a while. Returns steps and seconds."""
        before, start = self.steps, time.perf_counter()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        spent = time.perf_counter() - start
        if self._process.poll() is not None:
            raise RuntimeError("an engine ended in its turn")
        return self.steps - before, spent

    def close(self) -> None:
        """Kill them all."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._scratch.cleanup()

    def _await(self, steps: int) -> None:
        until = time.monotonic() + START_S
        while self.steps < steps:
            if self._process.poll() is not None or time.monotonic() > until:
                self._log.seek(0)
                raise RuntimeError(f"an engine did not train: {self._log.read()[-2000:]}")
            time.sleep(LOOK_S)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(psutil.Error):
            root = psutil.Process(self._process.pid)
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error):
                    process.send_signal(number)


def take_turns(engines: dict[str, Paused], pairs: int, seconds: float) -> list[dict[str, Any]]:
    """Let two engines take turns; a record of each pair of turns, with milliseconds a step. Every other pair runs
    backwards."""
    names, found = list(engines), []
    for n in range(pairs):
        pair: dict[str, Any] = {}
        for name in names[:: 1 if n % 2 == 0 else -1]:
            steps, spent = engines[name].turn(seconds)
            pair[name] = {"steps": steps, "seconds": spent, "ms": 1000 * spent / max(steps, 1)}
        found.append(pair)
        print("  " + ", ".join(f"{name} {pair[name]['ms']:.1f} ms" for name in names), flush=True)
    return found


def compared(pairs: list[dict[str, Any]], fast: str, slow: str) -> dict[str, float]:
    """Milliseconds a step over all turns, how many times faster `fast` is, and a 95 % interval (bootstrap over
    pairs)."""

    def ms(name: str, of: Any) -> float:
        return 1000 * sum(pairs[i][name]["seconds"] for i in of) / sum(pairs[i][name]["steps"] for i in of)

    every, rng = range(len(pairs)), np.random.default_rng(0)
    drawn = [rng.integers(0, len(pairs), len(pairs)) for _ in range(2000)]
    low, high = np.quantile([ms(slow, d) / ms(fast, d) for d in drawn], [0.025, 0.975])
    found = {"fast_ms": ms(fast, every), "slow_ms": ms(slow, every)}
    return found | {"ratio": found["slow_ms"] / found["fast_ms"], "low": float(low), "high": float(high)}
