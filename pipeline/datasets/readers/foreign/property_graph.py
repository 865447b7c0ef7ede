"""Exports of graph databases as CSV, whose headers name the roles of columns: Neo4j's ``:ID``, ``:START_ID``,
``:END_ID``, ``:LABEL``, ``:TYPE`` and Neptune's ``~id``, ``~from``, ``~to``, ``~label``; others are ``name:type``.

Nodes of several labels, or edges of several types, make a graph with types; of one, a plain one. A header may be a file
of its own, as ``persons-header.csv`` beside ``persons-1.csv``.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv

from .....storage.errors import InputError
from .....storage.plural import counted, were
from ...cleaning.arrow import pc, reading, with_columns
from ...cleaning.node_ids import in_one_kind
from ...cleaning.options import ReadOptions
from ...schema.files import CSV
from ...schema.source import GraphTables, Kind, Request, Role, SourceTable
from .kinds import first_line_of, has_marks, separator_of

KEYS = {
    "id": "id", "start_id": "source", "end_id": "target", "from": "source", "to": "target", "label": "label",
    "type": "label",
}  # fmt: skip
ROLES: dict[str, Role] = {"id": "id", "source": "source", "target": "target", "label": "not read"}
"""Roles of columns in tables. Types of nodes and edges are in the tables' own types."""
_FIELD = re.compile(
    r"(?P<name>[^:~]*)[:~](?P<key>ID|START_ID|END_ID|LABEL|TYPE|IGNORE|id|from|to|label)(?:\((?P<space>[^)]*)\))?"
)
_PROPERTY = re.compile(r"(?P<name>.+):(?P<type>[A-Za-z]+)(?P<list>\[\])?(?:\([^)]*\))?(?:\{.*\})?")
TYPES = {
    **dict.fromkeys(("int", "integer", "long", "short", "byte"), pa.int64()),
    **dict.fromkeys(("float", "double"), pa.float64()),
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("string", "char", "point", "duration", "time", "localtime"), pa.string()),
    **dict.fromkeys(("date", "datetime", "localdatetime"), None),
}
"""Types of properties; None: Arrow tells the type of a date by its values."""
NO_TYPE, NO_RELATION = "node", "to"
"""Types of nodes without a label and of edges without a type, where others have one."""


@dataclass(frozen=True)
class Header:
    """The first line of a file."""

    separator: str
    columns: tuple[str, ...]
    """Names in the table: those of properties without their types."""
    roles: dict[str, str]
    """Roles of columns by `KEYS`."""
    types: dict[str, pa.DataType]
    lists: tuple[str, ...]
    spaces: dict[str, str]
    """Id spaces by role: ``:ID(User)``."""
    ignored: tuple[str, ...]

    @property
    def kind(self) -> Kind | None:
        """The kind of table; None if it is no part of a property graph."""
        found = set(self.roles.values())
        return "edges" if {"source", "target"} <= found else "nodes" if "id" in found else None


def header_of(path: Path) -> Header | None:
    """The header of a CSV file if it is one of a property graph; None otherwise. It never raises."""
    if not has_marks(line := first_line_of(path)):
        return None
    separator = separator_of(line)
    columns, roles, types, lists, spaces, ignored = [], {}, {}, [], {}, []
    for cell in next(csv.reader([line], delimiter=separator)):
        cell, name = cell.strip(), cell.strip()
        if field := _FIELD.fullmatch(cell):
            name = field["name"] or cell.partition("(")[0]
            if field["key"] == "IGNORE":
                ignored.append(name)
            else:
                roles[name] = KEYS[field["key"].lower()]
                spaces[roles[name]] = field["space"] or ""
                types[name] = pa.string()
        elif (field := _PROPERTY.fullmatch(cell)) and field["type"].lower() in TYPES:
            name, kind = field["name"], TYPES[field["type"].lower()]
            if field["list"]:
                lists.append(name)
            elif kind is not None:
                types[name] = kind
        columns.append(name)
    if "source" in roles.values():  # edges have no use for an id of their own
        roles = {name: role for name, role in roles.items() if role != "id"}
    header = Header(separator, tuple(columns), roles, types, tuple(lists), spaces, ignored=tuple(ignored))
    return header if header.kind is not None else None


