"""Random walks and the subgraph between their nodes (GraphSAINT-RW; Zeng et al., ICLR 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...storage.array_kinds import IntArray
from ..kernels.sampling.samples import NeighborSample
from ..kernels.sampling.sparse import Sparse
from .matrix import Context, SubgraphSampler, whole_numbers


@dataclass(frozen=True)
class SaintSampler(SubgraphSampler):
    """Takes `walks` random walks of `length` steps from each seed, along in-edges. All layers see every edge between
    the visited nodes.

    As matrices: Q has a row for each walk, and each step draws one entry of each row of Q A, which is the next Q. The
    subgraph is A at the rows and columns of these nodes. Edge weights do not steer walks; parallel edges count.

    A row's kept edges stand for all its in-edges, by in-degree / kept. This is biased: neighbours near the walks are
    kept more often. The paper's normalisation, from counts of many subgraphs, corrects this; this sampler does not. The
    loss is that of the seeds, not of every node of the subgraph. Must not be confused with `neighbor`, whose outermost
    nodes have no edges.
    """

    length: int = 3
    """Steps of a walk; a walk ends early at a node without in-edges."""
    walks: int = 4
    """Walks from each seed."""
    name: ClassVar[str] = "saint"
    replace: ClassVar[bool] = True

    def __post_init__(self) -> None:
        layers, length, walks = (self.layers, 1, 100), (self.length, 1, 1000), (self.walks, 1, 10_000)
        whole_numbers(self.name, layers=layers, length=length, walks=walks)

    @property
    def draws(self) -> Sequence[int]:
        """See `MatrixSampler.draws`: the next node of each walk."""
        return (1,) * self.length

    def select(self, seeds: IntArray, c: Context) -> Sparse:
        """See `MatrixSampler.select`: a row for each walk."""
        return Sparse.select(np.repeat(seeds, self.walks))

    def extract(
        self, seeds: IntArray, selectors: Sequence[Sparse], drawn: Sequence[Sparse], c: Context
    ) -> NeighborSample:
        """See `MatrixSampler.extract`: the subgraph between all nodes visited."""
        return c.induced(np.concatenate([S.columns for S in drawn]), self.layers)
