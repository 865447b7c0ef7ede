"""Tables of edges and nodes from Parquet or CSV files, with the column names that Millrace uses."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ....storage.errors import NOT_READABLE, InputError, first_line
from ....storage.store.full_disk import is_full
from ....storage.store.paths import expanded
from ..cleaning.options import ReadOptions
from .csv_file import SUFFIXES, AsText, is_csv, read_csv
from .npy_edges import is_npy, read_ends
from .npz_members import BOMB_BYTES

ALIASES = {
    "edges": {
        "src": ("source", "from", "source_id", "src_id", "u"),
        "dst": ("target", "to", "destination", "dest", "target_id", "dst_id", "v"),
        "weight": ("edge_weight", "w"),
    },
    "nodes": {"id": ("node_id", "node"), "label": ("y", "class"), "split": ()},
}
"""Other names of columns, in upper or lower case."""
_AS_TEXT = {
    stem: {name for key in keys for name in (key, *ALIASES[stem][key])}
    for stem, keys in {"edges": ("src", "dst"), "nodes": ("id", "split")}.items()
}
IDS = {"edges": ("src", "dst"), "nodes": ("id",)}
"""Columns of ids."""
_OR_LEFT_OUT = {("edges", "weight"): ", or set edge_weights=ignore to read none"}
EXAMPLES = {"edges": "src,dst", "nodes": "id,label"}
BOMB_RATIO = 2000
"""Compression ratio above which a file is refused. Parquet packs a column of one value into next to nothing, but never
all columns."""
KINDS = (".parquet", *SUFFIXES)
FEATURE = re.compile(r"(?:feature_|x_?)(\d+)")
"""Names of columns of features."""


def is_text_first(stem: str) -> AsText:
    """True for the names of CSV columns that are read as text first: 007 is not a number, and one name among numbers
    makes all of them names."""
    return lambda name: name.lower() in _AS_TEXT[stem]


def is_label(column: str) -> bool:
    """True for a name of the column of labels, which `renamed` calls label."""
    return column.strip().lower() in ("label", *ALIASES["nodes"]["label"])


def tables_in(folder: Path, stem: str) -> list[Path]:
    """Files of a folder whose names begin with `stem`, in order: Parquet files; without any, CSV files; without these,
    edges in ``.npy`` files."""
    files = sorted(folder.glob(f"{stem}*.parquet"))
    files = files or sorted(f for f in folder.glob(f"{stem}*") if is_csv(f))
    return files or (sorted(folder.glob("edges*.npy")) if stem == "edges" else [])


def files_of(folder: Path, stem: str) -> list[Path]:
    """`tables_in`, or InputError if there are none."""
    if not (files := tables_in(folder, stem)):
        others = " or edges*.npy" if stem == "edges" else ""
        raise InputError(
            f"{folder} holds no {stem}*.parquet or {stem}*.csv{others}; expected edges* (columns src, dst) and nodes* "
            "(columns id, label, features)"
        )
    return files


def nodes_beside(edges: Path, options: ReadOptions) -> Path:
    """The file of the nodes of a file of edges: `nodes_file`, or nodes.csv or nodes.parquet in its folder.

    Raises:
        InputError: the file does not exist.
    """
    if edges.name.startswith("nodes") and (others := tables_in(edges.parent, "edges")):
        raise InputError(f"{edges} is a file of nodes; give the file of edges, {others[0]}, or the folder")
    if options.nodes_file is not None:
        path = edges.parent / expanded(options.nodes_file)
        if not path.is_file():
            raise InputError(
                f"nodes_file={options.nodes_file}: {path} is not a file; expected a path from the folder of "
                f"{edges.name}"
            )
        return path
    found = [p for kind in KINDS if (p := edges.parent / f"nodes{kind}").is_file() and p != edges]
    if not found:
        raise InputError(
            f"{edges} is read as a list of edges, and the labels of its nodes are missing: put nodes.csv (columns id, "
            "label, features) beside it, or set nodes_file=FILE"
        )
    return found[0]


def read_parquet(path: Path) -> pa.Table:
    """Rows of a Parquet file. Checksums of its pages are verified if its writer left any.

    Raises:
        InputError: it unpacks to far more than numbers of a graph can.
    """
    file = pq.ParquetFile(path, page_checksum_verification=True)
    check_ratio(path, file.metadata, path.stat().st_size)
    return file.read()


def check_ratio(path: object, metadata: pq.FileMetaData, size: int) -> None:
    """Raise InputError for a file of `size` bytes that unpacks to far more than numbers of a graph can."""
    unpacked = metadata.num_rows * metadata.num_columns * 4
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * size:
        raise InputError(
            f"{path} unpacks from {size:,} bytes to {unpacked:,} or more; expected rows that differ: write the file "
            "again"
        )


def read_table(files: Sequence[Path], stem: str, options: ReadOptions | None = None) -> pa.Table:
    """Rows of all files, one after the other.

    Raises:
        InputError: a file cannot be read, their columns differ in type, or with `options` see `check_columns`.
    """
    tables = list[pa.Table]()
    for path in files:
        with reading(path):
            tables.append(renamed(_read_file(path, stem), stem))
    if options is not None:
        check_columns([table.schema for table in tables], files, stem, options)
    return plain(joined(tables, files, from_csv=is_csv(files[0])))


def _read_file(path: Path, stem: str) -> pa.Table:
    if is_csv(path):
        return read_csv(path, is_text_first(stem), EXAMPLES[stem])
    return read_ends(path) if is_npy(path) else read_parquet(path)


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Turn errors of pyarrow into one that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as e:
        if isinstance(e, PermissionError):
            raise InputError(f"{path}: {NOT_READABLE}") from e
        # A full disk is that of a table that is copied.
        if isinstance(e, InputError) or (isinstance(e, OSError) and is_full(e)):
            raise
        raise InputError(f"{path} cannot be read ({first_line(e).rstrip('.')}); write the file again") from e


def joined(tables: Sequence[pa.Table], files: Sequence[Any], *, from_csv: bool) -> pa.Table:
    """Rows of tables with one schema; from CSV, whose types are guessed, also with types that have a common one.

    Raises:
        InputError: the columns of one of `files` differ in type from those before.
    """
    how: Any = "permissive" if from_csv else "default"
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


def check_columns(schemas: Sequence[pa.Schema], files: Sequence[Any], stem: str, options: ReadOptions) -> None:
    """Check that a column of ids, weights or features is in every file of a table, or in none.

    Raises:
        InputError: names the column, a file without it and one that has it.
    """
    needed, named = set(IDS[stem]), options.named_features if stem == "nodes" else options.named_edge_features
    if stem == "edges" and options.edge_weights == "use":
        needed.add("weight")
    if stem == "edges" or options.nan_features == "error":
        every = {name for schema in schemas for name in schema.names}
        needed |= {c for c in every if FEATURE.fullmatch(c) or c in ("features", "x")} if named is None else {*named}
    for name in sorted(needed):
        with_it = [file for file, schema in zip(files, schemas) if name in schema.names]
        without = [file for file, schema in zip(files, schemas) if name not in schema.names]
        if with_it and without:
            raise InputError(
                f"{without[0]} has no column '{name}', but {with_it[0].name} has; expected it in every file of {stem}, "
                f"or in none: write the files again with the same columns{_OR_LEFT_OUT.get((stem, name), '')}"
            )


def plain(table: pa.Table) -> pa.Table:
    """The table with the values of columns that are stored as dictionaries."""
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(at, field.name, table[field.name].cast(field.type.value_type))
    return table


def renamed(table: pa.Table, stem: str) -> pa.Table:
    """The table with Millrace's names for columns that have others; it may be empty."""
    names, lower = list(table.column_names), [n.strip().lower() for n in table.column_names]
    for key, others in ALIASES[stem].items():
        if key not in names:
            at = next((lower.index(name) for name in (key, *others) if name in lower), None)
            if at is not None:
                names[at] = key
    return table.rename_columns(names)