def _rows(path: Path, header: Header, *, skip: bool) -> pa.Table:
    types = {**header.types, **dict.fromkeys(header.lists, pa.string())}
    with reading(path, "CSV in UTF-8 whose values are of the types in its header"):
        table = arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(column_names=list(header.columns), skip_rows=int(skip)),
            arrow_csv.ParseOptions(delimiter=header.separator, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                null_values=[""], column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
    lists = {name: pc.split_pattern(table[name], ";") for name in header.lists}
    return with_columns(table, lists).drop_columns(list(header.ignored))


@dataclass(frozen=True)
class _Part:
    """Rows of nodes or edges in one file, and the type of each."""

    path: Path
    header: Header
    rows: pa.Table
    types: pa.ChunkedArray

    def name_of(self, role: str) -> str:
        """The column with a role."""
        return next(name for name, own in self.header.roles.items() if own == role)


def read(folder: Path, request: Request) -> GraphTables:
    """The tables of a folder. If `label_columns` names the labels of nodes, these are of one type. Raises InputError: a
    file is damaged, or an end is no node of a graph with types."""
    options = request.options
    parts, left = _parts(folder, options)
    ends = [[name for name, role in part.header.roles.items() if role != "label"] for part in parts]
    numbered = in_one_kind(*zip((part.rows for part in parts), ends))
    parts = [replace(part, rows=rows) for part, rows in zip(parts, numbered)]
    nodes, edges = ([part for part in parts if part.header.kind == kind] for kind in ("nodes", "edges"))
    if not edges:
        raise InputError(f"{folder} has no file of edges; expected a header with :START_ID and :END_ID, or ~from, ~to")
    notes = [f"Files of a property graph: {', '.join(part.path.name for part in parts)}."]
    typed = any(len({t for part in own for t in part.types.unique().to_pylist()}) > 1 for own in (nodes, edges))
    found: dict[tuple[bool, Any], list[_Part]] = {} if typed else {(False, None): nodes, (True, None): edges}
    dangling = 0
    for part in parts if typed else ():
        keys, is_edges = pa.table({"type": part.types}), part.header.kind == "edges"
        if is_edges:
            keys = keys.add_column(0, "source", _type_of_ends(part, "source", nodes))
            keys = keys.append_column("target", _type_of_ends(part, "target", nodes))
        known = keys.drop_null()
        dangling += keys.num_rows - known.num_rows
        for key in known.group_by(keys.column_names).aggregate([]).to_pylist():
            where = reduce(pc.and_, (pc.fill_null(pc.equal(keys[c], value), False) for c, value in key.items()))
            of_type = _Part(part.path, part.header, part.rows.filter(where), part.types.filter(where))
            found.setdefault((is_edges, tuple(key.values()) if is_edges else key["type"]), []).append(of_type)
    if dangling and not options.dangling_edges == "drop":
        raise InputError(
            f"{folder}: {counted(dangling, 'edge')} begin or end at an id of no node, whose type is not known; give "
            "those nodes a row, or set read.dangling_edges=drop"
        )
    if dangling:
        notes.append(f"{counted(dangling, 'edge')} at unknown nodes {were(dangling)} dropped (dangling_edges=drop).")
    tables = tuple(_joined("edges" if is_ else "nodes", of, own) for (is_, of), own in sorted(found.items()) if own)
    adds = typed and not nodes
    return GraphTables(request.called(folder), folder, tables, tuple(left), notes=tuple(notes), adds_nodes=adds)


def _parts(folder: Path, options: ReadOptions) -> tuple[list[_Part], list[tuple[str, str]]]:
    """The files of the graph, and those beside them with a reason for leaving them out."""
    files = sorted(f for f in folder.iterdir() if f.is_file())
    headers = {f: header for f in files if f.name.lower().endswith(CSV) and (header := header_of(f)) is not None}
    parts, taken = list[_Part](), set[Path]()
    for path, header in headers.items():
        rows = {path: _rows(path, header, skip=True)}
        if not rows[path].num_rows and "header" in path.name.lower():
            stem = re.sub(r"[-_]?header[-_]?", "", path.name.lower().partition(".")[0])
            own = [f for f in files if f not in headers and f.name.lower().startswith(stem) and f.name.endswith(CSV)]
            rows = {f: _rows(f, header, skip=False) for f in own}
            taken.update(own)
        parts += [_Part(f, header, table, _types(f, header, table, options)) for f, table in rows.items()]
    return parts, [(f.name, "its header has no :ID or ~id") for f in files if f not in headers and f not in taken]


def _types(path: Path, header: Header, rows: pa.Table, options: ReadOptions) -> pa.ChunkedArray:
    """Type of each row: the first of its labels; else the id space of nodes, or a word."""
    for role in ("source", "target") if header.kind == "edges" else ("id",):
        name = next(name for name, own in header.roles.items() if own == role)
        if nulls := rows[name].null_count:
            raise InputError(f"{path}: {counted(nulls, 'row')} without {name}; expected an id in every row")
    default = NO_RELATION if header.kind == "edges" else header.spaces.get("id") or NO_TYPE
    column = next((name for name, own in header.roles.items() if own == "label"), None)
    if column is None or (header.kind == "nodes" and column in (options.names("label_columns") or ())):
        return pa.chunked_array([pa.repeat(default, rows.num_rows)])
    first = pc.replace_substring_regex(pc.fill_null(rows[column], ""), ";.*", "")
    return pc.if_else(pc.equal(first, ""), default, first)


def _type_of_ends(part: _Part, role: str, nodes: Sequence[_Part]) -> pa.ChunkedArray:
    """Type of the node at an end of each edge; null if there is none."""
    if not nodes:
        return pa.chunked_array([pa.repeat(NO_TYPE, part.rows.num_rows)])
    space = part.header.spaces.get(role)
    among = [own for own in nodes if not space or own.header.spaces.get("id") == space]
    ids = pa.chunked_array(
        [chunk for own in among for chunk in own.rows[own.name_of("id")].chunks], part.rows[part.name_of(role)].type
    )
    types = pa.chunked_array([chunk for own in among for chunk in own.types.chunks], pa.string())
    return types.take(pc.index_in(part.rows[part.name_of(role)], value_set=ids))


def _joined(kind: Kind, of: Any, parts: Sequence[_Part]) -> SourceTable:
    """One table of the rows of all parts, without columns that have no values in any."""
    parts = [part for part in parts if part.rows.num_rows] or list(parts[:1])
    names = {role: name for name, role in parts[0].header.roles.items()}
    # Files may call a role by several names: the first one's are taken.
    tables = [
        part.rows.rename_columns([names.get(part.header.roles.get(c, ""), c) for c in part.rows.column_names])
        for part in parts
    ]
    table = pa.concat_tables(tables, promote_options="permissive")
    empty = [c for c in table.column_names if table.num_rows and table[c].null_count == table.num_rows]
    roles = {name: ROLES[role] for role, name in names.items()}
    return SourceTable(kind, tuple(part.path for part in parts), of, table.drop_columns(empty), roles)
