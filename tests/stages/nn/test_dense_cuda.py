"""Products for a device: the values and gradients of the plain formula, on a GPU, or on a pretended device."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.stages.models.base import ACTIVATIONS
from millrace.stages.nn.dense import FUSED, activate, linear, per_head
from millrace.stages.nn.dense_cuda import Activate, Linear, PerHead

pytestmark = pytest.mark.usefixtures("on_device")
DEVICE = "cuda"
ACTIVATION = st.sampled_from(FUSED)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g, dtype=dtype).to(DEVICE) for s in shapes]


def compare(
    call: Callable[..., Tensor], formula: Callable[..., Tensor], leaves: list[Tensor], needed: tuple[bool, ...]
) -> None:
    """Values, and the gradients of those that need one and of no others."""
    before = [x.clone() for x in leaves]
    for x, needs in zip(leaves, needed, strict=True):
        x.requires_grad_(needs)
    got, want = call(*leaves), formula(*leaves)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert got.is_contiguous() and all(torch.equal(x, b) for x, b in zip(leaves, before, strict=True))
    if not any(needed):
        assert not got.requires_grad
        return
    (weights,) = tensors(tuple(got.shape))
    wanted = [x for x in leaves if x.requires_grad]
    found, expected = (torch.autograd.grad((out * weights).sum(), wanted) for out in (got, want))
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


NEEDED = list(product([False, True], repeat=3))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_linear_equals_the_formula_whatever_needs_a_gradient(n: int, activation: str, bias: bool) -> None:
    for needed in NEEDED:
        leaves = tensors((n, 5), (3, 5), (3,))[: 2 + bias]

        def call(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
            return Linear.apply(x, w, b, activation, False)

        def formula(x: Tensor, w: Tensor, b: Tensor | float = 0.0) -> Tensor:
            return ACTIVATIONS[activation](x @ w.t() + b)

        compare(call, formula, leaves, needed[: len(leaves)])


@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("n", [0, 1, 9])
@pytest.mark.parametrize("heads", [1, 3])
def test_per_head_equals_the_formula_whatever_needs_a_gradient(n: int, heads: int, activation: str) -> None:
    for needed in NEEDED:

        def call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return PerHead.apply(x, w, b, activation, False)

        def formula(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return ACTIVATIONS[activation](torch.einsum("nhf,hdf->nhd", x, w).flatten(1) + b)

        compare(call, formula, tensors((n, heads, 5), (heads, 2, 5), (2 * heads,)), needed)


@example(n=0, activation="relu", needed=(True, True))
@given(n=st.integers(0, 20), activation=ACTIVATION, needed=st.tuples(st.booleans(), st.booleans()))
@settings(deadline=None, max_examples=20)
def test_activate_equals_the_formula(n: int, activation: str, needed: tuple[bool, bool]) -> None:
    def call(x: Tensor, b: Tensor) -> Tensor:
        return Activate.apply(x, b, activation)

    compare(call, lambda x, b: ACTIVATIONS[activation](x + b), tensors((n, 4), (4,)), needed)


def test_rows_and_gradients_may_lie_anyhow() -> None:
    x, w, b, xh, wh = tensors((5, 9), (4, 5), (4,), (2, 9, 5), (2, 2, 5))
    for a in (x, b, xh):
        a.requires_grad_()
    out, heads = Linear.apply(x.t(), w, b, "relu", False), PerHead.apply(xh.transpose(0, 1), wh, b, "elu", False)
    # The gradient of a sum is one number in all places.
    found = torch.autograd.grad(out.sum() + heads.sum(), [x, xh, b])
    want = (
        torch.relu(x.t() @ w.t() + b).sum()
        + ACTIVATIONS["elu"](torch.einsum("hnf,hdf->nhd", xh, wh).flatten(1) + b).sum()
    )
    for a, e in zip(found, torch.autograd.grad(want, [x, xh, b]), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [0, 300])
@pytest.mark.parametrize("activation", FUSED)
def test_bfloat16_is_rounded_operands_and_nothing_else(n: int, activation: str) -> None:
    x, w, b, xh, wh = tensors((n, 64), (32, 64), (32,), (n, 2, 64), (2, 16, 64), dtype=torch.float32)
    for a in (x, w, b, xh, wh):
        a.requires_grad_()
    got: Tensor = Linear.apply(x, w, b, activation, True)
    got_heads: Tensor = PerHead.apply(xh, wh, b, activation, True)
    low, low_heads = (a.detach().bfloat16().float() for a in (w, wh))
    want = ACTIVATIONS[activation](x.bfloat16().float() @ low.t() + b)
    want_heads = ACTIVATIONS[activation](torch.einsum("nhf,hdf->nhd", xh.bfloat16().float(), low_heads).flatten(1) + b)
    for out, exact, leaves in ((got, want, [x, b]), (got_heads, want_heads, [xh, b])):
        assert out.dtype == torch.float32
        # On the CPU the result is rounded too; on a GPU, where it comes in float32, only sums differ.
        torch.testing.assert_close(
            out, exact, **({"rtol": 2e-2, "atol": 6e-2} if DEVICE == "cpu" else {"rtol": 1e-4, "atol": 1e-4})
        )
        (weights,) = tensors(tuple(out.shape), dtype=torch.float32)
        grads = torch.autograd.grad((out * weights).sum(), leaves)
        for a, e in zip(grads, torch.autograd.grad((exact * weights).sum(), leaves), strict=True):
            assert a.dtype == torch.float32
            # A ReLU near zero may open in one and not in the other.
            assert float((a - e).norm()) <= 0.1 * float(e.norm())
    (dw,) = torch.autograd.grad(Linear.apply(x, w, b, activation, True).sum(), w)
    assert dw.dtype == torch.float32 and dw.shape == w.shape and (n > 0 or not dw.any())


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("activation", FUSED)
def test_the_host_waits_for_nothing(activation: str, low: bool) -> None:
    """Tensors without memory have no values that anyone could ask for."""

    def leaf(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta", requires_grad=True)

    w, b = leaf(3, 5), leaf(3)
    for out in (
        Linear.apply(leaf(9, 5), w, b, activation, low),
        PerHead.apply(leaf(9, 1, 5), leaf(1, 3, 5), b, activation, low),
        Activate.apply(leaf(9, 3), b, activation),
    ):
        out.sum().backward()
    assert w.grad is not None and b.grad is not None and w.grad.is_meta


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("activation", FUSED)
def test_the_public_names_choose_by_device_and_autocast(activation: str) -> None:
    x, w, b, xh, wh = tensors((300, 64), (32, 64), (32,), (300, 2, 64), (2, 16, 64), dtype=torch.float32)

    def results(*given: Tensor) -> list[Tensor]:
        x, w, b, xh, wh = given
        return [
            linear(x, w, b, activation),
            linear(x, w),
            per_head(xh, wh, b, activation),
            activate(x[:, :32], b, activation),
        ]

    for got, want in zip(results(x, w, b, xh, wh), results(*(a.cpu() for a in (x, w, b, xh, wh))), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
    with torch.autocast("cuda", torch.bfloat16):
        for got, want in zip(
            results(x, w, b, xh, wh)[:3], results(*(a.cpu() for a in (x, w, b, xh, wh)))[:3], strict=True
        ):
            assert got.dtype == torch.float32 and 1e-5 < float((got.cpu() - want).norm() / want.norm()) < 1e-2
    with torch.autocast("cuda", torch.float16):
        assert torch.equal(linear(x, w), linear(x, w).float()) and linear(x, w).dtype == torch.float32
