"""What a store of samples with packed rows keeps of the dataset: labels of seeds, sizes and digests. Training from it
opens nothing else.

```
<path>/seeds/   kind "packed-seeds": ids of the train nodes in ``train.npy``, their labels in ``labels.npy``
```
"""

# Properties become fields, which behave the same to readers.
# pyrefly: ignore-errors[bad-override]

import math
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from ..array_checks import proving
from ..array_kinds import Float64Array, IdArray, IntArray, ValueArray
from ..dataset import MATRIX_TASKS, Dataset, Split
from ..errors import InputError, StoreError
from ..features import FloatArray
from ..fingerprint import DatasetDigests
from ..graph import Graph
from ..optional import when_present
from ..store.bytes_left import require_memory
from ..store.manifest import are_sizes
from ..store.npy import HEADER_BYTES, make_npy, put_npy
from .location import Location

NAME, KIND = "seeds", "packed-seeds"
DIGESTS = ("graph", "feature_sample", "labels", "train", "val")
"""Those that a run's fingerprint is made of."""
FACTS = ("name", "task", "num_classes", "num_features", "has_unknown")
SIZES = ("num_nodes", "num_edges", "is_weighted", "num_edge_features")
NUMBERS = ("num_nodes", "num_edges", "num_edge_features", "num_features", "num_classes")


@dataclass(frozen=True, eq=False)
class SeedData:
    """The part of a dataset that training from packed rows reads."""

    meta: Mapping[str, Any]
    """Plain values: see `of_dataset`."""
    train: IdArray
    """[n], ascending, as minibatches number nodes."""
    labels: ValueArray
    """[n] or [n, C], of these."""

    @classmethod
    def of_dataset(cls, dataset: Dataset, lacking: str = "", order: str = "") -> "SeedData":
        """That of a dataset.

        Args:
            dataset: the whole data.
            lacking: what else training would read; such a run names the dataset.
            order: see `Sampling.order`.
        """
        graph, digests = dataset.graph, DatasetDigests(dataset)
        meta = {key: getattr(dataset, key) for key in FACTS} | {key: getattr(graph, key) for key in SIZES}
        meta |= {
            "dtype": str(np.dtype(dataset.features.dtype)),
            "class_names": when_present(list, dataset.class_names),
            "digests": {name: digests[name] for name in DIGESTS},
            "order": order,
            "lacking": lacking,
        }
        if lacking:
            return cls(meta, np.empty(0, np.int64), np.empty(0, np.int64))
        train = dataset.split.train
        return cls(meta, train, dataset.labels[train])

    def write(self, location: Location) -> None:
        """Commit it to a store of samples, unless it is there. Raises StoreError if that is of other data."""
        if not location.has(NAME):
            arrays = {"train": self.train, "labels": self.labels}
            shapes = {f"{name}_shape": list(a.shape) for name, a in arrays.items()}
            with location.making(NAME, KIND, {**self.meta, **shapes, "sum": self._sum}) as folder:
                for name, a in arrays.items():
                    make_npy(folder, name, a.shape, a.dtype)
                    put_npy(folder, name, a.shape, 0, a)
        elif (found := location.manifest(NAME, KIND)["meta"].get("sum")) != self._sum:
            raise StoreError(f"{location.path(NAME)} is of other seeds (checksum {found}); sample into another folder")

    @classmethod
    def read(cls, location: Location) -> "SeedData":
        """That of a store. Raises StoreError if it is damaged."""
        meta = location.manifest(NAME, KIND)["meta"]
        try:
            rows, shape, is_lacking = meta["train_shape"], meta["labels_shape"], meta["lacking"]
            digests = {name: str(meta["digests"][name]) for name in DIGESTS}
            is_sound = (
                are_sizes([*rows, *shape, *(meta[key] for key in NUMBERS)]) and np.dtype(meta["dtype"]).kind == "f"
            )
            if not (is_sound and len(shape) in (1, 2) and rows == shape[:1] and rows[0] <= meta["num_nodes"]):
                said = ("dtype", "train_shape", "labels_shape", *NUMBERS)
                raise ValueError(", ".join(f"{key} {str(meta[key])[:40]}" for key in said))
        except (KeyError, TypeError, ValueError) as e:
            raise StoreError(f"{location.path(NAME)} does not say what it holds ({e!r}); sample again") from None
        labels_of = rows[0] if is_lacking else rows[0] + meta["num_nodes"]
        wide, path = rows[0] + labels_of * math.prod(shape[1:]), location.path(NAME)
        require_memory(8 * wide, f"{path}: what it says of nodes and labels", "if that is wrong, sample again")
        train = np.empty(rows, np.int64)
        labels = np.empty(shape, np.float32 if meta["task"] in MATRIX_TASKS else np.int64)
        for name, a in (("train", train), ("labels", labels)):
            if a.size:
                deque(location.read(NAME, f"{name}.npy", HEADER_BYTES, a.reshape(-1).view(np.uint8).data), 0)
        found = cls({**meta, "digests": digests}, train, labels)
        in_graph = not train.size or 0 <= train.min() <= train.max() < meta.get("num_nodes", 0)
        if not in_graph or found._sum != meta.get("sum"):
            raise StoreError(f"{location.path(NAME)} does not match its checksum or graph; sample into another folder")
        return found

    @property
    def _sum(self) -> int:
        return zlib.crc32(self.labels.tobytes(), zlib.crc32(self.train.tobytes()))

    def dataset(self, path: str) -> "SampledDataset":
        """A dataset whose graph and features lie in the samples at `path` alone.

        Raises:
            InputError: training reads more of it than is there.
            StoreError: what is there does not fit together.
        """
        meta, matrix = self.meta, self.labels.ndim == 2
        if meta["lacking"]:
            raise InputError(
                f"{path} does not hold {meta['lacking']}, which training reads; name the dataset beside it"
            )
        nodes, none = meta["num_nodes"], np.empty(0, np.int64)
        # Rows that training never reads.
        labels = np.full((nodes, *self.labels.shape[1:]), 0 if matrix else -1, self.labels.dtype)
        labels[self.train] = self.labels
        with proving(path):
            found = SampledDataset(
                meta["name"],
                SampledGraph(path, meta),
                RowsElsewhere(path, nodes, meta["num_features"], np.dtype(meta["dtype"])),
                labels,
                Split(self.train, none, none),
                meta["num_classes"],
                task=meta["task"],
                class_names=when_present(tuple, meta["class_names"]),
                samples=path,
                order=meta["order"],
                has_unknown=meta["has_unknown"],
                digests=meta["digests"],
            )
            found.check()
        return found


