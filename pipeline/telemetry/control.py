"""What a run tells its user while it works, and is told."""

from collections.abc import Callable
from dataclasses import dataclass

from .events import Emit, silent


def never() -> bool:
    """No request."""
    return False


@dataclass(frozen=True)
class Control:
    """Events out, requests in."""

    emit: Emit = silent
    """Called with every event."""
    stop: Callable[[], bool] = never
    """Asked between steps; true ends the run with a checkpoint."""
    save: Callable[[], bool] = never
    """Asked between steps; true writes a checkpoint, once."""
