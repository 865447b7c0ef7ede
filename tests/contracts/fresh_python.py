"""`python -m MODULE`, `-c CODE` or `FILE` in a process that has imported libraries, but nothing of Millrace.

It is forked from the server of `forked_command`, whose modules of Millrace it forgets. So it finds the packages and
variables of its own environment, and takes one second where a start takes four.
"""

import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from millrace.tests.contracts.forked_command import ForkedCommand, run_forked


class FreshPython(ForkedCommand):
    """See `ForkedCommand`. `words` are those of ``python``."""

    def __init__(self, *words: str | Path | float, **options: Any) -> None:
        super().__init__(*words, program=__name__, forks_workers=False, **options)


def run_python(*words: str | Path | float, **options: Any) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of ``python WORDS``."""
    return run_forked(*words, program=__name__, forks_workers=False, **options)


def forget() -> None:
    """Forget Millrace's modules, and find packages where the environment says."""
    for name in [name for name in sys.modules if name.split(".")[0] == "millrace"]:
        del sys.modules[name]
    sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()


def main() -> None:
    """Do what ``python`` does with the arguments."""
    forget()
    _, flag, *words = sys.argv
    if flag not in ("-m", "-c"):
        sys.argv = [flag, *words]
        sys.path.insert(0, str(Path(flag).parent))
        runpy.run_path(flag, run_name="__main__")
        sys.exit(0)
    sys.argv, what = words, words[0]
    if flag == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    sys.exit(0)
