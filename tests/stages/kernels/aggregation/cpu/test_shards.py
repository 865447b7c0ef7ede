"""One graph, cut into ranks and edge shards at random: what the shards add up to is what the whole graph gives."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.stages.kernels.aggregation.attention_args import AttentionEdges, AttentionRule, BackwardRows, EdgeNumbers
from millrace.stages.kernels.aggregation.cpu import backend as aggregate_cpu
from millrace.stages.kernels.aggregation.cpu import row_ranges as cut
from millrace.stages.kernels.aggregation.cpu.dropout import scale_kept
from millrace.stages.kernels.aggregation.lists import InLists, IntArray, WeightedLists
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.memory.arena import Arena, reusing
from millrace.stages.memory.lazy_rows import LazyRows, base_and_ids
from millrace.stages.neighbourhood.gradients import attend, attend_backward
from millrace.stages.random import draw, node_words
from millrace.tests.contracts.aggregate_kernels import HOST_KERNELS
from millrace.tests.oracles import aggregation as reference

HEADS = 2


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    set_num_threads(None)


@dataclass
class Shard:
    lists: InLists
    rows: IntArray | None
    edge: IntArray
    src: IntArray
    own: bool


@dataclass
class Rank:
    nodes: IntArray
    numbers: Callable[[IntArray], EdgeNumbers]
    first: IntArray
    shards: list[Shard]


@dataclass
class Case:
    lists: InLists
    ranks: list[Rank]
    seed: int

    def rand(self, *shape: int, salt: int = 0) -> Tensor:
        g = torch.Generator().manual_seed(10 * self.seed + salt)
        return torch.randn(*shape, generator=g, dtype=torch.float64)


def make_rank(lists: InLists, part: IntArray, p: int, rng: np.random.Generator, index: type) -> Rank:
    nodes = np.flatnonzero(part == p)
    kept = lists.kept[nodes]
    begin = np.cumsum(kept) - kept
    first = lists.indptr[nodes] - begin
    dst = np.repeat(np.arange(len(nodes)), kept)
    src = lists.indices[np.arange(len(dst)) + first[dst]]
    shards = []
    for q in rng.permutation(int(part.max()) + 1):
        edge = np.flatnonzero(part[src] == q)
        if q == p:
            rows, ids = np.arange(len(nodes)), nodes
        else:
            # Some of the rows without an edge are there too.
            rows, ids = (
                np.union1d(dst[edge], np.flatnonzero(rng.random(len(nodes)) < 0.2)).astype(index),
                np.unique(src[edge]),
            )
        indptr = np.searchsorted(dst[edge], np.append(rows, len(nodes))) if len(rows) else np.zeros(1, int)
        inner = InLists.from_arrays(indptr, np.searchsorted(ids, src[edge]).astype(index), len(ids))
        shards.append(Shard(inner, None if q == p else rows, edge.astype(index), ids.astype(index), bool(q == p)))
    own = lists.num_edges + nodes
    return Rank(nodes.astype(index), lambda edge: EdgeNumbers(first, own, edge), first, shards)


def make_case(V: int, e: int, parts: int, seed: int, index: type = np.int32) -> Case:
    """Self loops and multi-edges arise by chance, empty ranks and shards too."""
    rng = np.random.default_rng(seed)
    kept = np.bincount(rng.integers(0, V, e) // 2, minlength=V)
    lists = InLists.from_arrays(np.cumsum([0, *kept]), rng.integers(0, V, e).astype(index), V)
    part = rng.integers(0, parts, V)
    return Case(lists, [make_rank(lists, part, p, rng, index) for p in range(int(part.max()) + 1)], seed)


cases = st.builds(
    make_case,
    st.sampled_from([1, 2, 5, 12]),
    st.sampled_from([0, 1, 6, 40]),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.sampled_from([np.int32, np.int64]),
)
RICH = make_case(12, 60, 4, 1)
widths = st.sampled_from([1, 4, 9])


def at(x: Tensor, ids: IntArray) -> Tensor:
    return x[torch.from_numpy(ids).long().to(x.device)].contiguous()


def sums(
    k: Any, case: Case, x: Tensor, grad: Tensor, coef: Tensor | None, scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sum over all edges and its gradient, rank by rank and shard by shard."""
    V, width = x.shape
    total, dx = x.new_full((V, width + 2), 7), torch.zeros_like(x)
    for rank in case.ranks:
        out, g = x.new_full((len(rank.nodes), width + 2), 7), torch.cat([at(grad, rank.nodes)] * 3, 1)
        out[:, :width] = 0
        s = None if scale is None else at(scale, rank.nodes)
        for shard in rank.shards:
            # A shard's edges are named by their positions in the rank's order, `first` makes those positions in the
            # graph.
            dst = (np.arange(shard.lists.num_dst) if shard.rows is None else shard.rows)[shard.lists.rows]
            c = None if coef is None else at(coef, shard.edge + rank.first[dst])
            of = WeightedLists(shard.lists, c, s, shard.rows)
            k.spmm_into(of, at(x, shard.src), out)
            k.add_rows(dx, shard.src, k.spmm_from(of, g, width))
        total[torch.from_numpy(rank.nodes).long().to(total.device)] = out
    assert (total[:, width:] == 7).all()
    return total[:, :width], dx


