"""Tables that a file describes: a folder of DGL's ``CSVDataset`` with ``meta.yaml``, and the JSON by which GraphStorm
constructs a graph (``gconstruct`` or ``gsprocessing``). It says which columns are ids, ends, features and labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv

from .....storage.errors import InputError, first_line
from .....storage.plural import were
from ...cleaning.arrow import pc, reading
from ...schema.source import GraphTables, Request, Role, SourceTable
from .kinds import META

ENDS: tuple[Role, Role] = ("source", "target")
UNUSED = ("transform", "custom_split_filenames", "sampling", "decode_list", "feature_dim")
"""Keys of GraphStorm that are named where they are not followed."""


def _listed(record: Any, key: str, where: str) -> list[Mapping[str, Any]]:
    """The objects in a list of a description."""
    found = record.get(key, []) if isinstance(record, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise InputError(f"{where}: {key} is no list of objects; expected one for each file or type")
    return found


def _text(of: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    found = of.get(key, default)
    if not isinstance(found, str) or not found:
        raise InputError(f"{where}: {key} is {str(found)[:80]!r}; expected a name")
    return found


# -- DGL


def read_dgl(folder: Path, request: Request) -> GraphTables:
    """The tables of a folder with ``meta.yaml``, as ``dgl.data.CSVDataset`` reads them. Raises InputError: a file is
    missing or damaged, or there are several graphs."""
    import yaml

    path = folder / META
    with reading(path, "node_data and edge_data"):
        try:
            record = yaml.safe_load(path.read_text())
        except yaml.YAMLError as e:
            raise ValueError(first_line(e)) from e
    if isinstance(record, Mapping) and record.get("graph_data"):
        raise InputError(f"{path} describes many graphs (graph_data); expected one: write its files without graph_id")
    separator = record.get("separator", ",") if isinstance(record, Mapping) else ","
    nodes, edges = (_listed(record, key, str(path)) for key in ("node_data", "edge_data"))
    if not edges:
        raise InputError(f"{path} names no edge_data; expected at least one file of edges")
    typed = any("ntype" in of for of in nodes) or any("etype" in of for of in edges)
    tables = []
    for of in nodes:
        file = folder / _text(of, "file_name", str(path))
        roles: dict[str, Role] = {_text(of, "node_id_field", str(path), "node_id"): "id"}
        kind = of.get("ntype", "_V") if typed else None
        tables.append(SourceTable("nodes", (file,), kind, _csv(file, separator), roles))
    for of in edges:
        file = folder / _text(of, "file_name", str(path))
        ends = (_text(of, f"{end}_id_field", str(path), f"{end}_id") for end in ("src", "dst"))
        roles = dict(zip(ends, ENDS))
        relation = _relation(of.get("etype", ["_V", "_E", "_V"]), str(path)) if typed else None
        tables.append(SourceTable("edges", (file,), relation, _csv(file, separator), roles))
    read = {META, *(table.files[0].name for table in tables)}
    left = tuple(
        (f.name, f"{META} does not name it") for f in sorted(folder.iterdir()) if f.is_file() and f.name not in read
    )
    notes = (f"The tables are those of {path.name}.",)
    return GraphTables(request.called(folder), folder, tuple(tables), left, None, notes)


def _relation(of: Any, where: str) -> tuple[str, str, str]:
    if not (isinstance(of, list) and len(of) == 3 and all(isinstance(part, str) for part in of)):
        raise InputError(f"{where}: the relation {str(of)[:80]} is no list of source type, name and destination type")
    return of[0], of[1], of[2]


def _csv(path: Path, separator: str) -> pa.Table:
    """A CSV file; a column of texts of numbers between commas becomes one of lists."""
    with reading(path, seen="cannot be read as CSV"):
        table = arrow_csv.read_csv(path, parse_options=arrow_csv.ParseOptions(delimiter=separator))
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type) and table.num_rows and pc.all(pc.match_substring(table[at], ",")).as_py():
            try:
                lists = pc.split_pattern(table[at], ",").cast(pa.list_(pa.float64()))
            except pa.ArrowException:  # other text
                continue
            table = table.set_column(at, field.name, lists)
    return table


# -- GraphStorm


def is_graphstorm(record: Any) -> bool:
    """True for a JSON object that describes files of nodes or edges."""
    parts = record.get("graph", record) if isinstance(record, Mapping) else None
    edges = parts.get("edges") if isinstance(parts, Mapping) else None
    return isinstance(edges, list) and any(isinstance(of, Mapping) and ("files" in of or "data" in of) for of in edges)


def read_graphstorm(record: Any, path: Path, name: str) -> GraphTables:
    """The tables that a JSON file describes; files are looked for from its folder. Raises InputError: a file is
    missing, a type is described twice, or a field has another form."""
    where, notes, tables = str(path), list[str](), list[SourceTable]()
    nodes, edges = (_listed(record.get("graph", record), key, where) for key in ("nodes", "edges"))
    for of in map(_as_gconstruct, nodes):
        t = _text(of, "node_type", where)
        roles: dict[str, Role] = {_text(of, "node_id_col", f"{where}: node type {t}", ""): "id"}
        tables.append(_described("nodes", t, of, path, roles, notes))
    for of in map(_as_gconstruct, edges):
        relation = _relation(of.get("relation"), where)
        ends = (_text(of, key, where) for key in ("source_id_col", "dest_id_col"))
        tables.append(_described("edges", relation, of, path, dict(zip(ends, ENDS)), notes))
    titles = [table.title for table in tables]
    if again := next((title for title in titles if titles.count(title) > 1), None):
        raise InputError(f"{where} describes {again} more than once; expected one entry with all its files and columns")
    known = {table.type for table in tables if table.kind == "nodes"}
    if len(tables) == 2 and known == {end for table in tables if table.kind == "edges" for end in table.ends}:
        tables = [SourceTable(t.kind, t.files, None, t.rows, t.roles) for t in tables]
    notes.insert(0, f"The tables are those that {path.name} describes.")
    return GraphTables(name, path, tuple(tables), notes=tuple(notes), adds_nodes=True)


def _as_gconstruct(of: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry of ``gsprocessing`` in the words of ``gconstruct``."""
    if not isinstance(data := of.get("data"), Mapping):
        return of
    ours: dict[str, Any] = {"files": data.get("files"), "format": {"name": data.get("format"), **data}}
    if "type" in of:
        ours |= {"node_type": of["type"], "node_id_col": of.get("column")}
    ends = [of.get(key) for key in ("source", "relation", "dest")]
    if all(isinstance(end, Mapping) for end in ends):
        source, relation, dest = (dict(end or {}) for end in ends)
        ours |= {"source_id_col": source.get("column"), "dest_id_col": dest.get("column")}
        ours["relation"] = [source.get("type"), relation.get("type"), dest.get("type")]
    for key, column in (("features", "feature_col"), ("labels", "label_col")):
        ours[key] = [{**each, column: each.get("column")} for each in of.get(key, []) if isinstance(each, Mapping)]
    return ours


