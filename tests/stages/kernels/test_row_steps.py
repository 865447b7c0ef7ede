"""Optimiser steps of single rows: those of torch's sparse optimisers, in any pieces; and sums of repeated rows."""

import numpy as np
import pytest
import torch
from torch import nn

from millrace.stages.kernels.row_steps import add_rows, number_rows
from millrace.stages.kernels.runtime.threads import at_most
from millrace.stages.learned import optimizers
from millrace.stages.learned.optimizers import OPTIMIZERS

OF_TORCH = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam, "sgd": torch.optim.SGD}
V = 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 5, 33])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch(name, width, dtype, monkeypatch):
    """Rates that change, large and tiny gradients, steps without any row, rows that are never read."""
    monkeypatch.setattr(optimizers, "ROWS", 7)
    rng, rows = np.random.default_rng(width), torch.randn(V, width, dtype=dtype)
    oracle = nn.Embedding.from_pretrained(rows.clone(), freeze=False, sparse=True)
    torchs = OF_TORCH[name](oracle.parameters(), lr=0.1)
    ours, before = OPTIMIZERS[name](rows, 0.1), rows.clone()
    for step in range(6):
        ids = rng.permutation(V - 4)[: rng.choice([0, 1, 20, V - 4])]
        grads = rng.standard_normal((len(ids), width)) * 10.0 ** rng.integers(-6, 4, (len(ids), 1))
        grads = torch.from_numpy(grads).to(dtype)
        with at_most(2):
            ours.step(torch.from_numpy(ids), grads, 0.25, 1 / (1 + step))
        torchs.param_groups[0]["lr"] = 0.1 / (1 + step)
        oracle.weight.grad = torch.sparse_coo_tensor(
            torch.from_numpy(ids)[None], grads / 4, rows.shape, check_invariants=True
        )
        torchs.step()
    rtol = {torch.float32: 2e-6, torch.float64: 1e-14}[dtype]
    torch.testing.assert_close(rows, oracle.weight.detach(), rtol=rtol, atol=rtol)
    assert torch.equal(rows[-4:], before[-4:]) and not torch.equal(rows, before)
    known = torchs.state[oracle.weight]
    assert int(known.get("step", ours.steps)) == ours.steps == 6
    for moment, value in ours.state.items():
        torch.testing.assert_close(value, known[moment], rtol=rtol, atol=0)


@pytest.mark.parametrize("n", [0, 1, 50])
def test_repeated_rows_are_summed_in_order(n):
    rng = np.random.default_rng(n)
    ids, rows = rng.integers(0, V, n), rng.standard_normal((n, 3)).astype(np.float32)
    place, distinct, where = np.full(V, -1, np.int32), np.empty(n, np.int64), np.empty(n, np.int32)
    for _ in range(2):  # `place` is as it was
        count = number_rows(ids, place, distinct, where)
        assert (place == -1).all()
        assert np.array_equal(distinct[:count], list(dict.fromkeys(ids.tolist())))
        assert np.array_equal(distinct[where], ids)
        sums, wanted = np.zeros((count, 3), np.float32), np.zeros((V, 3), np.float32)
        add_rows(where, rows, sums)
        np.add.at(wanted, ids, rows)
        assert np.array_equal(sums, wanted[distinct[:count]])
