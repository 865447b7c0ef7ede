import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.stages.kernels.aggregation.attention_args import AttentionEdges, AttentionRule
from millrace.stages.kernels.aggregation.cpu import backend as aggregate_cpu
from millrace.stages.kernels.aggregation.cpu import row_ranges as cut
from millrace.stages.kernels.aggregation.cpu.softmax import CHUNK_ROWS, chunk_parts, num_chunks
from millrace.stages.kernels.aggregation.lists import InLists, WeightedLists
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.memory.lazy_rows import LazyRows, base_and_ids
from millrace.stages.neighbourhood.gradients import Attend, AttendShared, Maximum, Spmm, attend
from millrace.tests.contracts.aggregate_kernels import HOST_KERNELS, random_lists, results
from millrace.tests.oracles import aggregation as reference


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    set_num_threads(None)


SHAPES = st.integers(0, 12), st.integers(12, 20), st.sampled_from([0, 1, 5, 40, 200]), st.integers(0, 10**6)
lists_of = st.builds(random_lists, *SHAPES, st.sampled_from([np.int32, np.int64]))


@given(lists=lists_of, width=st.sampled_from([1, 7, 16, 33]), dropout=st.sampled_from([0.0, 0.3]))
@settings(deadline=None, max_examples=25)
def test_cpu_equals_reference(lists: InLists, width: int, dropout: float) -> None:
    got, want = (results(HOST_KERNELS[name], lists, width, torch.float64, dropout) for name in HOST_KERNELS)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_float32_is_as_good_as_float32() -> None:
    lists = random_lists(40, 60, 500, 1)
    for a, b in zip(
        results(aggregate_cpu, lists, 20, torch.float32, 0.3), results(reference, lists, 20, torch.float64, 0.3)
    ):
        if a.is_floating_point():
            assert a.dtype == torch.float32
        torch.testing.assert_close(a.to(b.dtype), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_number_of_threads_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    lists = random_lists(3000, 4000, 20_000, 3)
    set_num_threads(1)
    want = results(aggregate_cpu, lists, 9, dtype, 0.4)
    monkeypatch.setattr(cut, "SERIAL", 0)
    for threads in (2, 3, 7):
        set_num_threads(threads)
        for a, b in zip(results(aggregate_cpu, lists, 9, dtype, 0.4), want, strict=True):
            assert torch.equal(a, b)


def test_two_callers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "SERIAL", 0)
    set_num_threads(2)
    lists = random_lists(300, 400, 2000, 4)
    want = results(aggregate_cpu, lists, 5, torch.float32, 0.4)
    wrong = []

    def repeat() -> None:
        for _ in range(5):
            wrong.extend(
                not torch.equal(a, b) for a, b in zip(results(aggregate_cpu, lists, 5, torch.float32, 0.4), want)
            )

    callers = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert len(wrong) == 2 * 5 * len(want)
    assert not any(wrong)


@given(lists=lists_of, parts=st.integers(1, 9), width=st.integers(1, 3))
@settings(deadline=None, max_examples=25)
def test_parts_cover_all_rows_in_order(lists: InLists, parts: int, width: int) -> None:
    set_num_threads(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "SERIAL", 0)
        for cuts, rows in (
            (cut.row_parts(lists.indptr, width), lists.num_dst),
            (cut.even_parts(lists.num_dst, width), lists.num_dst),
        ):
            assert [row for a, b in cuts for row in range(a, b)] == list(range(rows))
            assert all(a < b for a, b in cuts)


def test_parts_are_balanced_by_edges() -> None:
    set_num_threads(2)
    kept = np.r_[np.full(100, 1_000), np.ones(90_000, int)]
    indptr = np.cumsum([0, *kept])
    work = [indptr[b] - indptr[a] + b - a for a, b in cut.row_parts(indptr, 100)]
    assert len(work) == 2 * cut.PARTS_PER_THREAD
    assert max(work) < 1.5 * sum(work) / len(work)


