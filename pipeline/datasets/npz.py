"""One ``.npz`` file.

Keys (`allow_pickle=False`; others are ignored):

=====================  ==========================================================================================
edge_index             int [2, E]; row 0 the sources, row 1 the destinations
y                      [V] class numbers, -1 for unlabelled; or [V, C] of 0 and 1 for multi-label
x                      [V, F] features; or CSR as ``x_indptr`` [V+1], ``x_indices``, ``x_data``, ``x_shape`` (V, F); or absent
train_idx, ...         optional stored split: ``{train,val,test}_idx`` int, or ``{train,val,test}_mask`` [V]
edge_weight            optional [E]
meta                   optional JSON object. ``direction``: directed, undirected or reverse; or a sentence under ``edges``, of which
                       "symmetrise before use", "stored once" and "add reverse" read as undirected and a leading "directed" as
                       directed. Either decides only where the edges are not symmetric and `ReadOptions.direction` is None.
=====================  ==========================================================================================
"""

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import scipy.sparse as sp

from ...storage.dataset import SPLITS
from ...storage.errors import InputError, nearest
from .options import Direction
from .raw import AnyArray, Hint, Raw

KNOWN = ("edge_index", "y", "x", "x_indptr", "x_indices", "x_data", "x_shape", "edge_weight", "meta")
_UNDIRECTED = ("symmetrise before use", "symmetrize before use", "stored once", "add reverse")


def read_npz(path: Path, name: str | None = None) -> Raw:
    """Read the file. See the module for its keys.

    Raises:
        InputError: it is no ``.npz``, holds pickled objects, or lacks a key.
    """
    arrays = _load(path)
    edges = _required(arrays, "edge_index", path)
    if edges.ndim != 2 or edges.shape[0] != 2:
        fix = ": transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise InputError(f"{path}: edge_index has shape {list(edges.shape)}; expected [2, E]{fix}")
    hint, notes = _hint(arrays.get("meta"))
    return Raw(
        name=name or path.stem,
        src=edges[0],
        dst=edges[1],
        labels=_required(arrays, "y", path),
        features=_features(arrays, path),
        edge_weight=arrays.get("edge_weight"),
        split=_split(arrays, path),
        hint=hint,
        notes=notes,
    )


def _load(path: Path) -> dict[str, AnyArray]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds a single array; expected an .npz file with edge_index, y and x")
        with file:
            # An entry that is no .npy comes back as bytes.
            return {key: value for key in file.files if isinstance(value := file[key], np.ndarray)}
    except InputError:
        raise
    except ValueError as e:
        if "allow_pickle" in str(e):
            raise InputError(
                f"{path} holds pickled objects or is no .npz file; expected plain numeric arrays: save it again with np.savez"
            ) from e
        raise InputError(f"{path} cannot be read ({e}); save it again with np.savez") from e
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as e:
        raise InputError(f"{path} is damaged or no .npz file ({e}); save it again with np.savez") from e


def _required(arrays: Mapping[str, AnyArray], key: str, path: Path) -> AnyArray:
    if key not in arrays:
        hint = nearest(key, sorted(set(arrays) - set(KNOWN)))
        raise InputError(f"{path} has no key '{key}'; it holds {', '.join(sorted(arrays)) or 'nothing'}{hint}")
    return arrays[key]


def _features(arrays: Mapping[str, AnyArray], path: Path) -> Any:
    if "x" in arrays:
        return arrays["x"]
    if not any(key.startswith("x_") and key in KNOWN for key in arrays):
        return None
    indptr, indices, data, shape = (_required(arrays, f"x_{part}", path) for part in ("indptr", "indices", "data", "shape"))
    try:
        rows, columns = (int(n) for n in shape)
        x = sp.csr_matrix((data, indices, indptr), shape=(rows, columns))
        x.check_format(full_check=True)
    except (ValueError, TypeError) as e:
        raise InputError(f"{path}: x_indptr, x_indices, x_data and x_shape are no CSR matrix ({e}); save the features again") from e
    return x


def _split(arrays: Mapping[str, AnyArray], path: Path) -> dict[str, AnyArray]:
    split = {}
    for part in SPLITS:
        if f"{part}_idx" in arrays:
            split[part] = arrays[f"{part}_idx"]
        elif f"{part}_mask" in arrays:
            mask = arrays[f"{part}_mask"]
            if not np.isin(mask, (0, 1)).all():
                raise InputError(f"{path}: {part}_mask holds values other than 0 and 1; save node ids as {part}_idx")
            split[part] = mask.astype(bool)
    return split


def _hint(meta: AnyArray | None) -> tuple[Hint | None, tuple[str, ...]]:
    if meta is None:
        return None, ()
    try:
        record = json.loads(str(meta))
    except ValueError:
        return None, ("The key meta is no JSON and was ignored.",)
    if not isinstance(record, dict):
        return None, ("The key meta is no JSON object and was ignored.",)
    if record.get("direction") in get_args(Direction):
        return Hint(record["direction"], f"the file's meta says direction '{record['direction']}'"), ()
    text = str(record.get("edges", ""))
    if any(phrase in text.lower() for phrase in _UNDIRECTED):
        return Hint("undirected", f'the file\'s meta says "{text}"'), ()
    if text.lower().startswith("directed"):
        return Hint("directed", f'the file\'s meta says "{text}"'), ()
    return None, ()
