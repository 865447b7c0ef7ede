"""Files of one table that are neither Parquet nor CSV, in batches: Feather (Arrow IPC), JSON lines and ORC."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from .....storage.errors import InputError
from ...cleaning.arrow import reading
from ...schema.files import ARROW, JSON_LINES

Batches = tuple[pa.Schema, Iterator[pa.RecordBatch]]
LINES_BYTES = 16 << 20
"""Bytes of lines that are parsed at a time; a line may be as long."""


def _feather(path: Path) -> Batches:
    import pyarrow.ipc

    file = pa.memory_map(str(path))
    if file.read(6) == b"ARROW1":
        found = pyarrow.ipc.open_file(file)
        return found.schema, map(found.get_batch, range(found.num_record_batches))
    file.seek(0)
    stream = pyarrow.ipc.open_stream(file)
    return stream.schema, iter(stream)


def _json_lines(path: Path) -> Batches:
    import pyarrow.json

    options, parsing = pyarrow.json.ReadOptions(block_size=LINES_BYTES), pyarrow.json.ParseOptions()
    schema = pa.schema([])
    for block in _lines(path):
        for own in pyarrow.json.read_json(block, options).schema:
            try:
                schema = pa.unify_schemas([schema, pa.schema([own])], promote_options="permissive")
            except pa.ArrowException:  # what looks like a date in one block is text in another
                schema = schema.set(schema.get_field_index(own.name), pa.field(own.name, pa.string()))
    parsing.explicit_schema = schema
    blocks = (pyarrow.json.read_json(block, options, parsing) for block in _lines(path))
    return schema, (batch for table in blocks for batch in table.select(schema.names).to_batches())


def _lines(path: Path) -> Iterator[pa.BufferReader]:
    """Whole lines of a file, in blocks."""
    with pa.input_stream(str(path), compression="detect") as file:
        rest, seen = b"", False
        while (read := file.read(LINES_BYTES)) or rest.strip() or not seen:
            whole, end, rest = (rest + read).rpartition(b"\n") if read else (rest, b"", b"")
            if len(rest) > LINES_BYTES:
                raise ValueError(f"a line is longer than {LINES_BYTES:,} bytes")
            if whole.strip() or not read:
                yield pa.BufferReader(whole + end)
                seen = True


def _orc(path: Path) -> Batches:
    import pyarrow.orc

    file = pyarrow.orc.ORCFile(path)
    return file.schema, map(file.read_stripe, range(file.nstripes))


READERS: dict[tuple[str, ...], tuple[Callable[[Path], Batches], str]] = {
    ARROW: (_feather, "an Arrow IPC (Feather) file"),
    JSON_LINES: (_json_lines, "one JSON object in each line"),
    (".orc",): (_orc, "an ORC file"),
}
"""Readers by the suffixes of files, and what they expect."""


def table_batches(path: Path) -> Batches:
    """Columns of a file, and its rows in batches. Raises InputError: it is damaged, or of another format than its
    suffix says; also while rows are read."""
    read, expected = next(of for suffixes, of in READERS.items() if path.name.lower().endswith(suffixes))
    with reading(path, expected):
        schema, batches = read(path)
        _ = schema.names  # which are decoded now
    if not schema.names:
        raise InputError(f"{path} has no columns; expected {expected}")
    return schema, _valid(batches, path, expected)


def _valid(batches: Iterator[pa.RecordBatch], path: Path, expected: str) -> Iterator[pa.RecordBatch]:
    with reading(path, expected):
        for batch in batches:
            batch.validate(full=True)  # text that is no UTF-8
            yield batch
