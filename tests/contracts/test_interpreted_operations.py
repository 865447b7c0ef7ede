"""Recorded operations of Triton's interpreter give the bits of those that are not, with the types that those have."""

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("there is a GPU, and no interpreter", allow_module_level=True)

import triton
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

from millrace.tests.contracts import interpreted_operations

TYPES = ("int1", "int8", "int32", "uint32", "int64", "uint64", "fp16", "fp32", "fp64")
SHAPES = ((), (4,), (1,), (4, 1), (1, 2), (4, 2))


@triton.jit
def _nothing(n):
    n + 1


@pytest.fixture(scope="module", autouse=True)
def language() -> None:
    """The language as kernels see it: the interpreter patches it at the first launch."""
    _nothing[(1,)](1)


def tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    kind = core.dtype(name)
    values = rng.integers(0 if name[0] == "u" else -5, 100, shape or 1)
    handle = interpreter.TensorHandle(values.astype(interpreter._get_np_dtype(kind)), kind)
    return core.tensor(handle, core.block_type(kind, list(shape)) if shape else kind)


def told(operation: Callable[..., Any], *operands: Any) -> Any:
    """Bits, type and shape of a result, or the error."""
    try:
        with np.errstate(all="ignore"):
            made = operation(*operands)
    except Exception as e:
        return type(e)
    data = made.handle.data
    return (
        data.tobytes(),
        data.dtype,
        data.shape,
        made.type.scalar,
        list(made.shape),
        made.dtype,
        made.handle.dtype,
        made.numel,
    )


def operations() -> Iterator[tuple[str, Any]]:
    names = [n for n in interpreted_operations.OPERATORS if n[0] != "r" or n == "rshift"]
    for name in names:
        yield name, getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))
    yield "minimum", tl.minimum
    yield "maximum", tl.maximum
    yield "where", lambda a, b: tl.where(a, b, 1)
    yield "where, the other way", lambda a, b: tl.where(a > b, 0.5, b)


@pytest.mark.parametrize(("name", "operation"), list(operations()))
def test_operations_on_two(name: str, operation: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sides = [(t, s) for t in TYPES for s in SHAPES]
    some = rng.permutation(len(sides) ** 2)[:60]
    pairs = [list(itertools.product(sides, sides))[i] for i in some]
    made = []
    for recorded in (True, False):
        if not recorded:
            # All is done as inside an operation that is being recorded: the long way.
            semantic = interpreter.interpreter_semantic
            monkeypatch.setattr(semantic, "builder", interpreted_operations._Recorder(semantic.builder, []))
        rng = np.random.default_rng(1)
        made.append([])
        for (a, s), (b, t) in pairs:
            # The third of a kind is the first that is not computed the long way.
            for _ in range(3):
                made[-1].append(told(operation, tensor(rng, a, s), tensor(rng, b, t)))
        for (a, s), constant in itertools.product(sides[::5], (0, 3, -1, 2**40, 0.5, -0.0, float("nan"), True)):
            for _ in range(3):
                made[-1].append(told(operation, tensor(rng, a, s), constant))
                made[-1].append(told(lambda x, c: operation(c, x), tensor(rng, a, s), constant))
        x = [tensor(rng, "int32", (4,)) for _ in range(6)]
        # One operand twice tells nothing of two.
        made[-1] += [told(operation, a, a) for a in x] + [told(operation, a, b) for a, b in itertools.pairwise(x)]
    assert made[0] == made[1]


def test_truth_values_of_wide_and_narrow_operands_are_told_apart() -> None:
    """The interpreter's have the type of what was compared, and the data of that type once a scalar is spread."""
    rng = np.random.default_rng(0)
    column, scalar = tensor(rng, "int32", (1, 2)), tensor(rng, "int64", ())
    (a, b, c, d), wide = ([tensor(rng, name, (64,)) for _ in range(4)] for name in ("int32", "int64"))
    _ = (a < b)[:, None]
    for _ in range(3):
        _ = ((wide[0] < wide[1]) & (scalar > 0)) & ((wide[2] < wide[3]) & (scalar > 0))
    found = tl.where(((a < b) & (c < d))[:, None], column, -1)
    true = (a.handle.data < b.handle.data) & (c.handle.data < d.handle.data)
    assert np.array_equal(found.handle.data, np.where(true[:, None], column.handle.data, -1))


@triton.jit
def _rows(x, slot, out, rest, n, F, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    at = tl.load(slot + row)
    other = tl.load(rest + row)
    for start in range(0, F, WIDTH):
        inside = (start + k < F) & (row < n)
        a = tl.load(x + at.to(tl.int64) * F + start + k, inside, other)
        tl.store(out + row * F + start + k, tl.where(a > other, tl.exp(a.to(tl.float32)), -a), inside)
        b = tl.load(x + row, row < n - 1, other)
        tl.store(out + n * F + row, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loads_and_stores(dtype: torch.dtype) -> None:
    """With values of their own where nothing is loaded, zero among them."""
    n, F = 7, 11
    x = torch.randn(n, F, dtype=dtype, generator=torch.Generator().manual_seed(0))
    slot = torch.tensor([3, 0, 6, 6, 1, 2, 5])
    rest = torch.tensor([0.0, 0.5, 0.0, -1.0, 0.25, 2.0, 0.75], dtype=dtype)
    out = torch.full((n * F + n,), torch.nan, dtype=dtype)
    _rows[(n,)](x, slot, out, rest, n, F, 4)
    a = x[slot]
    want = torch.where(a > rest[:, None], a.float().exp().to(dtype), -a)
    torch.testing.assert_close(out[: n * F].view(n, F), want)
    assert torch.equal(out[n * F :], torch.cat([x.flatten()[: n - 1], rest[-1:]]))


@triton.jit
def _products(x, y, out, KEPT: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    total = tl.full([16, 16], KEPT, tl.float32)
    total = tl.dot(tl.load(x + at), tl.load(y + at), total, input_precision=F)
    tl.store(out + at, total)


def test_products_and_blocks_of_constants() -> None:
    """Again and again, with others in between: none is taken for another, and none is written into."""
    generator = torch.Generator().manual_seed(0)
    for kept in (0.0, 2.5, 0.0, 2.5, 0.0):
        x, y = (torch.randn(16, 16, generator=generator) for _ in range(2))
        out = torch.empty(16, 16)
        _products[(1,)](x, y, out, kept, "ieee")
        torch.testing.assert_close(out, x @ y + kept)


@triton.jit
def _arguments(out, x, small, large, half, absent, ROW: tl.constexpr = 3):
    row = tl.program_id(1)
    found = tl.load(x + row).to(tl.float64) + small + half
    if absent is None:
        found += large.to(tl.float64)
    tl.store(out + row * ROW, found)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_launches(dtype: torch.dtype) -> None:
    """Numbers of several sizes, by place and by name, and what is left out; a grid that depends on the arguments."""
    x = torch.tensor([5, 6, 7], dtype=dtype)
    for large in (-(2**31), 2**33, 0):
        for row in ({}, {"ROW": 2}):
            out = torch.zeros(9, dtype=torch.float64)
            _arguments[lambda given: (1, 3 if given["ROW"] == 3 else 2)](
                out, x, -4, half=0.5, absent=None, large=large, **row
            )
            want, step = torch.zeros(9, dtype=torch.float64), row.get("ROW", 3)
            count = 3 if step == 3 else 2
            want[: step * count : step] = x[:count].double() - 3.5 + large
            assert torch.equal(out, want)
    with pytest.raises((TypeError, interpreter.InterpreterError)):
        _arguments[(1,)](out, x, 1)
