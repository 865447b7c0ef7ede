"""Parquet files on an object store, as an ingest reads them; and stores that are copied there and back."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from ...storage.dataset_store import KIND
from ...storage.errors import InputError
from ...storage.queue.object_store import ObjectLocation, ObjectReader
from ...storage.store.committed_folder import committed_folder, remove_tree
from ...storage.store.own_files import own_folder
from ...storage.store.store import Store, open_store

UPLOAD = ".upload-"


@dataclass(frozen=True)
class UrlFile:
    """A file below a URL. It has what an ingest uses of a `Path`."""

    folder: str
    name: str

    def __str__(self) -> str:
        return f"{self.parent}/{self.name}"

    @property
    def parent(self) -> str:
        """The URL of its folder."""
        return self.folder.rstrip("/")

    def resolve(self) -> "UrlFile":
        """The file itself."""
        return self

    def stamp(self) -> tuple[int, int]:
        """Size and time of the last change. Raises FileNotFoundError."""
        found = _location(self.folder).files().get(self.name)
        if found is None:
            raise FileNotFoundError(str(self))
        return found

    def open(self) -> ObjectReader:
        """The file, to be read by ranges."""
        return _location(self.folder).reader(self.name)


@lru_cache(maxsize=4)
def _location(url: str) -> ObjectLocation:
    return ObjectLocation(url)


def opened(path: Path | UrlFile) -> Any:
    """Anything that pyarrow reads a file from."""
    return path.open() if isinstance(path, UrlFile) else path


def names_at(url: str) -> list[str]:
    """Names of the files directly below a URL, in order. Raises RunError if the object store does not answer."""
    return sorted(n for n in _location(url).files() if "/" not in n)


def holds_store(url: str) -> bool:
    """True if a store lies at a URL."""
    return _location(url).has("")


def fetched_store(url: str, out: Path) -> Store:
    """Copy the dataset's store at a URL into the folder `out`. Raises StoreError: it is of another kind, or damaged;
    RunError: the object store does not answer."""
    place = ObjectLocation(url)
    place.manifest("", KIND)
    with committed_folder(out) as folder:
        place.download(folder)
    return open_store(out, KIND)


def uploaded(url: str, make: Callable[[Path], Store]) -> Store:
    """Make a store in this folder, copy it to a URL, and remove it here. Returns its description. Raises StoreError: a
    store is there already, or access is refused; RunError: the object store does not answer."""
    place = ObjectLocation(url)
    if place.has(""):
        raise InputError(f"{url} already exists; choose another --out")
    local = own_folder(Path.cwd() / f"{UPLOAD}{PurePosixPath(url).name}")
    shutil.rmtree(local)
    store = make(local)
    try:
        place.upload(local)
    finally:
        remove_tree(local)
    return store
