"""The tables of a graph, read into memory by their schema: nodes are numbered, and columns become arrays."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ....storage.errors import InputError
from ....storage.node_names import NodeNames
from ....storage.optional import taken, when_present
from ..cleaning import node_ids
from ..cleaning.arrow import pc, with_columns
from ..cleaning.class_names import VALUES
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray, Faults, Raw, RawEdges, RawNodes, about, noted, refuse
from ..schema.columns import Columns
from ..schema.roles import Schema, schema_of
from ..schema.source import GraphTables, SourceTable
from . import derived_tables as derived
from . import described
from .csv_file import is_text_read
from .parquet import feature_names, feature_rows, labels_of, numbers_of, sets_of, split_bits, times_of
from .parquet_rapids import edges_in_order, is_read
from .reader import Request
from .tables import ReadTable, read_rows


def read_graph(source: GraphTables, request: Request) -> Raw:
    """The graph of some tables, as arrays to be cleaned. Raises InputError: a file, a column or an id is not as
    expected; says what to change."""
    options = request.options
    on_gpu = options.edges_on == "gpu" and options.dangling_edges == "error" and all(t.files for t in source.edges)
    with about(source.name if described.is_typed(source, options) else ""):
        opener = _InMemory(options, on_gpu)
        return _Reading(derived.open_graph(source, request, opener, has_edges=not on_gpu), opener).raw()


@dataclass(frozen=True)
class _InMemory:
    """Opens tables into memory; those of edges without their rows if these are `on_gpu`."""

    options: ReadOptions
    on_gpu: bool

    def open(self, table: SourceTable) -> ReadTable:
        """See `Opener`, as of all methods."""
        return derived.schema_only(table) if self.on_gpu and table.kind == "edges" else read_rows(table, self.options)

    def ids(self, ends: described.Ends, text: bool, of: SourceTable) -> pa.Array:
        if self.on_gpu:
            said = "edges_on is gpu, but there is no table of nodes, which the CPU takes from the edges then"
            raise InputError(f"{said}; leave edges_on out, or convert it")
        used = [node_ids.given_ids(next(table.pieces((c,)))[c]).drop_null() for _, table, c in ends]
        none = pa.chunked_array([], pa.large_string() if text else pa.int64())
        return derived.new_ids([none, *(node_ids.as_ids(c, text, what) for c, (what, *_) in zip(used, ends))])

    def by_relation(self, edges: ReadTable, column: str) -> tuple[dict[str, ReadTable], int]:
        parts = derived.rows_by_relation(edges.rows, column)
        return {name: replace(edges, rows=rows) for name, rows in parts.items()}, edges.rows[column].null_count

    def with_rows(self, nodes: ReadTable, ids: pa.Array, column: str) -> ReadTable:
        rows = nodes.rows
        if column not in rows.column_names:
            rows = rows.append_column(column, pa.array(np.arange(len(rows))))
        ids_of = node_ids.as_ids(rows[column], node_ids.is_text(ids.type), f"nodes.{column}")
        rows = with_columns(rows, {column: ids_of})
        none = {f.name: [0.0] * f.type.list_size if VALUES in (f.metadata or {}) else None for f in rows.schema}
        more = {f.name: pa.repeat(pa.scalar(none[f.name], f.type), len(ids)) for f in rows.schema}
        added = pa.table(more | {column: ids.cast(rows.schema.field(column).type)}, schema=rows.schema)
        return replace(nodes, rows=pa.concat_tables([rows, added]))


def schema_at(source: GraphTables, options: ReadOptions) -> Schema:
    """The schema of some tables; of Parquet without their rows. Raises InputError like `read_graph`."""
    every = [
        derived.schema_only(t)
        if t.files and all(f.name.lower().endswith(".parquet") for f in t.files)
        else read_rows(t, options)
        for t in source.tables
    ]
    return schema_of(source, [read.rows.schema for read in every], options)


@dataclass(eq=False)
class _Nodes:
    """One node type: its table, and the numbers of its nodes."""

    read: ReadTable
    columns: Columns
    order: AnyArray | slice = field(default_factory=lambda: slice(None))
    """Order of the rows by id, or as they are."""
    names: NodeNames | None = None
    gaps: AnyArray | None = None
    """Ascending ids, where they are integers and not 0 to V - 1."""

    def number(self, text: bool, options: ReadOptions, notes: list[str]) -> None:
        """Number the nodes, which are called by `text` or by numbers. Raises InputError: an id is null, belongs to two
        nodes, or is missing."""
        if (key := self.columns.id) is None:
            return
        given, what = node_ids.given_ids(self.read.rows[key]), f"nodes.{key}"
        node_ids.check_every_id(what, given.null_count, is_text_read(self.read.source, key))
        ids = node_ids.as_ids(given, text, what)
        if text:
            self.names = node_ids.as_names(ids, what)
            return
        self.order = np.argsort(numbers := ids.to_numpy(), kind="stable")
        self.gaps = node_ids.with_gaps(numbers[self.order], options, notes, what)
        self.names = when_present(NodeNames.of_integers, self.gaps)

    def numbers(self, ids: pa.ChunkedArray) -> AnyArray:
        """Numbers of the nodes with some ids; of ids that are no node's, below 0 or from the number of nodes."""
        if node_ids.is_text(ids.type) and self.names is not None:
            return pc.fill_null(pc.index_in(ids, value_set=self.names.as_arrow()), -1).to_numpy()
        return ids.to_numpy() if self.gaps is None else node_ids.renumbered(self.gaps, ids.to_numpy())

    def ordered(self, values: Any) -> Any:
        """Values of the rows, in the order of the nodes."""
        return taken(values, self.order)


