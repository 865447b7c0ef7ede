"""Datasets as committed stores: graph, labels, split and features. Features may stay on disk when a store is opened."""

import mmap
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any, Literal, cast

import numpy as np

from .array_checks import proving
from .array_kinds import IdArray
from .dataset import PAIR_ARRAYS, SPLITS, Dataset, Split, require_dataset
from .errors import InputError, StoreError, nearest
from .features import ArrayFeatures, FeatureStore, MappedFeatures, WidenedFeatures, ZarrFeatures
from .fingerprint import (
    GRAPH_DIGESTS,
    DatasetDigests,
    digest_record,
    feature_sample_digest,
    features_fingerprint,
    later_digests,
    sampled_rows,
    typed_fingerprint,
)
from .graph import GRAPH_ARRAYS, Graph, degree_summary
from .node_names import INTEGER_NAMES, name_arrays, open_names
from .optional import present_items, when_present
from .store.arrays import Rows, write_arrays
from .store.bytes_left import fits_in_memory, require_memory
from .store.committed_folder import committed_folder, sweep_leftovers
from .store.full_disk import needing_space
from .store.manifest import write_manifest
from .store.narrow import FEATURE_DTYPES, FeatureDtype, row_width
from .store.npy import advise, npy_header
from .store.scratch import InFiles, takes_memory
from .store.store import Store, open_store
from .stored.digested import NARROW, DigestedArray, DigestedRows
from .stored.edge_features import OF_EDGES, edge_feature_width, open_edge_features
from .stored.facts import facts_of, written_facts
from .stored.graph import StoredGraph, StoredRows, checked_unit
from .stored.narrowed import lost_notes
from .stored.version1 import read_version_1, store_of_version_1
from .typed.features import TypedFeatures
from .typed.graph_types import SINGLE, GraphTypes, edges_of_types

KIND = "dataset"
FEATURES_FILE = "features.npy"
MANIFEST_DIGESTS = ("labels", "train", "val", "test", "feature_sample")
"""Digests in the manifest of a dataset beside its fingerprint. See `fingerprint.DatasetDigests`."""
OF_SOME_GRAPHS = tuple(name for name in GRAPH_ARRAYS if name not in GRAPH_DIGESTS)
"""Arrays of a graph that are compressed, whatever the format of the others."""
FeaturesFormat = Literal["zarr", "npy"]
FeaturesAccess = Literal["memory", "mapped", "zarr"]
GraphAccess = Literal["memory", "mapped"]
STEP_BYTES = 256 << 20
"""Memory that is left for other things than a graph: libraries, and the tensors of a step."""


