"""The partitioners by name. Other packages add theirs as entry points ``millrace.partitioners``."""

from typing import Any

from ...storage.registry import Registry
from .base import Partitioner
from .clustered import Leiden, Louvain
from .contiguous import Contiguous
from .hash import Hash
from .metis import Metis, MetisWork
from .streaming import Fennel, Ldg

PARTITIONERS: Registry[Any] = Registry(
    "partitioner", (Contiguous, Hash, Ldg, Fennel, Metis, MetisWork, Louvain, Leiden)
)
"""Classes that follow `base.Partitioner`; each can be made without arguments."""


def partitioner(name: str) -> Partitioner:
    """The partitioner `name` with its defaults.

    Raises:
        InputError: there is none of that name.
    """
    return PARTITIONERS.find(name)()
