"""Tables whose columns are known and whose rows may lie in files: their schema, and what they are refused for before
rows are read. In memory and in pieces alike."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from ....storage.errors import InputError, one_of
from ....storage.plural import counted, were
from ..cleaning.class_names import MOST_VALUES
from ..cleaning.clean import check_no_target
from ..cleaning.node_ids import check_id_kind, check_one_kind, is_text
from ..cleaning.options import COLUMNS, ReadOptions
from ..cleaning.typed import OF_NODES, check_followed
from ..schema.columns import Columns
from ..schema.roles import Schema, schema_of
from ..schema.source import GraphTables, Problems, SourceTable, quoted
from .foreign.kinds import first_line_of, separator_of
from .parquet import are_numbers
from .parquet_rapids import gpus_to_read
from .tables import check_columns

OF_TABLES = (*OF_NODES, *COLUMNS, "missing_ids", "direction", "dangling_edges")
"""Options that tables of several types follow."""


Ends = list[tuple[str, Any, str]]
"""Columns of ends of edges: the name in messages, the open table, and the name in it."""


class OpenTable(Protocol):
    """A table of a source that has been opened, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def source(self) -> SourceTable:
        """With the user's files."""

    @property
    def heads(self) -> tuple[pa.Schema, ...]:
        """Columns of each file."""

    @property
    def schema(self) -> pa.Schema:
        """Columns, and their types."""

    @property
    def num_rows(self) -> int:
        """Number of its rows."""

    def are_numbers(self, column: str) -> bool:
        """True for a column of CSV that is read as text, if all its values are whole numbers."""

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of some columns, in pieces."""


def is_typed(source: GraphTables, options: ReadOptions) -> bool:
    """True for the tables of a graph with several types of nodes or edges."""
    return options.relation_column is not None or source.is_typed


def check_options(source: GraphTables, options: ReadOptions) -> None:
    """Raise InputError for an option that the tables, of one type or of several, do not follow."""
    if not is_typed(source, options):
        check_no_target(options)
        return
    check_followed(str(source.path), options, OF_TABLES)
    if options.direction == "reverse":
        said = "direction is 'reverse', but the names of the files say where edges begin and end"
        raise InputError(f"{said}; leave it out, or rename the files")


def check_read_on_gpus(source: GraphTables, schema: Schema, options: ReadOptions) -> None:
    """Raise InputError if edges that GPUs shall read have features or times, or there are no GPUs."""
    if options.edges_on == "gpu":
        gpus_to_read()
    for columns in schema.edges if options.edges_on == "gpu" else ():
        for what, there in (("features", columns.features), ("times", columns.time)):
            if there:
                said = f"{source.path}: edges_on is gpu, but edges have {what}, which are read on the CPU"
                raise InputError(f"{said}; leave edges_on out")


def schema_of_open(
    source: GraphTables, tables: Sequence[OpenTable], options: ReadOptions, draws_split: bool, has_edges: bool = True
) -> Schema:
    """The schema of a source whose tables are open, in their order; `has_edges`: tables of edges have their rows.
    Raises InputError: there are no nodes, or no edges; a column is missing, or its role is not clear."""
    for table in tables:
        if table.source.kind == "nodes" and table.source.files and not table.num_rows:
            file = table.source.files[0].name
            if table.source.type is None:
                raise InputError(f"{source.path}: there are no nodes; expected a row for each node in {file}")
            raise InputError(f"node type '{table.source.type}' has no nodes; expected a row for each in {file}")
    schema = schema_of(source, [t.schema for t in tables], options, [t.pieces for t in tables], draws_split)
    notes = list[str]()
    _check_text(schema, tables, options)
    for table, columns in zip(tables, schema.of_tables):
        if table.source.files:
            check_columns(table.heads, table.source, columns, options)
    if has_edges:
        notes = check_edge_rows(source.path, [(t.source, t.num_rows) for t in tables if t.source.kind == "edges"])
    for key in (t.type for t in source.edges if isinstance(t.type, tuple)):
        known = [str(t.type) for t in source.nodes]
        for t in [t for t in (key[0], key[2]) if t not in known]:
            said = f"the relation {','.join(key)} has ends of type '{t}', but there is no nodes-{t}"
            raise InputError(f"{said}; {one_of(t, known)}: rename the file of edges, or give the nodes")
    return replace(schema, notes=(*schema.notes, *notes))


def _check_text(schema: Schema, tables: Sequence[OpenTable], options: ReadOptions) -> None:
    """Raise InputError for columns of features or weights that are text other than numbers."""
    problems, named = Problems(), list(options.names("one_hot") or ())
    for table, columns in zip(tables, schema.of_tables):
        for name in (*columns.features, *filter(None, (columns.weight,))):
            kind = table.schema.field(name).type
            pieces = (piece[name] for piece in table.pieces((name,))) if is_text(kind) else ()
            if (texts := next((of for of in pieces if not are_numbers(of)), None)) is None:
                continue
            values = texts.unique().drop_null()
            at = bisect_left(range(len(values)), True, key=lambda k: not are_numbers(values.slice(0, k + 1)))
            first, some = values[at].as_py(), values.slice(at, MOST_VALUES).to_pylist()
            other = [v for v in some if not are_numbers(pa.chunked_array([[v]]))]
            text = f"column {columns.table}.{name} is {kind}; expected numbers, not '{first[:40]}'"
            if name == columns.weight or re.fullmatch(r"\W*\d[\d.,' ]*\W*", first):
                problems.add(f"{text}: write numbers such as 1234.5{_with_points(table.source, first)}")
            elif 2 * len(other) < at + len(some):
                problems.add(f"{text}: leave the field empty where the number is not known")
            else:
                named.append(name)
                problems.add(f"{text}: one_hot={name} makes each value a feature", one_hot=",".join(named))
    if problems.texts:
        raise InputError(problems.message(schema.source.path, options.given))


def _with_points(table: SourceTable, number: str) -> str:
    """A command that puts points in the place of commas in a file whose columns semicolons separate, if this number has
    one; else empty."""
    file, plain = next(iter(table.files), None), re.fullmatch(r"[-+]?\d+,\d+", number)
    if not isinstance(file, Path) or file.suffix != ".csv" or not plain or separator_of(first_line_of(file)) != ";":
        return ""
    name = quoted(str(file))
    return f"; if commas are points, sed -E 's/([0-9]),([0-9])/\\1.\\2/g' {name} > {name}.new && mv {name}.new {name}"


def ends_at(nodes: SourceTable, tables: Sequence[tuple[OpenTable, Columns]]) -> Ends:
    """The columns of tables of edges that call the nodes of a table."""
    edges = [(read, own) for read, own in tables if read.source.kind == "edges"]
    every = [(read, own, own.ends[i]) for read, own in edges for i in read.source.sides_at(nodes)]
    return [(f"{own.table}.{name}", read, name) for read, own, name in every]


def check_edge_rows(source: object, rows: Sequence[tuple[SourceTable, int]]) -> list[str]:
    """Notes on tables of edges without rows. Raises InputError if there is no edge at all."""
    if any(count for _, count in rows):
        return [f"Relation {t.title.removeprefix('edges-')} has no edges." for t, count in rows if not count]
    if not rows:
        raise InputError(f"{source}: there is no table of edges; expected one with the columns src and dst")
    table = rows[0][0]
    file = table.files[0].name if table.files else table.title
    if table.rows is not None:
        raise InputError(f"{source} has no edges; expected at least one")
    raise InputError(f"{source}: {file} has a header and no rows; expected an edge in each row")


def are_text(columns: Ends) -> bool:
    """True if nodes are called by text in these columns of ids, False if by whole numbers. Raises InputError: some are,
    or a column is neither."""
    kinds = {what: table.schema.field(name).type for what, table, name in columns}
    for what, kind in kinds.items():
        check_id_kind(what, kind)
    if all(table.are_numbers(name) or pa.types.is_integer(kinds[what]) for what, table, name in columns):
        return False
    check_one_kind(kinds)
    return True


def are_called_by_text(source: object, nodes: OpenTable, columns: Columns, ends: Ends) -> bool:
    """`are_text` of the ids of some nodes and of the ends of edges there. Raises InputError: ends are, and there are no
    ids."""
    ids = [] if columns.id is None else [(f"nodes.{columns.id}", nodes, columns.id)]
    if (found := are_text([*ids, *ends])) and not ids:
        raise InputError(
            f"{source}: the ends of edges are text, but {columns.table} has no column 'id'; give each node the id that "
            "edges call it by, or set read.id to the column that has it"
        )
    return found


def dropped_notes(dropped: Sequence[tuple[str, int]]) -> list[str]:
    """Notes on edges of tables with an end that is no node."""
    return [
        f"{counted(count, 'edge')} of {table} {were(count)} left out, since an end is no node (dangling_edges=drop)."
        for table, count in dropped
        if count
    ]
