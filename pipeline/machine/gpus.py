"""GPUs of ranks: checks, and the assignment of GPUs to ranks.

Workers run a function of this module to report their GPUs, so it imports nothing that they do not need.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from inspect import Parameter, signature
from itertools import takewhile
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from ...storage.errors import InputError, MissingExtraError, install, nearest
from ..config.load import Job

if TYPE_CHECKING:
    import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"
INSTALL = install("gpu")
BY_UCX = ("enable_tcp_over_ucx", "enable_nvlink", "enable_infiniband", "enable_rdmacm")
"""Options that make dask-cuda use UCX."""
SET_HERE = ("CUDA_VISIBLE_DEVICES", "n_workers", "threads_per_worker", "memory_limit", "local_directory")
"""Options of dask-cuda that follow from the job."""


def backend(job: Job) -> Literal["nccl", "gloo"]:
    """The communication backend of a job's ranks.

    Ranks that go on when one is lost must know which sum it broke, and NCCL does not report that.
    """
    on_gpus = job.device == "cuda" and job.cluster.on_rank_loss != "continue"
    return job.cluster.backend or ("nccl" if on_gpus else "gloo")


def own_device() -> "torch.device":
    """The device for ``device = "cuda"`` in this process: its first GPU, or the host under Triton's interpreter.

    Raises:
        MissingExtraError: Triton is not installed.
        InputError: torch is built without CUDA, or sees no GPU.
    """
    import torch

    message = 'device is "cuda", but'
    has_triton = find_spec("triton") is not None
    if has_triton:
        from ...stages.kernels.runtime import triton_rng

        if triton_rng.INTERPRETED:
            return torch.device("cpu")
    if not torch.backends.cuda.is_built():
        raise InputError(
            f"{message} this torch ({torch.__version__}) is built without CUDA; "
            'install one with it, or use device = "cpu"'
        )
    if not torch.cuda.is_available():
        raise InputError(
            f"{message} torch sees no GPU here ({_why_none()}); `millrace doctor` says what there is: "
            'run on a machine with a GPU and its driver, or use device = "cpu"'
        )
    if not has_triton:
        raise MissingExtraError(
            f"{message} Triton is not installed, which its kernels are written in; "
            'install triton, or use device = "cpu"'
        )
    return torch.device("cuda", 0)


def _why_none() -> str:
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as e:
        return str(e).split(". ")[0].split("\n")[0].rstrip(".")
    return "they are hidden or busy"


def check_gpus(job: Job) -> None:
    """Check that the ranks of a job can have GPUs. On a cluster that runs already, ranks check for themselves
    (`take`).

    Raises:
        InputError: torch is built without CUDA or without NCCL, or sees no GPU.
        MissingExtraError: Triton is not installed, or dask-cuda, where a cluster is to be started.
    """
    on_cluster = job.executor == "dask"
    if on_cluster and not job.cluster.starts_here:
        return
    own_device()
    if on_cluster and find_spec("dask_cuda") is None:
        raise MissingExtraError(
            'device is "cuda" and executor is "dask", but dask-cuda is not installed, '
            "which starts a worker for each GPU; "
            f'{INSTALL}, or train one rank with executor = "inline"'
        )
    if on_cluster and backend(job) == "nccl":
        from ...stages.comm.nccl import check_nccl

        check_nccl()


def check_cluster(job: Job) -> None:
    """Check, before anything is written, that the options of a cluster fit the device of its ranks and each other.

    Raises:
        InputError: they do not fit, or there are fewer GPUs here than ranks that need one each.
        MissingExtraError: RMM or UCX is asked for and not installed.
    """
    c, options = job.cluster, job.cluster.cuda
    given = ", ".join(f"cluster.cuda.{name}" for name in options)
    if c.backend == "nccl" and job.device != "cuda":
        raise InputError(
            f'cluster.backend is "nccl", but device is "{job.device}", whose ranks talk over gloo; '
            "leave cluster.backend out"
        )
    if c.backend == "nccl" and c.on_rank_loss == "continue":
        raise InputError(
            'cluster.backend is "nccl" and cluster.on_rank_loss is "continue", but ranks that go on without another '
            "must see which sum it broke, and NCCL does not say; "
            'use cluster.backend = "gloo" or on_rank_loss = "restart"'
        )
    if options and job.device != "cuda":
        raise InputError(f'{given} is given, but device is "{job.device}"; leave it out, or use device = "cuda"')
    if options and not c.starts_here:
        raise InputError(
            f"{given} is given, but the workers of {c.scheduler} run already; give such options where they are started"
        )
    if job.device != "cuda" or not c.starts_here:
        return
    _check_names(options)
    wants_ucx = uses_ucx(options)
    if wants_ucx and c.tls_ca is not None:
        raise InputError("cluster.cuda asks for UCX, which knows no TLS, and TLS files are given; leave one out")
    if wants_ucx and not c.insecure:
        raise InputError(
            "cluster.cuda asks for UCX, which knows no TLS: every user of this machine could run code as you; "
            "leave it out, or set cluster.insecure = true where you trust them all"
        )
    wants_rmm = any(value for name, value in options.items() if name.startswith("rmm_"))
    for asked, module, what in ((wants_ucx, "distributed_ucxx", "UCX"), (wants_rmm, "rmm", "RMM")):
        if asked and find_spec(module) is None:
            raise MissingExtraError(f"{given} needs {what}, but {module} is not installed; {INSTALL}, or leave it out")
    gpus = len(visible())
    if not gpus:
        raise InputError(f'device is "cuda", but {VISIBLE} names no GPU; correct it, or use device = "cpu"')
    if job.ranks > gpus and backend(job) == "nccl":
        raise InputError(_too_many(job.ranks, gpus, "this machine"))


def _check_names(options: Mapping[str, object]) -> None:
    """Check that dask-cuda, if it is installed, has these options, and that none of them follows from the job."""
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError:
        return
    of_dask_cuda = signature(LocalCUDACluster).parameters.values()
    known = [p.name for p in of_dask_cuda if p.kind is not Parameter.VAR_KEYWORD and p.name not in SET_HERE]
    if unknown := next((name for name in options if name not in known), None):
        raise InputError(
            f"cluster.cuda.{unknown} is given, but is no option of dask-cuda that can be set{nearest(unknown, known)}; "
            f"expected {', '.join(known)}"
        )


def uses_ucx(options: Mapping[str, object]) -> bool:
    """True if Dask's own messages use UCX."""
    return str(options.get("protocol")).startswith("ucx") or any(options.get(name) for name in BY_UCX)


