"""Adjacencies as matrix files: Matrix Market (``.mtx``), MATLAB (``.mat``), and folders of GraphSAINT."""

import json
import re
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
from .npz_layouts import CSR, OwnArrays, ends_of, matrix_of
from .npz_words import own_names

FEW_NODES, PER_EDGE = 10_000_000, 100
"""Nodes that any matrix may have, and more of them for each of its entries."""
ARRAYS = {"x": ("attributes", "attrb", "features", "x"), "y": ("group", "label", "labels", "gnd", "y")}
"""Names in ``.mat`` files, in lower case, of features [V, F] and labels, [V], [V, 1] or [V, C] of 0 and 1."""
NUMBERS = ("pattern", "integer", "real", "double")
"""Kinds of entries that are read."""
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
    """The adjacency of a Matrix Market file; one that is stored as symmetric has both directions.

    SciPy's parser is compiled code that damaged files end, so entries are read by Arrow.

    Raises:
        InputError: it is damaged, complex, dense, or not square.
    """
    with _reading(path, "a Matrix Market file of coordinates"):
        head, size, entries = _entries(path)
        kind, symmetry = head[3:5]
        if head[:3] != ["%%matrixmarket", "matrix", "coordinate"] or kind not in NUMBERS:
            raise InputError(
                f"{path} is '{' '.join(head)[:80]}'; expected a matrix of coordinates: a pattern, integers or reals"
            )
        if symmetry not in ("general", "symmetric", "skew-symmetric"):
            raise InputError(f"{path} is {symmetry[:40]}; expected general, symmetric or skew-symmetric")
        row, col = (entries[i].to_numpy() - 1 for i in (0, 1))
        value = np.ones(len(row)) if kind == "pattern" else entries[2].to_numpy()
        if len(row) != size[2]:
            raise InputError(f"{path} has {len(row):,} entries, and its header says {size[2]:,}; copy it again")
        for numbers, most in ((row, size[0]), (col, size[1])):
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < most:
                raise InputError(f"{path}: correct the entry outside of its {size[0]:,} rows and {size[1]:,} columns")
        if symmetry != "general":
            off, sign = row != col, -1 if symmetry == "skew-symmetric" else 1
            row, col = np.concatenate([row, col[off]]), np.concatenate([col, row[off]])
            value = np.concatenate([value, sign * value[off]])
        return OwnArrays(_checked(sp.coo_matrix((value, (row, col)), shape=(size[0], size[1])), path))


def _entries(path: Path) -> tuple[list[str], list[int], Any]:
    """The words of the first line, in lower case, numbers of rows, columns and entries, and the entries as a table."""
    # Arrow starts threads when it is imported, which the server of ranks must not have.
    import pyarrow as pa
    from pyarrow import csv

    from .edge_lists import between_single_blanks

    with pa.input_stream(str(path), compression="detect") as file:
        first, _, rest = file.read().partition(b"\n")
    lines = re.sub(rb"(?m)^[ \t]*%.*\n?|^[ \t\r]*\n", b"", rest)
    size, _, entries = lines.partition(b"\n")
    head = first.decode("ascii", "replace").lower().split()
    numbers = [int(number) for number in size.split()]
    if len(head) != 5 or len(numbers) != 3:
        raise ValueError("the header and the numbers of rows, columns and entries are missing")
    values = {"pattern": (), "complex": ("value", "imaginary")}.get(head[3], ("value",))
    types = dict.fromkeys(("row", "col"), pa.int64()) | dict.fromkeys(values, pa.float64())
    if not entries.strip():
        return head, numbers, pa.table({name: pa.array([], kind) for name, kind in types.items()})
    table = csv.read_csv(
        pa.BufferReader(between_single_blanks(entries)),
        csv.ReadOptions(column_names=list(types)),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(column_types=types),
    )
    if any(column.null_count for column in table.columns):
        raise ValueError("an entry lacks a number")
    return head, numbers, table


IN_CHILD = """
import sys, numpy, scipy.io, scipy.sparse
held = {k: v for k, v in scipy.io.loadmat(sys.argv[1]).items() if not k.startswith("__")}
problem = held.get("Problem")
if isinstance(problem, numpy.ndarray) and "A" in (problem.dtype.names or ()):
    held = {"Problem.A": problem["A"].flat[0]}
arrays = {}
for name, value in held.items():
    if scipy.sparse.issparse(value):
        value = value.tocsc()
        arrays |= {f"{name}/{key}": getattr(value, key) for key in ("indptr", "indices", "data", "shape")}
    elif isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        arrays[name] = value
    else:
        arrays[name] = numpy.array("other")
numpy.savez(sys.argv[2], **arrays)
"""


def _variables(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file, sparse ones as CSC; text for what is neither numbers nor sparse.

    SciPy's compiled parser ends the process at some damaged files, so it runs in one of its own.
    """
    with tempfile.TemporaryDirectory() as folder, _reading(path, "a MATLAB file up to version 7"):
        out = Path(folder) / "arrays.npz"
        run = subprocess.run([sys.executable, "-c", IN_CHILD, path, out], capture_output=True, check=False)
        said = run.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        if "NotImplementedError" in said:
            raise NotImplementedError
        if run.returncode:
            raise ValueError(said.rpartition(": ")[2] if run.returncode > 0 else "it is damaged")
        with np.load(out, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        sparse = {name.rpartition("/")[0] for name in found if "/" in name}
        dense: dict[str, Any] = {name: array for name, array in found.items() if "/" not in name}
        parts = {name: {key: found[f"{name}/{key}"] for key in CSR} for name in sorted(sparse)}
        return dense | {name: matrix_of("csc", own, f"the arrays of {name}") for name, own in parts.items()}


def read_mat(path: Path) -> OwnArrays:
    """The adjacency of a MATLAB file: its one sparse square matrix, or that of its struct ``Problem`` (SuiteSparse).

    Features and labels are taken by the names of `ARRAYS`; a note names what is not read.

    Raises:
        InputError: it is damaged, or holds no such matrix, or several.
    """
    held = _variables(path)
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
    with _reading(folder, f"{ROLE} with {', '.join(ROLES)}, and {CLASSES} with a class for each node"):
        role = json.loads((folder / ROLE).read_text())
        classes = json.loads((folder / CLASSES).read_text())
        ours |= {key: np.array(role[name], np.int64) for name, key in ROLES.items()}
        ours["y"] = np.array([classes[str(v)] for v in range(ours["num_nodes"])])
        if (folder / FEATURES).exists():
            ours["x"] = np.load(folder / FEATURES, allow_pickle=False)
    return OwnArrays(ours)
