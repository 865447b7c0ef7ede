"""Products in blocks: the values and gradients of the plain formula, in any block size, and in bfloat16 to its
precision."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.memory.arena import Arena, reusing
from millrace.stages.models.base import ACTIVATIONS
from millrace.stages.nn import dense_cpu
from millrace.stages.nn.dense import FUSED, activate, linear, per_head
from millrace.tests.contracts.neighbourhood import assert_close

DOUBLE = {"dtype": torch.float64, "requires_grad": True}


def gradients(out: torch.Tensor, leaves: list[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=out.dtype)
    return torch.autograd.grad((out * grad).sum() + sum(0 * x.sum() for x in leaves), leaves)


def test_every_activation_of_the_models_is_fused() -> None:
    assert set(FUSED) == set(ACTIVATIONS)


@given(
    n=st.integers(0, 20),
    block=st.integers(1, 9),
    activation=st.sampled_from(FUSED),
    bias=st.booleans(),
    arena=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_linear_equals_the_formula_in_any_blocks(n: int, block: int, activation: str, bias: bool, arena: bool) -> None:
    x, w, b = torch.randn(n, 5, **DOUBLE), torch.randn(3, 5, **DOUBLE), torch.randn(3, **DOUBLE)
    leaves = [x, w, b] if bias else [x, w]
    with pytest.MonkeyPatch.context() as patch, reusing(Arena()):
        patch.setattr(dense_cpu, "LEAST_ROWS", block)
        patch.setattr(dense_cpu, "MOST_ROWS", block)
        got = linear(x, w, b if bias else None, activation)
        found = gradients(got, leaves)
    want = ACTIVATIONS[activation](x @ w.t() + (b if bias else 0))
    assert_close(got, want)
    for a, e in zip(found, gradients(want, leaves), strict=True):
        assert_close(a, e)


@given(n=st.integers(0, 20), block=st.integers(1, 9), heads=st.integers(1, 3), activation=st.sampled_from(FUSED))
@settings(deadline=None, max_examples=25)
def test_per_head_equals_the_formula_in_any_blocks(n: int, block: int, heads: int, activation: str) -> None:
    x, w, b = torch.randn(n, heads, 5, **DOUBLE), torch.randn(heads, 2, 5, **DOUBLE), torch.randn(2 * heads, **DOUBLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_cpu, "LEAST_ROWS", block)
        patch.setattr(dense_cpu, "MOST_ROWS", block)
        got = per_head(x, w, b, activation)
        found = gradients(got, [x, w, b])
    want = ACTIVATIONS[activation](torch.einsum("nhf,hdf->nhd", x, w).flatten(1) + b)
    assert_close(got, want)
    for a, e in zip(found, gradients(want, [x, w, b]), strict=True):
        assert_close(a, e)


@given(n=st.integers(0, 20), block=st.integers(1, 9), activation=st.sampled_from(FUSED))
@settings(deadline=None, max_examples=25)
def test_activate_equals_the_formula_in_any_blocks_and_leaves_its_input_alone(
    n: int, block: int, activation: str
) -> None:
    x, b = torch.randn(n, 4, **DOUBLE), torch.randn(4, **DOUBLE)
    before = x.detach().clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_cpu, "LEAST_ROWS", block)
        patch.setattr(dense_cpu, "MOST_ROWS", block)
        got = activate(x, b, activation)
        found = gradients(got, [x, b])
    want = ACTIVATIONS[activation](x + b)
    assert_close(got, want)
    assert torch.equal(x, before)
    for a, e in zip(found, gradients(want, [x, b]), strict=True):
        assert_close(a, e)


@pytest.mark.parametrize("rows", [1, 100, 700, 5000])
@pytest.mark.parametrize("low", [False, True])
def test_the_number_of_threads_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, rows: int, low: bool) -> None:
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(s, generator=g).requires_grad_() for s in ((rows, 40), (24, 40), (24,)))
    xh, wh = (
        torch.randn(rows, 2, 40, generator=g).requires_grad_(),
        torch.randn(2, 12, 40, generator=g).requires_grad_(),
    )
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            monkeypatch.setattr(dense_cpu, "SERIAL", 0 if threads > 2 else dense_cpu.SERIAL)
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                outs = linear(x, w, b, "relu"), per_head(xh, wh, b, "elu")
            assert torch.get_num_threads() == threads
            found.append([*outs, *gradients(outs[0], [x, w, b]), *gradients(outs[1], [xh, wh, b])])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(p, q) for p, q in zip(found[0], other, strict=True))


def test_two_callers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_cpu, "SERIAL", 0)
    x, w = torch.randn(4000, 30), torch.randn(20, 30)
    want, wrong = linear(x, w), []

    def repeat() -> None:
        wrong.extend(not torch.equal(linear(x, w), want) for _ in range(20))

    callers = [threading.Thread(target=repeat) for _ in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert len(wrong) == 60 and not any(wrong)


def test_only_wanted_gradients_are_computed() -> None:
    x, w = torch.randn(4, 5), torch.randn(3, 5, requires_grad=True)
    linear(x, w, torch.ones(3), "relu").sum().backward()
    assert x.grad is None and w.grad is not None
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(3, 5)
    linear(x, w).sum().backward()
    assert x.grad is not None and w.grad is None


@pytest.mark.parametrize("activation", FUSED)
def test_bfloat16_is_rounded_operands_and_nothing_else(activation: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(s, generator=g).requires_grad_() for s in ((300, 64), (32, 64), (32,)))
    xh, wh = torch.randn(300, 2, 64, generator=g).requires_grad_(), torch.randn(2, 16, 64, generator=g).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        got, got_heads = linear(x, w, b, activation), per_head(xh, wh, b, activation)
    want = ACTIVATIONS[activation](x @ w.t() + b)
    want_heads = ACTIVATIONS[activation](torch.einsum("nhf,hdf->nhd", xh, wh).flatten(1) + b)
    for out, exact, leaves in ((got, want, [x, w, b]), (got_heads, want_heads, [xh, wh, b])):
        assert out.dtype == torch.float32
        error = float(((out - exact).norm() / exact.norm()).detach())
        assert 1e-5 < error < 1e-2  # it was rounded, and only to eight bits
        for a, e in zip(gradients(out, leaves), gradients(exact, leaves), strict=True):
            assert a.dtype == torch.float32
            # A ReLU near zero may open in one and not in the other.
            assert float((a - e).norm() / e.norm()) < 0.1


def test_what_the_gradient_reads_is_kept_in_bfloat16() -> None:
    """Half of the memory; a float32 operand is kept as it is, and no copy of it."""
    x, w, b = torch.randn(300, 64, requires_grad=True), torch.randn(32, 64), torch.randn(32)
    xh, wh = torch.randn(300, 2, 64, requires_grad=True), torch.randn(2, 16, 64)
    for low in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            outs = linear(x, w, b), per_head(xh, wh, b, "none")
        for out, operand in zip(outs, (x, xh)):
            kept = out.grad_fn.saved_tensors[0]
            assert torch.equal(kept.view(operand.shape), operand.bfloat16() if low else operand)
            assert (kept.dtype == torch.bfloat16) == low and (kept.data_ptr() == operand.data_ptr()) != low


def test_autocast_does_not_touch_float64_or_an_autocast_to_another_type() -> None:
    x, w = torch.randn(9, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    want = linear(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(x, w), want)
    with torch.autocast("cpu", torch.float16):
        low = linear(x.float(), w.float())
    assert torch.equal(low, linear(x.float(), w.float()))
