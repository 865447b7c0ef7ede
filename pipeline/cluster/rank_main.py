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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from .signals import leave_signals_to_driver

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
    dataset: str
    """Folder of the dataset's store, which every rank can read."""
    dataset_name: str
    features: str
    """Place of its features."""
    parts: str | None
    """Folder of the parts, of which this rank opens its own instead of the dataset."""
    outline: dict[str, Any]
    """Outline of the dataset."""
    fingerprint: dict[str, str]
    """Fingerprint of what the driver prepared; a rank that sees something else must not train."""
    given: str | None
    """A model and code of the user's own, pickled by the driver, in base64."""
    out: str
    queue: str | None
    """A shared queue, filled by sampling tasks; None: this process samples its own share."""
    samples: str | None
    """A store of samples to train from."""
    fill: dict[str, Any] | None
    """A store of samples that the ranks fill instead of training: arguments of `ZarrQueue.create`."""
    rank: int
    size: int
    generation: int
    """Number of the generation: each meets under a prefix of its own in the store."""
    meeting: list[str | int]
    """Address of the driver's store: see `rendezvous.Meeting.address`."""
    threads: int
    environment: dict[str, str]
    """Variables that must be set before the process starts: for the allocator, and the one GPU that the rank sees."""


def main() -> NoReturn:
    """Run the rank that standard input describes."""
    leave_signals_to_driver()
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a print in a user's module must not be taken for a message
    lock = threading.Lock()

    def tell(message: dict[str, Any]) -> None:
        with lock:
            messages.write(json.dumps(message) + "\n")

    spec = RankSpec(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_follow_lifeline, daemon=True).start()
    status = 0
    try:
        tell({"report": _run(spec, sys.argv[1], tell)})
    except BaseException as e:
        tell({"failed": _failure(e)})
        status = 1
    messages.flush()
    sys.stderr.flush()
    os._exit(status)  # a peer that hangs in a collective must not hold up the end of this process


def _failure(e: BaseException) -> dict[str, Any]:
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


def _run(spec: RankSpec, own_host: str, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    import torch
    from torch.distributed.distributed_c10d import PrefixStore

    from ...stages.comm.gloo import Gloo
    from ...stages.comm.nccl import Nccl
    from ...stages.comm.survivors import Survivors
    from ...stages.kernels.runtime.threads import set_num_threads
    from ...storage.ledger import Ledger
    from ..config.load import Job
    from ..machine.gpus import backend, take
    from ..setup.open_queue import ReportingQueue, minibatches_per_epoch, queue_for_rank
    from ..telemetry.heartbeat import Heartbeat
    from ..telemetry.timers import Clock
    from ..training.dynamo import leave_compiler_out
    from ..training.trainer import train_and_evaluate
    from .rendezvous import connect

    leave_compiler_out()
    # Everything loaded by now stays, so collections need not look at it.
    gc.freeze()
    clock, stop, save, ledger = Clock(), threading.Event(), threading.Event(), Ledger()
    torch.set_num_threads(spec.threads)
    set_num_threads(spec.threads)

    # On its own connection, since a wait for peers blocks the other one.
    threading.Thread(
        target=_follow_orders, args=(connect(spec.meeting), spec.generation, stop, save), daemon=True
    ).start()
    job, out = Job.model_validate(spec.job), Path(spec.out)
    device = take() if job.device == "cuda" else torch.device("cpu")
    kind = partial(Nccl, device=device) if backend(job) == "nccl" else Gloo
    prepared = _prepared(spec, job)

    def meet(store: Any, rank: int, size: int) -> Gloo:
        return kind(
            store,
            rank,
            size,
            ledger,
            host=own_host,
            on_wait=lambda text: tell({"event": "Note", "text": text}),
            slow_peer_warning_s=job.cluster.slow_peer_warning_s,
        )

    store = connect(spec.meeting)
    meeting = PrefixStore(f"{spec.generation}/gloo", store)
    goes_on = job.cluster.on_rank_loss == "continue"
    group = Survivors(meeting, spec.rank, spec.size, meet) if goes_on else meet(meeting, spec.rank, spec.size)
    if spec.fill is not None:
        from .sample_by_owners import sample_by_owners

        told = _Teller(tell, steps=False)
        common = {"group": group, "ledger": ledger, "emit": told, "stop": stop.is_set, "clock": clock}
        return asdict(sample_by_owners(prepared, out, spec.fill, **common))
    reporting, alive = None, lambda: True
    if prepared.has_minibatches:
        queue, alive = queue_for_rank(prepared, spec.queue, spec.samples)
        reporting = ReportingQueue(
            queue, lambda epoch, index: tell({"released": [epoch, index]}), minibatches_per_epoch(prepared)
        )
    produce = spec.queue is None and spec.samples is None
    teller = _Teller(tell, steps=spec.rank == 0 or goes_on)
    with Heartbeat(
        spec.rank, clock, ledger, reporting if produce else None, teller, lambda pulse: tell({"shown": vars(pulse)})
    ) as heart:
        report = train_and_evaluate(
            prepared,
            out,
            reporting,
            group=group,
            ledger=ledger,
            produce=produce,
            producer_alive=alive,
            emit=heart,
            stop=stop.is_set,
            save=lambda: save.is_set() and (save.clear() or True),
            clock=clock,
            generation=spec.generation,
        )
    return asdict(report)


def _prepared(spec: RankSpec, job: Any) -> Any:
    """The job with the data that this rank opens, which must be what the driver sees."""
    from ...storage.errors import RunError
    from ..interop.user_code import unpickled
    from ..setup.model import Outline
    from ..setup.prepare import prepare, prepare_part, with_data_read
    from ..setup.shared_dataset import open_shared

    def opened() -> Any:
        return open_shared(Path(spec.dataset), spec.dataset_name, spec.features, job.graph)

    module, code = unpickled(spec.given) or (None, None)
    if spec.parts is not None:
        # The parts were made from what the driver sees, and carry its fingerprint.
        outline, folder = Outline(**spec.outline), Path(spec.parts)
        pairs = opened() if outline.of_pairs else None
        return prepare_part(job, outline, folder, spec.rank, spec.fingerprint, model=module, code=code, dataset=pairs)
    dataset = opened()
    prepared = prepare(job, dataset, model=module, code=code)
    if prepared.fingerprint != spec.fingerprint:
        differing = sorted(k for k in spec.fingerprint if prepared.fingerprint.get(k) != spec.fingerprint[k])
        raise RunError(
            f"rank {spec.rank} sees other data than the driver: {', '.join(differing)} differ; give all the same files"
        )
    return with_data_read(prepared)


class _Teller:
    """Sends events as messages: steps at intervals, and none that the driver hears from the first rank already."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], steps: bool) -> None:
        self._tell, self._steps = tell, steps
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
