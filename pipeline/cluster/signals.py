"""What signals ask of a command: to stop, and when; or to write a checkpoint."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from ..telemetry.events import Event, StageStarted, StepDone

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; what systemd, Slurm and Kubernetes send; the terminal is gone."""
SAVING = getattr(signal, "SIGUSR1", None)
"""What ``sbatch --signal=USR1@60`` sends before a job's time is over."""


class Requests:
    """What a run has been asked to do so far.

    A run that is taking steps is stopped at the next one, with a checkpoint. At any other time (opening, partitioning,
    starting ranks, the last evaluation) there is nothing to save that is not saved already, and it ends on the spot. It
    is called with the run's events to know which time it is.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.steps = False
        """Whether steps are being taken now."""
        self._saves = 0

    def stop(self) -> bool:
        """Whether the run is to stop."""
        return self.stopping

    def save(self) -> bool:
        """Whether a checkpoint was asked for since the last call."""
        asked, self._saves = self._saves, 0
        return asked > 0

    def ask_to_save(self) -> None:
        """Let the next call of `save` say so."""
        self._saves += 1

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone) or (isinstance(event, StageStarted) and event.stage == "sample"):
            self.steps = True
        elif isinstance(event, StageStarted) and event.stage == "evaluate":
            self.steps = False


_interrupted = threading.Event()


def was_interrupted() -> bool:
    """Whether a signal has ended what runs under `ended_by_signals`: whatever error follows is a consequence of
    that."""
    return _interrupted.is_set()


def end_on_the_spot(number: int, frame: FrameType | None) -> NoReturn:
    """Handler: end the command as Ctrl-C does, by an exception that lets everything be cleaned up."""
    if _is_importing(frame):
        # Modules that are half imported cannot be relied on, not even to clean up.
        _end_at_once(number, frame)
    _interrupted.set()
    for s in STOPPING:
        # Cleaning up takes a moment, and whoever is impatient asks again.
        signal.signal(s, _end_at_once)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"millrace: interrupted; what was committed stays\n")
    os._exit(130)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let every signal of `STOPPING` end what runs here as Ctrl-C does; but for SIGHUP where it is ignored, as under
    ``nohup``."""
    _interrupted.clear()
    with _handled(dict.fromkeys(STOPPING, end_on_the_spot)):
        yield


@contextmanager
def heeded(say: Callable[[str], None]) -> Iterator[Requests]:
    """Let signals ask a run to stop or to save; the second request to stop ends it on the spot.

    Args:
        say: told what a signal leads to.
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

    with _handled({**dict.fromkeys(STOPPING, stop), **({SAVING: save} if SAVING is not None else {})}):
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
    """In a worker or a rank: do nothing on signals that reach a whole tree of processes.

    The driver has them too. It tells the others what to do, and they have to last until a checkpoint is written. They
    end with it: each has a lifeline.
    """
    _ignore_signals()


def _ignore_signals() -> None:
    for s in STOPPING + ((SAVING,) if SAVING is not None else ()):
        signal.signal(s, signal.SIG_IGN)


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Start processes and threads that never see the signals of `STOPPING` and `SAVING`; those that come meanwhile are
    dealt with after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING + ((SAVING,) if SAVING is not None else ()))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def quiet_start() -> None:
    """Until a command's own handlers are there: end without a traceback, with the exit code of an interrupt; let
    `SAVING` pass."""
    for s in STOPPING:
        if not _is_under_nohup(s):
            signal.signal(s, _end_at_once)
    if SAVING is not None:
        # There is nothing to save yet, and the signal's own default would end the command.
        signal.signal(SAVING, lambda number, frame: None)


def quiet_end() -> None:
    """Ignore signals from here on: the command is done, and its exit code says how it went.

    While the interpreter shuts down it gives signals with Python handlers their defaults back, and those kill. Ignored
    ones stay ignored.
    """
    _ignore_signals()
