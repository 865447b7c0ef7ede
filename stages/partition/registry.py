"""The partitioners by name. Other packages add theirs as entry points ``millrace.partitioners``."""

from dataclasses import fields, is_dataclass
from typing import Any

from ...storage.errors import InputError
from ...storage.optional import present_items
from ...storage.registry import Registry
from .base import Partitioner
from .clustered import Leiden, Louvain
from .contiguous import Contiguous
from .hash import Hash
from .metis import Metis, MetisWork
from .metis_streamed import MetisStreamed
from .streaming import Fennel, Ldg

PARTITIONERS: Registry[Any] = Registry(
    "partitioner", (Contiguous, Hash, Ldg, Fennel, Metis, MetisWork, MetisStreamed, Louvain, Leiden)
)
"""Classes that follow `base.Partitioner`; each can be made without arguments."""


def partitioner(name: str, **options: Any) -> Partitioner:
    """Make the partitioner `name`; options that are not given have its defaults.

    Args:
        name: see `PARTITIONERS`.
        options: ``balance``, ``passes``, ``slack`` and the like; None stands for the default.

    Raises:
        InputError: no partitioner has that name, or this one has no such option.
    """
    entry, given = PARTITIONERS.find(name), present_items(options)
    for option in given:
        if option not in _options(entry):
            having = [other for other, cls in PARTITIONERS.available().items() if option in _options(cls)]
            raise InputError(
                f"partitioner '{name}' has no option '{option}'; "
                + (f"leave it out, or take one of {', '.join(having)}" if having else "leave it out")
            )
    return entry(**given)


def _options(entry: Any) -> set[str]:
    return {f.name for f in fields(entry)} if is_dataclass(entry) else set()
