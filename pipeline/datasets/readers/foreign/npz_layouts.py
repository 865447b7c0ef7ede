"""Layouts of ``.npz`` files that other libraries write, as the arrays of Millrace's own.

==================================  =============================================================================
library                             arrays
==================================  =============================================================================
gnn-benchmark (Shchur et al. 2018)  CSR ``adj_*`` [V, V] and ``attr_*`` [V, F], ``labels`` [V], ``node_names``,
                                    ``class_names``
heterophilous-graphs (Platonov et   ``edges`` [E, 2], ``node_features`` [V, F], ``node_labels`` [V], and K splits
al. 2023)                           ``train_masks``, ``val_masks``, ``test_masks`` [K, V]
scipy.sparse.save_npz               ``format``, ``shape``, ``data`` and the indices of one matrix [V, V]; also ``row``
                                    and ``col``, perhaps ``data`` and ``shape``, beside arrays of Millrace's own
==================================  =============================================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .....storage.dataset import SPLITS
from .....storage.errors import InputError
from .....storage.plural import are, counted
from ...cleaning.raw import AnyArray, Hint

CSR, COO = ("indptr", "indices", "data", "shape"), ("row", "col", "data", "shape")


@dataclass(frozen=True)
class OwnArrays:
    """A file's arrays by the names of `readers.npz`, and what the layout says of them."""

    arrays: dict[str, Any]
    hint: Hint | None = None
    notes: tuple[str, ...] = ()
    node_names: tuple[str, ...] | None = None
    """Names of nodes in the file; None: it has none."""
    class_names: tuple[str, ...] | None = None
    held: tuple[str, ...] = ()
    """Names of all that the file holds, if they are others."""


def matrix_of(layout: str, arrays: Mapping[str, AnyArray], what: str) -> Any:
    """A SciPy matrix of the arrays of ``scipy.sparse.save_npz``; `layout` is their ``format``. Raises InputError: they
    are no such matrix; `what` names it."""
    try:
        for key in ("indptr", "indices", "row", "col", "shape"):
            if key in arrays and arrays[key].dtype.kind not in "iu":
                raise ValueError(f"{key} holds {arrays[key].dtype}, not integers")
        if arrays["data"].dtype.kind not in "biuf":
            raise ValueError(f"data holds {arrays['data'].dtype}, not numbers")
        rows, columns = (int(n) for n in arrays["shape"])
        if layout == "coo":
            matrix = sp.coo_matrix((arrays["data"], (arrays["row"], arrays["col"])), shape=(rows, columns))
        elif layout in ("csr", "csc"):
            indices, indptr = (arrays[key].astype(np.int64) for key in ("indices", "indptr"))
            # SciPy's check misses unsigned numbers and a negative end, for which its compiled code takes any amount of
            # memory.
            if (np.diff(indptr) < 0).any():
                raise ValueError("index pointer values must form a non-decreasing sequence")
            build = sp.csr_matrix if layout == "csr" else sp.csc_matrix
            matrix = build((arrays["data"], indices, indptr), shape=(rows, columns))
            matrix.check_format(full_check=True)
        else:
            raise ValueError(f"its format is '{layout[:20]}'; expected csr, csc or coo")
    except (ValueError, TypeError, OverflowError, IndexError, KeyError) as e:
        raise InputError(f"{what} are not a {layout[:20].upper()} matrix ({e}); save it again") from e
    return matrix


def ends_of(matrix: Any, where: str) -> dict[str, Any]:
    """``edge_index`` of an adjacency [V, V], whose A[i, j] is an edge i -> j, and ``edge_weight`` unless all are 1.
    Raises InputError: it is not square."""
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"{where} is a matrix of {matrix.shape[0]:,} rows and {matrix.shape[1]:,} columns; expected an adjacency, "
            "nodes by nodes: give links between two types as a table, edges-SOURCE-RELATION-DESTINATION.csv"
        )
    coo = matrix.tocoo()
    present = coo.data != 0
    found = {"edge_index": np.stack([coo.row[present], coo.col[present]]), "num_nodes": matrix.shape[0]}
    weights = coo.data[present]
    return found if (weights == 1).all() else {**found, "edge_weight": weights}


