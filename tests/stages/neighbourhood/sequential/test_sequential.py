"""Neighbours on other ranks, one rank after the other, kept, or in one exchange: the values, the gradients and the
bytes."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from millrace.stages.comm.solo import Solo
from millrace.stages.neighbourhood.base import Neighbourhood, destinations
from millrace.stages.neighbourhood.full_batch import FullBatch, GivenRows, View
from millrace.stages.neighbourhood.halo import Halo, HaloNeighbourhood
from millrace.stages.neighbourhood.ring import Ring
from millrace.stages.neighbourhood.sequential import messages
from millrace.stages.neighbourhood.sequential.neighbourhood import SequentialNeighbourhood
from millrace.storage.dataset import Split
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.aggregations import CALLS
from millrace.tests.contracts.full_batch import Case, make_case
from millrace.tests.contracts.nccl import stood_in
from millrace.tests.contracts.neighbourhood import Call, NeighbourhoodTests, Tensors, assert_close
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64
MODES = ("rematerialize", "keep", "halo")
LAYERS = 2
VIEWS = {"whole": None, "pruned, first layer": 0, "pruned, last layer": 1}
AHEAD = (0, 100, 1 << 30)


def view_of(batch: FullBatch, name: str) -> View:
    at = VIEWS[name]
    return batch.whole if at is None else batch.layers[at]


def make_hood(batch: FullBatch, view: View, mode: str, ring: Ring, device: torch.device | None = None) -> Neighbourhood:
    if mode == "halo":
        return HaloNeighbourhood(Halo(batch, view, GivenRows(F64, device=device)), ring)
    return SequentialNeighbourhood(batch, view, 0, ring, GivenRows(F64, device=device), keep=mode == "keep")


class TestOverRanks(NeighbourhoodTests):
    """Ranks as threads, so that hypothesis may choose the graph; the parts and the mode are drawn from it.

    Every call in every mode is in `test_every_call_equals_dense_autograd_and_sends_what_it_must`.
    """

    def run(
        self, graph: Graph, call: Call, rows: Tensors, params: Tensors, grad: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        rng = np.random.default_rng([*graph.indptr, *graph.indices])
        parts, mode, n = int(rng.choice([1, 2, 3, 4, 8])), str(rng.choice(MODES)), graph.num_nodes
        # Seeds come first, so rows change places.
        split = Split(*np.split(np.arange(n)[::-1], [2, 3]))
        case = Case(graph, rng.integers(0, parts, n), parts, split, np.zeros((n, 1)), grad)

        def rank(group: ThreadGroup) -> tuple[np.ndarray, Tensor, dict[str, Tensor]]:
            batch = case.share(group, 1, prune=False).graph
            leaves = {k: v[torch.from_numpy(batch.names)].requires_grad_() for k, v in rows.items()}
            leaves |= {k: v.clone().requires_grad_() for k, v in params.items()}
            neighbourhood = make_hood(batch, batch.whole, mode, Ring(group, 64))
            out = call(neighbourhood, {k: leaves[k] for k in rows}, {k: leaves[k] for k in params})
            grads = torch.autograd.grad((out * grad[torch.from_numpy(batch.names)]).sum(), list(leaves.values()))
            return batch.names, out.detach(), dict(zip(leaves, grads))

        ranks = run_threads(rank, case.parts)
        order = np.argsort(np.concatenate([names for names, _, _ in ranks]))
        together = {k: torch.cat([grads[k] for _, _, grads in ranks])[order] for k in rows}
        return torch.cat([out for _, out, _ in ranks])[order], together | {
            k: sum(g[k] for _, _, g in ranks) for k in params
        }


SEEDS = {1: (8,), 2: (0, 4, 14), 3: (11, 13, 10), 4: (7, 9)}
"""Cases of so many ranks: each kind of graph of `make_case`, with and without weights."""
ODD = {4: 0, 14: 1, 13: 0, 10: 1, 9: 0}
"""Graphs of which one thing is odd, whatever is called: every second call, from this one on."""


def looked_at(seed: int, every: int = 1) -> list[tuple[str, str]]:
    """Every call, or every so many, each with another view of the graph."""
    each = [(name, list(VIEWS)[(seed + i) % len(VIEWS)]) for i, name in enumerate(CALLS)]
    return each[ODD[seed] :: 2] if seed in ODD else each[::every]


DEVICE_SEEDS = {2: (7,), 3: (3,)}
FEWER = {2: 3, 3: 7}
"""The same on a device, where kernels are slow in the interpreter: every third call, with more ranks every seventh."""


def aggregate(group: Any, size: int, on_device: bool = False) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Results of every call on this rank, in every mode."""
    device = torch.device("cpu")
    if on_device:
        group, device = stood_in(group), pretended_device.DEVICE
    ledger = getattr(group, "_ledger", None)
    found, piece = {}, messages.MESSAGE_BYTES

    def sent() -> int:
        return 0 if ledger is None else ledger.get("network", "activations")

    for seed in (DEVICE_SEEDS if on_device else SEEDS)[size]:
        case = make_case(seed, size)
        shares = {prune: case.share(group, LAYERS, prune).graph for prune in (False, True)}
        # Messages of one or a few edges at a time.
        messages.MESSAGE_BYTES = piece if seed % 3 == 0 else 100
        for name, view in looked_at(seed, FEWER[size] if on_device else 1):
            batch = shares[view != "whole"]
            names = torch.from_numpy(batch.names[: view_of(batch, view).num_src])
            aggregation = CALLS[name]
            inputs = aggregation.inputs(case.graph.num_nodes, seed)
            for mode in MODES:
                leaves = aggregation.leaves({k: x[names] if k in aggregation.rows else x for k, x in inputs.items()})
                leaves = {k: x.detach().to(device).requires_grad_(x.requires_grad) for k, x in leaves.items()}
                neighbourhood = make_hood(
                    batch, view_of(batch, view), mode, Ring(group, AHEAD[seed % 3], device), device
                )
                torch.manual_seed(seed)
                before = sent()
                out = aggregation.call(neighbourhood, leaves)
                forward = sent()
                if out.requires_grad:
                    (out * towards(out.shape[1:], case, seed)[names[: len(out)]].to(device)).sum().backward()
                assert out.device == neighbourhood.degree.device == device
                found[seed, name, mode] = {
                    "names": batch.names[: len(names)],
                    "out": out.detach().cpu().numpy(),
                    "grads": {
                        k: (torch.zeros_like(x) if x.grad is None else x.grad).cpu().numpy() for k, x in leaves.items()
                    },
                    "forward": forward - before,
                    "backward": sent() - forward,
                    "degree": neighbourhood.degree.cpu().numpy(),
                    "edges": neighbourhood.num_edges,
                }
    messages.MESSAGE_BYTES = piece
    return found


