"""Cleaning of features into the rows of a `Dataset`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....storage.array_kinds import Float32Array, IdArray
from ....storage.errors import InputError
from ....storage.graph import edge_matrix
from .filling import Seen, Treatment, taken_out, treatment_of
from .kept import as_other, own_statistics, uses_statistics
from .options import ReadOptions

LARGE_BYTES, SPARSEST = 256 << 20, 100_000
"""Size in bytes above which sparse features with fewer than one value in so many are refused, since rows are dense."""
Card = list[dict[str, Any]]
"""Records of columns for a data card."""
LARGE_VALUE = 100
"""Value beyond which features get a note: training diverges, or stands still."""
NORMALIZED = {
    "binary": "Features were made binary",
    "row": "Feature rows were divided by their absolute sums",
    "standard": "Feature columns were shifted and scaled to mean 0 and standard deviation 1",
}


class RowKind(NamedTuple):
    """Kind of the rows that features are of."""

    columns: Sequence[str] = ()
    """See `column_names`."""
    unit: str = "node"
    called: str = "nodes"
    """Their place in a data card."""


NODES, EDGES = RowKind(), RowKind((), "edge", "edges")


def clean_features(
    features: Any, num_nodes: int, options: ReadOptions, notes: list[str], of: RowKind = NODES, card: Card | None = None
) -> Float32Array:
    """Features float32 [V, F], C-contiguous, of numbers, dense or SciPy sparse, or of None, so that F is 0. Raises
    InputError: names the defect and the option that resolves it."""
    if features is None:
        return np.zeros((num_nodes, 0), np.float32)
    if not (sparse := hasattr(features, "todense")):
        features = _array(features)
    if len(features.shape) != 2 or features.shape[0] != num_nodes:
        raise InputError(f"features have shape {list(features.shape)}; expected [{num_nodes}, F], a row for each node")
    if not features.shape[1]:
        return np.zeros((num_nodes, 0), np.float32)
    if features.dtype.kind not in "biuf":
        raise InputError(f"features are {features.dtype}; expected numbers: encode them before saving")
    values = features.shape[0] * features.shape[1]
    if sparse and 4 * values > LARGE_BYTES and features.nnz * SPARSEST < values:
        raise InputError(
            f"features are {list(features.shape)} with {features.nnz} values, which take {4 * values >> 20:,} MiB as "
            "rows; keep fewer columns"
        )
    with np.errstate(over="ignore"):
        x = np.array(features.astype(np.float32).toarray() if sparse else features, np.float32, order="C")
    return filled(x, None if sparse else features, options, notes, of, card)


def clean_edge_features(
    features: Any, num_edges: int, options: ReadOptions, notes: list[str], of: RowKind = EDGES, card: Card | None = None
) -> Float32Array:
    """Features of edges, float32 [E, D], in the order given. Missing values are filled as those of nodes are. Raises
    InputError: they are no rows of numbers, or values are missing where that is an error."""
    given = _array(features)
    if given.ndim == 2 and not given.shape[1]:
        return np.zeros((num_edges, 0), np.float32)
    x = np.array(edge_matrix(given, num_edges, np.float32))
    options = replace(options, normalize_features="none")
    return filled(x, given.reshape(x.shape), options, notes, of, card)


def _array(features: npt.ArrayLike) -> Any:
    try:
        return np.asarray(features)
    except ValueError:
        raise InputError("features have rows of different widths; expected one") from None


def filled(
    x: Float32Array, given: Any, options: ReadOptions, notes: list[str], of: RowKind, card: Card | None
) -> Float32Array:
    """Rows [n, F] scaled and filled, which changes `x`; see `filling.Seen.from_rows` and `check`."""
    bad = taken_out(x)
    seen = Seen.from_rows(x, bad, given=given)
    seen.check(options, notes, of.columns, of.unit)
    treatment, is_told = None, False
    if (other := as_other(options)) is not None:
        treatment, is_told = Treatment.from_record(options, other.before.get(of.called, ()), x.shape[1]), True
        if uses_statistics(options):
            by_run = "The numbers by which features are scaled or filled are those of the run's data."
            notes.append(own_statistics(options) if treatment is None else by_run)
    if of.unit == "node" and not (is_told and options.normalize_features == "standard"):
        note_normalized(seen.magnitude, options, notes)
    treatment = (treatment or treatment_of(x, bad, options)).chosen(of.columns, x.shape[1], of.called)
    if card is not None:
        card += treatment.columns_of(seen, of.columns, of.called)
    return treatment.apply(x, bad)


def note_missing(options: ReadOptions, notes: list[str]) -> None:
    """Note that the degree replaces features. Raises InputError if it may not."""
    if options.missing_features == "error":
        raise InputError(
            "the input has no features; give them, or set missing_features=degree to make two columns from the "
            "in-degree"
        )
    notes.append(
        "The input has no features: each node got two columns, 1 and log(1 + in-degree). Expect little accuracy from "
        "them; learned = 64 would learn features of each node."
    )


def degree_rows(in_degree: IdArray) -> Float32Array:
    """float32 [V, 2], 1 and log(1 + in-degree)."""
    return np.stack([np.ones(len(in_degree)), np.log1p(in_degree)], axis=1).astype(np.float32)


def note_normalized(largest: float, options: ReadOptions, notes: list[str]) -> None:
    """Note the normalisation, or values that are too large without one."""
    if (how := NORMALIZED.get(options.normalize_features)) is not None:
        notes.append(f"{how} (normalize_features={options.normalize_features}).")
    elif largest > LARGE_VALUE:
        notes.append(
            f"Features reach {largest:,.0f}, and training needs values near 1: normalize_features=standard scales each "
            "column."
        )
