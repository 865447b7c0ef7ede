"""Files of one table that are neither Parquet nor CSV: Feather (Arrow IPC), JSON lines and ORC."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from .....storage.errors import InputError
from ...cleaning.arrow import reading
from ...schema.files import ARROW, JSON_LINES


def _feather(path: Path) -> pa.Table:
    import pyarrow.ipc

    with pa.memory_map(str(path)) as file:
        if file.read(6) == b"ARROW1":
            return pyarrow.ipc.open_file(file).read_all()
        file.seek(0)
        return pyarrow.ipc.open_stream(file).read_all()


def _json_lines(path: Path) -> pa.Table:
    import pyarrow.json

    # A block holds at least one line; rows of features may be long.
    options = pyarrow.json.ReadOptions(block_size=16 << 20)
    with pa.input_stream(str(path), compression="detect") as file:
        return pyarrow.json.read_json(file, options)


def _orc(path: Path) -> pa.Table:
    import pyarrow.orc

    return pyarrow.orc.read_table(path)


READERS: dict[tuple[str, ...], tuple[Callable[[Path], pa.Table], str]] = {
    ARROW: (_feather, "an Arrow IPC (Feather) file"),
    JSON_LINES: (_json_lines, "one JSON object in each line"),
    (".orc",): (_orc, "an ORC file"),
}
"""Readers by the suffixes of files, and what they expect."""


def read_table_file(path: Path) -> pa.Table:
    """All rows of a file.

    Raises:
        InputError: it is damaged, or of another format than its suffix says.
    """
    read, expected = next(of for suffixes, of in READERS.items() if path.name.lower().endswith(suffixes))
    with reading(path, expected):
        table = read(path)
        _ = table.column_names  # which are decoded now
        table.validate(full=True)  # text that is no UTF-8
    if not table.num_columns:
        raise InputError(f"{path} has no columns; expected {expected}")
    return table
