"""The ``millrace`` command, run in this process."""

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.pipeline import cli


def command(*words: str | int | float | Path) -> tuple[Any, str, str]:
    """(exit code, standard output, standard error) of ``millrace`` with these arguments."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["millrace", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    return left.value.code, out.getvalue(), err.getvalue()
