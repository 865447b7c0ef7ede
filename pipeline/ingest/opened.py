"""The tables of an ingest with their columns, once files, values and relations that need it are gone through."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..datasets.cleaning.class_names import MOST_VALUES, by_value, one_hot_values
from ..datasets.cleaning.node_ids import as_ids, given_ids, is_text
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers import derived_tables as derived
from ..datasets.readers.described import Ends, are_text
from ..datasets.readers.tables import is_read_as_it_is
from ..datasets.schema.columns import Columns
from ..datasets.schema.source import GraphTables, SourceTable
from .budget import Budget
from .source import PIECE_ROWS, ROWS_PER_GROUP, Span, Table, batches, describe, import_file, spans_of
from .tasks import Stages

IMPORTED, RELATIONS = MADE = "import", "relations"
"""Folders of the tables that are made of the user's."""


def open_tables(
    source: GraphTables, options: ReadOptions, stages: Stages, budget: Budget, typed: bool
) -> tuple[GraphTables, list[Table]]:
    """The source and its tables in their order, with one of edges for each value of `relation_column`. Raises
    InputError: a file cannot be read, or a column is missing."""
    number = {t: i for kind in (source.nodes, source.edges) for i, t in enumerate(kind)}
    stage = {t: f"{t.kind}-{number[t]}" if typed else t.kind for t in source.tables}
    tables = [_opened(t, stage[t], options, stages, budget) for t in source.tables]
    if not source.nodes:
        source = derived.with_nodes_of_edges(
            source, tables, options, lambda ends: ids_at(ends, are_text(ends), stages, budget)
        )
        tables = [*(_made(t, stages.folder) for t in source.nodes), *tables]
    if not (column := (options.names("relation_column") or ("",))[0]) or source.is_typed:
        return source, tables
    nodes, (edges,) = ([t for t in tables if t.source.kind == kind] for kind in ("nodes", "edges"))
    derived.check_relation_column(source.path, column, edges.schema.names, 0)
    raw, rows = replace(edges, one_hot={}), _rows(edges, budget)
    items = [(stages.folder, raw, column, k, span, rows) for k, span in enumerate(spans_of(edges, rows))]
    found = stages.run("relations", f"edges by {column}", split_relations, items)
    derived.check_relation_column(source.path, column, edges.schema.names, sum(r["nulls"] for r in found))
    relations = sorted({name for record in found for name in record["paths"]})
    source = derived.by_relation(source, column, relations)
    paths = [[Path(path) for r in found for path in r["paths"].get(name, ())] for name in relations]
    made = (describe(t, of).with_values(edges.one_hot) for t, of in zip(source.edges, paths))
    edges_of = [replace(own, heads=edges.heads, numbers=edges.numbers, is_of_files=False) for own in made]
    return source, [*(replace(own, source=t) for own, t in zip(nodes, source.nodes)), *edges_of]


def _made(table: SourceTable, folder: Path) -> Table:
    """A table whose rows are in memory, in a file below `folder`."""
    path = folder / IMPORTED / f"{table.title}-ends.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table.rows, path, row_group_size=ROWS_PER_GROUP)
    return describe(table, [path])


def with_added_nodes(
    own: Table, columns: Columns, used: pa.Array, folder: Path, notes: list[str]
) -> tuple[Table, Columns]:
    """A table of nodes and its columns, with rows of nulls for ids that are `used` and no node's; notes how many."""
    what, text = columns.id or ("id" if "id" not in own.schema.names else " id"), is_text(used.type)
    known = pa.chunked_array([np.arange(own.num_rows)])
    if columns.id is not None:
        known = pa.chunked_array([c for p in own.pieces((what,)) for c in as_ids(p[what], text).chunks], used.type)
    if not len(added := derived.new_ids([pa.chunked_array([used])], known)):
        return own, columns
    notes.append(derived.added_note(len(added)))
    more = _made(SourceTable("nodes", type=own.source.type, rows=pa.table({what: added})), folder)
    return own.with_rows(more, what), replace(columns, id=what)


