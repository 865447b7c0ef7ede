"""The tables of a graph, read into memory by their schema: nodes are numbered, and columns become arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ....storage.errors import InputError
from ....storage.node_names import NodeNames
from ....storage.optional import taken, when_present
from ..cleaning import node_ids
from ..cleaning.class_names import VALUES
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray, Faults, Raw, RawEdges, RawNodes, about, noted, refuse
from ..schema.columns import NONE, Columns
from ..schema.roles import Schema, schema_of
from ..schema.source import GraphTables
from . import derived_tables as derived
from . import described
from .csv_file import is_text_read
from .parquet import feature_names, feature_rows, labels_of, numbers_of, sets_of, split_bits, times_of
from .parquet_rapids import edges_in_order, is_read
from .reader import Request
from .tables import ReadTable, read_rows

End = tuple[int, int]
"""A table of edges, and 0 for its sources or 1 for its destinations."""


def read_graph(source: GraphTables, request: Request) -> Raw:
    """The graph of some tables, as arrays to be cleaned. Raises InputError: a file, a column or an id is not as
    expected; says what to change."""
    options = request.options
    if request.is_divided and options.split is None:
        options = replace(options, split=NONE)
    with about(source.name if described.is_typed(source, options) else ""):
        described.check_options(source, options)
        return _Reading(source, options, not (request.split or options.split)).raw()


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
    """One node type: its table, the ends of edges there, and the numbers of both."""

    read: ReadTable
    columns: Columns
    ends: dict[End, tuple[str, pa.ChunkedArray, bool]] = field(default_factory=dict)
    """Name for messages, values, and whether these are from CSV."""
    order: AnyArray | slice = field(default_factory=lambda: slice(None))
    """Order of the rows by id, or as they are."""
    names: NodeNames | None = None
    gaps: AnyArray | None = None
    """Ascending ids, where they are integers and not 0 to V - 1."""
    numbers: dict[End, AnyArray] = field(default_factory=dict)
    """Numbers of the nodes at the ends; of ids that are no node's, below 0 or from the number of nodes."""

    def ordered(self, values: Any) -> Any:
        """Values of the rows, in the order of the nodes."""
        return taken(values, self.order)


