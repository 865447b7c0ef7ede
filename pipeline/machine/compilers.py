"""The C and C++ compilers that torch.compile and Triton call."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from ...storage.errors import InputError
from ..config.load import Job


def cxx_compiler() -> str | None:
    """Path of the compiler that `torch.compile` calls for CPU kernels: ``$CXX``, or g++ (clang++ on macOS); None if
    there is none."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))


def c_compiler() -> str | None:
    """Path of the compiler that Triton calls for its launchers: ``$CC``, or gcc, or clang; None if there is none."""
    given = os.environ.get("CC")
    return shutil.which(given) if given is not None else shutil.which("gcc") or shutil.which("clang")


def python_headers() -> Path:
    """Path of the header of Python's C interface, which may not exist."""
    return Path(sysconfig.get_path("include")) / "Python.h"


def check_compiler(job: Job) -> None:
    """Check that a model can be compiled in this process, if the job compiles it. Only training does.

    Raises:
        InputError: the compiler or Python's headers are missing.
    """
    if not job.train.compile:
        return
    kind, variable, found = ("C++", "CXX", cxx_compiler()) if job.device == "cpu" else ("C", "CC", c_compiler())
    if not (headers := python_headers()).exists():
        raise InputError(
            f"train.compile is true, but {headers} was not found, which all code of torch.compile includes; "
            "install Python's headers, such as python3-dev, or leave train.compile out"
        )
    if found is None:
        named = f" (${variable} is {os.environ[variable]!r})" if variable in os.environ else ""
        raise InputError(
            f"train.compile is true, but no {kind} compiler was found{named}, which torch.compile calls; "
            f"install one, such as GCC, name it in ${variable}, or leave train.compile out"
        )
