"""Files of graphs with attributes: GML, GraphML, GEXF, Pajek and adjacency lists by NetworkX, and node-link JSON.

Attributes of nodes and edges become columns under their own names.
"""

import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from .....storage.errors import NOT_READABLE, InputError, MissingExtraError, first_line, install
from ...cleaning.arrow import in_utf8, reading
from ...cleaning.node_ids import in_one_kind
from ...cleaning.raw import Hint
from ...schema.source import GraphTables, Request, Role, SourceTable
from .declared import is_graphstorm, read_graphstorm
from .kinds import JSON, networkx_reader

ID, ENDS = "id", ("source", "target")
DISPLAY: dict[str, tuple[str, ...]] = {
    "read_pajek": ("label", "x", "y", "shape"),
    "read_gml": ("label", "graphics"),
    "read_gexf": ("label", "viz"),
}
"""Attributes that say how a node is shown, which are neither features nor classes."""
LINKS = ("links", "edges")


def read_network(path: Path, request: Request) -> GraphTables:
    """The tables of a file of JSON, or of one that NetworkX reads. Nodes are called as NetworkX calls them: in GML and
    Pajek by their labels, if these differ. Raises MissingExtraError: NetworkX is not installed; InputError: the file is
    damaged, or holds several graphs."""
    if path.name.lower().endswith(JSON):
        return read_json(path, request.called(path))
    try:
        import networkx as nx
    except ImportError:
        raise MissingExtraError(f"{path} is read by NetworkX, which is not installed: {install('networkx')}") from None
    reader = networkx_reader(path) or "read_edgelist"
    # Edges of a list may repeat, and their direction is not known.
    kind = {"create_using": nx.MultiDiGraph} if reader.endswith("list") else {}
    try:
        own = {"read_gml": _read_gml, "read_gexf": _read_gexf, "read_pajek": _read_pajek}.get(reader)
        graph: Any = getattr(nx, reader)(path, **kind) if own is None else own(nx, path)
        if reader == "read_adjlist" and any("{" in node for node in graph):
            graph = nx.read_multiline_adjlist(path, create_using=nx.MultiDiGraph)
        if not hasattr(graph, "nodes"):
            raise InputError(f"it holds {len(graph)} graphs; expected one")
        nodes = {} if reader == "read_edgelist" else {node: dict(of) for node, of in graph.nodes(data=True)}
        edges = [(source, target, dict(attributes)) for source, target, attributes in graph.edges(data=True)]
    except Exception as e:  # damage makes NetworkX's parsers raise errors of many kinds
        if isinstance(e, PermissionError):
            raise InputError(f"{path}: {NOT_READABLE}") from e
        said = f"{path} cannot be read by networkx.{reader} ({first_line(e)[:200]})"
        raise InputError(f"{said}; {in_utf8(path, e) or f'expected a {reader[5:]} file'}") from e
    hint = None if kind else Hint("directed" if graph.is_directed() else "undirected", f"the graph in {path.name} is")
    return graph_tables(request.called(path), path, nodes, edges, hint, DISPLAY.get(reader, ()))


def _read_pajek(nx: ModuleType, path: Path) -> Any:
    """A Pajek file with one section of edges that has any: NetworkX takes all further lines for edges of the first."""
    heading = rb"(?mi)^[ \t]*[*](?!network|vertices)"
    data = re.sub(heading + rb"[^\r\n]*(?:[\r\n]+(?=\s*[*])|\s*\Z)", b"", _bytes_of(path))
    if re.search(rb"(?mi)^[ \t]*[*]vertices[ \t]+\d+[ \t]+\d", data):
        raise InputError("its vertices are of two kinds; expected one: take the second number of *Vertices out")
    sections = {*re.findall(heading + rb"(\w+(?:\s*:\d+)?)", data.lower())}
    if len(sections) > 1 or not all(re.match(rb"(?:arcs|edges|matrix)\b", name) for name in sections):
        told = ", *".join(sorted(map(bytes.decode, sections)))
        raise InputError(f"it has *{told}; expected *Arcs alone: Pajek's Transform, Edges -> Arcs, makes them")
    return nx.read_pajek(io.BytesIO(data))


