"""Rows that lie beside minibatches: as those of the dataset, and not of other nodes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from millrace.stages.fetch.ahead.packed_rows import SampledRows
from millrace.storage.errors import StoreError
from millrace.tests.stages.fetch.ahead.test_disk_rows import minibatch

V = 30
FEATURES = np.arange(V * 2, dtype=np.float32).reshape(V, 2)


class Packed:
    """Rows of two minibatches, in memory."""

    num_nodes, form = V, SimpleNamespace(width=2, row_bytes=8)

    def __init__(self, *nodes: list[int]) -> None:
        self.nodes = [np.unique(n) for n in nodes]

    def count(self, epoch: int, index: int) -> int:
        return len(self.nodes[index])

    def rows(self, epoch: int, index: int, dtype: Any, empty: Any) -> Any:
        rows = empty((len(self.nodes[index]), FEATURES.shape[1]), dtype)
        rows[:] = FEATURES[self.nodes[index]]
        return rows


PLACEMENT = SimpleNamespace(features=SimpleNamespace(dtype=np.dtype(np.float32)), degree=torch.zeros(V))


def test_rows_are_those_of_the_nodes_also_where_these_repeat() -> None:
    nodes = [[7, 3, 29, 3], [0]]
    packed = Packed(*nodes)
    source: Any = SampledRows(packed, PLACEMENT, loops=False)
    work = [minibatch(0, i, n) for i, n in enumerate(nodes)]
    assert not source.is_at_hand(work[0].nodes) and [source.adds(m) for m in work] == [24, 8]
    for m, got in zip(work, source.collected(work)):
        assert np.array_equal(got.rows[got.place], FEATURES[m.nodes]) and got.degree is None
    assert (source.read.count, source.read.bytes, source.needed.count) == (2, 32, 4)
    source.is_wanted = lambda: False
    assert source.collected(work) == []


@pytest.mark.parametrize(
    ("nodes", "phrase"), [([1, 2, 3], "has 3 nodes, but the rows beside it are of 2"), ([99], "has node 99")]
)
def test_rows_of_other_nodes_are_refused(nodes: list[int], phrase: str) -> None:
    source: Any = SampledRows(Packed([4, 5]), PLACEMENT, loops=False)
    with pytest.raises(StoreError, match=phrase):
        source.collected([minibatch(0, 0, nodes)])
