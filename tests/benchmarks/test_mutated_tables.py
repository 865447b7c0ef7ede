"""A seeded sample of the tables as people have them, and what the comparison itself finds."""

import pytest

from millrace.benchmarks.mutated_tables import Graph, checked, one_table

TABLES = (1_073, 10_194, *range(10_000, 10_058))
"""Numbers, not seconds, so that every machine tries the same. The first two have two faults each, which both ways of
reading name in one order."""


@pytest.mark.slow
def test_tables_are_read_rightly_or_refused():
    counts, lines = checked(TABLES, float("inf"))
    assert not lines, "\n".join(lines)
    assert counts["right"] > 0
    assert counts["refused"] > 0


def test_a_table_that_is_read_wrongly_is_seen(tmp_path):
    want = Graph([("", "a", "", "", "b")], [("a", "red")], [("a", "train")])
    assert not want.differs(want)
    assert want.differs(Graph(want.edges, [("a", "blue")], want.split)).startswith("labels")
    assert one_table(32, tmp_path) == (["npz"], "")
