"""Whether RAPIDS 26.10 can be used here, and with how many GPUs."""

from importlib.util import find_spec

from ..storage.errors import InputError, MissingExtraError

NEEDED = ("cupy", "cudf", "cugraph", "pylibcugraph")
NEEDED_BY_SEVERAL = ("dask_cuda", "dask_cudf", "raft_dask")


def count_gpus(what: str, instead: str) -> int:
    """How many GPUs RAPIDS can use here, at least one.

    Args:
        what: needs them, for the message.
        instead: what needs none, for the message.

    Raises:
        MissingExtraError: a module is not installed.
        InputError: there is no GPU, or no driver.
    """
    _refuse_lack_of(NEEDED, what, instead)
    import cupy  # pyright: ignore[reportMissingImports]

    runtime = cupy.cuda.runtime
    try:
        gpus = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as e:
        raise InputError(f"{what} needs an NVIDIA GPU, but CUDA says {e}; use {instead}, or a machine with a GPU and its driver") from None
    if gpus < 1:
        raise InputError(f"{what} needs an NVIDIA GPU, but there is none; use {instead}, or a machine with a GPU and its driver")
    if gpus > 1:
        _refuse_lack_of(NEEDED_BY_SEVERAL, what, instead)
    return gpus


def _refuse_lack_of(modules: tuple[str, ...], what: str, instead: str) -> None:
    lacking = [m for m in modules if find_spec(m) is None]
    if lacking:
        raise MissingExtraError(
            f"{what} needs an NVIDIA GPU and RAPIDS, but {', '.join(lacking)} cannot be found; use {instead}, "
            "or pip install 'millrace-gnn[gpu]' where there is a GPU"
        )
