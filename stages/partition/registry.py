"""Registry of partitioners by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ...storage.errors import InputError, nearest
from .base import Partitioner
from .clustered import Leiden, Louvain
from .contiguous import Contiguous
from .hash import Hash
from .metis import Metis, MetisWork
from .streaming import Fennel, Ldg

PARTITIONERS: Mapping[str, Callable[[], Partitioner]] = MappingProxyType(
    {p.name: p for p in (Contiguous, Hash, Ldg, Fennel, Metis, MetisWork, Louvain, Leiden)}
)
"""Name -> class; each can be made without arguments."""


def partitioner(name: str) -> Partitioner:
    """The partitioner `name` with its defaults.

    Raises:
        InputError: no partitioner has that name.
    """
    if name not in PARTITIONERS:
        raise InputError(
            f"partitioner is '{name}'; expected one of "
            f"{', '.join(sorted(PARTITIONERS))}{nearest(name, list(PARTITIONERS))}"
        )
    return PARTITIONERS[name]()
