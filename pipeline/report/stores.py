"""Reading of the record that a command leaves beside the store that it makes, and the report on it."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..dashboard.command import record_of
from ..telemetry.plain import integer
from ..telemetry.quantities import amount, duration
from ..telemetry.run_log import RunLog, StageSpan, take_each

OF_ALL = ("convert", "relabel")
"""Stages that are the command itself."""


@dataclass
class StageRow:
    """A stage of a command, over all times that the command was given."""

    stage: str
    text: str
    begin: float
    """Seconds since the command began; time between two starts is left out."""
    seconds: float = 0.0
    tasks: int | None = None
    peak: int = 0
    """Most bytes of anonymous and shared memory, over processes of the machine of the command."""
    read: int = 0
    written: int = 0
    ended: bool = False


@dataclass
class StoreRecord:
    """Stages, memory and bytes of a command that made a store, and how it ended."""

    path: Path
    """The store."""
    command: str = ""
    dataset: str = ""
    starts: int = 0
    seconds: float = 0.0
    """Seconds of all starts together."""
    peak: int = 0
    read: int = 0
    written: int = 0
    status: str = "not finished"
    stages: list[StageRow] = field(default_factory=list)
    """In the order in which they began; of stages within others both."""
    notes: list[tuple[float, str]] = field(default_factory=list)
    unreadable: int = 0
    """Lines that are no events."""

    @property
    def headline(self) -> str:
        """A sentence on the command."""
        again = f", in {self.starts} starts" if self.starts > 1 else ""
        memory = f", at most {amount(self.peak)} of memory" if self.peak else ""
        return f"{self.command} of {self.dataset}: {self.status} after {duration(self.seconds)}{again}{memory}."

    @property
    def findings(self) -> list[str]:
        """Sentence that names the stage with most of the time; none without stages."""
        if not self.stages or self.seconds <= 0:
            return []
        most = max(self.stages, key=lambda s: s.seconds)
        return [f"Most of it, {most.seconds / self.seconds:.0%}, went into {most.stage} ({most.text})."]

    def as_record(self) -> dict[str, Any]:
        """Plain values."""
        plain = {k: v for k, v in vars(self).items() if k not in ("path", "stages", "notes")}
        said = {"headline": self.headline, "findings": self.findings}
        return {"store": str(self.path), **said, **plain, "stages": [vars(stage) for stage in self.stages]}


def is_recorded(store: Path) -> bool:
    """True if a command has left a record of making it."""
    return record_of(store).is_file()


def read_record(store: Path) -> StoreRecord:
    """Read the record of a store. A line that is cut off, or is no event, is counted and skipped.

    Raises:
        OSError: there is none.
    """
    reader = _Reader(StoreRecord(store))
    with record_of(store).open("rb") as f:
        reader.record.unreadable = take_each(f, reader.take)
    reader.close()
    return reader.record


def records_behind(dataset: str, most: int = 8) -> list[StoreRecord]:
    """Records of the commands that made a run's dataset, the first one first."""
    found: list[StoreRecord] = []
    path = Path(dataset)
    while len(found) < most and is_recorded(path) and path not in (r.path for r in found):
        found.insert(0, read_record(path))
        path = Path(found[0].dataset)
    return found


class _Reader:
    """Reads each start of the command as a `RunLog`, whose spans add up to the rows of the record."""

    def __init__(self, record: StoreRecord) -> None:
        self.record, self._log, self._rows = record, RunLog(), dict[str, StageRow]()
        self._began = self._last = self._offset = 0.0
        """Times of the start's first and last event, and seconds of earlier starts."""
        self._moved = (0, 0)
        """Bytes read and written at the last usage."""

    def take(self, kind: str, at: float, event: dict[str, Any]) -> None:
        """Take an event. Raises KeyError, TypeError or ValueError for anything else."""
        record = self.record
        if kind == "Command":
            self.close()
            self._log, self._offset, self._began, self._last, self._moved = RunLog(), record.seconds, at, at, (0, 0)
            record.command, record.dataset = str(event["command"]), str(event["dataset"])
            record.starts, record.status = record.starts + 1, "not finished"
            return
        self._last = max(self._last, at)
        record.seconds = self._position(self._last)
        under_way = {span.stage: span for span in self._log.spans if span.end == math.inf}
        if kind == "Usage":
            moved = integer(event["read"]), integer(event["written"])
            read, written = (max(0, now - before) for now, before in zip(moved, self._moved))
            self._moved = moved
            for row in (record, *map(self._row, under_way.values())):
                row.peak = max(row.peak, integer(event["memory"]))
                row.read, row.written = row.read + read, row.written + written
        elif kind == "Note":
            record.notes.append((self._position(at), str(event["text"])))
        elif kind == "Ended":
            record.status = str(event["how"])
        elif kind != "StageEnded" or event["stage"] in under_way or event["stage"] not in OF_ALL:
            self._log.take(kind, at, event)

    def close(self) -> None:
        """Add the stages of this start to their rows."""
        for span in self._log.spans:
            row = self._row(span)
            row.seconds += min(span.end, self._last) - span.begin
            row.tasks, row.ended = span.done or row.tasks, row.ended or span.end < math.inf

    def _position(self, at: float) -> float:
        return self._offset + at - self._began

    def _row(self, span: StageSpan) -> StageRow:
        if span.stage not in self._rows:
            self._rows[span.stage] = StageRow(span.stage, span.text, self._position(span.begin))
            self.record.stages.append(self._rows[span.stage])
        return self._rows[span.stage]
