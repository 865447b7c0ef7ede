"""Rows of the files of a table, with the column names that its user gave."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ....storage.errors import InputError, NoLabelsError, first_line
from ....storage.store.paths import expanded
from ..cleaning.arrow import reading, with_columns
from ..cleaning.class_names import one_hot_values, with_one_hot
from ..cleaning.kept import as_other
from ..cleaning.node_ids import as_numbers
from ..cleaning.options import ReadOptions
from ..cleaning.raw import Hint
from ..schema import files as of_folder
from ..schema.columns import Columns
from ..schema.source import GraphTables, Kind, SourceTable
from ..schema.words import fold, is_text_first, label_columns
from .csv_file import EDGES, fits, is_csv, is_text_read, read_csv, typed_label, typed_text
from .foreign.kinds import first_line_of
from .foreign.table_files import table_batches
from .npy_edges import is_npy, read_ends
from .npz_members import BOMB_BYTES
from .reader import Request

EXAMPLES = {"edges": EDGES, "nodes": "id,label"}
OF_NUMBERS = ("feature_columns", "edge_feature_columns", "weight", "edge_time", "node_time")
NODES = ("nodes", "target", "targets")
"""Words in the names of files of nodes, where that of edges has ``edges``: ``musae_target.csv``."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Name of a folder whose rows have no value."""
BOMB_RATIO = 2000
"""Compression ratio above which a file is refused. Parquet packs a column of one value into next to nothing, but never
all columns."""


def _named(options: ReadOptions, keys: Sequence[str]) -> set[str]:
    """Columns that some keys name."""
    return {c for key in keys for c in options.names(key) or ()}


def as_text(kind: Kind, options: ReadOptions) -> Callable[[str], bool]:
    """True for the names of columns of CSV that are read as text: ids, splits and values of `one_hot`, unless a key
    says that a column holds numbers."""
    numbers = _named(options, (*OF_NUMBERS, "label_columns"))
    texts = _named(options, ("id", "src", "dst", "split", "relation_column", "one_hot"))
    return lambda name: name in texts or (name not in numbers and is_text_first(name, kind))


def as_label(kind: Kind, options: ReadOptions) -> Callable[[str], bool]:
    """True for the names of columns of CSV that are labels."""
    text, named, others = (
        as_text(kind, options),
        _named(options, ("label_columns",)),
        _named(options, (*OF_NUMBERS, "one_hot")),
    )
    return lambda name: (
        kind == options.labels_of
        and (name in named or bool(label_columns([name])))
        and not (name in others or text(name))
    )


def tables_at(path: Path, request: Request) -> GraphTables:
    """The tables of a folder, see `schema.files`; or one file of edges, and the file of their nodes (see
    `nodes_beside`), if they need one. The request's file of pairs is none of several tables of edges. Raises
    InputError: it is not clear what files are, or a table is missing."""
    if path.is_dir():
        return _tables_of_folder(path, request)
    tables = (SourceTable("edges", (path,)),)
    name = request.called(path.resolve().parent if path.name.partition(".")[0] == "edges" else path)
    return replace(with_nodes_beside(GraphTables(name, path, tables), request.options), hint=_hint_of(tables))


def _tables_of_folder(folder: Path, request: Request) -> GraphTables:
    options = request.options
    if options.nodes_file is not None:
        raise InputError(f"nodes_file is given, but {folder} is a folder, whose nodes* are read; leave it out")
    entries, left = of_folder.entries_in(folder), list[tuple[str, str]]()
    if request.pairs is not None:
        own = expanded(request.pairs).resolve()
        left = [(n, "it is the file of pairs") for n, files in entries.items() if own in {f.resolve() for f in files}]
    others = {n: files for n, files in entries.items() if n not in dict(left)}
    if not any(n.startswith("edges") and of_folder.are_tables([n]) for n in others):
        others, left = entries, []
    why = "it is no table of nodes* or edges* by its name"
    left += [(n, why) for n in others if not (of_folder.are_tables([n]) or n.startswith((".", "_")))]
    tables = tuple(
        _with_folder_columns(table, folder, options)
        for table in of_folder.tables_of(others, folder, needs_nodes(options))
    )
    notes = of_folder.note_missing_parts(tables, folder)
    return GraphTables(request.called(folder), folder, tables, tuple(left), _hint_of(tables), notes)


def _with_folder_columns(table: SourceTable, folder: Path, options: ReadOptions) -> SourceTable:
    """The table with the columns that names of folders below `folder` say (``kind=x/part-0.parquet``). Their values
    are read as those of CSV are: numbers, unless one has zeros before it, and ids as text."""
    cells = [[p.partition("=") for p in f.relative_to(folder).parts[:-1] if "=" in p] for f in table.files]
    named = [{name: None if value == NO_VALUE else unquote(value) for name, _, value in own} for own in cells]
    columns, is_id = dict[str, pa.Array](), as_text(table.kind, options)
    for name in dict.fromkeys(name for own in named for name in own):
        values = pa.chunked_array([[own.get(name) for own in named]], pa.string())
        columns[name] = (values if is_id(name) else typed_text(values)).combine_chunks()
    return replace(table, folders=columns)


