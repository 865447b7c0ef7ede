"""Dask cluster shared by the tests of runs: starting one costs seconds."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import cloudpickle
import dask.config
import pytest
from distributed import LocalCluster

from millrace.pipeline.cluster.dask_cluster import SETTINGS
from millrace.pipeline.machine.gpus import VISIBLE
from millrace.tests.contracts.forked_cluster import PRETENDED, forked_cluster, serving_ranks

OF_WORKERS = {"PYTEST_CURRENT_TEST": ""}
"""Environment variables of workers. Pytest sets this one anew for each test, so that ranks of workers that
take the place of dead ones would start from scratch."""


QUIET = {**SETTINGS, "distributed.admin.system-monitor.interval": "20s"}
"""Settings of the cluster: it looks at its processes' memory less often, which takes a third of an idle cluster's
processor time."""


@contextmanager
def cluster_of(workers: int, dashboard: str | None = None, gpus: Sequence[str] = ()) -> Iterator[str]:
    """Start a scheduler on this machine whose workers have one thread and this process's present environment; yield its
    address.

    Its ranks are forked, from servers with the two environments that ranks have. `dashboard` is the host and port of
    its dashboard, if any. `gpus` are those that workers see: pretended ones.
    """
    environment, of_workers = dict(os.environ), OF_WORKERS
    if gpus:
        of_workers = {**OF_WORKERS, PRETENDED: "1", VISIBLE: ",".join(gpus)}
    of_ranks = [{**of_workers, VISIBLE: gpu} for gpu in gpus] or [of_workers]
    with dask.config.set(QUIET), forked_cluster(), serving_ranks(*of_ranks):
        cluster = LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=dashboard, memory_limit=None,
            env=of_workers,
        )  # fmt: skip
        try:
            yield str(cluster.scheduler_address)
        finally:
            cluster.close(timeout=10)
            os.environ.clear()
            os.environ.update(environment)


@pytest.fixture
def by_value(request) -> Iterator[None]:
    """Send functions of the test's file to workers and ranks by value, since they cannot import it."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def start_cluster():
    """`cluster_of`, for a test that needs its own cluster."""
    return cluster_of


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """The address of a scheduler with five workers; one that is killed is replaced."""
    with cluster_of(5) as address:
        yield address
