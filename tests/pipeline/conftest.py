"""A Dask cluster that the tests of runs share: starting one costs seconds."""

import os
from collections.abc import Iterator

import dask.config
import pytest
from distributed import LocalCluster

from millrace.pipeline.cluster import SETTINGS


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """The address of a scheduler on this machine with five workers of one thread; a worker that is killed is replaced."""
    environment = dict(os.environ)
    with dask.config.set(SETTINGS):
        cluster = LocalCluster(n_workers=5, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=None)
        try:
            yield str(cluster.scheduler_address)
        finally:
            cluster.close(timeout=10)
            os.environ.clear()
            os.environ.update(environment)
