"""The dataset of a store, of which only the manifest is read until its arrays are used.

The driver of a run works on it: counts and digests come from the manifest. Ranks and workers use its arrays.
"""

# Fields become cached properties, which behave the same to readers.
# pyrefly: ignore-errors[bad-override]

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from . import dataset_store
from .array_checks import proving, require
from .array_kinds import AnyArray
from .dataset import PAIR_ARRAYS, SPLITS, Dataset, Split
from .dataset_store import FeaturesAccess, GraphAccess, features_shape, large_array, open_features
from .errors import StoreError
from .features import FeatureStore
from .fingerprint import GRAPH_DIGESTS, graph_fingerprint
from .graph import GRAPH_ARRAYS, Graph, check_of_edges
from .node_names import NodeNames, open_names
from .optional import present_items
from .store.bytes_left import fits_in_memory
from .store.store import Store, open_store
from .stored.edge_features import edge_feature_width, open_edge_features
from .stored.facts import facts_of
from .stored.graph import StoredGraph, StoredRows, checked_unit

NODE_BYTES = 64
"""Memory of a node: label, degree, positions, masks."""


class LazyGraph(Graph):
    """Graph of a store whose arrays are read, and checked, when they are first used."""

    num_nodes = num_edges = num_edge_features = 0
    is_weighted = has_edge_times = has_node_times = False
    _store: Store
    place: GraphAccess
    """Place of its arrays once they are used."""
    edges_access: FeaturesAccess
    """Place of the features of its edges once they are used."""

    def __init__(self, store: Store, place: GraphAccess = "memory", edges_access: FeaturesAccess = "memory") -> None:
        dataset_store.check_graph_access(store, place)
        shape = StoredGraph(store)
        vars(self).update(_store=store, place=place, edges_access=edges_access, types=dataset_store.open_types(store))
        vars(self).update(num_nodes=shape.num_nodes, num_edges=shape.num_edges)
        vars(self).update(num_edge_features=edge_feature_width(store), is_weighted="edge_weight" in store)
        vars(self).update(has_edge_times="edge_time" in store, has_node_times="node_time" in store)

    @property
    def nbytes(self) -> int:
        return sum(self._store.bytes_of(name) for name in GRAPH_ARRAYS if name in self._store)

    @property
    def time_unit(self) -> str | None:
        return checked_unit(self._store)

    @cached_property
    def edge_features(self) -> FeatureStore | None:
        return open_edge_features(self._store, self.edges_access)

    @property
    def on_disk(self) -> StoredGraph:
        """The same graph, whose rows are read when asked for and not kept, without weights, ids and features of
        edges."""
        return StoredGraph(self._store, only_sources=True)

    @property
    def has_later(self) -> bool:
        return any(a.later and name in self._store for name, a in GRAPH_ARRAYS.items())

    @property
    def files(self) -> dict[str, Path]:
        """Files of the arrays that lie in ``.npy`` files and are mapped; values are checked first. Raises StoreError if
        they are damaged."""
        if self.place == "memory":
            return {}
        self.check()
        return {name: self._store.path.resolve() / f"{name}.npy" for name in GRAPH_DIGESTS if name in self._store}

    def pieces(self, name: str, num_bytes: int) -> Iterator[AnyArray]:
        """The array `name`, about so many bytes at a time, which are not kept.

        Raises:
            StoreError: the store is damaged.
        """
        entry = self._store.entries[name]
        step = max(1, num_bytes // np.dtype(entry["dtype"]).itemsize)
        for first in range(0, entry["shape"][0], step):
            piece = self._store.piece(name, slice(first, first + step))
            if name != "indptr":
                with proving(self._store.path):
                    check_of_edges(name, piece, self.num_nodes, len(piece))
            yield piece

    def read_array(self, name: str) -> Any:
        """An array of the graph, checked; None if it is not there."""
        # Without types there are no relations, whatever the store holds; with types, there must be.
        if self.types.is_single if name == "edge_type" else name not in self._store:
            return None
        array = large_array(self._store, name, self.place) if name in GRAPH_DIGESTS else self._store.read(name)
        with proving(self._store.path):
            GRAPH_ARRAYS[name].check(self, array)
        return array

    def written(self, name: str) -> Any:
        """See `Graph.written`. The array is read slice by slice."""
        return StoredRows(self._store, name) if name in self._store else None

    def check(self) -> "LazyGraph":
        """Read all arrays, which are checked as they are read. Raises StoreError if they are damaged."""
        _ = [getattr(self, name) for name in GRAPH_ARRAYS]
        if self.place == "memory":
            self._store.require_digest("graph", graph_fingerprint(self))
        return self


class LazyDataset(Dataset):
    """Dataset of a store whose arrays are read when they are first used."""

    _store: Store
    path: Path
    """Folder of the store."""
    features_access: FeaturesAccess
    """Place of the features once they are opened."""
    _names: bool
    num_features = num_pair_features = 0
    of_pairs = has_pair_times = False

    def __init__(
        self, store: Store, features: FeaturesAccess, name: str | None, names: bool, graph: GraphAccess
    ) -> None:
        with proving(store.path):
            entries = store.entries
            vars(self).update(
                _store=store,
                path=store.path,
                features_access=features,
                _names=names,
                graph=LazyGraph(store, graph, features),
                **facts_of(store) | present_items({"name": name}),
                has_pair_times="pair_time" in store,
                num_pair_features=entries["pair_features"]["shape"][1] if "pair_features" in store else 0,
            )
            vars(self).update(of_pairs=self.task == "link" or "pairs" in store, num_features=features_shape(store)[1])
            rows = (entries["labels"]["shape"][0], features_shape(store)[0])
            there = f"it has {rows[0]} labels and {rows[1]} feature rows of {self.num_nodes} nodes"
            labelled = rows[0] if self.of_pairs else self.num_nodes
            require(rows == (labelled, self.num_nodes), there)
        if features != "memory":
            _ = self.features  # refuses a place that does not fit how the store was written

    @cached_property
    def split_sizes(self) -> dict[str, int]:
        return {name: self._store.entries[name]["shape"][0] for name in SPLITS}

    def read_array(self, name: str) -> Any:
        """An array of the dataset; None if it is not there."""
        if name == "labels":
            return large_array(self._store, name, "memory")
        return self._store.read(name) if name in self._store else None

    @property
    def has_unknown(self) -> bool:
        if "has_unknown" in self._store.meta:
            return self._store.value("has_unknown", bool)
        return super().has_unknown

    @property
    def known_digests(self) -> Mapping[str, str]:
        store = self._store
        known = ("graph", "features", "edge_features")
        found = {name: store.fingerprint[name] for name in known if name in store.fingerprint}
        digests = store.value("digests", dict) if "digests" in store.meta else {}
        return found | {str(name): str(digest) for name, digest in digests.items()}

    @cached_property
    def features(self) -> FeatureStore:
        return open_features(self._store, self.features_access)

    @cached_property
    def split(self) -> Split:
        split = Split(*(self._store.read(name) for name in SPLITS))
        with proving(self._store.path):
            rows = self._store.entries["labels"]["shape"][0] if self.of_pairs else self.num_nodes
            return split.check(rows, "pair" if self.of_pairs else "node")

    @cached_property
    def node_names(self) -> NodeNames | None:
        return open_names(self._store) if self._names else None

    def check(self) -> "Dataset":
        """The dataset itself: what the manifest says was checked when it was opened, and arrays are as they are
        read."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays and features in memory."""
        arrays = sum(map(self._store.bytes_of, self._store.entries))
        return arrays + sum(n for key, n in self._store.meta.items() if key.startswith("features_bytes"))

    @property
    def is_large(self) -> bool:
        """True if memory has no room for the graph, and what an evaluation keeps for each node."""
        return not fits_in_memory(self.graph.nbytes + NODE_BYTES * self.num_nodes)

    def read(self) -> "LazyDataset":
        """Read all arrays but features that stay on disk, and check that they fit together.

        Raises:
            StoreError: the store is damaged.
        """
        with proving(self._store.path):
            super().check()
        dataset_store.check_loaded(self._store, self, "mapped")
        return self

    def as_read(self, edge_features: bool = True) -> Dataset:
        """The same as a plain `Dataset`, which `dataclasses.replace` takes; without the features of edges if they are
        not wanted."""
        self.read()
        g = self.graph
        edges = g.edge_features if edge_features else None
        arrays = {name: getattr(g, name) for name in GRAPH_ARRAYS}
        graph = Graph(**arrays, types=g.types, edge_features=edges, time_unit=g.time_unit)
        own: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Dataset)}
        return Dataset(**own | {"graph": graph})


