"""The ranks of a run on a cluster: started together, watched, and started again together when one is lost.

A generation is one try of all ranks. Each rank is the child of a Dask task (`rank_host`) on a worker of its choice.
They meet in a store of this process (`meeting`), under a prefix of the generation, so that nothing of a dead generation
can reach the next. When a rank raises, all are ended and the run fails with its words. When a rank or its worker dies,
all are ended, and the next generation goes on from the last checkpoint. Ranks that can do without each other for a
while, and are to, are told in place of that who is left of them (`stages.comm.survivors`); they end with their phase,
and the next generation goes on from there.
"""

import json
import math
import os
import queue
import time
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributed import Client, Event, Future
from distributed.client import FutureCancelledError
from torch import nn

from ...stages.assignment import Steps
from ...stages.comm.survivors import here
from ...stages.partition.mend import remove_damaged
from ...stages.partition.stage import partition_dataset
from ...storage.checkpoint import CheckpointStore
from ...storage.errors import Interrupted, MillraceError, PeerLostError, RunError, ShortHandedError
from ..dashboard.publisher import show_run
from ..interop.user_code import pickled
from ..machine.gpus import VISIBLE, backend
from ..machine.malloc import allocator
from ..machine.time_limit import in_time
from ..setup.open_queue import location, repaired_queue, seed_plan
from ..setup.prepare import Prepared
from ..setup.resume import Pace
from ..setup.run_folder import CHECKPOINTS, PARTS
from ..setup.shared_dataset import share
from ..telemetry import events
from ..telemetry.events import Emit, Note, QueueLevel, StageAdvanced, StageEnded, StageStarted
from ..telemetry.heartbeat import METRIC
from ..training.trainer import RankReport
from .dask_cluster import START_S, gpu_places, opened, places, wait_for_worker
from .partition_task import parts_by
from .rank_host import hold_rank
from .rank_main import RankSpec
from .rendezvous import Meeting
from .sample_task import SampleOrder
from .sampling_flow import BulkFlow
from .scheduler_watch import ASK_S, SchedulerWatch, cancel
from .unresponsive import Silence, beats

WATCH_S = 0.1
RESULT_S = 10.0
"""The result of a task that is done comes within this time, or is lost."""
LEVEL_S = 0.5
"""How often what waits in the queue is written down."""
CAUSE_S = 2.0
"""Ranks that lose a peer often say so before whatever killed it is known: the driver waits this long for the cause."""
END_S = 5.0
"""All ranks of a generation have ended within this time after they were told to."""
END_UNSEEN_S = 2.0
"""The same where the scheduler does not answer, so that nobody can say whether they have."""
STOP_UNSEEN_S = 3.0
"""A run that is to stop ends after this time if the scheduler does not answer: nobody says whether its ranks have."""
MEET_S = 120.0
"""Ranks that are told to go on without another one are ready for it within this time: a step, at most."""
STOP_S = 600.0
"""A step and a checkpoint are done within this time after a request to stop."""


@dataclass(frozen=True)
class Loss:
    """Why a generation ended early."""

    text: str
    final: bool
    """Whether trying again would only fail again."""
    secondary: bool = False
    """Whether it is only what a rank saw of another one's end."""
    exit_code: int = 3
    saved: bool = False
    """Whether all ranks end by themselves, once the first one has written a checkpoint."""


def run_on_cluster(
    prepared: Prepared,
    out: Path,
    samples: str | Path | None,
    module: nn.Module | None,
    emit: Emit,
    stop: Callable[[], bool],
    save: Callable[[], bool] = lambda: False,
) -> list[RankReport]:
    """Train on a Dask cluster.

    Args:
        prepared: the job with its data.
        out: the run's folder, which every worker sees.
        samples: a store of samples to train from.
        module: a model of the user's own.
        emit: called with the events of the first rank and the notes of all.
        stop: asked all the time; true ends the run with a checkpoint.
        save: likewise; true writes one.

    Returns:
        A report for each rank.

    Raises:
        Interrupted: `stop` said so; the checkpoint is written.
        RunError: a rank raised, sampling failed, or more ranks were lost than the configuration lets pass.
    """
    job = prepared.job
    sampling = job.cluster.producers if prepared.has_minibatches and samples is None and job.queue.kind == "zarr" else 0
    name = uuid.uuid4().hex[:8]
    with (
        opened(job, emit, job.ranks + sampling) as client,
        show_run(client, prepared, out, topic_of(name), emit) as announced,
    ):
        supervisor = _Supervisor(client, name, prepared, out, samples, module, announced, stop, save)
        try:
            reports = supervisor.run()
        finally:
            supervisor.close()
    if supervisor.sample_s:
        reports[0].seconds["sample"] = supervisor.sample_s
    if supervisor.parts is not None:
        reports[0].seconds["partition"] = reports[0].seconds.get("partition", 0.0) + supervisor.partition_s
    return reports


