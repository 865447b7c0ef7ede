"""Tables that are made of others: nodes of the ends of edges, and a table for each relation that a column names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ....storage.errors import InputError, NoLabelsError
from ....storage.plural import counted, were
from ....storage.typed.graph_types import MOST_RELATIONS
from ..cleaning.arrow import pc, reading
from ..cleaning.node_ids import as_ids, given_ids
from ..cleaning.options import ReadOptions
from ..cleaning.typed import check_relations
from ..schema.roles import schema_of
from ..schema.source import GraphTables, SourceTable
from .described import Ends, OpenTable, are_text, check_edge_rows, ends_at
from .tables import ReadTable, in_folder, joined, plain

ONE_TYPE = "node"
"""Node type of a graph whose relations are those of a column."""


def with_nodes_of_edges(
    source: GraphTables, edges: Sequence[OpenTable], options: ReadOptions, ids_of: Callable[[Ends], pa.Array]
) -> GraphTables:
    """The source with a table for nodes of each type that has none, first: the ends of its edges in the order of their
    ids, which are `ids_of` these columns."""
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
    added, notes = list[SourceTable](), list[str]()
    for t in [t for t in types if t not in {table.type for table in source.nodes}]:
        table = SourceTable("nodes", type=t, roles={"id": "id"})
        ids = ids_of(ends_at(table, list(zip(edges, columns))))
        added.append(replace(table, rows=pa.table({"id": ids})))
        what = counted(len(ids), "node") + ("" if t is None else f" of type '{t}'")
        notes.append(f"{what} {were(len(ids))} taken from the ends of the edges: there is no table of nodes.")
    return replace(source, tables=(*added, *source.tables), notes=(*source.notes, *notes))


def ids_in_memory(ends: Ends) -> pa.Array:
    """The ids in columns of tables whose rows are in memory, in ascending order."""
    text = are_text(ends)
    return new_ids([as_ids(given_ids(next(t.pieces((c,)))[c]).drop_null(), text, what) for what, t, c in ends])


def new_ids(used: Sequence[pa.ChunkedArray], *known: pa.ChunkedArray) -> pa.Array:
    """The distinct values of columns of ids of one kind that are not `known`, in ascending order."""
    kind = (*known, *used, pa.array([], pa.int64()))[0].type
    every: Any = pa.chunked_array([c for column in used for c in column.cast(kind).chunks], kind).unique()
    found = every.filter(pc.invert(pc.is_in(every, value_set=known[0]))) if known else every
    return found.take(pc.sort_indices(found))


def added_note(count: int) -> str:
    """Note on nodes that only edges name."""
    added = f"{counted(count, 'node')} that only edges name {were(count)} added"
    return f"{added}, without label or features (dangling_edges=add)."


def rows_by_relation(rows: pa.Table, column: str) -> dict[str, pa.Table]:
    """The rows of a piece of a table of edges by their values in a column, without that column. Rows with a null are
    left out."""
    if pa.types.is_nested(rows[column].type):
        raise InputError(f"{column} is {rows[column].type}; set read.relation_column to text or numbers")
    values = rows[column].cast(pa.large_string())
    names = sorted(values.unique().drop_null().to_pylist())
    if len(names) > MOST_RELATIONS:
        raise InputError(f"{column} has more than {MOST_RELATIONS:,} values; set read.relation_column to another")
    return {name: rows.filter(pc.equal(values, name)).drop_columns([column]) for name in names}


def by_relation(source: GraphTables, column: str, relations: Sequence[str]) -> GraphTables:
    """The source with a table of edges for each of the `relations`, values of `relation_column`."""
    nodes = [replace(table, type=ONE_TYPE) for table in source.nodes]
    edges = [replace(source.edges[0], type=(ONE_TYPE, name, ONE_TYPE)) for name in relations]
    check_edge_rows(source.path, [(source.edges[0], len(edges))])
    check_relations([table.type for table in edges], {ONE_TYPE: 0})
    note = f"Relations are the values of {column} (relation_column={column}): {', '.join(relations)}."
    return replace(source, tables=(*nodes, *edges), notes=(*source.notes, note))


def check_relation_column(source: object, column: str, names: Sequence[str], nulls: int) -> None:
    """Raise InputError unless a table of edges with columns `names` has a relation in each row."""
    if column not in names:
        said = f"{source}: edges have no column '{column}'"
        raise InputError(f"{said}; set read.relation_column to one of {', '.join(names)}")
    if nulls:
        raise InputError(f"{source}: column edges.{column} holds {nulls} nulls; expected a relation in each row")


def schema_only(table: SourceTable) -> ReadTable:
    """A table of Parquet files whose rows are not read."""
    heads = []
    for k, path in enumerate(table.files):
        with reading(path):
            heads.append(in_folder(pq.read_schema(path).empty_table(), table, k))
    return ReadTable(table, plain(joined(heads, table)), tuple(head.schema for head in heads))