@pytest.mark.parametrize("name", HOST_KERNELS)
@example(case=RICH, width=4, weighted=True, scaled=True)
@given(case=cases, width=widths, weighted=st.booleans(), scaled=st.booleans())
@settings(deadline=None, max_examples=25)
def test_sums_are_those_of_the_dense_matrix(name: str, case: Case, width: int, weighted: bool, scaled: bool) -> None:
    lists = case.lists
    # Each pair of types is a compiled version more, and seconds: of wide ids one is enough.
    few = lists.indices.dtype == np.int64
    weighted, scaled = weighted or few, scaled or few
    V, e = lists.num_src, lists.num_edges
    x, grad = case.rand(V, width, salt=1).requires_grad_(), case.rand(V, width, salt=2)
    coef, scale = case.rand(e, salt=3).float() if weighted else None, case.rand(V, salt=4) if scaled else None
    dense = torch.zeros(V, V, dtype=torch.float64)
    weight = torch.ones(e, dtype=torch.float64) if coef is None else coef.double()
    dense.index_put_((torch.from_numpy(lists.rows), torch.from_numpy(lists.indices).long()), weight, accumulate=True)
    want = (dense if scale is None else scale[:, None] * dense) @ x
    want.backward(grad)
    got = sums(HOST_KERNELS[name], case, x.detach(), grad, coef, scale)
    torch.testing.assert_close(got, (want.detach(), x.grad), rtol=1e-10, atol=1e-10)