class _Reading:
    """Reads the tables of one source; `draws_split`: without columns of one, a split is drawn."""

    def __init__(self, source: GraphTables, options: ReadOptions, draws_split: bool) -> None:
        self.options, self.path, self.draws_split, self.faults = options, source.path, draws_split, Faults()
        nodes = [read_rows(t, options) for t in source.nodes]
        on_gpu = options.edges_on == "gpu" and all(t.files for t in source.edges)
        edges = [derived.schema_only(t) if on_gpu else read_rows(t, options) for t in source.edges]
        if on_gpu and not nodes:
            said = "edges_on is gpu, but there is no table of nodes, which the CPU takes from the edges then"
            raise InputError(f"{source.path}: {said}; leave edges_on out, or convert it")
        if not nodes or source.adds_nodes:
            source = derived.with_nodes_of_edges(source, edges, options, derived.ids_in_memory)
            nodes = [*(read_rows(t, options) for t in source.nodes[: len(source.nodes) - len(nodes)]), *nodes]
        if options.relation_column is not None and not source.is_typed:
            column, (read,) = (options.names("relation_column") or ("",))[0], edges
            derived.check_relation_column(source.path, column, read.rows.column_names, 0)
            derived.check_relation_column(source.path, column, read.rows.column_names, read.rows[column].null_count)
            parts = derived.rows_by_relation(read.rows, column)
            source = derived.by_relation(source, column, list(parts))
            nodes = [replace(own, source=t) for own, t in zip(nodes, source.nodes)]
            edges = [ReadTable(t, rows, read.heads) for t, rows in zip(source.edges, parts.values())]
            self.options = options = replace(options, relation_column=None)
        self.source = source
        reads = iter(nodes), iter(edges)
        every = [next(reads[t.kind == "edges"]) for t in source.tables]
        self.notes = list(source.notes)
        self.schema: Schema = described.schema_of_open(source, every, options, draws_split, has_edges=not on_gpu)
        self.notes += self.schema.notes
        self.edges, self.on_gpu = list(zip(edges, self.schema.edges)), on_gpu
        self.nodes = {str(r.source.type): _Nodes(r, c) for r, c in zip(nodes, self.schema.nodes)}
        described.check_read_on_gpus(self.source, self.schema, options)

    def raw(self) -> Raw:
        """The graph."""
        edges, given = dict[Any, RawEdges](), dict[str, Any]()
        own, (read, columns) = next(iter(self.nodes.values())), self.edges[0]
        if self.on_gpu and (found := self._in_order(own, read)) is not None:
            edges = {None: found}
        else:
            if self.on_gpu:  # the CPU reads names, and reports defects
                self.on_gpu, read = False, read_rows(read.source, self.options)
                described.schema_of_open(self.source, [own.read, read], self.options, self.draws_split)
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
        given |= {"hint": self.source.hint, "notes": tuple(self.notes), "read": self.schema.record()}
        given["faults"] = self.faults
        given["add_reverse"] = self.schema.source.is_typed and self.options.direction == "undirected"
        return Raw(self.source.name, edges, labels, nodes, target, split=sets_of(bits), **given)

    def _in_order(self, own: _Nodes, edges: ReadTable) -> RawEdges | None:
        """The edges as GPUs sort them; None if the CPU has to report a defect."""
        key, columns = own.columns.id, self.edges[0][1]
        if (key is not None and node_ids.is_text(own.read.rows[key].type)) or not is_read(columns, self.options):
            return None
        notes = list[str]()
        _number_nodes(own, False, described.numbering(self.source, self.options), notes)
        if (found := edges_in_order(edges.source.files, own.read.num_rows, own.gaps, self.options)) is None:
            own.order, own.names = slice(None), None
        else:
            self.notes += notes
        return found

    def _types_of(self, k: int) -> tuple[str, str]:
        source, destination = self.edges[k][0].source.ends
        return str(source), str(destination)

    def _number(self) -> None:
        """Number the nodes of all types, and the ends of edges."""
        for k, (read, columns) in enumerate(self.edges):
            for i, t in enumerate(self._types_of(k)):
                name = columns.ends[i]
                given = node_ids.given_ids(read.rows[name])
                self.nodes[t].ends[k, i] = (f"{columns.table}.{name}", given, is_text_read(read.source, name))
        options, texts = described.numbering(self.source, self.options), dict[str, bool]()
        for t, own in self.nodes.items():
            ends = described.ends_at(own.read.source, self.edges)
            with self.faults.noted(), about(own.read.source.of_type):
                texts[t] = described.are_called_by_text(self.path, own.read, own.columns, ends)
        refuse(self.faults)
        for t, own in self.nodes.items():
            notes: list[str] = []
            with self.faults.noted(), about(own.read.source.of_type):
                _number_nodes(own, texts[t], options, notes)
            self.notes += noted(own.read.source.type, notes)
        refuse(self.faults)
        for own in self.nodes.values():
            self.faults += node_ids.faults_of_ends(self._ends_at(own), own.read.source.of_type)

    def _ends_at(self, own: _Nodes) -> list[node_ids.EndColumn]:
        """The ends of edges at a node type; those that are no nodes are counted if they are an error."""
        named, columns = own.read.source.type is not None or own.names is not None, []
        for (what, values, from_csv), numbers in zip(own.ends.values(), own.numbers.values()):
            outside = (numbers < 0) | (numbers >= own.read.num_rows)
            quote = "'" if node_ids.is_text(values.type) else ""
            count = int(outside.sum()) if named and self.options.dangling_edges == "error" else 0
            first = f"{quote}{values[int(np.argmax(outside))]}{quote}" if count else None
            columns.append(node_ids.EndColumn(what, values.type, values.null_count, from_csv, count, first))
        return columns

    def _ends(self, k: int) -> tuple[tuple[AnyArray, AnyArray], AnyArray | slice]:
        """Numbers of both ends of a table's edges, and which edges are kept."""
        types = self._types_of(k)
        src, dst = (self.nodes[t].numbers[k, i] for i, t in enumerate(types))
        if self.options.dangling_edges != "drop":
            return (src, dst), slice(None)
        kept = np.ones(len(src), bool)
        for numbers, t in zip((src, dst), types):
            kept &= (numbers >= 0) & (numbers < self.nodes[t].read.num_rows)
        if kept.all():
            return (src, dst), slice(None)
        self.notes += described.dropped_notes([(self.edges[k][1].table, int((~kept).sum()))])
        return (src[kept], dst[kept]), kept

    def _edges_of(self, k: int) -> RawEdges:
        """The edges of a table."""
        nothing = np.empty(0, np.int64)
        (ends, kept) = ((nothing, nothing), slice(None)) if self.faults else self._ends(k)
        read, columns = self.edges[k]
        rows, stem = read.rows, columns.table
        with about(read.source.of_type):
            weight = when_present(lambda name: numbers_of(rows[name], f"{stem}.{name}"), columns.weight)
            features, times = feature_rows(rows, columns.features, stem), times_of(rows, columns.time, stem)
        weight, features, times = (taken(a, kept) for a in (weight, features, times))
        names = feature_names(rows, columns.features, 0 if features is None else features.shape[1])
        return RawEdges(ends, weight, features, tuple(names), times)