def towards(shape: tuple[int, ...] | torch.Size, case: Case, seed: int) -> Tensor:
    """The gradient of the results, for all nodes."""
    return torch.randn(case.graph.num_nodes, *shape, dtype=F64, generator=torch.Generator().manual_seed(seed + 1))


@pytest.mark.parametrize("size", SEEDS)
def test_every_call_equals_dense_autograd_and_sends_what_it_must(size: int) -> None:
    check(size, [aggregate(Solo(), 1)] if size == 1 else run_ranks(aggregate, size, size, timeout_s=240), SEEDS[size])


@pytest.mark.usefixtures("on_device")
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning")
@pytest.mark.parametrize("size", DEVICE_SEEDS)
def test_the_same_on_a_device(size: int) -> None:
    """By the kernels for GPUs, in Triton's interpreter where there is none; rows travel by the rules of NCCL."""
    check(size, run_ranks(aggregate, size, size, True, timeout_s=400), DEVICE_SEEDS[size], FEWER[size])


def check(size: int, ranks: list[Any], seeds: tuple[int, ...], every: int = 1) -> None:
    """Compare with dense autograd, and bytes with their formula."""
    for seed in seeds:
        case = make_case(seed, size)
        degree = whole_graph(case.graph, F64).degree.numpy()
        for name, view in looked_at(seed, every):
            at, aggregation = VIEWS[view], CALLS[name]
            reached = np.ones(case.graph.num_nodes, bool) if at is None else case.near(LAYERS - 1 - at)
            leaves = aggregation.leaves(aggregation.inputs(case.graph.num_nodes, seed))
            torch.manual_seed(seed)
            want = aggregation.dense(case.graph, leaves)
            total = (want * towards(want.shape[1:], case, seed))[torch.from_numpy(reached)].sum()
            (total + sum(0 * x.sum() for x in leaves.values())).backward()
            # What a row takes, for each that travels.
            unit = case.remote_rows(reached) * aggregation.width * 8
            for mode in MODES:
                got = [rank[seed, name, mode] for rank in ranks]
                what = f"{name}, {mode}, {view}, case {seed}"
                check_values(got, want.detach(), leaves, aggregation.rows, reached, what)
                assert all(np.array_equal(g["degree"], degree[g["names"]]) for g in got), what
                assert sum(g["edges"] for g in got) == int(case.graph.in_degree[reached].sum()), what
                assert sum(g["forward"] for g in got) == unit, f"{what}: forward"
                fetched = aggregation.again and mode == "rematerialize"
                pushed = "h" not in aggregation.constants and not (aggregation.unread and mode == "halo")
                assert sum(g["backward"] for g in got) == unit * (fetched + pushed), f"{what}: backward"


