"""Put on the path of a command's processes by `killed_stages.py`: whoever reaches a stage waits there to be killed.

A stage is reached when its work is done and nothing says so yet: before the record of a task is written, before its
result is sent, before a folder is renamed. Its name becomes a line of ``$MILLRACE_KILL/seen``. If it is what the
file ``armed`` says, this file becomes ``hit``, with the process's id, and the process waits until it is gone.
"""

import functools
import importlib
import os
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

FOLDER = Path(os.environ.get("MILLRACE_KILL", "/nonexistent"))


def reached(stage: str) -> None:
    """Wait here, if this is the stage."""
    with open(FOLDER / "seen", "a") as file:
        file.write(stage + "\n")
    armed, own = FOLDER / "armed", FOLDER / f"hit-{os.getpid()}"
    try:
        if armed.read_text() != stage:
            return
        armed.rename(own)
    except FileNotFoundError:
        return
    while own.exists():
        time.sleep(0.005)


def after(stage, work):
    """`work`, at whose end the stage is reached; `stage` is its name, or makes it of the arguments."""

    @functools.wraps(work)
    def watched(*args, **kwargs):
        result = work(*args, **kwargs)
        reached(stage if isinstance(stage, str) else stage(*args))
        return result

    return watched


def before(stage, work):
    """`work`, before which the stage is reached."""

    @functools.wraps(work)
    def watched(*args, **kwargs):
        reached(stage)
        return work(*args, **kwargs)

    return watched


def unrecorded(recorded):
    """`ingest.tasks.recorded`, whose stage is reached when its task is done and its record is not there."""

    @functools.wraps(recorded)
    def watched(task, record, *args):
        return recorded(after(record.stem.rpartition("-")[0], task), record, *args)

    return watched


POINTS = {
    "pipeline.ingest.tasks": {"recorded": unrecorded},
    "pipeline.ingest.scratch": {"commit": lambda f: before("commit", after("committed", f))},
    "pipeline.cluster.partition_task": {
        f"_{name}": functools.partial(after, name) for name in ("assign", "begin", "deal", "write")
    },
    "stages.partition.stage": {"_commit": functools.partial(before, "commit")},
    "pipeline.cluster.sample_task": {
        "sample_bulk": functools.partial(after, lambda order, epoch, number: f"epoch-{epoch}")
    },
    "storage.queue.zarr": {"ZarrQueue.put": functools.partial(after, "put")},
    "pipeline.training.step": {
        "StepRunner.run": functools.partial(after, lambda self, epoch, step, *_: f"step-{epoch}-{step}")
    },
    "pipeline.training.trainer": {
        "rank_job_of": functools.partial(after, "start"),
        "save_model": functools.partial(after, "model"),
        "report_of": functools.partial(after, "test"),
    },
    "pipeline.training.phases": {"PhaseTraining._validate": functools.partial(after, "validate")},
    "storage.checkpoint": {"CheckpointStore.save": lambda f: before("checkpoint", after("checkpointed", f))},
    "pipeline.run": {"_result": functools.partial(after, "result"), "_run": functools.partial(after, "ended")},
    "stages.evaluate.in_files": {
        "lay_out": functools.partial(after, "lay_out"),
        "FileLayers.compute": functools.partial(after, lambda self, k, *_: f"layer-{k}"),
        "FileLayers.result": functools.partial(after, "outputs"),
    },
    "pipeline.inference.files": {"written": lambda f: before("file", after("written", f))},
}
"""By module: functions and methods, and what to make of each."""


class Finder:
    """Finds modules as everybody does, and puts the points into those that have some."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module's own spec, whose loader changes the functions."""
        points = POINTS.get(name.removeprefix("millrace."))
        if points is None:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            for dotted, change in points.items():
                *owner, function = dotted.split(".")
                holder = getattr(module, owner[0]) if owner else module
                setattr(holder, function, change(getattr(holder, function)))

        spec.loader.exec_module = exec_module
        return spec


if FOLDER.is_dir():
    import importlib.util

    sys.meta_path.insert(0, Finder())
