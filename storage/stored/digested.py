"""Arrays for a writer that reads them once, in order: their digests, and what narrowing loses, are made on the way."""

from collections.abc import Iterator

import numpy as np

from ..array_kinds import AnyArray
from ..features import FeatureStore
from ..fingerprint import ArrayDigest, describe_features, feature_sample_digest, sampled_rows
from ..store.arrays import Rows
from ..store.narrow import FEATURE_DTYPES, FeatureDtype, narrow, stored_dtype, stored_width, widen
from ..store.npy import row_pieces
from .narrow_loss import NarrowLoss

NARROW = tuple(kind for kind in FEATURE_DTYPES if kind != "float32")


class DigestedRows:
    """Rows of a feature store for a writer that reads them once, in order, as they are to be kept; computes their
    digests on the way."""

    def __init__(self, features: FeatureStore, kind: FeatureDtype | None) -> None:
        """
        Args:
            features: the rows.
            kind: rows are narrowed to it; None: they stay as they are.
        """
        self.read_shape = (features.num_rows, features.num_features)
        self.read_dtype = np.dtype(features.dtype if kind is None else np.float32)
        self.shape = (
            self.read_shape[0],
            self.read_shape[1] if kind is None else stored_width(kind, self.read_shape[1]),
        )
        self.dtype = self.read_dtype if kind is None else stored_dtype(kind)
        self._features = features
        self._kind: FeatureDtype | None = kind
        self._digest = ArrayDigest(self.read_dtype, self.read_shape)
        self.loss = NarrowLoss.none(self.read_shape[1])
        self._next = 0
        self._sampled = sampled_rows(features.num_rows)
        self._sample: list[AnyArray] = []

    def __getitem__(self, rows: slice) -> AnyArray:
        assert rows.start == self._next, "rows must be read once each, in order"
        self._next = rows.stop
        out = read = self._features.gather(np.arange(rows.start, rows.stop))
        if self._kind is not None:
            out, given = narrow(read, self._kind), read
            read = widen(out, self._kind)
            if self._kind in NARROW:
                self.loss += NarrowLoss.from_rows(given, read, self._kind)
        self._digest.update(read)
        first, stop = np.searchsorted(self._sampled, (rows.start, rows.stop))
        self._sample.append(read[self._sampled[first:stop] - rows.start])
        return out

    def pieces(self) -> Iterator[AnyArray]:
        for rows in row_pieces(self.shape, self.dtype.itemsize):
            yield self[rows]

    def digests(self) -> dict[str, str]:
        """Digests of the features by the names of `DatasetDigests`, once all rows were read."""
        rows, width = self.read_shape
        empty = np.empty((len(self._sampled), width), self.read_dtype)  # rows without columns need not be read
        sample = np.concatenate(self._sample) if width and self._sample else empty
        return {
            "features": describe_features(rows, width, self.read_dtype, self._digest.hexdigest()),
            "feature_sample": feature_sample_digest(rows, sample),
        }


class DigestedArray:
    """Array of a graph for a writer that reads it once, in order; computes its digest on the way."""

    def __init__(self, array: Rows, dtype: str) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array
        self.digest = ArrayDigest(dtype, array.shape)

    def __getitem__(self, rows: slice) -> AnyArray:
        out = self._array[rows]
        self.digest.update(out)
        return out
