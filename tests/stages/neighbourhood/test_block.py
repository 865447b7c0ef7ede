import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.stages.kernels import aggregation_backend
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Block
from millrace.tests.contracts.aggregate_kernels import HOST_KERNELS
from millrace.tests.contracts.neighbourhood import (
    Call,
    Edges,
    NeighbourhoodTests,
    Tensors,
    assert_close,
    blocks,
    dense_attend,
    dense_max,
    dense_mean,
    dense_sum,
)
from millrace.tests.contracts.whole_graph import whole_graph


class WholeGraph(NeighbourhoodTests):
    kernels = HOST_KERNELS["cpu"]

    def run(
        self, graph: Graph, call: Call, rows: Tensors, params: Tensors, grad: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = {k: v.clone().requires_grad_() for k, v in {**rows, **params}.items()}
        neighbourhood = whole_graph(graph, torch.float64, self.kernels)
        out = call(neighbourhood, {k: leaves[k] for k in rows}, {k: leaves[k] for k in params})
        grads = torch.autograd.grad((out * grad).sum(), list(leaves.values()))
        return out.detach(), dict(zip(leaves, grads))


class TestCpu(WholeGraph):
    pass


class TestReference(WholeGraph):
    kernels = HOST_KERNELS["reference"]


@given(case=blocks(), shape=st.sampled_from([(), (1,), (5,), (2, 3), (0,)]))
@settings(deadline=None, max_examples=25)
def test_sampled_blocks_equal_dense(case: tuple[Block, Tensor], shape: tuple[int, ...]) -> None:
    block, degree = case
    neighbourhood = BlockNeighbourhood(block, degree)
    edges = Edges.of(block.indptr, block.indices, block.weight, degree.tolist())

    def beside(edges: Edges, h: Tensor) -> Tensor:
        flat = h.reshape(len(h), -1)
        return torch.cat([dense_mean(edges, flat), flat[: block.num_dst]], dim=1)

    for name, oracle in (("sum", dense_sum), ("mean", dense_mean), ("max", dense_max), ("mean_beside", beside)):
        if name == "mean_beside" and 0 in (*shape, block.num_dst):
            continue
        h = torch.randn(block.num_src, *shape, dtype=torch.float64, requires_grad=True)
        got, want = getattr(neighbourhood, name)(h), oracle(edges, h) if block.num_dst else h[:0]
        assert_close(got, want)
        grad = torch.randn(want.shape, dtype=torch.float64)
        got_h, want_h = (torch.autograd.grad((x * grad).sum() + 0 * h.sum(), h)[0] for x in (got, want))
        assert_close(got_h, want_h)


@given(case=blocks(), dropout=st.sampled_from([0.0, 0.4]), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_attention_over_sampled_blocks_equals_dense_with_the_same_dropout(
    case: tuple[Block, Tensor], dropout: float, seed: int
) -> None:
    block, degree = case
    neighbourhood = BlockNeighbourhood(block, degree)
    edges = Edges.of(block.indptr, block.indices, block.weight, degree.tolist())
    leaves = [
        torch.randn(s, dtype=torch.float64, requires_grad=True)
        for s in ((block.num_src, 2, 3), (2, 3), (block.num_dst, 2))
    ]
    torch.manual_seed(seed)
    got = neighbourhood.attend(*leaves, slope=0.2, dropout=dropout)
    factors = None
    if dropout:
        torch.manual_seed(seed)
        key = int(torch.randint(2**62, ()))
        words = [[uniform(key, e, h) for h in range(2)] for e in range(block.num_edges + block.num_dst)]
        factors = torch.tensor(
            [[(w >= dropout) / (1 - dropout) for w in row] for row in words], dtype=torch.float64
        ).reshape(-1, 2)
    want = dense_attend(edges, *leaves, 0.2, factors)
    assert_close(got, want)
    grad = torch.randn(want.shape, dtype=torch.float64)
    nothing = sum(0 * x.sum() for x in leaves)
    for a, b in zip(*(torch.autograd.grad((x * grad).sum() + nothing, leaves, retain_graph=True) for x in (got, want))):
        assert_close(a, b)


def uniform(key: int, e: int, head: int) -> float:
    """The mask's definition once more, in plain integers."""
    word = (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        return z ^ (z >> 31)

    return (mix((mix((key + e * 0xD1342543DE82EF95) & word) + (head + 1) * 0x9E3779B97F4A7C15) & word) >> 32) / 2**32


@given(case=blocks(), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_sums_with_factors_and_own_rows_equal_dense(case: tuple[Block, Tensor], seed: int) -> None:
    block, degree = case
    neighbourhood = BlockNeighbourhood(block, degree)
    edges = Edges.of(block.indptr, block.indices, block.weight, degree.tolist())
    g = torch.Generator().manual_seed(seed)
    h, factor, own = (
        torch.randn(s, dtype=torch.float64, generator=g) for s in ((block.num_src, 3), block.num_src, block.num_dst)
    )
    h.requires_grad_(), own.requires_grad_()
    got = neighbourhood.sum(h, factor=factor, own=own)
    inner = dense_sum(edges, h * factor[:, None]) if block.num_dst else h[:0]
    want = inner + own[:, None] * h[: block.num_dst]
    assert_close(got, want)
    grad = torch.randn(want.shape, dtype=torch.float64, generator=g)
    for a, b in zip(
        *(torch.autograd.grad((x * grad).sum() + 0 * (h.sum() + own.sum()), [h, own]) for x in (got, want))
    ):
        assert_close(a, b)


@given(case=blocks(), dropout=st.sampled_from([0.0, 0.4]), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_shared_attention_is_attention_with_the_product_moved_behind_the_sum(
    case: tuple[Block, Tensor], dropout: float, seed: int
) -> None:
    """The same coefficients, drop for drop, and the same gradients in everything."""
    block, degree = case
    neighbourhood = BlockNeighbourhood(block, degree)
    shapes = ((block.num_src, 4), (2, 3, 4), (2, 3), (2, 3))
    h, weight, a, b = leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    torch.manual_seed(seed)
    z = torch.einsum("uf,hdf->uhd", h, weight)
    want = neighbourhood.attend(z, a, (z[: block.num_dst] * b).sum(-1), dropout=dropout)
    torch.manual_seed(seed)
    a_src, a_dst = (torch.einsum("hd,hdf->hf", x, weight) for x in (a, b))
    shared = neighbourhood.attend_shared(h, a_src, a_dst, dropout=dropout)
    got = torch.einsum("vhf,hdf->vhd", shared, weight)
    assert_close(got, want)
    grad = torch.randn(want.shape, dtype=torch.float64)
    nothing = sum(0 * x.sum() for x in leaves)
    for x, y in zip(*(torch.autograd.grad((x * grad).sum() + nothing, leaves, retain_graph=True) for x in (got, want))):
        assert_close(x, y)


def test_dropout_draws_anew_with_each_call_and_repeats_under_a_seed() -> None:
    neighbourhood = whole_graph(from_edges(np.arange(40) % 7, np.arange(40) % 9, 9))
    z, a, logit = torch.randn(9, 2, 3), torch.randn(2, 3), torch.randn(9, 2)
    torch.manual_seed(1)
    first, second = neighbourhood.attend(z, a, logit, dropout=0.5), neighbourhood.attend(z, a, logit, dropout=0.5)
    torch.manual_seed(1)
    again = neighbourhood.attend(z, a, logit, dropout=0.5)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_the_gradient_of_a_tie_goes_to_the_first_edge() -> None:
    neighbourhood = BlockNeighbourhood(
        Block(1, np.arange(3), np.array([0, 3]), np.array([2, 1, 0], np.int32)), torch.tensor([3.0, 0, 0])
    )
    h = torch.ones(3, 2, requires_grad=True)
    neighbourhood.max(h).sum().backward()
    assert h.grad is not None
    assert h.grad.tolist() == [[0, 0], [0, 0], [1, 1]]


def test_inputs_that_do_not_lie_row_by_row() -> None:
    neighbourhood = whole_graph(from_edges([0, 1, 2, 0], [1, 2, 0, 2], 3), torch.float64)
    h = torch.randn(4, 3, dtype=torch.float64).t()
    assert not h.is_contiguous()
    assert_close(neighbourhood.sum(h), neighbourhood.sum(h.contiguous()))
    z, a, logit = torch.randn(2, 3, 4).transpose(0, 1), torch.randn(4, 2).t(), torch.randn(2, 3).t()
    assert_close(
        neighbourhood.attend(z, a, logit), neighbourhood.attend(z.contiguous(), a.contiguous(), logit.contiguous())
    )
    leaf = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    neighbourhood.sum(leaf).sum().backward()  # the incoming gradient is one number, expanded
    assert leaf.grad is not None
    assert_close(leaf.grad, torch.tensor([[2.0, 2], [1, 1], [1, 1]], dtype=torch.float64))


def test_read_only_and_unaligned_arrays_are_accepted() -> None:
    graph = from_edges([0, 1, 2, 0], [1, 2, 0, 2], 3, edge_weight=[1.0, 2.0, 3.0, 4.0])
    h = torch.randn(3, 2)
    want = whole_graph(graph).sum(h)
    buffer = bytes(1) + graph.indptr.tobytes()
    indptr = np.frombuffer(buffer, np.int64, offset=1)
    weight, indices = graph.edge_weight.copy(), graph.indices.copy()  # type: ignore[union-attr]
    weight.flags.writeable = indices.flags.writeable = False
    assert not indptr.flags.aligned
    assert torch.equal(whole_graph(Graph(indptr, indices, weight)).sum(h), want)


def test_the_blocks_arrays_are_shared() -> None:
    block = Block(1, np.arange(2), np.array([0, 1]), np.array([1], np.int32))
    lists = BlockNeighbourhood(block, torch.ones(2)).lists
    assert np.shares_memory(lists.indptr, block.indptr)
    assert np.shares_memory(lists.indices, block.indices)


def neighbourhood() -> BlockNeighbourhood:
    return whole_graph(from_edges([0, 1], [1, 2], 3))


F64 = torch.float64
MISTAKES = {
    "degree has shape": lambda: BlockNeighbourhood(neighbourhood().block, torch.ones(2)),
    "h has shape": lambda: neighbourhood().sum(torch.ones(2, 4)),
    r"h has shape \[\]": lambda: neighbourhood().mean(torch.tensor(1.0)),
    "h is torch.int64": lambda: neighbourhood().max(torch.ones(3, dtype=torch.int64)),
    "h is torch.float16": lambda: neighbourhood().sum(torch.ones(3, dtype=torch.float16)),
    "on meta": lambda: neighbourhood().sum(torch.ones(3, device="meta")),
    "expected one dtype": lambda: neighbourhood().attend(
        torch.ones(3, 1, 2), torch.ones(1, 2, dtype=F64), torch.ones(3, 1)
    ),
    "a_src is torch.int64": lambda: neighbourhood().attend(
        torch.ones(3, 1, 2), torch.ones(1, 2, dtype=torch.int64), torch.ones(3, 1)
    ),
    "attend got": lambda: neighbourhood().attend(torch.ones(3, 1, 2), torch.ones(1, 2), torch.ones(2, 1)),
    "attend_both got": lambda: neighbourhood().attend_both(torch.ones(3, 1, 2), torch.ones(1, 2), torch.ones(2, 2)),
    "attend_shared got": lambda: neighbourhood().attend_shared(torch.ones(3, 2), torch.ones(1, 2), torch.ones(2, 2)),
    "a_dst is torch.float64": lambda: neighbourhood().attend_shared(
        torch.ones(3, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=F64)
    ),
    "factor has shape": lambda: neighbourhood().sum(torch.ones(3, 2), factor=torch.ones(2)),
    "own has shape": lambda: neighbourhood().sum(torch.ones(3, 2), own=torch.ones(3, 1)),
    "attention dropout": lambda: neighbourhood().attend(
        torch.ones(3, 1, 2), torch.ones(1, 2), torch.ones(3, 1), dropout=1.0
    ),
    "cannot reduce": lambda: neighbourhood().apply(lambda s, d, w: s, torch.ones(3, 1), reduce="min"),
    "the message's result": lambda: neighbourhood().apply(lambda s, d, w: s[:1], torch.ones(3, 1)),
    "did you mean 'cuda'": lambda: aggregation_backend("cudas"),
}


@pytest.mark.parametrize("match", MISTAKES)
def test_mistakes_are_named(match: str) -> None:
    with pytest.raises(InputError, match=match):
        MISTAKES[match]()


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_on_a_device_over_what_lies_on_the_host(weighted: bool, on_device: torch.device) -> None:
    """Lists, weights, degrees, factors and own coefficients are uploaded when they are read."""
    weight = np.array([2.0, 1.0, 0.5], np.float32) if weighted else None
    block = Block(2, np.array([3, 0, 7, 9]), np.array([0, 1, 3]), np.array([2, 3, 0], np.int32), weight)
    over = BlockNeighbourhood(block, torch.tensor([4.0, 2.0, 1.0, 3.0], dtype=torch.float64))
    rows = torch.arange(8, dtype=torch.float64).view(4, 2)
    factor, own = torch.arange(4, dtype=torch.float64) + 1, torch.tensor([3.0, 5.0], dtype=torch.float64)
    for call in (
        over.sum,
        over.mean,
        over.max,
        lambda x: over.sum(x, factor, own),
        lambda x: over.apply(lambda src, dst, w: src * dst * (1.0 if w is None else w[:, None]), x, reduce="mean"),
    ):
        seen = call(rows.to(on_device))
        assert seen.device == on_device
        torch.testing.assert_close(seen.cpu(), call(rows))
    seen = BlockNeighbourhood(block, over.degree.to(on_device)).coefficients(rows.to(on_device))
    assert seen.device == on_device
    torch.testing.assert_close(seen.cpu(), over.coefficients(rows))