def _number_nodes(own: _Nodes, text: bool, options: ReadOptions, notes: list[str]) -> None:
    """Number the nodes of a type, which are called by `text` or by numbers, and the ends of edges there."""
    key, ids = own.columns.id, None
    of_ids = f"nodes.{key or 'id'}"
    columns = {what: node_ids.as_ids(given.drop_null(), text, what) for what, given, _ in own.ends.values()}
    if key is not None:
        given = node_ids.given_ids(own.read.rows[key])
        node_ids.check_id_column(of_ids, given.type, given.null_count, is_text_read(own.read.source, key))
        ids = node_ids.as_ids(given, text, of_ids)
    if options.dangling_edges == "add":
        ids = _with_added(own, ids, list(columns.values()), notes)
    if ids is not None and text:
        own.names, ends = node_ids.numbered_by_name(ids, columns, of_ids)
    else:
        ends = {what: column.to_numpy() for what, column in columns.items()}
        if ids is not None:
            numbers = ids.to_numpy()
            own.order = np.argsort(numbers, kind="stable")
            own.gaps = node_ids.with_gaps(numbers[own.order], options, notes, of_ids)
            if own.gaps is not None:
                own.names = NodeNames.of_integers(own.gaps)
                ends = {what: node_ids.renumbered(own.gaps, column) for what, column in ends.items()}
    own.numbers = {end: ends[what] for end, (what, _, _) in own.ends.items()}
    own.ends = {
        end: (what, given if given.null_count else columns[what], csv) for end, (what, given, csv) in own.ends.items()
    }


def _with_added(
    own: _Nodes, ids: pa.ChunkedArray | None, ends: Sequence[pa.ChunkedArray], notes: list[str]
) -> pa.ChunkedArray | None:
    """The ids with those that only edges name, which get rows of nulls."""
    rows = own.read.rows
    known = pa.chunked_array([np.arange(rows.num_rows)]) if ids is None else ids
    if not len(added := derived.new_ids(ends, known)):
        return ids
    notes.append(derived.added_note(len(added)))
    none = {f.name: [0.0] * f.type.list_size if VALUES in (f.metadata or {}) else None for f in rows.schema}
    more = pa.table({f.name: pa.repeat(pa.scalar(none[f.name], f.type), len(added)) for f in rows.schema})
    own.read = replace(own.read, rows=pa.concat_tables([rows, more]))
    return pa.chunked_array([*known.chunks, added], known.type)
