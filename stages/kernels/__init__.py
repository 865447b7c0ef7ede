"""Compiled and reference kernels. Every backend exports the same functions and is chosen once, by name."""

from importlib import import_module
from types import ModuleType

from ...storage.errors import InputError, MissingExtraError, nearest

AGGREGATION = ("cpu", "reference")
"""Backends of aggregation."""
SAMPLING = ("cpu", "reference", "cuda")
"""Backends of sampling."""


def aggregation(name: str = "cpu") -> ModuleType:
    """The module `aggregate_<name>`.

    Raises:
        InputError: no such backend.
    """
    if name not in AGGREGATION:
        raise InputError(f"no aggregation backend '{name}'; expected one of {', '.join(AGGREGATION)}{nearest(name, AGGREGATION)}")
    return import_module(f".aggregate_{name}", __name__)


def sampling(name: str = "cpu") -> ModuleType:
    """The sampling kernels of that name.

    Raises:
        InputError: no such backend, or, for "cuda", no GPU.
        MissingExtraError: Triton is not installed.
    """
    if name not in SAMPLING:
        raise InputError(f"no sampling backend '{name}'; expected one of {', '.join(SAMPLING)}{nearest(name, SAMPLING)}")
    if name == "cuda":
        try:
            import_module("triton")
        except ImportError:
            raise MissingExtraError('kernel is "cuda", but Triton is not installed; install triton, or leave kernel out') from None
    module = import_module(f".{name}", __name__)
    if name == "cuda":
        module.device()
    return module
