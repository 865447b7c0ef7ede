"""Verification of everything in a folder that has a digest or a checksum: a run's, a store's, stored samples."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..storage.checkpoint import EARLIER, STATE_FILE
from ..storage.checkpoint import KIND as CHECKPOINT
from ..storage.dataset_store import KIND as DATASET
from ..storage.dataset_store import features_access, graph_access, open_dataset_store
from ..storage.errors import InputError, MillraceError, StoreError
from ..storage.fingerprint import GRAPH_DIGESTS, ArrayDigest, digest_record, features_fingerprint, later_digests
from ..storage.queue.location import KIND as SAMPLES
from ..storage.store.digested_file import check_file, file_sha256
from ..storage.store.manifest import MANIFEST, kind_in, read_manifest
from ..storage.store.npy import row_pieces
from ..storage.store.paths import check_no_url
from ..storage.store.store import Store, open_store
from ..storage.stored.version1 import read_version_1, store_of_version_1
from .setup.open_queue import open_queue
from .setup.result import FILES, known_digests
from .setup.run_folder import JOB
from .telemetry.events import Emit, StageAdvanced, StageEnded, StageStarted

MIB = 1 << 20


@dataclass
class Verified:
    """What was verified."""

    checked: list[str] = field(default_factory=list)
    """Names of files and stores with a digest or checksums, damaged or not."""
    damaged: dict[str, str] = field(default_factory=dict)
    """What differs, by name."""
    unknown: list[str] = field(default_factory=list)
    """Names of what nothing is known of: of an earlier version, or in a file that is mapped without a digest."""


class _Progress:
    """Bytes that were read, of those that there are."""

    def __init__(self, total: int, emit: Emit) -> None:
        self._total, self._emit, self._done = -(-total // MIB), emit, 0

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        self._emit(StageAdvanced("check (MiB)", min(self._done // MIB, self._total), self._total))


def verify(path: Path, emit: Emit) -> Verified:
    """Read everything in a folder that has a digest or a checksum, and compare. Nothing is written.

    Args:
        path: a run's folder, a store of any kind, or a folder with any of them below.
        emit: called with progress in MiB.

    Raises:
        InputError: there is nothing to check.
    """
    files = [*FILES] if (path / JOB).is_file() else []
    stores = sorted(Path(folder) for folder, _, names in os.walk(path) if MANIFEST in names)
    if not files and not stores:
        check_no_url(path, "a folder on a file system")
        raise InputError(f"{path} holds no run and no store; expected the folder of one")
    found = Verified()
    total = sum(f.stat().st_size for folder in stores for f in folder.rglob("*") if f.is_file())
    emit(StageStarted("check", f"checking {path}", -(-total // MIB)))
    tell = _Progress(total, emit)
    known = _known(path, found) if files else {}
    for name in files:
        if (path / name).is_file() or name in known:
            _try(found, name, lambda name=name: _file(path / name, known))
    for folder in stores:
        name = str(folder.relative_to(path)) if folder != path else path.name
        _try(found, name, lambda folder=folder: _store(folder, tell))
    emit(StageEnded("check", 0.0))
    return found


def _known(path: Path, found: Verified) -> Mapping[str, str]:
    try:
        return known_digests(path)
    except StoreError as e:
        found.damaged["result.json"] = str(e)
        return {}


def _try(found: Verified, name: str, check: Callable[[], list[str] | None]) -> None:
    """Add the outcome of a check, which returns the names of what it knew nothing of; None: of all."""
    try:
        unknown = check()
    except (MillraceError, OSError) as e:
        found.damaged[name] = str(e)
        unknown = []
    if unknown is not None:
        found.checked.append(name)
    found.unknown += [name] if unknown is None else [f"{name}/{each}" for each in unknown]


def _file(file: Path, known: Mapping[str, str]) -> list[str] | None:
    if file.name not in known:
        return None
    if not file.is_file():
        raise StoreError(f"{file} is missing")
    check_file(file, known[file.name])
    return []


def _store(folder: Path, tell: Callable[[int], None]) -> list[str]:
    kind = kind_in(folder) or ""
    if kind == CHECKPOINT:
        _checkpoint(folder)
        return []
    if kind == DATASET:
        if (earlier := store_of_version_1(folder, kind)) is not None:
            read_version_1(earlier)
        else:
            _dataset(folder, tell)
        return []
    store = open_store(folder, kind)
    if kind == SAMPLES:
        queue = open_queue(folder)
        for _ in queue:  # refuses what a finished store lacks
            pass
        if (packed := queue.packed) is not None:
            _ = packed.seeds  # compares its checksum
            for epoch in queue.epochs():
                for number in sorted(packed.committed(epoch)):
                    packed.verify(epoch, number)
    for name in store.entries:
        for piece in _pieces(store, name):
            tell(piece.nbytes)
    return [name for name in store.entries if store.is_mappable(name)]


def _pieces(store: Store, name: str) -> Iterator[npt.NDArray[Any]]:
    """All rows of an array; those of Zarr chunks are verified as they are read."""
    shape, itemsize = tuple(store.entries[name]["shape"]), np.dtype(store.entries[name]["dtype"]).itemsize
    if not store.is_mappable(name):
        chunk = store.array(name).chunks[0]
        step = max(1, (64 * MIB) // max(1, chunk * itemsize * int(np.prod(shape[1:], dtype=np.int64)))) * chunk
        slices = [slice(first, min(first + step, shape[0])) for first in range(0, shape[0], step)]
    else:
        slices = list(row_pieces(shape, itemsize))
    for rows in slices:
        yield store.piece(name, rows)


def _checkpoint(folder: Path) -> None:
    try:
        body = read_manifest(folder, CHECKPOINT)
    except StoreError:
        body = read_manifest(folder, CHECKPOINT, EARLIER)
    if body["meta"].get("sha256") != file_sha256(folder / STATE_FILE):
        raise StoreError(f"{folder / STATE_FILE} does not match its digest")


def _dataset(folder: Path, tell: Callable[[int], None]) -> None:
    store = open_store(folder, DATASET)
    place = graph_access(store)
    # Labels, splits and a graph in memory are compared as they are opened.
    data = open_dataset_store(folder, features_access(folder), graph=place)
    if place == "mapped":
        digests: dict[str, Any] = dict.fromkeys(GRAPH_DIGESTS)
        for name in (n for n in GRAPH_DIGESTS if n in store):
            digest = ArrayDigest(GRAPH_DIGESTS[name], tuple(store.entries[name]["shape"]))
            for piece in _pieces(store, name):
                digest.update(piece)
                tell(piece.nbytes)
            digests[name] = digest.hexdigest()
        store.require_digest("graph", digest_record({**digests, **later_digests(data.graph)}))
    store.require_digest("features", features_fingerprint(data.features, tell))
    if (of_edges := data.graph.edge_features) is not None:
        store.require_digest("edge_features", features_fingerprint(of_edges, tell))
