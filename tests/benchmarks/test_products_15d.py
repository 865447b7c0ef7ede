"""The 1.5D products that benchmarks compare with: P equals SciPy's Q A, and what moved is what should have."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from millrace.benchmarks.products_15d import VARIANTS, Lines, aware, formulas, oblivious
from millrace.stages.comm.gloo import Gloo
from millrace.stages.comm.solo import Solo
from millrace.stages.placement.row_blocks import Grid
from millrace.tests.contracts.process_ranks import RankFailedError, run_ranks

GANGS = {1: (1,), 2: (1, 2), 4: (1, 2, 4), 6: (2, 3), 8: (2,)}
"""By p: every c."""
CASES = ("seeds", "repeats", "scaled", "weights", "layerwise", "floats", "nothing")
V = 61


def cut(rng: np.random.Generator, total: int, blocks: int) -> np.ndarray:
    """Offsets of blocks of any sizes, drawn with repeats, so that some are empty."""
    return np.concatenate([[0], np.sort(rng.integers(0, total + 1, blocks - 1)), [total]])


def matrix(rng: np.random.Generator, kind: str) -> sp.csr_array:
    """A [V, V], entries in a seventh of it, some rows empty."""
    there = rng.random((V, V)) < 1 / 7
    there[rng.random(V) < 0.2] = False
    value = rng.integers(1, 99, (V, V))
    if kind == "floats":
        # Multiples of 1/64 add up exactly.
        return sp.csr_array(np.where(there, value / 64, 0.0))
    return sp.csr_array(np.where(there, value if kind == "weights" else 1, 0))


def selector(rng: np.random.Generator, kind: str) -> sp.csr_array:
    """Q [n, V]: one entry a row in "seeds", "repeats" and "scaled"; more in others, with a column more than once in the
    last row."""
    if kind == "nothing":
        return sp.csr_array((9, V), dtype=np.int64)
    if kind in ("seeds", "repeats", "scaled"):
        nodes = rng.integers(0, 12, 37) if kind == "repeats" else rng.permutation(V)[:37]
        data = rng.integers(2, 9, 37) if kind == "scaled" else np.ones(37, np.int64)
        return sp.csr_array((data, nodes, np.arange(38)), shape=(37, V))
    lengths = np.append(rng.integers(0, 9, 12), 5)
    columns = np.concatenate([rng.permutation(V)[:n] for n in lengths[:-1]] + [np.array([3, 60, 3, 0, 3])])
    data = np.ones(len(columns), np.int64) if kind == "layerwise" else rng.integers(1, 9, len(columns))
    return sp.csr_array(
        (data / 2 if kind == "floats" else data, columns, np.concatenate([[0], np.cumsum(lengths)])), shape=(13, V)
    )


def case(kind: str, p: int, c: int) -> tuple[sp.csr_array, sp.csr_array, np.ndarray, np.ndarray, bool]:
    """A, Q, where block rows of either begin, and whether values of A travel. The same on every rank."""
    rng = np.random.default_rng([CASES.index(kind), p, c])
    A, Q, blocks = matrix(rng, kind), selector(rng, kind), p // c
    offsets, cuts = cut(rng, V, blocks), cut(rng, Q.shape[0], blocks)
    if kind == "seeds":
        offsets = np.arange(blocks + 1) * V // blocks
    elif kind == "repeats" and blocks > 1:
        # A block of A without rows; another, which is no process row's own, of Q.
        offsets[1], cuts[-2] = 0, Q.shape[0]
    return A, Q, offsets, cuts, kind in ("weights", "floats")


def multiply(group: Gloo, copies: tuple[int, ...]) -> list[dict[str, Any]]:
    """One rank's P_i of every case, c and variant, beside what it did and sent."""
    found = []
    for c in copies:
        grid = Grid(group.size, c)
        row = grid.block(group.rank)
        lines = Lines.meet(group, grid)
        for kind in CASES:
            A, Q, offsets, cuts, values = case(kind, group.size, c)
            A_i, Q_i = (M[at[row] : at[row + 1]] for M, at in ((A, offsets), (Q, cuts)))
            for variant, product in zip(VARIANTS, (aware, oblivious)):
                before = group._ledger.as_record()["network"]
                P, traffic = product(grid, lines, A_i, Q_i, offsets, values=values)
                sent = {kind: n - before[kind] for kind, n in group._ledger.as_record()["network"].items()}
                found.append({"c": c, "kind": kind, "variant": variant, "P": P, "sent": sent, **asdict(traffic)})
    return found


