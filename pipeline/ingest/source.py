"""The tables that an ingest reads, and their rows in pieces."""

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...storage.dataset_store import check_formats
from ...storage.errors import InputError, RunError
from ..datasets.cleaning.arrow import reading, with_columns
from ..datasets.cleaning.class_names import with_one_hot
from ..datasets.cleaning.node_ids import as_numbers, is_text
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers.csv_file import (
    LABEL_KINDS,
    AsText,
    RetypedError,
    fits,
    is_csv,
    never,
    read_blocks,
    typed_label,
)
from ..datasets.readers.foreign.table_files import table_batches
from ..datasets.readers.npy_edges import ends_table, is_npy, open_ends
from ..datasets.readers.parquet import check_lists, list_width
from ..datasets.readers.reader import Request
from ..datasets.readers.tables import (
    EXAMPLES,
    as_label,
    as_text,
    check_ratio,
    in_folder,
    joined,
    needs_nodes,
    plain,
    tables_at,
)
from ..datasets.schema.columns import is_list
from ..datasets.schema.files import note_missing_parts, tables_of
from ..datasets.schema.source import GraphTables, SourceTable
from .spill import groups_of
from .url_files import UrlFile, names_at, opened

BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read at a time."""
ROWS_PER_GROUP = 1 << 20
"""Rows of a row group of what is imported."""
IMPORT_BYTES = 32 << 20
"""Bytes in memory of rows that are imported at a time."""
LISTS_AT_ONCE = 16
"""Lists that are read at a time to see how long they are."""
PIECE_ROWS = 1 << 16
"""Rows of `Table.pieces`, unless it is told how many."""
File = Path | UrlFile


@dataclass(frozen=True)
class Formats:
    """Formats of a store's features and graph, zarr or npy; and the dtype of feature rows there, None: their own."""

    features: str = "zarr"
    graph: str = "zarr"
    feature_dtype: Any = None

    def check(self) -> "Formats":
        """Raise InputError unless all are known."""
        check_formats({"features": self.features, "graph": self.graph}, self.feature_dtype)
        return self


@dataclass(frozen=True)
class Span:
    """Rows of one file that one task reads: some row groups, or edges of a ``.npy`` file."""

    path: File
    groups: tuple[int, ...]
    """Its row groups; of a ``.npy`` file, its first edge there."""
    first: int
    """Number of its first row among those of all files."""
    rows: int
    stamp: tuple[int, int]
    """Size and time of the file when the ingest began."""


@dataclass(frozen=True, eq=False)
class Table:
    """Files that hold one table, the edges or the nodes."""

    source: SourceTable
    """With the user's files."""
    paths: tuple[File, ...]
    """Files that are read: those imported, unless the user's are read as they are."""
    empty: pa.Table
    """No rows; the columns, and their types."""
    heads: tuple[pa.Schema, ...]
    """Columns of each file."""
    num_rows: int
    row_bytes: int
    """Bytes of a row in memory, estimated."""
    read_as: pa.Schema
    """Types of columns before those of `one_hot` become lists."""
    one_hot: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """See `with_one_hot`."""
    numbers: Mapping[str, bool] = field(default_factory=dict)
    """See `are_numbers`."""
    is_of_files: bool = True
    """True if its first paths are those of the user's files, one for each."""
    row_ids: str = ""
    """Column of ids that only the last path has; those of other rows are their numbers."""

    @property
    def files(self) -> tuple[File, ...]:
        """The user's."""
        return self.source.files

    @property
    def called(self) -> str:
        """Its name in messages."""
        return "nodes" if self.source.kind == "nodes" else self.source.title

    @property
    def schema(self) -> pa.Schema:
        """Columns, and their types."""
        return self.empty.schema

    def with_values(self, one_hot: Mapping[str, Sequence[str]]) -> "Table":
        """The table with features of 0 and 1 for the values of some columns."""
        more = 4 * sum(map(len, one_hot.values()))
        empty = with_one_hot(self.empty, one_hot, self.source.title)
        return replace(self, one_hot=one_hot, empty=empty, row_bytes=self.row_bytes + more)

    def with_widths(self, columns: Sequence[str]) -> "Table":
        """The table whose columns of lists among `columns` are of the length of their first list."""
        found = self
        for name in (n for n in columns if is_list(self.read_as.field(n).type)):
            # Lists may be long, and mostly the first one is no null.
            width = next(filter(None, (list_width(p[name]) for p in self.pieces((name,), LISTS_AT_ONCE))), 0)
            found = found._with_type(name, pa.list_(self.read_as.field(name).type.value_type, width))
        return found

    def with_rows(self, more: "Table", ids: str) -> "Table":
        """The table with the rows of another one behind, which has the column `ids` alone. If this one has no such
        column, its ids are the numbers of its rows."""
        found = replace(self, paths=(*self.paths, *more.paths), num_rows=self.num_rows + more.num_rows)
        if ids not in self.schema.names:
            return replace(found._with_type(ids, pa.int64()), row_ids=ids)
        kind = self.read_as.field(ids).type
        return found if is_text(kind) or pa.types.is_uint64(kind) else found._with_type(ids, pa.int64())

    def _with_type(self, name: str, kind: pa.DataType) -> "Table":
        """The table with another type of a column, or with a column more."""
        field, at, none = pa.field(name, kind), self.read_as.get_field_index(name), pa.array([], kind)
        if at < 0:
            return replace(self, read_as=self.read_as.append(field), empty=self.empty.append_column(field, none))
        return replace(self, read_as=self.read_as.set(at, field), empty=self.empty.set_column(at, field, none))

    def are_numbers(self, column: str) -> bool:
        """True for a column of CSV that is read as text, if all its values are whole numbers."""
        return self.numbers.get(column, False)

    def file_of(self, path: File) -> File:
        """The user's file that a path has rows of."""
        return dict(zip(self.paths, self.files)).get(path, path) if self.is_of_files else path

    def pieces(self, columns: Sequence[str], rows: int = PIECE_ROWS) -> Iterator[pa.Table]:
        """The rows of some columns, so many at a time."""
        for span in spans_of(self, rows):
            yield from batches(self, span, columns, rows)


