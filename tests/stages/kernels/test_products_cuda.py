"""Products of float32 on a GPU: as near to those of float64 as float32's own, whatever the shapes and distances.

Triton's interpreter multiplies in float32: what is lost by parts shows on a GPU only.
"""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.stages.nn.dense import FUSED, linear, per_head

pytestmark = pytest.mark.usefixtures("on_device")
F32, F64 = torch.float32, torch.float64
FEW = 16


def drawn(*shape: int, spare: int = 0) -> Tensor:
    """Random numbers, as columns of a wider tensor if `spare`."""
    return torch.randn(*shape[:-1], shape[-1] + spare, generator=torch.Generator().manual_seed(sum(shape)))[..., spare:]


def learned(
    x: Tensor, w: Tensor, b: Tensor | None, activation: str, needed: tuple[bool, ...], like: Any
) -> list[Tensor]:
    """The result, and gradients of those that need one."""
    leaves = [None if t is None else t.to(**like).requires_grad_(n) for t, n in zip((x, w, b), needed)]
    out = linear(*leaves, activation) if w.ndim == 2 else per_head(*leaves, activation)
    weights = drawn(*out.shape).to(**like)
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    return [t.detach().cpu().double() for t in (out, *torch.autograd.grad((out * weights).sum(), wanted))]


def errors(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest error relative to its result; of a few numbers, relative to all results, since they may be sums whose
    terms cancel."""
    assert [t.shape for t in got] == [t.shape for t in want]
    whole = torch.cat([t.flatten() for t in want]).norm()
    sizes = [b.norm() if b.numel() > FEW else whole for b in want]
    return max(float((a - b).norm() / size.clamp(min=1e-30)) for a, b, size in zip(got, want, sizes))


@settings(max_examples=25)
@given(
    st.integers(0, 200), st.integers(0, 70), st.integers(1, 70), st.integers(1, 3), st.sampled_from(FUSED),
    st.booleans(), st.sampled_from([0, 3, 4]),
    st.sampled_from([(True, True, True), (False, True, True), (True, False, False)]),
)  # fmt: skip
@example(300, 100, 64, 4, "elu", True, 0, (False, True, True))
@example(140, 64, 130, 1, "relu", True, 4, (True, True, True))
@example(9, 0, 5, 2, "relu", True, 0, (True, True, True))
def test_they_are_as_near_as_products_of_float32(
    n: int, width: int, columns: int, heads: int, activation: str, bias: bool, spare: int, needed: tuple[bool, ...]
) -> None:
    if heads == 1:
        x, w = drawn(n, width, spare=spare), drawn(columns, width)
    else:
        x, w, bias = drawn(n, heads, width, spare=spare), drawn(heads, columns, width), True
    b = drawn(heads * columns) if bias else None
    needed = needed if any(needed[: 2 + bias]) else (True, True, False)
    want = learned(x, w, b, activation, needed, {"dtype": F64})
    here, there = (learned(x, w, b, activation, needed, like) for like in ({"dtype": F32}, {"device": "cuda"}))
    assert errors(there, want) <= max(4 * errors(here, want), 3e-7)
    assert errors(learned(x, w, b, activation, needed, {"device": "cuda"}), there) == 0


def test_numbers_of_very_different_size_and_those_that_are_none() -> None:
    """Each row's error goes by its own size; infinite and undefined numbers stay with their rows."""
    x, w = drawn(40, 32) * 10.0 ** torch.arange(-20, 20)[:, None], drawn(8, 32)
    x[3, 5], x[7, 1] = torch.nan, torch.inf
    # As GPUs write what is not a number.
    x.view(torch.int32)[9, 2] = 0x7FFFFFFF
    (got,) = learned(x.contiguous(), w, None, "none", (True, True, False), {"device": "cuda"})[:1]
    want = x.double() @ w.double().t()
    finite = want.isfinite().all(1)
    assert torch.equal(got.isfinite().all(1), finite)
    assert float(((got - want).norm(dim=1) / want.norm(dim=1))[finite].max()) < 3e-7


@pytest.mark.parametrize(("n", "width", "columns"), [(0, 5, 3), (70, 40, 9), (150, 17, 70)])
def test_products_in_bfloat16_are_those_of_rounded_operands(n: int, width: int, columns: int) -> None:
    x, w, b, weights = drawn(n, width), drawn(columns, width), drawn(columns), drawn(n, columns)
    # Halfway between two numbers: torch takes the even one.
    x[..., 0], w[0] = 1 + 2**-8, -1 - 3 * 2**-8
    leaves = [t.to("cuda").requires_grad_() for t in (x, w, b)]
    with torch.autocast("cuda", torch.bfloat16):
        out = linear(*leaves, "none")
    got = [out, *torch.autograd.grad((out * weights.to("cuda")).sum(), leaves)]
    r, s, t = (a.bfloat16().double() for a in (x, w, weights))
    want = [r @ s.t() + b, t @ s, t.t() @ r, weights.double().sum(0)]
    assert errors([a.detach().cpu().double() for a in got], want) <= 3e-7
    x[: n // 2, 3] = torch.nan
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(linear(x.to("cuda"), leaves[1]).isnan().any(1).cpu(), x.isnan().any(1))