@given(lists=lists_of)
@settings(deadline=None, max_examples=25)
def test_transpose(lists: InLists) -> None:
    t = lists.transposed
    edges = [(int(lists.indices[e]), int(v), e) for e, v in enumerate(lists.rows)]
    found = [
        (u, int(t.dst[q]), int(t.edge[q])) for u in range(lists.num_src) for q in range(t.indptr[u], t.indptr[u + 1])
    ]
    assert found == sorted(edges)


DOUBLE = {"dtype": torch.float64, "requires_grad": True}


def test_gradients_are_those_of_finite_differences() -> None:
    """With dropout too: the backward pass replays the forward's mask, or this fails."""
    lists = random_lists(4, 6, 11, 5)
    k = aggregate_cpu
    scale, coef = torch.rand(4, dtype=torch.float64), torch.rand(11)
    checks: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
        (
            lambda x, own: Spmm.apply(x, own, k, WeightedLists(lists, coef, scale)),
            (torch.randn(6, 3, **DOUBLE), torch.randn(4, **DOUBLE)),
        ),
        (
            lambda x: Spmm.apply(x, None, k, WeightedLists(lists, coef, scale, beside=True)),
            (torch.randn(6, 3, **DOUBLE),),
        ),
        (lambda x: Maximum.apply(x, k, lists), (torch.randn(6, 3, **DOUBLE),)),
    ]
    leaves = tuple(torch.randn(*s, **DOUBLE) for s in ((6, 2, 3), (2, 3), (4, 2)))
    for dropout in (0.0, 0.5):
        over = k, AttentionEdges(lists, AttentionRule(0.2, dropout, 7))
        checks.append((lambda z, a, logit, over=over: Attend.apply(z, a, logit, over, False), leaves))
        shared = (torch.randn(6, 3, **DOUBLE), leaves[1], torch.randn(2, 3, **DOUBLE))
        checks.append((lambda x, a, b, over=over: AttendShared.apply(x, a, b, over), shared))
    for fn, inputs in checks:
        assert torch.autograd.gradcheck(fn, inputs, atol=1e-6)


def test_the_mask_drops_what_was_asked_independently() -> None:
    """Through the kernel: with equal logits and z = 1 a row's result counts its kept coefficients."""
    n, heads, p = 4000, 4, 0.3
    lists = InLists.from_arrays(np.arange(n + 1), np.arange(n, dtype=np.int32)[::-1].copy(), n)
    kept = []
    for key in (1, 2):
        z = torch.ones(n, heads, 1, dtype=torch.float64)
        edges = AttentionEdges(lists, AttentionRule(0.2, p, key))
        out, _ = attend(aggregate_cpu, edges, z, z.new_zeros(heads, 1), z.new_zeros(n, heads))
        counts = (out[..., 0] * 2 * (1 - p)).round().long()
        kept.append(counts)
        # Two coefficients per row and head (the edge and the row's own): binomial.
        want = torch.tensor([p**2, 2 * p * (1 - p), (1 - p) ** 2]) * n * heads
        chi2 = float(((torch.bincount(counts.flatten(), minlength=3) - want) ** 2 / want).sum())
        assert chi2 < 18.4  # 1e-4 for 2 degrees of freedom
    columns = torch.cat(kept, dim=1).double().T
    off = torch.corrcoef(columns) - torch.eye(2 * heads, dtype=torch.float64)
    assert float(off.abs().max()) < 5 / math.sqrt(n)


