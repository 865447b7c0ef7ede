"""Feature stores with learnt rows beside those of the dataset, or in their place."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ...storage.features import ConvertedFeatures, FeatureStore, FloatArray


class WithLearned:
    """A `FeatureStore` of learnt rows, after those of another store if there is one."""

    def __init__(
        self, given: FeatureStore | None, num_rows: int, width: int, dtype: npt.DTypeLike, rows: FeatureStore | None
    ) -> None:
        """
        Args:
            given: the features that come first; None: none.
            num_rows: V.
            width: D of the learnt rows.
            dtype: of all rows.
            rows: the learnt rows; None as long as there are none, so that only the widths are known.
        """
        self._dtype = np.dtype(dtype)
        self.given = ConvertedFeatures(given, dtype) if given is not None and given.dtype != self._dtype else given
        self.num_rows, self.width, self.rows = num_rows, width, rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `FeatureStore.dtype`."""
        return self._dtype

    @property
    def num_features(self) -> int:
        """See `FeatureStore.num_features`."""
        return self.width + (0 if self.given is None else self.given.num_features)

    def gather(self, ids: npt.NDArray[np.integer], out: FloatArray | None = None) -> FloatArray:
        """See `FeatureStore.gather`."""
        assert self.rows is not None, "there are no learnt rows yet"
        both: Any = np.empty((len(ids), self.num_features), self._dtype) if out is None else out
        first = self.num_features - self.width
        if self.given is not None:
            both[:, :first] = self.given.gather(ids)
        both[:, first:] = self.rows.gather(ids)
        return both
