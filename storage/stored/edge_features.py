"""Features of edges in the store of a dataset: an array like those of its graph, in the format of its features."""

from typing import Literal

from ..array_checks import proving, require
from ..errors import InputError
from ..features import ArrayFeatures, FeatureStore, MappedFeatures, ZarrFeatures
from ..fingerprint import features_fingerprint
from ..store.store import Store

OF_EDGES = "edge_features"
"""Name of the array."""


def edge_feature_width(store: Store) -> int:
    """D, columns of the features of edges of a dataset store; 0: there are none."""
    if OF_EDGES not in store:
        return 0
    with proving(store.path):
        (rows, width), edges = store.entries[OF_EDGES]["shape"], store.entries["indices"]["shape"][0]
        require(rows == edges, f"it has {rows} rows of features of {edges} edges")
    return width


def open_edge_features(store: Store, place: Literal["memory", "mapped", "zarr"]) -> FeatureStore | None:
    """Features of the edges of a dataset store, in memory or on disk, as those of nodes; None if there are none.

    Raises:
        InputError: `place` does not fit how the store was written.
        StoreError: they are damaged.
    """
    if OF_EDGES not in store:
        return None
    in_file = store.is_mappable(OF_EDGES)
    if place == "memory":
        with proving(store.path):
            loaded = ArrayFeatures(store.read(OF_EDGES))
        store.require_digest(OF_EDGES, features_fingerprint(loaded))
        return loaded
    if place != ("mapped" if in_file else "zarr"):
        raise InputError(
            f"{store.path} was written with features of edges {'uncompressed' if in_file else 'in Zarr'}; open it with "
            f"features='{'mapped' if in_file else 'zarr'}' or 'memory', or write it again"
        )
    if not in_file:
        return ZarrFeatures.inside(store, OF_EDGES)
    _ = store.mapped(OF_EDGES)  # as the manifest says
    with proving(store.path):
        return MappedFeatures(store.path / f"{OF_EDGES}.npy")