def maxima(k: Any, case: Case, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima, the edges of the graph that attain them, and the gradient."""
    result, winner, dx = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64), torch.zeros_like(x)
    for rank in case.ranks:
        shape = len(rank.nodes), x.shape[1]
        # What lies there before the first edge does not matter.
        out, arg = x.new_full(shape, 1e9), torch.full(shape, -1, device=x.device)
        for shard in rank.shards:
            k.maximum_into(WeightedLists(shard.lists, rows=shard.rows, edge=shard.edge), at(x, shard.src), out, arg)
        for shard in rank.shards:
            of = WeightedLists(shard.lists, rows=shard.rows, edge=shard.edge)
            dx[torch.from_numpy(shard.src).long().to(dx.device)] += k.maximum_from(of, arg, at(grad, rank.nodes))
        here = torch.from_numpy(rank.nodes).long().to(x.device)
        result[here] = out.masked_fill_(arg < 0, 0)
        winner[here] = torch.where(arg < 0, arg, arg + torch.from_numpy(rank.first).to(x.device)[:, None])
    return result, winner, dx


@pytest.mark.parametrize("name", HOST_KERNELS)
@example(case=RICH, width=4, nan=True)
@given(case=cases, width=widths, nan=st.booleans())
@settings(deadline=None, max_examples=25)
def test_maxima_and_their_ties_are_those_of_the_whole_graph(name: str, case: Case, width: int, nan: bool) -> None:
    V = case.lists.num_src
    x, grad = case.rand(V, width, salt=1).round(), case.rand(V, width, salt=2)
    if nan:
        x[case.rand(V, width, salt=3) > 1] = torch.nan
    want, first = reference.maximum(case.lists, x)
    got, winner, dx = maxima(HOST_KERNELS[name], case, x, grad)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(winner, first.long())
    torch.testing.assert_close(dx, reference.maximum_backward(case.lists, first, grad), rtol=1e-12, atol=1e-12)


def dense_attention(lists: InLists, z: Tensor, a: Tensor, logit: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """Row by row, by torch's own softmax; edges are numbered by their positions, the rows' own,
    which take the place of loops, behind them."""
    out, log_sum = [], []
    for v in range(lists.num_dst):
        edges = np.arange(lists.indptr[v], lists.indptr[v + 1])
        edges = edges[lists.indices[edges] != v]
        src = torch.from_numpy(np.append(lists.indices[edges], v)).long()
        e = torch.nn.functional.leaky_relu((z[src] * a).sum(-1) + logit[v], rule.slope)
        words = node_words(rule.key, np.append(edges, lists.num_edges + v))
        kept = torch.from_numpy(np.stack([draw(words, h) for h in range(HEADS)], 1) >= rule.threshold)
        out.append(((e.softmax(0) * kept * rule.keep_scale)[..., None] * z[src]).sum(0))
        log_sum.append(e.logsumexp(0))
    return torch.stack(out), torch.stack(log_sum)


def attention(
    k: Any, case: Case, z: Tensor, a: Tensor, logit: Tensor, rule: AttentionRule, grad: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """out, log_sum, dz, da_src, d_dst; and what the ranks held on the way."""
    found = [
        torch.zeros_like(z),
        torch.zeros_like(logit),
        torch.zeros_like(z),
        torch.zeros_like(a),
        torch.zeros_like(logit),
    ]
    steps = []
    for rank in case.ranks:
        n, here = len(rank.nodes), torch.from_numpy(rank.nodes).long().to(z.device)
        out, log_sum = z.new_zeros(n, *z.shape[1:]), z.new_full((n, HEADS), -torch.inf)
        er, g = at(logit, rank.nodes), at(grad, rank.nodes)
        seen = np.zeros(n, bool)
        for s in rank.shards:
            edges = AttentionEdges(s.lists, rule, rank.numbers(s.edge), s.rows, s.own)
            k.attend_into(edges, at(z, s.src), a, er, out, log_sum)
            seen[slice(None) if s.own else s.rows[s.lists.kept > 0]] = True
            assert (log_sum[~seen] == -torch.inf).all() and (out[~seen] == 0).all()
            steps += [out.clone(), log_sum.clone()]
        of = BackwardRows(er, log_sum, g, (g * out).sum(-1), torch.zeros_like(er))
        for s in rank.shards:
            edges = AttentionEdges(s.lists, rule, rank.numbers(s.edge), s.rows, s.own)
            dz, da = k.attend_from(edges, at(z, s.src), a, of)
            steps += [dz, da]
            k.add_rows(found[2], s.src, dz)
            found[3] += da
        found[0][here], found[1][here], found[4][here] = out, log_sum, of.d_logit
    return found, steps


@example(case=RICH, width=4, dropout=0.4)
@given(case=cases, width=widths, dropout=st.sampled_from([0.0, 0.4]))
@settings(deadline=None, max_examples=25)
def test_attention_is_that_of_the_whole_graph(case: Case, width: int, dropout: float) -> None:
    """With dropout too: the whole graph's numbers of edges decide, wherever an edge lies."""
    V, rule = case.lists.num_src, AttentionRule(0.2, dropout, case.seed)
    shapes = ((V, HEADS, width), (HEADS, width), (V, HEADS))
    z, a, logit = leaves = [case.rand(*shape, salt=i).requires_grad_() for i, shape in enumerate(shapes)]
    grad = case.rand(V, HEADS, width, salt=4)
    out, log_sum = dense_attention(case.lists, z, a, logit, rule)
    want = [out.detach(), log_sum.detach(), *torch.autograd.grad(out, leaves, grad)]
    plain = [x.detach() for x in leaves]
    steps = []
    for name in HOST_KERNELS:
        k = HOST_KERNELS[name]
        found, way = attention(k, case, *plain, rule, grad)
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
        steps.append(way)
        edges = AttentionEdges(case.lists, rule)
        whole = attend(k, edges, *plain)
        found = [*whole, *attend_backward(k, edges, (*plain, *whole), grad)]
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*steps, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", HOST_KERNELS)
def test_the_order_of_edges_in_a_list_does_not_matter_to_numbered_edges(name: str) -> None:
    k, lists, rng = HOST_KERNELS[name], make_case(9, 60, 1, 5).lists, np.random.default_rng(0)
    edge = np.lexsort((rng.random(60), lists.rows)).astype(np.int32)
    other = InLists.from_arrays(lists.indptr, lists.indices[edge], 9)
    numbers = EdgeNumbers(np.zeros(9, np.int64), 60 + np.arange(9), edge)
    rand = make_case(9, 60, 1, 5).rand
    z, a, logit, grad, x = (
        rand(9, HEADS, 4),
        rand(HEADS, 4, salt=1),
        rand(9, HEADS, salt=2),
        rand(9, HEADS, 4, salt=3),
        rand(9, 4, salt=5),
    )
    b, rule = rand(HEADS, 4, salt=4), AttentionRule(0.2, 0.5, 3)

    def found(lists: InLists, numbers: EdgeNumbers | None) -> list[Tensor]:
        edges = AttentionEdges(lists, rule, numbers)
        made, shared = attend(k, edges, z, a, logit), k.attend_shared(edges, x, a, b)
        gradients = k.attend_shared_backward(edges, x, a, b, shared, grad, True)
        constant = k.attend_shared_backward(edges, x, a, b, shared, grad, False)[1:]
        return [*made, *attend_backward(k, edges, (z, a, logit, *made), grad), *shared, *gradients, *constant]

    for got, want, unnumbered in zip(found(other, numbers), found(lists, None), found(other, None)):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
        # `log_sum` and `logit_dst` alone do not hang on dropout.
        assert not torch.allclose(unnumbered, want) or want.shape == logit.shape


@pytest.mark.parametrize("name", HOST_KERNELS)
def test_large_logits_stay_finite(name: str) -> None:
    case, rule = make_case(12, 60, 3, 8), AttentionRule(1.0, 0.0, 0)
    z, a, logit, grad = (
        case.rand(12, HEADS, 4),
        case.rand(HEADS, 4, salt=1),
        case.rand(12, HEADS, salt=2),
        case.rand(12, HEADS, 4, salt=3),
    )
    near, _ = attention(HOST_KERNELS[name], case, z, a, logit, rule, grad)
    for shift in (2000, -2000):
        far, _ = attention(HOST_KERNELS[name], case, z, a, logit + shift, rule, grad)
        far[1] -= shift
        torch.testing.assert_close(far, near, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", HOST_KERNELS)
def test_a_later_shard_may_outweigh_the_first_by_far(name: str) -> None:
    """The old row's factor underflows to 0, and so does the new one's the other way round."""
    k, rule = HOST_KERNELS[name], AttentionRule(1.0, 0.0, 0)
    one, none = InLists.from_arrays(np.array([0, 1]), np.array([0], np.int32), 1), np.array([0], np.int32)
    a, logit = torch.ones(1, 1), torch.zeros(1, 1)
    for values in ([1.0, 3000.0], [3000.0, 1.0]):
        out, log_sum = torch.zeros(1, 1, 1), torch.full((1, 1), -torch.inf)
        for value in values:
            edges = AttentionEdges(one, rule, rows=none, own=False)
            k.attend_into(edges, torch.full((1, 1, 1), value), a, logit, out, log_sum)
        assert out.item() == log_sum.item() == 3000


def everything(k: Any, case: Case, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Every function, on the same random inputs."""
    V = case.lists.num_src
    x, grad, coef, scale = (
        case.rand(*shape, salt=i).to(dtype)
        for i, shape in enumerate(((V, width), (V, width), (case.lists.num_edges,), (V,)))
    )
    z, a, logit = (
        case.rand(*shape, salt=i).to(dtype) for i, shape in enumerate(((V, HEADS, width), (HEADS, width), (V, HEADS)))
    )
    found, _ = attention(k, case, z, a, logit, AttentionRule(0.2, 0.3, 9), z + 1)
    ids = np.random.default_rng(1).permutation(V).astype(np.int32)
    taken = [k.take_rows(x, ids, scale), k.take_rows(z, ids)]
    return [*sums(k, case, x, grad, coef.float(), scale), *maxima(k, case, x, grad), *found, *taken]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_number_of_threads_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    case = make_case(3000, 20_000, 2, 3)
    set_num_threads(1)
    want = everything(aggregate_cpu, case, 9, dtype)
    monkeypatch.setattr(cut, "SERIAL", 0)
    for threads in (2, 5):
        set_num_threads(threads)
        for got, expected in zip(everything(aggregate_cpu, case, 9, dtype), want, strict=True):
            assert torch.equal(got, expected)


def test_float32_is_as_good_as_float32() -> None:
    case = make_case(40, 400, 3, 4)
    for got, want in zip(
        everything(aggregate_cpu, case, 20, torch.float32), everything(reference, case, 20, torch.float64)
    ):
        assert got.dtype == torch.float32 or not got.is_floating_point()
        torch.testing.assert_close(got.to(want.dtype), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [None, np.array([1, 2, 4], np.int32)])
def test_named_rows_are_read_where_they_lie(rows: IntArray | None) -> None:
    rng, k = np.random.default_rng(0), aggregate_cpu
    base, ids = rng.standard_normal((30, 5)).astype(np.float32), rng.integers(0, 30, 6)
    lists, take = (
        InLists.from_arrays(np.array([0, 3, 3, 9]), rng.integers(0, 6, 9).astype(np.int32), 6),
        np.array([5, 0, 0]),
    )
    # As shards have them; without numbers it would be another version of the kernel, which nobody uses.
    edge = np.arange(9, dtype=np.int32)

    def found(x: Tensor) -> list[Tensor]:
        out, top, arg = torch.zeros(5, 6), torch.zeros(5, 5), torch.full((5, 5), -1)
        k.spmm_into(WeightedLists(lists, rows=rows), x, out)
        k.maximum_into(WeightedLists(lists, rows=rows, edge=edge), x, top, arg)
        return [out, top, arg, k.take_rows(x, take), k.take_rows(x, take, torch.arange(6.0))]

    named = LazyRows(base, ids)
    for got, want in zip(found(named), found(torch.from_numpy(base[ids])), strict=True):
        assert torch.equal(got, want)
    assert base_and_ids(named)[1] is ids


@pytest.mark.parametrize("name", HOST_KERNELS)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5), (2, 0)])
def test_rows_are_taken_and_added(name: str, shape: tuple[int, ...]) -> None:
    k, x = HOST_KERNELS[name], torch.randn(6, *shape, dtype=torch.float64)
    factor = torch.randn(6, dtype=torch.float64)
    for ids in (np.array([4, 0, 5]), np.array([], np.int32)):
        assert torch.equal(k.take_rows(x, ids), x[ids.astype(np.int64)])
        scaled = x * factor.reshape(6, *[1] * len(shape))
        assert torch.equal(k.take_rows(x, ids, factor), scaled[ids.astype(np.int64)])
        out, more = x.clone(), torch.randn(len(ids), *shape, dtype=torch.float64)
        k.add_rows(out, ids, more)
        want = x.clone()
        want[ids.astype(np.int64)] += more
        assert torch.equal(out, want)


def test_taken_rows_lie_in_the_arena() -> None:
    arena = Arena()
    with reusing(arena):
        taken = aggregate_cpu.take_rows(torch.ones(10, 100), np.arange(1000) % 10)
    assert arena.nbytes >= taken.nbytes


@given(V=st.integers(0, 40), shape=st.sampled_from([(1,), (2,), (7,), (3, 5)]), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_dropout_follows_the_names_of_rows(V: int, shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((V, *shape)))
    ids = rng.permutation(V)[: V // 2 + 1]
    want = scale_kept(x, 77, 0.4)
    assert torch.equal(scale_kept(at(x, ids), 77, 0.4, ids), at(want, ids))
    if len(shape) == 1:
        # Rows that are only named: of ids[i], but called names[i].
        names = rng.permutation(V)[: len(ids)]
        assert torch.equal(scale_kept(LazyRows(x.numpy(), ids), 77, 0.4, names), scale_kept(at(x, ids), 77, 0.4, names))


def test_what_a_caller_must_not_pass() -> None:
    lists, flat = InLists.from_arrays(np.array([0, 0]), np.zeros(0, np.int32), 1), torch.zeros(1, 1)
    rule, rows, wide = AttentionRule(0.2, 0.0, 0), np.zeros(1, np.int32), torch.zeros(3, 4)
    with pytest.raises(AssertionError):
        AttentionEdges(lists, rule, rows=rows, own=True)
    for out in (wide.T, wide[:, :2]):
        with pytest.raises(AssertionError):
            aggregate_cpu.spmm_into(WeightedLists(lists), flat, out)
        with pytest.raises(AssertionError):
            aggregate_cpu.maximum_into(WeightedLists(lists), flat, out, torch.zeros(3, 4, dtype=torch.int64))
        with pytest.raises(AssertionError):
            aggregate_cpu.add_rows(out, rows, torch.zeros(1, out.shape[1]))
    with pytest.raises(AssertionError):
        aggregate_cpu.take_rows(wide.T, rows)
