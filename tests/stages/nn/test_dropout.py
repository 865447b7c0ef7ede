"""Dropout: its law, its replay in backward, and that threads do not show."""

import numpy as np
import pytest
import torch

from millrace.stages.kernels.aggregation.cpu.dropout import scale_kept
from millrace.stages.kernels.runtime import threads
from millrace.stages.memory.lazy_rows import LazyRows, base_and_ids
from millrace.stages.nn.dropout import dropout
from millrace.stages.random import node_words


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5), (400, 501)])
def test_equals_the_definition_for_any_number_of_threads(dtype, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    key, p = 0x9E3779B97F4A7C15, 0.3
    rows, width = (len(x), x.size // max(1, len(x)))
    words = node_words(key, np.arange(rows))[:, None]
    bits = (np.arange(width, dtype=np.uint32) * np.uint32(0x9E3779B9) + words.astype(np.uint32)).astype(np.uint32)
    bits = (bits ^ (bits >> 16)) * np.uint32(0x21F0AAAD) + (words >> np.uint64(32)).astype(np.uint32)
    bits = (bits ^ (bits >> 15)) * np.uint32(0x735A2D97)
    bits = (bits ^ (bits >> 15)).reshape(shape)
    assert bits.dtype == np.uint32
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
        named = LazyRows(base, ids)
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


@pytest.mark.parametrize("width", [2, 100, 256])
def test_elements_are_independent(width):
    """Over many masks, pairs of elements of a row, of a column, and of neighbouring keys agree as often as coins do."""
    rows, p = 3000, 0.5
    ones = torch.ones(rows, width)
    masks = np.stack([scale_kept(ones, key, p).numpy() > 0 for key in (0, 1, 2, 3, 2**63, 2**63 + 1)])
    for axis in range(3):
        for lag in (1, 2, 3, 8, 16, 32):
            if lag < masks.shape[axis]:
                a, b = np.moveaxis(masks, axis, 0)[lag:], np.moveaxis(masks, axis, 0)[:-lag]
                assert abs((a == b).mean() - 0.5) < 5 * 0.5 / a.size**0.5, (axis, lag)
    # Three in a line, the parity that sums of pairs do not see.
    parity = masks[:, 2:] ^ masks[:, 1:-1] ^ masks[:, :-2]
    assert abs(parity.mean() - 0.5) < 5 * 0.5 / parity.size**0.5
    # How many of a row's elements are kept is binomial: mean and variance over all rows.
    kept = masks.sum(2).ravel()
    assert abs(kept.mean() - width / 2) < 5 * (width / 4 / len(kept)) ** 0.5
    assert abs(kept.var() / (width / 4) - 1) < 5 * (2 / len(kept)) ** 0.5
    assert len(np.unique(masks.reshape(-1, width), axis=0)) == min(2**width, masks[..., 0].size)


def test_the_chance_is_met_to_the_last_bit_that_matters():
    x = torch.ones(2000, 500)
    for p in (1e-4, 0.01, 1 - 1e-4, 1 - 1e-12):
        dropped = (scale_kept(x, 5, p) == 0).double().mean()
        assert abs(dropped - p) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-9
    assert torch.isfinite(scale_kept(x, 5, 0.5)).all()
    x[3] = torch.nan
    y = scale_kept(x, 5, 0.5)[3]
    assert (y == 0).any() and torch.isnan(y).any(), "what is dropped is zero, whatever it was"


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
