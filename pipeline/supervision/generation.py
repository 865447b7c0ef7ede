"""One generation: a try of all ranks, from their start to their end.

Each rank is the child of a Dask task (`rank_host`). Ranks meet in a store of the driver (`rendezvous`) under a prefix
of the generation, so that nothing of a dead generation reaches the next. When a rank is lost, the others are ended; or,
if they can do without it for a while and are to, are told who is left (`stages.comm.survivors`) and end with their
phase.
"""

import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from distributed import Event, Future
from torch.distributed.distributed_c10d import Store

from ...stages.comm.survivors import here
from ...storage.errors import Interrupted, RunError
from ..cluster.dask_cluster import wait_for_worker
from ..cluster.sampling_flow import Flow
from ..cluster.scheduler_watch import ASK_S, cancel
from ..cluster.unresponsive import Silence, beats
from ..machine.time_limit import in_time
from ..telemetry.events import QueueLevel
from ..telemetry.heartbeat import METRIC
from .cluster_run import ClusterRun
from .open_flow import open_flow
from .rank_events import RankEvents
from .rank_failures import Failure, lost_rank, outcome_of
from .rank_tasks import assign_ranks, start_rank

WATCH_S = 0.1
"""Interval at which the driver looks at its ranks."""
LEVEL_S = 0.5
"""Interval between two events that tell how full the queue is."""
CAUSE_S = 2.0
"""Longest wait for the cause of an end: ranks often report a lost peer before the driver sees what killed it."""
END_S = 5.0
"""Longest wait for ranks to end once they were told to."""
END_UNSEEN_S = 2.0
"""The same while the scheduler does not answer, and cannot say that they have ended."""
STOP_UNSEEN_S = 3.0
"""Time for a checkpoint when a run is to stop and the scheduler does not answer."""
MEET_S = 120.0
"""Longest wait for ranks that go on without a lost one to be ready for it: about one step."""
STOP_S = 600.0
"""Longest wait for a step and a checkpoint after a request to stop."""


