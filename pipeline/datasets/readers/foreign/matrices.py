"""Adjacencies as matrix files: Matrix Market (``.mtx``), MATLAB (``.mat``), and folders of GraphSAINT."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .....storage.errors import InputError, first_line
from .npz_layouts import COO, OwnArrays, ends_of, matrix_of, note_zeros
from .npz_words import own_names

FEW_NODES, PER_EDGE = 10_000_000, 100
"""Nodes that any matrix may have, and more of them for each of its entries."""
ARRAYS = {"x": ("attributes", "attrb", "features", "x"), "y": ("group", "label", "labels", "gnd", "y")}
"""Names in ``.mat`` files, in lower case, of features [V, F] and labels, [V], [V, 1] or [V, C] of 0 and 1."""
ROLE, CLASSES, FEATURES = "role.json", "class_map.json", "feats.npy"
"""Files of a folder of GraphSAINT beside its adjacency; the last may be missing."""
ROLES = {"tr": "train_idx", "va": "val_idx", "te": "test_idx"}


@contextmanager
def _reading(path: Path, expected: str) -> Iterator[None]:
    try:
        yield
    except InputError as e:
        raise InputError(str(e) if str(path) in str(e) else f"{path}: {e}") from e
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
    """The adjacency of a Matrix Market file; one that is stored as symmetric has both directions. Raises InputError: it
    is damaged, complex, dense, or not square."""
    (matrix,) = _variables(path, "mmread", "%%MatrixMarket matrix coordinate ...").values()
    if not sp.issparse(matrix):
        raise InputError(f"{path} is no matrix of coordinates; expected one, of a pattern, integers or reals")
    return OwnArrays(_checked(matrix, path), notes=note_zeros(matrix))


IN_CHILD = """
import sys, numpy, scipy.io, scipy.sparse
path, out, read = sys.argv[1:]
held = getattr(scipy.io, read)(path)
held = {k: v for k, v in held.items() if not k.startswith("__")} if read == "loadmat" else {"matrix": held}
problem = held.get("Problem")
if isinstance(problem, numpy.ndarray) and "A" in (problem.dtype.names or ()):
    held = {"Problem.A": problem["A"].flat[0]}
arrays = {}
for name, value in held.items():
    if getattr(value, "dtype", numpy.dtype(object)).kind not in "biuf":
        arrays[name] = numpy.array("other")
    elif scipy.sparse.issparse(value):
        value = value.tocoo()
        arrays |= {f"{name}/{key}": getattr(value, key) for key in ("row", "col", "data", "shape")}
    else:
        arrays[name] = value
numpy.savez(out, **arrays)
"""


def _variables(path: Path, read: str, expected: str) -> dict[str, Any]:
    """What a function of SciPy reads of a file: variables, sparse ones as matrices; text for what is neither numbers
    nor sparse.

    SciPy's compiled parsers end the process at some damaged files, so they run in one of their own.
    """
    with tempfile.TemporaryDirectory() as folder, _reading(path, expected):
        out = Path(folder) / "arrays.npz"
        run = subprocess.run([sys.executable, "-c", IN_CHILD, path, out, read], capture_output=True, check=False)
        said = run.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        if "NotImplementedError" in said:
            raise NotImplementedError
        if run.returncode:
            raise ValueError(said.rpartition(": ")[2] if run.returncode > 0 else "it is damaged")
        with np.load(out, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        sparse = {name.rpartition("/")[0] for name in found if "/" in name}
        dense: dict[str, Any] = {name: array for name, array in found.items() if "/" not in name}
        parts = {name: {key: found[f"{name}/{key}"] for key in COO} for name in sorted(sparse)}
        return dense | {name: matrix_of("coo", own, f"the arrays of {name}") for name, own in parts.items()}


def read_mat(path: Path) -> OwnArrays:
    """The adjacency of a MATLAB file: its one sparse square matrix, or that of its struct ``Problem`` (SuiteSparse).

    Features and labels are taken by the names of `ARRAYS`; a note names what is not read. Raises InputError: it is
    damaged, or holds no such matrix, or several."""
    held = _variables(path, "loadmat", "a MATLAB file up to version 7")
    square = [k for k, v in held.items() if sp.issparse(v) and v.shape[0] == v.shape[1]]
    named, unread = own_names([k for k, v in held.items() if np.asarray(v).dtype.kind != "U"], path)
    if not square and "edge_index" in named:
        arrays = {name: held[key] for name, key in named.items()}
        whole = ("x", "edge_index", "edge_attr")  # MATLAB makes vectors of others matrices
        arrays |= {name: np.ravel(a) for name, a in arrays.items() if name not in whole and 1 in np.shape(a)}
        return OwnArrays(arrays, notes=(f"Variables that were not read: {', '.join(unread)}.",) if unread else ())
    if len(square) != 1:
        shown = ", ".join(f"{key[:40]} {list(np.shape(value))}" for key, value in list(held.items())[:8]) or "nothing"
        raise InputError(
            f"{path} holds {len(square) or 'no'} sparse square matrices; expected one, the adjacency (found: {shown}):"
            " save that alone, and features and labels beside it as X and y"
        )
    ours, taken = _checked(held[square[0]], path), {square[0]}
    for key, words in ARRAYS.items():
        numbers = [k for k, v in held.items() if k.lower() in words and k not in taken and v.dtype.kind != "U"]
        found = next(iter(numbers), None)
        if found is None:
            continue
        value = held[found]
        taken.add(found)
        if key == "x":
            ours["x"] = value
            continue
        y = value.toarray() if sp.issparse(value) else np.asarray(value)
        ours["y"] = y.ravel() if y.ndim == 2 and 1 in y.shape else y
    notes = [f"The edges are those of the matrix {square[0]}.", *note_zeros(held[square[0]])]
    if unread := sorted(set(held) - taken):
        notes.append(f"Variables that were not read: {', '.join(unread)[:200]}.")
    return OwnArrays(ours, notes=tuple(notes))


def with_roles(folder: Path, adjacency: OwnArrays) -> OwnArrays:
    """The arrays of a folder of GraphSAINT whose ``adj_full.npz`` is `adjacency`; ``adj_train.npz`` is a part of it.
    Raises InputError: a file is damaged, or a node has no class."""
    ours = dict(adjacency.arrays)
    with _reading(folder, f"{ROLE} with {', '.join(ROLES)}, and {CLASSES} with a class for each node"):
        role = json.loads((folder / ROLE).read_text())
        classes = json.loads((folder / CLASSES).read_text())
        ours |= {key: np.array(role[name], np.int64) for name, key in ROLES.items()}
        ours["y"] = np.array([classes[str(v)] for v in range(ours["num_nodes"])])
        if (folder / FEATURES).exists():
            ours["x"] = np.load(folder / FEATURES, allow_pickle=False)
    return OwnArrays(ours)
