"""The tables of a graph, read into memory by their schema: nodes are numbered, and columns become arrays."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ....storage.dataset import Dataset
from ....storage.errors import InputError, nearest
from ....storage.node_names import NodeNames
from ....storage.plural import counted, were
from ....storage.typed.graph_types import RelationType
from ..cleaning.clean import check_no_target
from ..cleaning.labels import GivenLabels
from ..cleaning.node_ids import Columns as IdColumns
from ..cleaning.node_ids import as_one_kind, check_id_column, is_text, numbered_by_name, renumbered, unknown, with_gaps
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray, Ordered, Raw
from ..cleaning.typed import OF_NODES, TypedRaw, check_followed, clean_typed, noted
from ..schema.columns import NONE, Columns
from ..schema.roles import Schema, schema_of
from ..schema.source import GraphTables, SourceTable
from ..schema.unread import check_sets, check_unread
from .derived_tables import by_relation, schema_only, with_nodes_of_edges
from .parquet import feature_rows, labels_of, numbers_of, sets_of, split_bits, times_of
from .parquet_rapids import ordered_edges
from .reader import Request
from .tables import ReadTable, check_columns, read_rows

pc: Any = pyarrow.compute
"""Functions that pyarrow generates when it is imported, which type checkers cannot see."""
OF_TABLES = (
    *OF_NODES, "feature_columns", "edge_feature_columns", "label_columns", "missing_ids", "direction", "edge_time",
    "node_time", "id", "src", "dst", "weight", "split", "relation_column", "dangling_edges", "one_hot",
)  # fmt: skip
"""Options that tables of several types follow."""
End = tuple[int, int]
"""A table of edges, and 0 for its sources or 1 for its destinations."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Context whose errors begin with `what`, once."""
    try:
        yield
    except InputError as e:
        text = str(e).removeprefix(f"{what}: ")
        raise type(e)(f"{what}: {text}") from e


def check_options(source: object, options: ReadOptions) -> None:
    """Raise InputError for an option that tables of several types do not follow."""
    check_followed(str(source), options, OF_TABLES)
    if options.direction == "reverse":
        raise InputError(
            "direction is 'reverse', but the names of the files say where edges begin and end; leave it out, or rename "
            "the files"
        )


def read_graph(source: GraphTables, request: Request) -> Raw | Dataset:
    """The graph of some tables: of one type as arrays to be cleaned, of several as a dataset.

    Raises:
        InputError: a file, a column or an id is not as expected; says what to change.
    """
    options = request.options
    if request.is_divided and options.split is None:
        options = replace(options, split=NONE)
    draws = request.split is None and options.split is None
    if is_typed(source, options):
        with about(source.name):
            check_options(source.path, options)
            raw = _Reading(source, options, draws).typed()
            plain = replace(
                options, feature_columns=None, label_columns=None, edge_time=None, node_time=None, split=None, id=None,
                src=None, dst=None, weight=None, relation_column=None, dangling_edges="error", one_hot=None,
            )  # fmt: skip
            turned = options.direction == "undirected"
            data = clean_typed(source.name, raw, plain, request.split, request.seed, add_reverse=turned)
            return replace(data, read_as=options.given)
    check_no_target(options)
    return _Reading(source, options, draws).raw()


def is_typed(source: GraphTables, options: ReadOptions) -> bool:
    """True for the tables of a graph with several types of nodes or edges."""
    return options.relation_column is not None or any(t.type is not None for t in source.tables)


def no_nodes(source: object, table: SourceTable) -> InputError:
    """Error for a table of nodes without rows."""
    file = table.files[0].name if table.files else table.title
    if table.type is None:
        return InputError(f"{source}: there are no nodes; expected a row for each node in {file}")
    return InputError(f"node type '{table.type}' has no nodes; expected a row for each in {file}")


