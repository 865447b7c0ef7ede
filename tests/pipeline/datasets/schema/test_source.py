"""Tables of a source before their columns have roles."""

import pyarrow as pa

from millrace.pipeline.datasets.schema.source import GraphTables, SourceTable


def test_tables_are_told_apart_and_named():
    rows = pa.table({"id": [0]})
    nodes, typed = SourceTable("nodes", rows=rows), SourceTable("nodes", type="user", rows=rows)
    edges = SourceTable("edges", type=("user", "buys", "item"))
    both = GraphTables("g", "g", (nodes, edges, typed))
    assert both.nodes == (nodes, typed) and both.edges == (edges,)
    assert [t.title for t in both.tables] == ["nodes", "edges-user-buys-item", "nodes-user"]
