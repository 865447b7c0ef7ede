"""Gradients of ranks put together by the coverage of their seeds, against the formulas written out."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from millrace.stages.comm.solo import Solo
from millrace.stages.messages import Fetched, StepRules
from millrace.stages.reduce.corrected import CoverageCorrected, shrunk
from millrace.stages.reduce.seed_weighted import SeedWeightedMean
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

F, C = 4, 3
SHRINKS = ("none", "empirical")
SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=5)
"""Seeds of each rank."""


pytestmark = pytest.mark.usefixtures("one_thread")


class Head(nn.Module):
    """A model of nodes by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(F, 5).double(), nn.Linear(5, C).double()

    def forward(self, neighbourhoods: Any, h: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(h)))


class Work:
    """A minibatch of each rank, and the gradient of each seed's loss."""

    def __init__(self, sizes: list[int], seed: int = 0, multilabel: bool = False) -> None:
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.module, self.multilabel = Head(), multilabel
        self.x = [torch.from_numpy(rng.normal(size=(n, F))) for n in sizes]
        self.y = [
            torch.from_numpy(rng.integers(0, 2, (n, C)).astype(float) if multilabel else rng.integers(0, C, n))
            for n in sizes
        ]
        self.weights = [torch.from_numpy(rng.uniform(0.05, 1, n)) for n in sizes]
        numbers = sum(p.numel() for p in self.module.parameters())
        self.gradients = [
            np.array([self._gradient(x, y) for x, y in zip(xs, ys)]).reshape(n, numbers)
            for n, xs, ys in zip(sizes, self.x, self.y)
        ]

    def _gradient(self, x: Tensor, y: Tensor) -> np.ndarray:
        logits = self.module((), x[None])[0]
        loss = (
            nn.functional.binary_cross_entropy_with_logits(logits, y)
            if self.multilabel
            else torch.logsumexp(logits, 0) - logits[int(y)]
        )
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(self.module.parameters()))]).numpy()

    def reduced(self, policy: SeedWeightedMean, weights: list[Tensor] | None) -> tuple[np.ndarray, float]:
        """The gradient that all ranks end with, and what it was divided by."""

        def rank(group: ThreadGroup) -> Any:
            torch.set_num_threads(1)
            module, r = copy.deepcopy(self.module), group.rank
            parameters = list(module.parameters())
            rules = StepRules(0, "multilabel" if self.multilabel else "multiclass", "float32", group, torch.optim.SGD)
            done = policy.contribute(
                module, Fetched(0, 0, (), self.x[r], self.y[r], None if weights is None else weights[r]), rules
            )
            assert done.seeds == len(self.y[r])
            total = policy.reduce(parameters, done.seeds if done.weight is None else done.weight, group)[0]
            flat = [torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in parameters]
            return torch.cat([g.double() for g in flat]).numpy(), total

        results = run_threads(rank, len(self.x))
        for gradient, total in results[1:]:
            assert gradient.tobytes() == results[0][0].tobytes() and total == results[0][1], (
                "the same bits on every rank"
            )
        return results[0]

    def weighted(self, weights: list[Any]) -> np.ndarray:
        """sum of w g over sum of w, by seeds."""
        w, g = np.concatenate(weights), np.concatenate(self.gradients)
        return (w[:, None] * g).sum(0) / w.sum() if w.sum() else np.zeros(g.shape[1])

    def spread(self, by_rank: Any) -> list[np.ndarray]:
        """One weight for each rank's seeds."""
        return [np.full(len(y), w) for y, w in zip(self.y, by_rank)]


def mean(w: Any) -> float:
    return float(np.mean(np.asarray(w))) if len(w) else 0.0


def close(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


# --- weights ---


@given(sizes=SIZES, seed=st.integers(0, 99), multilabel=st.booleans())
@example(sizes=[3, 0, 5], seed=1, multilabel=False)
@example(sizes=[0, 0], seed=1, multilabel=False)
@settings(deadline=None, max_examples=20)
def test_the_gradient_is_the_weighted_one(sizes: list[int], seed: int, multilabel: bool) -> None:
    """sum of n w g over sum of n w over the ranks, g the mean gradient of a rank; or over seeds; w of a rank is its
    seeds' mean."""
    work = Work(sizes, seed, multilabel)
    g = np.array([x.mean(0) if len(x) else np.zeros(x.shape[1]) for x in work.gradients])
    nw = np.array([n * mean(w) for n, w in zip(sizes, work.weights)])
    got, total = work.reduced(CoverageCorrected(), work.weights)
    close(got, nw @ g / nw.sum() if nw.sum() else 0 * got)
    assert total == pytest.approx(nw.sum())
    close(got, work.weighted(work.spread([mean(w) for w in work.weights])))
    close(work.reduced(CoverageCorrected(by_batch=False), work.weights)[0], work.weighted(work.weights))
    close(work.reduced(CoverageCorrected(by_batch=False), None)[0], work.weighted(work.spread(np.ones(len(sizes)))))


@given(sizes=SIZES, coverage=st.floats(1e-3, 1), shrink=st.sampled_from(SHRINKS))
@example(sizes=[3, 0, 5, 2], coverage=1 / 3, shrink="empirical")
@settings(deadline=None, max_examples=20)
def test_equal_coverage_changes_nothing(sizes: list[int], coverage: float, shrink: Any) -> None:
    work = Work(sizes)
    want, _ = work.reduced(SeedWeightedMean(), None)
    alike = [torch.full((n,), coverage, dtype=torch.float64) for n in sizes]
    for policy in (CoverageCorrected(), CoverageCorrected(by_batch=False), CoverageCorrected(shrink=shrink)):
        close(work.reduced(policy, alike)[0], want)
    close(work.reduced(CoverageCorrected(shrink=shrink), None)[0], want)


@given(
    sizes=SIZES,
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-6, 0.3, 7.0]),
    shrink=st.sampled_from(SHRINKS),
    batch=st.booleans(),
)
@settings(deadline=None, max_examples=20)
def test_a_common_scale_changes_nothing(sizes: list[int], seed: int, scale: float, shrink: Any, batch: bool) -> None:
    work, policy = Work(sizes, seed), CoverageCorrected(batch, shrink)
    close(work.reduced(policy, [w * scale for w in work.weights])[0], work.reduced(policy, work.weights)[0], 1e-9)


