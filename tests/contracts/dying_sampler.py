"""A sampler whose process is killed once."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from millrace.stages.assignment import BulkRequest
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.minibatch import Bulk


@dataclass(frozen=True)
class DyingSampler(NeighborSampler):
    """`NeighborSampler`. While there is the file, the first process to draw for epoch 1 removes it and is killed."""

    file: str = ""
    name: ClassVar[str] = "dying"

    def sample_by_owners(self, owners: Any, request: BulkRequest) -> Bulk:
        """See `Sampler.sample_by_owners`."""
        if request.epoch == 1:
            with suppress(FileNotFoundError):
                os.unlink(self.file)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().sample_by_owners(owners, request)
