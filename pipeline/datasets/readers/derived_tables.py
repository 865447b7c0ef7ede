"""Tables that are made of others: nodes of the ends of edges, and a table for each relation that a column names."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from ....storage.errors import InputError, NoLabelsError
from ....storage.plural import counted, were
from ..cleaning.node_ids import as_one_kind
from ..cleaning.options import ReadOptions
from ..schema.roles import schema_of
from ..schema.source import GraphTables, SourceTable
from .tables import ReadTable, joined, plain, reading

pc: Any = pyarrow.compute
"""Functions that pyarrow generates when it is imported, which type checkers cannot see."""
ONE_TYPE = "node"
"""Node type of a graph whose relations are those of a column."""


def with_nodes_of_edges(
    source: GraphTables, edges: Sequence[ReadTable], options: ReadOptions
) -> tuple[GraphTables, list[ReadTable]]:
    """The source with a table of nodes that are the ends of its edges, in the order of their ids."""
    if options.task != "link" and options.labels_of != "edges":
        raise NoLabelsError(
            f"{source.path}: there is no table of nodes, so there are no labels; give nodes.csv (columns id, label, "
            "features), or set task=link to predict edges, whose ends are the nodes"
        )
    bare = replace(source, tables=source.edges)
    columns = schema_of(bare, [read.rows.schema for read in edges], options).edges
    if any(t.type is not None for t in source.edges):
        raise InputError(f"{source.path}: relations have no tables of nodes; give nodes-TYPE for each type")
    ends = {f"edges.{name}": read.rows[name] for read, own in zip(edges, columns) for name in own.ends}
    from_csv = {f"edges.{name}" for read, own in zip(edges, columns) for name in own.ends if read.from_csv}
    chunks = [c for column in as_one_kind(ends, from_csv).values() for c in column.chunks]
    ids = pa.chunked_array(chunks).unique() if chunks else pa.array([], pa.int64())
    rows = pa.table({"id": ids.take(pc.sort_indices(ids))})
    table = SourceTable("nodes", rows=rows, roles={"id": "id"})
    note = f"{counted(len(ids), 'node')} {were(len(ids))} taken from the ends of the edges: there is no table of nodes."
    return replace(source, tables=(table, *source.tables), notes=(*source.notes, note)), [
        ReadTable(table, rows, (rows.schema,))
    ]


def by_relation(
    source: GraphTables, nodes: list[ReadTable], edges: list[ReadTable], options: ReadOptions
) -> tuple[GraphTables, list[ReadTable], list[ReadTable]]:
    """The source with a table of edges for each value of `relation_column`."""
    ((read),) = edges
    column = str(options.relation_column)
    if column not in read.rows.column_names:
        shown = ", ".join(read.rows.column_names)
        raise InputError(f"{source.path}: edges has no column '{column}' (read.relation_column); it holds {shown}")
    values = read.rows[column].cast(pa.large_string())
    if values.null_count:
        raise InputError(
            f"{source.path}: column edges.{column} holds {values.null_count} nulls; expected a relation in each row"
        )
    found, names = list[ReadTable](), sorted(values.unique().to_pylist())
    for value in names:
        rows = read.rows.filter(pc.equal(values, value)).drop_columns([column])
        found.append(ReadTable(replace(read.table, type=(ONE_TYPE, value, ONE_TYPE)), rows, read.heads))
    of_nodes = [replace(r, table=replace(r.table, type=ONE_TYPE)) for r in nodes]
    tables = (*(r.table for r in of_nodes), *(r.table for r in found))
    note = f"Relations are the values of {column} (relation_column={column}): {', '.join(names)}."
    return replace(source, tables=tables, notes=(*source.notes, note)), of_nodes, found


def schema_only(table: SourceTable) -> ReadTable:
    """A table of Parquet files whose rows are not read."""
    heads = []
    for path in table.files:
        with reading(path):
            heads.append(pq.read_schema(path))
    empty = plain(joined([head.empty_table() for head in heads], table.files, from_csv=False))
    return ReadTable(table, empty, tuple(heads))
