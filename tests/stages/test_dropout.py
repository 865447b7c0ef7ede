"""Dropout: its law, its replay in backward, and that threads do not show."""

import numpy as np
import pytest
import torch

from millrace.stages.dropout import dropout
from millrace.stages.kernels import threads
from millrace.stages.kernels.dropout_cpu import scale_kept
from millrace.stages.random import NODE, mix
from millrace.stages.rows import NamedRows, base_and_ids


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5), (400, 501)])
def test_equals_the_definition_for_any_number_of_threads(dtype, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    key, p = 0x9E3779B97F4A7C15, 0.3
    with np.errstate(over="ignore"):
        words = mix(np.uint64(key) + np.arange((x.size + 1) // 2, dtype=np.uint64) * NODE)
    bits = np.stack([words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)], axis=1).ravel()[: x.size].reshape(shape)
    expected = np.where(bits >= round(p * 2**32), x * dtype(1 / (1 - p)), 0)
    for n in (1, 2, 3):
        threads.set_num_threads(n)
        assert np.array_equal(scale_kept(torch.from_numpy(x), key, p).numpy(), expected)


@pytest.mark.parametrize("rows", [0, 1, 6, 3000])
@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_named_rows_are_dropped_as_gathered_ones(rows, width):
    base = np.random.default_rng(1).normal(size=(50, width)).astype(np.float32)
    ids = np.random.default_rng(2).integers(0, 50, rows)
    want = scale_kept(torch.from_numpy(base[ids]), 77, 0.4)
    for n in (1, 2, 3):
        threads.set_num_threads(n)
        named = NamedRows(base, ids)
        assert torch.equal(scale_kept(named, 77, 0.4), want)
        assert base_and_ids(named)[1] is not None  # nothing was gathered on the way


def test_share_kept_and_mean():
    x = torch.ones(1000, 1000, dtype=torch.float64)
    for p in (0.1, 0.5, 0.9):
        torch.manual_seed(1)
        y = dropout(x, p, True)
        dropped = (y == 0).double().mean()
        assert abs(dropped - p) < 5 * (p * (1 - p) / x.numel()) ** 0.5
        assert torch.allclose(y[y > 0], torch.tensor(1 / (1 - p), dtype=torch.float64))
        # Neither rows nor columns share a mask.
        assert abs(y.mean(0).std() - (p / (1 - p) / 1000) ** 0.5) < 0.01
        assert abs(y.mean(1).std() - (p / (1 - p) / 1000) ** 0.5) < 0.01


def test_backward_replays_the_mask_and_the_seed_governs_it():
    x = torch.randn(50, 31, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    y = dropout(x, 0.4, True)
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)
    assert torch.allclose(x.grad[y != 0], torch.tensor(1 / 0.6, dtype=torch.float64))
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.4, True), y)
    assert not torch.equal(dropout(x, 0.4, True), y)


def test_is_the_identity_outside_training_and_for_zero():
    x = torch.randn(5, 5)
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x


def test_views_that_are_not_contiguous():
    x = torch.randn(20, 10)
    torch.manual_seed(0)
    a = dropout(x.t(), 0.5, True)
    torch.manual_seed(0)
    assert torch.equal(a, dropout(x.t().contiguous(), 0.5, True))


@pytest.mark.parametrize("rows", [0, 1, 6, 3000])
@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_rows_are_dropped_by_their_names_wherever_they_lie(rows, width):
    x = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
    names = np.random.default_rng(2).permutation(rows)
    torch.manual_seed(5)
    want = dropout(x, 0.4, True).detach()
    torch.manual_seed(5)
    moved = x.detach()[torch.from_numpy(names)].requires_grad_()
    for n in (1, 2, 3):
        threads.set_num_threads(n)
        torch.manual_seed(5)
        y = dropout(moved, 0.4, True, names)
        assert torch.equal(y, want[torch.from_numpy(names)])
        (grad,) = torch.autograd.grad(y.sum(), moved)
        assert torch.equal(grad == 0, y == 0)
