"""Stages of tasks, each of which leaves a record when it is done, so that a killed ingest goes on where it was."""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...storage.errors import InputError, MillraceError, RunError
from ...storage.store.full_disk import is_full, no_space
from ...storage.store.regular import file_text
from ..telemetry.events import Emit, StageAdvanced, StageStarted, during

Task = Callable[..., dict[str, Any]]
"""Takes picklable arguments and returns plain values; done twice, it leaves the same."""
Run = Callable[[str, str, Task, list[tuple[Any, ...]]], list[dict[str, Any]]]
"""Runs a stage of tasks: its name, what it does, the task, arguments of each."""
Execute = Callable[[str, Sequence[tuple[Any, ...]]], Iterator[tuple[int, dict[str, Any]]]]
"""Runs calls (function, arguments...) of a stage; gives (position, result) as they are done."""


def done_record(folder: Path, stage: str, number: int) -> Path:
    """File with the result of a task that is done."""
    return folder / "done" / f"{stage}-{number:06d}.json"


def record_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none, or the file is damaged: what it says is done again."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return dict(json.loads(file_text(path)))
    return {}


def recorded(task: Task, record: Path, *arguments: Any) -> dict[str, Any]:
    """Do a task and record its result. Raises MillraceError: as the task does; RunError: the disk is full."""
    try:
        result = task(*arguments)
        aside = record.with_name(f".{uuid.uuid4().hex}")
        aside.write_text(json.dumps(result))
        os.replace(aside, record)
    except MillraceError:
        raise
    except OSError as e:
        if is_full(e):
            raise no_space(record.parent.parent, ": what is done stays") from e
        raise
    return result


def inline(stage: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run tasks in this process, one after the other."""
    for number, (task, *arguments) in enumerate(calls):
        yield number, task(*arguments)


class Stages:
    """Runs the stages of an ingest in `folder`, by `execute`."""

    def __init__(self, folder: Path, execute: Execute, emit: Emit) -> None:
        self.folder, self._execute, self._emit = folder, execute, emit
        (folder / "done").mkdir(parents=True, exist_ok=True)

    def run(self, stage: str, text: str, task: Task, items: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Results of the task for each of `items`, its arguments. Those that are recorded are not done again. Raises
        MillraceError: as the task does."""
        with during(StageStarted(stage, text, len(items)), self._emit):
            records = [done_record(self.folder, stage, number) for number in range(len(items))]
            found = {n: result for n, r in enumerate(records) if (result := record_in(r))}
            todo = [n for n in range(len(items)) if n not in found]
            calls = [(recorded, task, records[n], *items[n]) for n in todo]
            try:
                for position, result in self._execute(stage, calls):
                    found[todo[position]] = result
                    self._emit(StageAdvanced(stage, len(found), len(items)))
            except MemoryError as e:
                raise RunError(f"{stage}: out of memory ({e}); give a smaller --memory, or fewer --workers") from e
        return [found[n] for n in range(len(items))]

    def run_here(self, stage: str, task: Task) -> dict[str, Any]:
        """Result of a task that is done in this process, and recorded."""
        record = done_record(self.folder, stage, 0)
        return record_in(record) or recorded(task, record)


def parse_memory(text: str | int) -> int:
    """Bytes in a text such as ``1GiB``, ``512MB`` or ``2e9``. Raises InputError: it is no size."""
    from dask.utils import parse_bytes

    words = str(text).strip().lower()
    with suppress(ValueError, OverflowError):
        if words[:1] in {*"0123456789."} and words[-1] in "0123456789b" and 0 < (size := parse_bytes(words)) < 2**62:
            return size
    raise InputError(f"memory is '{text}'; expected a size such as 1GiB or 512MB")
