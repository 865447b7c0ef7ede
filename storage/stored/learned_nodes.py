"""Learnt features in a file, and which nodes they are of: their types, and their names where they have some."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ..array_kinds import ValueArray
from ..dataset import Dataset
from ..errors import InputError, StoreError
from ..features import FeatureStore, MappedFeatures, ReorderedFeatures
from ..node_names import NodeNames, name_arrays
from ..store.full_disk import whole_file
from ..store.regular import opened_file

NAMES = "node_name_text"
Arrays = Mapping[str, ValueArray]
"""What a file holds: names of the node types, offsets of their nodes, and the arrays of names if there are some."""


def write_nodes(path: Path, dataset: Dataset) -> None:
    """Write which nodes features are learnt of."""
    with whole_file(path) as aside, aside.open("wb") as file:
        np.savez(file, **_arrays_of(dataset))  # pyrefly: ignore[bad-argument-type]


def learned_of(rows: MappedFeatures, nodes_path: Path, dataset: Dataset) -> FeatureStore:
    """[V, D], the learnt features of the nodes of a dataset: of those with their names, or with their numbers where
    nodes have none.

    Args:
        rows: all learnt features.
        nodes_path: what `write_nodes` has written; if it is not there, nodes are in the order of `rows`.
        dataset: has the node types of the data that they were learnt of.

    Raises:
        InputError: none were learnt of some node.
        StoreError: the file is damaged.
    """
    folder = rows.path.parent
    if not nodes_path.is_file():  # of an earlier version
        _check_count(dataset, folder, dataset.num_nodes, rows.num_rows)
        return rows
    try:
        with opened_file(nodes_path) as file, np.load(file, allow_pickle=False) as archive:
            before = dict(archive)
        known, now = dict(_by_type(before)), _arrays_of(dataset)
        if (np.diff(ends := before["offsets"]) < 0).any() or ends[0] or ends[-1] != rows.num_rows:
            raise ValueError("its nodes are not those of the rows")
    except Exception:
        raise StoreError(f"{nodes_path} is damaged; copy it again") from None
    are_named, found = NAMES in before or NAMES in now, []
    if not are_named and all(np.array_equal(a, before[key]) for key, a in now.items()):
        return rows
    for kind, (nodes, names) in _by_type(now):
        theirs, called = known.get(kind, (range(0), NodeNames.of_numbers(0)))
        if not (are_named and theirs):
            _check_count(dataset, folder, len(nodes), len(theirs), f" of type '{kind}'" if kind else "")
        try:
            found.append(theirs.start + called.find(names))
        except InputError as e:
            raise InputError(f"{folder} has no learnt features of some nodes of {dataset.name}: {e}") from None
    order = np.concatenate(found)
    return rows if np.array_equal(order, np.arange(rows.num_rows)) else ReorderedFeatures(rows, order)


def _check_count(dataset: Dataset, folder: Path, seen: int, learned: int, of_type: str = "") -> None:
    if seen != learned:
        raise InputError(
            f"{dataset.name} has {seen:,} nodes{of_type}, but {folder} has learnt features of {learned:,} nodes and of "
            "no others; give a dataset of these nodes"
        )


def _arrays_of(dataset: Dataset) -> Arrays:
    types = dataset.graph.types.in_ranges()
    offsets = np.array([0, dataset.num_nodes] if types.is_single else types.offsets)
    return {"types": np.array(types.node_types or [""]), "offsets": offsets, **name_arrays(dataset.node_names)[0]}


def _by_type(arrays: Arrays) -> Iterator[tuple[str, tuple[range, NodeNames]]]:
    """Each node type, with its nodes and their names: numbers within the type where they have no others."""
    ends, names = arrays["offsets"].tolist(), NodeNames.of_numbers(0)
    if NAMES in arrays:
        names = NodeNames(arrays[NAMES].astype(np.uint8), arrays["node_name_starts"].astype(np.int64)).check()
    for kind, nodes in zip(arrays["types"], itertools.starmap(range, itertools.pairwise(ends)), strict=True):
        yield str(kind), (nodes, names.between(nodes) if NAMES in arrays else NodeNames.of_numbers(len(nodes)))