@pytest.mark.parametrize("name", HOST_KERNELS)
def test_dropout_near_one_and_the_expectation(name: str) -> None:
    assert AttentionRule(0.2, 0.0, 0).threshold == 0
    assert AttentionRule(0.2, 1 - 2**-33, 0).threshold == 2**32 - 1
    lists, k = random_lists(3, 5, 9, 6), HOST_KERNELS[name]
    z, a, logit = torch.randn(5, 2, 3), torch.randn(2, 3), torch.randn(3, 2)
    plain, _ = attend(k, AttentionEdges(lists, AttentionRule(0.2, 0.0, 0)), z, a, logit)
    dropped = (AttentionEdges(lists, AttentionRule(0.2, 0.5, key)) for key in range(400))
    many = torch.stack([attend(k, edges, z, a, logit)[0] for edges in dropped])
    assert float(((many.mean(0) - plain).abs() / (many.std(0) / 20 + 1e-6)).max()) < 5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_not_hidden(bad: float) -> None:
    lists = InLists.from_arrays(np.array([0, 3, 5, 5]), np.array([0, 1, 2, 3, 4], np.int32), 5)
    x = torch.ones(5, 9)
    x[1] = bad
    total = aggregate_cpu.spmm(WeightedLists(lists), x)
    largest, arg = aggregate_cpu.maximum(lists, x)
    for got in (total, largest):
        assert (got[0].isnan() if math.isnan(bad) else got[0] == bad).all()
        assert got[1:].isfinite().all()
    assert (arg[0] == 1).all()
    edges = AttentionEdges(lists, AttentionRule(0.2, 0.0, 0))
    out, _ = attend(aggregate_cpu, edges, x[:, None], torch.ones(1, 9), torch.zeros(3, 1))
    assert out[:2].isnan().all()
    assert out[2].isfinite().all()


def test_large_logits_stay_finite() -> None:
    lists = random_lists(5, 8, 20, 7)
    z, a, logit = (
        torch.randn(8, 2, 4, dtype=torch.float64),
        torch.randn(2, 4, dtype=torch.float64),
        torch.randn(5, 2, dtype=torch.float64),
    )
    edges = AttentionEdges(lists, AttentionRule(1.0, 0.0, 0))
    near, far = (attend(aggregate_cpu, edges, z, a, logit + shift)[0] for shift in (0, 2000))
    torch.testing.assert_close(near, far, rtol=1e-9, atol=1e-9)


@given(
    lists=st.builds(random_lists, *SHAPES),
    width=st.sampled_from([1, 7, 33]),
    types=st.sampled_from([(np.float32, np.int32), (np.float64, np.int32), (np.float64, np.int64)]),
    dropout=st.sampled_from([0.0, 0.3]),
)
@settings(deadline=None, max_examples=25)
def test_named_rows_are_read_where_they_lie(lists: InLists, width: int, types: tuple[Any, Any], dropout: float) -> None:
    """The same bits as from gathered rows, and nothing is gathered."""
    # Each pair of types is a compiled version more, and seconds: of wide ids one is enough, that of test_models.py.
    dtype, wide = types
    rng = np.random.default_rng(width)
    base = rng.standard_normal((30, width)).astype(dtype)
    ids = rng.integers(0, 30, lists.num_src).astype(wide)
    n, heads, edges, k = lists.num_dst, 2, AttentionEdges(lists, AttentionRule(0.2, dropout, 5)), aggregate_cpu
    shapes = ((heads, width), (heads, width), n, (n, heads, width))
    a, b, own, grad = (torch.from_numpy(rng.standard_normal(s).astype(dtype)) for s in shapes)

    of = WeightedLists(lists)

    def found(x: Tensor) -> list[Tensor]:
        made = k.attend_shared(edges, x, a, b)
        gradients = k.attend_shared_backward(edges, x, a, b, made, grad, False)[1:]
        return [k.spmm(of, x, own), k.spmm(replace(of, beside=True), x), *k.maximum(lists, x), *made, *gradients]

    named = LazyRows(base, ids)
    for got, want in zip(found(named), found(torch.from_numpy(base[ids])), strict=True):
        assert torch.equal(got, want)
    assert base_and_ids(named)[1] is ids


@given(rows=st.integers(0, 5 * CHUNK_ROWS), parts=st.integers(1, 5))
@settings(deadline=None, max_examples=25)
def test_chunk_parts_cover_all_chunks_in_order(rows: int, parts: int) -> None:
    set_num_threads(parts)
    indptr = np.cumsum([0, *np.random.default_rng(rows).integers(0, 20, rows)])
    cuts = chunk_parts(indptr, 100)
    assert [chunk for a, b in cuts for chunk in range(a, b)] == list(range(num_chunks(rows)))
