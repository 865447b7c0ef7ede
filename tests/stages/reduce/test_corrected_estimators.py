"""Estimators of isolated training against enumerations: over all chunkings, all super-epochs and all samples of
them."""

import itertools
from dataclasses import replace
from math import factorial, prod
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from millrace.stages.assignment import BulkRequest
from millrace.stages.comm.solo import Solo
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.fetch.gather import InPlace
from millrace.stages.messages import Fetched, StepRules
from millrace.stages.models.gcn import GCN
from millrace.stages.placement.chunks import Chunks, Isolated
from millrace.stages.reduce.corrected import CoverageCorrected
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.full_batch import C, Case, F, job
from millrace.tests.contracts.isolated import Seat, names, placed
from millrace.tests.oracles.sampling import backend as reference

pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(neighbours: dict[int, list[int]]) -> Graph:
    dst, src = np.array([(v, u) for v, into in neighbours.items() for u in into]).T
    return from_edges(src, dst, len(neighbours))


def case_of(graph: Graph, part_of: Any, parts: int, seed: int = 0) -> Case:
    n, rng, none = graph.num_nodes, np.random.default_rng(seed), np.empty(0, np.int64)
    return Case(
        graph, np.array(part_of), parts, Split(np.arange(n), none, none), rng.normal(size=(n, F)), torch.arange(n) % C
    )


def seen(place: Isolated, fanout: tuple[int, ...], seeds: Any) -> Fetched:
    """The minibatch of these seeds with all neighbours that are there."""
    request = BulkRequest(0, 0, 0, 0, (np.asarray(seeds, np.int64),))
    work = NeighborSampler(fanout).sample(place.graph, request, reference).minibatches[0]
    return Fetch(InPlace(is_read=True), correction="none").fetcher(place, job(Seat(0, 1), 1), nn.Identity()).fetch(work)


def gradients(model: nn.Module, place: Isolated, seeds: Any) -> np.ndarray:
    """[B, parameters], of each seed's loss on what the rank sees."""
    work = seen(place, (-1, -1), seeds)
    losses = nn.functional.cross_entropy(model(work.neighbourhoods, work.h), work.y, reduction="none")
    each = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
    return np.array([torch.cat([g.reshape(-1) for g in of_seed]).numpy() for of_seed in each])


def test_complete_cases_weighed_by_their_chance_give_the_whole_gradient() -> None:
    """If all of a seed's two hops are seen, its gradient is that of the whole graph: over all maps of nodes to
    chunks and all super-epochs of a sweep, the mean of Z g / P(Z = 1) is exact. That of all local gradients is not."""
    neighbours, n, parts = {0: [1], 1: [2], 2: [3], 3: [0, 1]}, 4, 3
    graph = graph_of(neighbours)
    torch.manual_seed(1)
    model = GCN(hidden=3, layers=2, dropout=0.0).build(F, C).double()
    ball = {v: {v, *near, *(b for u in near for b in neighbours[u])} for v, near in neighbours.items()}
    whole = placed(case_of(graph, [0] * n, 1), Chunks(halo=0), 0)
    want = gradients(model, whole, np.arange(n))
    got, plain, chance = np.zeros_like(want), np.zeros_like(want), 1 / parts**n / (parts - 1)
    for part_of in itertools.product(range(parts), repeat=n):
        case = case_of(graph, part_of, parts)
        for rank, t in itertools.product(set(part_of), range(parts - 1)):
            place = placed(case, Chunks(halo=0), rank, t)
            name = names(case, place)
            for v, g in zip(name, gradients(model, place, np.arange(place.num_base))):
                plain[v] += chance * g
                if ball[v] <= set(name):
                    got[v] += chance * g / (2 / parts) ** (len(ball[v]) - 1)
    assert np.abs(got - want).max() < 1e-12
    assert np.abs(plain - want).max() > 1e-2


