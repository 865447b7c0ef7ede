"""The terminal's view of a run: a live bar on a terminal, plain lines elsewhere. Everything goes to standard error."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console

from .events import Emit, EpochDone, Event, Note, StageAdvanced, StageEnded, StageStarted, StepDone, silent
from .main_metric import main_metric_of_epoch
from .printable import printable

QUIET_S = 2.0
"""Shortest interval between two lines of progress in plain output."""
LATE_S = 2.0
"""Time after which plain output names a stage."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process, but a run is worth more than a log that nobody reads any more.
        self.quiet = True


class Terminal:
    """Prints events. Use as a context manager; call it with events."""

    def __init__(self, console: Console | None = None) -> None:
        # Some shells without a terminal set COLUMNS=0, in which nothing would be shown.
        columns = {k: v for k, v in os.environ.items() if (k, v) != ("COLUMNS", "0")}
        self.console = console or _Console(file=sys.stderr, highlight=False, soft_wrap=True, _environ=columns)
        # With FORCE_COLOR rich takes a log file for a terminal; a live bar would fill it with garbage.
        self._live = self.console.is_terminal and not self.console.is_dumb_terminal and self.console.file.isatty()
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None
        self._said = time.monotonic()
        self._late: threading.Timer | None = None

    def __enter__(self) -> "Terminal":
        if self._live:
            said = progress.TextColumn("{task.description}", markup=False), progress.BarColumn()
            times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
            columns = progress.SpinnerColumn(), *said, progress.MofNCompleteColumn(), *times
            self._bar = progress.Progress(*columns, console=self.console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._settle()
        if self._bar:
            self._bar.stop()

    def _settle(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None

    def _print(self, text: str) -> None:
        self.console.print(printable(text), markup=False, emoji=False)
        self._said = time.monotonic()

    def __call__(self, event: Event) -> None:
        match event:
            case Note(text):
                self._print(f"note: {text}")
            case StageStarted(stage, text, total):
                if self._bar:
                    if self._task is not None:
                        self._bar.remove_task(self._task)
                    self._task = self._bar.add_task(printable(text), total=total)
                elif stage == "train":
                    self._print(text)
                else:
                    # Stages that end soon get no line.
                    self._settle()
                    self._late = threading.Timer(LATE_S, self._print, [text])
                    self._late.daemon = True
                    self._late.start()
            case StageAdvanced(stage, done, total):
                self._advance(f"{stage}: {done:,}{f' of {total:,}' if total else ''}", done, total)
            case StepDone(epoch, step, steps, loss, _):
                done = epoch + (step + 1) / steps
                self._advance(f"epoch {epoch + 1}, step {step + 1}/{steps}: loss {loss:.4f}", done, None)
            case EpochDone(epoch, epochs, loss, _, seconds, best):
                name, value = main_metric_of_epoch(vars(event)) or ("", None)
                called = "" if name == "accuracy" else f" {name}"
                validated = "" if value is None else f", validation{called} {value:.4f}{' (best)' if best else ''}"
                line = f"epoch {epoch + 1}/{epochs}: loss {loss:.4f}{validated}, {seconds:.2f} s"
                self._advance(line, epoch + 1, epochs, last=epoch + 1 == epochs)
            case StageEnded(_, _, text):
                self._settle()
                if text:
                    self._print(text)

    def _advance(self, line: str, done: float, total: float | None, *, last: bool = False) -> None:
        if self._bar and self._task is not None:
            self._bar.update(
                self._task, completed=int(done), description=printable(line), total=total or self._bar.tasks[-1].total
            )
        elif last or time.monotonic() - self._said >= QUIET_S:
            self._print(line)


@contextmanager
def console_events(emit: Emit | None, verbose: bool) -> Iterator[Emit]:
    """The listener of a call from Python: `emit` if given, else a `Terminal` if `verbose`.

    A notebook gets plain lines on standard output, since it shows standard error like an error message.
    """
    if emit or not verbose:
        yield emit or silent
        return
    in_notebook = type(sys.stdout).__module__.startswith("ipykernel")
    console = _Console(file=sys.stdout, highlight=False, soft_wrap=True, force_jupyter=False) if in_notebook else None
    with Terminal(console) as terminal:
        yield terminal