def note_zeros(matrix: Any) -> tuple[str, ...]:
    """A note on stored entries that are 0, which `ends_of` leaves out."""
    zeros = int((matrix.tocoo().data == 0).sum())
    what = counted(zeros, "entry", "entries")
    return (f"{what} of the matrix {are(zeros)} 0, and {'no edge' if zeros == 1 else 'no edges'}.",) if zeros else ()


def ends_of_entries(arrays: Mapping[str, AnyArray], where: str) -> dict[str, AnyArray]:
    """`ends_of` an adjacency whose entries alone are in a file: ``row``, ``col`` and perhaps ``data`` and ``shape``."""
    most = 1 + max(int(a.max(initial=0)) if a.dtype.kind in "iu" else 0 for a in (arrays["row"], arrays["col"]))
    more = {"data": np.ones(arrays["row"].shape), "shape": np.array([most, most])}
    found = ends_of(matrix_of("coo", more | {**arrays}, f"{where}: row, col and data"), where)
    return found if "shape" in arrays else {key: a for key, a in found.items() if key != "num_nodes"}


def _benchmark(arrays: Mapping[str, AnyArray], path: Path) -> OwnArrays:
    adjacency = matrix_of("csr", {key: arrays[f"adj_{key}"] for key in CSR}, f"{path}: adj_*")
    ours = ends_of(adjacency, f"{path}: adj_*")
    if "labels" in arrays:
        ours["y"] = arrays["labels"]
    if all(f"attr_{key}" in arrays for key in CSR):
        ours["x"] = matrix_of("csr", {key: arrays[f"attr_{key}"] for key in CSR}, f"{path}: attr_*")
    elif "attr_matrix" in arrays:
        ours["x"] = arrays["attr_matrix"]
    hint = Hint("undirected", "files of gnn-benchmark are read so")
    return OwnArrays(ours, hint, (), _texts(arrays, "node_names"), _texts(arrays, "class_names"))


def _texts(arrays: Mapping[str, AnyArray], key: str) -> tuple[str, ...] | None:
    return tuple(map(str, arrays[key].ravel().tolist())) if key in arrays else None


def _heterophilous(arrays: Mapping[str, AnyArray], path: Path) -> OwnArrays:
    ours: dict[str, Any] = {"edge_index": arrays["edges"].T, "y": arrays["node_labels"], "x": arrays["node_features"]}
    ours |= {f"{part}_mask": np.atleast_2d(arrays[f"{part}_masks"]) for part in SPLITS if f"{part}_masks" in arrays}
    if "directed" in path.stem.split("_"):
        return OwnArrays(ours, Hint("directed", "the file's name says directed"))
    return OwnArrays(ours, Hint("undirected", "files of heterophilous-graphs have each edge once"))


def _scipy(arrays: Mapping[str, AnyArray], path: Path) -> OwnArrays:
    layout = arrays["format"].ravel()[:1].tolist()
    text = layout[0].decode("ascii", "replace") if layout and isinstance(layout[0], bytes) else str(*layout)
    matrix = matrix_of(text, arrays, str(path))
    return OwnArrays(ends_of(matrix, str(path)), notes=note_zeros(matrix))


@dataclass(frozen=True)
class Layout:
    """One library's arrays."""

    needs: tuple[str, ...]
    """Arrays by which a file is recognised."""
    others: tuple[str, ...]
    """Arrays that it may have beside them."""
    read: Callable[[Mapping[str, AnyArray], Path], OwnArrays]


LAYOUTS = (
    Layout(
        tuple(f"adj_{key}" for key in CSR),
        (*(f"attr_{key}" for key in CSR), "attr_matrix", "labels", "node_names", "class_names"),
        _benchmark,
    ),
    Layout(("edges", "node_features", "node_labels", "train_masks"), ("val_masks", "test_masks"), _heterophilous),
    Layout(("format", "shape", "data"), ("indices", "indptr", "row", "col"), _scipy),
)
"""The layouts, of which the first that fits is taken."""


def layout_of(held: list[str]) -> Layout | None:
    """The layout of a file with these arrays; None if it is Millrace's own, or unknown."""
    return next((layout for layout in LAYOUTS if set(layout.needs) <= set(held)), None)
