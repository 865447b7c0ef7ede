"""What is installed, what the machine offers, and what is missing for what."""

import os
import shutil
import ssl
import sys
from importlib.util import find_spec
from typing import Any

from ..stages.rapids import NEEDED, NEEDED_BY_SEVERAL
from .result import versions

EXTRAS = {
    "gpu": (*NEEDED, *NEEDED_BY_SEVERAL),
    "pyg": ("torch_geometric",),
    "ogb": ("ogb",),
    "cloud": ("obstore",),
    "report": ("matplotlib",),
}


def examine() -> dict[str, Any]:
    """Versions, machine, threads, and which extras are complete."""
    import torch

    from .prepare import has_bfloat16

    memory = "unknown"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    disk = shutil.disk_usage(".")
    cuda = torch.cuda.is_available()
    extras = {}
    for extra, modules in EXTRAS.items():
        missing = [m for m in modules if find_spec(m) is None]
        extras[extra] = "complete" if not missing else f"lacks {', '.join(missing)}: pip install 'millrace-gnn[{extra}]'"
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
            "tls": ssl.OPENSSL_VERSION,
            "cuda": torch.cuda.get_device_name(0) if cuda else "no: torch sees no GPU",
            "nccl": _yes(torch.distributed.is_available() and torch.distributed.is_nccl_available()),
        },
        "extras": extras,
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"
