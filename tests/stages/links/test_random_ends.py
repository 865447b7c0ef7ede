"""Random ends against their law: uniform, by weight, and of the nodes that are there at a moment."""

import numpy as np
from scipy.stats import chisquare

from millrace.stages.links.random_ends import RandomEnds
from millrace.stages.random import branches

KEYS = branches(7, np.arange(6000))


def counted(ends: RandomEnds, moments: np.ndarray | None = None) -> np.ndarray:
    return np.bincount(ends.draw(KEYS, moments), minlength=10)


def test_uniform_and_by_weight() -> None:
    counts = counted(RandomEnds(range(4, 10), None, None, 0))
    assert not counts[:4].any() and chisquare(counts[4:]).pvalue > 1e-4
    weight = np.array([0.0, 1, 2, 3])
    counts = counted(RandomEnds(range(4), weight, None, 0))
    assert counts[0] == 0 and chisquare(counts[1:4], weight[1:] * 1000).pvalue > 1e-4
    other = RandomEnds(range(4), weight, None, 1).draw(KEYS, None)
    assert (other != RandomEnds(range(4), weight, None, 0).draw(KEYS, None)).any(), "another draw"


def test_only_nodes_that_are_there() -> None:
    time = np.array([5, 1, 3, 9])
    for weight in (None, np.array([1.0, 2, 0, 4])):
        ends = RandomEnds(range(4), weight, time, 0)
        counts = counted(ends, np.full(6000, 5))
        law = np.array([1, 1, 1, 0]) if weight is None else np.array([1, 2, 0, 0])
        assert not counts[law.nonzero()[0].max() + 1 :].any()
        assert chisquare(counts[:4][law > 0], law[law > 0] / law.sum() * 6000).pvalue > 1e-4
        assert (ends.draw(KEYS, np.full(6000, 0)) == 1).all(), "the earliest where none is there"
