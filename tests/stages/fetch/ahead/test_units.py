"""Units of rows: the distinct nodes of their minibatches. `tests/stages/fetch/test_exchange.py` trains on them."""

import numpy as np

from millrace.stages.fetch.ahead.units import united
from millrace.storage.minibatch import Block, MiniBatch


def minibatch(index: int, nodes: list[int]) -> MiniBatch:
    block = Block(1, np.asarray(nodes, np.int32), np.zeros(2, np.int64), np.empty(0, np.int32), None)
    return MiniBatch(0, index, (block,), True)


def test_nodes_are_numbered_as_they_come():
    nodes, places = united([minibatch(0, [5, 3, 9]), minibatch(1, [3, 7, 5])])
    assert nodes.tolist() == [5, 3, 9, 7]
    assert [p.tolist() for p in places] == [[0, 1, 2], [1, 3, 0]]


def test_nodes_of_one_minibatch_are_its_own():
    nodes, places = united([minibatch(0, [5, 3, 9])])
    assert nodes.tolist() == [5, 3, 9] and places == []
    assert len(united([])[0]) == 0
