"""The queue in memory."""

import pytest

from millrace.storage.errors import InputError
from millrace.storage.queue.base import MemoryQueue
from millrace.tests.contracts.queue import K, MinibatchQueueTests


class TestMemoryQueue(MinibatchQueueTests):
    def make(self, path, *, max_bytes=1 << 30, keep="none", consumers=1, per_epoch=None, bulk_size=K):
        return MemoryQueue(
            bulk_size=bulk_size, max_bytes=max_bytes, keep=keep, consumers=consumers, minibatches_per_epoch=per_epoch
        )


def test_memory_keeps_no_more_than_an_epoch():
    with pytest.raises(InputError, match=r"keep='all'.*Zarr"):
        MemoryQueue(bulk_size=1, max_bytes=1, keep="all")
