"""What several test files need."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from millrace.tests.contracts import interpreter

# Compiled kernels are kept beside the source. Numba lets two processes that keep two versions of one kernel at the same
# moment mix them up, so of the processes that run tests side by side only the first keeps its kernels there.
if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="millrace-kernels-")
    atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)

# Read when Triton is first imported, by whichever test comes first.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    with suppress(ImportError):
        interpreter.take_turns()


# A busy machine is no failure, nor is a kernel's first compilation.
settings.register_profile("millrace", deadline=None)
settings.load_profile("millrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is too long for every run."""
    parser.addoption(
        "--signal-cells", choices=["few", "all"], default="few", help="of tests/whole_runs/test_signals.py"
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
    """Of torch's own: for tests whose matrices are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
