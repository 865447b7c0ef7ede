"""Rows fetched from their owners: the rows themselves, in stages, and what is counted."""

from typing import Any

import numpy as np
import pytest

from millrace.stages.comm.row_fetch import RowFetch, Rows, Traffic
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads


def matrix(rng: np.random.Generator, n: int, dtypes: tuple[Any, ...]) -> Rows:
    lengths = rng.integers(0, 5, n) * (rng.random(n) < 0.7)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = tuple((rng.random(indptr[-1]) * 1000).astype(t) for t in dtypes)
    return Rows(indptr, 7 + 3 * indptr[:-1], values)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("dtypes", [(np.int32,), (np.int64,), (np.int32, np.float32), (np.int32, np.float64)], ids=str)
def test_ranks_get_the_rows_that_they_want(dtypes: tuple[Any, ...], starts: bool) -> None:
    sizes = (30, 0, 11, 40)
    blocks = [matrix(np.random.default_rng([b, len(dtypes)]), n, dtypes) for b, n in enumerate(sizes)]

    def on_rank(group: ThreadGroup) -> None:
        rng = np.random.default_rng(group.rank)
        for _ in range(5):
            wanted = {
                s: np.sort(rng.permutation(n)[: rng.integers(0, n + 1)])
                for s, n in enumerate(sizes)
                if s != group.rank and rng.random() < 0.7
            }
            traffic = Traffic()
            fetch = RowFetch(group, blocks[group.rank], wanted, np.int32, starts=starts, traffic=traffic)
            found = dict(fetch)
            assert list(found) == [s for s in sorted(wanted) if len(wanted[s])]
            for s, rows in found.items():
                want = blocks[s].take(wanted[s])
                assert np.array_equal(rows.indptr, want.indptr)
                assert rows.start.tolist() == (want.start.tolist() if starts else [])
                for got, value, dtype in zip(rows.values, want.values, dtypes):
                    assert got.dtype == dtype and np.array_equal(got, value)
            assert traffic.asked_rows == sum(map(len, wanted.values()))
            assert traffic.received_words == sum(int(rows.indptr[-1]) for rows in found.values())
            told = group.all((traffic.sent_words, traffic.received_words, traffic.requests))
            assert sum(t[0] for t in told) == sum(t[1] for t in told)
            assert traffic.answers == len(found) + sum(1 for rows in found.values() if rows.indptr[-1])
            assert 0 <= traffic.requests <= 3

    run_threads(on_rank, 4)