for _view, _names in ((LazyGraph, GRAPH_ARRAYS), (LazyDataset, ("labels", *PAIR_ARRAYS))):
    for _name in _names:
        _read = cached_property(partial(lambda name, view: view.read_array(name), _name))
        _read.__set_name__(_view, _name)
        setattr(_view, _name, _read)


def open_lazily(
    path: Path,
    features: FeaturesAccess = "memory",
    *,
    name: str | None = None,
    names: bool = True,
    graph: GraphAccess = "memory",
) -> LazyDataset:
    """Open the dataset of a store by its manifest.

    Args:
        path: its folder.
        features: see `open_dataset_store`.
        name: for the dataset, in place of the store's.
        names: read the names of the nodes too, once they are used.
        graph: see `open_dataset_store`.

    Raises:
        InputError: `features` or `graph` does not fit how the store was written.
        StoreError: the store is absent or incomplete, or its manifest is damaged.
    """
    store = open_store(Path(path), dataset_store.KIND)
    missing = sorted({"indptr", "indices", "labels", *SPLITS} - store.entries.keys())
    if missing:
        raise StoreError(f"{store.path} has no array '{missing[0]}'; it holds {sorted(store.entries)}")
    dataset_store.check_graph_access(store, graph)
    return LazyDataset(store, features, name, names, graph)
