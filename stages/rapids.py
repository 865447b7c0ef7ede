"""Checks that RAPIDS 26.10 can be used, counts its GPUs, and starts a cluster of one process per GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ..storage.errors import InputError, MissingExtraError

NEEDED = ("cupy", "cudf", "cugraph", "pylibcugraph")
NEEDED_BY_SEVERAL = ("dask_cuda", "dask_cudf", "raft_dask")
TO_SAMPLE = ("cupy", "pylibcugraph")
TO_READ = ("cupy", "cudf", "dask_cuda")


def count_gpus(what: str, instead: str, needed: tuple[str, ...] = NEEDED) -> int:
    """Number of GPUs that RAPIDS can use on this machine, at least one.

    Args:
        what: the feature that needs them, for the message.
        instead: an alternative that needs none, for the message.
        needed: modules that the feature imports; with several GPUs, `NEEDED_BY_SEVERAL` too.

    Raises:
        MissingExtraError: a module is not installed.
        InputError: there is no GPU, or no driver.
    """
    _check_has(needed, what, instead)
    import cupy

    runtime = cupy.cuda.runtime
    try:
        gpus = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as e:
        raise InputError(
            f"{what} needs an NVIDIA GPU, but CUDA says {e}; use {instead}, or a machine with a GPU and its driver"
        ) from None
    if gpus < 1:
        raise InputError(
            f"{what} needs an NVIDIA GPU, but there is none; use {instead}, or a machine with a GPU and its driver"
        )
    if gpus > 1:
        _check_has(NEEDED_BY_SEVERAL, what, instead)
    return gpus


def _check_has(modules: tuple[str, ...], what: str, instead: str) -> None:
    lacking = [m for m in modules if find_spec(m) is None]
    if lacking:
        raise MissingExtraError(
            f"{what} needs an NVIDIA GPU and RAPIDS, but {', '.join(lacking)} cannot be found; use {instead}, "
            "or pip install 'millrace-gnn[gpu]' where there is a GPU"
        )


@contextmanager
def gpu_cluster(gpus: int) -> Iterator[Any]:
    """A Dask client of a cluster on this machine, with one process and one thread for each of `gpus` GPUs.

    Device memory is freed when the processes end, at the end of the block.
    """
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    with (
        _environment_as_it_was(),
        LocalCUDACluster(n_workers=gpus, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def _environment_as_it_was() -> Iterator[None]:
    """Restore this process's environment: Dask and dask-cuda leave settings for their workers there, which ranks would
    inherit."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
