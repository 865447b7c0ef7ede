"""Training on a cluster: ranks start together, are watched, and start again together when one is lost.

A generation (`generation`) is one try of all ranks. When a rank raises, the run fails with its error, since another try
would fail again. When a rank or its worker dies, the next generation goes on from the last checkpoint.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client

from ...storage.errors import Interrupted, RunError
from ..cluster.dask_cluster import check_reachable, gpus_to_cut, opened
from ..cluster.rank_server import serving
from ..config.load import Job
from ..setup.run_folder import PARTS
from ..telemetry.control import Control
from ..telemetry.events import silent
from .cluster_run import ClusterRun, topic_of
from .generation import Generation
from .rank_failures import Failure
from .rank_tasks import rank_variables
from .rank_work import RankWork

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


def run_on_cluster(work: RankWork, out: Path, control: Control) -> list[Any]:
    """Train on a Dask cluster, or sample there.

    Args:
        work: what the ranks do.
        out: the run's folder, which every worker sees.
        control: called with the events of the first rank and the notes of all; asked several times a second.

    Returns:
        A report for each rank, of the kind `work.report`.

    Raises:
        Interrupted: it was asked to stop; the checkpoint is written.
        RunError: a rank raised, sampling failed, the scheduler was lost, or more ranks were lost than the configuration
            allows.
    """
    sampling, job, emit = work.sampling, work.sampling.job, control.emit
    name = uuid.uuid4().hex[:8]
    shared = _shared[-1:] if job.cluster.starts_here else []
    starts_here = job.cluster.starts_here and job.device == "cpu" and not shared
    workers, cut = job.ranks + work.sampling_workers, sampling.system.partition.partitioner
    with (
        serving(rank_variables(sampling)) if starts_here else nullcontext(),
        nullcontext(shared[0]) if shared else opened(job, emit, workers, gpus_to_cut(job, cut, out / PARTS)) as client,
        work.shown(client, out, topic_of(name), emit) as announced,
    ):
        run = ClusterRun(client, name, work, out, replace(control, emit=announced))
        try:
            reports = _supervise(run)
        finally:
            run.close()
    if run.sample_s:
        reports[0].seconds["sample"] = run.sample_s
    if run.parts is not None:
        reports[0].seconds["partition"] = reports[0].seconds.get("partition", 0.0) + run.partition_s
    return reports


def _supervise(run: ClusterRun) -> list[Any]:
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
            raise RunError(f"{outcome.text}; {run.work.remedy}")
        again = f"all ranks {run.work.again} (restart {lost} of {cluster.restarts})"
        run.note(f"{outcome.text}; {again}")
