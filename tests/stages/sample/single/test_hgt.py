"""Budget sampling against its law by enumeration, and its edges against their definition."""

from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.stats import chisquare

from millrace.stages.kernels.row_block.relation_rows import RelationRows
from millrace.stages.random import branches
from millrace.stages.sample.single import hgt
from millrace.stages.sample.single.hgt import earlier_occurrences, sample_by_budget
from millrace.storage.graph import Graph
from millrace.storage.typed.graph_types import GraphTypes
from millrace.tests.contracts.typed import graph_of_relations, typed_graphs

# Types a (0, 1, 2) and b (3 to 6); the seed is 0. Among the edges a double one and a loop; two relations b -> a.
TYPES = GraphTypes(("a", "b"), (0, 3, 7), (("b", "r", "a"), ("b", "q", "a"), ("a", "s", "a"), ("a", "t", "b")))
EDGES = {
    TYPES.relations[0]: ([3, 4, 4, 5, 6], [0, 0, 0, 0, 1]),
    TYPES.relations[1]: ([5, 6], [0, 2]),
    TYPES.relations[2]: ([0, 1, 2, 2], [0, 0, 0, 1]),
    TYPES.relations[3]: ([1, 2, 0], [4, 4, 5]),
}


def graph() -> Graph:
    edges = {r: (np.array(src), np.array(dst)) for r, (src, dst) in EDGES.items()}
    return graph_of_relations(edges, TYPES, keep_edge_id=True)


def successive(budget: dict[int, float], most: int) -> dict[frozenset[int], float]:
    """Probability of each set drawn without replacement, one after the other, by the squares of budgets."""
    if len(budget) <= most:
        return {frozenset(budget): 1.0}
    total, law = sum(b * b for b in budget.values()), Counter[frozenset[int]]()
    for order in permutations(budget, most):
        left, p = total, 1.0
        for v in order:
            p *= budget[v] ** 2 / left
            left -= budget[v] ** 2
        law[frozenset(order)] += p
    return law


def law(seed: int, num_samples: list[list[int]]) -> dict[tuple[frozenset[int], ...], float]:
    """Probability of the nodes of each round: Algorithms 1 and 2 of the paper, by recursion."""

    def give(budget: dict[int, float], new: frozenset[int], known: frozenset[int]) -> dict[int, float]:
        out = Counter(budget)
        for src, dst in EDGES.values():
            for w in new:
                into = [u for u, v in zip(src, dst) if v == w]
                for u in into:
                    out[u] += 1 / len(into)
        return {v: b for v, b in out.items() if v not in known}

    def rounds(i: int, budget: dict[int, float], known: frozenset[int]) -> dict[tuple[frozenset[int], ...], float]:
        if i == len(num_samples):
            return {(): 1.0}
        out = Counter[tuple[frozenset[int], ...]]()
        a, b = ({v: x for v, x in budget.items() if (v < 3) == kind} for kind in (True, False))
        for of_a, p in successive(a, num_samples[i][0]).items():
            for of_b, q in successive(b, num_samples[i][1]).items():
                new = of_a | of_b
                left = {v: x for v, x in budget.items() if v not in new}
                for rest, s in rounds(i + 1, give(left, new, known | new), known | new).items():
                    out[(new, *rest)] += p * q * s
        return out

    start = frozenset([seed])
    return rounds(0, give({}, start, start), start)


@pytest.mark.parametrize("num_samples", [[[1, 1], [1, 1]], [[0, 1], [1, 1]], [[1, 0], [0, 2]]])
def test_nodes_have_the_law_of_budgets(num_samples: list[list[int]]) -> None:
    sets, draws, relations = Counter[tuple[int, ...]](), 500, RelationRows.from_graph(graph())
    for new, p in law(0, num_samples).items():
        sets[tuple(sorted({0}.union(*new)))] += p
    assert abs(sum(sets.values()) - 1) < 1e-12
    count = 2 * len(num_samples) + 1
    samples = np.array(num_samples)
    found = Counter[tuple[int, ...]]()
    for key in branches(7, np.arange(draws * count)).reshape(draws, count):
        found[tuple(sorted(sample_by_budget(relations, np.array([0]), samples, key).nodes.tolist()))] += 1
    assert set(found) <= set(sets)
    likely = [s for s, p in sets.items() if p * draws >= 5]
    observed, wanted = [found[s] for s in likely], [sets[s] * draws for s in likely]
    observed, wanted = [*observed, draws - sum(observed)], [*wanted, draws - sum(wanted)]
    assert len(likely) > 2
    assert chisquare(*((observed, wanted) if wanted[-1] > 1 else (observed[:-1], wanted[:-1]))).pvalue > 1e-3


def test_at_most_fifty_in_edges_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two in place of fifty: each pair of the four in-edges counts equally often."""
    monkeypatch.setattr(hgt, "MOST_NEIGHBORS", 2)
    types = GraphTypes(("a", "b"), (0, 1, 5), (("b", "r", "a"),))
    edges = {types.relations[0]: (np.arange(1, 5), np.zeros(4, np.int64))}
    relations = RelationRows.from_graph(graph_of_relations(edges, types, keep_edge_id=True))
    pairs, sizes, draws = Counter[tuple[int, ...]](), Counter[int](), 480
    for key in branches(3, np.arange(3 * draws)).reshape(draws, 3):
        s = sample_by_budget(relations, np.array([0]), np.array([[0, 4]]), key)
        pairs[tuple(s.nodes[1:].tolist())] += 1
        sizes[len(s.positions)] += 1
    assert set(pairs) == set(combinations(range(1, 5), 2))
    assert chisquare(list(pairs.values())).pvalue > 1e-3
    # The edges are drawn apart: both, one or none of the two is among them, with 1/6, 4/6, 1/6.
    assert chisquare([sizes[n] for n in range(3)], np.array([1, 4, 1]) * draws / 6).pvalue > 1e-3


@settings(max_examples=25)
@given(typed_graphs())
def test_edges_are_all_those_among_the_nodes(graph: Graph) -> None:
    types, relations = graph.types, RelationRows.from_graph(graph)
    assert not types.is_single
    seeds = np.array([0, graph.num_nodes - 1, 0])
    samples = np.full((2, len(types.node_types)), 2)
    s = sample_by_budget(relations, seeds, samples, branches(1, np.arange(5)))
    assert s.nodes[:3].tolist() == seeds.tolist()
    rest = s.nodes[3:]
    assert len(set(rest.tolist())) == len(rest) and not np.isin(rest, seeds).any()
    assert (np.bincount(types.types_of(rest), minlength=len(types.node_types)) <= 4).all()
    first: dict[int, int] = {}
    for i, v in enumerate(s.nodes.tolist()):
        first.setdefault(v, i)
    wanted = Counter(
        (first[u], i, e)
        for i, v in enumerate(s.nodes.tolist())
        for e in range(*graph.indptr[v : v + 2].tolist())
        for u in [int(graph.indices[e])]
        if u in first
    )
    assert Counter(zip(s.row.tolist(), s.col.tolist(), s.positions.tolist())) == wanted


def test_earlier_occurrences() -> None:
    assert earlier_occurrences(np.array([5, 3, 5, 5, 3])).tolist() == [0, 0, 1, 2, 1]
    assert earlier_occurrences(np.empty(0, np.int64)).tolist() == []
