"""Features of a graph with several node types: a store of each type, whose widths differ."""

from typing import Any

import numpy as np

from .. import features as stores
from ..array_kinds import IntArray
from ..errors import InputError
from ..features import FeatureStore, FloatArray
from ..store.narrow import FeatureDtype, narrow, widen


class TypedFeatures:
    """Rows of several feature stores, one for each node type, by global id. A row has as many columns as the widest
    store; those beyond the width of its own type are zero."""

    def __init__(self, parts: tuple[FeatureStore, ...], offsets: tuple[int, ...]) -> None:
        """
        Args:
            parts: T stores, of one dtype; a width may be 0.
            offsets: T+1 numbers, see `GraphTypes.offsets`.

        Raises:
            InputError: a store has another number of rows than its type has nodes, or another dtype than the first.
        """
        counts = np.diff(offsets).tolist()
        if [part.num_rows for part in parts] != counts:
            raise InputError(f"features have {[p.num_rows for p in parts]} rows; the node types have {counts} nodes")
        if len({np.dtype(part.dtype) for part in parts}) > 1:
            raise InputError("features of the node types have different dtypes; expected one")
        self.parts = parts
        """Store of each type."""
        self.offsets = offsets
        self.widths = tuple(part.num_features for part in parts)
        """Columns of each type, [T]."""
        self.num_rows, self.num_features, self.dtype = offsets[-1], max(1, *self.widths), np.dtype(parts[0].dtype)
        """See `FeatureStore`; at least 1 column."""

    @property
    def kind(self) -> FeatureDtype | None:
        """Form in which the rows of all types are kept, if they are widened when they are gathered; else None."""
        (kind, *others) = {part.kind if isinstance(part, stores.WidenedFeatures) else None for part in self.parts}
        return None if others else kind

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
        stores.check_ids(ids, self.num_rows)
        rows: Any = np.empty((len(ids), self.num_features), self.dtype) if out is None else out
        kinds = np.searchsorted(np.asarray(self.offsets[1:]), ids, side="right")
        for t, part in enumerate(self.parts):
            at = np.flatnonzero(kinds == t)
            if not len(at):
                continue
            width = part.num_features
            if width == self.num_features and len(at) == len(ids):
                part.gather(np.asarray(ids) - self.offsets[t], rows)
                continue
            if width:
                rows[at, :width] = part.gather(np.asarray(ids)[at] - self.offsets[t])
            rows[at, width:] = 0
        return rows

    def gather_rounded(self, ids: IntArray, kind: FeatureDtype | None) -> FloatArray:
        """Rows of ascending `ids` as they are once they were kept as `kind`; None: as they are."""
        rows: Any = self.gather(ids)
        if kind is None:
            return rows
        rows = rows.astype(np.float32)
        for first, stop, width in zip(self.offsets, self.offsets[1:], self.widths):
            own = slice(*np.searchsorted(ids, (first, stop)))
            rows[own, :width] = widen(narrow(rows[own, :width], kind), kind)
        return rows


def typed_in_place(features: FeatureStore, ids: IntArray) -> tuple[list[FloatArray], tuple[int, ...]] | None:
    """Rows of each node type, and the types' offsets, for a caller that reads `ids` where they lie; None if they are
    not in memory as `ArrayFeatures` of several types.

    A counted store counts them, once each, as if they had been gathered.

    Raises:
        IndexError: an id is out of range.
    """
    if isinstance(features, stores.CountedFeatures):
        found = typed_in_place(features.inner, ids)
        if found is not None:
            features.count(len(ids))
        return found
    if not isinstance(features, TypedFeatures):
        return None
    rows: list[FloatArray] = [part.rows for part in features.parts if isinstance(part, stores.ArrayFeatures)]
    if len(rows) < len(features.parts):
        return None
    stores.check_ids(ids, features.num_rows)
    if reads_together(features, ids):
        return None
    return rows, features.offsets


def stores_on_disk(features: FeatureStore) -> list[stores.MappedFeatures | stores.ZarrFeatures]:
    """The stores of rows that may have to be read from a disk."""
    if isinstance(features, TypedFeatures):
        return [store for part in features.parts for store in stores_on_disk(part)]
    if isinstance(features, stores.CountedFeatures | stores.ConvertedFeatures):
        return stores_on_disk(features.inner)
    kept = features.kept if isinstance(features, stores.WidenedFeatures) else features
    return [kept] if isinstance(kept, stores.MappedFeatures | stores.ZarrFeatures) else []


def reads_together(features: FeatureStore, ids: IntArray) -> bool:
    """`is_read_together`, also of features of several node types."""
    if isinstance(features, stores.CountedFeatures | stores.ConvertedFeatures):
        return reads_together(features.inner, ids)
    if not isinstance(features, TypedFeatures):
        return stores.is_read_together(features, ids)
    own = zip(features.parts, features.offsets, features.offsets[1:])
    return any(reads_together(part, ids[(ids >= first) & (ids < stop)] - first) for part, first, stop in own)