def in_folder(rows: pa.Table, table: SourceTable, number: int) -> pa.Table:
    """Rows of a file with the columns that names of its folders are, unless it has them itself."""
    for name, values in table.folders.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.repeat(values[number], rows.num_rows))
    return rows


def is_read_as_it_is(table: SourceTable) -> bool:
    """True if rows lie in files of Parquet or NumPy alone, of which pieces are read."""
    return all(file.name.lower().endswith((".parquet", ".npy")) for file in table.files)


def with_nodes_beside(edges: GraphTables, options: ReadOptions) -> GraphTables:
    """A file of edges with the file of their nodes, if they need one."""
    if (nodes := nodes_beside(Path(edges.path), options)) is None:
        return edges
    note = f"The nodes were read from {nodes}."
    return replace(edges, tables=(SourceTable("nodes", (nodes,)), *edges.tables), notes=(note, *edges.notes))


def _hint_of(tables: Sequence[SourceTable]) -> Hint | None:
    """The direction in Gephi's column ``Type`` of a CSV file of edges, if all rows say the same."""
    files = [f for t in tables if t.kind == "edges" and t.type is None for f in t.files]
    if len(files) != 1 or not is_csv(files[0]):
        return None
    names = {fold(name): name for name in re.split("[,;\t|]", first_line_of(files[0]).replace('"', ""))}
    if not {"source", "target", "type"} <= set(names):
        return None
    try:
        table = read_csv(files[0], lambda name: fold(name) == "type", EXAMPLES["edges"])
    except InputError:
        return None  # the reader says why
    found = {str(value).lower() for value in table[names["type"]].unique().to_pylist()}
    if found == {"directed", "undirected"}:
        said = f"{files[0]}: its column {names['type']} says Directed and Undirected"
        raise InputError(f"{said}; write each undirected edge in both directions, and leave the column out")
    for word in ("directed", "undirected"):
        if found == {word}:
            return Hint(word, f"its column {names['type']} says")
    return None


def needs_nodes(options: ReadOptions) -> bool:
    """True if nodes have labels, so that they need a table."""
    return options.task != "link" and options.labels_of != "edges"


def nodes_beside(edges: Path, options: ReadOptions) -> Path | None:
    """The file of the nodes of a file of edges: `nodes_file`, or nodes.csv or nodes.parquet in its folder; None if
    there is none and none is needed. Raises InputError: the file does not exist, or there are several."""
    if edges.name.startswith("nodes"):
        names = [
            p.name for p in edges.parent.iterdir() if p.name.startswith("edges") and of_folder.are_tables([p.name])
        ]
        if names:
            said = f"{edges} is a file of nodes; give the file of edges, {edges.parent / names[0]}"
            raise InputError(f"{said}, or the folder")
    if options.nodes_file is not None:
        path = edges.parent / expanded(options.nodes_file)
        if not (path.is_file() and path.name.lower().endswith(of_folder.SUFFIXES)):
            said = f"nodes_file={options.nodes_file}: {path} is not a file of a table, such as .csv with a header"
            raise InputError(f"{said}; expected a path from the folder of {edges.name}")
        return path
    named = [f"nodes{kind}" for kind in of_folder.SUFFIXES]
    named += [edges.name.replace("edges", word) for word in NODES if "edges" in edges.name]
    found = [p for name in dict.fromkeys(named) if (p := edges.parent / name).is_file() and p != edges]
    if len(found) > 1:
        said = f"{' and '.join(map(str, found))} are both the nodes of {edges.name}"
        raise InputError(f"{said}; set nodes_file={found[0].name}, or move one away")
    if not found and needs_nodes(options):
        raise NoLabelsError(
            f"{edges} is read as a list of edges, and the labels of its nodes are missing: put nodes.csv (columns id, "
            "label, features) beside it, or set nodes_file=FILE; task=link predicts edges, and their ends are the nodes"
        )
    return found[0] if found else None


def read_parquet(path: Path) -> pa.Table:
    """Rows of a Parquet file. Checksums of its pages are verified if its writer left any. Raises InputError: it unpacks
    to far more than numbers of a graph can."""
    file = pq.ParquetFile(path, page_checksum_verification=True)
    check_ratio(path, file.metadata, path.stat().st_size)
    return file.read()


def check_ratio(path: object, metadata: pq.FileMetaData, size: int) -> None:
    """Raise InputError for a file of `size` bytes that unpacks to far more than numbers of a graph can."""
    unpacked = metadata.num_rows * metadata.num_columns * 4
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * size:
        raise InputError(f"{path} unpacks from {size:,} bytes to {unpacked:,} or more; write rows that differ")