def _described(
    kind: Any, of_type: Any, of: Mapping[str, Any], path: Path, roles: dict[str, Role], notes: list[str]
) -> SourceTable:
    title = SourceTable(kind, (), of_type).title
    where = f"{path}: {title}"
    given: Mapping[str, Any] = of["format"] if isinstance(of.get("format"), Mapping) else {}
    layout = given.get("name")
    if layout not in ("csv", "parquet"):
        raise InputError(f"{where}: format is {str(layout)[:40]!r}; expected parquet or csv: write the files again")
    files = _files(of.get("files"), path.parent, where)
    for key, column, role in (("features", "feature_col", "feature"), ("labels", "label_col", "label")):
        for each in _listed(of, key, where):
            columns = each.get(column)
            for c in [columns] if isinstance(columns, str) else columns or ():
                roles.setdefault(str(c), role)
            if unused := [k for k in UNUSED if each.get(k)]:
                notes.append(f"{title}.{columns}: {', '.join(unused)} of {path.name} {were(len(unused))} not followed.")
            share = each.get("split_pct") or each.get("split_rate")
            if isinstance(share, list) and len(share) > 1:
                notes.append(f"{title}.{columns} is to be split by {share}: set split=fraction:{share[0]},{share[1]}.")
    separator = given.get("separator", ",")
    rows = None if layout == "parquet" or separator == "," else pa.concat_tables([_csv(f, separator) for f in files])
    return SourceTable(kind, tuple(files), of_type, rows, roles)


def _files(given: Any, folder: Path, where: str) -> list[Path]:
    patterns: Iterable[Any] = [given] if isinstance(given, str) else given if isinstance(given, Sequence) else ()
    found: list[Path] = []
    for pattern in map(str, patterns):
        own = Path(pattern)
        base, rest = (Path(own.anchor), str(own.relative_to(own.anchor))) if own.is_absolute() else (folder, pattern)
        here = sorted(f for f in base.glob(rest) if f.is_file()) if rest not in ("", ".") else []
        if not here:
            raise InputError(
                f"{where}: no file is at {pattern}; expected a path from the folder of the JSON file, or a whole one"
            )
        found += here
    if not found:
        raise InputError(f"{where} names no files; expected a path, or a list of them")
    return found
