"""The tables of an ingest with their columns, once files, values and relations that need it are gone through."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..datasets.cleaning.class_names import MOST_VALUES, by_value, one_hot_values
from ..datasets.cleaning.node_ids import as_ids, given_ids
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers import derived_tables as derived
from ..datasets.readers.described import Ends
from ..datasets.readers.tables import is_read_as_it_is
from ..datasets.schema.source import SourceTable
from .budget import Budget
from .source import PIECE_ROWS, ROWS_PER_GROUP, Span, Table, batches, describe, import_file, spans_of
from .tasks import Stages

IMPORTED, RELATIONS = MADE = "import", "relations"
"""Folders of the tables that are made of the user's."""


@dataclass(frozen=True)
class InPieces:
    """Opens tables whose rows stay in files; tasks go through these where values matter. See `Opener`."""

    options: ReadOptions
    stages: Stages
    budget: Budget

    def open(self, table: SourceTable) -> Table:
        """The columns of a table; what is neither Parquet nor NumPy is imported first."""
        imported, seen, folder = list[Path](), list[dict[str, Any]](), self.stages.folder / IMPORTED
        if table.rows is not None:
            return self._made(table)
        if not is_read_as_it_is(table):
            imported = [folder / f"{table.title}-{k:06d}.parquet" for k in range(len(table.files))]
            items = [(table, k, self.options, into) for k, into in enumerate(imported)]
            seen = self.stages.run(f"import-{table.title}", f"reading files of {table.title}", import_file, items)
        found = describe(table, imported, seen)
        if not (named := [n for n in self.options.names("one_hot") or () if n in found.schema.names]):
            return found
        values = one_hot_values(found.empty, named, table.title)
        items = [(found, named, span) for span in spans_of(found, self._rows(found))]
        for record in self.stages.run(f"values-{table.title}", f"values of {', '.join(named)}", find_values, items):
            values = {what: tuple(sorted({*names, *record[what]}, key=by_value)) for what, names in values.items()}
        return found.with_values(values)

    def _made(self, table: SourceTable) -> Table:
        """A table whose rows are in memory, in a file."""
        path = self.stages.folder / IMPORTED / f"{table.title}-ends.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table.rows, path, row_group_size=ROWS_PER_GROUP)
        return describe(table, [path])

    def _rows(self, table: Table) -> int:
        return self.budget.span(self.budget.rows(2 * table.row_bytes), table.num_rows)

    def ids(self, ends: Ends, text: bool, of: SourceTable) -> pa.Array:
        spans = [(t, (what, c), text, s, r) for what, t, c in ends for r in [self._rows(t)] for s in spans_of(t, r)]
        folder = self.stages.folder / IMPORTED
        items = [(folder / f"{of.title}-ids-{k:06d}.parquet", *each) for k, each in enumerate(spans)]
        self.stages.run(f"ends-{of.title}", "ids of nodes that edges name", find_ids, items)
        none = pa.chunked_array([], pa.large_string() if text else pa.int64())
        return derived.new_ids([none, *(pq.read_table(path)["id"] for path, *_ in items)])

    def by_relation(self, edges: Table, column: str) -> tuple[dict[str, Table], int]:
        raw, rows, relations = replace(edges, one_hot={}), self._rows(edges), dict[str, list[Path]]()
        items = [(self.stages.folder, raw, column, k, span, rows) for k, span in enumerate(spans_of(edges, rows))]
        found = self.stages.run("relations", f"edges by {column}", split_relations, items)
        for name, paths in chain.from_iterable(sorted(record["paths"].items()) for record in found):
            relations.setdefault(name, []).extend(map(Path, paths))
        same: Any = {"heads": edges.heads, "numbers": edges.numbers, "is_of_files": False}
        made = {name: describe(edges.source, relations[name]).with_values(edges.one_hot) for name in sorted(relations)}
        return {name: replace(own, **same) for name, own in made.items()}, sum(record["nulls"] for record in found)

    def with_rows(self, nodes: Table, ids: pa.Array, column: str) -> Table:
        return nodes.with_rows(self._made(replace(nodes.source, rows=pa.table({column: ids}))), column)


def find_ids(path: Path, table: Table, of: tuple[str, str], text: bool, span: Span, rows: int) -> dict[str, Any]:
    """Write the distinct ids that a span has in a column of ends."""
    path.parent.mkdir(exist_ok=True)
    found = [as_ids(given_ids(batch[of[1]]).drop_null(), text, of[0]) for batch in batches(table, span, of[1:], rows)]
    pq.write_table(pa.table({"id": derived.new_ids(found)}), path)
    return {}


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