def _too_many(ranks: int, gpus: int, where: str) -> str:
    return (
        f"{ranks} ranks want a GPU each under NCCL, but {where} has {gpus}; use ranks = {gpus}, or more GPUs, "
        'or let ranks share them with cluster.backend = "gloo"'
    )


def visible() -> list[str]:
    """The GPUs that a process started here would see, in its order: those in `VISIBLE`, or the numbers of all."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        # CUDA ignores everything after an invalid entry.
        return list(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, given.split(","))))
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def free_bytes() -> int:
    """Free memory of this process's first GPU, less what CUDA takes for a process. Raises like `own_device`."""
    import torch

    from ...storage.store.bytes_left import bytes_left

    device = own_device()
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else bytes_left()


def assign_gpus(ranks: int, seen: Mapping[str, Sequence[str]], shared: bool) -> list[tuple[str, str]]:
    """The worker of each rank, and its GPU as `VISIBLE` names it.

    Workers take turns. Of the GPUs that its worker sees, a rank gets the first one that has the fewest ranks on its
    host: a worker of dask-cuda names its own GPU first and then all others; workers started without it may all see all.

    Args:
        ranks: P.
        seen: result of `visible` on each worker, by address, in the order of turns.
        shared: true if ranks may share a GPU.

    Raises:
        InputError: no worker sees a GPU, or there are too few for ranks that may not share them.
    """
    taken: Counter[tuple[str, str]] = Counter()
    places: list[tuple[str, str]] = []
    least = 0
    while len(places) < ranks:
        before = len(places)
        for address, gpus in seen.items():
            host = urlsplit(address).hostname or ""
            gpu = min(gpus, key=lambda g: taken[host, g], default=None)
            if gpu is not None and taken[host, gpu] <= least and len(places) < ranks:
                taken[host, gpu] += 1
                places.append((address, gpu))
        if len(places) == before:
            if places and shared:
                least += 1
                continue
            if not places:
                raise InputError(
                    f'device is "cuda", but none of the {len(seen)} workers sees a GPU; start them by dask-cuda '
                    '(`dask cuda worker`) where there are GPUs, or use device = "cpu"'
                )
            raise InputError(
                _too_many(ranks, len(places), f"the cluster (by host, what its workers name in {VISIBLE})")
            )
    return places


def take() -> "torch.device":
    """Make this process's first GPU, the only one that a rank sees, torch's current device. Raises like
    `own_device`."""
    import torch

    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