def test_low_coverage_counts_less() -> None:
    """And the mean weight of a batch is not that of its seeds one by one."""
    work = Work([4, 4])
    low = [torch.full((4,), 0.1, dtype=torch.float64), torch.full((4,), 0.9, dtype=torch.float64)]
    means = [g.mean(0) for g in work.gradients]
    close(work.reduced(CoverageCorrected(), low)[0], 0.1 * means[0] + 0.9 * means[1])
    batch, node = (work.reduced(CoverageCorrected(by_batch), work.weights)[0] for by_batch in (True, False))
    assert np.abs(batch - node).max() > 1e-3


@pytest.mark.parametrize("shrink", SHRINKS)
@pytest.mark.parametrize(("sizes", "coverage"), [([0], 1), ([0, 0, 0], 1), ([2, 3], 0.0), ([1], 0.0), ([3, 0], 0.5)])
def test_nothing_to_learn_from(sizes: list[int], coverage: float, shrink: Any) -> None:
    """No seeds, or none that sees anything: the step is to be skipped, and nothing is infinite or no number."""
    work = Work(sizes)
    weights = [torch.full((n,), coverage, dtype=torch.float64) for n in sizes]
    for by_batch in (True, False):
        gradient, total = work.reduced(CoverageCorrected(by_batch, shrink), weights)
        assert np.isfinite(gradient).all()
        assert (total > 0) == (sum(sizes) > 0 and coverage > 0)
        assert total or not gradient.any()


# --- shrinking: u = w / wbar, u~ = 1 + (1 - lambda)(u - 1) ---


def relative(weights: list[Tensor]) -> np.ndarray:
    """u of each rank that has seeds."""
    arrays = [w.numpy() for w in weights if len(w)]
    w = np.array([a.mean() for a in arrays])
    return w / np.average(w, weights=[len(a) for a in arrays])


def shrunk_by_hand(weights: list[Tensor]) -> np.ndarray:
    """u~ of each rank that has seeds."""
    arrays = [w.numpy() for w in weights if len(w)]
    noise = np.array([a.var(ddof=1) / len(a) if len(a) > 1 else 0.0 for a in arrays])
    signal = max(0.0, np.var([a.mean() for a in arrays]) - noise.mean())
    towards = np.array([n / (n + signal) if n + signal else 0.0 for n in noise])
    return 1 + (1 - towards) * (relative(weights) - 1)


def shrunk_by_ranks(weights: list[Tensor]) -> np.ndarray:
    def rank(group: ThreadGroup) -> float:
        w = weights[group.rank]
        return shrunk(mean(w), float(w.var()) if len(w) > 1 else 0.0, len(w), group)

    return np.array([u for u, w in zip(run_threads(rank, len(weights)), weights) if len(w)])


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any),
    seed=st.integers(0, 999),
    apart=st.sampled_from([0.0, 0.3, 1.0]),
)
@example(sizes=[9, 8, 0, 7, 9], seed=1, apart=0.3)
@example(sizes=[9, 8, 0, 7, 1], seed=1, apart=1.0)
@settings(deadline=None, max_examples=25)
def test_weights_are_shrunk_by_the_formula(sizes: list[int], seed: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    weights = [torch.from_numpy((1 - apart) * rng.uniform(0.01, 1, n) + apart * rng.uniform(0.01, 1)) for n in sizes]
    close(shrunk_by_ranks(weights), shrunk_by_hand(weights), 1e-7)


def test_the_formula_shrinks_at_all() -> None:
    """Else the comparison above says little."""
    rng = np.random.default_rng(0)
    noisy = [torch.from_numpy(rng.uniform(0.2, 0.8, n)) for n in (5, 6, 7, 8, 9)]
    assert (np.abs(shrunk_by_ranks(noisy) - 1) / np.abs(relative(noisy) - 1) < 0.99).all()


def test_one_rank_asks_its_device_for_nothing() -> None:
    """Parameters without memory have no values that anyone could ask for."""
    head = Head().to("meta")
    for p in head.parameters():
        p.grad = torch.empty_like(p)
    head.a.bias.grad = None
    assert SeedWeightedMean().reduce(list(head.parameters()), 7.0, Solo()) == (7.0, False)
    assert head.a.bias.grad is None and SeedWeightedMean().reduce([head.a.bias], 0.0, Solo()) == (0.0, False)
