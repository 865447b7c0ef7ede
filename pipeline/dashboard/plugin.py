"""Scheduler plugin: listens to workers and drivers, and adds ``/millrace`` and ``/millrace.json`` to Dask's dashboard.

Dask has no public way to add a page, so this uses its internals (as of distributed 2026.7 and 2026.8). If they do not
fit, nothing is added, and runs continue without the page.
"""

import json
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any

import dask.config
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import IOLoop, PeriodicCallback
from tornado.web import RequestHandler

from ..telemetry.heartbeat import METRIC
from .gate import guard, known_hosts
from .history import History
from .snapshot import record

PAGE = "millrace"
TOPIC = "millrace"
"""Topic of Dask events under which drivers report on their runs."""
BOKEH = "distributed.scheduler.dashboard.bokeh-application"
NO_DASHBOARD = "the scheduler runs without its dashboard"
EVERY_S = 0.5
"""Seconds between readings, as often as workers of a small cluster report."""


class MillracePage(SchedulerPlugin):
    """Plugin registered by the driver of a run, once for each scheduler."""

    name = "millrace-page"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Add the page, or set `trouble` to the reason why it cannot be added."""
        self.trouble, self._scheduler, self._history = "", scheduler, History()
        self.token, self.hosts = secrets.token_urlsafe(16), set[str]()
        self._clock = PeriodicCallback(self._poll, EVERY_S * 1000)
        try:
            _serve(scheduler, self._history, self.token, self.hosts)
        except Exception as e:
            self.trouble = f"{type(e).__name__}: {e}"
            return
        self._clock.start()

    def _poll(self) -> None:
        for address, worker in self._scheduler.workers.items():
            if ranks := worker.metrics.get(METRIC):
                self._history.record_worker(address, ranks)
        self._history.tick()

    def log_event(self, topic: str, msg: Any) -> None:
        """Record a driver's message."""
        if topic == TOPIC and not self.trouble:
            self._history.record_driver(msg)

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        """End the ranks of a worker that is gone."""
        self._history.end_worker(worker)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End the runs of a client that is gone; it may have been a driver."""
        self._history.end_client(client)

    async def before_close(self) -> None:
        """Stop with the scheduler."""
        self._clock.stop()


def trouble(dask_scheduler: Any) -> str:
    """Reason why there is no page, or an empty text. For `Client.run_on_scheduler`, which names the argument."""
    return dask_scheduler.plugins[MillracePage.name].trouble


def token(dask_scheduler: Any) -> str:
    """Token that requests for the page must carry. For `Client.run_on_scheduler`, whose callers can run any code on the
    scheduler anyway."""
    return dask_scheduler.plugins[MillracePage.name].token


def allow(hosts: Iterable[str], dask_scheduler: Any) -> None:
    """Let requests for the page name these hosts. For `Client.run_on_scheduler`."""
    dask_scheduler.plugins[MillracePage.name].hosts.update(hosts)


class _Json(RequestHandler):
    def initialize(self, history: History) -> None:
        self.history = history

    # pyrefly: ignore[bad-override-mutable-attribute]
    def get(self) -> None:
        """Send everything that the page shows as JSON."""
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.write(json.dumps(record(self.history), allow_nan=False))


def _serve(scheduler: Any, history: History, token: str, hosts: set[str]) -> None:
    from bokeh.server.tornado import BokehTornado
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables

    from .page import show

    pages, server = template_variables(scheduler), scheduler.http_application
    theirs = next((a for a in server.applications if isinstance(a, BokehTornado)), None)
    if theirs is None:
        raise RuntimeError(NO_DASHBOARD)
    prefix = theirs.prefix
    # Dask passes these on to Bokeh.
    with dask.config.set({f"{BOKEH}.sign_sessions": True, f"{BOKEH}.secret_key": token.encode()}):
        ours: Any = BokehApplication(
            {f"/{PAGE}": partial(_document, history, show)}, scheduler, prefix=prefix, template_variables=pages
        )
    tabs: list[str] = pages["pages"]
    ours.initialize(IOLoop.current())
    ours.add_handlers(r".*", [(rf"{prefix}/{PAGE}\.json", _Json, {"history": history})])
    known, any_address = known_hosts(scheduler)
    hosts |= known
    guard(ours, token, hosts, any_address)
    ours.start()
    server.add_application(ours)
    if PAGE not in tabs:
        # Insert before Dask's own front page.
        tabs.insert(1, PAGE)


def _document(history: History, show: Any, scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    show(history, doc, extra)
