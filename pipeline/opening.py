"""Opening of a job's dataset where the cluster that the job names may read it."""

from pathlib import Path

from ..storage.dataset import Dataset
from .config.load import Job
from .setup.open_data import open_data
from .telemetry.events import Emit


def open_with_cluster(job: Job, source: str | Path | object | None, emit: Emit, *, lazy: bool = False) -> Dataset:
    """`open_data`; with ``read.edges_on = "gpu"`` the GPUs of the cluster that the job names sort the edges."""
    if job.read.edges_on != "gpu":
        return open_data(job, source, emit, lazy=lazy)
    from .cluster.dask_cluster import on_named

    with on_named(job):
        return open_data(job, source, emit, lazy=lazy)
