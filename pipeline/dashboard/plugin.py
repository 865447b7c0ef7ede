"""Scheduler plugin: listens to workers and drivers, and adds ``/millrace`` and ``/millrace.json`` to Dask's dashboard.

Dask has no public way to add a page, so this uses its internals (as of distributed 2026.7 and 2026.8). If they do not
fit, nothing is added, and runs continue without the page.
"""

import json
import secrets
from collections.abc import Iterable
from html import escape
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback
from tornado.web import Application, RequestHandler

from ..telemetry.heartbeat import METRIC
from .gate import guard, known_hosts
from .history import History
from .page import body, whole
from .snapshot import record

PAGE = "millrace"
TOPIC = "millrace"
"""Topic of Dask events under which drivers report on their runs."""
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

    def remove_worker(self, scheduler: object, worker: str, **_: object) -> None:
        """End the ranks of a worker that is gone."""
        self._history.end_worker(worker)

    def remove_client(self, scheduler: object, client: str) -> None:
        """End the runs of a client that is gone; it may have been a driver."""
        self._history.end_client(client)

    async def before_close(self) -> None:
        """Stop with the scheduler."""
        self._clock.stop()


def opened(hosts: Iterable[str], dask_scheduler: Any) -> tuple[str, str]:
    """Let requests for the page name these hosts. Returns why there is no page, or nothing, and the token that requests
    must carry. For `Client.run_on_scheduler`, which names the argument, and whose callers can run any code there."""
    page = dask_scheduler.plugins[MillracePage.name]
    page.hosts.update(hosts)
    return page.trouble, page.token


class _Answer(RequestHandler):
    """Answers with what the history says: all as JSON, the page, or its changing part."""

    def initialize(self, history: History, token: str, tabs: list[str]) -> None:
        self.history, self.token, self.tabs = history, token, tabs

    # pyrefly: ignore[bad-override-mutable-attribute]
    def get(self) -> None:
        self.set_header("Cache-Control", "no-store")
        if self.request.path.endswith(".json"):
            self.set_header("Content-Type", "application/json")
            self.write(json.dumps(record(self.history), allow_nan=False))
            return
        run, over = self.get_query_argument("run", ""), self.get_query_argument("over", "recent")
        try:
            if self.get_query_argument("part", ""):
                self.write(body(self.history, self.token, run, over))
            else:
                self.write(whole(self.history, self.token, self.tabs, run, over))
        except Exception as e:
            # Tornado would print it once a second in the terminal of the scheduler.
            said = f"This page has failed: {type(e).__name__}: {e}. The run continues; {PAGE}.json may say more."
            self.write(f"<section><p>{escape(said)}</p></section>")


def _serve(scheduler: Any, history: History, token: str, hosts: set[str]) -> None:
    from bokeh.server.tornado import BokehTornado
    from distributed.dashboard.scheduler import template_variables

    pages, server = template_variables(scheduler), scheduler.http_application
    theirs = next((a for a in server.applications if isinstance(a, BokehTornado)), None)
    if not theirs:
        raise RuntimeError(NO_DASHBOARD)
    tabs: list[str] = pages["pages"]
    if PAGE not in tabs:
        # Insert before Dask's own front page.
        tabs.insert(1, PAGE)
    about = {"history": history, "token": token, "tabs": tabs}
    ours = Application([(rf"{theirs.prefix}/{PAGE}(?:\.json)?", _Answer, about)])
    known, any_address = known_hosts(scheduler)
    hosts |= known
    guard(ours, token, hosts, any_address)
    server.add_application(ours)