def ids_at(ends: Ends, text: bool, stages: Stages, budget: Budget, name: str = "nodes") -> pa.Array:
    """The ids of nodes in columns of ends of edges, in ascending order."""
    spans = [(t, (what, c), text, s, r) for what, t, c in ends for r in [_rows(t, budget)] for s in spans_of(t, r)]
    items = [(stages.folder / IMPORTED / f"{name}-ids-{k:06d}.parquet", *each) for k, each in enumerate(spans)]
    stages.run(f"ends-{name}", "ids of nodes that edges name", find_ids, items)
    none = pa.chunked_array([], pa.large_string() if text else pa.int64())
    return derived.new_ids([none, *(pq.read_table(path)["id"] for path, *_ in items)])


def find_ids(path: Path, table: Table, of: tuple[str, str], text: bool, span: Span, rows: int) -> dict[str, Any]:
    """Write the distinct ids that a span has in a column of ends."""
    path.parent.mkdir(exist_ok=True)
    found = [as_ids(given_ids(batch[of[1]]).drop_null(), text, of[0]) for batch in batches(table, span, of[1:], rows)]
    pq.write_table(pa.table({"id": derived.new_ids(found)}), path)
    return {}


def _opened(table: SourceTable, stage: str, options: ReadOptions, stages: Stages, budget: Budget) -> Table:
    """The columns of a table; what is neither Parquet nor NumPy is imported first."""
    imported, seen = list[Path](), list[dict[str, Any]]()
    if not is_read_as_it_is(table):
        imported = [stages.folder / IMPORTED / f"{stage}-{k:06d}.parquet" for k in range(len(table.files))]
        items = [(table, k, options, into) for k, into in enumerate(imported)]
        seen = stages.run(f"import-{stage}", f"reading files of {table.title}", import_file, items)
    found = describe(table, imported, seen)
    if not (named := [n for n in options.names("one_hot") or () if n in found.schema.names]):
        return found
    values = one_hot_values(found.empty, named, table.title)
    items = [(found, named, span) for span in spans_of(found, _rows(found, budget))]
    for record in stages.run(f"values-{stage}", f"values of {', '.join(named)}", find_values, items):
        values = {what: tuple(sorted({*names, *record[what]}, key=by_value)) for what, names in values.items()}
    return found.with_values(values)


def _rows(table: Table, budget: Budget) -> int:
    return budget.span(budget.rows(2 * table.row_bytes), table.num_rows)


def split_relations(folder: Path, table: Table, column: str, number: int, span: Span, rows: int) -> dict[str, Any]:
    """Write the edges of a span, so many rows at a time, as Parquet files, each of one value of a column."""
    (folder / RELATIONS).mkdir(exist_ok=True)
    nulls, paths = 0, dict[str, list[str]]()
    for k, batch in enumerate(batches(table, span, table.schema.names, rows)):
        nulls += batch[column].null_count
        for i, (name, own) in enumerate(derived.rows_by_relation(batch, column).items()):
            paths.setdefault(name, []).append(str(folder / RELATIONS / f"{number:06d}-{k:06d}-{i:05d}.parquet"))
            pq.write_table(own, paths[name][-1], row_group_size=ROWS_PER_GROUP)
    return {"nulls": nulls, "paths": paths}


def find_values(table: Table, named: Sequence[str], span: Span) -> dict[str, list[str]]:
    """The values that a span has in columns of `one_hot`: see `one_hot_values`."""
    found: dict[str, set[str]] = {}
    for batch in batches(table, span, named, PIECE_ROWS):
        for what, names in one_hot_values(batch, named, table.source.title).items():
            found[what] = {*found.get(what, ()), *names}
    return {what: sorted(names, key=by_value)[: MOST_VALUES + 1] for what, names in found.items()}
