"""One ``.npz`` file.

Keys (`allow_pickle=False`), in any spelling and with the other words of `npz_words`; others are noted as not read:

=====================  ==========================================================================================
edge_index             int [2, E]; row 0 the sources, row 1 the destinations; or [E, 2]
y                      [V] class numbers, -1 for unlabelled; [V, C] of 0 and 1 for multi-label; or floating-point
                       targets [V] or [V, C], NaN where not known
x                      [V, F] features; or CSR as ``x_indptr`` [V+1], ``x_indices``, ``x_data``, ``x_shape``
                       (V, F); or absent
train_idx, ...         optional stored split: ``{train,val,test}_idx`` int, or ``{train,val,test}_mask`` [V]
edge_weight            optional [E]
edge_attr              optional [E, D] or [E], features of the edges
edge_time, node_time   optional [E] and [V], times, numbers
num_nodes              optional, V
meta                   optional JSON object. ``direction``: directed, undirected or reverse; or a sentence under
                       ``edges``, of which "symmetrise before use", "stored once" and "add reverse" read as
                       undirected and a leading "directed" as directed. Either decides only where the edges are
                       not symmetric and `ReadOptions.direction` is None.
=====================  ==========================================================================================
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ....storage.dataset import SPLITS
from ....storage.errors import InputError, NoLabelsError, nearest
from ....storage.optional import when_present
from ....storage.plural import listed
from ..cleaning.options import Direction
from ..cleaning.raw import AnyArray, GivenLabels, Hint, Raw, RawEdges, RawNodes
from ..cleaning.splits import Which, as_flags, one_split
from .foreign.npz_layouts import COO, CSR, OwnArrays, ends_of_entries, layout_of, matrix_of
from .foreign.npz_words import OWN, check_unread, own_names
from .npz_members import load_members
from .python import distinct_names

SHOWN_KEYS, SHOWN_CHARACTERS = 20, 40
_UNDIRECTED = ("symmetrise before use", "symmetrize before use", "stored once", "add reverse")


def read_arrays(path: Path) -> OwnArrays:
    """The arrays of a file by the names in the module, whoever wrote it. Raises InputError: the file is not ``.npz``,
    or holds pickled objects."""
    _, held = load_members(path, ())
    layout = None if "edge_index" in held else layout_of(held)
    if layout is not None:
        own = (*layout.needs, *layout.others)
        found, unread = layout.read(load_members(path, own)[0], path), [key for key in held if key not in own]
        check_unread(unread, found.arrays, path)
    else:
        names, unread = own_names(held, path)
        arrays = load_members(path, tuple(names.values()))[0]
        told = tuple(f"{path.name}: {key} was read as {name}." for name, key in names.items() if key != name)
        ours = {name: arrays[key] for name, key in names.items() if key in arrays}
        if "edge_index" not in ours and {"row", "col"} <= {*unread}:
            ours |= ends_of_entries(load_members(path, COO)[0], str(path))
            unread = [key for key in unread if key not in COO]
        found = OwnArrays(ours, notes=told)
    if unread:
        found = replace(found, notes=(*found.notes, f"Keys of {path.name} were not read: {listed(unread)}."))
    return replace(found, held=tuple(held))


def raw_of(found: OwnArrays, path: Path, name: str, *, labelled: bool, split: Which) -> Raw:
    """The graph of arrays that are called as in the module. Unless it is `labelled`, since the task needs labels, a
    file without them has one class; `split` is one of several that are stored, see `one_split`. Raises InputError: a
    key is missing, or its array has another shape."""
    arrays, held = found.arrays, found.held or list(found.arrays)
    edges = _required(arrays, "edge_index", path, held)
    labels = _labels(arrays, path, held) if labelled or "y" in arrays else None
    if edges.ndim != 2 or 2 not in edges.shape:
        raise InputError(f"{path}: edge_index has shape {list(edges.shape)}; expected [2, E]")
    if edges.shape[0] != 2:
        found = replace(found, notes=(*found.notes, f"edge_index has shape {list(edges.shape)}: an edge is a row."))
        edges = edges.T
    if labels is not None and "num_nodes" in arrays and np.shape(labels)[:1] != (int(np.max(arrays["num_nodes"])),):
        raise InputError(
            f"{path}: num_nodes is {arrays['num_nodes']}, and y has shape {list(np.shape(labels))}; expected a label "
            "for each node"
        )
    hint, notes = _hint(arrays.get("meta"))
    features = _features(arrays, path, held)
    if labels is None:
        labels = np.zeros(_num_nodes(edges, features, arrays), np.int64)
    sets, told = one_split(_split(arrays, path), len(np.atleast_1d(labels)), split, path)
    weight, attr, edge_time, node_time = map(arrays.get, ("edge_weight", "edge_attr", "edge_time", "node_time"))
    names = when_present(lambda names: distinct_names(names, len(labels)), found.node_names)
    of_edges = RawEdges((edges[0], edges[1]), weight, attr, time=edge_time)
    given, nodes = GivenLabels(labels, found.class_names), RawNodes(features, time=node_time, names=names)
    more: Any = {"split": sets, "hint": found.hint or hint, "notes": (*found.notes, *notes, *told)}
    return Raw(name, {None: of_edges}, given, {None: nodes}, **more)


def _num_nodes(edges: AnyArray, features: Any, arrays: Mapping[str, Any]) -> int:
    """V of a file without labels: the number of rows that it has for nodes, or one more than the largest id."""
    if "num_nodes" in arrays and np.size(arrays["num_nodes"]) == 1:
        return int(arrays["num_nodes"])
    for rows in (features, arrays.get("node_time")):
        if rows is not None and rows.ndim:
            return int(rows.shape[0])
    return int(edges.max()) + 1 if edges.size and edges.dtype.kind in "iu" and edges.max() >= 0 else 0


def _labels(arrays: Mapping[str, AnyArray], path: Path, held: Sequence[str]) -> AnyArray:
    if "num_nodes" in arrays and "y" not in arrays:  # of a matrix
        raise NoLabelsError(f"{path} has no labels of nodes; set task=link to predict links, which needs none")
    try:
        return _required(arrays, "y", path, held)
    except InputError as e:
        raise NoLabelsError(f"{e}; expected labels of nodes, unless links are predicted: set task=link") from None


def _required(arrays: Mapping[str, AnyArray], key: str, path: Path, held: Sequence[str]) -> AnyArray:
    if key not in arrays:
        hint = nearest(key, [name for name in held if name not in OWN])
        shown = ", ".join(name[:SHOWN_CHARACTERS] for name in held[:SHOWN_KEYS]) or "nothing"
        more = f" and {len(held) - SHOWN_KEYS} more" if len(held) > SHOWN_KEYS else ""
        raise InputError(f"{path} has no key '{key}'; it holds {shown}{more}{hint}")
    return arrays[key]


def _features(arrays: Mapping[str, AnyArray], path: Path, held: Sequence[str]) -> Any:
    if "x" in arrays:
        return arrays["x"]
    if not any(key.startswith("x_") and key in OWN for key in arrays):
        return None
    parts = {part: _required(arrays, f"x_{part}", path, held) for part in CSR}
    return matrix_of("csr", parts, f"{path}: x_indptr, x_indices, x_data and x_shape")


def _split(arrays: Mapping[str, AnyArray], path: Path) -> dict[str, AnyArray]:
    split = {}
    for part in SPLITS:
        if f"{part}_idx" in arrays:
            split[part] = arrays[f"{part}_idx"]
        elif f"{part}_mask" in arrays:
            split[part] = as_flags(arrays[f"{part}_mask"], f"{path}: {part}_mask", f"save node ids as {part}_idx")
    return split


def _hint(meta: AnyArray | None) -> tuple[Hint | None, tuple[str, ...]]:
    if meta is None:
        return None, ()
    try:
        record = json.loads(str(meta))
    except (ValueError, RecursionError):
        return None, ("The key meta is not JSON and was ignored.",)
    if not isinstance(record, dict):
        return None, ("The key meta is not a JSON object and was ignored.",)
    if record.get("direction") in get_args(Direction):
        return Hint(record["direction"], f"the file's meta says direction '{record['direction']}'"), ()
    text = str(record.get("edges", ""))
    if any(phrase in text.lower() for phrase in _UNDIRECTED):
        return Hint("undirected", f'the file\'s meta says "{text}"'), ()
    if text.lower().startswith("directed"):
        return Hint("directed", f'the file\'s meta says "{text}"'), ()
    return None, ()
