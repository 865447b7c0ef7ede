"""Plain lists of edges: two columns of node ids without a header, and perhaps a weight, a time or others.

Lines that begin with ``#``, ``%`` or ``//`` are comments, of which two kinds say more: a line of names for the columns,
as SNAP writes, and KONECT's ``% sym|asym|bip WEIGHTS``. Columns are separated by tabs, commas, semicolons, bars or runs
of blanks; the file may be compressed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv

from .....storage.errors import InputError
from ...cleaning.arrow import reading
from ...cleaning.class_names import NO_CLASS
from ...cleaning.node_ids import in_one_kind
from ...cleaning.raw import Hint
from ...schema.source import GraphTables, Request, Role, SourceTable
from .kinds import MOST_COLUMNS, NUMBER, check_no_matrix
from .networks import read_network
from .refused import DIMACS, with_path

ENDS = {
    "source", "target", "src", "dst", "from", "to", "fromnodeid", "tonodeid", "sourceid", "targetid", "srcid", "dstid",
    "node1", "node2", "id1", "id2", "nodeid1", "nodeid2", "head", "tail", "u", "v", "i", "j", "dest", "destination",
}  # fmt: skip
"""Names of the first two columns in a header or comment, without blanks and marks, in lower case."""
HEAD_BYTES = 1 << 16
"""Bytes of a file by which its layout is told."""
_COMMENT = re.compile(r"\s*(?:#|%|//)")
_COMMENTS = re.compile(rb"(?m)^[ \t]*(?:[#%]|//).*(?:\r?\n|\Z)")
_KONECT = re.compile(r"%\s*(sym|asym|bip)\s+([a-z]+)\s*$")
EARLIEST_S, LATEST_S = 10**8, 10**10
"""Whole numbers between these in a third column are taken for seconds since 1970, from 1973 on, and a thousand times as
many for milliseconds."""


@dataclass(frozen=True)
class Layout:
    """Layout of a list of edges."""

    separator: str
    """One character, or a blank for runs of blanks and tabs."""
    width: int
    """Number of columns."""
    names: tuple[str, ...] | None
    """Names of the columns in the file; None: there are none."""
    has_header: bool
    """True if they are in the first line that is no comment."""
    hint: Hint | None
    is_bipartite: bool
    """True if sources and destinations are numbered apart."""
    konect: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """A name for each column."""
        return self.names or ("src", "dst", *(f"column_{i}" for i in range(3, self.width + 1)))


def has_dictionaries(path: Path) -> bool:
    """True if edges end in a dictionary of attributes, as ``networkx.write_edgelist`` writes them."""
    row = next((line for line in _head(path) if line.strip() and not _COMMENT.match(line)), "")
    return row.rstrip().endswith("}") and " {" in row


def _head(path: Path) -> list[str]:
    """The first lines."""
    with reading(path, "an edge in each line", "is not text in UTF-8"):
        with pa.input_stream(str(path), compression="detect") as file:
            data = file.read(HEAD_BYTES)
        text = data.decode("utf-8-sig", "strict" if len(data) < HEAD_BYTES else "ignore")
    lines = text.splitlines()
    return lines[:-1] if len(data) == HEAD_BYTES and len(lines) > 1 else lines


def layout_of(path: Path) -> Layout:
    """The layout of a list of edges, by its first lines. Raises InputError: there are no edges, or the lines have no
    two columns."""
    lines = _head(path)
    comments = [line.strip() for line in lines if _COMMENT.match(line)]
    rows = [line.strip() for line in lines if line.strip() and not _COMMENT.match(line)]
    if not rows:
        raise InputError(f"{path} has no edges; expected a line for each: source and destination")
    separator = _separator(rows)
    split = [_cells(row, separator) for row in rows]
    check_no_matrix(path, split, separator)
    first, width = split[0], len(split[0])
    bad = [row for row, cells in zip(rows, split) if not 2 <= len(cells) == width <= MOST_COLUMNS]
    if bad and re.match("[cp] ", rows[0]) and any(row.startswith("p ") for row in rows):
        raise InputError(f"{path} {with_path(DIMACS, path)}")
    if bad or (separator == " " and first[0].endswith(":")):
        said = f"{path} is read as a list of edges, but not the line '{(bad or rows)[0][:60]}'"
        more = f"at most {MOST_COLUMNS - 2} columns more, as many in every line, between tabs, blanks, commas, ; or |"
        raise InputError(f"{said}: expected a source, a destination and {more} (call a file of METIS .graph)")
    # A word for a number that is missing is no name of a column.
    named = [c for c in [*zip(*split)][2:] if c[0].lower() not in {*NO_CLASS, "n/a", "inf", "-inf"}]
    has_header = not any(NUMBER.fullmatch(cell) for cell in first) and (
        all(_plain(cell) in ENDS for cell in first[:2])
        or any(all(map(NUMBER.fullmatch, row[:2])) for row in split[1:])
        or any(all(map(NUMBER.fullmatch, column[1:])) for column in named if split[1:])
    )
    # A header that calls two columns alike names none.
    names = tuple(first) if has_header and len({*first}) == width else _named_in(comments, width)
    konect = next((found for line in comments if (found := _KONECT.match(line))), None)
    bipartite = konect is not None and konect[1] == "bip"
    return Layout(separator, width, names, has_header, _hint_of(comments, konect), bipartite, konect=konect is not None)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _separator(rows: Sequence[str]) -> str:
    if all(len(cells := row.split()) >= 2 and all(map(NUMBER.fullmatch, cells)) for row in rows):
        return " "
    for one in "\t,;|":
        if all(one in row for row in rows):
            return one
    return " "


def _cells(row: str, separator: str) -> list[str]:
    return row.split() if separator == " " else [cell.strip().strip('"') for cell in row.split(separator)]


def _named_in(comments: Sequence[str], width: int) -> tuple[str, ...] | None:
    """Names of the columns in a comment, as in SNAP's ``# FromNodeId ToNodeId``."""
    for line in reversed(comments):
        names = line.lstrip("#%/ \t").replace(",", " ").split()
        if len(names) == width and all(_plain(name) in ENDS for name in names[:2]) and len(set(names)) == width:
            return tuple(names)
    return None


