"""Fixtures and settings shared by test files."""

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from millrace.pipeline.cluster import rank_server
from millrace.tests.contracts import bytecode, interpreter, pretended_device  # noqa: F401  processes write bytecode

# To see whether there is a GPU without its driver, which a process that forks ranks must not have begun to use.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# Read when Triton is first imported, by whichever test comes first.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    with suppress(ImportError):
        interpreter.prepare()

# No test survives a loss of power, and disks take long.
os.fsync = lambda fd: None

# Checkpoints and clean ends take long on a busy machine; tests of the limit set it.
os.environ.setdefault("MILLRACE_STOP_S", "240")

# Test processes share the cores, and a thread that waits for another one keeps its core busy: on a busy machine a small
# run took four times the processor time with two threads. What a number of threads may change has tests that set it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

# Tests make few cycles, and each collection looks at all that torch, numba and pytest have made.
gc.set_threshold(20_000, 50, 100)

# Nothing that ends later, among the processes and files that another test counts.
rank_server.LINGER_S = 0.0

# Neither a busy machine nor a kernel's first compilation is a failure. Each run draws other examples.
settings.register_profile("millrace", deadline=None, max_examples=30)
settings.load_profile("millrace")

WHOLE_RUNS = Path(__file__).with_name("whole_runs")
LONG = (
    "test_signals.py", "test_frozen_scheduler.py", "test_rank_faults.py", "test_own_code.py", "test_sar_faults.py",
    "test_retexo_faults.py", "test_grappa_faults.py", "test_other_users.py", "test_compilers.py", "test_readme.py",
    "test_gpus.py", "test_fifth_system.py", "test_gpu.py", "test_cuda_compiles.py", "test_device_policies.py",
    "test_warm.py", "test_examples.py", "test_beyond_loopback.py", "test_dashboard.py", "test_object_store_runs.py",
    "test_partition_task.py", "test_ingest.py", "test_report.py", "test_chain.py", "test_chain_on_gpus.py",
)  # fmt: skip
"""Files of few tests that take long. So do notebooks."""


def pytest_configure(config: pytest.Config) -> None:
    """Let several processes that share the files be forked from one that has imported what they need."""
    if config.getoption("numprocesses", None) and sys.platform == "linux":
        from millrace.tests.contracts import each_test_once, forked_worker

        each_test_once.end_if_silent()
        forked_worker.install(compiles=config.getoption("compile_kernels"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Go on after the death of a process that runs tests."""
    if config.getoption("dist") != "loadfile":
        return None
    from millrace.tests.contracts.each_test_once import EachTestOnce

    return EachTestOnce(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If several processes share the files, begin with the longest, so that none is left alone with one; whole runs
    come last, when kernels are compiled."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (WHOLE_RUNS in item.path.parents, not _is_long(item.path), -tests[item.path]))


def _is_long(file: Path) -> bool:
    return file.name in LONG or file.suffix == ".ipynb"


_frozen: tuple[Path, int] | None = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep garbage collections to what a file's tests make.

    A run in this process ends with a collection, which otherwise looks at all that torch, numba and pytest have made:
    half of the time of a small run.
    """
    global _frozen
    if _frozen != (now := (item.path, len(sys.modules))):
        gc.collect()
        gc.freeze()
        _frozen = now


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options: one runs tests too long for every run, one prepares for many files."""
    parser.addoption(
        "--compile-kernels",
        action="store_true",
        help="compile the most common kernels before several processes share the files",
    )
    parser.addoption(
        "--signal-cells",
        default="few",
        help="cells of test_signals.py and test_frozen_scheduler.py: few, all, or those with this word in their names",
    )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs: ``$MILLRACE_DATA``, else ``../shared/data`` beside the repository."""
    given = os.environ.get("MILLRACE_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real graphs not found: set MILLRACE_DATA")
    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, for tests with small matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Workers and servers of ranks that tests start are forked from a process that has imported what they need."""
    from millrace.tests.contracts.forked_cluster import forked_cluster

    with forked_cluster():
        yield


@pytest.fixture(scope="module")
def on_device() -> Iterator[torch.device]:
    """A GPU: the machine's, or one that is pretended (`contracts.pretended_device`)."""
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        pretended_device.install(patch)
        yield pretended_device.DEVICE
