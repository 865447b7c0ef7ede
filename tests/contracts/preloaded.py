"""Imports what ranks and commands need, once, in the fork server of `process_ranks`, and does what each of them would
do first: loads the most common kernels, looks for entry points and versions.

The fork server ignores an import that fails, and every rank is then seconds slower; `test_process_ranks.py` checks for
that.
"""

import ctypes
import gc
import importlib.util
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

from millrace.pipeline.cluster import rank_server
from millrace.pipeline.setup.result import versions
from millrace.stages.kernels.runtime.jit import prepare_numba
from millrace.storage.registry import entry_points_by_group
from millrace.tests.contracts import common_kernels, interpreter
from millrace.tests.contracts.forked_cluster import COMPILES

MODULES = (
    *(importlib.util.resolve_name(name, rank_server.__package__) for name in rank_server.IMPORTED),
    "millrace.pipeline.commands.run",
    "millrace.pipeline.run",
    "millrace.pipeline.training.trainer",
    "millrace.pipeline.setup.prepare",
    "millrace.stages.comm.gloo",
    "millrace.pipeline.planning.trial_server",
    "millrace.stages.partition.stage",
    "millrace.pipeline.cluster.partition_task",
    "millrace.pipeline.cluster.rank_host",
    "millrace.pipeline.cluster.sample_task",
    "millrace.pipeline.supervision.supervisor",
    "millrace.pipeline.inference.by_tasks",
    "millrace.pipeline.ingest.convert",
    "millrace.tests.contracts.forked_command",
    "distributed.nanny",
    "millrace.stages.kernels.aggregation.cpu.backend",
    "millrace.stages.kernels.sampling.cpu.backend",
    # Three quarters of a second of each rank that evaluates by it.
    "sklearn.metrics",
    # The first optimiser imports dynamo, which takes as long as torch itself.
    "torch._dynamo",
    "pytest",
    "hypothesis",
)
HUGE, MADV_COLLAPSE = 2 << 20, 25


def join_pages() -> None:
    """Put this process's memory into huge pages: a fork copies a page table of 450 MB otherwise, which takes longer
    than what most ranks do. Kernels before 6.1 refuse."""
    advise = ctypes.CDLL(None).madvise
    maps = Path("/proc/self/maps").read_text()
    for first, end in re.findall(r"^(\w+)-(\w+) rw-p \w+ \S+ 0(?: +\[heap\])?\s*$", maps, re.MULTILINE):
        for at in range(-(-int(first, 16) // HUGE) * HUGE, int(end, 16) // HUGE * HUGE, HUGE):
            advise(ctypes.c_void_p(at), ctypes.c_size_t(HUGE), MADV_COLLAPSE)


for name in MODULES:
    importlib.import_module(name)
if not torch.cuda.is_available():
    # A third of a second of each rank with a module of PyG. On a GPU it begins to use the driver, which a process that
    # forks ranks must not.
    with suppress(ImportError):
        importlib.import_module("torch_geometric.nn")
# The pages of a cluster that a command starts: half a second of a core.
with suppress(ImportError):
    importlib.import_module("distributed.dashboard.scheduler")
prepare_numba()
common_kernels.compile_all() if COMPILES in os.environ else common_kernels.load()
entry_points_by_group()
versions()
# See tests/conftest.py.
if os.environ.get("TRITON_INTERPRET") == "1":
    with suppress(ImportError):
        interpreter.prepare()
os.fsync = lambda fd: None
# A process of multiprocessing waits for those that it has forked, such as servers of ranks.
rank_server.LINGER_S = 0.0
# Ranks collect their own garbage only.
gc.freeze()
if sys.platform == "linux":
    join_pages()
