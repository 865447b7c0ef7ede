"""Feature stores with learnt rows beside those of the dataset, or in their place."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.features import ConvertedFeatures, FeatureStore, FloatArray


class WithLearned:
    """A `FeatureStore` of learnt rows beside those of another store if there is one.

    The learnt columns come last. In a graph with several node types they come first, as those of a type's own features
    end where its width does.
    """

    def __init__(
        self,
        given: FeatureStore | None,
        num_rows: int,
        width: int,
        dtype: npt.DTypeLike,
        rows: FeatureStore | None,
        *,
        typed: bool = False,
    ) -> None:
        """
        Args:
            given: the other features; None: none.
            num_rows: V.
            width: D of the learnt rows.
            dtype: of all rows.
            rows: the learnt rows; None as long as there are none, so that only the widths are known.
            typed: whether the graph has several node types.
        """
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.given = ConvertedFeatures(given, dtype) if given is not None and given.dtype != self.dtype else given
        self.num_rows, self.width, self.rows, self.typed = num_rows, width, rows, typed
        self.num_features = width + (0 if given is None else given.num_features)

    def with_rows(self, rows: FeatureStore | None) -> "WithLearned":
        """The same with other learnt rows."""
        return WithLearned(self.given, self.num_rows, self.width, self.dtype, rows, typed=self.typed)

    @property
    def learned_columns(self) -> slice:
        """The columns of `gather` that are learnt."""
        first = 0 if self.typed else self.num_features - self.width
        return slice(first, first + self.width)

    def gather(self, ids: npt.NDArray[np.integer], out: FloatArray | None = None) -> FloatArray:
        assert self.rows is not None, "there are no learnt rows yet"
        both: Any = np.empty((len(ids), self.num_features), self.dtype) if out is None else out
        if self.given is not None:
            own = both[:, self.width :] if self.typed else both[:, : -self.width]
            own[:] = self.given.gather(ids)
        both[:, self.learned_columns] = self.rows.gather(ids)
        return both

    def beside(self, given: Tensor, learned: Tensor) -> Tensor:
        """[n, F + D], rows of the other store [n, F] and learnt ones [n, D], in the order of `gather`."""
        return torch.cat([learned, given] if self.typed else [given, learned], 1)