def check_values(
    got: list[dict[str, Any]], want: Tensor, leaves: Tensors, rows: dict[str, Any], reached: np.ndarray, what: str
) -> None:
    """Put together what ranks have, and compare."""

    def close(a: Any, b: Tensor, of: str) -> None:
        torch.testing.assert_close(torch.as_tensor(a), b, rtol=1e-10, atol=1e-10, msg=lambda m: f"{what}, {of}: {m}")

    for g in got:
        close(g["out"], want[torch.from_numpy(g["names"][: len(g["out"])])], "result")
    names = np.concatenate([g["names"][: len(g["out"])] for g in got])
    assert sorted(names) == np.flatnonzero(reached).tolist(), f"{what}: rows"
    for name, x in leaves.items():
        if not x.requires_grad:
            continue
        total = torch.zeros_like(x)
        for g in got:
            total.index_add_(
                0, torch.from_numpy(g["names"]), torch.from_numpy(g["grads"][name])
            ) if name in rows else total.add_(torch.from_numpy(g["grads"][name]))
        assert x.grad is not None
        close(total, x.grad, f"gradient of {name}")


def draw(group: Any, mode: str) -> dict[str, Any]:
    """A message that multiplies its source by a random number, twice in one pass; column 0 names the node."""
    messages.MESSAGE_BYTES = 200
    case = make_case(7, group.size)
    batch = case.share(group, 1, False).graph
    neighbourhood = make_hood(batch, batch.whole, mode, Ring(group, 0))
    h = torch.from_numpy(np.c_[batch.names, case.x[batch.names]]).requires_grad_()
    drawn: list[list[tuple[np.ndarray, ...]]] = [[], []]

    def message(of: int, s: Tensor, d: Tensor, w: Tensor) -> Tensor:
        r = torch.rand(len(s), 1, dtype=F64)
        if len(s):
            drawn[of].append(
                (s[:, 0].detach().long().numpy(), d[:, 0].detach().long().numpy(), r[:, 0].numpy(), w.numpy())
            )
        return s * r

    torch.manual_seed(4)
    state = torch.get_rng_state()
    out = [neighbourhood.apply(partial(message, i), h) for i in range(2)]
    untouched = torch.equal(torch.get_rng_state(), state)
    calls = [len(d) for d in drawn]
    (out[0] * towards(h.shape[1:], case, 0)[torch.from_numpy(batch.names)]).sum().backward()
    return {
        "names": batch.names,
        "out": out[0].detach(),
        "dh": h.grad,
        "drawn": drawn,
        "calls": calls,
        "untouched": untouched,
    }


