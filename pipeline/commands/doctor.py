"""`millrace doctor`: check what is installed, what this machine has, and what is missing."""

import json
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from ...stages.rapids import NEEDED, NEEDED_BY_SEVERAL
from ...storage.errors import install
from .shared.flags import JsonFlag
from .shared.output import say

EXTRAS = {
    "gpu": (*NEEDED, *NEEDED_BY_SEVERAL),
    "pyg": ("torch_geometric",),
    "ogb": ("ogb",),
    "networkx": ("networkx",),
    "cloud": ("obstore",),
    "launch": ("asyncssh", "dask_jobqueue", "dask_kubernetes"),
    "report": ("matplotlib",),
    **{tracker: (tracker,) for tracker in ("tensorboard", "mlflow", "wandb")},
}

INSTALL = install("gpu")
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
"""Optional packages: the module, the distributions that may provide it, and the features that need it."""
SMI = ("nvidia-smi", "--query-gpu=driver_version,name,memory.total,memory.used", "--format=csv,noheader,nounits")
SMI_S = 20.0


def doctor(
    as_json: JsonFlag = False,
    support: Annotated[bool, typer.Option("--support", help="Print what does not run with what, and why.")] = False,
) -> None:
    """Report what is installed, and what is missing."""
    record = supported() if support else examine()
    if as_json:
        say(json.dumps(record))
    else:
        width = max(18, *(len(key) for entries in record.values() for key in entries))
        for section, entries in record.items():
            say("\n".join([section, *(f"  {key:<{width}} {value}" for key, value in entries.items())]))


def examine() -> dict[str, Any]:
    """Sections of printable values: versions, the machine, GPUs and their software, optional extras."""
    from ..setup.result import versions

    return {"versions": versions(), "machine": _machine(), "gpu": _gpus(), "extras": _extras()}


def supported() -> dict[str, Any]:
    """What systems and their forms cannot do, by part."""
    from ..config.refusals import table
    from ..ingest.convert import IN_PIECES

    found: dict[str, Any] = {}
    for part, row in (*table(), *(("convert, in pieces", row) for row in IN_PIECES)):
        word = "no" if row.applies else "-"
        found.setdefault(part, {})[row.need.value] = f"{word}: {row.part} {row.because}"
    return found


def _machine() -> dict[str, Any]:
    import ssl

    import torch

    from ...stages.kernels.runtime.threads import own_cores
    from ...storage.store.bytes_left import bytes_at_most, bytes_left
    from ..machine.compilers import cxx_compiler, python_headers
    from ..setup.checks import has_bfloat16

    return {
        "platform": sys.platform,
        "cores": own_cores(),
        "memory": f"{bytes_at_most() / 2**30:.1f} GiB, of which {bytes_left() / 2**30:.1f} GiB are left",
        "free disk": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB",
        "address space": _address_space(),
        "torch threads": torch.get_num_threads(),
        "bfloat16 products": _yes(has_bfloat16()),
        "gloo": _yes(torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        "C++ compiler": cxx_compiler() or "not found: train.compile = true needs one, on CPUs",
        "Python's headers": _yes(python_headers().exists()),
        "tls": ssl.OPENSSL_VERSION,
    }


def _address_space() -> str:
    """The limit of memory and maps of files together."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return "unlimited"
    return f'{limit / 2**30:.1f} GiB (ulimit -v): graph = "mapped" and features = "mapped" need room for the files'


def _extras() -> dict[str, str]:
    """State of each extra: complete, or its missing modules and the command that installs them."""
    lacking = {extra: [m for m in modules if find_spec(m) is None] for extra, modules in EXTRAS.items()}
    return {extra: f"lacks {', '.join(m)}: {install(extra)}" if m else "complete" for extra, m in lacking.items()}


def _gpus() -> dict[str, str]:
    """The driver, the GPUs and their software, each with the feature that needs it where it is missing."""
    import torch
    from torch.cuda import nccl

    from ..machine.compilers import c_compiler

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
    """Lines about the driver and each GPU, from `nvidia-smi`."""
    lacking = 'device = "cuda" needs an NVIDIA GPU and its driver'
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        how = "is not here" if isinstance(e, FileNotFoundError) else "does not answer"
        return [("driver", f"not found (nvidia-smi {how}): {lacking}")]
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.count(",") == 3]
    if done.returncode or not rows:
        said = (done.stdout + done.stderr).strip().splitlines() or ["no GPU"]
        return [("driver", f"not usable (nvidia-smi says: {said[0]}): {lacking}")]
    return [("driver", rows[0][0]), *((f"gpu {i}", _card(*row[1:])) for i, row in enumerate(rows))]


def _card(name: str, total: str, used: str) -> str:
    """One GPU's line. `nvidia-smi` prints memory in MiB, and none for GPUs that share the host's memory."""
    is_known = total.isdigit() and used.isdigit()
    return f"{name}, {int(total) / 1024:.1f} GiB, {int(used) / 1024:.1f} GiB in use" if is_known else name


def _version(holders: tuple[str, ...]) -> str:
    # Imported here: it takes longer than all else that `--help` imports of Millrace.
    from importlib import metadata

    for holder in holders:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(holder)
    return "yes"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
