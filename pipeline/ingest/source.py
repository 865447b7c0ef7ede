"""The tables that an ingest reads, and their rows in pieces."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...storage.errors import InputError, RunError
from ...storage.typed.graph_types import RelationType
from ..datasets.cleaning.clean import check_no_target
from ..datasets.cleaning.node_ids import as_numbers, is_text
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers.csv_file import read_blocks
from ..datasets.readers.npy_edges import ends_table, is_npy, open_ends
from ..datasets.readers.parquet import is_list
from ..datasets.readers.tables import (
    EXAMPLES,
    IDS,
    check_columns,
    check_ratio,
    files_of,
    is_text_first,
    joined,
    nodes_beside,
    plain,
    reading,
    renamed,
)
from ..datasets.readers.typed_names import are_typed, edge_files, node_files
from ..datasets.readers.typed_tables import about
from .url_files import UrlFile, files_at, names_at, opened

BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read at a time."""
ROWS_PER_GROUP = 1 << 20
"""Rows of a row group of what is imported."""
IMPORT_BYTES = 32 << 20
"""Bytes in memory of rows that are imported at a time."""
File = Path | UrlFile


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

    stem: str
    """edges or nodes."""
    files: tuple[File, ...]
    """The user's."""
    paths: tuple[File, ...]
    """Files that are read: CSV is imported first."""
    empty: pa.Table
    """No rows; the columns by Millrace's names, and their types."""
    rows: int
    row_bytes: int
    """Bytes of a row in memory, estimated."""
    from_csv: bool = False
    title: str | None = None
    """Name in messages, if it is another than `stem`."""

    @property
    def called(self) -> str:
        """Its name in messages."""
        return self.title or self.stem


@dataclass(frozen=True)
class Source:
    """Files of edges and of nodes that the user named."""

    path: Path | str
    name: str
    edges: tuple[File, ...]
    nodes: tuple[File, ...]
    notes: tuple[str, ...] = ()
    node_types: Mapping[str, tuple[File, ...]] = field(default_factory=dict)
    """Files of each node type of a graph with several; empty: there is one."""
    relations: Mapping[RelationType, tuple[File, ...]] = field(default_factory=dict)
    """Files of each relation, likewise."""


def find_source(path: Path | str, options: ReadOptions) -> Source:
    """The files of a folder of tables, or of a URL; or a file of edges and the one of nodes beside it. Raises
    InputError."""
    at_url = isinstance(path, str)
    names = [f.name for f in path.iterdir()] if not at_url and path.is_dir() else []
    if at_url:
        names = [name for name in names_at(path) if name.endswith(".parquet")]
    if are_typed(names):
        return _typed_source(path, names)
    check_no_target(options)
    if isinstance(path, str):
        if options.nodes_file is not None:
            raise InputError(f"nodes_file is given, but {path} is a URL, whose nodes* are read; leave it out")
        return Source(path, PurePosixPath(path).name, files_at(path, "edges"), files_at(path, "nodes"))
    if path.is_dir():
        if options.nodes_file is not None:
            raise InputError(f"nodes_file is given, but {path} is a folder, whose nodes* are read; leave it out")
        return Source(path, path.name, tuple(files_of(path, "edges")), tuple(files_of(path, "nodes")))
    nodes, stem = nodes_beside(path, options), path.name.partition(".")[0]
    name = path.resolve().parent.name if stem == "edges" else stem
    return Source(path, name, (path,), (nodes,), (f"The nodes were read from {nodes}.",))


def _typed_source(path: Path | str, names: list[str]) -> Source:
    """The files of a folder, or of a URL, of tables of several types, whose names are given."""
    name = PurePosixPath(path).name if isinstance(path, str) else path.resolve().name
    with about(name):

        def files(names: list[str]) -> tuple[File, ...]:
            return tuple(UrlFile(path, n) if isinstance(path, str) else path / n for n in names)

        nodes = {t: files(found) for t, found in node_files(names).items()}
        edges = {key: files(found) for key, found in edge_files(names).items()}
    of_edges, of_nodes = (tuple(f for found in table.values() for f in found) for table in (edges, nodes))
    return Source(path, name, of_edges, of_nodes, (), nodes, edges)


