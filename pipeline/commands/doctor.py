"""What is installed, what the machine offers, and what is missing for what."""

import os
import shutil
import ssl
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from ...stages.rapids import NEEDED, NEEDED_BY_SEVERAL
from ..machine.compilers import c_compiler, cxx_compiler, python_headers
from ..machine.gpus import INSTALL
from ..setup.result import versions

EXTRAS = {
    "gpu": (*NEEDED, *NEEDED_BY_SEVERAL),
    "pyg": ("torch_geometric",),
    "ogb": ("ogb",),
    "cloud": ("obstore",),
    "report": ("matplotlib",),
}

FOR_GPUS = {
    "triton": ("triton", ("triton",), 'device = "cuda" and kernel = "cuda" need it: install torch with CUDA'),
    "dask-cuda": ("dask_cuda", ("dask-cuda",), f'device = "cuda" with executor = "dask" needs it: {INSTALL}'),
    "rmm": ("rmm", ("rmm-cu13", "rmm-cu12"), f"cluster.cuda.rmm_* need it: {INSTALL}"),
    "ucx": (
        "distributed_ucxx",
        ("distributed-ucxx-cu13", "distributed-ucxx-cu12"),
        f'cluster.cuda.protocol = "ucx" needs it: {INSTALL}',
    ),
}
"""Name -> module, the distributions that may hold it, and what is missing without it."""
SMI = ("nvidia-smi", "--query-gpu=driver_version,name,memory.total,memory.used", "--format=csv,noheader,nounits")
SMI_S = 20.0


def examine() -> dict[str, Any]:
    """Versions, machine, threads, GPUs and what serves them, and which extras are complete."""
    import torch

    from ..setup.prepare import has_bfloat16

    memory = "unknown"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    disk = shutil.disk_usage(".")
    extras = {}
    for extra, modules in EXTRAS.items():
        missing = [m for m in modules if find_spec(m) is None]
        extras[extra] = (
            "complete" if not missing else f"lacks {', '.join(missing)}: pip install 'millrace-gnn[{extra}]'"
        )
    return {
        "versions": versions(),
        "machine": {
            "platform": sys.platform,
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory": memory,
            "free disk": f"{disk.free / 2**30:.1f} GiB",
            "torch threads": torch.get_num_threads(),
            "bfloat16 products": _yes(has_bfloat16()),
            "gloo": _yes(torch.distributed.is_available() and torch.distributed.is_gloo_available()),
            "C++ compiler": cxx_compiler() or "not found: train.compile = true needs one, on CPUs",
            "Python's headers": _yes(python_headers().exists()),
            "tls": ssl.OPENSSL_VERSION,
        },
        "gpu": _gpus(),
        "extras": extras,
    }


def _gpus() -> dict[str, str]:
    """The driver, the GPUs, and each piece of software that they need, or what is missing without it."""
    import torch
    from torch.cuda import nccl

    seen = torch.cuda.device_count() if torch.backends.cuda.is_built() else 0
    lines = dict(_driver())
    lines["torch"] = (
        f"CUDA {torch.version.cuda}, sees {seen} GPU{'s' * (seen != 1)}"
        if torch.backends.cuda.is_built()
        else 'built without CUDA: device = "cuda" needs a torch that is built with it'
    )
    lines["nccl"] = (
        ".".join(map(str, nccl.version()))
        if torch.distributed.is_available() and torch.distributed.is_nccl_available()
        else 'missing: several ranks on GPUs then need cluster.backend = "gloo"'
    )
    lines["C compiler"] = c_compiler() or 'not found: device = "cuda" and kernel = "cuda" need one, which Triton calls'
    for name, (module, holders, lacking) in FOR_GPUS.items():
        lines[name] = _version(holders) if find_spec(module) is not None else f"missing: {lacking}"
    return lines


def _driver() -> list[tuple[str, str]]:
    """What `nvidia-smi` says of the driver and of each GPU."""
    lacking = 'device = "cuda" needs an NVIDIA GPU and its driver'
    try:
        message = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        how = "is not here" if isinstance(e, FileNotFoundError) else "does not answer"
        return [("driver", f"not found (nvidia-smi {how}): {lacking}")]
    rows = [[cell.strip() for cell in line.split(",")] for line in message.stdout.splitlines() if line.count(",") == 3]
    if message.returncode or not rows:
        said = (message.stdout + message.stderr).strip().splitlines() or ["no GPU"]
        return [("driver", f"not usable (nvidia-smi says: {said[0]}): {lacking}")]
    return [("driver", rows[0][0]), *((f"gpu {i}", _card(*row[1:])) for i, row in enumerate(rows))]


def _card(name: str, total: str, used: str) -> str:
    """Memory is told in MiB; or not at all, of GPUs that share the host's."""
    if not (total.isdigit() and used.isdigit()):
        return name
    return f"{name}, {int(total) / 1024:.1f} GiB, {int(used) / 1024:.1f} GiB in use"


def _version(holders: tuple[str, ...]) -> str:
    for holder in holders:
        try:
            return version(holder)
        except PackageNotFoundError:
            continue
    return "yes"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
