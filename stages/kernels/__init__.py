"""Compiled and reference kernels. Every backend exports the same functions and is chosen once, by name."""

from importlib import import_module
from types import ModuleType

from ...storage.errors import InputError, nearest

AGGREGATION = ("cpu", "reference")
"""Backends of aggregation."""


def aggregation(name: str = "cpu") -> ModuleType:
    """The module `aggregate_<name>`.

    Raises:
        InputError: no such backend.
    """
    if name not in AGGREGATION:
        raise InputError(f"no aggregation backend '{name}'; expected one of {', '.join(AGGREGATION)}{nearest(name, AGGREGATION)}")
    return import_module(f".aggregate_{name}", __name__)
