"""Reading of the record that a command leaves beside the store that it makes, and the report on it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..dashboard.command import record_of
from ..telemetry.plain import integer, number, table
from ..telemetry.quantities import amount, duration

MOST_ROWS = 200
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
        stages = [vars(stage) for stage in self.stages]
        return {
            "store": str(self.path),
            "headline": self.headline,
            "findings": self.findings,
            **plain,
            "stages": stages,
        }


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
        for line in f:
            try:
                event = table(json.loads(line))
                reader.take(str(event["event"]), number(event["time"]), event)
            except (ValueError, KeyError, TypeError, RecursionError):
                reader.record.unreadable += 1
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
    def __init__(self, record: StoreRecord) -> None:
        self.record = record
        self._open: dict[str, StageRow] = {}
        self._began = self._last = 0.0
        self._offset = 0.0
        """Seconds of earlier starts."""
        self._moved = (0, 0)
        """Bytes read and written at the last usage."""

    def take(self, kind: str, at: float, event: dict[str, Any]) -> None:
        """Take an event. Raises KeyError, TypeError or ValueError for anything else."""
        if kind == "Command":
            self.close()
            self._offset, self._began, self._last, self._moved = self.record.seconds, at, at, (0, 0)
            self.record.command, self.record.dataset = str(event["command"]), str(event["dataset"])
            self.record.starts += 1
            self.record.status = "not finished"
            return
        before, self._last = self._last, max(self._last, at)
        self.record.seconds = self._offset + self._last - self._began
        if kind == "Usage":
            self._use(integer(event["memory"]), integer(event["read"]), integer(event["written"]))
        elif kind == "StageStarted":
            stage = str(event["stage"])
            self._end(stage)
            self._open[stage] = self._row(stage, str(event["text"]), at)
        elif kind == "StageAdvanced":
            row = self._open.get(str(event["stage"])) or self._row(str(event["stage"]), "", before)
            self._open[row.stage] = row
            row.tasks = integer(event["done"])
        elif kind == "StageEnded":
            stage = str(event["stage"])
            if stage not in self._open and stage in OF_ALL:
                return
            row = self._open.get(stage) or self._row(stage, str(event["text"]), at - number(event["seconds"]))
            self._open[stage] = row
            self._end(stage)
            row.ended = True
        elif kind == "Note":
            self.record.notes.append((self._position(at), str(event["text"])))
        elif kind == "Ended":
            self.record.status = str(event["how"])

    def close(self) -> None:
        """End the stages that are open."""
        for stage in list(self._open):
            self._end(stage)

    def _position(self, at: float) -> float:
        return self._offset + at - self._began

    def _row(self, stage: str, text: str, at: float) -> StageRow:
        """The row of a stage, which begins anew; it counts from here."""
        row = next((r for r in self.record.stages if r.stage == stage), None)
        if row is None:
            row = StageRow(stage, text or stage, self._position(at))
            self.record.stages.append(row)
        row.seconds -= self._position(at)
        return row

    def _end(self, stage: str) -> None:
        if (row := self._open.pop(stage, None)) is not None:
            row.seconds += self._position(self._last)

    def _use(self, memory: int, read: int, written: int) -> None:
        gone = max(0, read - self._moved[0]), max(0, written - self._moved[1])
        self._moved = read, written
        for row in (self.record, *self._open.values()):
            row.peak = max(row.peak, memory)
            row.read, row.written = row.read + gone[0], row.written + gone[1]


def sections(records: Sequence[StoreRecord]) -> list[dict[str, Any]]:
    """Template values of records."""
    return [
        {
            "name": record.path.name,
            "headline": record.headline,
            "findings": record.findings,
            "whole": record,
            "stages": sorted(record.stages, key=lambda s: s.begin)[:MOST_ROWS],
            "length": max(record.seconds, 1e-9),
            "notes": record.notes[:MOST_ROWS],
        }
        for record in records
    ]
