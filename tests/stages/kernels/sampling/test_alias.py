"""Alias tables: exact masses, the same tables and draws by every kernel, and the law of successive sampling wherever a
row changes over to a race."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling import alias
from millrace.stages.kernels.sampling.cpu import alias as cpu_alias
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.exponential_race import log2_table
from millrace.stages.random import node_words
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.oracles.sampling import alias as reference_alias
from millrace.tests.oracles.sampling import backend as reference

FULL = 1 << 32
weights = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, 2.0, 1e-45, 3.4e38, 0.3]), st.floats(0, 2.0**100, width=32)), max_size=40
)


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


def graph_of(rows: list[list[float]]) -> Graph:
    """Node v has a row of in-edges from nodes of their own, of these weights."""
    degree = [len(r) for r in rows]
    edges = sum(degree)
    dst = np.repeat(np.arange(len(rows)), degree)
    weight = np.array([w for r in rows for w in r], np.float32)
    return from_edges(len(rows) + np.arange(edges), dst, len(rows) + edges, edge_weight=weight)


def masses_in(slots: np.ndarray) -> list[int]:
    """Mass of each edge of a row in all slots together."""
    found = [0] * len(slots)
    for i, slot in enumerate(slots.tolist()):
        found[i] += slot & FULL - 1
        found[slot >> 32] += FULL - (slot & FULL - 1)
    return found


@settings(max_examples=100, deadline=None)
@given(weights)
def test_slots_hold_masses_in_proportion_to_weights(row: list[float]) -> None:
    graph = graph_of([row])
    assert graph.edge_weight is not None
    table = reference_alias.alias_table(graph)
    w = graph.edge_weight.astype(np.float64)
    assert table.positive[0] == np.count_nonzero(w)
    if not w.any():
        assert not table.slots.any()
        return
    mass = masses_in(table.slots)
    assert mass == reference_alias.masses(graph.edge_weight)
    assert sum(mass) == len(row) * FULL
    assert all((m > 0) == (x > 0) for m, x in zip(mass, w, strict=True))
    exact = w / w.sum() * len(row) * FULL
    # Half a unit each, and the largest takes what that leaves.
    assert np.abs(np.array(mass, np.float64) - exact).max() <= len(row) + 1e-9 * exact.max()
    # A draw never names an edge of weight 0: nothing of a slot is its own, and none is its alias.
    assert all((slot & FULL - 1 == 0) == (x == 0) for slot, x in zip(table.slots.tolist(), w, strict=True))
    assert all(w[slot >> 32] > 0 for slot in table.slots.tolist())


@settings(max_examples=25, deadline=None)
@given(st.lists(weights, max_size=6), st.integers(1, 3))
def test_compiled_tables_are_those_of_the_reference(rows: list[list[float]], count: int) -> None:
    threads.set_num_threads(count)
    graph = graph_of(rows)
    made, wanted = cpu_alias.alias_table(graph), reference_alias.alias_table(graph)
    assert made.slots.dtype == np.uint64
    assert made.positive.dtype == np.int32
    assert np.array_equal(made.slots, wanted.slots)
    assert np.array_equal(made.positive, wanted.positive)
    assert made.nbytes == 8 * graph.num_edges + 4 * graph.num_nodes


def test_a_row_that_slots_cannot_number_is_refused():
    rows = Graph(np.array([0, 1 << 31]), np.empty(0, np.int32), np.empty(0, np.float32))
    with pytest.raises(InputError, match="a node has 2147483648 in-edges"):
        cpu_alias.alias_table(rows)


HEAVY = [1e6, 1.0, 2.5, 0.0, 4.0, 0.5, 3e4]


def skewed() -> Graph:
    """Rows whose weights are so unequal that most race, some at once and some after a few edges; others without a
    positive weight, and with fewer than are drawn."""
    rng = np.random.default_rng(0)
    rows = [np.exp(rng.normal(0, spread, int(n))).tolist() for spread in (0, 1, 4, 9) for n in (2, 9, 30, 200)]
    return graph_of([*rows, HEAVY, [0.0] * 12, [0.0] * 9 + [5.0] + [0.0] * 20, [1.0] + [1e-30] * 50])


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 3, 8, 70])
def test_kernels_agree_where_rows_race(fanout: int, replace: bool) -> None:
    from millrace.stages.kernels.sampling.cuda import backend as cuda

    graph = skewed()
    request = BulkRequest(0, 0, 0, 0, (np.arange(21), np.arange(0, 20, 3)))
    for expand in ("new", "all"):
        sampler = NeighborSampler((fanout, 2), replace, weighted=True, expand=expand, edge_ids=True)
        wanted, *others = (
            [minibatch_digest(m) for m in sampler.sample(graph, request, kernel).check().minibatches]
            for kernel in (reference, cpu, cuda)
        )
        assert all(o == wanted for o in others)


def test_no_draws_write_nothing():
    graph, log = skewed(), log2_table()
    table, start = cpu_alias.alias_table(graph), int(graph.indptr[2])
    found, best = np.full(64, -7, np.int32), np.full(64, np.inf)
    # Arrays without elements in the middle of others; a slice without elements begins where its array does.
    to, times = (np.ndarray(0, a.dtype, a, a.nbytes // 2) for a in (found, best))
    row = (table.slots, table.weight, start, int(graph.in_degree[2]), np.uint64(7))
    cpu_alias._successive(*row, to, 0, alias.tries(0), log, times)
    assert (found == -7).all()
    assert (best == np.inf).all()


def raced(slots: np.ndarray, key: int, nodes: np.ndarray, s: int) -> int:
    """Rows that do not find s edges by draws."""
    count = 0
    for word in node_words(key, nodes):
        drawn = [reference_alias.pick(slots, np.array([word]), i) for i in range(alias.tries(s))]
        count += len(set(drawn)) < s
    return count


def successive_law(weight: np.ndarray, s: int) -> dict[tuple[int, ...], float]:
    """The probability of each sequence of s edges, by enumeration."""
    law = {}
    for order in permutations(np.flatnonzero(weight).tolist(), s):
        left, chance = float(weight.sum()), 1.0
        for i in order:
            chance *= weight[i] / left
            left -= weight[i]
        law[order] = chance
    return law


def deviates(seen: dict[tuple[int, ...], int], law: dict[tuple[int, ...], float]) -> float:
    """p-value of counts of sequences; those too rare to count on are taken together."""
    assert set(seen) <= set(law)
    copies = sum(seen.values())
    often = [order for order in law if law[order] * copies >= 5]
    counts = np.array([seen.get(order, 0) for order in often])
    expected = np.array([law[order] for order in often]) * copies
    rest = copies - expected.sum()
    if rest >= 5:
        counts, expected = np.append(counts, copies - counts.sum()), np.append(expected, rest)
    if len(expected) == 1:
        return 1.0
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(expected) - 1))


def counted(rows: np.ndarray) -> dict[tuple[int, ...], int]:
    # Whole rows as numbers: sorting rows takes ten times as long.
    base = rows.max() + 1
    _, first, counts = np.unique(rows @ base ** np.arange(rows.shape[1]), return_index=True, return_counts=True)
    return {tuple(row): int(n) for row, n in zip(rows[first].tolist(), counts, strict=True)}


@pytest.mark.parametrize("s", [1, 2, 3, 4])
@pytest.mark.parametrize("weight", [HEAVY, [4.0, 2.5, 1.5, 1.0, 0.6, 0.0, 0.4], [1.0] * 5, [1e9, 1.0, 1.0, 1.0, 1e-9]])
def test_compiled_draws_follow_the_enumerated_law(weight: list[float], s: int) -> None:
    """Sequences of draws, also where nearly all rows race (the first weights and s of 3 or 4) and where none does."""
    copies, n = 20000, len(weight)
    graph = graph_of([weight] * copies)
    request = BulkRequest(3, 0, 0, 0, (np.arange(copies),))
    block = (
        NeighborSampler((s,), weighted=True, edge_ids=True).sample(graph, request, cpu).check().minibatches[0].blocks[0]
    )
    assert block.edge_id is not None
    law = successive_law(np.array(weight, np.float32).astype(np.float64), s)
    if s >= np.count_nonzero(weight):
        assert (block.edge_id.reshape(copies, -1) % n == np.flatnonzero(weight)).all()
    else:
        assert deviates(counted(block.edge_id.reshape(copies, s) % n), law) > 1e-4


def test_the_heavy_row_races_in_some_rows():
    slots = reference_alias.alias_table(graph_of([HEAVY])).slots
    assert raced(slots, 1, np.arange(50), 3) > 40
    assert raced(slots, 1, np.arange(50), 1) == 0


@pytest.mark.parametrize("tries", [0, 2, 4, 9])
def test_the_law_does_not_depend_on_when_a_row_races(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_alias, "tries", lambda s: tries)
    weight = np.array([4.0, 2.5, 1.5, 1.0, 0.0, 0.4])
    table = reference_alias.alias_table(graph_of([weight.tolist()]))
    words = node_words(7, np.arange(3000))
    rows = np.array(
        [reference_alias.successive(table.slots, table.weight, words[i : i + 1], 3) for i in range(len(words))]
    )
    assert deviates(counted(rows), successive_law(weight, 3)) > 1e-4