@dataclass(frozen=True, eq=False)
class ReadTable:
    """A table of a source with its rows in memory."""

    source: SourceTable
    rows: pa.Table
    heads: tuple[pa.Schema, ...]
    """Columns of each file."""

    @property
    def schema(self) -> pa.Schema:
        """Columns, and their types."""
        return self.rows.schema

    @property
    def num_rows(self) -> int:
        """Number of its rows."""
        return self.rows.num_rows

    def are_numbers(self, column: str) -> bool:
        """True for a column of CSV that is read as text, if all its values are whole numbers."""
        return is_text_read(self.source, column) and as_numbers(self.rows[column]) is not None

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of some columns, in one piece."""
        yield self.rows.select(list(columns))


def read_rows(table: SourceTable, options: ReadOptions) -> ReadTable:
    """The rows of a table. Raises InputError if a file cannot be read, or its columns differ in type from those of
    others."""
    if table.rows is not None:
        found, rows = [table.rows], plain(table.rows)
    else:
        found = [in_folder(read_file(table, path, options), table, k) for k, path in enumerate(table.files)]
        rows = plain(joined(found, table))
        if is_csv(table.files[0]):
            is_label = as_label(table.kind, options)
            labels = [name for name in rows.column_names if is_label(name) and name not in table.folders]
            rows = with_columns(rows, {name: typed_label(rows[name], fits(rows[name])) for name in labels})
    other = as_other(options)
    if other is not None:  # a column without any value has no type
        bare = {f.name for f in rows.schema if pa.types.is_null(f.type)} & {*other.columns(table.features_of)}
        rows = with_columns(rows, {n: rows[n].cast(pa.float64()) for n in bare})
    if (named := options.names("one_hot")) is not None:
        values = one_hot_values(rows, named, table.title)
        if other is not None:
            values = {name: other.values(table.features_of, name) or own for name, own in values.items()}
        rows = with_one_hot(rows, values, table.title)
    return ReadTable(table, rows, tuple(t.schema for t in found))


def read_file(table: SourceTable, path: Path, options: ReadOptions) -> pa.Table:
    """Rows of one file of a table. Raises InputError if it cannot be read."""
    with reading(path):
        if is_read_as_it_is(table):
            return read_ends(path) if is_npy(path) else read_parquet(path)
        if is_csv(path):
            return read_csv(path, as_text(table.kind, options), EXAMPLES[table.kind], as_label(table.kind, options))
        schema, batches = table_batches(path)
        return pa.Table.from_batches(list(batches), schema)


def joined(tables: Sequence[pa.Table], of: SourceTable, files: Sequence[Any] = ()) -> pa.Table:
    """Rows of tables with one schema; from CSV, whose types are guessed, and where names of folders are columns, also
    with types that have a common one. Raises InputError: the columns of one of `files`, by default those of the table,
    differ in type from those before."""
    files = files or of.files
    how: Any = "permissive" if of.folders or is_csv(files[0]) else "default"
    for path, table in zip(files, tables):
        if again := [n for n, count in Counter(table.column_names).items() if count > 1]:
            raise InputError(f"{path} has the column '{again[0]}' more than once; give every column its own name")
    try:
        return pa.concat_tables(tables, promote_options=how)
    except pa.ArrowException as e:
        schema = tables[0].schema
        for path, table in zip(files[1:], tables[1:]):
            try:
                schema = pa.unify_schemas([schema, table.schema], promote_options=how)
            except pa.ArrowException as e:
                raise InputError(
                    f"{path} and {files[0].name} are no one table ({first_line(e).rstrip('.')}); write the files again "
                    "with one schema"
                ) from e
        raise InputError(f"{files[0].parent} cannot be read ({first_line(e)}); write the files again") from e


def check_columns(heads: Sequence[pa.Schema], table: SourceTable, columns: Columns, options: ReadOptions) -> None:
    """Check that a column of ids, weights, labels or features is in every file of a table. Raises InputError: names the
    column, a file without it and one that has it."""
    needed: set[str | None] = set(columns.ends) if table.kind == "edges" else {columns.id}
    if table.kind == "edges" or options.nan_features == "error":
        needed |= {*columns.features}
    if options.edge_weights == "use":
        needed.add(columns.weight)
    for name in sorted(n for n in needed if n is not None):
        with_it = [file for file, head in zip(table.files, heads) if name in head.names]
        without = [file for file, head in zip(table.files, heads) if name not in head.names]
        if with_it and without:
            how = ", or set edge_weights=ignore to read none" if name == columns.weight else ""
            said = f"{without[0]} has no column '{name}', but {with_it[0].name} has; expected it in every file of"
            raise InputError(f"{said} {table.kind}, or in none: write the files again with the same columns{how}")


def plain(table: pa.Table) -> pa.Table:
    """The table with the values of columns that are stored as dictionaries, or as views of text, of which Arrow can
    take no rows."""
    kinds = {f.name: f.type.value_type for f in table.schema if pa.types.is_dictionary(f.type)}
    kinds |= {f.name: pa.large_string() for f in table.schema if pa.types.is_string_view(f.type)}
    return with_columns(table, {name: table[name].cast(kind) for name, kind in kinds.items()})
