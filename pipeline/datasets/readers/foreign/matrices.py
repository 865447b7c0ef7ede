"""Adjacencies as matrix files: Matrix Market (``.mtx``), MATLAB (``.mat``), and folders of GraphSAINT."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .....storage.errors import InputError, first_line
from .npz_layouts import OwnArrays, ends_of

FEW_NODES, PER_EDGE = 10_000_000, 100
"""Nodes that any matrix may have, and more of them for each of its entries."""
ARRAYS = {"x": ("attributes", "attrb", "features", "x"), "y": ("group", "label", "labels", "gnd", "y")}
"""Names in ``.mat`` files, in lower case, of features [V, F] and labels, [V], [V, 1] or [V, C] of 0 and 1."""
SAINT = {"adj": "adj_full.npz", "role": "role.json", "class": "class_map.json"}
"""Files of a folder of GraphSAINT; ``feats.npy`` may be there too."""
ROLES = {"tr": "train_idx", "va": "val_idx", "te": "test_idx"}


@contextmanager
def _reading(path: Path, expected: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except NotImplementedError as e:
        raise InputError(
            f"{path} is a MATLAB 7.3 file, which is HDF5; save it with save('-v7') or scipy.io.savemat"
        ) from e
    except Exception as e:  # damage makes SciPy's parsers raise errors of many kinds
        raise InputError(f"{path} cannot be read ({first_line(e)[:200]}); expected {expected}") from e


def _checked(matrix: Any, path: Path) -> dict[str, Any]:
    """`ends_of` a matrix that is not far larger than its entries."""
    most = max(FEW_NODES, PER_EDGE * matrix.nnz)
    if max(matrix.shape) > most:
        raise InputError(
            f"{path} has {max(matrix.shape):,} nodes for {matrix.nnz:,} edges, and each takes memory; expected at most "
            f"{most:,}: leave out nodes without edges"
        )
    return ends_of(matrix, str(path))


def read_mtx(path: Path) -> OwnArrays:
    """The adjacency of a Matrix Market file; one that is stored as symmetric has both directions.

    Raises:
        InputError: it is damaged, complex, or not square.
    """
    from scipy.io import mminfo, mmread

    with _reading(path, "a Matrix Market file"):
        _, _, entries, _, kind, _ = mminfo(path)
        if kind == "complex":
            raise InputError(f"{path} holds complex numbers; expected weights of edges: real numbers, or a pattern")
        # The reader makes room for as many entries as the header claims, which are at least two bytes each.
        if path.suffix == ".mtx" and 2 * entries > path.stat().st_size:
            raise InputError(f"{path} is cut off: its header says {entries:,} entries; copy it again")
        return OwnArrays(_checked(sp.coo_matrix(mmread(path)), path))


def read_mat(path: Path) -> OwnArrays:
    """The adjacency of a MATLAB file: its one sparse square matrix, or that of its struct ``Problem`` (SuiteSparse).

    Features and labels are taken by the names of `ARRAYS`; a note names what is not read.

    Raises:
        InputError: it is damaged, or holds no such matrix, or several.
    """
    from scipy.io import loadmat

    with _reading(path, "a MATLAB file up to version 7"):
        held = {key: value for key, value in loadmat(path).items() if not key.startswith("__")}
        if isinstance(problem := held.get("Problem"), np.ndarray) and "A" in (problem.dtype.names or ()):
            held = {"Problem.A": problem["A"].flat[0]}
        square = [k for k, v in held.items() if sp.issparse(v) and v.shape[0] == v.shape[1]]
    if len(square) != 1:
        shown = ", ".join(f"{key[:40]} {list(np.shape(value))}" for key, value in list(held.items())[:8]) or "nothing"
        raise InputError(
            f"{path} holds {len(square) or 'no'} sparse square matrices; expected one, the adjacency (found: {shown}):"
            " save that alone, and features and labels beside it as X and y"
        )
    ours, taken = _checked(held[square[0]], path), {square[0]}
    for key, words in ARRAYS.items():
        found = next((k for k in held if k.lower() in words and k not in taken), None)
        if found is None:
            continue
        value = held[found]
        taken.add(found)
        if key == "x":
            ours["x"] = value
            continue
        y = value.toarray() if sp.issparse(value) else np.asarray(value)
        ours["y"] = y.ravel() if y.ndim == 2 and 1 in y.shape else y
    notes = [f"The edges are those of the matrix {square[0]}."]
    if unread := sorted(set(held) - taken):
        notes.append(f"Variables that were not read: {', '.join(unread)[:200]}.")
    return OwnArrays(ours, notes=tuple(notes))


def with_roles(folder: Path, adjacency: OwnArrays) -> OwnArrays:
    """The arrays of a folder of GraphSAINT whose ``adj_full.npz`` is `adjacency`; ``adj_train.npz`` is a part of it.

    Raises:
        InputError: a file is damaged, or a node has no class.
    """
    ours = dict(adjacency.arrays)
    with _reading(folder, f"{SAINT['role']} with {', '.join(ROLES)}, and {SAINT['class']} with a class for each node"):
        role = json.loads((folder / SAINT["role"]).read_text())
        classes = json.loads((folder / SAINT["class"]).read_text())
        ours |= {key: np.array(role[name], np.int64) for name, key in ROLES.items()}
        ours["y"] = np.array([classes[str(v)] for v in range(ours["num_nodes"])])
        if (folder / "feats.npy").exists():
            ours["x"] = np.load(folder / "feats.npy", allow_pickle=False)
    return OwnArrays(ours)
