"""Finished store of samples, read in cycles: epoch e is stored epoch e mod E."""

from dataclasses import replace

from ..errors import StoreError
from ..minibatch import Bulk, MiniBatch
from .packed_rows import PackedRows
from .zarr import ZarrQueue


class Cycled:
    """Queue that reads E stored epochs over and over.

    A minibatch keeps its nodes and edges but carries the epoch it was asked for: dropout, which is drawn by epoch, is
    new each time. Nothing is put or dropped.

    Args:
        store: read whole, epochs 0 to E - 1; closed with this queue.

    Raises:
        StoreError: the store is not finished, holds no minibatches, or lacks an epoch.
    """

    stored = True

    def __init__(self, store: ZarrQueue) -> None:
        if not store.complete:
            raise StoreError(
                f"{store.path} is not finished: only a whole store can be cycled through; let `millrace sample` end "
                "first"
            )
        held = [epoch for epoch in store.epochs() if store.committed(epoch)]
        if not held:
            raise StoreError(
                f"{store.path} holds no minibatches: there is nothing to cycle through; sample at least one epoch"
            )
        if held != list(range(len(held))):
            raise StoreError(
                f"{store.path} holds epochs {held}; expected 0 to {held[-1]}: sample those that are missing"
            )
        self.num_epochs = len(held)
        self._store = store

    @property
    def bulk_size(self) -> int:
        return self._store.bulk_size

    @property
    def packed(self) -> PackedRows | None:
        found = self._store.packed
        return None if found is None else found.cycled(self.num_epochs)

    @property
    def level(self) -> dict[str, int]:
        return self._store.level

    def put(self, bulk: Bulk, timeout_s: float) -> None:
        """Not supported. Raises StoreError."""
        raise StoreError(
            f"{self._store.path} is cycled through: bulk {bulk.number} of epoch {bulk.epoch} cannot be put; it is "
            "read only"
        )

    def get(self, epoch: int, index: int, timeout_s: float) -> MiniBatch:
        """Minibatch `index` of stored epoch ``epoch % E``, relabelled as one of `epoch`. Raises what
        `MinibatchQueue.get` raises."""
        return replace(self._store.get(epoch % self.num_epochs, index, timeout_s), epoch=epoch)

    def release(self, epoch: int, index: int, consumer: int = 0) -> None:
        """See `MinibatchQueue.release`; nothing is dropped, since epochs repeat."""

    def committed(self, epoch: int) -> set[int]:
        return self._store.committed(epoch % self.num_epochs)

    def fail(self, error: BaseException) -> None:
        self._store.fail(error)

    def close(self) -> None:
        self._store.close()
