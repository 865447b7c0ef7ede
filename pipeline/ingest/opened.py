"""The tables of an ingest with their columns, once files, values and relations that need it are gone through."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ..datasets.cleaning.class_names import MOST_VALUES, by_value, one_hot_values
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers.derived_tables import by_relation, check_relation_column, rows_by_relation
from ..datasets.readers.tables import is_read_as_it_is
from ..datasets.schema.source import GraphTables, SourceTable
from .budget import Budget
from .source import PIECE_ROWS, ROWS_PER_GROUP, Span, Table, batches, describe, import_file, spans_of
from .tasks import Stages


def open_tables(
    source: GraphTables, options: ReadOptions, stages: Stages, budget: Budget, typed: bool
) -> tuple[GraphTables, list[Table]]:
    """The source and its tables in their order, with one of edges for each value of `relation_column`.

    Raises:
        InputError: a file cannot be read, or a column is missing.
    """
    number = {t: i for kind in (source.nodes, source.edges) for i, t in enumerate(kind)}
    stage = {t: f"{t.kind}-{number[t]}" if typed else t.kind for t in source.tables}
    tables = [_opened(t, stage[t], options, stages, budget) for t in source.tables]
    if not (column := (options.names("relation_column") or ("",))[0]) or source.is_typed:
        return source, tables
    nodes, (edges,) = ([t for t in tables if t.source.kind == kind] for kind in ("nodes", "edges"))
    check_relation_column(source.path, column, edges.schema.names, 0)
    raw, rows = replace(edges, one_hot={}), _rows(edges, budget)
    items = [(stages.folder, raw, column, k, span, rows) for k, span in enumerate(spans_of(edges, rows))]
    found = stages.run("relations", f"edges by {column}", split_relations, items)
    check_relation_column(source.path, column, edges.schema.names, sum(r["nulls"] for r in found))
    relations = sorted({name for record in found for name in record["paths"]})
    source = by_relation(source, column, relations)
    paths = [[Path(path) for r in found for path in r["paths"].get(name, ())] for name in relations]
    made = (describe(t, of).with_values(edges.one_hot) for t, of in zip(source.edges, paths))
    edges_of = [replace(own, heads=edges.heads, numbers=edges.numbers) for own in made]
    return source, [*(replace(own, source=t) for own, t in zip(nodes, source.nodes)), *edges_of]


def _opened(table: SourceTable, stage: str, options: ReadOptions, stages: Stages, budget: Budget) -> Table:
    """The columns of a table; what is neither Parquet nor NumPy is imported first."""
    imported, seen = list[Path](), list[dict[str, Any]]()
    if not is_read_as_it_is(table):
        imported = [stages.folder / "import" / f"{stage}-{k:06d}.parquet" for k in range(len(table.files))]
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
    (folder / "relations").mkdir(exist_ok=True)
    nulls, paths = 0, dict[str, list[str]]()
    for k, batch in enumerate(batches(table, span, table.schema.names, rows)):
        nulls += batch[column].null_count
        for i, (name, own) in enumerate(rows_by_relation(batch, column).items()):
            paths.setdefault(name, []).append(str(folder / "relations" / f"{number:06d}-{k:06d}-{i:05d}.parquet"))
            pq.write_table(own, paths[name][-1], row_group_size=ROWS_PER_GROUP)
    return {"nulls": nulls, "paths": paths}


def find_values(table: Table, named: Sequence[str], span: Span) -> dict[str, list[str]]:
    """The values that a span has in columns of `one_hot`: see `one_hot_values`."""
    found: dict[str, set[str]] = {}
    for batch in batches(table, span, named, PIECE_ROWS):
        for what, names in one_hot_values(batch, named, table.source.title).items():
            found[what] = {*found.get(what, ()), *names}
    return {what: sorted(names, key=by_value)[: MOST_VALUES + 1] for what, names in found.items()}