def write_dataset(
    path: Path,
    dataset: Dataset,
    overwrite: bool = False,
    *,
    features_format: FeaturesFormat = "zarr",
    graph_format: FeaturesFormat = "zarr",
    feature_dtype: FeatureDtype | None = None,
) -> Store:
    """Write a dataset as a committed store. Features, and the graph of another store, stream through: read once.

    Args:
        path: the folder to make.
        dataset: what to write.
        overwrite: replace a store that is there.
        features_format: "zarr" (compressed, checksummed by Zarr chunk) or "npy" (uncompressed, can be memory-mapped).
        graph_format: of the arrays of the graph, likewise.
        feature_dtype: "float32", "float16", "bfloat16" or "int8": rows are rounded to it, and are float32 again when
            they are read; None: as they are, or as the store keeps them that they come from.

    Raises:
        InputError: the dataset's parts do not fit together, or a format is unknown.
        StoreError: `path` exists and `overwrite` is false, or the store that the dataset comes from is damaged.
        RunError: the disk is full.
    """
    check_formats({"features_format": features_format, "graph_format": graph_format}, feature_dtype)
    require_dataset(dataset)
    dataset.check()
    path, graph, features = Path(path), dataset.graph, dataset.features
    typed = features.parts if isinstance(features, TypedFeatures) else None
    before = features.kind if isinstance(features, WidenedFeatures | TypedFeatures) else None
    kind = before if feature_dtype is None else feature_dtype
    written = present_items({name: graph.written(name) for name in GRAPH_DIGESTS})
    of_graph: dict[str, Any] = {name: DigestedArray(array, GRAPH_DIGESTS[name]) for name, array in written.items()}
    named, integer_names = name_arrays(dataset.node_names)
    others = present_items({name: getattr(graph, name) for name in OF_SOME_GRAPHS})
    arrays: dict[str, Rows] = {**of_graph, **others, **named, **dataset.arrays}
    of_edges = when_present(lambda rows: DigestedRows(rows, None), graph.edge_features)
    if of_edges is not None:
        arrays[OF_EDGES] = of_edges
    flat = {*(of_graph if graph_format == "npy" else ()), *([OF_EDGES] if features_format == "npy" else [])}
    whole = {"": features} if typed is None else {f"_{t}": part for t, part in enumerate(typed)}
    rows = {suffix: DigestedRows(part, kind) for suffix, part in whole.items()}
    meta: dict[str, Any] = {
        **written_facts(dataset),
        "features_format": features_format,
        **({"features_dtype": kind} if kind in NARROW else {}),
        **({"graph_format": graph_format} if graph_format == "npy" else {}),
        "in_degree": degree_summary(*np.unique(graph.in_degree, return_counts=True)),
        **({"has_unknown": dataset.has_unknown} if dataset.task == "multilabel" else {}),
        **present_items({INTEGER_NAMES: integer_names, "time_unit": graph.time_unit}),
        **({} if graph.types.is_single else {"types": graph.types.record(), "edges_of_types": edges_of_types(graph)}),
    }
    sweep_leftovers(path.parent, of=path.name)
    with needing_space(path), committed_folder(path, overwrite=overwrite) as folder:
        for suffix, each in rows.items():
            if features_format == "npy":
                with open(folder / features_file(suffix), "wb") as f:
                    f.write(npy_header(each.dtype, each.shape))
                    for piece in each.pieces():
                        f.write(np.ascontiguousarray(piece).data)
                    meta[f"features_bytes{suffix}"] = f.tell()
            else:
                arrays[f"features{suffix}"] = each
        entries = write_arrays(folder, arrays, npy=flat)
        digested = {n: of_graph[n].digest.hexdigest() if n in of_graph else None for n in GRAPH_DIGESTS}
        made = [each.digests() for each in rows.values()]
        if kind is not None and kind in NARROW:
            meta["notes"] += lost_notes(dataset, kind, [each.loss for each in rows.values()])
        if isinstance(dataset.features, TypedFeatures):
            digest = typed_fingerprint([d["features"] for d in made])
            sample = dataset.features.gather_rounded(sampled_rows(graph.num_nodes), kind)
            made = [{"features": digest, "feature_sample": feature_sample_digest(graph.num_nodes, sample)}]
        found = {**made[0], "graph": digest_record({**digested, **later_digests(graph)})}
        if of_edges is not None:
            found[OF_EDGES] = of_edges.digests()["features"]
        known = dict(dataset.known_digests)
        if kind not in (None, before):  # features may be rounded
            known = {"graph": known["graph"]} if "graph" in known else {}
        if bad := [name for name, digest in found.items() if known.get(name, digest) != digest]:
            raise StoreError(f"the {bad[0]} of {dataset.name} does not match the digest of its store; it is damaged")
        digests = DatasetDigests(dataset, found)
        meta["digests"] = {name: digests[name] for name in MANIFEST_DIGESTS}
        write_manifest(folder, KIND, digests.fingerprint(), meta, entries)
    return open_store(path, KIND)


def check_formats(formats: Mapping[str, str], feature_dtype: str | None) -> None:
    """Raise InputError unless the formats of arrays, by the names of their arguments, and the dtype are known."""
    for name, chosen in formats.items():
        if chosen not in ("zarr", "npy"):
            raise InputError(f"{name} is '{chosen}'; expected 'zarr' or 'npy'{nearest(chosen, ['zarr', 'npy'])}")
    if feature_dtype is not None and feature_dtype not in FEATURE_DTYPES:
        known = f"{', '.join(FEATURE_DTYPES)}{nearest(feature_dtype, FEATURE_DTYPES)}"
        raise InputError(f"feature_dtype is '{feature_dtype}'; expected {known}")


def features_file(suffix: str = "") -> str:
    """Name of a file of features; those of node type t of a graph with several have the suffix ``_t``."""
    return FEATURES_FILE.replace(".", f"{suffix}.")


def open_types(store: Store) -> GraphTypes:
    """Types of the nodes and edges of a dataset store. Raises StoreError if they are damaged."""
    if "types" not in store.meta:
        return SINGLE
    with proving(store.path):
        types = GraphTypes.of_record(store.value("types", dict))
        return types.check(store.entries["indptr"]["shape"][0] - 1, edge_feature_width(store))


def _npy_features(store: Store, suffix: str = "") -> MappedFeatures:
    file, expected = store.path / features_file(suffix), store.value(f"features_bytes{suffix}", int)
    seen = file.stat().st_size if file.is_file() else None
    if seen != expected:
        what = "is missing" if seen is None else f"has {seen} bytes"
        raise StoreError(f"{file} {what}; expected {expected} bytes: write the dataset again")
    with proving(store.path):
        return MappedFeatures(file, features_dtype(store) is not None)