def stamp_of(path: File) -> tuple[int, int]:
    """Size and time of a file's last change."""
    if isinstance(path, UrlFile):
        return path.stamp()
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def describe(
    files: Sequence[File],
    stem: str,
    options: ReadOptions,
    imported: Sequence[Path] | None = None,
    title: str | None = None,
) -> Table:
    """The table in some Parquet or ``.npy`` files; reads their footers or headers.

    Args:
        files: the user's.
        stem: edges or nodes.
        options: weights or features may be left out.
        imported: Parquet files that were made of them, if they are CSV.
        title: name in messages, if it is another than `stem`.

    Raises:
        InputError: a file is neither, or their columns differ in type, or see `check_columns`.
    """
    paths = tuple(imported or files)
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
            if imported is None:
                check_ratio(path, metadata, stamp_of(path)[0])
            empties.append(renamed(metadata.schema.to_arrow_schema().empty_table(), stem))
            rows += metadata.num_rows
            size += sum(metadata.row_group(g).total_byte_size for g in range(metadata.num_row_groups))
    check_columns([table.schema for table in empties], files, stem, options)
    empty = plain(joined(empties, files, from_csv=imported is not None))
    return Table(stem, tuple(files), paths, empty, rows, max(1, size // max(1, rows)), imported is not None, title)


def import_csv(path: Path, stem: str, into: Path) -> dict[str, Any]:
    """Write a CSV file as Parquet, block by block; say of each column of ids whether all are whole numbers."""
    into.parent.mkdir(exist_ok=True)
    with _Import(stem, into) as imported, reading(path):
        read_blocks(path, is_text_first(stem), EXAMPLES[stem], imported.begin)
    return imported.are_numbers


class _Import:
    """Writes the Parquet file of a CSV file. Use as a context manager."""

    def __init__(self, stem: str, into: Path) -> None:
        self._stem, self._into = stem, into
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.Table] = []
        self.are_numbers: dict[str, bool] = {}

    def __enter__(self) -> "_Import":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._writer is not None:
            if kind is None:
                self._flush()
            self._writer.close()

    def begin(self, schema: pa.Schema) -> Callable[[pa.Table], None]:
        """Begin the file anew."""
        if self._writer is not None:
            self._writer.close()
        self._held, empty = [], plain(renamed(schema.empty_table(), self._stem))
        self._writer = pq.ParquetWriter(self._into, empty.schema)
        self.are_numbers = {name: is_text(empty[name].type) for name in empty.column_names if name in IDS[self._stem]}
        return self._add

    def _add(self, block: pa.Table) -> None:
        block = plain(renamed(block, self._stem))
        for name, so_far in self.are_numbers.items():
            column = block[name]
            self.are_numbers[name] = so_far and not column.null_count and as_numbers(column) is not None
        self._held.append(block)
        if sum(table.nbytes for table in self._held) >= IMPORT_BYTES:
            self._flush()

    def _flush(self) -> None:
        assert self._writer is not None
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=ROWS_PER_GROUP)
            self._held = []


def spans_of(table: Table, rows: int) -> list[Span]:
    """The table's rows in pieces of about `rows`, of Parquet at least one row group each."""
    spans, first = [], 0
    for own, file in zip(table.files, table.paths):
        with reading(own):
            stamp = stamp_of(file)
            if is_npy(file):
                total = open_ends(file).shape[1]
                spans += [Span(file, (i,), first + i, min(rows, total - i), stamp) for i in range(0, total, rows)]
                first += total
                continue
            metadata = pq.read_metadata(opened(file))
            groups: list[int] = []
            held = 0
            for group in range(metadata.num_row_groups):
                count = metadata.row_group(group).num_rows
                if held and held + count > rows:
                    spans.append(Span(file, tuple(groups), first, held, stamp))
                    groups, first, held = [], first + held, 0
                groups.append(group)
                held += count
            if held:
                spans.append(Span(file, tuple(groups), first, held, stamp))
                first += held
    return spans


def batches(table: Table, span: Span, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """Rows of a span, at most `rows` at a time, with the columns of the table that exist among `columns`.

    Raises:
        InputError: the file is damaged.
        RunError: the file is gone, or has changed since the ingest began.
    """
    wanted = [c for c in columns if c in table.empty.column_names]
    try:
        if stamp_of(span.path) != span.stamp:
            raise FileNotFoundError(span.path)
        if is_npy(span.path):
            yield from _ends(table, span, wanted, rows)
            return
        file = pq.ParquetFile(
            opened(span.path), page_checksum_verification=True, pre_buffer=False, buffer_size=BUFFER_BYTES
        )
    except FileNotFoundError as e:
        raise RunError(
            f"{span.path} is gone, or has changed, since the ingest began; put it back and give the same command again"
        ) from e
    with reading(table.files[table.paths.index(span.path)]), file:
        theirs = file.schema_arrow.names
        ours = renamed(file.schema_arrow.empty_table(), table.stem).column_names
        there = dict(zip(ours, theirs))
        picked = [there[c] for c in wanted if c in there]
        if not picked:
            for first in range(0, span.rows, rows):
                yield _conformed(pa.table({}), table, wanted, min(rows, span.rows - first))
            return
        for batch in file.iter_batches(rows, list(span.groups), columns=picked, use_threads=False):
            found = pa.Table.from_batches([batch]).rename_columns([c for c in wanted if c in there])
            yield _conformed(found, table, wanted, batch.num_rows)


def _ends(table: Table, span: Span, wanted: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """`batches` of a ``.npy`` file."""
    (begin,), ends = span.groups, open_ends(span.path)
    for first in range(begin, begin + span.rows, rows):
        stop = min(first + rows, begin + span.rows)
        yield _conformed(ends_table(ends, first, stop).select(wanted), table, wanted, stop - first)


def _conformed(found: pa.Table, table: Table, wanted: Sequence[str], rows: int) -> pa.Table:
    """The columns `wanted` in the table's types; a file without one has nulls."""
    found, columns = plain(found), {}
    for name in wanted:
        kind = table.empty.schema.field(name).type
        if name not in found.column_names:
            columns[name] = pa.chunked_array([pa.nulls(rows, kind)])
        else:
            columns[name] = found[name] if is_list(kind) or found[name].type == kind else found[name].cast(kind)
    return pa.table(columns)