def _read_gml(nx: ModuleType, path: Path) -> Any:
    """A GML file, in which edges may repeat, as in Adamic's polblogs, without a word on it."""
    data = re.sub(rb"(?m)^(\s*graph\s*\[)", rb"\1 multigraph 1 ", _bytes_of(path), count=1)
    try:
        return nx.read_gml(io.BytesIO(data))
    except nx.NetworkXError as e:
        if "label" not in str(e):
            raise
    return nx.read_gml(io.BytesIO(data), label="id")  # labels are missing, or are not distinct


def _bytes_of(path: Path) -> bytes:
    with pa.input_stream(str(path), compression="detect") as file:
        return bytes(file.read())


def _read_gexf(nx: ModuleType, path: Path) -> Any:
    """A GEXF file of any version, with the namespaces of the last one that NetworkX knows, and its format of times."""
    data = re.sub(rb"<graph\b(?![^>]*timeformat)", rb'<graph timeformat="double"', _bytes_of(path), count=1)
    for key, name in ((b"xmlns", b"1.2draft"), (b"xmlns:viz", b"1.2draft/viz")):
        pattern = rb"(<gexf\b[^>]*?\s" + key + rb'=)"[^"]*"'
        data = re.sub(pattern, rb'\1"http://www.gexf.net/' + name + b'"', data, count=1)
    return nx.read_gexf(io.BytesIO(re.sub(rb"<attvalue id=", b"<attvalue for=", data)))


def graph_tables(
    name: str,
    path: Path,
    nodes: Mapping[Any, Mapping[str, Any]],
    edges: Iterable[tuple[Any, Any, Mapping[str, Any]]],
    hint: Hint | None,
    unread: Iterable[str] = (),
) -> GraphTables:
    """Tables of nodes and edges with attributes; those in `unread` have the role "not read". Without nodes, these are
    the ends of edges."""
    taken = {key for attributes in nodes.values() for key in attributes}
    key = ID if ID not in taken else "node"
    edges = list(edges)
    of_nodes = _table(path, {key: list(nodes)}, list(nodes.values()))
    ends = {end: [edge[at] for edge in edges] for at, end in enumerate(ENDS)}
    of_edges = _table(path, ends, [attributes for _, _, attributes in edges])
    of_nodes, of_edges = in_one_kind((of_nodes, [key]), (of_edges, ENDS))
    drawn: dict[str, Role] = {c: "not read" for c in unread if c in taken}
    roles: dict[str, Role] = {ENDS[0]: "source", ENDS[1]: "target"}
    rows = SourceTable("nodes", (path,), None, of_nodes, {key: "id", **drawn})
    tables = (rows, SourceTable("edges", (path,), None, of_edges, roles))
    return GraphTables(name, path, tables if nodes else tables[1:], (), hint)


def _table(path: Path, fixed: Mapping[str, list[Any]], rows: list[Mapping[str, Any]]) -> pa.Table:
    """Columns `fixed`, as text unless all are whole numbers, and one for each attribute of `rows`."""
    columns: dict[str, Any] = {}
    for key, values in fixed.items():
        whole = all(type(value) is int and -(2**63) <= value < 2**63 for value in values)
        columns[key] = pa.array(values, pa.int64()) if whole else pa.array([str(value) for value in values])
    for key in dict.fromkeys(key for row in rows for key in row):
        if key in columns:
            continue
        values = [row.get(key) for row in rows]
        try:
            columns[str(key)] = pa.array(values)
        except (pa.ArrowException, OverflowError, ValueError):  # values of several kinds
            columns[str(key)] = pa.array([None if value is None else str(value) for value in values])
    try:
        return pa.table(columns)
    except (pa.ArrowException, ValueError) as e:
        raise InputError(f"{path}: attributes are no columns ({first_line(e)[:200]}); rename them") from e