@pytest.mark.parametrize("mode", ["rematerialize", "keep"])
def test_random_numbers_of_a_message_are_the_same_in_both_passes(mode: str) -> None:
    case, ranks = make_case(7, 2), run_ranks(draw, 2, mode)
    names = torch.from_numpy(np.argsort(np.concatenate([r["names"] for r in ranks])))
    h = torch.from_numpy(np.c_[np.arange(case.graph.num_nodes), case.x]).requires_grad_()
    want = torch.zeros_like(h)
    for rank in ranks:
        (first, second), n = rank["drawn"], rank["calls"][0]
        assert len(first) == 2 * n > 2
        assert all(np.array_equal(a, b) for x, y in zip(first[:n], first[n:]) for a, b in zip(x, y))
        assert not any(np.intersect1d(x[2], y[2]).size for x, y in zip(first[:n], second[:n])), (
            "another call draws other numbers"
        )
        assert rank["untouched"], "what a layer draws next does not depend on its neighbours"
        for src, dst, r, w in first[:n]:
            rows = h[torch.from_numpy(src)] * torch.from_numpy(r * w)[:, None]
            want = want.index_add(0, torch.from_numpy(dst), rows)
    every = np.concatenate([x[2] for rank in ranks for x in rank["drawn"][0][: rank["calls"][0]]])
    assert len(np.unique(every)) == len(every) == case.graph.num_edges
    (want * towards(h.shape[1:], case, 0)).sum().backward()
    assert_close(torch.cat([r["out"] for r in ranks])[names], want.detach())
    assert h.grad is not None
    assert_close(torch.cat([r["dh"] for r in ranks])[names], h.grad)


class Counting(ThreadGroup):
    """Counts the messages that are under way, and ranks whose rows are there at a time."""

    under_way = most = most_there = 0
    came: tuple[weakref.ref[Tensor], ...] = ()

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Any:
        swap = super().swap(part, to, into, source, tag, kind)
        self.came = (*(ref for ref in self.came if ref() is not None), weakref.ref(into))
        self.most_there = max(self.most_there, len(self.came))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        done = swap.sent

        def sent(what: str) -> None:
            self.under_way -= 1
            done(what)

        swap.sent = sent
        return swap


def test_the_generator_of_a_device_is_seeded_alike_in_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    of_device = torch.Generator().manual_seed(7)
    monkeypatch.setattr(torch.cuda, "default_generators", (of_device,))
    drawn = []
    for _ in range(2):
        state = of_device.get_state()
        with messages._seeded(3, 0, 1, 2, torch.device("cuda", 0)):
            drawn.append((torch.rand(4), torch.rand(4, generator=of_device)))
        assert torch.equal(of_device.get_state(), state), "it is put back"
        torch.rand(1, generator=of_device)
    assert all(torch.equal(a, b) for a, b in zip(*drawn))


def test_what_is_under_way_is_bounded_and_changes_no_result() -> None:
    case = make_case(3, 4)

    def rank(group: ThreadGroup, prefetch_bytes: int, name: str) -> tuple[list[int], list[Tensor]]:
        group.__class__ = Counting
        assert isinstance(group, Counting)
        aggregation = CALLS[name]
        batch = case.share(group, 1, False).graph
        assert all(len(batch.whole.wanted[q]) for q in range(4) if q != group.rank)
        inputs = aggregation.inputs(case.graph.num_nodes, 0)
        leaves = aggregation.leaves(
            {k: x[torch.from_numpy(batch.names)] if k in aggregation.rows else x for k, x in inputs.items()}
        )
        out = aggregation.call(make_hood(batch, batch.whole, "rematerialize", Ring(group, prefetch_bytes)), leaves)
        most = [group.most, group.most_there]
        out.sin().sum().backward()
        assert group.under_way == 0, "everything that was begun was waited for"
        return most, [out.detach(), *(x.grad for x in leaves.values() if x.grad is not None)]

    for name in ("sum", "max", "attend", "apply, sum"):
        row_bytes = CALLS[name].width * 8
        tried = [run_threads(partial(rank, prefetch_bytes=n, name=name), 4) for n in (0, 40 * row_bytes, 1 << 30)]
        assert [most for most, _ in tried[0]] == [[1, 1]] * 4, (
            "rows of one rank are gone before those of the next are asked for"
        )
        assert [most for most, _ in tried[2]] == [[3, 3]] * 4
        for other in tried[1:]:
            for (_, a), (_, b) in zip(tried[0], other):
                for x, y in zip(a, b, strict=True):
                    # What a message does to its destination is added up between gradients from elsewhere.
                    assert_close(x, y, 1e-14 if name.startswith("apply") else 0.0)


