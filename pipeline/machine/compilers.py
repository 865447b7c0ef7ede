"""The compilers of C and C++ that torch's and Triton's own compilers call, and what is missing where a job needs
one."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from ...storage.errors import InputError
from ..config.load import Job


def cxx_compiler() -> str | None:
    """The path of what `torch.compile` calls for kernels of a CPU: ``$CXX``, or g++ (clang++ on macOS); None: it is not
    there."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))


def c_compiler() -> str | None:
    """The path of what Triton calls for its launchers: ``$CC``, or gcc, or clang; None: it is not there."""
    given = os.environ.get("CC")
    return shutil.which(given) if given is not None else shutil.which("gcc") or shutil.which("clang")


def python_headers() -> Path:
    """Where the header of Python's C interface is, or would be."""
    return Path(sysconfig.get_path("include")) / "Python.h"


def check_compiler(job: Job) -> None:
    """Refuse to compile a model in this process without what that calls. Sampling and evaluating do not need it.

    Raises:
        InputError: the job wants that, and there is none.
    """
    if not job.train.compile:
        return
    kind, variable, found = ("C++", "CXX", cxx_compiler()) if job.device == "cpu" else ("C", "CC", c_compiler())
    if not (headers := python_headers()).exists():
        raise InputError(
            f"train.compile is true, but {headers} was not found, which all that torch.compile makes includes; install Python's headers, "
            "such as python3-dev, or leave train.compile out"
        )
    if found is None:
        named = f" (${variable} is {os.environ[variable]!r})" if variable in os.environ else ""
        raise InputError(
            f"train.compile is true, but no {kind} compiler was found{named}, which torch.compile calls; install one, such as GCC, name it "
            f"in ${variable}, or leave train.compile out"
        )