class Generation:
    """All ranks of a run, once.

    Args:
        run: what the generations share.
        number: counts the generations.
        store: of this generation, in which ranks meet and find orders.
    """

    def __init__(self, run: ClusterRun, number: int, store: Store) -> None:
        self._run, self._store, self.number = run, store, number
        self.events = RankEvents(run.messages, number, run.emit)
        self._silence = Silence(run.job.cluster.slow_peer_warning_s, run.note)
        self.addresses: list[str] = []
        """The worker that holds each rank."""
        self.futures: dict[int, Future] = {}
        """The task of each rank."""
        self.reports: dict[int, Any] = {}
        self.failures: list[Failure] = []
        """Reasons to end the generation."""
        self.lost: dict[int, Failure] = {}
        """Ranks without which the others go on."""
        self._announced = self._membership = 0
        self._meet_by = math.inf
        self._sampling: set[str] = set()
        self._level_at = 0.0
        self.stopping_at: float | None = None
        """Time of the request to stop."""
        self._saves = 0

    def run(self) -> list[Any] | Failure:
        """Start the ranks and watch them.

        Returns:
            Their reports, or the reason for which they ended early.
        """
        run = self._run
        wait_for_worker(run.client)
        placed = assign_ranks(run, self.number)
        self.addresses, self._sampling = placed.addresses, set(placed.sampling)
        flow = open_flow(run, self.number, placed.sampling)
        self.futures = {r: start_rank(run, self.number, r, placed, self._kill_event) for r in range(run.ranks)}
        try:
            while len(self.reports) < run.ranks:
                if flow is not None:
                    flow.advance()
                    self._emit_level(flow)
                self.events.hear(self._first(), flow)
                self.obey()
                self.poll()
                self.adjust_members()
                if self.failures:
                    return self.cause()
                time.sleep(WATCH_S)
            self.events.hear(self._first(), flow)
            return [self.reports[r] for r in range(run.ranks)]
        finally:
            self.stop_all()
            if flow is not None:
                flow.close()
                run.emit(QueueLevel(**flow.level))
                run.sample_s += flow.seconds

    def _emit_level(self, flow: Flow) -> None:
        if time.monotonic() - self._level_at >= LEVEL_S:
            self._level_at = time.monotonic()
            self._run.emit(QueueLevel(**flow.level))

    def _left(self) -> list[int]:
        return [r for r in range(self._run.ranks) if r not in self.lost]

    def _running(self) -> list[int]:
        """Ranks of which no end is known."""
        return [r for r in self._left() if r not in self.reports]

    def _first(self) -> int:
        return min(self._left(), default=0)

    def _name(self, rank: int) -> str:
        return f"rank {rank}{self.events.process(rank)}"

    # Orders to ranks

    def obey(self) -> None:
        """Pass requests to stop or to save on to the ranks."""
        if self.stopping_at is not None:
            unseen_s = min(self._run.watch.silent_s, time.monotonic() - self.stopping_at)
            if unseen_s > STOP_UNSEEN_S:
                self._interrupt("interrupted while the Dask scheduler does not answer")
        elif self._run.stop():
            self.stopping_at = time.monotonic()
            if self.number and not self.events.stepping:
                # Ranks that were to start again have nothing to save.
                self._interrupt("interrupted")
            self._order("stop")
        elif self._run.save():
            self._saves += 1
            self._order(f"save {self._saves}")

    def _interrupt(self, text: str) -> None:
        text = f"{text}; {self._run.resume_point()}"
        self._run.note(text)
        self.failures.append(Failure(text, final=True, exit_code=Interrupted.exit_code))

    def _order(self, word: str) -> None:
        self._store.set(f"{self.number}/order", word)

    # Ends and silence

    def poll(self, every_s: float = ASK_S) -> None:
        """See which ranks have ended, which workers are gone, and who is silent.

        Args:
            every_s: interval between two questions to the scheduler.
        """
        for rank in self._running():
            if self.futures[rank].done():
                outcome = outcome_of(self.futures[rank], rank, self.events.process(rank), self._run.work.report)
                if isinstance(outcome, Failure):
                    self._lose(rank, outcome)
                else:
                    self.reports[rank] = outcome
        records = self._run.watch.poll(every_s)
        if records is None:
            return
        self._check_silence(records)
        for rank in self._running():
            address = self.addresses[rank]
            if address not in records and not self.futures[rank].done():
                self._lose(rank, lost_rank(f"the worker {address} that held {self._name(rank)} is gone"))
        for address in sorted(self._sampling - records.keys()):
            self._sampling.remove(address)
            self._run.note(f"the worker {address}, which sampled, is gone; others take over its tasks")

    def _check_silence(self, records: Mapping[str, Any]) -> None:
        """Name workers and ranks that have not given a sign of life for long; beyond the limit they are lost."""
        run, limit = self._run, self._run.job.cluster.silence_limit_s
        workers = {f"the worker {a}": (a, record.get("last_seen")) for a, record in records.items()}
        silent = run.silence.update({name: seen for name, (_, seen) in workers.items()})
        frozen = {workers[name][0]: seconds for name, seconds in silent.items()}
        given = beats(records, METRIC, run.topic, self.number)
        # A rank is not heard of while its worker is frozen.
        heard = [r for r in self._running() if r in given and self.addresses[r] not in frozen]
        quiet = self._silence.update({self._name(r): given[r] for r in heard})
        if limit is None:
            return
        for rank in self._running():
            address, name = self.addresses[rank], self._name(rank)
            seconds = max(frozen.get(address, 0.0), quiet.get(name, 0.0))
            if seconds > limit and not self.failures:
                run.frozen |= {address} & frozen.keys()
                held = f", held by the worker {address}," if address in frozen else ""
                self._lose(rank, lost_rank(f"{name}{held} has not answered for {seconds:.0f} s"))

    def _lose(self, rank: int, failure: Failure) -> None:
        # Ranks that have begun to end cannot go on.
        if failure.is_death and self._run.job.cluster.on_rank_loss == "continue" and not self.failures:
            self.lost[rank] = failure
        else:
            self.failures.append(failure)

    # Ranks that go on without others

    def adjust_members(self) -> None:
        """Tell the ranks that are left who they are, once that has changed. Those that cannot go on end by
        themselves."""
        left, prefix = self._left(), f"{self.number}/gloo"
        if not left or (self.lost and self.reports):
            # Nobody is left, or training is over.
            self.failures.extend(self.lost.values())
        elif len(self.lost) > self._announced:
            self._membership += 1
            self._store.set(f"{prefix}/members/{self._membership}", json.dumps(left))
            who = f"rank {left[0]} is" if len(left) == 1 else f"ranks {', '.join(map(str, left))} are"
            for rank in list(self.lost)[self._announced :]:
                # A worker of the same address must not bring it back.
                cancel(self._run.client, [self.futures[rank]])
                self._run.note(f"{self.lost[rank].text}; {who} to go on without it")
            self._announced, self._meet_by = len(self.lost), time.monotonic() + MEET_S
            self.events.emit_epochs(self._first())
        elif time.monotonic() > self._meet_by:
            self._meet_by = math.inf
            if not self._store.check([f"{prefix}/{key}" for key in here(self._membership, left)]):
                text = f"ranks {left} did not come together within {MEET_S:g} s to go on without the others"
                self.failures.append(Failure(text, final=False))

    # The end

    def cause(self) -> Failure:
        """The cause of the end: of all losses seen within a moment, the one that explains the others."""
        start = time.monotonic()
        while time.monotonic() < start + self._patience_s():
            time.sleep(WATCH_S)
            self.poll(every_s=0.0)
        # Ranks may have sent messages before they ended.
        self.events.hear(self._first(), None)
        return min([*self.failures, *self.lost.values()], key=lambda failure: (failure.secondary, not failure.final))

    def _patience_s(self) -> float:
        if all(failure.saved for failure in self.failures) and not all(self.futures[r].done() for r in self._left()):
            # A rank may have ended before the first one has written the checkpoint.
            return STOP_S
        return CAUSE_S if not self.lost and all(failure.secondary for failure in self.failures) else 0.0

    @property
    def _kill_event(self) -> str:
        return f"{self._run.topic}-{self.number}"

    def stop_all(self) -> None:
        """End the ranks that are left, and wait for their end within limits."""
        if len(self.reports) == len(self.futures):
            self._end_waits()
            return
        # Even if Dask knows of no task: ranks outlive tasks that were cancelled while the scheduler was out of reach.
        self._order("abort")
        if all(f.done() for r, f in self.futures.items() if r not in self.reports):
            return
        if self._run.watch.silent_s > END_UNSEEN_S:
            # Workers cannot be told. Ranks obey the order, or end with the driver.
            return
        with suppress(TimeoutError, OSError, CancelledError):
            in_time(END_UNSEEN_S, Event(self._kill_event, client=self._run.client).set)
        with suppress(RunError):
            self._wait_for_ends()
        cancel(self._run.client, list(self.futures.values()))

    def _end_waits(self) -> None:
        """End what is left of tasks' waits for the order to kill: a scheduler that is closed within seconds would log
        an error for each."""
        if self._run.watch.silent_s > END_UNSEEN_S:
            return
        order = Event(self._kill_event, client=self._run.client)
        with suppress(TimeoutError, OSError, CancelledError):
            for step in (order.set, order.clear):
                in_time(END_UNSEEN_S, step)

    def _wait_for_ends(self) -> None:
        watch, gone, end = self._run.watch, set[str](), time.monotonic() + END_S
        while time.monotonic() < end and watch.silent_s < END_UNSEEN_S:
            if (records := watch.poll(every_s=0.0)) is not None:
                # The task of a worker that is gone never ends: the worker took its rank along.
                gone = set(self.addresses) - records.keys()
            left = [f for r, f in self.futures.items() if r not in self.reports and self.addresses[r] not in gone]
            if all(f.done() for f in left):
                return
            time.sleep(WATCH_S)
