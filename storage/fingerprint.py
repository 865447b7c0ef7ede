"""Digests: short names for content, so that a store can record what it was made from."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .dataset import Dataset
from .features import FeatureStore
from .graph import Graph
from .minibatch import Block, MiniBatch
from .store.manifest import canonical_json

PIECE_BYTES = 4 << 20
"""Arrays are read about this many bytes at a time."""


class ArrayDigest:
    """SHA-256 of one array, updated with its rows from first to last. Any division into pieces gives the same
    digest."""

    def __init__(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        # Byte order is fixed, so that a digest is the same on every machine.
        self._dtype = np.dtype(dtype).newbyteorder("<")
        assert not self._dtype.hasobject, "arrays of objects have no bytes to digest"
        self._hash = hashlib.sha256(canonical_json([self._dtype.str, list(shape)]))

    def update(self, rows: npt.NDArray[Any]) -> None:
        """Add the next rows."""
        if rows.size:
            self._hash.update(np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).data)

    def hexdigest(self) -> str:
        """64 hex digits."""
        return self._hash.hexdigest()


def _array_digest(value: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> str:
    """Digest of an array as if it had this `dtype`; copies at most `PIECE_BYTES`, or one row, at a time."""
    digest = ArrayDigest(dtype or value.dtype, value.shape)
    rows = np.atleast_1d(value)
    step = max(1, PIECE_BYTES // max(1, rows.nbytes // max(1, len(rows))))
    for start in range(0, len(rows), step):
        digest.update(rows[start : start + step])
    return digest.hexdigest()


def digest_arrays(**arrays: npt.NDArray[Any] | None) -> str:
    """SHA-256 over name, dtype, shape and bytes of each array, whatever the order of the arguments.

    None stands for an array that is absent, and differs from an empty one. Byte order and memory layout do not matter.

    Returns:
        64 hex digits.
    """
    return digest_record({name: None if a is None else _array_digest(a) for name, a in arrays.items()})


def digest_record(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record of plain values (str, int, float, bool, None, lists, mappings) as canonical JSON.

    Returns:
        64 hex digits.
    """
    return hashlib.sha256(canonical_json(dict(record))).hexdigest()


def graph_fingerprint(graph: Graph) -> str:
    """Digest of all arrays of a graph. The width of `indices` does not matter."""
    return digest_record(
        {
            "indptr": _array_digest(graph.indptr, np.int64),
            "indices": _array_digest(graph.indices, np.int64),
            "edge_weight": None if graph.edge_weight is None else _array_digest(graph.edge_weight),
            "edge_id": None if graph.edge_id is None else _array_digest(graph.edge_id, np.int64),
        }
    )


def describe_features(num_rows: int, num_features: int, dtype: npt.DTypeLike, digest: str) -> str:
    """Description of features in fingerprints, e.g. ``float32[2708,1433]:1f0c...``."""
    return f"{np.dtype(dtype)}[{num_rows},{num_features}]:{digest}"


def features_fingerprint(features: FeatureStore) -> str:
    """Shape, dtype and digest of feature rows; reads each row once, in bounded memory."""
    n, f = features.num_rows, features.num_features
    digest = ArrayDigest(features.dtype, (n, f))
    step = max(1, PIECE_BYTES // max(1, f * features.dtype.itemsize))
    for start in range(0, n, step):
        digest.update(features.gather(np.arange(start, min(start + step, n))))
    return describe_features(n, f, features.dtype, digest.hexdigest())


def dataset_fingerprint(dataset: Dataset, features: str | None = None) -> dict[str, str]:
    """Fingerprint of a dataset, by parts: ``graph``, ``features``, ``labels``, ``split``.

    Args:
        dataset: the dataset.
        features: `features_fingerprint` of its features, if it is known already (it reads every row).
    """
    split = dataset.split
    return {
        "graph": graph_fingerprint(dataset.graph),
        "features": features_fingerprint(dataset.features) if features is None else features,
        "labels": digest_arrays(labels=dataset.labels),
        "split": digest_arrays(train=split.train, val=split.val, test=split.test),
    }


def minibatch_digest(minibatch: MiniBatch) -> str:
    """Digest of a minibatch's structure: all arrays of all blocks. Epoch, index and the width of ids do not matter."""

    def block(b: Block) -> dict[str, Any]:
        return {
            "num_dst": b.num_dst,
            "src": _array_digest(b.src, np.int64),
            "indptr": _array_digest(b.indptr, np.int64),
            "indices": _array_digest(b.indices, np.int64),
            "weight": None if b.weight is None else _array_digest(b.weight),
            "edge_id": None if b.edge_id is None else _array_digest(b.edge_id, np.int64),
        }

    return digest_record({"blocks": [block(b) for b in minibatch.blocks]})
