"""Driver's side of the page: adds it to the scheduler, and sends what no worker knows. Its failures end no run."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask.config
from distributed import Client

from ..config.systems import SYSTEMS
from ..machine.time_limit import in_time
from ..setup.prepare import Prepared
from ..telemetry import events
from ..telemetry.events import Emit, Event, Note, ending
from ..telemetry.metrics_file import finite

HOSTS = "millrace.dashboard-hosts"
"""Key of Dask's configuration for further names that the page answers to, while a run or command is on a cluster."""
BEGIN_S = 20.0
"""The page is there within this time, or the run goes on without one."""
EVERY_S = 0.5
"""Seconds between two messages on the progress of a stage."""
END_S = 2.0
"""Longest wait for the last messages of a run to reach the scheduler."""


def show_run(client: Client, prepared: Prepared, out: Path, run: str, emit: Emit) -> AbstractContextManager[Emit]:
    """`show` a run, in the folder `out`."""
    return show(client, partial(_about, client, prepared, out), run, emit, "this run")


@contextmanager
def show(client: Client, about: Callable[[], dict[str, Any]], run: str, emit: Emit, what: str) -> Iterator[Emit]:
    """Show a run or a command on the dashboard, if possible, while the block runs.

    Args:
        client: the cluster's client.
        about: returns what it is, see `history.RunState`; called if there is a page.
        run: its name; that of a run is in its ranks' messages.
        emit: called with a note with the page's address, or the reason why there is none, and with all events of the
            block.
        what: it, in the words of that note.

    Yields:
        Function to call with the run's events.
    """
    heard = None
    try:
        from .plugin import NO_DASHBOARD, PAGE, TOPIC

        why, token = in_time(BEGIN_S, _register, client)
        if why:
            # A scheduler without a dashboard was started so on purpose; a note would say nothing new.
            if NO_DASHBOARD not in why:
                emit(_no_page(what, why))
        else:
            address = f"{str(client.dashboard_link).removesuffix('/status')}/{PAGE}"
            emit(Note(f"{what}: {address}?token={token}"))
            heard = _Publisher(client, TOPIC, run, emit)
            heard.publish(about=about())
    except Exception as e:
        emit(_no_page(what, f"{type(e).__name__}: {e}"))
    if not heard:
        yield emit
        return
    with ending(heard.end):
        yield heard


def _register(client: Client) -> tuple[str, str]:
    """Put the page on the scheduler; see `plugin.opened`."""
    from .plugin import MillracePage, opened

    client.register_plugin(MillracePage())
    # A link that a user has configured goes through a proxy, which hands on its own name.
    hosts = [*dask.config.get(HOSTS, []), urlsplit(str(client.dashboard_link)).hostname or ""]
    why, token = client.run_on_scheduler(opened, hosts)
    return str(why), str(token)


def _no_page(what: str, why: str) -> Note:
    needs = "it needs this version of Millrace where the scheduler runs"
    return Note(f"the dashboard has no page for {what} ({why}); {needs}")


def _about(client: Client, prepared: Prepared, out: Path) -> dict[str, Any]:
    job, is_validated = prepared.job, bool(prepared.outline.splits["val"])
    return {
        "client": client.id,
        "out": str(out),
        **{name: getattr(prepared, name).name for name in ("system", "model", "dataset")},
        "exchanges": SYSTEMS.find(prepared.system.name).exchanges,
        "ranks": job.ranks,
        "epochs": job.epochs,
        "producers": job.cluster.producers,
        "evaluate_every": job.train.evaluate_every if is_validated else None,
    }


class _Publisher:
    """Passes events on, and sends some to the scheduler from a thread: a slow scheduler does not delay the run."""

    def __init__(self, client: Client, topic: str, run: str, emit: Emit) -> None:
        self._client, self._topic, self._run, self._emit = client, topic, run, emit
        self._steps, self._advanced = -1, 0.0
        self._sending_since: float | None = None
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="dashboard", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        heard = isinstance(event, events.EpochDone | Note | events.QueueLevel | events.StageStarted | events.StageEnded)
        if isinstance(event, events.StepDone):
            # Steps are too many to send: only those that change the number of steps in an epoch.
            heard, self._steps = event.steps_per_epoch != self._steps, event.steps_per_epoch
        if isinstance(event, events.StageAdvanced):
            now = time.monotonic()
            if heard := event.done == event.total or now - self._advanced >= EVERY_S:
                self._advanced = now
        if heard:
            fields = {key: finite(value) for key, value in vars(event).items()}
            self.publish(said={"event": type(event).__name__, **fields})
        self._emit(event)

    def publish(self, **message: object) -> None:
        """Queue a message: see `history.History.record_driver`."""
        self._messages.put({"run": self._run, **message})

    def end(self, how: str) -> None:
        """Wait briefly until the last messages are sent, unless one has been under way for as long already."""
        self.publish(ended=how)
        self._messages.put(None)
        since = self._sending_since
        if since is None or time.monotonic() - since < END_S:
            self._thread.join(END_S)

    def _send(self) -> None:
        while (message := self._messages.get()) is not None:
            self._sending_since = time.monotonic()
            with suppress(Exception):
                self._client.log_event(self._topic, message)
            self._sending_since = None
