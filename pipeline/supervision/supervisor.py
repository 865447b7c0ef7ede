"""Training on a cluster: ranks start together, are watched, and start again together when one is lost.

A generation (`generation`) is one try of all ranks. When a rank raises, the run fails with its error, since another try
would fail again. When a rank or its worker dies, the next generation goes on from the last checkpoint.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from distributed import Client
from torch import nn

from ...storage.errors import Interrupted, RunError
from ..cluster.dask_cluster import check_reachable, opened
from ..cluster.rank_server import serving
from ..config.load import Job
from ..dashboard.publisher import show_run
from ..setup.prepare import Prepared
from ..telemetry.events import Emit, silent
from ..training.trainer import RankReport
from .cluster_run import ClusterRun, topic_of
from .generation import Generation
from .rank_failures import Failure
from .rank_tasks import rank_variables

_shared: list[Client] = []
"""Client of the cluster that runs of this process share: see `sharing_cluster`."""


@contextmanager
def sharing_cluster(job: Job, workers: int, *variables: Mapping[str, str]) -> Iterator[None]:
    """Context in which runs of this process without a scheduler of their own share a cluster that is started here.

    Args:
        job: see `opened`.
        workers: see `opened`.
        variables: `rank_variables` of the runs.
    """
    check_reachable(job.cluster)
    with serving(*variables) if job.device == "cpu" else nullcontext(), opened(job, silent, workers) as client:
        _shared.append(client)
        try:
            yield
        finally:
            _shared.remove(client)


def run_on_cluster(
    prepared: Prepared,
    out: Path,
    samples: str | Path | None,
    module: nn.Module | None,
    emit: Emit,
    stop: Callable[[], bool],
    save: Callable[[], bool] = lambda: False,
    fill: dict[str, Any] | None = None,
) -> list[RankReport]:
    """Train on a Dask cluster, or with `fill` sample there.

    Args:
        prepared: the job with its data.
        out: the run's folder, which every worker sees.
        samples: a store of samples to train from.
        module: a model of the user's own.
        emit: called with the events of the first rank and the notes of all.
        stop: asked several times a second; true ends the run with a checkpoint.
        save: asked as often; true writes a checkpoint.
        fill: a store of samples that ranks fill instead of training: arguments of `ZarrQueue.create`.

    Returns:
        A report for each rank.

    Raises:
        Interrupted: `stop` said so; the checkpoint is written.
        RunError: a rank raised, sampling failed, the scheduler was lost, or more ranks were lost than the configuration
            allows.
    """
    job = prepared.job
    sampling = job.cluster.producers if prepared.has_minibatches and samples is None and job.queue.kind == "zarr" else 0
    name = uuid.uuid4().hex[:8]
    shared = _shared[-1:] if job.cluster.scheduler is None else []
    starts_here = job.cluster.scheduler is None and job.device == "cpu" and not shared
    with (
        serving(rank_variables(prepared)) if starts_here else nullcontext(),
        nullcontext(shared[0]) if shared else opened(job, emit, job.ranks + sampling) as client,
        show_run(client, prepared, out, topic_of(name), emit) as announced,
    ):
        run = ClusterRun(client, name, prepared, out, samples, module, announced, stop, save, fill)
        try:
            reports = _supervise(run)
        finally:
            run.close()
    if run.sample_s:
        reports[0].seconds["sample"] = run.sample_s
    if run.parts is not None:
        reports[0].seconds["partition"] = reports[0].seconds.get("partition", 0.0) + run.partition_s
    return reports


def _supervise(run: ClusterRun) -> list[RankReport]:
    """Start generations until one finishes, or no other may begin."""
    cluster, lost = run.job.cluster, 0
    while True:
        outcome = Generation(run, lost, run.meeting.store(lost)).run()
        if not isinstance(outcome, Failure):
            return outcome
        if outcome.final:
            raise outcome.error()
        if run.stop():
            raise Interrupted(f"interrupted, but {outcome.text}; {run.resume_point()}")
        lost += 1
        if cluster.on_rank_loss == "stop" or lost > cluster.restarts:
            raise RunError(f"{outcome.text}; resume from the last checkpoint with --resume")
        again = f"all ranks start again from the last checkpoint (restart {lost} of {cluster.restarts})"
        run.note(f"{outcome.text}; {again}")