class _Reading:
    """The arrays of an open graph."""

    def __init__(self, opened: derived.OpenGraph[ReadTable], by: _InMemory) -> None:
        self.opened, self.options, self.source, self.schema = opened, opened.options, opened.source, opened.schema
        self.notes, self.faults, self._by = opened.notes, Faults(), by
        self.ends, self.outside = dict[tuple[int, int], AnyArray](), dict[tuple[int, int], AnyArray]()
        self.edges = [own for own in opened.tables if own[0].source.kind == "edges"]
        self.nodes = {str(r.source.type): _Nodes(r, own) for r, own in opened.tables if r.source.kind == "nodes"}

    def raw(self) -> Raw:
        """The graph."""
        edges = dict[Any, RawEdges]()
        own, (read, columns) = next(iter(self.nodes.values())), self.edges[0]
        if self._by.on_gpu and (found := self._in_order(own, read)) is not None:
            edges = {None: found}
        else:
            if self._by.on_gpu:  # the CPU reads names, and reports defects
                read = read_rows(read.source, self.options)
                described.schema_of_open(self.source, [own.read, read], self.options, draws_split=False)
                self.edges = [(read, columns)]
            self._number()
            edges = {read.source.type: self._edges_of(k) for k, (read, _) in enumerate(self.edges)}
        nodes = {}
        target, labels, bits = self.schema.target, None, None
        for own in sorted(self.nodes.values(), key=lambda own: own.read.source.type != target):  # that one comes first
            rows, columns, kind, title = own.read.rows, own.columns, own.read.source.type, own.columns.table
            with about(own.read.source.of_type):
                if kind == target:
                    labels, bits = labels_of(rows, columns.labels, title), own.ordered(split_bits(rows, columns))
                    names = columns.labels if self.options.label_columns and columns.labels else None
                    labels = replace(labels, values=own.ordered(labels.values), label_names=names)
                x, time = feature_rows(rows, columns.features, title), times_of(rows, columns.time, title)
                x, time = own.ordered(x), own.ordered(time)
                names = feature_names(rows, columns.features, 0 if x is None else x.shape[1])
                nodes[kind] = RawNodes(x, tuple(names), time, own.names, count=rows.num_rows)
        given = dict[str, Any](hint=self.source.hint, notes=tuple(self.notes), read=self.schema.record())
        given["add_reverse"] = self.source.is_typed and self.options.direction == "undirected"
        return Raw(self.source.name, edges, labels, nodes, target, sets_of(bits), faults=self.faults, **given)

    def _in_order(self, own: _Nodes, edges: ReadTable) -> RawEdges | None:
        """The edges as GPUs sort them; None if the CPU has to report a defect."""
        key, columns = own.columns.id, self.edges[0][1]
        if (key is not None and node_ids.is_text(own.read.rows[key].type)) or not is_read(columns, self.options):
            return None
        notes = list[str]()
        own.number(False, self.opened.numbering, notes)
        if (found := edges_in_order(edges.source.files, own.read.num_rows, own.gaps, self.options)) is None:
            own.order, own.names = slice(None), None
        else:
            self.notes += notes
        return found

    def _number(self) -> None:
        """Number the nodes of all types, and the ends of edges."""
        for own in self.nodes.values():
            t = own.read.source.type
            notes = self.opened.added[t]
            with self.faults.noted(), about(own.read.source.of_type):
                own.number(self.opened.ids_are_text[t], self.opened.numbering, notes)
            self.notes += noted(t, notes)
        refuse(self.faults)
        for own in self.nodes.values():
            of = own.read.source
            with self.faults.noted(), about(of.of_type):
                sides = [(k, i) for k, (read, _) in enumerate(self.edges) for i in read.source.sides_at(of)]
                self.faults += node_ids.faults_of_ends([self._end(k, i, own) for k, i in sides], of.of_type)

    def _end(self, k: int, side: int, own: _Nodes) -> node_ids.EndColumn:
        """Number the nodes at one end of a table's edges. Those that are no nodes are counted if they are an error."""
        read, columns = self.edges[k]
        name, t = columns.ends[side], own.read.source.type
        given, what = node_ids.given_ids(read.rows[name]), f"{columns.table}.{name}"
        ids = node_ids.as_ids(given.drop_null(), self.opened.ids_are_text[t], what)
        self.ends[k, side] = numbers = own.numbers(ids)
        self.outside[k, side] = outside = (numbers < 0) | (numbers >= own.read.num_rows)
        is_error = self.options.dangling_edges == "error" and not (t is None and own.names is None)
        count, quote = int(outside.sum()) if is_error else 0, "'" if node_ids.is_text(ids.type) else ""
        first = f"{quote}{ids[int(np.argmax(outside))]}{quote}" if count else None
        return node_ids.EndColumn(what, given.null_count, is_text_read(read.source, name), count, first)

    def _edges_of(self, k: int) -> RawEdges:
        """The edges of a table."""
        read, columns = self.edges[k]
        rows, stem, kept = read.rows, columns.table, slice(None)
        ends = [np.empty(0, np.int64) if self.faults else self.ends[k, side] for side in range(2)]
        if self.options.dangling_edges == "drop" and not self.faults:
            dangling = self.outside[k, 0] | self.outside[k, 1]
            self.notes += described.dropped_notes([(stem, int(dangling.sum()))])
            kept = ~dangling if dangling.any() else kept
        with about(read.source.of_type):
            weight = when_present(lambda name: numbers_of(rows[name], f"{stem}.{name}"), columns.weight)
            features, times = feature_rows(rows, columns.features, stem), times_of(rows, columns.time, stem)
        src, dst, weight, features, times = (taken(a, kept) for a in (*ends, weight, features, times))
        names = feature_names(rows, columns.features, 0 if features is None else features.shape[1])
        return RawEdges((src, dst), weight, features, tuple(names), times)
