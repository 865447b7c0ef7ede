"""One run of a sweep: in this process, or as a task of a Dask worker."""

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.load import Job
from ..setup.open_data import forget_data, keep_data
from ..telemetry.events import silent

_froze = False
"""True if this module has frozen what was there before the runs."""


def begin_runs() -> None:
    """Prepare this process for several runs: data are opened once, and collections of garbage leave out what was there
    before, which takes a fifth of a second in each run."""
    global _froze
    if not gc.get_freeze_count():
        gc.freeze()
        _froze = True
    keep_data()


def end_runs() -> None:
    """Undo `begin_runs`."""
    global _froze
    forget_data()
    if _froze:
        gc.unfreeze()
        _froze = False


@contextmanager
def several_runs() -> Iterator[None]:
    """Context between `begin_runs` and `end_runs`."""
    begin_runs()
    try:
        yield
    finally:
        end_runs()


def run_as_task(*arguments: Any) -> dict[str, Any]:
    """`run_one` in a worker, which may get several runs, until `end_runs`."""
    begin_runs()
    return run_one(*arguments)


def run_one(
    config: dict[str, Any], out: str, samples: str | None, threads: int | None, code: dict[str, Any]
) -> dict[str, Any]:
    """Run a job, or go on with it where it was begun.

    Args:
        config: a resolved configuration.
        out: the run's folder.
        samples: a store of samples to train from.
        threads: of the run, where the configuration names none: they do not change results.
        code: the user's own model and code, as `run` takes them; a model also by its name MODULE:NAME.

    Returns: ``{"result": ...}``, or ``{"failed": message}`` of a run that raised.
    """
    import torch

    from ...stages.random import Purpose, stream, torch_seed
    from ...storage.errors import MillraceError
    from ..custom.user_module import module_named
    from ..run import run
    from ..setup.run_folder import JOB

    job = Job.model_validate(config)
    if job.threads is None and threads is not None:
        job = job.model_copy(update={"threads": threads})
    resume = (Path(out) / JOB).is_file()
    try:
        if isinstance(code.get("model"), str):
            # Initial parameters of each seed, as those of Millrace's own models.
            torch.manual_seed(torch_seed(stream(job.seed_of("initial"), Purpose.INIT)))
            code = {**code, "model": module_named(code["model"])}
        elif "model" in code:  # a run trains the module that it gets, and others begin as this one
            code = {**code, "model": copy.deepcopy(code["model"])}
        result = run(config=job, out=out, resume=resume, samples=samples, emit=silent, **code)
    except MillraceError as e:
        return {"failed": str(e)}
    except Exception as e:
        return {"failed": f"{type(e).__name__}: {e}"}
    return {"result": result.to_record()}
