"""Tables that are made of others: nodes of the ends of edges, and a table for each relation that a column names."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from ....storage.errors import InputError, NoLabelsError
from ....storage.plural import counted, were
from ..cleaning.arrow import pc, reading
from ..cleaning.node_ids import as_one_kind
from ..cleaning.options import ReadOptions
from ..schema.roles import schema_of
from ..schema.source import GraphTables, SourceTable
from .tables import ReadTable, joined, plain

ONE_TYPE = "node"
"""Node type of a graph whose relations are those of a column."""


def with_nodes_of_edges(
    source: GraphTables, edges: Sequence[ReadTable], options: ReadOptions
) -> tuple[GraphTables, list[ReadTable]]:
    """The source with a table for nodes of each type that has none, the ends of its edges in the order of their ids;
    and these tables."""
    if not source.adds_nodes and options.task != "link" and options.labels_of != "edges":
        raise NoLabelsError(
            f"{source.path}: there is no table of nodes, so there are no labels; give nodes.csv (columns id, label, "
            "features), or set task=link to predict edges, whose ends are the nodes"
        )
    ends_only = replace(options, one_hot=None)  # which may be of nodes
    columns = schema_of(replace(source, tables=source.edges), [read.schema for read in edges], ends_only).edges
    if not source.adds_nodes and source.is_typed:
        raise InputError(f"{source.path}: relations have no tables of nodes; give nodes-TYPE for each type")
    types = dict.fromkeys(t for read in edges for t in read.source.ends)
    added, notes = list[ReadTable](), list[str]()
    for t in [t for t in types if t not in {table.type for table in source.nodes}]:
        table = SourceTable("nodes", type=t, roles={"id": "id"})
        at = [(read, own.table, own.ends[i]) for read, own in zip(edges, columns) for i in read.source.sides_at(table)]
        ends = {f"{title}.{name}": read.rows[name] for read, title, name in at}
        from_csv = {f"{title}.{name}" for read, title, name in at if read.from_csv}
        chunks = [c for column in as_one_kind(ends, from_csv).values() for c in column.chunks]
        ids = pa.chunked_array(chunks).unique() if chunks else pa.array([], pa.int64())
        rows = pa.table({"id": ids.take(pc.sort_indices(ids))})
        added.append(ReadTable(replace(table, rows=rows), rows, (rows.schema,)))
        what = counted(len(ids), "node") + ("" if t is None else f" of type '{t}'")
        notes.append(f"{what} {were(len(ids))} taken from the ends of the edges: there is no table of nodes.")
    tables = (*(read.source for read in added), *source.tables)
    return replace(source, tables=tables, notes=(*source.notes, *notes)), added


def by_relation(
    source: GraphTables, nodes: list[ReadTable], edges: list[ReadTable], options: ReadOptions
) -> tuple[GraphTables, list[ReadTable], list[ReadTable]]:
    """The source with a table of edges for each value of `relation_column`."""
    ((read),) = edges
    column = str(options.relation_column)
    if column not in read.rows.column_names:
        shown = ", ".join(read.rows.column_names)
        raise InputError(f"{source.path}: edges have no column '{column}'; set read.relation_column to one of {shown}")
    values = read.rows[column].cast(pa.large_string())
    if values.null_count:
        raise InputError(
            f"{source.path}: column edges.{column} holds {values.null_count} nulls; expected a relation in each row"
        )
    found, names = list[ReadTable](), sorted(values.unique().to_pylist())
    for value in names:
        rows = read.rows.filter(pc.equal(values, value)).drop_columns([column])
        found.append(ReadTable(replace(read.source, type=(ONE_TYPE, value, ONE_TYPE)), rows, read.heads))
    of_nodes = [replace(r, source=replace(r.source, type=ONE_TYPE)) for r in nodes]
    tables = (*(r.source for r in of_nodes), *(r.source for r in found))
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
