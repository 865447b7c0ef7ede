"""Opening of a graph's tables, into memory or in pieces, and of those made of others: nodes of the ends of edges, and a
table for each relation that a column names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ....storage.errors import InputError, NoLabelsError
from ....storage.plural import counted, were
from ....storage.typed.graph_types import MOST_RELATIONS
from ..cleaning.arrow import pc, reading
from ..cleaning.node_ids import as_ids, is_text
from ..cleaning.options import ReadOptions
from ..cleaning.raw import Faults, GraphType, about, refuse
from ..cleaning.typed import check_relations
from ..schema.columns import NONE, Columns
from ..schema.roles import Schema, schema_of
from ..schema.source import GraphTables, Request, SourceTable
from . import described
from .described import Ends, OpenTable, are_text, check_edge_rows, ends_at
from .tables import ReadTable, in_folder, joined, plain

ONE_TYPE = "node"
"""Node type of a graph whose relations are those of a column."""
Opened = TypeVar("Opened", bound=OpenTable)


class Opener(Protocol[Opened]):
    """Way of opening tables: into memory, or to be read in pieces."""

    def open(self, table: SourceTable) -> Opened:
        """Open a table."""

    def ids(self, ends: Ends, text: bool, of: SourceTable) -> pa.Array:
        """The distinct ids in columns of ends of edges at a table of nodes, in ascending order."""

    def by_relation(self, edges: Opened, column: str) -> tuple[Mapping[str, Opened], int]:
        """The rows of a table of edges by their values in a column, in the order of these, and how many have none."""

    def with_rows(self, nodes: Opened, ids: pa.Array, column: str) -> Opened:
        """A table of nodes with a row for each of some ids behind its own, of nulls but for the `column` of ids. If it
        has no such column, its ids are the numbers of its rows."""


@dataclass(frozen=True, eq=False)
class OpenGraph(Generic[Opened]):
    """The tables of a graph with the roles of their columns. Nodes may have been taken from the ends of edges."""

    tables: Sequence[tuple[Opened, Columns]]
    schema: Schema
    options: ReadOptions
    ids_are_text: Mapping[GraphType, bool]
    """By node type, whether nodes are called by text."""
    added: Mapping[GraphType, list[str]]
    """Notes by node type on nodes that only edges name."""

    @property
    def source(self) -> GraphTables:
        """The tables."""
        return self.schema.source

    @property
    def notes(self) -> list[str]:
        """Notes on the tables and their columns."""
        return [*self.source.notes, *self.schema.notes]

    @property
    def numbering(self) -> ReadOptions:
        """The options by which nodes are numbered: a format that says which column has the ids lets them have gaps."""
        stated = all("id" in t.roles.values() for t in self.source.nodes)
        return replace(self.options, missing_ids="compact") if stated else self.options


def open_graph(source: GraphTables, request: Request, by: Opener[Opened], has_edges: bool = True) -> OpenGraph[Opened]:
    """Open the tables of a graph; `has_edges`: with the rows of edges. Raises InputError: an option is not followed, a
    file cannot be read, or a column is missing or not clear; says what to change."""
    options = request.options
    options = replace(options, split=options.split or NONE) if request.is_divided else options
    described.check_options(source, options)
    tables = {t: by.open(t) for t in source.tables}
    if not source.nodes or source.adds_nodes:
        source = _with_nodes_of_edges(source, [tables[t] for t in source.edges], options, by)
        tables = {t: tables[t] if t in tables else by.open(t) for t in source.tables}
    every = list(tables.values())
    if options.relation_column is not None and not source.is_typed:
        source, every = _by_relation(source, every, (options.names("relation_column") or ("",))[0], by)
        options = replace(options, relation_column=None)
    draws_split = not (request.split or options.split)
    schema = described.schema_of_open(source, every, options, draws_split, has_edges)
    described.check_read_on_gpus(source, schema, options)
    opened, faults = list(zip(every, schema.of_tables)), Faults()
    texts, added = dict[GraphType, bool](), {t.type: list[str]() for t in source.nodes}
    for k, (table, own) in enumerate(opened):
        if table.source.kind == "nodes":
            t, ends = table.source.type, ends_at(table.source, opened)
            with faults.noted(), about(table.source.of_type):
                texts[t] = described.are_called_by_text(source.path, table, own, ends)
                if options.dangling_edges == "add":
                    used = by.ids(ends, texts[t], table.source)
                    opened[k] = _with_added(table, own, used, by, added[t])
    refuse(faults)
    return OpenGraph(opened, schema, options, texts, added)


def _with_nodes_of_edges(
    source: GraphTables, edges: Sequence[OpenTable], options: ReadOptions, by: Opener[Any]
) -> GraphTables:
    """The source with a table for nodes of each type that has none, first: the ends of its edges in the order of their
    ids."""
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
        ends = ends_at(table, list(zip(edges, columns)))
        ids = by.ids(ends, are_text(ends), table)
        added.append(replace(table, rows=pa.table({"id": ids})))
        what = counted(len(ids), "node") + ("" if t is None else f" of type '{t}'")
        notes.append(f"{what} {were(len(ids))} taken from the ends of the edges: there is no table of nodes.")
    return replace(source, tables=(*added, *source.tables), notes=(*source.notes, *notes))


def new_ids(used: Sequence[pa.ChunkedArray], *known: pa.ChunkedArray) -> pa.Array:
    """The distinct values of columns of ids of one kind that are not `known`, in ascending order."""
    kind = (*known, *used, pa.array([], pa.int64()))[0].type
    every: Any = pa.chunked_array([c for column in used for c in column.cast(kind).chunks], kind).unique()
    found = every.filter(pc.invert(pc.is_in(every, value_set=known[0]))) if known else every
    return found.take(pc.sort_indices(found))


def _with_added(
    nodes: Opened, columns: Columns, used: pa.Array, by: Opener[Opened], notes: list[str]
) -> tuple[Opened, Columns]:
    """A table of nodes and its columns, with rows for ids that are `used` and no node's; notes how many."""
    what = columns.id or ("id" if "id" not in nodes.schema.names else " id")
    known = pa.chunked_array([np.arange(nodes.num_rows)])
    if columns.id is not None:
        pieces = (as_ids(piece[what], is_text(used.type), f"nodes.{what}") for piece in nodes.pieces((what,)))
        known = pa.chunked_array([c for piece in pieces for c in piece.chunks], used.type)
    if not len(added := new_ids([pa.chunked_array([used])], known)):
        return nodes, columns
    named = f"{counted(len(added), 'node')} that only edges name {were(len(added))} added"
    notes.append(f"{named}, without label or features (dangling_edges=add).")
    return by.with_rows(nodes, added, what), replace(columns, id=what)


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


