"""The process of one rank: ``python -m millrace.pipeline.cluster.rank_main``, started by `rank_host.hold_rank`.

Its argument is the address of its worker, at which the other ranks reach it. Its first line of standard input is its
`RankSpec`. End of file there means that its worker is gone, and ends it at once; workers that the driver started end
with the driver. On a cluster that runs already, a store that no longer answers means that the driver is gone. Messages
are lines of JSON on standard output; everything else that is printed goes to the rank's log.
"""

import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .signals import leave_signals_to_driver

if TYPE_CHECKING:
    from ...stages.comm.gloo import Contact
    from ..training.trainer import RankReport
    from .sample_by_owners import Filled

Tell = Callable[[dict[str, Any]], None]

ORDER_S = 0.25
"""Interval at which a rank looks for orders in the driver's store."""
STEP_EVENT_S = 0.25
"""Shortest interval between two events of steps."""
ORPHANED, ABORTED = 70, 71
"""Exit statuses: the worker or the driver is gone; the driver ordered the end."""


@dataclass(frozen=True)
class RankSpec:
    """Arguments of a rank's process, as plain values."""

    job: dict[str, Any]
    """The resolved configuration."""
    data: dict[str, str]
    """The `DataPart`, which every rank can open."""
    parts: str | None
    """Folder of the parts, of which this rank opens its own instead of the dataset."""
    out: str
    rank: int
    size: int
    generation: int
    """Number of the generation: each meets under a prefix of its own in the store."""
    meeting: list[str | int]
    """Address of the driver's store: see `rendezvous.Meeting.address`."""
    threads: int
    environment: dict[str, str]
    """Variables that must be set before the process starts: for the allocator, and the one GPU that the rank sees."""
    outline: dict[str, Any] = field(default_factory=dict)
    """Outline of the dataset."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """Fingerprint of what the driver prepared; a rank that sees something else must not train."""
    given: str | None = None
    """A model and code of the user's own, pickled by the driver, in base64."""
    queue: str | None = None
    """A queue on disk that all ranks share; None: this process samples its own share into memory."""
    samples: str | None = None
    """A store of samples to train from."""
    order: str = ""
    """See `Sampling.order`."""
    fill: str | None = None
    """The `FillOrder` of ranks that fill a store of samples instead of training, pickled by the driver, in base64."""


def main() -> NoReturn:
    """Run the rank that standard input describes."""
    leave_signals_to_driver()
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a print in a user's module must not be taken for a message
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            messages.write(json.dumps(message) + "\n")

    spec = RankSpec(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_follow_lifeline, daemon=True).start()
    status = 0
    try:
        send({"report": _run(spec, sys.argv[1], send)})
    except BaseException as e:
        send({"failed": _failure(e)})
        status = 1
    messages.flush()
    sys.stderr.flush()
    os._exit(status)  # a peer that hangs in a collective must not hold up the end of this process


def _failure(e: BaseException) -> dict[str, object]:
    """The message to the driver about an error. Its traceback goes to the log; secrets in URLs are left out of both."""
    from ...storage.errors import MillraceError
    from ...storage.urls import without_secrets

    sys.stderr.write(without_secrets("".join(traceback.format_exception(e))))
    known = isinstance(e, MillraceError)
    text = str(e) if known else without_secrets("".join(traceback.format_exception_only(e)).strip())
    where = [] if known else traceback.format_tb(e.__traceback__)[-1].strip().splitlines()
    return {"kind": type(e).__name__, "text": text, "where": where, "exit_code": e.exit_code if known else 3}


def _follow_lifeline() -> None:
    while sys.stdin.readline():
        pass
    os._exit(ORPHANED)


def _follow_orders(store: Any, generation: int, stop: threading.Event, save: threading.Event) -> None:
    """Obey the driver: ``stop`` or ``save`` at the next step, ``abort`` at once. If the store does not answer, the
    driver is gone."""
    order, done = f"{generation}/order", ""
    while True:
        time.sleep(ORDER_S)
        try:
            said = store.get(order).decode() if store.check([order]) else ""
        except RuntimeError:
            os._exit(ORPHANED)
        if said == "abort":
            os._exit(ABORTED)
        if said == "stop":
            stop.set()
        elif said.startswith("save") and said != done:
            done = said
            save.set()


