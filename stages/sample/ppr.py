"""Nodes of high personalised PageRank and the subgraph between them (ShaDow; Zeng et al., NeurIPS 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...storage.array_kinds import IntArray
from ...storage.errors import InputError
from ..kernels.sampling.samples import NeighborSample
from ..kernels.sampling.sparse import Sparse, stacked
from ..random import branches
from .matrix import Context, SubgraphSampler, whole_numbers

ONE = 1 << 40
"""Mass of a seed."""


@dataclass(frozen=True)
class PprSampler(SubgraphSampler):
    """Draws, for each seed, `nodes` distinct nodes in proportion to their personalised PageRank. All layers see every
    edge between these nodes and the minibatch's seeds.

    PageRank is the chance that a walk along in-edges ends at a node; a walk stops with probability `teleport` at each
    node, within `steps`: the sum over t of (1 - teleport)^t Q W^t, W = D^-1 A. As matrices: masses of Q, in fixed
    point, are divided among in-edges before Q A; R S, R = (I I ... I), adds up the steps. A seed never draws itself.
    ShaDow keeps each seed's subgraph apart; here the seeds of a minibatch share one. A row's kept edges stand for all
    of them, by in-degree / kept: biased towards neighbours that are near the seeds, as ShaDow is.
    """

    nodes: int = 32
    """Nodes drawn for each seed; fewer if fewer can be reached."""
    steps: int = 3
    """Largest number of steps of a walk, each one matrix product."""
    teleport: float = 0.25
    """Probability to stop at each node, above 0 and below 1."""
    cutoff: float = 1e-4
    """Smallest mass of an in-edge that a step follows, in multiples of a seed's mass, as in the authors'
    approximation."""
    name: ClassVar[str] = "ppr"

    def __post_init__(self) -> None:
        layers, nodes, steps = (self.layers, 1, 100), (self.nodes, 1, 1 << 20), (self.steps, 1, 100)
        whole_numbers(self.name, layers=layers, nodes=nodes, steps=steps)
        for name in ("teleport", "cutoff"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise InputError(f"{name} of the sampler {self.name} is {value!r}; expected a number between 0 and 1")

    @property
    def draws(self) -> Sequence[int]:
        """See `MatrixSampler.draws`: nothing is drawn on the way."""
        return (-1,) * self.steps

    def select(self, seeds: IntArray, c: Context) -> Sparse:
        """See `MatrixSampler.select`: the mass of a seed for each of its in-edges."""
        return self.advance((), Sparse.select(seeds, np.full(len(seeds), ONE)), c)

    def norm(self, P: Sparse, c: Context) -> Sparse:
        """See `MatrixSampler.norm`: what has not stopped before."""
        return P.with_values((P.mass >> 16) * round((1 - self.teleport) * 2**16))

    def advance(self, selectors: Sequence[Sparse], S: Sparse, c: Context) -> Sparse:
        """See `MatrixSampler.advance`: the mass of a node for each of its in-edges."""
        each = S.mass // np.maximum(c.graph.in_degree[S.columns], 1)
        return S.with_values(np.where(each >= self.cutoff * ONE, each, 0))

    def extract(
        self, seeds: IntArray, selectors: Sequence[Sparse], drawn: Sequence[Sparse], c: Context
    ) -> NeighborSample:
        """See `MatrixSampler.extract`: nodes drawn by their mass over all steps."""
        n = len(seeds)
        R = Sparse.repeat(n, len(drawn))
        P = c.multiply(R, stacked(drawn))
        P = P.with_values(np.where(P.columns == seeds[P.row_of], 0, P.mass))
        return c.induced(c.choose(P, self.nodes, branches(int(c.keys[-1]), np.arange(n))).columns, self.layers)
