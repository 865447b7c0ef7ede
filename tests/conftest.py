"""Fixtures and settings shared by test files."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from millrace.tests.contracts import interpreter

# Read when Triton is first imported, by whichever test comes first.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    with suppress(ImportError):
        interpreter.take_turns()


# Neither a busy machine nor a kernel's first compilation is a failure.
settings.register_profile("millrace", deadline=None)
settings.load_profile("millrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs tests too long for every run."""
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
