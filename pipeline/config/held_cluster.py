"""Dask clusters that callers hold: clients, cluster objects, and files of schedulers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...storage.errors import InputError
from ...storage.optional import present_items
from ...storage.store.regular import file_text

_held: dict[str, Any] = {}
"""Clients and clusters of this process by the address of their scheduler."""


def is_held(value: object) -> bool:
    """True if a value is a client or a cluster of Dask, whose class comes from ``distributed``; or such a class, which
    `address_of` refuses."""
    # Compares names: importing Dask takes a second, and most commands need none of it.
    kind = value if isinstance(value, type) else type(value)
    return any(c.__module__.partition(".")[0] == "distributed" for c in kind.__mro__)


def held_at(address: str | None) -> Any:
    """The client or cluster that the caller holds of a scheduler; None: there is none, or it is closed."""
    return next((held for at, held in _held.items() if at == address and _is_running(held)), None)


def _is_running(held: object) -> bool:
    status = getattr(held, "status", None)
    return getattr(status, "name", status) == "running"


def address_of(given: object) -> str | None:
    """Address of the scheduler that a caller names: by it, by a client, a cluster or the scheduler's file.

    Raises:
        InputError: it is none of them, or closed, or its workers are threads of this process.
    """
    if given is None or isinstance(given, str | Path):
        return None if given is None else address_in(str(given))
    if not is_held(given) or isinstance(given, type):
        seen = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InputError(
            f"scheduler is {seen}; expected a Client or cluster of Dask, an address such as "
            "tcp://host:8786, or the scheduler's file"
        )
    held: Any = given
    what, of_cluster = type(held).__name__, hasattr(held, "scheduler_address")
    address = held.scheduler_address if of_cluster else held.scheduler and held.scheduler.address
    if not _is_running(held) or not address:
        raise InputError(f"the {what} is not running (status {held.status}); give one that is, and not asynchronous")
    if getattr(held, "asynchronous", False):
        raise InputError(f"the {what} is asynchronous; give one with asynchronous=False")
    if address.startswith("inproc://"):
        raise InputError(
            f"the workers of the {what} are threads of this process, and ranks are processes; make it with "
            "processes=True"
        )
    _held[address] = held
    return address


def address_in(text: str) -> str:
    """An address, or the one in a scheduler's file (``dask scheduler --scheduler-file``).

    Raises:
        InputError: it is a file, but not a scheduler's.
    """
    path = Path(text).expanduser()
    if "://" in text or not (path.suffix == ".json" or path.is_file()):
        return text
    try:
        address = json.loads(file_text(path))["address"]
        if not isinstance(address, str):
            raise TypeError("its address is no text")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise InputError(
            f"{text} is no file of a scheduler ({type(e).__name__}: {e}); expected the one that `dask scheduler "
            "--scheduler-file` writes, or an address such as tcp://host:8786"
        ) from None
    return address


def cluster_table(scheduler: object = None, cluster: object = None, client: object = None) -> dict[str, Any]:
    """Keys of the section ``cluster`` for the arguments of a call.

    Args:
        scheduler: see `address_of`.
        cluster: keys of the section, or as `scheduler`.
        client: as `scheduler`.

    Raises:
        InputError: they name different schedulers, or one is none.
    """
    keys = dict(cluster) if isinstance(cluster, Mapping) else {}
    named = {"scheduler": scheduler, "client": client, "cluster": None if isinstance(cluster, Mapping) else cluster}
    given = present_items(named)
    if keys.get("scheduler") is not None:
        given["cluster.scheduler"] = keys["scheduler"]
    addresses = {address_of(value) for value in given.values()}
    if len(addresses) > 1:
        raise InputError(f"{' and '.join(given)} name different Dask clusters; give one of them")
    return {**keys, "scheduler": addresses.pop()} if addresses else keys
