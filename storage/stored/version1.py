"""Dataset stores of schema version 1, which had other digests of arrays: they are read into memory."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..array_checks import proving
from ..array_kinds import AnyArray
from ..dataset import SPLITS, Dataset, Split
from ..errors import StoreError, first_line
from ..features import ArrayFeatures
from ..fingerprint import GRAPH_DIGESTS, describe_features, digest_record, flat_digest, flat_graph_digest
from ..graph import Graph
from ..store.manifest import MANIFEST, read_manifest
from ..store.regular import file_bytes, opened_file
from ..store.store import Store
from .facts import facts_of

VERSION = 1


def store_of_version_1(path: Path, kind: str) -> Store | None:
    """The dataset store of version 1 at `path`; None if there is none, or another version's.

    Raises:
        StoreError: its manifest is damaged.
    """
    try:
        body = read_manifest(path, kind, VERSION)
    except StoreError:
        if _version_in(path) == VERSION:
            raise
        return None
    return Store(path, kind, body["fingerprint"], body["meta"], body["arrays"])


def _version_in(path: Path) -> Any:
    """The schema version that a manifest names, whatever else is in it."""
    with suppress(OSError, ValueError, RecursionError):
        body = json.loads(file_bytes(path / MANIFEST))
        return body.get("schema_version") if isinstance(body, dict) else None
    return None


def read_version_1(store: Store) -> Dataset:
    """The dataset of such a store, in memory.

    Raises:
        StoreError: it is incomplete or damaged.
    """
    with proving(store.path):
        if store.value("features_format", str) == "npy":
            x = _features_in(store.path / "features.npy")
        else:
            x = store.read("features")
        arrays: dict[str, Any] = {name: store.read(name) for name in GRAPH_DIGESTS if name in store}
        split = Split(*map(store.read, SPLITS))
        dataset = Dataset(
            graph=Graph(**arrays),
            features=ArrayFeatures(x),
            labels=store.read("labels"),
            split=split,
            **facts_of(store),
        )
        digests = {name: flat_digest(getattr(split, name)) for name in SPLITS}
        store.require_digest("graph", flat_graph_digest(dataset.graph))
        store.require_digest("labels", digest_record({"labels": flat_digest(dataset.labels)}))
        store.require_digest("split", digest_record(digests))
        store.require_digest("features", describe_features(len(x), x.shape[1], x.dtype, flat_digest(x)))
        return dataset.check()


def _features_in(file: Path) -> AnyArray:
    """[V, F], the matrix in a ``.npy`` file. Raises StoreError if there is none."""
    try:
        opened_file(file).close()
        x = np.load(file, allow_pickle=False)
        if x.ndim == 2 and x.dtype.kind == "f":
            return x
        seen = f"{x.dtype}{list(x.shape)}"
    except (OSError, ValueError, EOFError) as e:
        seen = first_line(e)
    raise StoreError(f"{file} is damaged ({seen}); expected features [V, F]: make the store again")