def features_dtype(store: Store) -> FeatureDtype | None:
    """Dtype to which a dataset store narrows its features, or None. Raises StoreError if it names another one."""
    if "features_dtype" not in store.meta:
        return None
    kind = store.value("features_dtype", str)
    if kind not in NARROW:
        raise StoreError(f"{store.path}: features_dtype is '{kind[:80]}'; expected {', '.join(NARROW)}: write it again")
    return cast(FeatureDtype, kind)


def open_features(store: Store, place: FeaturesAccess) -> FeatureStore:
    """Features of a dataset store, in memory or on disk. Raises what `open_dataset_store` raises."""
    types = open_types(store)
    if types.is_single:
        found = _open_part(store, place, "")
    else:
        parts = tuple(_open_part(store, place, f"_{t}") for t in range(len(types.node_types)))
        with proving(store.path):
            found = TypedFeatures(parts, types.offsets)
    if place == "memory":
        store.require_digest("features", features_fingerprint(found))
    return found


def _open_part(store: Store, place: FeaturesAccess, suffix: str) -> FeatureStore:
    kind = features_dtype(store)

    def widened(rows: ArrayFeatures | ZarrFeatures) -> FeatureStore:
        with proving(store.path):
            return rows if kind is None else WidenedFeatures(rows, kind)

    written = store.value("features_format", str)
    other, name = "mapped" if written == "npy" else "zarr", f"features{suffix}"
    if place == "memory":
        size = store.bytes_of(name) if name in store else store.value(f"features_bytes{suffix}", int)
        require_memory(size, f"{store.path}: features", f"open them with features={other}, or give it more memory")
    if place == "memory" and written == "zarr":
        with proving(store.path):
            return widened(ArrayFeatures(store.read(name), kind is not None))
    if place == "memory":
        kept = _npy_features(store, suffix)
        return widened(ArrayFeatures(kept.gather(np.arange(kept.num_rows)), kind is not None))
    if (place, written) == ("mapped", "npy"):
        return widened(_npy_features(store, suffix))
    if (place, written) == ("zarr", "zarr"):
        return widened(ZarrFeatures.inside(store, name, kind is not None))
    raise InputError(
        f"{store.path} was written with features_format='{written}'; open it with features='memory' or '{other}', or "
        "write it again"
    )


def features_shape(store: Store) -> tuple[int, int]:
    """V and F of the features of a dataset store; reads none of them. Raises StoreError if the store is damaged."""
    if "types" in store.meta:
        features = open_features(store, features_access(store.path))
        return features.num_rows, features.num_features
    if store.value("features_format", str) == "npy":
        rows, width = _npy_features(store).rows.shape
    else:
        rows, width = store.entries["features"]["shape"]
    return rows, row_width(features_dtype(store) or "float32", width)


def features_access(path: Path) -> Literal["mapped", "zarr"]:
    """Ways to open the features of a stored dataset without loading them.

    Raises:
        StoreError: there is no dataset's store.
    """
    return "mapped" if open_store(Path(path), KIND).value("features_format", str) == "npy" else "zarr"


def features_on_disk(path: Path) -> FeatureStore:
    """Features of the dataset's store in a folder, of which rows are read as they are asked for. Raises StoreError."""
    return open_features(open_store(Path(path), KIND), features_access(path))


def graph_access(store: Store) -> GraphAccess:
    """Way to open the graph of a dataset store with the least memory."""
    return "mapped" if store.is_mappable("indices") else "memory"


def check_graph_access(store: Store, place: str) -> None:
    """Raise InputError unless the graph of a dataset store can be opened so."""
    if place not in ("memory", "mapped"):
        raise InputError(f"graph='{place}'; expected 'memory' or 'mapped'{nearest(place, ['memory', 'mapped'])}")
    if place == "mapped" and graph_access(store) != "mapped":
        raise InputError(
            f"{store.path} was written with graph_format='zarr', compressed; open it with graph='memory', or write it "
            "again: millrace convert STORE --out NEW --graph npy"
        )


