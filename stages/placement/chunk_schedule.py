"""Assignment of chunks to ranks in each super-epoch: pure functions of a seed, computed by every rank.

Grappa's sweep (Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872) keeps the base chunks and changes the variable one.
Reassigning a share of all chunks at every switch, up to all of them, is this project's addition.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...storage.array_kinds import IdArray
from ..random import Purpose, permutation, stream

Rotation = Literal["sweep", "fixed", "none"]
"""Chunks beside a rank's own: each other rank's in turn; always those of the next one; none."""


@dataclass(frozen=True)
class ChunkSchedule:
    """Q = m P chunks for P ranks: each chunk is a base chunk of one rank, each rank has m of them."""

    seed: int
    ranks: int
    """P."""
    per_rank: int = 1
    """m."""
    reshuffle_fraction: float = 0.0
    """Share of all chunks that are reassigned at every switch, at least two of them; 0: none, rank p keeps the chunks m
    p to m p + m - 1; 1: all, so that super-epochs are independent."""
    rotation: Rotation = "sweep"

    @property
    def num_chunks(self) -> int:
        """Q."""
        return self.ranks * self.per_rank

    def assignment(self, super_epoch: int) -> IdArray:
        """int64 [Q], the chunk at each position; rank p has the positions m p to m p + m - 1.

        Chunks that move start from a uniform assignment, and each switch permutes some of them uniformly among their
        positions, so the assignment of every super-epoch is uniform. O(t Q log Q) for super-epoch t.
        """
        chunks = np.arange(self.num_chunks)
        if not self.reshuffle_fraction:
            return chunks
        count = min(self.num_chunks, max(2, round(self.reshuffle_fraction * self.num_chunks)))
        if count == self.num_chunks:
            return permutation(stream(self.seed, Purpose.DEAL, super_epoch), chunks)
        at = permutation(stream(self.seed, Purpose.DEAL, 0), chunks)
        for t in range(1, super_epoch + 1):
            some = permutation(stream(self.seed, Purpose.DEAL, t, 0), chunks)[:count]
            at[some] = at[permutation(stream(self.seed, Purpose.DEAL, t, 1), some)]
        return at

    def base(self, rank: int, super_epoch: int) -> tuple[int, ...]:
        """The m chunks whose train nodes are this rank's seeds, ascending."""
        return tuple(sorted(self.assignment(super_epoch)[rank * self.per_rank : (rank + 1) * self.per_rank].tolist()))

    def beside(self, rank: int, super_epoch: int) -> int | None:
        """Rank whose base chunks are also visible. In P - 1 super-epochs a sweep brings every rank every other one
        once."""
        if self.rotation == "none" or self.ranks == 1:
            return None
        return (rank + 1 + (super_epoch % (self.ranks - 1) if self.rotation == "sweep" else 0)) % self.ranks

    def variable(self, rank: int, super_epoch: int) -> tuple[int, ...]:
        """Chunks that are visible beside the base chunks: m, or none."""
        other = self.beside(rank, super_epoch)
        return () if other is None else self.base(other, super_epoch)
