"""Sources of rows on the host, for steps on a device."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from millrace.stages.fetch.fetch import MinibatchFetcher
from millrace.stages.fetch.rows import Rows, Taken


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
    rows, y = Given(h), torch.zeros(2)
    targets: Any = SimpleNamespace(targets=lambda work, degree: (degree, {"y": y}))
    weights: Any = SimpleNamespace(given=lambda fetched, work: fetched)
    degrees: Any = SimpleNamespace(is_whole=True)
    fetcher = MinibatchFetcher(rows, targets, degrees, weights, on_device)
    work: Any = SimpleNamespace(epoch=1, index=2)
    got = fetcher.fetch(work)
    assert got.h.is_cuda and torch.equal(got.h.cpu(), h) and (got.epoch, got.index, got.y) == (1, 2, y)
    assert fetcher.exchange_s == 1.5 and fetcher.hit_counts == {}
    step: Any = None
    assert fetcher.recorded(step, step, step, [], True) is None, "rows of the host are in no frame"
    with pytest.raises(NotImplementedError):
        rows.framed(step)
