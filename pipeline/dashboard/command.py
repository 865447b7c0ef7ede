"""Stages of a command that makes a store: a record beside the store, and the page of a cluster if there is one."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from ...storage.errors import InputError
from ...storage.store.committed_folder import require_name
from ...storage.store.full_disk import needing_space
from ...storage.store.own_files import own_file
from ...storage.store.paths import expanded
from ...storage.store.regular import file_bytes
from ...storage.urls import is_url, without_secrets
from ..telemetry.events import Emit, Event, Note, OnCluster, StageAdvanced, StageEnded, StageStarted, ending
from ..telemetry.usage import Usage

SUFFIX = ".stages.jsonl"
EVERY_S = 0.5
"""Seconds between readings of memory and traffic."""
KEPT = 1000
"""Readings that a long command leaves, about."""


def record_of(store: Path) -> Path:
    """The record of the command that made a store, beside it. Raises InputError if the store has no name."""
    require_name(store)
    return store.with_name(f"{store.name}{SUFFIX}")


@contextmanager
def recorded_stages(command: str, dataset: str, out: str | Path, emit: Emit, *, goes_on: bool) -> Iterator[Emit]:
    """Record the stages of a command in `record_of(out)`, and show them on the page of a cluster that it opens.

    A command whose input is refused leaves no record, and one whose folder cannot be written does its work without.

    Args:
        command: its name.
        dataset: what it reads.
        out: what it makes; a URL has no record.
        emit: called with all events.
        goes_on: it goes on with work that was stopped, and with its record.

    Yields:
        Function to call with the command's events.

    Raises:
        RunError: the disk is full.
    """
    path = record_of(out) if isinstance(out, Path) else None
    if not is_url(dataset) and expanded(dataset).exists():
        dataset = str(expanded(dataset).resolve())
    about = {"command": command, "dataset": without_secrets(dataset), "out": without_secrets(str(out))}
    log = _CommandLog(about, path, emit, goes_on)
    with ending(log.close):
        try:
            with needing_space(out):
                yield log
        except InputError:
            log.forget()
            raise


class _CommandLog(OnCluster):
    def __init__(self, about: dict[str, Any], path: Path | None, emit: Emit, goes_on: bool) -> None:
        self._about, self._path, self._emit, self._goes_on = about, path, emit, goes_on
        self._page: Emit | None = None
        self._lock, self._stop, self._usage = threading.Lock(), threading.Event(), Usage()
        self._file: TextIO | None = None
        self._earlier: bytes | None = None
        self._made: list[Path] = []
        self._began = self._read_at = self._told = time.monotonic()
        # The clock of the machine may be set meanwhile.
        self._begin, self._most = time.time(), 0
        self._thread = threading.Thread(target=self._watch, name="stages", daemon=True)

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, StageStarted | StageEnded):
            self._open()
            self._read(write=True)
            self._write(type(event).__name__, **vars(event))
        elif isinstance(event, Note):
            self._write("Note", **vars(event))
        elif isinstance(event, StageAdvanced) and (now - self._told >= EVERY_S or event.done == event.total):
            self._told = now
            self._write("StageAdvanced", **vars(event))
        (self._page or self._emit)(event)

    def _open(self) -> None:
        """Begin the record, at the first stage: what is refused at once leaves all as it is."""
        if not self._path or self._file or self._stop.is_set():
            return
        with suppress(OSError):
            self._made = [folder for folder in self._path.parents if not folder.exists()]
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = own_file(self._path)
            if self._path.stat().st_size:
                self._earlier = file_bytes(self._path)
            if not self._goes_on:
                self._file.truncate(0)
            self._write("Command", at=self._begin, **self._about)
            self._thread.start()

    @contextmanager
    def on_cluster(self, client: Any) -> Iterator[None]:
        from .publisher import show

        about, name = {"client": client.id, **self._about}, f"{self._about['command']}-{uuid.uuid4().hex[:8]}"
        with show(client, lambda: about, name, self._emit, "this command") as self._page:
            try:
                yield
            finally:
                self._page = None

    def forget(self) -> None:
        """Leave the record of earlier commands, or none."""
        self._stop.set()
        if not self._file or not self._path:
            return
        self._thread.join()
        self._file.close()
        self._file = None
        with suppress(OSError):
            if self._earlier is None:
                self._path.unlink()
                for folder in self._made:
                    folder.rmdir()
            else:
                with own_file(self._path, append=False) as file:
                    file.buffer.write(self._earlier)

    def close(self, ended: str) -> None:
        """Write how the command ended."""
        if ended == "done":
            self._open()
        self._stop.set()
        if self._file:
            self._thread.join()
            self._read(write=True)
            self._write("Ended", how=without_secrets(ended))
            self._file.close()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._read(write=False)

    def _read(self, write: bool) -> None:
        """Read memory and traffic; write a line if asked to, or if the last one is long ago."""
        if not self._file:
            return
        with self._lock:
            found, now = self._usage.read(), time.monotonic()
            self._most = max(self._most, found["memory"])
            due = now - self._read_at >= max(EVERY_S, (now - self._began) / KEPT)
            if not (write or due):
                return
            self._read_at, found["memory"], self._most = now, self._most, 0
        self._write("Usage", **found)

    def _write(self, event: str, at: float | None = None, **values: Any) -> None:
        if self._file:
            line = {"event": event, "time": at or self._begin + time.monotonic() - self._began, **values}
            shown = {key: without_secrets(v) if isinstance(v, str) else v for key, v in line.items()}
            with suppress(OSError, ValueError):
                self._file.write(json.dumps(shown) + "\n")
