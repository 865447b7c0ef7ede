"""Dropout on a GPU, or on a pretended device: to the bit what the CPU's is."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.stages.kernels import dropout_on
from millrace.stages.kernels.aggregation.cpu import dropout as dropout_cpu
from millrace.stages.memory.lazy_rows import LazyRows, device_base_and_ids
from millrace.stages.nn.dropout import dropout

CUDA: Any = pytest.importorskip("millrace.stages.kernels.aggregation.cuda.dropout")
DEVICE = torch.device("cuda", 0)
pytestmark = pytest.mark.usefixtures("on_device")
DTYPES = st.sampled_from([torch.float32, torch.float64])
KEYS = st.integers(0, 2**64 - 1)
CHANCES = st.sampled_from([1e-9, 0.1, 0.5, 0.6, 1 - 1e-12])


def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype)


@example((0, 4), torch.float32, 1, 0.5)
@example((5, 0), torch.float32, 1, 0.5)
@example((3, 1), torch.float64, 2**63, 0.3)
@example((3,), torch.float64, 2**64 - 1, 0.3)
@example((5, 601), torch.float32, 2**63 - 1, 0.3)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), DTYPES, KEYS, CHANCES)
@settings(deadline=None, max_examples=25)
def test_same_bits_as_the_cpu(shape: tuple[int, ...], dtype: torch.dtype, key: int, p: float) -> None:
    x = random(shape, dtype)
    got = CUDA.scale_kept(x.to(DEVICE), key, p)
    assert got.device.type == DEVICE.type
    assert torch.equal(got.cpu(), dropout_cpu.scale_kept(x, key, p))


@pytest.mark.parametrize("on_host", [True, False])
@given(st.integers(0, 40), st.sampled_from([1, 3, 70]), DTYPES, KEYS)
@settings(deadline=None, max_examples=10)
def test_rows_are_dropped_by_their_names(on_host: bool, rows: int, width: int, dtype: torch.dtype, key: int) -> None:
    x, names = random((rows, width), dtype), np.random.default_rng(rows).integers(0, 2**62, rows)
    given_names = names if on_host else torch.from_numpy(names).to(DEVICE)
    assert torch.equal(
        CUDA.scale_kept(x.to(DEVICE), key, 0.4, given_names).cpu(), dropout_cpu.scale_kept(x, key, 0.4, names)
    )


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@given(st.integers(0, 40), st.sampled_from([1, 3, 70]), DTYPES, st.booleans())
@settings(deadline=None, max_examples=10)
def test_rows_that_are_only_named_are_read_where_they_lie(
    ids_dtype: torch.dtype, rows: int, width: int, dtype: torch.dtype, named: bool
) -> None:
    base, ids = random((50, width), dtype), torch.randint(50, (rows,), generator=torch.Generator().manual_seed(rows))
    names = np.random.default_rng(1).permutation(rows) if named else None
    x = LazyRows(base.to(DEVICE), ids.to(DEVICE, ids_dtype))
    got = CUDA.scale_kept(x, 77, 0.4, names)
    assert device_base_and_ids(x)[1] is not None, "they were gathered on the way"
    assert torch.equal(got.cpu(), dropout_cpu.scale_kept(base[ids], 77, 0.4, names))


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    x = torch.full((1, 500), torch.nan, device=DEVICE)
    y = CUDA.scale_kept(x, 5, 0.5)
    assert (y == 0).any() and torch.isnan(y).any()


def test_the_device_of_the_rows_chooses() -> None:
    assert dropout_on(torch.device("cuda", 3)) is CUDA
    assert dropout_on(torch.device("cpu")) is dropout_cpu


def test_backward_replays_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.stages.nn.dropout.dropout_on", lambda device: CUDA)
    x = random((30, 21), torch.float64).to(DEVICE).requires_grad_()
    names = torch.randperm(30, device=DEVICE)
    torch.manual_seed(3)
    y = dropout(x, 0.4, True, names)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad == 0, y == 0) and 0.2 < (y == 0).double().mean() < 0.6
    assert torch.allclose(x.grad[y != 0], torch.tensor(1 / 0.6, dtype=torch.float64, device=DEVICE))
    monkeypatch.undo()
    torch.manual_seed(3)
    assert torch.equal(dropout(x.detach().cpu(), 0.4, True, names.cpu().numpy()), y.detach().cpu())