def _run(spec: RankSpec, own_host: str, send: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    import torch

    from ...stages.kernels.runtime.threads import set_num_threads
    from ..telemetry.timers import Clock
    from ..training.dynamo import leave_compiler_out
    from .rendezvous import connect

    leave_compiler_out()
    # Everything loaded by now stays, so collections need not look at it.
    gc.freeze()
    clock, stop, save = Clock(), threading.Event(), threading.Event()
    torch.set_num_threads(spec.threads)
    set_num_threads(spec.threads)

    # On its own connection, since a wait for peers blocks the other one.
    threading.Thread(
        target=_follow_orders, args=(connect(spec.meeting), spec.generation, stop, save), daemon=True
    ).start()
    work = _train if spec.fill is None else _fill
    return asdict(work(spec, own_host, send, clock, stop, save))


def _fill(
    spec: RankSpec, own_host: str, send: Tell, clock: Any, stop: threading.Event, save: threading.Event
) -> "Filled":
    """Draw this rank's share of a store of minibatches."""
    from torch.distributed.distributed_c10d import PrefixStore

    from ...stages.comm.gloo import Gloo
    from ...storage.ledger import Ledger
    from ..assembly.data_part import DataPart
    from ..custom.user_code import unpickled
    from ..telemetry.control import Control
    from .rendezvous import connect
    from .sample_by_owners import sample_by_owners

    order, teller = unpickled(spec.fill), _Teller(send, steps=False)
    group = Gloo(
        PrefixStore(f"{spec.generation}/gloo", connect(spec.meeting)),
        spec.rank,
        spec.size,
        Ledger(),
        _contact(own_host, send, order.slow_peer_warning_s),
    )
    assert spec.parts is not None
    data, control = DataPart(**spec.data), Control(teller, stop.is_set)  # pyrefly: ignore[bad-argument-type]
    return sample_by_owners(order, data, Path(spec.parts), group=group, control=control, clock=clock)


def _contact(own_host: str, send: Tell, slow_peer_warning_s: float) -> "Contact":
    """The contact by which others reach this rank; it tells the driver of long waits."""
    from ...stages.comm.gloo import Contact

    return Contact(own_host, lambda text: send({"event": "Note", "text": text}), slow_peer_warning_s)


def _train(
    spec: RankSpec, own_host: str, send: Tell, clock: Any, stop: threading.Event, save: threading.Event
) -> "RankReport":
    """Train this rank's share."""
    import torch
    from torch.distributed.distributed_c10d import PrefixStore

    from ...stages.comm.gloo import Gloo
    from ...stages.comm.nccl import Nccl
    from ...stages.comm.survivors import Survivors
    from ...storage.ledger import Ledger
    from ..config.load import Job
    from ..machine.gpus import backend, take
    from ..setup.open_queue import ReportingQueue, queue_for_rank
    from ..telemetry.control import Control
    from ..telemetry.heartbeat import Heartbeat
    from ..training.context import Member
    from ..training.trainer import train_and_evaluate
    from .rendezvous import connect

    ledger = Ledger()
    job, out = Job.model_validate(spec.job), Path(spec.out)
    device = take() if job.device == "cuda" else torch.device("cpu")
    kind = partial(Nccl, device=device) if backend(job) == "nccl" else Gloo
    prepared = _prepared(spec, job)

    def meet(store: Any, rank: int, size: int) -> Gloo:
        return kind(store, rank, size, ledger, _contact(own_host, send, job.cluster.slow_peer_warning_s))

    def note(text: str) -> None:
        if spec.rank == 0:
            send({"event": "Note", "text": text})

    store = connect(spec.meeting)
    meeting = PrefixStore(f"{spec.generation}/gloo", store)
    goes_on = job.cluster.on_rank_loss == "continue"
    group = Survivors(meeting, spec.rank, spec.size, meet) if goes_on else meet(meeting, spec.rank, spec.size)
    feed = queue_for_rank(prepared, spec.queue, spec.samples, note)
    if feed.queue is not None:
        feed = replace(feed, queue=ReportingQueue(feed.queue, send, prepared.minibatches_per_epoch))
    alone = spec.queue is None and spec.samples is None
    teller = _Teller(send, steps=spec.rank == 0 or goes_on)
    with Heartbeat(
        spec.rank, clock, ledger, feed.queue if alone else None, teller, lambda pulse: send({"shown": vars(pulse)})
    ) as heart:
        control = Control(heart, stop.is_set, lambda: save.is_set() and (save.clear() or True))
        return train_and_evaluate(prepared, out, feed, Member(group, ledger, clock, spec.generation), control)


def _prepared(spec: RankSpec, job: Any) -> Any:
    """The job with the data that this rank opens, which must be what the driver sees."""
    from ...storage.errors import RunError
    from ..assembly.data_part import DataPart
    from ..custom.user_code import unpickled
    from ..setup.model import Outline
    from ..setup.open_queue import with_packed
    from ..setup.prepare import CutData, prepare, prepare_part, with_data_read

    # pyrefly: ignore[bad-argument-type]
    data, stored = DataPart(**spec.data), spec.samples is not None
    module, code = unpickled(spec.given) or (None, None)
    if spec.parts is not None:
        # The parts were made from what the driver sees, and carry its fingerprint.
        outline = Outline(**spec.outline)
        return prepare_part(
            job,
            CutData(outline, Path(spec.parts), spec.rank, spec.fingerprint, spec.order),
            model=module,
            code=code,
            dataset=data.open() if outline.of_pairs else None,
            stored=stored,
        )
    prepared = with_packed(prepare(job, data.open(), model=module, code=code, stored=stored), spec.samples)
    if prepared.fingerprint != spec.fingerprint:
        differing = sorted(k for k in spec.fingerprint if prepared.fingerprint.get(k) != spec.fingerprint[k])
        raise RunError(
            f"rank {spec.rank} sees other data than the driver: {', '.join(differing)} differ; give all the same files"
        )
    return with_data_read(prepared)


class _Teller:
    """Sends events as messages: steps at intervals, and none that the driver hears from the first rank already."""

    def __init__(self, send: Callable[[dict[str, Any]], None], steps: bool) -> None:
        self._tell, self._steps = send, steps
        self._step_at = 0.0

    def __call__(self, event: Any) -> None:
        kind = type(event).__name__
        if kind in ("StepDone", "EpochDone") and not self._steps:
            return
        if kind == "StepDone":
            if time.monotonic() - self._step_at < STEP_EVENT_S:
                return
            self._step_at = time.monotonic()
        self._tell({"event": kind, **vars(event)})


if __name__ == "__main__":
    main()
