"""The Dask task that holds one rank: it starts the rank's process, passes its messages on, and ends it.

A rank is a process of its own, with its own threads and allocator, so that its death, or a collective that hangs, costs
no worker. When the worker dies, the process's standard input closes, and it ends itself. When the driver dies, a rank
that answers ends itself; the task ends one that does not.
"""

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPIDLE, create_connection
from typing import Any

from distributed import Event, get_client, get_worker, secede

from ...storage.store.own_files import own_file
from ..telemetry.heartbeat import METRIC
from .rank_main import ABORTED, ORPHANED
from .rank_server import RANK_MAIN, ForkedRank, forked, own_environment

ORDER_S = 5.0
"""Time limit of one wait for the scheduler's order to kill the rank."""
KEEPALIVE_S = 60
"""Silence after which the system asks whether the driver's machine is there."""
GRACE_S = 2.0
"""Time that a rank has to end by itself before it is killed."""
LINGER_S = 15.0
"""Time for which a rank that has ended stays in its worker's heartbeats: a busy scheduler reads one of many."""
LOG_TAIL = 30
"""Last lines of a dead rank's log that are reported."""


def hold_rank(spec: dict[str, Any], topic: str, kill: str) -> dict[str, Any]:
    """Run one rank to its end.

    Args:
        spec: the fields of `rank_main.RankSpec`.
        topic: topic of the Dask events that carry the rank's messages.
        kill: name of the Dask event that ends the rank.

    Returns: ``{"report": ...}`` of a rank that finished, ``{"failed": ...}`` of one that raised, ``{"died": exit
        status, "log": tail}``.
    """
    secede()  # a long task must not keep the worker's threads from sampling
    rank = _RankProcess(get_worker(), spec, topic)
    try:
        rank.start()
        _wait(rank.child, Event(kill, client=get_client()), spec["meeting"])
    finally:
        status = rank.end()
    if rank.outcome:
        return rank.outcome
    return {"died": status, "log": rank.log.read_text(errors="replace").splitlines()[-LOG_TAIL:]}


class _RankProcess:
    """The process of a rank, whose messages the worker passes on."""

    def __init__(self, worker: Any, spec: dict[str, Any], topic: str) -> None:
        self._worker, self._spec, self._topic = worker, spec, topic
        self.outcome: dict[str, Any] = {}
        """The rank's last message: its report, or its error."""
        self.log = Path(spec["out"]) / "logs" / f"rank-{spec['rank']}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with own_file(self.log) as errors:
            errors.write(f"--- generation {spec['generation']}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
            errors.flush()
            environment = {**own_environment(), **spec["environment"]}
            self.child = forked(worker.ip, environment, errors) or subprocess.Popen(
                [sys.executable, "-m", RANK_MAIN, worker.ip],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                # An interrupt at the terminal is for the driver, which lets the ranks write a checkpoint.
                start_new_session=True,
            )
        self._state: dict[str, Any] = {
            "run": topic,
            "rank": spec["rank"],
            "generation": spec["generation"],
            "beats": 0,
            "pulse": {},
            "ended": "",
        }
        """State of the rank, as the worker's heartbeats carry it."""
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        """Tell the rank what to do, and everybody that it runs."""
        self._listener.start()
        assert self.child.stdin is not None
        # A rank that died at once has an exit status, and a log that says why.
        with suppress(BrokenPipeError):
            self.child.stdin.write(json.dumps(self._spec) + "\n")
            self.child.stdin.flush()
        self._pass_on({"pid": self.child.pid})
        _show(self._worker, self._state)

    def _pass_on(self, message: dict[str, Any]) -> None:
        if message.get("event") == "Pulse":
            self._state["pulse"] = message
        # Dask adds fields of its own to an event: the message stays apart.
        envelope = {"said": message, "rank": self._spec["rank"], "generation": self._spec["generation"]}
        self._worker.log_event(self._topic, envelope)

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            message = json.loads(line)
            # Counted from the first heartbeat on: before that, a rank may read data in silence.
            self._state["beats"] += "shown" in message or message.get("event") == "Pulse"
            if message.keys() & {"report", "failed"}:
                self.outcome.update(message)
            elif "shown" in message:
                self._state["pulse"] = message["shown"]
            else:
                self._pass_on(message)

    def end(self) -> int:
        """Kill the process if it still runs. Returns its exit status."""
        stopped = self.child.poll() is None
        if stopped:
            self.child.kill()
        status = self.child.wait()
        if self._listener.is_alive():
            self._listener.join(timeout=5)
        self._state["ended"] = _ending(self.outcome, status, stopped)
        return status


def _show(worker: Any, state: dict[str, Any]) -> None:
    """Add the rank's state to the worker's heartbeats, for the driver and the dashboard."""
    vars(worker).setdefault("millrace_ranks", []).append((state, []))
    worker.metrics[METRIC] = _ranks_of


def _ranks_of(worker: Any) -> list[dict[str, Any]]:
    """States of the worker's ranks, without those that ended `LINGER_S` ago."""
    now, records = time.monotonic(), []
    for entry in list(worker.millrace_ranks):
        state, first_told = entry
        record = dict(state)
        if record["ended"] and not first_told:
            first_told.append(now)
        if first_told and now - first_told[0] > LINGER_S:
            worker.millrace_ranks.remove(entry)
        else:
            records.append(record)
    return records


def _ending(outcome: dict[str, Any], status: int, stopped: bool) -> str:
    """A few words for the way in which a rank ended."""
    if "report" in outcome:
        return "done"
    if "failed" in outcome:
        return "stopped" if outcome["failed"]["kind"] in ("Interrupted", "ShortHandedError") else "failed"
    if stopped or status in (ORPHANED, ABORTED):
        return "stopped"
    return f"killed by signal {-status}" if status < 0 else f"ended with status {status}"


def _wait(child: subprocess.Popen[str] | ForkedRank, kill: Event, meeting: list[str | int]) -> None:
    """Wait until the process ends, or for `GRACE_S` once the event is set or the driver is gone. Nothing polls, since
    the cores belong to the ranks.

    Args:
        child: the rank.
        kill: the driver's order to end it.
        meeting: the driver's store: see `rendezvous.Meeting.address`.

    Raises:
        OSError: the scheduler does not answer any more.
    """
    ended, over = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def reap() -> None:
        child.wait()
        ended.set()
        over.set()

    def listen() -> None:
        try:
            while not ended.is_set() and not kill.wait(ORDER_S):
                pass
        except Exception as e:
            failures.append(e)
        over.set()

    def follow_driver() -> None:
        # Of a store in a file there is no port, and its workers end with the driver.
        with suppress(IndexError, OSError), create_connection((str(meeting[0]), int(meeting[1])), ORDER_S) as line:
            # What lies between forgets lines on which nothing is said; and a machine that is gone says nothing.
            line.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
            line.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S)
            with suppress(OSError):
                while not ended.is_set():
                    with suppress(TimeoutError):
                        line.recv(1)
                        break
            over.set()

    for task in (reap, listen, follow_driver):
        threading.Thread(target=task, daemon=True).start()
    over.wait()
    if failures and not ended.is_set():
        raise failures[0]
    ended.wait(GRACE_S)