def read_json(path: Path, name: str) -> GraphTables:
    """The tables of a JSON file of nodes and links, as NetworkX, D3, Cytoscape, Graphology and the JSON Graph Format
    write them. Raises InputError: it is no JSON, or holds no nodes and links."""
    with reading(path, "an object with nodes and links", "is no JSON"):
        record: Any = json.loads(_bytes_of(path))
    if is_graphstorm(record):
        return read_graphstorm(record, path, name)
    directed = record.get("directed") if isinstance(record, dict) else None
    if isinstance(record, dict):
        inner = record.get("elements", record.get("graph"))
        record = inner if isinstance(inner, dict) and "nodes" in inner else record
    given = record.get("nodes") if isinstance(record, dict) else None
    lists = record.get("adjacency") if isinstance(record, dict) else None
    if isinstance(given, list) and isinstance(lists, list) and not {*LINKS} & {*record}:
        with reading(path, "as many lists of neighbours as nodes, as networkx.adjacency_data has them"):
            every = [(dict(node).get(ID), dict(of)) for node, own in zip(given, lists, strict=True) for of in own]
        ends = [(source, of.pop(ID, None), of) for source, of in every]
        record = {**record, "links": [{**of, ENDS[0]: source, ENDS[1]: target} for source, target, of in ends]}
    key = next((k for k in LINKS if isinstance(record.get(k), list)), None) if isinstance(record, dict) else None
    if isinstance(given, dict):  # JSON Graph Format
        given = [{ID: node, **(of if isinstance(of, dict) else {})} for node, of in given.items()]
    if key is None or not isinstance(given, list) or not all(isinstance(of, dict) for of in (*given, *record[key])):
        keys = ", ".join(map(str, list(record)[:8])) if isinstance(record, dict) else "a list"
        held = f"it holds {keys or 'nothing'}"
        raise InputError(f"{path} is no graph: expected an object with lists of nodes and links, as objects; {held}")
    nodes, links = [_flat(of) for of in given], [_flat(of) for of in record[key]]
    directed = record.get("directed", directed)
    hint = Hint("directed" if directed else "undirected", f"{path.name} says directed: {json.dumps(directed)}")
    names = _ids_of(path, nodes, links)
    found: dict[Any, dict[str, Any]] = {}
    for node, of in zip(names, nodes):
        if node in found:
            raise InputError(f"{path}: two nodes are called {str(node)[:80]!r}; give each its own id")
        found[node] = {k: v for k, v in of.items() if k != ID}
    edges = [
        (_end(path, of, ENDS[0]), _end(path, of, ENDS[1]), {k: v for k, v in of.items() if k not in ENDS})
        for of in links
    ]
    return graph_tables(name, path, found, edges, hint if directed is not None else None)


def _flat(of: Mapping[str, Any]) -> dict[str, Any]:
    """An object with what is in its ``data`` (Cytoscape), ``attributes`` (Graphology) or ``metadata`` (JSON Graph)."""
    found = dict(of)
    for inner in ("data", "attributes", "metadata"):
        if isinstance(found.get(inner), dict):
            found |= found.pop(inner)
    return found


def _ids_of(path: Path, nodes: list[dict[str, Any]], links: list[dict[str, Any]]) -> list[Any]:
    """The name of each node: its id or key; or, as in D3's older files, its place if links say places, or its name."""
    for key in (ID, "key"):
        if all(isinstance(of.get(key), str | int | float) for of in nodes):
            return [of.pop(key) for of in nodes]
    ends = [of.get(end) for of in links for end in ENDS]
    if all(type(end) is int and 0 <= end < len(nodes) for end in ends):
        return list(range(len(nodes)))
    if all(isinstance(of.get("name"), str) for of in nodes):
        return [of["name"] for of in nodes]
    raise InputError(f"{path}: nodes have no id; give each an id that links call it by")


def _end(path: Path, link: Mapping[str, Any], end: str) -> Any:
    found = link.get(end)
    if not isinstance(found, str | int | float):
        raise InputError(f"{path}: a link has {end} {str(found)[:40]}; expected the id of a node")
    return found
