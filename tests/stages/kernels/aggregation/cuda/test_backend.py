"""The kernels for GPUs: on one where there is one, else on a pretended device, in Triton's interpreter, which is slow,
so blocks are small and examples few."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.stages.kernels import aggregation_backend, aggregation_on, products_cuda
from millrace.stages.kernels.aggregation import lists as lists_cuda
from millrace.stages.kernels.aggregation.attention_args import AttentionEdges, AttentionRule
from millrace.stages.kernels.aggregation.lists import InLists, WeightedLists
from millrace.stages.memory.lazy_rows import LazyRows
from millrace.stages.neighbourhood.gradients import attend, attend_backward
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph
from millrace.tests.contracts.aggregate_kernels import random_lists, results
from millrace.tests.contracts.aggregations import CALLS
from millrace.tests.contracts.whole_graph import whole_graph
from millrace.tests.oracles import aggregation as reference
from millrace.tests.stages.kernels.aggregation.cpu.test_shards import (
    HEADS,
    attention,
    make_case,
    maxima,
    sums,
)

DEVICE = "cuda"
CUDA: Any = aggregation_backend("cuda")
CASE = make_case(7, 26, 2, 1)
# Empty lists have a sum of 0, whose logarithm NumPy remarks upon; a GPU does not.
pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning"),
    pytest.mark.usefixtures("on_device"),
]


@pytest.fixture(autouse=True)
def _short_chunks() -> Iterator[None]:
    """Lists of more than three edges are long: they are cut, and the pieces of the longest are cut again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists_cuda, "CHUNK", 3)
        yield


def hub(n: int, S: int, e: int) -> InLists:
    """The first row has e edges, all from the last source, and the others none but a self loop on the last row."""
    kept = [e, *[0] * (n - 2), 1] if n > 1 else [e]
    return InLists.from_arrays(np.cumsum([0, *kept]), np.array([S - 1] * e + ([n - 1] if n > 1 else []), np.int32), S)


lists_of = st.builds(random_lists, st.integers(0, 6), st.integers(6, 9), st.sampled_from([0, 1, 9]), st.integers(0, 99))