class InOrder(ThreadGroup):
    """Matches messages by their order, and notes the rounds in which they are begun."""

    begun: tuple[int, ...] = ()
    agrees = True

    def matches_by_order(self, device: torch.device) -> bool:
        return self.agrees

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Any:
        self.begun = (*self.begun, tag)
        return super().swap(part, to, into, source, tag, kind)


@pytest.mark.parametrize("name", ["sum", "attend"])
def test_ranks_that_match_by_order_begin_the_same_rounds_in_the_same_order(name: str) -> None:
    """Whatever rows each of them has, and however many may be under way: so no two ranks wait for each other."""
    aggregation, apart = CALLS[name], 0

    def rank(group: ThreadGroup, case: Case, agrees: bool, ahead: int) -> tuple[int, ...]:
        group.__class__ = InOrder
        assert isinstance(group, InOrder)
        group.agrees = agrees
        batch, names = (b := case.share(group, 1, False).graph), torch.from_numpy(b.names)
        inputs = aggregation.inputs(case.graph.num_nodes, 0)
        leaves = aggregation.leaves({k: x[names] if k in aggregation.rows else x for k, x in inputs.items()})
        ring = Ring(group, ahead, torch.device("cpu"))
        aggregation.call(make_hood(batch, batch.whole, "rematerialize", ring), leaves).sin().sum().backward()
        return group.begun

    for seed, rows in ((3, 0), (3, 15), (7, 4), (11, 5), (13, 9), (19, 1 << 20)):
        case, ahead = make_case(seed, 4), rows * aggregation.width * 8
        begun = run_threads(partial(rank, case=case, agrees=True, ahead=ahead), 4)
        assert len(begun[0]) >= 3 and len({*begun}) == 1
        apart += len({*run_threads(partial(rank, case=case, agrees=False, ahead=ahead), 4)}) > 1
    assert apart, "without a word to each other they would not"


def neighbourhood() -> SequentialNeighbourhood:
    batch = make_case(8, 1).share(Solo(), 1, False).graph
    return SequentialNeighbourhood(batch, batch.whole, 0, Ring(Solo(), 0), GivenRows(F64))


def of_edge(h_src: Tensor, h_dst: Tensor, weight: Tensor | None, edge: Tensor, w: Tensor) -> Tensor:
    own = torch.tanh(h_src + 0.5 * h_dst + edge[:, :5] @ w)
    return own if weight is None else own * weight[:, None]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("seed", range(8, 14))
def test_values_of_edges_lie_with_their_shards(
    monkeypatch: pytest.MonkeyPatch, seed: int, learnt: bool, mode: str
) -> None:
    """Features of edges, or what a layer learns of them and of the destinations, as in one process."""
    monkeypatch.setattr(messages, "MESSAGE_BYTES", 200)
    parts = 1 + seed % 4
    case = make_case(seed, parts)
    rng = np.random.default_rng(seed)
    rows = ArrayFeatures(rng.normal(size=(case.graph.num_edges, 5)))
    case = replace(case, graph=replace(case.graph, edge_features=rows))
    reduce: Any = ("sum", "mean", "max", "plain")[seed % 4]
    w, v = (torch.from_numpy(rng.normal(size=(5, 5))) for _ in range(2))
    grad = torch.from_numpy(rng.normal(size=(case.graph.num_nodes, 5)))

    def result(neighbourhood: Neighbourhood, h: Tensor, w: Tensor, v: Tensor) -> Tensor:
        edge, own = neighbourhood.edge_features, None
        if learnt:
            edge, own = edge @ v, destinations(neighbourhood, h) @ v.T
        return neighbourhood.apply(of_edge, h, (w,), reduce, edge=edge, own=own)

    def rank(group: ThreadGroup) -> tuple[np.ndarray, list[Tensor]]:
        share = case.share(group, 1, prune=False)
        batch, ring = share.graph, Ring(group, 64)
        leaves = [t.clone().requires_grad_() for t in (torch.from_numpy(case.x[batch.names]), w, v)]
        if mode == "halo":
            hood: Any = HaloNeighbourhood(Halo(batch, batch.whole, GivenRows(F64, share.edge_rows)), ring)
        else:
            given = GivenRows(F64, share.edge_rows)
            hood = SequentialNeighbourhood(batch, batch.whole, 0, ring, given, keep=mode == "keep")
        out = result(hood, *leaves)
        found = torch.autograd.grad((out * grad[batch.names]).sum(), leaves, allow_unused=True)
        return batch.names, [out.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves))]

    leaves = [t.clone().requires_grad_() for t in (torch.from_numpy(case.x), w, v)]
    want = result(whole_graph(case.graph, F64), *leaves)
    grads = torch.autograd.grad((want * grad).sum(), leaves, allow_unused=True)
    ranks = run_threads(rank, parts)
    order = np.argsort(np.concatenate([names for names, _ in ranks]))
    for i, expected in enumerate([want, grads[0]]):
        got = torch.cat([found[i] for _, found in ranks])[order]
        assert (got - expected).abs().max() <= 1e-10 if expected is not None and expected.numel() else True
    for i in (1, 2):
        got, expected = sum(found[1 + i] for _, found in ranks), grads[i]
        assert expected is None or (got - expected).abs().max() <= 1e-10
    assert (grads[2] is not None) == learnt


