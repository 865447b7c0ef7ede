"""The contract of a reader: one record for each kind of input."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....storage.dataset import Dataset
from ....storage.dataset_store import FeaturesPlace
from ..cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..cleaning.raw import Raw


@dataclass(frozen=True)
class Request:
    """What the caller of `open_dataset` asked for beside the source."""

    name: str | None = None
    """What to call the dataset; None: after the source."""
    options: ReadOptions = DEFAULT_OPTIONS
    """What to do about defects."""
    split: str | None = None
    seed: int = 0
    features: FeaturesPlace = "memory"
    """Where the features of a Millrace store lie."""


@dataclass(frozen=True)
class Reader:
    """Opens one kind of input. Other packages add theirs as entry points ``millrace.readers``."""

    name: str
    recognises: Callable[[Any], bool]
    """Whether a source, a string, a path or an object, is of this kind. It looks at no contents and imports nothing
    heavy; at most one reader recognises a source."""
    read: Callable[[Any, Request], Raw | Dataset]
    """Reads a source: a `Raw`, which is then checked, cleaned and split as the request says, or a `Dataset`."""
    form: str = ""
    """How a source of this kind is written, for messages: ``sbm:nodes=...``."""
    is_clean: bool = True
    """Whether its datasets are clean: they take no options, and are split as the request says. Otherwise a `Dataset`
    that `read` returns has honoured the whole request."""
    is_name: bool = False
    """Whether a source is a name, which means the same from any folder, and not a path."""


def path_of(source: Any) -> Path | None:
    """The path that a source names; None where nothing lies there, or it is an object."""
    if not isinstance(source, str | Path):
        return None
    path = Path(source).expanduser()
    return path if path.exists() else None