def topic_of(name: str) -> str:
    """Of the Dask events of a run's ranks."""
    return f"millrace-{name}"


class _Supervisor:
    def __init__(
        self,
        client: Client,
        name: str,
        prepared: Prepared,
        out: Path,
        samples: str | Path | None,
        module: nn.Module | None,
        emit: Emit,
        stop: Any,
        save: Any,
    ) -> None:
        self.client, self.prepared, self.out, self.samples = client, prepared, out.resolve(), samples
        self.emit, self.stop, self.save = emit, stop, save
        self.sample_s = self.partition_s = 0.0
        job = prepared.job
        self.ranks, self.run_name, self.topic = job.ranks, name, topic_of(name)
        self.silence = Silence(job.cluster.slow_peer_warning_s, self.note)
        self.watch = SchedulerWatch(client, job.cluster, self.note)
        self.frozen: set[str] = set()
        """Workers that were taken for lost because they had stopped answering."""
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.dataset, self.features = share(job, prepared.dataset, self.out, self.note)
        self.module = None if module is None else pickled(module)
        self.parts = self._cut()
        self.meeting = Meeting(job.cluster)
        client.subscribe_topic(self.topic, lambda event: self.messages.put(event[1]))

    def note(self, text: str) -> None:
        """Tell the user something."""
        self.emit(Note(text))

    def _cut(self) -> Path | None:
        """The folder of the parts that ranks open, made if it is not there; None where they open the whole."""
        prepared, job = self.prepared, self.prepared.job
        partitioner = prepared.system.partition.partitioner
        if partitioner is None:
            return None
        dataset, folder, parts = prepared.dataset, self.out / PARTS, prepared.system.parts_before(job.ranks)
        remove_damaged(folder, self.note)
        self.emit(StageStarted("partition", f"cutting {dataset.name} into {parts} parts by {partitioner.name}", parts))
        report = partition_dataset(
            dataset,
            partitioner,
            parts,
            folder,
            job.seed_of("minibatches"),
            on_progress=lambda done, total: self.emit(StageAdvanced("partition", done, total)),
            write_parts=lambda numbers, fingerprint: parts_by(
                self.client, folder, self.dataset, numbers, fingerprint, self.emit, self.watch
            ),
        )
        self.emit(StageEnded("partition", report.seconds))
        self.partition_s = report.seconds
        return folder

    def close(self) -> None:
        self.watch.close()
        self.client.unsubscribe_topic(self.topic)
        self.meeting.close()

    def _saved(self) -> str:
        """From where the run can go on."""
        found = CheckpointStore(self.out / CHECKPOINTS, self.prepared.fingerprint, read_only=True).latest()
        if found is None:
            return "no checkpoint was written yet: the same command with --resume begins anew"
        return f"the last checkpoint is of phase {found[0].phase}, step {found[0].step}: run the same command with --resume to go on"

    def run(self) -> list[RankReport]:
        cluster = self.prepared.job.cluster
        lost = generation = 0
        while True:
            self.store = self.meeting.store(generation)
            outcome = _Generation(self, generation).run()
            if not isinstance(outcome, Loss):
                return outcome
            if outcome.final:
                raise _error(outcome)
            if self.stop():
                # What was to be stopped does not begin again.
                raise Interrupted(f"interrupted, but {outcome.text}; {self._saved()}")
            lost += 1
            if cluster.on_rank_loss == "stop" or lost > cluster.restarts:
                raise RunError(f"{outcome.text}; resume from the last checkpoint with --resume")
            self.emit(
                Note(
                    f"{outcome.text}; all ranks start again from the last checkpoint (restart {lost} of {cluster.restarts})"
                )
            )
            generation += 1


