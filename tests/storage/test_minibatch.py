"""Messages between sampling and training: `check` proves each invariant, so each must be able to fail it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from millrace.storage.minibatch import Block, Bulk, MiniBatch, nested_blocks
from millrace.tests.contracts.messages import make_bulk, minibatches


@given(minibatches())
def test_minibatches_hold_together(m):
    assert m.check() is m
    assert np.array_equal(m.seeds, m.nodes[: len(m.seeds)])
    assert m.num_edges == (m.blocks[0].num_edges if m.nested else sum(b.num_edges for b in m.blocks))


def block(**change):
    good = Block(
        2,
        np.array([7, 3, 9]),
        np.array([0, 1, 3], np.int32),
        np.array([2, 0, 1], np.int32),
        np.ones(3, np.float32),
        np.arange(3),
    )
    return replace(good.check(), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"num_dst": 4},
        {"num_dst": 1},
        {"indptr": np.array([1, 1, 3])},
        {"indptr": np.array([0, 4, 3])},
        {"indptr": np.array([0, 1, 2])},
        {"indices": np.array([2, 0, 1])},
        {"indices": np.array([3, 0, 1], np.int32)},
        {"indices": np.array([-1, 0, 1], np.int32)},
        {"src": np.array([7, 3, 7])},
        {"weight": np.ones(2, np.float32)},
        {"edge_id": np.arange(4)},
    ],
)
def test_check_sees_a_bad_block(change):
    with pytest.raises(AssertionError):
        block(**change).check()


def two_layers():
    nodes, ends = np.array([5, 8, 1, 4]), (1, 3, 4)
    return MiniBatch(
        0, 0, nested_blocks(nodes, ends, np.array([0, 2, 2, 3], np.int32), np.array([1, 2, 3], np.int32)), True
    )


def test_nested_blocks_are_views_of_one_edge_list():
    m = two_layers().check()
    outer, inner = m.blocks
    assert (outer.num_dst, outer.num_src, outer.num_edges) == (3, 4, 3)
    assert (inner.num_dst, inner.num_src, inner.num_edges) == (1, 3, 2)
    assert np.shares_memory(outer.indices, inner.indices)
    assert m.seeds.tolist() == [5]
    assert m.num_edges == 3


def test_check_sees_blocks_that_do_not_chain():
    m = two_layers()
    outer, inner = m.blocks
    moved = replace(inner, src=np.array([5, 8, 2]))
    rewired = replace(inner, indices=np.array([2, 1], np.int32))
    shifted = replace(inner, indptr=np.array([0, 1], np.int32), indices=inner.indices[:1])
    for bad in (moved, rewired, shifted):
        with pytest.raises(AssertionError):
            replace(m, blocks=(outer, bad)).check()
    replace(m, blocks=(outer, rewired), nested=False).check()
    with pytest.raises(AssertionError):
        replace(m, blocks=()).check()


def test_a_bulk_is_ascending_minibatches_of_one_epoch():
    good = make_bulk(2, 1, 3)
    assert good.first_index == 3
    replace(good, minibatches=(good.minibatches[0], good.minibatches[2])).check()
    for bad in (
        Bulk(2, 1, ()),
        replace(good, epoch=1),
        replace(good, minibatches=good.minibatches[::-1]),
        replace(good, minibatches=(good.minibatches[0], good.minibatches[0])),
    ):
        with pytest.raises(AssertionError):
            bad.check()
