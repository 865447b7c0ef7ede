"""Rows that lie in a store of samples beside the minibatches that need them."""

import time

import numpy as np
import torch

from ....storage.array_kinds import IntArray
from ....storage.errors import StoreError
from ....storage.minibatch import MiniBatch
from ....storage.queue.packed_rows import PackedRows
from ...messages import Placement
from .units import Collected, ReadRows, distinct


class SampledRows(ReadRows):
    """Rows beside stored minibatches, each minibatch's read at once, as `DiskRows` reads a unit's."""

    name = "packed features"

    def __init__(self, packed: PackedRows, placement: Placement, loops: bool) -> None:
        """`loops`: the model reads self loops, which degrees then have beside them. If the placement has the degrees of
        its own nodes only, those of others are read too."""
        super().__init__()
        self._packed, self._loops = packed, loops
        self._dtype, self._degree_dtype = placement.features.dtype, placement.degree.dtype
        self._with_degrees = len(placement.degree) < packed.num_nodes
        self.row_bytes = packed.form.width * np.dtype(self._dtype).itemsize

    def is_at_hand(self, ids: IntArray) -> bool:
        """False: they lie nowhere else."""
        return False

    def begin(self) -> None: ...

    def adds(self, work: MiniBatch) -> int:
        """Bytes of rows that a minibatch adds to the unit. Raises StoreError if the rows are not there."""
        return self._packed.count(work.epoch, work.index) * self.row_bytes

    def collected(self, work: list[MiniBatch]) -> list[Collected]:
        """Rows of each minibatch of a unit.

        Raises:
            StoreError: the rows are not there, damaged, or of other nodes.
            RunError: the file has become shorter, or the disk fails.
        """
        start, found = time.perf_counter(), list[Collected]()
        for m in work:
            if not self.is_wanted():
                break
            found.append(self._of(m))
        self._buffers.step()
        self.read.seconds += time.perf_counter() - start
        return found

    def _of(self, work: MiniBatch) -> Collected:
        packed, nodes = self._packed, work.nodes
        if len(nodes) and int(nodes.max()) >= packed.num_nodes:
            raise StoreError(
                f"minibatch {work.index} of epoch {work.epoch} has node {nodes.max()}, but the rows beside it are of "
                f"{packed.num_nodes} nodes; sample it again"
            )
        known, place = distinct(nodes, packed.num_nodes)
        if len(known) != packed.count(work.epoch, work.index):
            raise StoreError(
                f"minibatch {work.index} of epoch {work.epoch} has {len(known)} nodes, but the rows beside it are of "
                f"{packed.count(work.epoch, work.index)}; sample it again"
            )
        rows = packed.rows(work.epoch, work.index, self._dtype, self._buffers.array)
        degree = None
        if self._with_degrees:
            degrees = packed.degrees(work.epoch, work.index)
            if degrees.ndim > 1 and not self._loops:
                degrees = degrees[:, 0]
            degree = torch.from_numpy(degrees[place]).to(self._degree_dtype)
        self.needed.add(rows.nbytes, len(rows))
        self.read.add(len(rows) * packed.form.row_bytes, 1)
        return Collected(rows, place, degree)