def check_edge_rows(source: object, rows: Sequence[tuple[SourceTable, int]]) -> list[str]:
    """Notes on tables of edges without rows. Raises InputError if there is no edge at all."""
    if any(count for _, count in rows):
        return [f"Relation {t.title.removeprefix('edges-')} has no edges." for t, count in rows if not count]
    if not rows:
        raise InputError(f"{source}: there is no table of edges; expected one with the columns src and dst")
    table = rows[0][0]
    file = table.files[0].name if table.files else table.title
    if table.rows is not None:
        raise InputError(f"{source} has no edges")
    raise InputError(f"{source}: {file} has a header and no rows; expected an edge in each row")


def text_without_ids(source: object, table: str) -> InputError:
    """Error for edges that call nodes by text which their table does not have."""
    return InputError(
        f"{source}: the ends of edges are text, but {table} has no column 'id'; give each node the id that edges call "
        "it by, or set read.id to the column that has it"
    )


def check_ends(key: RelationType, node_types: Sequence[str]) -> None:
    """Raise InputError if a relation begins or ends at a type that has no table."""
    for t in (key[0], key[2]):
        if t not in node_types:
            raise InputError(
                f"the relation {','.join(key)} has ends of type '{t}', but there is no nodes-{t}; expected one of "
                f"{', '.join(node_types)}{nearest(t, list(node_types))}: rename the file of edges, or give the nodes"
            )