@example(lists=hub(3, 4, 14), width=3, dropout=0.3)
@example(lists=hub(1, 1, 0), width=1, dropout=0.3)
@example(lists=random_lists(3, 4, 6, 1, np.int64), width=65, dropout=0.0)
@given(lists=lists_of, width=st.sampled_from([1, 3, 17]), dropout=st.sampled_from([0.0, 0.3]))
@settings(deadline=None, max_examples=2)
def test_equals_reference(lists: InLists, width: int, dropout: float) -> None:
    got = results(CUDA, lists, width, torch.float64, dropout, device=DEVICE)
    for a, b in zip(got, results(reference, lists, width, torch.float64, dropout), strict=True):
        assert a.dtype == b.dtype and a.device.type == DEVICE
        torch.testing.assert_close(a.cpu(), b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("needs_x", [True, False])
def test_heads_of_shared_rows_in_two_programs_and_columns_too(needs_x: bool) -> None:
    lists, heads, width, g = hub(3, 5, 14), 6, 300, torch.Generator().manual_seed(1)
    x, a, b, grad = (
        torch.randn(*s, generator=g, dtype=torch.float64) / 9
        for s in ((5, width), *[(heads, width)] * 2, (3, heads, width))
    )
    edges, found = AttentionEdges(lists, AttentionRule(0.2, 0.3, 7)), []
    for kernels, to in ((CUDA, DEVICE), (reference, "cpu")):
        inputs = x.to(to), a.to(to), b.to(to)
        made = kernels.attend_shared(edges, *inputs)
        found.append([*made, *kernels.attend_shared_backward(edges, *inputs, made, grad.to(to), needs_x)])
    for got, want in zip(*found, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)


def attended(lists: InLists, heads: int, width: int, kernels: Any = CUDA, to: str = DEVICE) -> list[Tensor]:
    """Attention with rows of its own for each head, with its gradients, and with shared rows."""
    n, S, g = lists.num_dst, lists.num_src, torch.Generator().manual_seed(1)
    z, a, logit, grad, x = (
        (torch.randn(*s, generator=g, dtype=torch.float64) / 9).to(to)
        for s in ((S, heads, width), (heads, width), (n, heads), (n, heads, width), (S, width))
    )
    edges = AttentionEdges(lists, AttentionRule(0.2, 0.3, 7))
    made, shared = attend(kernels, edges, z, a, logit), kernels.attend_shared(edges, x, a, a)
    found = [*made, *attend_backward(kernels, edges, (z, a, logit, *made), grad), *shared]
    return [*found, *kernels.attend_shared_backward(edges, x, a, a, shared, grad, True)]


def test_heads_with_rows_of_their_own_in_two_programs() -> None:
    for got, want in zip(
        attended(hub(3, 5, 14), 3, 515), attended(hub(3, 5, 14), 3, 515, reference, "cpu"), strict=True
    ):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parts", [True, False], ids=["own products", "products of torch"])
@pytest.mark.parametrize("width", [20, 0])
def test_rows_that_are_not_gathered_are_read_in_place(width: int, parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products_cuda, "_has_parts", lambda device: parts)
    lists, heads, g = random_lists(9, 12, 20, 1), 3, torch.Generator().manual_seed(1)
    base, a, b, grad = (
        torch.randn(*s, generator=g).to(DEVICE) for s in ((40, width), *[(heads, width)] * 2, (9, heads, width))
    )
    ids, found = torch.randperm(40, generator=g)[:12].to(DEVICE), []
    edges = AttentionEdges(lists, AttentionRule(0.2, 0.3, 7))
    lazy = LazyRows(base, ids)
    for x in (lazy, base[ids]):
        made = CUDA.attend_shared(edges, x, a, b)
        found.append([*made, *CUDA.attend_shared_backward(edges, x, a, b, made, grad, False)[1:]])
    assert lazy._rows is None
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


def test_float32_is_as_good_as_float32() -> None:
    lists = random_lists(9, 12, 20, 1)
    got = results(CUDA, lists, 5, torch.float32, 0.3, device=DEVICE)
    for a, b in zip(got, results(reference, lists, 5, torch.float64, 0.3), strict=True):
        assert a.dtype == torch.float32 or not a.is_floating_point()
        torch.testing.assert_close(a.cpu().to(b.dtype), b, rtol=1e-4, atol=1e-4)


def test_shards_add_up_to_the_whole_graph() -> None:
    width, V, e = 3, CASE.lists.num_src, CASE.lists.num_edges
    x, grad, coef, scale = (CASE.rand(*s, salt=i) for i, s in enumerate(((V, width), (V, width), (e,), (V,))))
    whole = CASE.rand(V, width, salt=5).round()
    z, a, logit, upstream = (
        CASE.rand(*s, salt=i) for i, s in enumerate(((V, HEADS, width), (HEADS, width), (V, HEADS), (V, HEADS, width)))
    )

    def found(k: Any, device: str) -> list[Tensor]:
        there = [t.to(device) for t in (x, grad, coef.float(), scale)]
        made = [*sums(k, CASE, *there), *maxima(k, CASE, whole.to(device), there[1])]
        inputs = [t.to(device) for t in (z, a, logit)]
        return [*made, *attention(k, CASE, *inputs, AttentionRule(0.2, 0.4, 2**64 - 3), upstream.to(device))[0]]

    for got, want in zip(found(CUDA, DEVICE), found(reference, "cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_not_hidden(bad: float) -> None:
    lists = InLists.from_arrays(np.array([0, 3, 5, 5]), np.array([0, 1, 2, 3, 4], np.int32), 5)
    x = torch.ones(5, 9)
    x[1] = bad
    x = x.to(DEVICE)
    total, (largest, arg) = CUDA.spmm(WeightedLists(lists), x), CUDA.maximum(lists, x)
    for got in (total, largest):
        assert (got[0].isnan() if math.isnan(bad) else got[0] == bad).all()
        assert got[1:].isfinite().all()
    assert (arg[0] == 1).all() and (arg[2] == -1).all()
    edges, a, logit = AttentionEdges(lists, AttentionRule(0.2, 0.0, 0)), torch.ones(1, 9), torch.zeros(3, 1)
    out, _ = attend(CUDA, edges, x[:, None].contiguous(), a.to(DEVICE), logit.to(DEVICE))
    assert out[:2].isnan().all()
    assert out[2].isfinite().all()


def test_ties_and_nans_go_to_the_first_edge_also_of_a_long_list() -> None:
    lists = hub(2, 3, 14)
    lists.indices[8:12] = 0
    for rows in ([1.0, 0.0, 1.0], [math.nan, 0.0, 1.0], [1.0, 0.0, -1.0]):
        x = torch.tensor(rows, dtype=torch.float64)[:, None].expand(-1, 3).contiguous()
        got, want = CUDA.maximum(lists, x.to(DEVICE)), reference.maximum(lists, x)
        torch.testing.assert_close([t.cpu() for t in got], [*want], rtol=0, atol=0, equal_nan=True)


def test_large_logits_stay_finite() -> None:
    lists = random_lists(3, 5, 14, 7)
    z, a, logit = (torch.randn(*s, dtype=torch.float64, device=DEVICE) for s in ((5, 2, 4), (2, 4), (3, 2)))
    edges = AttentionEdges(lists, AttentionRule(1.0, 0.0, 0))
    near, far = (attend(CUDA, edges, z, a, logit + shift)[0] for shift in (0, 2000))
    torch.testing.assert_close(near, far, rtol=1e-9, atol=1e-9)


@given(lists=lists_of)
@settings(deadline=None, max_examples=20)
def test_transposed_lists_are_those_of_the_host(lists: InLists) -> None:
    device = torch.device(DEVICE)
    back, edge = lists.to_device(device).transposed
    want = lists.transposed
    for got, expected in ((back.indptr, want.indptr), (back.indices, want.dst), (edge, want.edge)):
        assert np.array_equal(got.cpu().numpy(), expected)
    assert lists.to_device(device) is lists.to_device(device)


@given(lists=lists_of.filter(lambda lists: lists.num_dst) | st.just(hub(3, 4, 133)))
@settings(deadline=None, max_examples=20)
def test_pieces_are_the_edges_that_the_first_chunk_left(lists: InLists) -> None:
    there = lists.to_device(torch.device(DEVICE))
    walked = [set(range(a, min(a + 3, b))) for a, b in zip(there.begin.tolist(), there.end.tolist())]
    if there.rest is not None:
        for a, b, v in zip(*(t.tolist() for t in (there.rest.begin, there.rest.end, there.rest.of))):
            assert 0 < b - a <= 3
            walked[v] |= set(range(a, b))
        assert there.rest.pieces.longest == int((there.rest.pieces.end - there.rest.pieces.begin).max())
    assert walked == [set(range(a, b)) for a, b in zip(lists.indptr[:-1], lists.indptr[1:])]


def test_the_device_decides() -> None:
    assert aggregation_on(torch.device("cpu")) is aggregation_backend("cpu")
    assert aggregation_on(torch.device("cuda", 1)) is CUDA
    with pytest.raises(InputError, match="did you mean 'cuda'"):
        aggregation_backend("cud")


def python(code: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_path_of_the_cpu_needs_no_triton_and_that_of_the_gpu_no_numba() -> None:
    without = "import sys\nfor name in {names}:\n    sys.modules[name] = None\n"
    one = without.format(names=["triton"]) + (
        "import millrace.stages.kernels as k\nfrom millrace.storage.errors import "
        "InputError\nk.aggregation_backend('cpu')\n"
        "import millrace.stages.neighbourhood.block\n"
        "try:\n    k.aggregation_backend('cuda')\nexcept InputError as e:\n    print(e)"
    )
    assert "needs Triton" in python(one)
    two = (
        without.format(names=["numba", "zarr", "dask", "distributed"])
        + "import millrace.stages.kernels.aggregation.cuda.backend\nprint('fine')"
    )
    assert python(two) == "fine\n"


@pytest.mark.parametrize("call", ["mean", "sum with factor and own", "attend with dropout", "attend_shared"])
def test_a_neighbourhood_takes_them_as_it_takes_the_others(call: str) -> None:
    graph = Graph(np.array([0, 2, 2, 5]), np.array([0, 2, 0, 0, 1], np.int32))
    found = []
    for kernels, device in ((CUDA, DEVICE), (reference, "cpu")):
        leaves = {name: x.to(device).requires_grad_() for name, x in CALLS[call].inputs(3, 1).items()}
        torch.manual_seed(0)
        out = CALLS[call].call(whole_graph(graph, torch.float64, kernels), leaves)
        grads = torch.autograd.grad(out, list(leaves.values()), torch.ones_like(out), allow_unused=True)
        found.append([t.cpu() for t in (out.detach(), *grads) if t is not None])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
