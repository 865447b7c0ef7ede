"""Ends of ranks: what the task of a rank returns, as a report or as the reason for which a generation ends early."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Future
from distributed.client import FutureCancelledError

from ...storage.errors import Interrupted, MillraceError, PeerLostError, RunError, ShortHandedError
from ..training.trainer import RankReport

RESULT_S = 10.0
"""The result of a task that is done arrives within this time, or is lost."""


@dataclass(frozen=True)
class Failure:
    """Reason for which a generation ends early."""

    text: str
    final: bool
    """True if another try would fail again."""
    secondary: bool = False
    """True if it is only what one rank saw of another one's end."""
    exit_code: int = RunError.exit_code
    saved: bool = False
    """True if all ranks end by themselves, once the first one has written a checkpoint."""
    is_death: bool = False
    """True if the rank is gone, and others may go on without it."""

    def error(self) -> MillraceError:
        """The error with which the run ends."""
        if self.exit_code == Interrupted.exit_code:
            return Interrupted(self.text)
        error = RunError(self.text)
        error.exit_code = self.exit_code
        return error


def lost_rank(text: str) -> Failure:
    """The failure of a rank that is gone."""
    return Failure(text, final=False, is_death=True)


def outcome_of(task: Future, rank: int, process: str, report: Callable[..., object] = RankReport) -> object:
    """The end of a rank, read from its task, which is done.

    Args:
        task: of `rank_host.hold_rank`.
        rank: its number.
        process: words for its process that follow the number in a message.
        report: the kind of report that it makes if nothing fails.

    Returns:
        Its report, or a `Failure`.
    """
    try:
        # A result that is lost with its worker would never come.
        outcome = task.result(timeout=RESULT_S)
    except FutureCancelledError as e:
        # The scheduler is gone, or could not be reached for a moment and has forgotten the tasks.
        lost = "the connection to the Dask scheduler was lost" if e.reason == "scheduler-connection-lost" else str(e)
        return lost_rank(f"the task of rank {rank}{process} was lost: {lost}")
    except Exception as e:
        return lost_rank(f"the task of rank {rank}{process} was lost ({type(e).__name__}: {e})")
    if "report" in outcome:
        return report(**outcome["report"])
    if "failed" in outcome:
        return _failure(rank, outcome["failed"])
    tail = "; its log ends: " + " / ".join(outcome["log"][-3:]) if outcome["log"] else ""
    status = outcome["died"]
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return lost_rank(f"rank {rank}{process} {how}{tail if status >= 0 else ''}")


def _failure(rank: int, failed: Mapping[str, Any]) -> Failure:
    """The failure of a rank that raised; `failed` as `rank_main` tells it."""
    kind = failed["kind"]
    lost_peer, short = kind == PeerLostError.__name__, kind == ShortHandedError.__name__
    saved = short or kind == Interrupted.__name__
    where = f" ({' '.join(failed['where'])})" if failed["where"] else ""
    return Failure(
        failed["text"] if saved else f"rank {rank} failed: {failed['text']}{where}",
        final=not (lost_peer or short),
        secondary=lost_peer,
        exit_code=failed["exit_code"],
        saved=saved,
    )
