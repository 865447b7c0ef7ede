"""Sources of rows that change what another one has."""

from typing import Any

import pytest
import torch

from millrace.stages.fetch.rows import Moved, Rows, Taken


class Given(Rows):
    @property
    def exchange_s(self) -> float:
        return 1.5

    def __init__(self, h: torch.Tensor) -> None:
        self.h = h

    def take(self, work: Any) -> Taken:
        return Taken(self.h, lambda: torch.arange(len(self.h)), lambda degree: ())


def test_rows_of_the_host_are_copied(on_device: torch.device) -> None:
    h = torch.rand(5, 3)
    moved, work = Moved(Given(h), on_device), Any
    # pyrefly: ignore[bad-argument-type]
    got = moved.take(work)
    assert got.h.is_cuda and torch.equal(got.h.cpu(), h) and not got.nodes().is_cuda
    assert moved.exchange_s == 1.5 and moved.hit_counts == {} and not moved.has_frames
    with pytest.raises(NotImplementedError):
        moved.framed(None)