def find_source(path: Path | str, request: Request) -> GraphTables:
    """The tables of a folder, or of a URL; or a file of edges and the one of nodes beside it. Raises InputError."""
    if isinstance(path, Path):
        return tables_at(path, request)
    if request.options.nodes_file is not None:
        raise InputError(f"nodes_file is given, but {path} is a URL, whose nodes* are read; leave it out")
    entries = {name: (UrlFile(path, name),) for name in names_at(path) if name.endswith(".parquet")}
    tables = tuple(tables_of(entries, path, needs_nodes(request.options)))
    return GraphTables(PurePosixPath(path).name, path, tables, notes=note_missing_parts(tables, path))


def stamp_of(path: File) -> tuple[int, int]:
    """Size and time of a file's last change."""
    if isinstance(path, UrlFile):
        return path.stamp()
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def describe(table: SourceTable, imported: Sequence[Path] = (), seen: Sequence[Mapping[str, Any]] = ()) -> Table:
    """The table in some Parquet or ``.npy`` files, whose footers or headers are read: those `imported`, of each of
    which `import_file` says what was `seen`, or the user's, which are read as they are. Raises InputError: a file is
    neither, or their columns differ in type."""
    paths = tuple(imported or table.files)
    files = table.files if len(table.files) == len(paths) else paths
    empties, rows, size = [], 0, 0
    for file, path in zip(files, paths):
        with reading(file):
            if is_npy(path):
                ends = open_ends(path)
                empties.append(ends_table(ends, 0, 0))
                rows += ends.shape[1]
                size += ends.nbytes
                continue
            metadata = pq.read_metadata(opened(path))
            if not imported:
                check_ratio(path, metadata, stamp_of(path)[0])
            # What was imported has other units of times in Parquet, and its own types beside.
            own = base64.b64decode(metadata.metadata[b"ARROW:schema"]) if imported else b""
            schema = pa.ipc.read_schema(pa.py_buffer(own)) if own else metadata.schema.to_arrow_schema()
            empties.append(schema.empty_table())
            rows += metadata.num_rows
            size += sum(metadata.row_group(g).total_byte_size for g in range(metadata.num_row_groups))
    is_of_files = len(paths) == len(table.files)
    if is_of_files:
        empties = [in_folder(empty, table, k) for k, empty in enumerate(empties)]
    heads = tuple(empty.schema for empty in empties)
    empty = plain(joined(empties, table, files))
    for name in {name for of_file in seen for name in of_file["labels"]}:
        kinds = set.intersection(*(set(of_file["labels"].get(name, LABEL_KINDS)) for of_file in seen))
        empty = empty.set_column(empty.column_names.index(name), name, typed_label(empty[name], kinds))
    names = {name for of_file in seen for name in of_file["numbers"]}
    texts = {name: pa.chunked_array([values]) for name, values in table.folders.items() if is_text(values.type)}
    numbers = {name: not v.null_count and as_numbers(v) is not None for name, v in texts.items()}
    numbers |= {name: all(of_file["numbers"].get(name, False) for of_file in seen) for name in names}
    more: Any = {"numbers": numbers, "is_of_files": is_of_files, "read_as": empty.schema}
    return Table(table, paths, empty, heads, rows, max(1, size // max(1, rows)), **more)


def import_file(table: SourceTable, number: int, options: ReadOptions, into: Path) -> dict[str, Any]:
    """Write a file of a table as Parquet, block by block; say of each column of ids in CSV whether all are whole
    numbers, and of each one of labels there what it `fits`."""
    into.parent.mkdir(exist_ok=True)
    path, kind, types = table.files[number], table.kind, dict[str, pa.DataType]()
    with reading(path):
        if not is_csv(path):
            schema, batches = table_batches(path)
            blocks = (pa.Table.from_batches([batch]) for batch in batches)
            return _imported(chain([schema.empty_table()], blocks), never, never, into)
        texts, labels = as_text(kind, options), as_label(kind, options)
        while True:
            with suppress(RetypedError):
                return _imported(read_blocks(path, texts, EXAMPLES[kind], types, labels), texts, labels, into)


def _imported(blocks: Iterator[pa.Table], texts: AsText, as_label: AsText, into: Path) -> dict[str, Any]:
    """Write blocks of one schema, the first of which may have no rows; say the same as `import_file`."""
    first = plain(next(blocks))
    left_out = [field.name for field in first.schema if not _is_in_parquet(field)]
    schema = with_columns(first, dict.fromkeys(left_out, pa.nulls(first.num_rows))).schema
    numbers = {name: is_text(first[name].type) for name in schema.names if texts(name)}
    labels, held = {name: list(LABEL_KINDS) for name in schema.names if as_label(name)}, list[pa.Table]()
    with pq.ParquetWriter(into, schema) as writer:
        for block in map(plain, chain([first], blocks)):
            block = with_columns(block, dict.fromkeys(left_out, pa.nulls(block.num_rows)))
            for name, so_far in numbers.items():
                numbers[name] = so_far and as_numbers(block[name]) is not None
            for name, so_far in labels.items():
                here = fits(block[name]) if so_far else []
                labels[name] = [kind for kind in so_far if kind in here]
            held.append(block)
            if sum(table.nbytes for table in held) >= IMPORT_BYTES:
                writer.write_table(pa.concat_tables(held), row_group_size=ROWS_PER_GROUP)
                held = []
        if held:
            writer.write_table(pa.concat_tables(held), row_group_size=ROWS_PER_GROUP)
    return {"numbers": numbers, "labels": labels}


def _is_in_parquet(field: pa.Field) -> bool:
    """True if Parquet has such a column, but not for those that no role is for: of objects without fields, ..."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError:
        return False
    return True


def spans_of(table: Table, rows: int) -> list[Span]:
    """The table's rows in pieces of about `rows`, of Parquet at least one row group each."""
    spans, first = [], 0
    for file in table.paths:
        with reading(table.file_of(file)):
            stamp = stamp_of(file)
            if is_npy(file):
                total = open_ends(file).shape[1]
                spans += [Span(file, (i,), first + i, min(rows, total - i), stamp) for i in range(0, total, rows)]
                first += total
                continue
            metadata = pq.read_metadata(opened(file))
            counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            for begin, end in groups_of(np.array(counts, np.int64), rows):
                if held := sum(counts[begin:end]):
                    spans.append(Span(file, tuple(range(begin, end)), first, held, stamp))
                    first += held
    return spans


def batches(table: Table, span: Span, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """Rows of a span, at most `rows` at a time, with the columns of the table that exist among `columns`. Raises
    InputError: the file is damaged; RunError: the file is gone, or has changed since the ingest began."""
    wanted, number = [c for c in columns if c in table.empty.column_names], table.paths.index(span.path)
    with reading(table.file_of(span.path)):
        first = span.first
        for found in _pieces_of(span, wanted, rows):
            if table.is_of_files and number < len(table.files):
                found = in_folder(found, table.source, number)
            yield _conformed(found, table, wanted, range(first, first := first + found.num_rows))


def _pieces_of(span: Span, wanted: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """Rows of a span with those of the columns `wanted` that its file has, or with another one."""
    try:
        if stamp_of(span.path) != span.stamp:
            raise FileNotFoundError(span.path)
        if is_npy(span.path):
            (begin,), ends = span.groups, open_ends(span.path)
            stop = begin + span.rows
            yield from (ends_table(ends, first, min(first + rows, stop)) for first in range(begin, stop, rows))
            return
        file = pq.ParquetFile(
            opened(span.path), page_checksum_verification=True, pre_buffer=False, buffer_size=BUFFER_BYTES
        )
    except FileNotFoundError as e:
        said = f"{span.path} is gone, or has changed, since the ingest began"
        raise RunError(f"{said}; put it back and give the same command again") from e
    with file:
        held = file.schema_arrow.names
        picked = [c for c in wanted if c in held] or held[:1]  # which say how many rows there are
        for batch in file.iter_batches(rows, list(span.groups), columns=picked, use_threads=False):
            yield pa.Table.from_batches([batch])


def _conformed(found: pa.Table, table: Table, wanted: Sequence[str], rows: range) -> pa.Table:
    """The columns `wanted` of some rows of the table in its types; a file without one has nulls."""
    found, columns = plain(found), {}
    for name in wanted:
        kind = table.read_as.field(name).type
        own = found[name] if name in found.column_names else pa.chunked_array([pa.nulls(len(rows), kind)])
        if name == table.row_ids and name not in found.column_names:
            own = pa.chunked_array([np.arange(rows.start, rows.stop)])
        if pa.types.is_fixed_size_list(kind):
            check_lists(own, f"{table.source.title}.{name}", kind.list_size, rows.start)
            own = own if own.null_count < len(own) else pa.chunked_array([pa.nulls(len(rows), kind)])
        elif not (is_list(kind) or own.type == kind):
            is_label = is_text(own.type) and not is_text(kind)
            own = typed_label(own, [str(kind)]) if is_label else own.cast(kind)
        columns[name] = own
    return with_one_hot(pa.table(columns), table.one_hot, table.source.title)