class _Generation:
    def __init__(self, supervisor: _Supervisor, number: int) -> None:
        self.supervisor, self.number = supervisor, number
        self.silence = Silence(
            supervisor.prepared.job.cluster.slow_peer_warning_s, lambda text: supervisor.emit(Note(text))
        )
        self.reports: dict[int, RankReport] = {}
        self.pids: dict[int, int] = {}
        self.losses: list[Loss] = []
        self.lost: dict[int, Loss] = {}
        """Ranks that the others are to go on without."""
        self.announced = self.orders = 0
        self.meet_by = math.inf
        self.level_at = 0.0
        self.stopping_at = math.inf
        self.epochs_told = 0
        self.epochs_untold: dict[int, list[dict[str, Any]]] = {}
        """Of each rank that is not the first: epochs that the first one has not told yet, and may never, if it is
        lost."""
        self.sampling: list[str] = []
        self.gone: set[str] = set()
        self.stopping = self.stepping = False
        """Whether ranks were told to stop; whether they have taken a step."""
        self.saves = 0

    def run(self) -> list[RankReport] | Loss:
        supervisor = self.supervisor
        wait_for_worker(supervisor.client)
        self._place()
        flow = self._flow()
        self.futures = {rank: self._start(rank) for rank in range(supervisor.ranks)}
        try:
            while len(self.reports) < supervisor.ranks:
                if flow is not None:
                    flow.advance()
                    self._tell_level(flow)
                self._hear(flow)
                self._obey()
                self._look()
                self._go_on()
                if self.losses:
                    return self._end()
                time.sleep(WATCH_S)
            self._hear(flow)
            return [self.reports[r] for r in range(supervisor.ranks)]
        finally:
            self._stop_all()
            if flow is not None:
                flow.close()
                supervisor.sample_s += flow.seconds

    def _place(self) -> None:
        """Say which worker holds which rank, and which GPU it has."""
        client, ranks, job = self.supervisor.client, self.supervisor.ranks, self.supervisor.prepared.job
        self.variables: list[dict[str, str]] = [{} for _ in range(ranks)]
        if job.device == "cpu":
            self.addresses, self.sampling = places(client, ranks, self.supervisor.frozen)
            return
        # Once there were enough: a worker that is lost is being started again.
        placed, self.sampling = gpu_places(
            client, ranks, shared=backend(job) == "gloo", patience_s=START_S if self.number else 0.0
        )
        self.addresses = [address for address, _ in placed]
        self.variables = [{VISIBLE: gpu} for _, gpu in placed]

    def _flow(self) -> BulkFlow | None:
        supervisor, job = self.supervisor, self.supervisor.prepared.job
        if supervisor.samples is not None or job.queue.kind != "zarr" or not supervisor.prepared.has_minibatches:
            return None
        where = location(supervisor.prepared, supervisor.out)
        # Tasks of the generation before may still write: what they leave is swept when the run is opened again.
        options = {
            "max_bytes": job.queue.max_bytes,
            "keep": job.queue.keep,
            "consumers": supervisor.ranks,
            "sweep": self.number == 0,
        }
        queue_ = repaired_queue(supervisor.prepared, supervisor.out, supervisor.note, **options)
        plan = seed_plan(job, supervisor.prepared.dataset)
        minibatches = plan.num_minibatches
        steps = Steps(minibatches, job.train.per_step(supervisor.ranks))
        pace = Pace.of(steps)
        found = CheckpointStore(supervisor.out / CHECKPOINTS, supervisor.prepared.fingerprint, read_only=True).latest()
        taken = Pace.written(found[1], job.train, minibatches).position(found[0].step, pace)[0] if found else 0
        epoch, step = divmod(taken, pace.steps_per_epoch)
        order = SampleOrder(
            json.dumps(job.model_dump(mode="json")),
            str(supervisor.dataset),
            supervisor.prepared.dataset.name,
            supervisor.features,
            where,
            job.threads or 1,
        )
        return BulkFlow(
            supervisor.client,
            order,
            queue_,
            run=supervisor.run_name,
            generation=self.number,
            first=(epoch, steps.minibatches_of(step).start // job.queue.bulk_size),
            last_epoch=job.epochs,
            num_bulks=plan.num_bulks,
            producers=job.cluster.producers,
            workers=self.sampling,
            minibatches_per_step=steps.per_step,
        )

    def _start(self, rank: int) -> Future:
        supervisor, job = self.supervisor, self.supervisor.prepared.job
        uses_queue = supervisor.prepared.has_minibatches and supervisor.samples is None and job.queue.kind == "zarr"
        spec = RankSpec(
            job=job.model_dump(mode="json"),
            dataset=str(supervisor.dataset),
            dataset_name=supervisor.prepared.dataset.name,
            features=supervisor.features,
            parts=None if supervisor.parts is None else str(supervisor.parts),
            outline=asdict(supervisor.prepared.outline),
            fingerprint=supervisor.prepared.fingerprint,
            module=supervisor.module,
            out=str(supervisor.out),
            queue=location(supervisor.prepared, supervisor.out) if uses_queue else None,
            samples=str(supervisor.samples) if supervisor.samples is not None else None,
            rank=rank,
            size=supervisor.ranks,
            generation=self.number,
            meeting=supervisor.meeting.place(self.number),
            threads=job.threads or max(1, (os.cpu_count() or 1) // supervisor.ranks),
            # Steps over minibatches free and take the same memory again; a full batch keeps it, and would only hold
            # more.
            environment={
                **(allocator(job.cluster.keep_freed_bytes) if supervisor.prepared.frees_steps else {}),
                **self.variables[rank],
            },
        )
        # Pinned and never tried again by Dask: ranks start together or not at all.
        return supervisor.client.submit(
            hold_rank,
            asdict(spec),
            supervisor.topic,
            self._kill_event,
            key=(f"train-{supervisor.run_name}", self.number, rank),
            workers=[self.addresses[rank]],
            allow_other_workers=False,
            retries=0,
            pure=False,
            priority=1 << 40,
        )

    def _hear(self, flow: BulkFlow | None) -> None:
        while True:
            try:
                message = self.supervisor.messages.get_nowait()
            except queue.Empty:
                return
            if message["generation"] != self.number:
                continue
            rank, said = message["rank"], message["said"]
            if "pid" in said:
                self.pids[rank] = said["pid"]
            elif "released" in said:
                if flow is not None:
                    flow.release(rank, *said["released"])
            elif said["event"] == "EpochDone":
                self.stepping = True
                self.epochs_untold.setdefault(rank, []).append(said)
                self._tell_epochs()
            elif rank == self._first() or said["event"] in ("Note", "Pulse"):
                self.stepping |= said["event"] == "StepDone"
                self.supervisor.emit(getattr(events, said.pop("event"))(**said))

    def _tell_epochs(self) -> None:
        """Tell each epoch once: by the first rank that is left, also those that the one before it has finished but not
        told."""
        for said in self.epochs_untold.pop(self._first(), []):
            if said["epoch"] >= self.epochs_told:
                self.epochs_told = said["epoch"] + 1
                self.supervisor.emit(events.EpochDone(**{k: v for k, v in said.items() if k != "event"}))
        for rank, waiting in self.epochs_untold.items():
            self.epochs_untold[rank] = [said for said in waiting if said["epoch"] >= self.epochs_told]

    def _tell_level(self, flow: BulkFlow) -> None:
        if time.monotonic() - self.level_at >= LEVEL_S:
            self.level_at = time.monotonic()
            self.supervisor.emit(QueueLevel(**flow.level))

    def _obey(self) -> None:
        if not self.stopping and self.supervisor.stop():
            self.stopping, self.stopping_at = True, time.monotonic()
            if self.number and not self.stepping:
                # Ranks that were to start again have nothing to save.
                self.losses.append(
                    Loss(f"interrupted; {self.supervisor._saved()}", final=True, exit_code=Interrupted.exit_code)
                )
            self._order("stop")
        elif min(self.supervisor.watch.silent_s, time.monotonic() - self.stopping_at) > STOP_UNSEEN_S:
            text = f"interrupted while the Dask scheduler does not answer; {self.supervisor._saved()}"
            self.supervisor.note(text)
            self.losses.append(Loss(text, final=True, exit_code=Interrupted.exit_code))
        elif not self.stopping and self.supervisor.save():
            self.saves += 1
            self._order(f"save {self.saves}")

    @property
    def _kill_event(self) -> str:
        """Name of the Dask event that has workers kill their ranks."""
        return f"{self.supervisor.topic}-{self.number}"

    def _order(self, word: str) -> None:
        self.supervisor.store.set(f"{self.number}/order", word)

    def _look(self, every_s: float = ASK_S) -> None:
        """See which ranks have ended, and which workers are gone."""
        for rank, future in self.futures.items():
            if rank not in self.reports and rank not in self.lost and future.done():
                self._settle(rank, future)
        records = self.supervisor.watch.poll(every_s)
        if records is None:
            return
        self._look_for_silent(records)
        alive = set(records)
        for rank, address in enumerate(self.addresses):
            if (
                address not in alive
                and rank not in self.reports
                and rank not in self.lost
                and not self.futures[rank].done()
            ):
                self._lose(rank, f"the worker {address} that held rank {rank}{self._pid(rank)} is gone")
        for address in set(self.sampling) - alive - self.gone:
            self.gone.add(address)
            self.supervisor.emit(Note(f"the worker {address}, which sampled, is gone; others take over its tasks"))

    def _look_for_silent(self, records: dict[str, Any]) -> None:
        """Name workers and ranks that have not given a sign of life for long; beyond the limit they are lost."""
        supervisor, limit = self.supervisor, self.supervisor.prepared.job.cluster.silence_limit_s
        given = beats(records, METRIC, supervisor.topic, self.number)
        workers = {f"the worker {a}": (a, record.get("last_seen")) for a, record in records.items()}
        ranks = {f"rank {r}{self._pid(r)}": (r, given[r]) for r in self._left() if r in given and r not in self.reports}
        # Nothing is heard of the ranks that a frozen worker holds.
        silent = supervisor.silence.look({name: seen for name, (_, seen) in workers.items()})
        gone = {workers[name][0]: seconds for name, seconds in silent.items() if name in workers}
        quiet = self.silence.look({name: n for name, (r, n) in ranks.items() if self.addresses[r] not in gone})
        if limit is not None:
            for rank, address in enumerate(self.addresses):
                name = f"rank {rank}{self._pid(rank)}"
                seconds = max(gone.get(address, 0.0), quiet.get(name, 0.0))
                if seconds > limit and rank not in self.reports and rank not in self.lost and not self.losses:
                    supervisor.frozen |= {address} & gone.keys()
                    held = f", held by the worker {address}," if address in gone else ""
                    self._lose(rank, f"{name}{held} has not answered for {seconds:.0f} s")

    def _settle(self, rank: int, future: Future) -> None:
        try:
            # A result that is lost with its worker would never come.
            outcome = future.result(timeout=RESULT_S)
        except FutureCancelledError as e:
            # Of a scheduler that is gone, or that could not be reached for a moment and has forgotten the tasks.
            announced = (
                "the connection to the Dask scheduler was lost" if e.reason == "scheduler-connection-lost" else str(e)
            )
            self._lose(rank, f"the task of rank {rank}{self._pid(rank)} was lost: {announced}")
            return
        except Exception as e:
            self._lose(rank, f"the task of rank {rank}{self._pid(rank)} was lost ({type(e).__name__}: {e})")
            return
        if "report" in outcome:
            self.reports[rank] = RankReport(**outcome["report"])
        elif "failed" in outcome:
            failed = outcome["failed"]
            where = f" ({' '.join(failed['where'])})" if failed["where"] else ""
            lost_peer, short = failed["kind"] == PeerLostError.__name__, failed["kind"] == ShortHandedError.__name__
            saved = short or failed["kind"] == Interrupted.__name__
            text = failed["text"] if saved else f"rank {rank} failed: {failed['text']}{where}"
            self.losses.append(
                Loss(text, not (lost_peer or short), secondary=lost_peer, exit_code=failed["exit_code"], saved=saved)
            )
        else:
            tail = "; its log ends: " + " / ".join(outcome["log"][-3:]) if outcome["log"] else ""
            status = outcome["died"]
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._lose(rank, f"rank {rank}{self._pid(rank)} {how}{tail if status >= 0 else ''}")

    def _lose(self, rank: int, text: str) -> None:
        """A rank is gone. Where the others have begun to end, they cannot go on."""
        loss = Loss(text, final=False)
        if self.supervisor.prepared.job.cluster.on_rank_loss == "continue" and not self.losses:
            self.lost[rank] = loss
        else:
            self.losses.append(loss)

    def _first(self) -> int:
        return min(self._left(), default=0)

    def _left(self) -> list[int]:
        return [r for r in range(self.supervisor.ranks) if r not in self.lost]

    def _go_on(self) -> None:
        """Tell the ranks that are left who they are, once that has changed; those who cannot go on say so by ending."""
        left, orders = self._left(), f"{self.number}/gloo"
        if not left or (self.lost and self.reports):
            # Nobody is left, or training is over.
            self.losses.extend(self.lost.values())
        elif len(self.lost) > self.announced:
            self.orders += 1
            self.supervisor.store.set(f"{orders}/members/{self.orders}", json.dumps(left))
            who = f"rank {left[0]} is" if len(left) == 1 else f"ranks {', '.join(map(str, left))} are"
            for rank in list(self.lost)[self.announced :]:
                # A worker of the same address must not bring it back.
                cancel(self.supervisor.client, [self.futures[rank]])
                self.supervisor.emit(Note(f"{self.lost[rank].text}; {who} to go on without it"))
            self.announced, self.meet_by = len(self.lost), time.monotonic() + MEET_S
            self._tell_epochs()
        elif time.monotonic() > self.meet_by:
            self.meet_by = math.inf
            if not self.supervisor.store.check([f"{orders}/{key}" for key in here(self.orders, left)]):
                self.losses.append(
                    Loss(
                        f"ranks {left} did not come together within {MEET_S:g} s to go on without the others",
                        final=False,
                    )
                )

    def _pid(self, rank: int) -> str:
        return f" (process {self.pids[rank]})" if rank in self.pids else ""

    def _end(self) -> Loss:
        """The cause of the end: of all that can be seen within a moment, what explains the rest."""
        now = time.monotonic()
        while time.monotonic() < now + (
            STOP_S if self._is_stopping_well() else CAUSE_S if self._is_unexplained() else 0
        ):
            time.sleep(WATCH_S)
            self._look(every_s=0.0)
        # What ranks said before they ended.
        self._hear(None)
        return min([*self.losses, *self.lost.values()], key=lambda loss: (loss.secondary, not loss.final))

    def _is_unexplained(self) -> bool:
        return not self.lost and all(loss.secondary for loss in self.losses)

    def _is_stopping_well(self) -> bool:
        """Whether ranks are left that are about to stop; a rank may have ended before the first one has written the
        checkpoint."""
        return all(loss.saved for loss in self.losses) and not all(self.futures[r].done() for r in self._left())

    def _stop_all(self) -> None:
        """End what is left of the generation, and wait until it has ended."""
        if len(self.reports) == len(self.futures):
            return
        # Also where no task is left that Dask knows of: ranks outlive tasks that were cancelled because the scheduler
        # was out of reach.
        self._order("abort")
        if all(f.done() for r, f in self.futures.items() if r not in self.reports):
            return
        if self.supervisor.watch.silent_s > END_UNSEEN_S:
            # Workers cannot be told. Ranks obey the order, or end with the driver.
            return
        with suppress(TimeoutError, OSError, CancelledError):
            in_time(END_UNSEEN_S, Event(self._kill_event, client=self.supervisor.client).set)
        with suppress(RunError):
            self._wait_until_ended()
        cancel(self.supervisor.client, list(self.futures.values()))

    def _wait_until_ended(self) -> None:
        watch, gone, end = self.supervisor.watch, set[str](), time.monotonic() + END_S
        while time.monotonic() < end and watch.silent_s < END_UNSEEN_S:
            if (records := watch.poll(every_s=0.0)) is not None:
                # The task of a worker that is gone never ends: the worker took its rank along.
                gone = set(self.addresses) - records.keys()
            left = [f for r, f in self.futures.items() if r not in self.reports and self.addresses[r] not in gone]
            if all(f.done() for f in left):
                return
            time.sleep(WATCH_S)


def _error(loss: Loss) -> MillraceError:
    if loss.exit_code == Interrupted.exit_code:
        return Interrupted(loss.text)
    error = RunError(loss.text)
    error.exit_code = loss.exit_code
    return error