def schema_at(source: GraphTables, options: ReadOptions) -> Schema:
    """The schema of some tables; of Parquet without their rows. Raises InputError like `read_graph`."""
    every = [
        schema_only(t)
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
    order: AnyArray | None = None
    """Order of the rows by id; None: as they are."""
    names: NodeNames | None = None
    numbers: dict[End, AnyArray] = field(default_factory=dict)
    """Numbers of the nodes at the ends; of ids that are no node's, below 0 or from the number of nodes."""

    def ordered(self, values: Any) -> Any:
        """Values of the rows, in the order of the nodes."""
        return values if values is None or self.order is None else values[self.order]


class _Reading:
    """Reads the tables of one source; `draws_split`: without columns of one, a split is drawn."""

    def __init__(self, source: GraphTables, options: ReadOptions, draws_split: bool) -> None:
        self.options, self.path, self.draws_split = options, source.path, draws_split
        nodes = [read_rows(t, options) for t in source.nodes]
        for read in nodes:
            if not read.rows.num_rows:
                raise no_nodes(self.path, read.table)
        on_gpu = options.edges_on == "gpu" and all(t.files for t in source.edges)
        edges = [schema_only(t) if on_gpu else read_rows(t, options) for t in source.edges]
        if not nodes:
            source, nodes = with_nodes_of_edges(source, edges, options)
        if options.relation_column is not None and not any(t.type is not None for t in source.tables):
            source, nodes, edges = by_relation(source, nodes, edges, options)
            self.options = options = replace(options, relation_column=None)
        self.source = source
        reads = iter(nodes), iter(edges)
        every = [next(reads[t.kind == "edges"]) for t in source.tables]
        self.schema: Schema = schema_of(source, [read.rows.schema for read in every], options)
        self.notes = [*source.notes, *self.schema.notes]
        for read, columns in zip(every, self.schema.of_tables):
            if read.table.files:
                check_columns(read.heads, read.table, columns, options)
        self.edges, self.on_gpu = list(zip(edges, self.schema.edges)), on_gpu
        self.nodes = {str(r.table.type): _Nodes(r, c) for r, c in zip(nodes, self.schema.nodes)}
        if on_gpu:
            self._check_gpu()
        if not on_gpu:
            self.notes += check_edge_rows(self.path, [(read.table, read.rows.num_rows) for read in edges])

    # -- one type

    def raw(self) -> Raw:
        """The graph of a table of nodes and one of edges."""
        ((own, (edges, columns)),) = zip(self.nodes.values(), self.edges)
        by_name = own.columns.id is not None and is_text(own.read.rows[own.columns.id].type)
        given: dict[str, Any] = {"hint": self.source.hint}
        if self.on_gpu and not by_name and (found := self._ordered(own, edges)) is not None:
            ordered, none = found, np.empty(0, np.int64)
            given |= {"src": none, "dst": none, "ordered": ordered}
        else:
            if self.on_gpu:  # the CPU reads names, and reports defects
                self.on_gpu, edges = False, read_rows(edges.table, self.options)
                check_edge_rows(self.path, [(edges.table, edges.rows.num_rows)])
                self.edges = [(edges, columns)]
            self._check_unread()
            self._number()
            ends, kept = self._ends(0)
            weight, features, times = self._values(0, kept)
            given |= {"src": ends[0], "dst": ends[1], "edge_weight": weight, "edge_features": features}
            given["edge_time"] = times
        rows, of_nodes = own.read.rows, own.columns
        labels, bits = labels_of(rows, of_nodes.labels), split_bits(rows, of_nodes)
        return Raw(
            self.source.name,
            labels=own.ordered(labels.values),
            features=own.ordered(feature_rows(rows, of_nodes.features)),
            feature_columns=of_nodes.features,
            edge_feature_columns=columns.features,
            node_time=own.ordered(times_of(rows, of_nodes.time, "nodes")),
            split=sets_of(own.ordered(bits)),
            nulls=labels.nulls,
            stripped=labels.stripped,
            label_names=of_nodes.labels if self.options.named_labels else None,
            class_names=labels.class_names,
            node_names=own.names,
            notes=tuple(self.notes),
            read=self.schema.record(),
            **given,
        )

    def _check_gpu(self) -> None:
        for _, columns in self.edges:
            for what, there in (("features", columns.features), ("times", columns.time)):
                if there:
                    raise InputError(
                        f"{self.path}: edges_on is gpu, but edges have {what}, which are read on the CPU; leave "
                        "edges_on out"
                    )

    def _ordered(self, own: _Nodes, edges: ReadTable) -> Ordered | None:
        """The edges as GPUs sort them; None if the CPU has to report a defect."""
        columns = self.edges[0][1]
        if (
            columns.ends != ("src", "dst")
            or columns.weight not in (None, "weight")
            or self.options.dangling_edges != "error"
        ):
            return None
        ids, notes = None, list[str]()
        if own.columns.id is not None:
            what = f"nodes.{own.columns.id}"
            numbers = as_one_kind({what: own.read.rows[own.columns.id]}, set())[what].to_numpy()
            own.order = np.argsort(numbers, kind="stable")
            ids = with_gaps(numbers[own.order], self.options, notes, what)
        found = ordered_edges(edges.table.files, own.read.rows.num_rows, ids, self.options)
        if found is None:
            own.order = None
            return None
        own.names = None if ids is None else NodeNames.of_integers(ids)
        self.notes += notes
        return found

    # -- several types

    def typed(self) -> TypedRaw:
        """The graph of a table for each node type and each relation."""
        keys: list[Any] = [read.table.type for read, _ in self.edges]
        for key in keys:
            check_ends(key, list(self.nodes))
        self._check_unread()
        self._number()
        edges: dict[RelationType, Any] = {}
        weights, features, times = {}, {}, {}
        for k, key in enumerate(keys):
            edges[key], kept = self._ends(k)
            with about(f"relation {','.join(key)}"):
                weights[key], features[key], times[key] = self._values(k, kept)
        node_times, node_features = {}, {}
        for t in sorted(self.nodes, key=lambda t: t != self.schema.target):  # that one is checked first
            own = self.nodes[t]
            with about(f"node type '{t}'"):
                node_features[t] = own.ordered(feature_rows(own.read.rows, own.columns.features))
                node_times[t] = own.ordered(times_of(own.read.rows, own.columns.time, own.columns.table))
        target, labels, bits, columns = self.schema.target, GivenLabels(np.empty(0)), None, ()
        if target is not None:
            own = self.nodes[target]
            columns = own.columns.labels
            with about(f"node type '{target}'"):
                nothing = GivenLabels(np.zeros(own.read.rows.num_rows, np.int64))  # links need no labels
                labels = labels_of(own.read.rows, columns) if columns else nothing
                bits = split_bits(own.read.rows, own.columns)
            labels, bits = replace(labels, values=own.ordered(labels.values)), own.ordered(bits)
        return TypedRaw(
            edges,
            None if target is None else labels.values,
            target,
            {t: own.read.rows.num_rows for t, own in self.nodes.items()},
            node_features,
            weights,
            split=sets_of(bits),
            notes=tuple(self.notes),
            node_names={t: own.names for t, own in self.nodes.items()},
            class_names=labels.class_names,
            label_names=columns if self.options.named_labels else None,
            nulls=labels.nulls,
            stripped=labels.stripped,
            edge_times={key: t for key, t in times.items() if t is not None},
            node_times={t: x for t, x in node_times.items() if x is not None},
            edge_features=features,
            feature_columns={t: own.columns.features for t, own in self.nodes.items()},
            edge_feature_columns={key: own.features for key, (_, own) in zip(keys, self.edges)},
            read=self.schema.record(),
        )

    # -- both

    def _types_of(self, k: int) -> tuple[str, str]:
        kind = self.edges[k][0].table.type
        return (kind[0], kind[2]) if isinstance(kind, tuple) else ("None", "None")

    def _check_unread(self) -> None:
        for t, own in self.nodes.items():
            if self.draws_split:
                check_sets(own.columns, own.read.rows.schema, own.read.pieces, self.path)
            if self.options.id is not None:
                continue
            ends = [
                (read.pieces, columns.ends[i])
                for k, (read, columns) in enumerate(self.edges)
                for i in (0, 1)
                if self._types_of(k)[i] == t
            ]
            check_unread(own.columns, own.read.rows.schema, own.read.pieces, ends, self.path)

    def _number(self) -> None:
        """Number the nodes of all types, and the ends of edges."""
        for k, (read, columns) in enumerate(self.edges):
            for i, t in enumerate(self._types_of(k)):
                name = columns.ends[i]
                self.nodes[t].ends[k, i] = (f"{columns.table}.{name}", read.rows[name], read.from_csv)
        named = all("id" in t.roles.values() for t in self.source.nodes)  # by the format, which lets ids have gaps
        options = replace(self.options, missing_ids="compact") if named else self.options
        for t, own in self.nodes.items():
            typed = own.read.table.type is not None
            notes: list[str] = []
            with about(f"node type '{t}'") if typed else nullcontext():
                _number_nodes(own, options, notes, self.path)
            self.notes += noted(t, notes) if typed else notes
        for t, own in self.nodes.items():
            typed = own.read.table.type is not None
            with about(f"node type '{t}'") if typed else nullcontext():
                for what, values, from_csv in own.ends.values():
                    check_id_column(what, values.type, values.null_count, from_csv)
                if self.options.dangling_edges == "error":
                    for end, numbers in own.numbers.items():
                        what, values, _ = own.ends[end]
                        outside = (numbers < 0) | (numbers >= own.read.rows.num_rows)
                        if outside.any() and (typed or own.names is not None):
                            raise unknown(int(outside.sum()), what, _shown(values[int(np.argmax(outside))]))

    def _ends(self, k: int) -> tuple[tuple[AnyArray, AnyArray], AnyArray | None]:
        """Numbers of both ends of a table's edges, and which edges are kept; None: all."""
        types = self._types_of(k)
        src, dst = (self.nodes[t].numbers[k, i] for i, t in enumerate(types))
        if self.options.dangling_edges != "drop":
            return (src, dst), None
        kept = np.ones(len(src), bool)
        for numbers, t in zip((src, dst), types):
            kept &= (numbers >= 0) & (numbers < self.nodes[t].read.rows.num_rows)
        if kept.all():
            return (src, dst), None
        self.notes.append(dropped_note(int((~kept).sum()), self.edges[k][1].table))
        return (src[kept], dst[kept]), kept

    def _values(self, k: int, kept: AnyArray | None) -> tuple[AnyArray | None, AnyArray | None, AnyArray | None]:
        """Weights, features and times of a table's edges, where they have them."""
        (read, columns), rows = self.edges[k], self.edges[k][0].rows
        stem = columns.table
        weight = None if columns.weight is None else numbers_of(rows[columns.weight], f"{stem}.{columns.weight}")
        features, times = feature_rows(rows, columns.features, stem), times_of(rows, columns.time, stem)
        if features is not None and not features.shape[1] and read.table.type is not None:  # lists of no numbers
            features = None
        weight, features, times = (a if a is None or kept is None else a[kept] for a in (weight, features, times))
        return weight, features, times


def _shown(value: Any) -> str:
    return f"'{value}'" if is_text(value.type) else str(value)


def dropped_note(count: int, table: str) -> str:
    """Note on edges with an end that is no node."""
    return f"{counted(count, 'edge')} of {table} {were(count)} left out, since an end is no node (dangling_edges=drop)."


def _number_nodes(own: _Nodes, options: ReadOptions, notes: list[str], source: object) -> None:
    """Number the nodes of a type and the ends of edges there."""
    from_csv = {what for what, _, csv in own.ends.values() if csv}
    key, table = own.columns.id, own.columns.table
    of_ids = f"nodes.{key or 'id'}"
    columns: IdColumns = {} if key is None else {of_ids: own.read.rows[key]}
    columns |= {what: column.drop_null() for what, column, _ in own.ends.values()}
    from_csv |= {of_ids} if own.read.from_csv else set()
    columns = as_one_kind(columns, from_csv)
    ids = columns.pop(of_ids, None)
    if ids is None and any(is_text(column.type) for column in columns.values()):
        raise text_without_ids(source, table)
    if options.dangling_edges == "add":
        ids = _with_added(own, ids, columns, notes)
    if ids is not None and is_text(ids.type):
        own.names, ends = numbered_by_name(ids, columns, of_ids)
    else:
        ends = {what: column.to_numpy() for what, column in columns.items()}
        if ids is not None:
            numbers = ids.to_numpy()
            own.order = np.argsort(numbers, kind="stable")
            gaps = with_gaps(numbers[own.order], options, notes, of_ids)
            if gaps is not None:
                own.names, ends = NodeNames.of_integers(gaps), renumbered(gaps, ends)
    own.numbers = {end: ends[what] for end, (what, _, _) in own.ends.items()}
    own.ends = {
        end: (what, given if given.null_count else columns[what], csv) for end, (what, given, csv) in own.ends.items()
    }


def _with_added(own: _Nodes, ids: pa.ChunkedArray | None, ends: IdColumns, notes: list[str]) -> pa.ChunkedArray | None:
    """The ids with those that only edges name, which get rows of nulls."""
    rows = own.read.rows
    known = pa.chunked_array([np.arange(rows.num_rows)]) if ids is None else ids
    if not is_text(known.type) and not pa.types.is_uint64(known.type):
        known = known.cast(pa.int64())
    used = pa.chunked_array([c for column in ends.values() for c in column.cast(known.type).chunks], known.type)
    added = used.filter(pc.invert(pc.is_in(used, value_set=known))).unique()
    if not len(added):
        return ids
    added = added.take(pc.sort_indices(added))
    notes.append(
        f"{counted(len(added), 'node')} that only edges name {were(len(added))} added, without label or features "
        "(dangling_edges=add)."
    )
    more = pa.table({f.name: pa.nulls(len(added), f.type) for f in rows.schema})
    own.read = replace(own.read, rows=pa.concat_tables([rows, more]))
    return pa.chunked_array([*known.chunks, added], known.type)
