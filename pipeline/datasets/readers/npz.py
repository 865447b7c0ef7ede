"""One ``.npz`` file.

Keys (`allow_pickle=False`; others are ignored):

=====================  ==========================================================================================
edge_index             int [2, E]; row 0 the sources, row 1 the destinations
y                      [V] class numbers, -1 for unlabelled; [V, C] of 0 and 1 for multi-label; or floating-point
                       targets [V] or [V, C], NaN where not known
x                      [V, F] features; or CSR as ``x_indptr`` [V+1], ``x_indices``, ``x_data``, ``x_shape``
                       (V, F); or absent
train_idx, ...         optional stored split: ``{train,val,test}_idx`` int, or ``{train,val,test}_mask`` [V]
edge_weight            optional [E]
edge_attr              optional [E, D] or [E], features of the edges
edge_time, node_time   optional [E] and [V], times, numbers
meta                   optional JSON object. ``direction``: directed, undirected or reverse; or a sentence under
                       ``edges``, of which "symmetrise before use", "stored once" and "add reverse" read as
                       undirected and a leading "directed" as directed. Either decides only where the edges are
                       not symmetric and `ReadOptions.direction` is None.
=====================  ==========================================================================================
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import scipy.sparse as sp

from ....storage.dataset import SPLITS
from ....storage.errors import InputError, nearest
from ..cleaning.options import Direction
from ..cleaning.raw import AnyArray, Hint, Raw
from .npz_members import load_members

KNOWN = ("edge_index", "y", "x", "x_indptr", "x_indices", "x_data", "x_shape", "edge_weight", "edge_attr", "meta")
TIMES = ("edge_time", "node_time")
SHOWN_KEYS, SHOWN_CHARACTERS = 20, 40
_UNDIRECTED = ("symmetrise before use", "symmetrize before use", "stored once", "add reverse")


def read_npz(path: Path, name: str | None = None, *, labelled: bool = True) -> Raw:
    """Read the file. See the module for its keys.

    Args:
        path: the file.
        name: of the dataset; None: the file's.
        labelled: whether the task needs labels; else a file without them has one class.

    Raises:
        InputError: the file is not ``.npz``, holds pickled objects, or lacks a key.
    """
    arrays, held = load_members(
        path, (*KNOWN, *TIMES, *(f"{part}_{form}" for part in SPLITS for form in ("idx", "mask")))
    )
    edges = _required(arrays, "edge_index", path, held)
    labels = _required(arrays, "y", path, held) if labelled or "y" in arrays else None
    if edges.ndim != 2 or edges.shape[0] != 2:
        fix = ": transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise InputError(f"{path}: edge_index has shape {list(edges.shape)}; expected [2, E]{fix}")
    hint, notes = _hint(arrays.get("meta"))
    features = _features(arrays, path, held)
    if labels is None:
        labels = np.zeros(_num_nodes(edges, features, arrays.get("node_time")), np.int64)
    return Raw(
        name=name or path.stem,
        src=edges[0],
        dst=edges[1],
        labels=labels,
        features=features,
        edge_weight=arrays.get("edge_weight"),
        edge_features=arrays.get("edge_attr"),
        edge_time=arrays.get("edge_time"),
        node_time=arrays.get("node_time"),
        split=_split(arrays, path),
        hint=hint,
        notes=notes,
    )


def _num_nodes(edges: AnyArray, features: Any, node_time: AnyArray | None) -> int:
    """V of a file without labels: the number of rows that it has for nodes, or one more than the largest id."""
    for rows in (features, node_time):
        if rows is not None and rows.ndim:
            return int(rows.shape[0])
    return int(edges.max()) + 1 if edges.size and edges.dtype.kind in "iu" and edges.max() >= 0 else 0


def _required(arrays: Mapping[str, AnyArray], key: str, path: Path, held: list[str]) -> AnyArray:
    if key not in arrays:
        hint = nearest(key, [name for name in held if name not in KNOWN])
        shown = ", ".join(name[:SHOWN_CHARACTERS] for name in held[:SHOWN_KEYS]) or "nothing"
        more = f" and {len(held) - SHOWN_KEYS} more" if len(held) > SHOWN_KEYS else ""
        raise InputError(f"{path} has no key '{key}'; it holds {shown}{more}{hint}")
    return arrays[key]


def _features(arrays: Mapping[str, AnyArray], path: Path, held: list[str]) -> Any:
    if "x" in arrays:
        return arrays["x"]
    if not any(key.startswith("x_") and key in KNOWN for key in arrays):
        return None
    indptr, indices, data, shape = (
        _required(arrays, f"x_{part}", path, held) for part in ("indptr", "indices", "data", "shape")
    )
    for part, array, kinds in (
        ("indptr", indptr, "iu"),
        ("indices", indices, "iu"),
        ("data", data, "biuf"),
        ("shape", shape, "iu"),
    ):
        if array.dtype.kind not in kinds:
            raise InputError(
                f"{path}: x_{part} holds {array.dtype}; expected {'integers' if kinds == 'iu' else 'numbers'}"
            )
    try:
        rows, columns = (int(n) for n in shape)
        indices, indptr = (array.astype(np.int64) for array in (indices, indptr))
        # SciPy's check misses unsigned numbers and a negative end, for which its compiled code takes any amount of
        # memory.
        if (np.diff(indptr) < 0).any():
            raise ValueError("index pointer values must form a non-decreasing sequence")
        x = sp.csr_matrix((data, indices, indptr), shape=(rows, columns))
        x.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError, IndexError) as e:
        raise InputError(
            f"{path}: x_indptr, x_indices, x_data and x_shape are not a CSR matrix ({e}); save the features again"
        ) from e
    return x


def _split(arrays: Mapping[str, AnyArray], path: Path) -> dict[str, AnyArray]:
    split = {}
    for part in SPLITS:
        if f"{part}_idx" in arrays:
            split[part] = arrays[f"{part}_idx"]
        elif f"{part}_mask" in arrays:
            mask = arrays[f"{part}_mask"]
            if mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
                raise InputError(f"{path}: {part}_mask holds values other than 0 and 1; save node ids as {part}_idx")
            split[part] = mask.astype(bool)
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
