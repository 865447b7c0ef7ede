"""Digests: short names for content, so that a store can record what it was made from."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .array_kinds import AnyArray, FloatArray, IdArray, ValueArray
from .dataset import PAIR_ARRAYS, SPLITS, Dataset
from .features import FeatureStore
from .graph import GRAPH_ARRAYS, Graph
from .optional import present_items, when_present
from .store.manifest import canonical_json
from .typed.features import TypedFeatures

LEAF_BYTES = 4 << 20
"""Arrays are digested in leaves of about this many bytes, which may be read and hashed apart from each other."""


def leaf_rows(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> int:
    """Rows of each leaf of an array but the last, which may have fewer."""
    return max(1, LEAF_BYTES // max(1, np.dtype(dtype).itemsize * int(np.prod(shape[1:], dtype=np.int64))))


def digest_leaves(rows: ValueArray, dtype: npt.DTypeLike) -> bytes:
    """SHA-256 of each leaf of some rows that begin with a leaf, 32 bytes each, as if they had this `dtype`."""
    # Byte order is fixed, so that a digest is the same on every machine.
    wide, step = np.dtype(dtype).newbyteorder("<"), leaf_rows(dtype, rows.shape)
    return b"".join(
        hashlib.sha256(np.ascontiguousarray(rows[i : i + step], wide).reshape(-1).view(np.uint8).data).digest()
        for i in range(0, len(rows) if rows.size else 0, step)
    )


def digest_of_leaves(dtype: npt.DTypeLike, shape: tuple[int, ...], leaves: Iterable[bytes]) -> str:
    """Digest of an array from those of its leaves, in order: 64 hex digits."""
    digest = hashlib.sha256(canonical_json([np.dtype(dtype).newbyteorder("<").str, list(shape)]))
    for leaf in leaves:
        digest.update(leaf)
    return digest.hexdigest()


class ArrayDigest:
    """Digest of one array, updated with its rows from first to last. Any division into pieces gives the same digest.

    It is the SHA-256 of dtype, shape and the SHA-256 of each leaf, so that several processes can make it together.
    """

    def __init__(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape = np.dtype(dtype), shape
        assert not self._dtype.hasobject, "arrays of objects have no bytes to digest"
        self._step = leaf_rows(dtype, shape)
        self._leaves: list[bytes] = []
        self._open: list[AnyArray] = []
        self._held = 0

    def update(self, rows: AnyArray) -> None:
        """Add the next rows. They must not change before the digest is complete."""
        while len(rows):
            piece, rows = rows[: self._step - self._held], rows[self._step - self._held :]
            self._open.append(piece)
            self._held += len(piece)
            if self._held == self._step:
                self._close()

    def _close(self) -> None:
        rows = self._open[0] if len(self._open) == 1 else np.concatenate(self._open)
        self._leaves.append(digest_leaves(rows, self._dtype))
        self._open, self._held = [], 0

    def hexdigest(self) -> str:
        """64 hex digits, once all rows have been added."""
        if self._open:
            self._close()
        return digest_of_leaves(self._dtype, self._shape, self._leaves)


def array_digest(value: AnyArray, dtype: npt.DTypeLike | None = None) -> str:
    """Digest of an array as if it had this `dtype`; copies at most one leaf at a time."""
    kind = np.dtype(dtype or value.dtype)
    return digest_of_leaves(kind, value.shape, [digest_leaves(np.atleast_1d(value), kind)])


def flat_digest(value: AnyArray, dtype: npt.DTypeLike | None = None) -> str:
    """Digest of an array as if it had this `dtype`, as stores of schema version 1 have it: the SHA-256 of dtype, shape
    and bytes."""
    kind = np.dtype(dtype or value.dtype).newbyteorder("<")
    digest = hashlib.sha256(canonical_json([kind.str, list(value.shape)]))
    rows = np.atleast_1d(value)
    step = leaf_rows(kind, rows.shape)
    for start in range(0, len(rows) if rows.size else 0, step):
        digest.update(np.ascontiguousarray(rows[start : start + step], kind).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def digest_arrays(**arrays: AnyArray | None) -> str:
    """SHA-256 over name, dtype, shape and bytes of each array, whatever the order of the arguments.

    None stands for an array that is absent, and differs from an empty one. Byte order and memory layout do not matter.

    Returns:
        64 hex digits.
    """
    return digest_record({name: when_present(array_digest, a) for name, a in arrays.items()})


def digest_record(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record of plain values (str, int, float, bool, None, lists, mappings) as canonical JSON.

    Returns:
        64 hex digits.
    """
    return hashlib.sha256(canonical_json(dict(record))).hexdigest()


