"""Feature stores with learnt rows beside those of the dataset, or in their place."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IntArray
from ...storage.features import ConvertedFeatures, FeatureStore, FloatArray


@dataclass(eq=False)
class WithLearned:
    """A `FeatureStore` of learnt rows beside those of another store if there is one.

    The learnt columns come last. In a graph with several node types they come first, as those of a type's own features
    end where its width does.
    """

    given: FeatureStore | None
    """The other features; None: none."""
    num_rows: int
    width: int
    """D of the learnt rows."""
    dtype: Any
    """Type of all rows' numbers."""
    rows: FeatureStore | None
    """The learnt rows; None as long as there are none, so that only the widths are known."""
    typed: bool = field(default=False, kw_only=True)
    """True if the graph has several node types."""

    def __post_init__(self) -> None:
        self.dtype = np.dtype(self.dtype)
        if self.given is not None and self.given.dtype != self.dtype:
            self.given = ConvertedFeatures(self.given, self.dtype)
        self.num_features = self.width + (0 if self.given is None else self.given.num_features)

    @property
    def learned_columns(self) -> slice:
        """The columns of `gather` that are learnt."""
        first = 0 if self.typed else self.num_features - self.width
        return slice(first, first + self.width)

    def gather(self, ids: IntArray, out: FloatArray | None = None) -> FloatArray:
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
