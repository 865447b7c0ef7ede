"""Signals to a command: requests to stop it, or to write a checkpoint."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from ..machine.deadline import end_now, ended_in_time
from ..telemetry.events import Event, StageStarted, StepDone

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Sent by Ctrl-C; by systemd, Slurm and Kubernetes; by a terminal that closes."""
SAVING = tuple(s for s in signal.Signals if s.name == "SIGUSR1")
"""Sent by ``sbatch --signal=USR1@60`` before a job's time is over."""


class Requests:
    """Requests to a run.

    A run that is taking steps stops at the next one, with a checkpoint. At any other time (opening, partitioning,
    starting ranks, the last evaluation) everything worth saving is saved already, and it ends at once. Call it with the
    run's events, which tell the two apart.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.steps = False
        """True while steps are being taken."""
        self._saves = 0

    def stop(self) -> bool:
        """True if the run is to stop."""
        return self.stopping

    def save(self) -> bool:
        """True if a checkpoint was requested since the last call."""
        asked, self._saves = self._saves, 0
        return asked > 0

    def ask_to_save(self) -> None:
        """Request a checkpoint: the next call of `save` returns true."""
        self._saves += 1

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone) or (isinstance(event, StageStarted) and event.stage == "sample"):
            self.steps = True
        elif isinstance(event, StageStarted) and event.stage == "evaluate":
            self.steps = False


_interrupted = threading.Event()


def was_interrupted() -> bool:
    """True if a signal has ended the block of `ended_by_signals`; errors that follow are its consequences."""
    return _interrupted.is_set()


def end_on_the_spot(number: int, frame: FrameType | None) -> NoReturn:
    """Signal handler that ends the command as Ctrl-C does, by an exception, so that everything is cleaned up."""
    if _is_importing(frame):
        # Half-imported modules cannot clean up.
        _end_at_once(number, frame)
    _interrupted.set()
    for s in STOPPING:
        # Cleaning up takes a moment; a second signal ends it.
        signal.signal(s, _end_at_once)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    with suppress(Exception):  # what it needs may be half-imported
        end_now()
    os.write(2, b"millrace: interrupted; what was committed stays\n")
    os._exit(130)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Context in which each signal of `STOPPING` acts like Ctrl-C, except SIGHUP where it is ignored, as under
    ``nohup``."""
    _interrupted.clear()
    with ended_in_time(STOPPING), _handled(dict.fromkeys(STOPPING, end_on_the_spot)):
        yield


@contextmanager
def heeded(say: Callable[[str], None]) -> Iterator[Requests]:
    """Context in which signals ask a run to stop or to save; the second request to stop ends it at once.

    Args:
        say: called with the consequence of a signal, for the user.
    """
    requests = Requests()

    def stop(number: int, frame: FrameType | None) -> None:
        if requests.stopping or not requests.steps:
            end_on_the_spot(number, frame)
        requests.stopping = True
        say("stopping at the next step; interrupt again to stop now")

    def save(number: int, frame: FrameType | None) -> None:
        requests.ask_to_save()
        say(
            "writing a checkpoint at the next step"
            if requests.steps
            else "a checkpoint is written once the first step is done"
        )

    with _handled(dict.fromkeys(STOPPING, stop) | dict.fromkeys(SAVING, save)):
        yield requests


@contextmanager
def _handled(handlers: dict[Any, Any]) -> Iterator[None]:
    handlers = {s: h for s, h in handlers.items() if not _is_under_nohup(s)}
    before = {s: signal.signal(s, handler) for s, handler in handlers.items()}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _is_under_nohup(s: Any) -> bool:
    return s == getattr(signal, "SIGHUP", None) and signal.getsignal(s) is signal.SIG_IGN


def leave_signals_to_driver() -> None:
    """Ignore signals in a worker or a rank, since they may reach a whole tree of processes.

    The driver gets them too and gives orders; the others must last until a checkpoint is written. They end with the
    driver.
    """
    for s in STOPPING + SAVING:
        signal.signal(s, signal.SIG_IGN)


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Context in which new processes and threads block the signals of `STOPPING` and `SAVING`. This thread handles
    those that arrive after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING + SAVING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def quiet_start() -> None:
    """Handle signals until a command has installed its own handlers: end without a traceback, with the exit code of an
    interrupt; ignore `SAVING`."""
    for s in STOPPING:
        if not _is_under_nohup(s):
            signal.signal(s, _end_at_once)
    for s in SAVING:
        # There is nothing to save yet, and the default action would end the command.
        signal.signal(s, lambda number, frame: None)


def quiet_end() -> None:
    """Ignore signals from here on: the command is done, and its exit code is decided.

    While the interpreter shuts down, signals with Python handlers get their default action back, which kills. Ignored
    signals stay ignored.
    """
    leave_signals_to_driver()
