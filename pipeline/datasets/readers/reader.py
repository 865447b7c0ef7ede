"""Contract of a reader: one record for each kind of input."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....storage.store.paths import expanded
from ..cleaning.options import OF_TABLES
from ..schema.source import Request

Read = Callable[[Any, Request], Any]


@dataclass(frozen=True)
class Reader:
    """Opens one kind of input. Other packages add theirs as entry points ``millrace.readers``."""

    name: str
    recognises: Callable[[Any], bool]
    """True if a source, a string, a path or an object, is of this kind. It reads no contents and imports nothing heavy;
    at most one reader recognises a source."""
    read: Read
    """Reads a source: `GraphTables`, whose columns get roles by their names and the options; a `Raw`, which is then
    checked, cleaned and split according to the request; `Triples`, whose sets become links; or a `Dataset`."""
    form: str = ""
    """Written form of such a source in messages: ``sbm:nodes=...``."""
    is_clean: bool = True
    """True if its datasets are clean: they take no options, and `open_dataset` splits them. Otherwise a `Dataset` that
    `read` returns has followed the whole request."""
    takes: tuple[str, ...] = ()
    """Options that a clean source takes all the same; `read` follows them."""
    columns: tuple[str, ...] = OF_TABLES
    """Options for tables that `read` follows; others are refused."""
    is_name: bool = False
    """True if a source is a name, which means the same from any folder, and not a path."""


def path_of(source: object) -> Path | None:
    """The path that a source names; None if nothing is there, or the source is an object."""
    if not isinstance(source, str | Path):
        return None
    path = expanded(source)
    return path if path.exists() else None
