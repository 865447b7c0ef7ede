"""Imports of the command line before it knows the command."""

import subprocess
import sys

import pytest

import millrace as mr

HEAVY = {"dask", "distributed", "numba", "numpy", "rich", "scipy", "sklearn", "torch", "zarr"}
OF_TYPER = {"importlib.metadata", "pydantic"}
"""Typer imports these to describe a command's parameters."""


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY | OF_TYPER),
        (["--version"], HEAVY),
        (["run", "--help"], HEAVY),
        (["warm", "--help"], HEAVY),
        (["report", "--help"], HEAVY),
    ],
)
def test_help_imports_nothing_heavy(arguments, heavy):
    code = (
        "import atexit, sys\n"
        f"sys.argv = ['millrace', *{arguments}]\n"
        f"atexit.register(lambda: print('heavy', sorted({heavy} & set(sys.modules))))\n"
        "from millrace.pipeline.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy []"
    assert "Usage" in done.stdout or "usage" in done.stdout or done.stdout.startswith(f"millrace {mr.__version__}\n")


def test_a_busy_machine_is_not_seen_at_the_end() -> None:
    """The thread of Zarr is busy for longer than Zarr waits for it."""
    code = (
        "import sys, time, zarr.core.sync\n"
        "from millrace.pipeline.__main__ import main\n"
        "zarr.core.sync._get_loop().call_soon_threadsafe(time.sleep, 60.0)\n"
        "sys.argv[1:] = ['--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_imported_is_not_looked_through_at_the_end() -> None:
    """The interpreter's collections at its end skip what is frozen."""
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() >= len(gc.get_objects())))\n"
        "from millrace.pipeline.__main__ import main\n"
        "sys.argv[1:] = ['--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "frozen True"
