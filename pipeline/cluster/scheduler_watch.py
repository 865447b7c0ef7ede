"""Calls to a Dask scheduler that may be frozen: the driver never waits for it without a limit."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from distributed import Client

from ...storage.errors import RunError
from ..config.schema import ClusterOptions
from ..machine.time_limit import in_time
from .unresponsive import Silence

SCHEDULER = "the Dask scheduler"
ASK_S = 2.0
"""The driver asks for the workers' records this often."""
CANCEL_S = 0.5
SILENCE_LIMIT_S = 60.0
"""A silent scheduler is given up after this time, unless `cluster.silence_limit_s` is set."""


class SchedulerWatch:
    """Asks the scheduler for the records of its workers at intervals. Warns of a scheduler that is silent, and gives it
    up after a limit.

    Args:
        client: of the cluster.
        cluster: has the times, and says whose scheduler it is.
        note: called with a sentence for the user.
        clock: in seconds.
    """

    def __init__(
        self,
        client: Client,
        cluster: ClusterOptions,
        note: Callable[[str], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock or WatchedTime()
        self._limit_s = SILENCE_LIMIT_S if cluster.silence_limit_s is None else cluster.silence_limit_s
        self._silence = Silence(cluster.slow_peer_warning_s, note, self._clock)
        self._asked: Future[dict[str, Any]] | None = None
        self._asked_at = float("-inf")
        self._silent_since: float | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the first question that has no answer yet."""
        return 0.0 if self._silent_since is None else self._clock() - self._silent_since

    def poll(self, every_s: float = ASK_S) -> dict[str, object] | None:
        """Take in an answer, or ask if it is time to. Does not wait.

        Returns:
            The workers' records by address, as `Scheduler.identity` gives them; None where there is no new answer.

        Raises:
            RunError: the scheduler has been silent for too long, or the connection to it is lost.
        """
        now = self._clock()
        records = self._answer()
        if records is not None:
            self._silent_since = None
        elif self._asked is None and now - self._asked_at >= every_s:
            self._asked, self._asked_at = ask(self._client), now
            if self._silent_since is None:
                self._silent_since = now
        self._silence.update({SCHEDULER: now if self._silent_since is None else self._silent_since})
        if self.silent_s > self._limit_s:
            raise lost_scheduler(f"no sign of life for {self.silent_s:.0f} s", self._client)
        return records

    def _answer(self) -> dict[str, object] | None:
        if self._asked is None or not self._asked.done():
            return None
        answer, self._asked = self._asked, None
        try:
            return answer.result()["workers"]
        except (OSError, CancelledError, TimeoutError) as e:
            # A new connection to a frozen scheduler times out. One that is dead is given up by the client.
            if self._client.status == "closed":
                raise lost_scheduler(type(e).__name__, self._client) from e
            return None

    def close(self) -> None:
        """Drop a question that is open."""
        if self._asked is not None:
            self._asked.cancel()


class WatchedTime:
    """A clock that advances only while somebody looks at it: time for which this process itself was suspended does not
    count as anybody's silence."""

    MOST_S = 5.0
    """Between two looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last, self._total = clock, clock(), 0.0

    def __call__(self) -> float:
        """Seconds since the first look."""
        now = self._clock()
        self._total += min(now - self._last, self.MOST_S)
        self._last = now
        return self._total


def ask(client: Client) -> Future[dict[str, Any]]:
    """Ask the scheduler who it is and which workers it has, without waiting."""
    scheduler: Any = client.scheduler
    loop: Any = client.loop
    return asyncio.run_coroutine_threadsafe(scheduler.identity(n_workers=-1), loop.asyncio_loop)


def cancel(client: Client, futures: list[Any]) -> None:
    """Cancel tasks, if that can be done soon."""
    if futures:
        with suppress(TimeoutError, OSError, CancelledError):
            in_time(CANCEL_S, client.cancel, futures)


def lost_scheduler(why: str, client: Client) -> RunError:
    """The error for a scheduler that no longer answers: the run's own, or one that was running before."""
    again = "" if client.cluster is not None else "start it again, then "
    return RunError(f"the Dask scheduler no longer answers ({why}); {again}resume with --resume")