def _refuse(path: str, what: str) -> NoReturn:
    raise InputError(f"{path} has samples and their features, but not {what}; name the dataset beside it")


@dataclass(frozen=True, eq=False)
class RowsElsewhere:
    """Features that lie beside the minibatches that need them. See `FeatureStore`."""

    path: str
    num_rows: int
    num_features: int
    dtype: np.dtype[np.floating]

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        _refuse(self.path, "the features of other nodes")


class SampledGraph(Graph):
    """Graph of which there are samples alone. Degrees come with the rows."""

    num_nodes = num_edges = num_edge_features = nbytes = 0
    is_weighted = False

    def __init__(self, path: str, meta: Mapping[str, Any]) -> None:
        vars(self).update({key: meta[key] for key in SIZES}, path=path)

    @property
    def indptr(self) -> NoReturn:
        _refuse(vars(self)["path"], "the graph")

    indices: Any = indptr

    @property
    def degree(self) -> Float64Array:
        """float64 [0]: none of any node."""
        return np.empty(0)

    @property
    def edge_features(self) -> NoReturn:
        _refuse(vars(self)["path"], "the features of edges")

    def check(self) -> "SampledGraph":
        """The graph itself: it was checked when samples were drawn."""
        return self


@dataclass(frozen=True, eq=False, repr=False)
class SampledDataset(Dataset):
    """Dataset of which there are samples, their features, and the labels of their seeds."""

    samples: str = ""
    """The store's folder or URL."""
    order: str = ""
    """See `Sampling.order`."""
    has_unknown: bool = False
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def known_digests(self) -> Mapping[str, str]:
        return self.digests

    def as_read(self, edge_features: bool = True) -> "Dataset":
        """The dataset itself: nothing of it is read later."""
        return self

    def check_use(self, *, is_cut: bool, is_read: bool, learns: bool) -> None:
        """Raise InputError if a run cuts the graph, draws minibatches itself, or learns rows of renumbered nodes."""
        if is_cut:
            raise InputError(
                f"{self.samples} holds samples and their features alone, and no graph to cut between ranks; leave "
                "bulk.topology out, or name the dataset"
            )
        if not is_read:
            raise InputError(
                f"{self.samples} holds samples and their features, but not the graph to draw others; give it as "
                "samples (run --samples), or name the dataset"
            )
        if learns and self.order:
            raise InputError(
                f"{self.samples} numbers nodes by the parts of a cut, but learned.width wants the dataset's own "
                "numbers, by which learnt rows begin and are written; name the dataset"
            )
