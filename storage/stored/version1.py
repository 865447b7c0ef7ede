"""Dataset stores of schema version 1, which had other digests of arrays: they are read into memory."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from ..array_checks import proving
from ..dataset import SPLITS, Dataset, Split, Task
from ..errors import StoreError
from ..features import ArrayFeatures
from ..fingerprint import GRAPH_DIGESTS, describe_features, digest_record, flat_digest, flat_graph_digest
from ..graph import Graph
from ..store.manifest import read_manifest
from ..store.store import Store

VERSION = 1


def store_of_version_1(path: Path, kind: str) -> Store | None:
    """The dataset store of version 1 at `path`; None if there is none, or another version's."""
    try:
        body = read_manifest(path, kind, VERSION)
    except StoreError:
        return None
    return Store(path, kind, body["fingerprint"], body["meta"], body["arrays"])


def read_version_1(store: Store) -> Dataset:
    """The dataset of such a store, in memory.

    Raises:
        StoreError: it is incomplete or damaged.
    """
    with proving(store.path):
        if store.value("features_format", str) == "npy":
            x = np.load(store.path / "features.npy", allow_pickle=False)
        else:
            x = store.read("features")
        arrays: dict[str, Any] = {name: store.read(name) if name in store else None for name in GRAPH_DIGESTS}
        dataset = Dataset(
            store.value("name", str),
            Graph(**arrays),
            ArrayFeatures(x),
            store.read("labels"),
            Split(*map(store.read, SPLITS)),
            store.value("num_classes", int),
            cast(Task, store.value("task", str)),
            tuple(map(str, store.value("notes", list))),
        )
        split = {name: flat_digest(getattr(dataset.split, name)) for name in SPLITS}
        store.require_digest("graph", flat_graph_digest(dataset.graph))
        store.require_digest("labels", digest_record({"labels": flat_digest(dataset.labels)}))
        store.require_digest("split", digest_record(split))
        store.require_digest("features", describe_features(len(x), x.shape[1], x.dtype, flat_digest(x)))
        return dataset.check()