@pytest.fixture(scope="module", params=list(GANGS))
def run(request: pytest.FixtureRequest) -> tuple[int, list[list[dict[str, Any]]]]:
    return request.param, run_ranks(multiply, request.param, GANGS[request.param])


def by_product(p: int, ranks: list[list[dict[str, Any]]]):
    """(kind, c, variant) and the records of all ranks."""
    for records in zip(*ranks):
        assert len({(r["kind"], r["c"], r["variant"]) for r in records}) == 1
        yield records[0]["kind"], records[0]["c"], records[0]["variant"], records
    assert len(ranks) == p and len(ranks[0]) == len(CASES) * len(GANGS[p]) * len(VARIANTS)


def test_the_cases_have_what_they_are_for():
    shapes = {(kind, p, c): case(kind, p, c) for kind in CASES for p in GANGS for c in GANGS[p] if p > c}
    assert any(V % (p // c) for _, p, c in shapes)
    empty = {key: ((np.diff(at) == 0).any(), (np.diff(cuts) == 0).any()) for key, (_, _, at, cuts, _) in shapes.items()}
    assert all(empty["repeats", p, c] == (True, True) for kind, p, c in shapes if kind == "repeats")
    assert {kind: len(np.unique(shapes[kind, 4, 1][1].indices)) < shapes[kind, 4, 1][1].nnz for kind in CASES} == {
        "seeds": False, "repeats": True, "scaled": False, "weights": True, "layerwise": True, "floats": True,
        "nothing": False
    }  # fmt: skip


def test_products_are_those_of_scipy(run):
    p, ranks = run
    for kind, c, variant, records in by_product(p, ranks):
        A, Q, _, cuts, _ = case(kind, p, c)
        want = sp.csr_array(Q @ A)
        want.sort_indices()
        for rank, r in enumerate(records):
            what, P, own = (kind, p, c, variant, rank), r["P"], want[cuts[rank // c] : cuts[rank // c + 1]]
            assert P.dtype == want.dtype and P.shape == own.shape, what
            assert np.array_equal(P.indptr, own.indptr) and np.array_equal(P.indices, own.indices), what
            assert np.array_equal(P.data, own.data), what


def test_stages_are_shared_evenly_among_process_columns(run):
    p, ranks = run
    for _, c, _, records in by_product(p, ranks):
        assert max(r["stages"] for r in records) == -(-p // c // c)
        assert sum(r["stages"] for r in records[:c]) == p // c
        assert all(r["stages"] == records[rank % c]["stages"] for rank, r in enumerate(records))


def test_words_are_the_rows_that_were_needed_each_once(run):
    """Counted again from the whole matrices, pair by pair of process rows."""
    p, ranks = run
    for kind, c, variant, records in by_product(p, ranks):
        A, Q, offsets, cuts, _ = case(kind, p, c)
        blocks, degree = p // c, np.diff(A.indptr)
        words, rows = np.zeros((blocks, blocks), np.int64), np.zeros((blocks, blocks), np.int64)
        for i in range(blocks):
            chosen = np.unique(Q[cuts[i] : cuts[i + 1]].indices)
            for s in range(blocks):
                of = (
                    chosen[(chosen >= offsets[s]) & (chosen < offsets[s + 1])]
                    if variant == "aware"
                    else np.arange(*offsets[s : s + 2])
                )
                words[i, s], rows[i, s] = degree[of].sum(), len(of)
        for rank, r in enumerate(records):
            i, stages = rank // c, Grid(p, c).stages(rank % c)
            remote = [s for s in stages if s != i]
            assert r["needed_words"] == sum(words[i, s] for s in stages)
            assert r["received_words"] == sum(words[i, s] for s in remote)
            asks = variant == "aware"
            assert r["sent_words"] == (words[:, i].sum() - words[i, i] if asks and i in stages else 0)
            assert r["asked_rows"] == (sum(rows[i, s] for s in remote) if asks else 0)


def test_the_reduction_moves_every_partial_product_to_the_other_ranks_of_its_process_row(run):
    p, ranks = run
    for kind, c, _, records in by_product(p, ranks):
        A, Q, offsets, cuts, _ = case(kind, p, c)
        for rank, r in enumerate(records):
            i, others = rank // c, [Grid(p, c).stages(j) for j in range(c) if j != rank % c]
            spans = [(offsets[s.start], offsets[s.stop]) for s in others]
            Q_i = Q[cuts[i] : cuts[i + 1]]
            assert r["reduced_words"] == sum((Q_i[:, low:high] @ A[low:high]).nnz for low, high in spans)


def test_bytes_of_the_ledger_are_words_ids_and_lengths(run):
    """All that ranks send is received: sums over ranks of what was counted apart."""
    p, ranks = run
    for kind, c, variant, records in by_product(p, ranks):
        _, Q, offsets, cuts, values = case(kind, p, c)
        word = 4 + (8 if values else 0)
        graph = word * sum(r["received_words"] for r in records)
        control = 0
        for rank, r in enumerate(records):
            i = rank // c
            Q_i = Q[cuts[i] : cuts[i + 1]]
            ones = not values and (np.diff(Q_i.indptr) <= 1).all() and (Q_i.data == 1).all()
            graph += (4 if ones else 12) * r["reduced_words"]
            control += 4 * Q_i.shape[0] * (c - 1)
            remote = [s for s in Grid(p, c).stages(rank % c) if s != i]
            # Ids and lengths of rows, and how many come to each rank of the column; or the lengths of a whole block.
            graph += 8 * r["asked_rows"]
            lengths = 4 * sum(offsets[s + 1] - offsets[s] for s in remote)
            control += 8 * (p // c - 1) if variant == "aware" else lengths
        assert sum(r["sent"]["graph"] for r in records) == graph
        assert sum(r["sent"]["control"] for r in records) == control
        assert sum(n for r in records for n in r["sent"].values()) == graph + control


def test_messages_are_one_for_a_question_and_two_for_an_answer(run):
    """Fewer where there is nothing to say; three for an answer with the values of a whole block."""
    p, ranks = run
    for kind, c, variant, records in by_product(p, ranks):
        A, Q, offsets, cuts, values = case(kind, p, c)
        degree, blocks = np.diff(A.indptr), p // c
        answers, requests = np.zeros(p, np.int64), np.zeros(p, np.int64)
        for rank, s in [(r, s) for r in range(p) for s in Grid(p, c).stages(r % c) if s != r // c]:
            chosen = np.arange(*offsets[s : s + 2])
            if variant == "aware":
                chosen = np.intersect1d(chosen, Q[cuts[rank // c] : cuts[rank // c + 1]].indices)
                requests[s * c + rank % c] += len(chosen) > 0
            answers[rank] += (len(chosen) > 0) + (2 if values and variant == "oblivious" else 1) * (
                degree[chosen].sum() > 0
            )
        assert [r["answers"] for r in records] == answers.tolist()
        assert [r["requests"] for r in records] == requests.tolist()
        assert variant == "oblivious" or max(answers) <= formulas(p, c, 1, 1.0, 1)["answers"]
        assert max(requests) <= blocks - 1


def test_one_rank_needs_no_others():
    A, Q, offsets, _, values = case("weights", 1, 1)
    for product in (aware, oblivious):
        P, traffic = product(Grid(1, 1), Lines(Solo(), Solo()), A, Q, offsets, values=values)
        assert np.array_equal(P.toarray(), Q.toarray() @ A.toarray())
        assert (traffic.received_words, traffic.reduced_words, traffic.answers) == (0, 0, 0)


def hide_values(group: Gloo) -> None:
    A, Q, offsets, _, _ = case("weights", 1, 1)
    aware(Grid(1, 1), Lines(group, group), A, Q, offsets, values=False)


def test_values_that_would_not_travel_are_refused():
    with pytest.raises(RankFailedError, match="values of A other than 1"):
        run_ranks(hide_values, 1)


def test_formulas_are_those_of_a_worked_example():
    """20,000 nodes, degree 20, 4096 selected rows, 16 ranks: section 1.10's predictions in words, worked by hand."""
    told = [formulas(16, c, 4096, 20.0, 400_000) for c in (1, 2, 4)]
    assert [f["received_words"] for f in told] == [f["needed_words"] for f in told] == [5120] * 3
    assert [f["sent_words"] for f in told] == [5120, 10240, 20480]
    assert [f["reduced_words"] for f in told] == [0, 5120, 15360]
    assert [f["oblivious_words"] for f in told] == [400_000, 200_000, 100_000]
    assert [(f["stages"], f["answers"]) for f in told] == [(16, 32), (4, 8), (1, 2)]
    assert formulas(6, 2, 60, 1.0, 1)["answers"] == 4 and formulas(6, 2, 60, 1.0, 1)["asked_rows"] == 10
