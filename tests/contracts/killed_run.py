"""A run that is killed in the middle goes on to the same bits."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import millrace as mr
from millrace.pipeline.setup.result import Result
from millrace.stages.comm.base import Group
from millrace.tests.contracts.process_ranks import run_ranks

LOOKS = 7
"""Times that a run looks whether it is to stop before it is killed."""


def check_goes_on_after_a_kill(source: Path | str, out: Path, whole: Result, options: Mapping[str, Any]) -> list[str]:
    """Kill a run of a store by SIGKILL after its first checkpoint, resume it, and compare it with one that was not
    killed; return what the resumed one notes.

    Args:
        source: the dataset.
        out: folder of the run.
        whole: the run that was not killed.
        options: of both runs.
    """
    options = {**options, "checkpoint": {"every_steps": 2}, "verbose": False}
    assert run_ranks(_killed, 1, source, out, options, mortal=(0,)) == [None]
    assert list((out / "checkpoints").glob("step-*")) and not (out / "result.json").exists()
    notes: list[str] = []
    again = mr.run(source, out=out, resume=True, emit=lambda e: notes.append(getattr(e, "text", "")), **options)
    assert again.parameters_sha256 == whole.parameters_sha256
    assert (again.test_metrics, again.best_epoch) == (whole.test_metrics, whole.best_epoch)
    return notes


def _killed(group: Group, source: Path | str, out: Path, options: Mapping[str, Any]) -> None:
    asked = iter(range(1000))
    mr.run(source, out=out, stop=lambda: next(asked) == LOOKS and os.kill(os.getpid(), signal.SIGKILL), **options)