GRAPH_DIGESTS = {name: a.digested_as for name, a in GRAPH_ARRAYS.items() if a.digested_as}
"""Arrays of a graph, and the dtypes that they are digested in. The width of `indices` does not matter."""


def graph_fingerprint(graph: Graph) -> str:
    """Digest of all arrays of a graph."""
    arrays = {name: getattr(graph, name) for name in GRAPH_DIGESTS}
    digests = {k: when_present(lambda a, k=k: array_digest(a, GRAPH_DIGESTS[k]), a) for k, a in arrays.items()}
    return digest_record({**digests, **later_digests(graph)})


def flat_graph_digest(graph: Graph) -> str:
    """Digest of all arrays of a graph, as stores of schema version 1 have it."""
    arrays = {name: getattr(graph, name) for name in GRAPH_DIGESTS}
    return digest_record(
        {k: when_present(lambda a, k=k: flat_digest(a, GRAPH_DIGESTS[k]), a) for k, a in arrays.items()}
    )


def later_digests(graph: Graph) -> dict[str, object]:
    """Entries of a graph with types or times in the record of its digest. There are none without, so that such a digest
    is that of earlier versions."""
    found: dict[str, Any] = {name: array_digest(a) for name, a in graph.later.items()}
    if graph.types.is_single:
        return found
    return {**found, "types": graph.types.record(), "edge_type": array_digest(graph.edge_relations)}


def describe_features(num_rows: int, num_features: int, dtype: npt.DTypeLike, digest: str) -> str:
    """Description of features in fingerprints, e.g. ``float32[2708,1433]:1f0c...``."""
    return f"{np.dtype(dtype)}[{num_rows},{num_features}]:{digest}"


def features_fingerprint(features: FeatureStore, tell: Callable[[int], None] = lambda num_bytes: None) -> str:
    """Shape, dtype and digest of feature rows; reads each row once, in bounded memory. Of several node types, those of
    each. `tell` is called with the bytes of rows that have been read."""
    if isinstance(features, TypedFeatures):
        return typed_fingerprint([features_fingerprint(part, tell) for part in features.parts])
    n, f = features.num_rows, features.num_features
    digest = ArrayDigest(features.dtype, (n, f))
    step = leaf_rows(features.dtype, (n, f))
    for start in range(0, n, step):
        rows = features.gather(np.arange(start, min(start + step, n)))
        digest.update(rows)
        tell(rows.nbytes)
    return describe_features(n, f, features.dtype, digest.hexdigest())


def typed_fingerprint(of_types: Sequence[str]) -> str:
    """`features_fingerprint` of several node types by those of each."""
    return f"types:{digest_record({'types': list(of_types)})}"


SAMPLED_ROWS = 4096
"""Most rows of features that `feature_sample_digest` covers."""


def sampled_rows(num_rows: int) -> IdArray:
    """Evenly spaced rows, ascending: the sample that `feature_sample_digest` is made of."""
    return np.unique(np.linspace(0, max(num_rows - 1, 0), num=min(SAMPLED_ROWS, num_rows), dtype=np.int64))


def feature_sample_digest(num_rows: int, rows: FloatArray) -> str:
    """Digest of shape, dtype and the `sampled_rows` of features, which notices a changed matrix without reading all of
    it."""
    return digest_arrays(shape=np.array([num_rows, rows.shape[1]]), rows=rows)