def _hint_of(comments: Sequence[str], konect: re.Match[str] | None) -> Hint | None:
    if konect is not None:
        word = konect[1]
        return Hint("undirected" if word == "sym" else "directed", f"the file says % {word}")
    text = " ".join(comments).lower()
    for word in ("undirected", "directed"):  # the longer one first
        if f"{word} graph" in text or f"{word} network" in text:
            return Hint(word, f"a comment in the file says {word}")
    return None


def read_rows(path: Path, layout: Layout) -> pa.Table:
    """All edges of a file. Ends are integers if all are, else text. Raises InputError: a line has another number of
    columns."""
    with reading(path, f"the same {layout.width} columns in every line, in UTF-8"):
        with pa.input_stream(str(path), compression="detect") as file:
            data = file.read()
        data = _COMMENTS.sub(b"", data.removeprefix(b"\xef\xbb\xbf"))
        if layout.separator == " ":
            # One blank between columns, and none outside.
            data = re.sub(rb"(?m)^ | ?\r?$", b"", re.sub(rb"[ \t]+", b" ", data))
        names = list(layout.columns)
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(column_names=names, skip_rows=int(layout.has_header)),
            arrow_csv.ParseOptions(delimiter=layout.separator, quote_char=False if layout.separator == " " else '"'),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names[:2], pa.string()), strings_can_be_null=False),
        )
    return in_one_kind((table, names[:2]))[0]


def edge_list(path: Path, name: str | None = None) -> GraphTables:
    """A list of edges as a table, or as tables of two node types if KONECT says that it is bipartite."""
    own = path.name.removeprefix("out.")
    name = name or (own if own != path.name else own.partition(".")[0])
    if has_dictionaries(path):
        return read_network(path, Request(name))
    layout = layout_of(path)
    rows = read_rows(path, layout)
    names, notes = list(layout.columns), list[str]()
    roles: dict[str, Role] = {names[0]: "source", names[1]: "target"}
    if layout.names is None and layout.width > 2:
        kinds = ("weight", "time") if layout.konect else (_kind_of(rows[names[2]]),)
        for at, kind in enumerate(kinds[: layout.width - 2], 2):
            if kind is not None:
                names[at] = kind
                roles[kind] = kind
        rows = rows.rename_columns(names)
        why = "as KONECT writes them" if layout.konect else "by their values"
        notes.append(f"Columns of {path.name} have no names: {', '.join(names)} ({why}).")
    if not layout.is_bipartite:
        edges = SourceTable("edges", (path,), None, rows, roles)
        return GraphTables(name, path, (edges,), hint=layout.hint, notes=tuple(notes))
    ends = [
        SourceTable("nodes", (path,), t, pa.table({"id": rows[c].unique()}), {"id": "id"})
        for t, c in zip(("left", "right"), names)
    ]
    edges = SourceTable("edges", (path,), ("left", "to", "right"), rows, roles)
    notes.append("The file is bipartite: sources are nodes of type left, destinations of type right.")
    return GraphTables(name, path, (*ends, edges), (), None, tuple(notes))


def _kind_of(column: pa.ChunkedArray) -> Any:
    """weight or time, by the values of a third column without a name; None for text."""
    if pa.types.is_integer(column.type) and len(column):
        values = column.to_numpy()
        least, most = values.min(), values.max()
        if any(EARLIEST_S * k <= least and most < LATEST_S * k for k in (1, 1000)):
            return "time"
        # Edges that are written as they came, each at its time.
        if len(values) > 2 and (values[1:] >= values[:-1]).all() and most - least > len(values) ** 0.5:
            return "time"
    return "weight" if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) else None