def test_a_message_may_not_use_what_was_computed_outside_of_it() -> None:
    at = neighbourhood()
    h, p = torch.randn(at.num_src, 3, dtype=F64), torch.randn(3, dtype=F64, requires_grad=True)
    computed = p.exp()
    with pytest.raises(
        InputError,
        match=r"uses a tensor that was computed, with gradients, outside of it; .*pass that tensor in `params`",
    ):
        at.apply(lambda s, d, w: s * computed, h)
    # Handed over, without gradients, or from a leaf, it is welcome.
    want = at.apply(lambda s, d, w, c: s * c, h, [computed])
    assert_close(at.apply(lambda s, d, w: s * computed.detach(), h), want.detach())
    assert_close(at.apply(lambda s, d, w: s * p.exp(), h).detach(), want.detach())
    with torch.no_grad():
        assert_close(at.apply(lambda s, d, w: s * computed, h), want.detach())


def test_a_message_that_holds_no_gradients_is_called_for_the_edges_only() -> None:
    at, seen = neighbourhood(), []
    with torch.no_grad():
        at.apply(lambda s, d, w: seen.append(len(s)) or s, torch.randn(at.num_src, 3, dtype=F64))
    assert seen == [at.num_edges]


def ones(at: SequentialNeighbourhood, *shape: int) -> Tensor:
    return torch.ones(at.num_src, *shape, dtype=F64)


MISTAKES: dict[str, Callable[[SequentialNeighbourhood], object]] = {
    "h has shape": lambda at: at.sum(torch.ones(at.num_src + 1, 2)),
    "h is torch.int64": lambda at: at.max(ones(at, 2).long()),
    "factor has shape": lambda at: at.sum(ones(at, 2), factor=torch.ones(at.num_src + 1)),
    "own has shape": lambda at: at.sum(ones(at, 2), own=ones(at, 1)),
    "attend got": lambda at: at.attend(ones(at, 1, 2), torch.ones(1, 2, dtype=F64), ones(at, 2)),
    "attend_both got": lambda at: at.attend_both(
        ones(at, 1, 2), torch.ones(1, 2, dtype=F64), torch.ones(2, 2, dtype=F64)
    ),
    "attend_shared got": lambda at: at.attend_shared(
        ones(at, 2), torch.ones(1, 2, dtype=F64), torch.ones(2, 2, dtype=F64)
    ),
    "a_src is torch.float32": lambda at: at.attend(ones(at, 1, 2), torch.ones(1, 2), ones(at, 1)),
    "attention dropout is 1": lambda at: at.attend(
        ones(at, 1, 2), torch.ones(1, 2, dtype=F64), ones(at, 1), dropout=1.0
    ),
    "cannot reduce by 'min'": lambda at: at.apply(lambda s, d, w: s, ones(at, 1), reduce="min"),
    "the message's result has shape": lambda at: at.apply(lambda s, d, w: s[:1], ones(at, 1)),
}


@pytest.mark.parametrize("match", MISTAKES)
def test_mistakes_are_named(match: str) -> None:
    with pytest.raises(InputError, match=match):
        MISTAKES[match](neighbourhood())