def _by_relation(
    source: GraphTables, tables: Sequence[Opened], column: str, by: Opener[Opened]
) -> tuple[GraphTables, list[Opened]]:
    """The source and its tables, with one of edges for each value of a column. Raises InputError: edges have no such
    column, or no relation in a row of it."""
    (edges,) = (table for table in tables if table.source.kind == "edges")
    if column not in (names := edges.schema.names):
        said = f"{source.path}: edges have no column '{column}'"
        raise InputError(f"{said}; set read.relation_column to one of {', '.join(names)}")
    parts, nulls = by.by_relation(edges, column)
    if nulls:
        raise InputError(f"{source.path}: column edges.{column} holds {nulls} nulls; expected a relation in each row")
    check_edge_rows(source.path, [(edges.source, len(parts))])
    relations = [(ONE_TYPE, name, ONE_TYPE) for name in parts]
    check_relations(relations, {ONE_TYPE: 0})
    note = f"Relations are the values of {column} (relation_column={column}): {', '.join(parts)}."
    made = [(table, ONE_TYPE) for table in tables if table is not edges] + list(zip(parts.values(), relations))
    found = [replace(table, source=replace(table.source, type=t)) for table, t in made]
    return replace(source, tables=tuple(t.source for t in found), notes=(*source.notes, note)), found


def schema_only(table: SourceTable) -> ReadTable:
    """A table of Parquet files whose rows are not read."""
    heads = []
    for k, path in enumerate(table.files):
        with reading(path):
            heads.append(in_folder(pq.read_schema(path).empty_table(), table, k))
    return ReadTable(table, plain(joined(heads, table)), tuple(head.schema for head in heads))
