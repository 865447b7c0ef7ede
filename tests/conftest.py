"""What several test files need."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs: ``$MILLRACE_DATA``, else ``../shared/data`` beside the repository."""
    given = os.environ.get("MILLRACE_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real graphs not found: set MILLRACE_DATA")
    return folder