def features_digest(features: FeatureStore) -> str:
    """`feature_sample_digest` of a feature store."""
    return feature_sample_digest(features.num_rows, features.gather(sampled_rows(features.num_rows)))


def labels_digest(arrays: Mapping[str, str], hides_pairs: bool) -> str:
    """Digest of the labels of nodes or pairs, and of what belongs to these, from those of the arrays: ``labels`` and,
    where there are any, `PAIR_ARRAYS`."""
    of_pairs = {a.digested_as: arrays[name] for name, a in PAIR_ARRAYS.items() if name in arrays}
    if "pairs" in arrays:
        return digest_record({"values": arrays["labels"], "hidden": hides_pairs, **of_pairs})
    return digest_record({"pairs": arrays["labels"], **of_pairs}) if of_pairs else arrays["labels"]


def fingerprint_of(digests: Mapping[str, str]) -> dict[str, str]:
    """A dataset's fingerprint, by the digests of its graph, its features, those of its edges, and single arrays."""
    whole = {name: digests[name] for name in ("graph", "features", "edge_features") if name in digests}
    of_arrays = {"labels": ("labels",), "split": SPLITS}.items()
    return whole | {part: digest_record({name: digests[name] for name in names}) for part, names in of_arrays}


class DatasetDigests:
    """Digests of the parts of a dataset, each made when first asked for unless it is known.

    They are ``graph``, ``features``, ``feature_sample``, of a graph with features of edges ``edge_features`` and
    ``edge_feature_sample``, and of single arrays ``labels``, ``train``, ``val`` and
    ``test``. A store's manifest has all but ``edge_feature_sample``, so that only those who write a dataset need read
    it all.
    """

    def __init__(self, dataset: Dataset, known: Mapping[str, str] | None = None, *, remade: bool = False) -> None:
        """
        Args:
            dataset: the dataset.
            known: digests known in advance, beside those that the dataset itself knows.
            remade: digests that the dataset itself knows are made of its arrays all the same.
        """
        self._dataset, self._known = dataset, {**({} if remade else dataset.known_digests), **(known or {})}

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = self._make(name)
        return self._known[name]

    def combined(self, *names: str) -> str:
        """Digest of several arrays: `digest_arrays` of them."""
        return digest_record({name: self[name] for name in names})

    def _make(self, name: str) -> str:
        dataset = self._dataset
        if name == "graph":
            return graph_fingerprint(dataset.graph)
        if name == "features":
            return features_fingerprint(dataset.features)
        if name == "feature_sample":
            return features_digest(dataset.features)
        if name in ("edge_features", "edge_feature_sample"):
            of_edges = dataset.graph.edge_features
            assert of_edges is not None
            return features_fingerprint(of_edges) if name == "edge_features" else features_digest(of_edges)
        if name != "labels":
            return array_digest(getattr(dataset.split, name))
        arrays = {"labels": dataset.labels, **{key: getattr(dataset, key) for key in PAIR_ARRAYS}}
        return labels_digest({key: array_digest(a) for key, a in present_items(arrays).items()}, dataset.hides_pairs)

    def fingerprint(self) -> dict[str, str]:
        of_edges = ["edge_features"] if self._dataset.num_edge_features else []
        return fingerprint_of({name: self[name] for name in ("graph", "features", "labels", *SPLITS, *of_edges)})


def dataset_fingerprint(
    dataset: Dataset, features: str | None = None, edge_features: str | None = None
) -> dict[str, str]:
    """Fingerprint of a dataset, by parts: ``graph``, ``features``, ``labels``, ``split``, and ``edge_features`` if
    there are any.

    Args:
        dataset: the dataset.
        features: `features_fingerprint` of its features, if it is known already (it reads every row).
        edge_features: that of its edges' features, likewise.
    """
    known = {"features": features, "edge_features": edge_features}
    return DatasetDigests(dataset, present_items(known)).fingerprint()