def local_means(case: Case, t: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """[N, F] mean of the neighbours of each base node that are there, and [N], their share of all."""
    place = placed(case, Chunks(halo=0), rank, t)
    work = seen(place, (-1,), np.arange(place.num_base))
    return work.neighbourhoods[0].mean(torch.from_numpy(np.asarray(work.h))).numpy(), place.coverage[
        : place.num_base
    ].numpy()


def test_coverage_does_not_make_up_for_a_base_chunk_that_stays() -> None:
    """Neighbours in the base chunk are there in every super-epoch, the others in one: where features tell chunks apart,
    a mean over a whole sweep is another one, with weights of seeds too."""
    rng, n, parts = np.random.default_rng(3), 32, 4
    graph = from_edges(*np.nonzero((rng.random((n, n)) < 0.4) & ~np.eye(n, dtype=bool)), n)
    case = case_of(graph, rng.integers(0, parts, n), parts)
    case = replace(case, x=case.x + case.part_of[:, None])
    means = np.array([case.x[graph.indices[a:b]].mean(0) for a, b in zip(graph.indptr, graph.indptr[1:])])
    unweighted, weighted = [], []
    for rank in range(parts):
        m, c = (np.array(a) for a in zip(*(local_means(case, t, rank) for t in range(parts - 1))))
        want = means[case.part_of == rank]
        unweighted.append(m.mean(0) - want)
        weighted.append((c[..., None] * m).sum(0) / c.sum(0)[:, None] - want)
    rms = [np.sqrt(np.mean(np.concatenate(off) ** 2)) for off in (unweighted, weighted)]
    assert 0.05 < rms[1] < rms[0]


def test_the_bias_of_normalised_weights_falls_as_one_over_the_number_of_draws() -> None:
    """A node alone in its chunk has 1, 2 and 3 of its neighbours in three others, of which it sees one at a time: over
    so many independent draws, sum of c m over sum of c is exact in the limit, and T times its bias tends to a constant,
    -Cov(c m, c) / E[c]^2 + E[c m] Var(c) / E[c]^3."""
    neighbours = {0: [1, 2, 3, 4, 5, 6], **{v: [0] for v in range(1, 7)}}
    case = case_of(graph_of(neighbours), [0, 1, 2, 2, 3, 3, 3], 4)
    outcomes = [local_means(case, t, 0) for t in range(3)]
    m, c = np.array([m[0, 0] for m, _ in outcomes]), np.array([c[0] for _, c in outcomes])
    assert c.tolist() == [1 / 6, 2 / 6, 3 / 6]
    want = case.x[1:, 0].mean()

    def bias(draws: int) -> float:
        total = 0.0
        for a in range(draws + 1):
            for b in range(draws + 1 - a):
                times = np.array([a, b, draws - a - b])
                ways = factorial(draws) // prod(factorial(int(k)) for k in times)
                total += ways / 3**draws * (times * c * m).sum() / (times * c).sum()
        return float(total - want)

    product, spread = c * m, c - c.mean()
    limit = -(product * spread).mean() / c.mean() ** 2 + product.mean() * (spread**2).mean() / c.mean() ** 3
    scaled = {draws: draws * bias(draws) for draws in (4, 16, 64)}
    assert abs(limit) > 0.01
    assert all(abs(s - limit) < 2 * abs(limit) / draws for draws, s in scaled.items())
    assert abs(np.mean(m) - want) > 5 * abs(bias(64)), "without weights it does not fall"


def test_one_weight_for_a_minibatch_is_the_nearest_one() -> None:
    """The best of all scalars w on a grid, in the mean square over all ways in which the seeds have their gradients."""
    rng = np.random.default_rng(0)
    weights, g = rng.beta(2, 3, 5), rng.normal(size=(5, 4)) + 2 * rng.normal(size=4)
    module = nn.Linear(1, C)
    rules = StepRules(0, "multiclass", "float32", Solo(), lambda parameters: torch.optim.SGD(parameters))

    class Head(nn.Module):
        def forward(self, neighbourhoods: Any, h: torch.Tensor) -> torch.Tensor:
            return module(h)

    done = CoverageCorrected().contribute(
        Head(), Fetched(0, 0, (), torch.ones(5, 1), torch.zeros(5).long(), torch.from_numpy(weights)), rules
    )
    assert done.weight is not None
    grid = np.linspace(0, 1, 2001)
    off = sum(
        ((grid[:, None] * g.mean(0) - (weights[list(order), None] * g).mean(0)) ** 2).sum(1)
        for order in itertools.permutations(range(5))
    )
    assert abs(grid[np.argmin(off)] - done.weight / 5) <= 1 / 2000  # type: ignore[arg-type]
