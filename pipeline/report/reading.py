"""Reading of a run's folder, finished or not: configuration, result, events and partition quality."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...stages.partition.quality import PartitionQuality
from ...stages.partition.stage import KIND as PARTITIONING
from ...stages.partition.stage import quality_of
from ...storage.errors import InputError, StoreError
from ...storage.store.store import open_store
from ..config.load import Job, read_any_run_table, resolve
from ..config.named_code import check_code
from ..setup.result import read_result
from ..setup.run_folder import JOB, METRICS, PARTS, check_holds_run, flat, is_locked
from ..telemetry.run_log import RunLog, read_events


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run, as read from its folder."""

    folder: Path
    name: str
    """Short name, unique among the runs of a report."""
    config: dict[str, Any]
    """Resolved configuration by dotted key."""
    changed: frozenset[str]
    """Keys that differ from the system's defaults."""
    result: dict[str, Any] | None
    """Contents of ``result.json``; None if the run has not finished."""
    running: bool
    log: RunLog
    quality: PartitionQuality | None
    """Quality of the partitioning; None if the run has no parts, or some are missing."""
    partitioner: str

    @property
    def status(self) -> str:
        """``done``, ``running`` or ``not finished``."""
        ended = "not finished" if self.result is None else str(self.result.get("status", "done"))
        return "running" if self.running else ended


def read_run(folder: Path, name: str) -> RunRecord:
    """Read a run's folder.

    Raises:
        InputError: the folder holds no run.
        StoreError: the result is damaged.
    """
    check_holds_run(folder)
    read = read_result(folder), is_locked(folder), read_events(folder / METRICS)
    return RunRecord(folder, name, *_config(folder / JOB), *read, *_quality(folder / PARTS))


def names(folders: list[Path]) -> list[str]:
    """The shortest path endings that differ from each other."""
    parts = [f.absolute().parts for f in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(p[-depth:]).lstrip("/") for p in parts]
        if len(set(ends)) == len(ends):
            return ends
    raise InputError("a run is named twice; name each run once")


def _config(path: Path) -> tuple[dict[str, object], frozenset[str]]:
    table = read_any_run_table(path)
    try:
        check_code(table, path)
        job = resolve(table)
        usual = flat(resolve({"system": job.system}).model_dump(mode="json"))
    except InputError:
        # Another version's file is shown as it is, and one that names code.
        usual, shown = flat(Job().model_dump(mode="json")), flat(table)
    else:
        shown = flat(job.model_dump(mode="json", exclude_none=True))
    return shown, frozenset(key for key, value in shown.items() if value != usual.get(key))


def _quality(folder: Path) -> tuple[PartitionQuality | None, str]:
    try:
        store = open_store(folder, PARTITIONING)
        return quality_of(store), store.value("partitioner", str)
    except StoreError:
        return None, ""
