"""What an aggregation kernel is told beside the arrays."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionRule:
    """Constants of one attention call; the backward pass replays them."""

    slope: float
    """Of the leaky ReLU below zero."""
    dropout: float
    """Probability of dropping a coefficient, in [0, 1)."""
    key: int
    """64-bit key of the dropout's stream (`stages.random`): edge e (the row's own edge: number of edges + row) and head h are
    kept iff ``draw(node_words(key, e), h) >= threshold``."""

    @property
    def threshold(self) -> int:
        """`dropout` as a 32-bit fixed-point number: the comparison is exact on every backend."""
        return int(self.dropout * 2**32)

    @property
    def keep_scale(self) -> float:
        """What a kept coefficient is multiplied by."""
        return 1.0 / (1.0 - self.dropout)
