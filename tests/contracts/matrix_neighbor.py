"""Neighbour sampling written as matrices, to compare with its own kernel."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from millrace.stages.kernels.sampling.samples import EdgeList, NeighborSample
from millrace.stages.kernels.sampling.sparse import Sparse
from millrace.stages.random import node_words
from millrace.stages.sample.matrix import MatrixSampler


@dataclass(frozen=True)
class MatrixNeighbor(MatrixSampler):
    """`NeighborSampler` as matrices: Q has a row for each node of the frontier."""

    fanout: tuple[int, ...]
    name: ClassVar[str] = "matrix-neighbor"

    @property
    def num_layers(self) -> int:
        return len(self.fanout)

    @property
    def draws(self) -> tuple[int, ...]:
        return self.fanout

    def row_streams(self, Q: Sparse, key: int, c: Any) -> Any:
        return node_words(key, Q.columns)

    def advance(self, selectors: Any, S: Sparse, c: Any) -> Sparse:
        return Sparse.select(c.known.add(S.columns))

    def extract(self, seeds: Any, selectors: Any, drawn: Any, c: Any) -> NeighborSample:
        ends = tuple(np.cumsum([Q.num_rows for Q in selectors]).tolist())
        indptr = np.concatenate([[0], np.cumsum(np.concatenate([S.lengths for S in drawn]))]).astype(np.int32)
        indices = c.known.positions(np.concatenate([S.columns for S in drawn]))
        return NeighborSample(c.known.nodes, ends, (EdgeList(indptr, indices, None),))
