"""A finished store that is read over and over."""

import shutil

import pytest

from millrace.storage.errors import RunError, StoreError
from millrace.storage.queue.base import MinibatchQueue
from millrace.storage.queue.cycle import Cycled
from millrace.storage.queue.zarr import ZarrQueue
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.messages import make_bulk
from millrace.tests.contracts.queue import LONG_S, SHORT_S, K, same


@pytest.fixture
def writer(tmp_path):
    return ZarrQueue.create(tmp_path / "q", fingerprint={}, bulk_size=K, max_bytes=1 << 30, keep="all")


@pytest.fixture
def cycled(writer):
    """Two epochs of two bulks, the last one shorter."""
    for epoch in range(2):
        writer.put(make_bulk(epoch, 0, K), LONG_S)
        writer.put(make_bulk(epoch, 1, K, count=2), LONG_S)
    writer.finish()
    return Cycled(ZarrQueue.open(writer.path))


def test_is_a_minibatch_queue(cycled):
    assert isinstance(cycled, MinibatchQueue)
    assert (cycled.bulk_size, cycled.stored, cycled.num_epochs) == (K, True, 2)


@pytest.mark.parametrize("epoch", [0, 1, 2, 5, 10**9 + 1])
def test_an_epoch_is_that_of_the_remainder_under_its_own_number(cycled, epoch):
    for index in (4, 0, 2):
        stored = make_bulk(epoch % 2, index // K, K, count=K if index < K else 2).minibatches[index % K]
        m = cycled.get(epoch, index, SHORT_S).check()
        assert (m.epoch, m.index) == (epoch, index)
        assert same(cycled.get(epoch % 2, index, SHORT_S), stored)
        assert (m.seeds == stored.seeds).all()
        assert all((a.indices == b.indices).all() for a, b in zip(m.blocks, stored.blocks))
    assert cycled.committed(epoch) == {0, 1}


def test_other_epochs_are_other_minibatches(cycled):
    """Or the tests above would pass with one epoch only."""
    assert (cycled.get(0, 0, SHORT_S).nodes != cycled.get(1, 0, SHORT_S).nodes).any()
    assert minibatch_digest(cycled.get(2, 0, SHORT_S)) != minibatch_digest(cycled.get(3, 0, SHORT_S))


def test_nothing_is_dropped(cycled):
    cycled.release(10, 0)
    assert cycled.get(0, 0, SHORT_S).epoch == 0
    assert cycled.get(11, 4, SHORT_S).epoch == 11


def test_beyond_the_epoch(cycled):
    with pytest.raises(StoreError, match="holds no bulk 2 of epoch 1"):
        cycled.get(3, 2 * K, LONG_S)


def test_put_is_refused(cycled):
    with pytest.raises(StoreError, match="bulk 0 of epoch 7 cannot be put"):
        cycled.put(make_bulk(7, 0, K), SHORT_S)
    assert cycled.committed(7) == {0, 1}


def test_failure_and_close_reach_the_store(cycled, writer):
    cycled.fail(ValueError("no more ids"))
    with pytest.raises(RunError, match="no more ids"):
        cycled.get(2, 0, LONG_S)
    other = Cycled(ZarrQueue.open(writer.path))
    other.close()
    with pytest.raises(RunError, match="closed"):
        other.get(2, 0, LONG_S)


def test_an_unfinished_store_is_refused(writer):
    writer.put(make_bulk(0, 0, K), LONG_S)
    with pytest.raises(StoreError, match="is not finished"):
        Cycled(ZarrQueue.open(writer.path))


def test_an_empty_store_is_refused(writer):
    writer.finish()
    with pytest.raises(StoreError, match="holds no minibatches"):
        Cycled(ZarrQueue.open(writer.path))


def test_a_store_that_lacks_an_epoch_is_refused(cycled, writer):
    writer.put(make_bulk(2, 0, K), LONG_S)
    writer.finish()
    shutil.rmtree(writer.path / "epoch-1")
    with pytest.raises(StoreError, match=r"holds epochs \[0, 2\]; expected 0 to 2"):
        Cycled(ZarrQueue.open(writer.path))