def large_array(store: Store, name: str, place: GraphAccess) -> Any:
    """One of `GRAPH_DIGESTS` or the labels of a dataset store, in memory or mapped; None if a graph has none. Values
    are not checked. An array for which memory has no room is mapped whatever the place: a compressed one from an
    unnamed file, where the temporary folder has room.

    Raises:
        StoreError: it is absent or damaged, or there is no room for it.
    """
    if name not in store:
        return None if name in GRAPH_DIGESTS else store.read(name)  # which refuses
    size, folder = store.bytes_of(name), Path(tempfile.gettempdir())
    of_nodes = sum(store.bytes_of(each) for each in ("indptr", "labels") if each in store)  # and degrees
    has_room = fits_in_memory(size + of_nodes + STEP_BYTES)
    if place == "mapped" or (store.is_mappable(name) and not has_room):
        return store.mapped(name)
    if has_room or takes_memory(folder) or disk_usage(folder).free < size:
        more = "" if name == "labels" else "convert it with --graph npy, or "
        require_memory(size, f"{store.path}: '{name}'", f"{more}give it more")
        return store.read(name)
    found = store.read_into(name, InFiles(folder))
    advise(found, mmap.MADV_RANDOM)
    return found


def check_loaded(store: Store, dataset: Dataset, graph: GraphAccess) -> None:
    """Raise StoreError unless the arrays of a dataset that were read into memory have the digests of their store.

    A checksum says that a Zarr chunk is as it was written, not that it is a chunk of this array.
    """
    made = DatasetDigests(dataset, remade=True)
    if graph == "memory":
        store.require_digest("graph", made["graph"])
    store.require_digest("labels", made.combined("labels"))
    store.require_digest("split", made.combined(*SPLITS))


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """Stored dataset whose arrays stay on disk until they are asked for."""

    graph: StoredGraph
    features: FeatureStore
    edge_features: FeatureStore | None
    labels: "StoredRows | IdArray"
    """Labels of the nodes; 0 where pairs are labelled."""
    split: "Mapping[str, StoredRows | IdArray]"
    """Node ids of each set, by its name; none where sets are of pairs."""


def open_stored(path: Path) -> StoredDataset:
    """Open a dataset that `write_dataset` wrote and leave its arrays on disk.

    Raises:
        StoreError: the store is absent, incomplete or damaged.
    """
    store, place = open_store(Path(path), KIND), features_access(path)
    graph, of_pairs = StoredGraph(store), "pairs" in store or store.meta.get("task") == "link"
    none = np.empty(0, np.int64)
    return StoredDataset(
        graph,
        open_features(store, place),
        open_edge_features(store, place),
        np.broadcast_to(np.int64(0), graph.num_nodes) if of_pairs else StoredRows(store, "labels"),
        {name: none if of_pairs else StoredRows(store, name) for name in SPLITS},
    )


def open_dataset_store(
    path: Path, features: FeaturesAccess = "memory", *, names: bool = True, graph: GraphAccess = "memory"
) -> Dataset:
    """Open a dataset that `write_dataset` wrote.

    Args:
        path: its folder.
        features: "memory" loads all rows, and verifies them; "zarr" reads Zarr chunks as rows are gathered, each
            verified; "mapped" maps an uncompressed file, of which only the size is verified. The last two need a store
            that was written in that format.
        names: read the names of the nodes too.
        graph: "mapped" maps uncompressed files, whose size and values are verified, and no digest: the store must have
            been written so. "memory": arrays that memory has no room for are mapped all the same, and verified.

    Raises:
        InputError: `features` or `graph` is unknown or does not fit how the store was written.
        StoreError: the store is absent, incomplete or damaged.
    """
    places = ["memory", "mapped", "zarr"]
    if features not in places:
        raise InputError(f"features='{features}'; expected 'memory', 'mapped' or 'zarr'{nearest(features, places)}")
    if (earlier := store_of_version_1(Path(path), KIND)) is not None:
        if (features, graph) != ("memory", "memory"):
            raise InputError(
                f"{path} is of an earlier version, which is read into memory only; write it again (millrace convert "
                "STORE --out NEW), or open it with features='memory' and graph='memory'"
            )
        return read_version_1(earlier)
    store = open_store(Path(path), KIND)
    check_graph_access(store, graph)
    rows, called = open_features(store, features), open_names(store) if names else None
    opened = Graph(
        **{name: large_array(store, name, graph) for name in GRAPH_DIGESTS},
        **{name: store.read(name) for name in OF_SOME_GRAPHS if name in store},
        types=open_types(store),
        edge_features=open_edge_features(store, features),
        time_unit=checked_unit(store),
    )
    arrays: dict[str, Any] = {name: store.read(name) for name in PAIR_ARRAYS if name in store}
    with proving(store.path):
        dataset = Dataset(
            graph=opened,
            features=rows,
            labels=large_array(store, "labels", "memory"),
            split=Split(*map(store.read, SPLITS)),
            node_names=called,
            **arrays,
            **facts_of(store),
        )
    check_loaded(store, dataset, graph)
    with proving(store.path):
        # Kernels follow these ids without checking them: a digest covers the bytes, not their meaning.
        return dataset.check()
