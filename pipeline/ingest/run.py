"""An ingest from end to end: the stages, what they hand to each other, and the manifest at the end."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...storage.dataset import SPLITS
from ...storage.dataset_store import KIND, NARROW, features_file
from ...storage.errors import InputError
from ...storage.fingerprint import (
    GRAPH_DIGESTS,
    describe_features,
    digest_of_leaves,
    digest_record,
    feature_sample_digest,
    typed_fingerprint,
)
from ...storage.graph import degree_summary, index_dtype
from ...storage.node_names import INTEGER_NAMES, noted_kind
from ...storage.store.manifest import write_manifest
from ...storage.stored.data_card import CARD, data_card, names_in, titled
from ...storage.stored.edge_features import OF_EDGES
from ...storage.typed.graph_types import SINGLE, GraphTypes, edge_dtype
from ..datasets.cleaning import columns as columns_of
from ..datasets.cleaning.clean import card_facts
from ..datasets.cleaning.edges import (
    IGNORED,
    REVERSED,
    WeightFaults,
    check_range,
    check_weights,
    note_loops,
    note_repeats,
    note_reverses,
    settled_direction,
)
from ..datasets.cleaning.filling import Seen, Treatment
from ..datasets.cleaning.node_ids import check_id_column, unknown
from ..datasets.readers.csv_file import is_csv
from ..datasets.readers.graph import check_edge_rows, dropped_note, no_nodes, text_without_ids
from ..datasets.readers.parquet import UnequalListsError, feature_rows, labels_of, numbers_of
from ..datasets.readers.tables import check_columns
from ..datasets.schema.columns import Columns
from ..datasets.schema.roles import Schema, schema_of
from ..datasets.schema.source import GraphTables, SourceTable
from ..datasets.schema.unread import check_sets, check_unread
from . import edges as edge_tasks
from . import features as feature_tasks
from .arrays import Matrix, Output, Piece, Written, make_outputs, sample_of, write_slice
from .budget import Budget, DiskNeed, check_disk, held_by
from .edges import EdgeTable
from .features import explain_lists, feature_width, treatment_of
from .nodes import IdColumn, NodeTable, WrittenRows, are_text, settle_labels
from .scratch import STORE
from .source import Settings, Table, describe, import_csv, spans_of
from .spill import cell_sizes
from .tasks import Stages


class Ingest:
    """One ingest of a table of nodes and one of edges, in the folder of `stages`. Call `run`."""

    def __init__(self, source: GraphTables, settings: Settings, budget: Budget, stages: Stages) -> None:
        self.source, self.settings, self.budget, self.stages = source, settings, budget, stages
        self.folder, self.store = stages.folder, stages.folder / STORE
        self.notes = list(source.notes)
        self.outputs: list[Output] = []
        self.integer_names: bool | None = None
        self.card: columns_of.Card = []
        self.lost: list[str] = []

    def run(self) -> None:
        """Make the store, with its manifest.

        Raises:
            InputError: the input is refused, with the sentence of `open_dataset`.
            RunError: a task failed; the same command goes on.
        """
        self._describe()
        self.nodes.number(self.ids_are_text, self.settings.options, self.notes)
        self._put_names([self.nodes])
        with self._named():
            self._settle_labels(self.nodes)
        self._spill_edges()
        with self._named():
            groups = self._sort_edges()
            self.notes += self.labels["notes"]
            features = self._write_features(groups)
            self.notes += self.labels["split_notes"]
        self._write_manifest([features])

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Context whose refusals begin with the name of the input."""
        try:
            with self.nodes.explained():
                yield
        except InputError as e:
            if isinstance(e.__cause__, UnequalListsError):
                raise
            raise type(e)(f"{self.source.name}: {e}") from e

    # -- what is there

    def _table(self, table: SourceTable, stage: str) -> Table:
        """The columns of a table; CSV is imported first."""
        if not is_csv(table.files[0]):
            return describe(table)
        imported = [self.folder / "import" / f"{stage}-{k:06d}.parquet" for k in range(len(table.files))]
        items = [(file, table.kind, self.settings.options, into) for file, into in zip(table.files, imported)]
        found = self.stages.run(f"import-{stage}", f"reading {table.title} from CSV", import_csv, items)
        return describe(table, imported, found)

    def _read_schema(self) -> Schema:
        """The columns of all tables, in `nodes_tables` and `edge_tables`, and what they refuse before rows are
        read."""
        source, options = self.source, self.settings.options
        number = {t: i for kind in (source.nodes, source.edges) for i, t in enumerate(kind)}
        several = any(t.type is not None for t in source.tables)
        tables = [self._table(t, f"{t.kind}-{number[t]}" if several else t.kind) for t in source.tables]
        for table in tables:
            if table.source.kind == "nodes" and not table.rows:
                raise no_nodes(source.path, table.source)
        schema = schema_of(source, [t.empty.schema for t in tables], options)
        self.notes += schema.notes
        self.read = schema.record()
        for table, columns in zip(tables, schema.of_tables):
            check_columns(table.heads, table.source, columns, options)
        self.node_tables = [t for t in tables if t.source.kind == "nodes"]
        self.edge_tables = [t for t in tables if t.source.kind == "edges"]
        self.notes += check_edge_rows(source.path, [(t.source, t.rows) for t in self.edge_tables])
        for table, columns in zip(self.node_tables, schema.nodes):
            self._check_unread(table, columns, schema)
        return schema

    def _check_unread(self, table: Table, columns: Columns, schema: Schema) -> None:
        """See `schema.unread`; edges have ends in the table by their relation."""
        rows = self.budget.rows(2 * table.row_bytes)
        if self.settings.split is None and self.settings.options.split is None:
            check_sets(columns, table.empty.schema, partial(table.pieces, rows), self.source.path)
        if self.settings.options.id is not None:
            return
        ends = [
            (partial(edges.pieces, rows), own.ends[i])
            for edges, own in zip(self.edge_tables, schema.edges)
            for i in (0, 1)
            if edges.source.type is None or edges.source.type[2 * i] == table.source.type
        ]
        check_unread(columns, table.empty.schema, partial(table.pieces, rows), ends, self.source.path)

    def _describe(self) -> None:
        """The schemas of both tables, and what they refuse before any row is read."""
        options, schema = self.settings.options, self._read_schema()
        ((nodes, of_nodes),) = zip(self.node_tables, schema.nodes)
        ((edges, of_edges),) = zip(self.edge_tables, schema.edges)
        self.ids_are_text = self._are_text(nodes, of_nodes, [(edges, of_edges, 0), (edges, of_edges, 1)])
        labels_of(nodes.empty, of_nodes.labels)
        feature_rows(nodes.empty, of_nodes.features)
        feature_rows(edges.empty, of_edges.features, "edges")
        self.ignored = of_edges.weight is not None and options.edge_weights != "use"
        self.nodes = NodeTable(nodes, self.folder, self.stages, self.budget, of_nodes, labelled=True)
        self.tables = [self._edge_table(edges, of_edges)]
        self._check_space([self.nodes], self._edge_work((0, nodes.rows)), turned=False)

    def _are_text(self, nodes: Table, of_nodes: Columns, ends: Sequence[tuple[Table, Columns, int]]) -> bool:
        """True if nodes and the ends of edges there are called by text."""
        types = {f"{t.called}.{own.ends[i]}": _id_column(t, own.ends[i]) for t, own, i in ends}
        if of_nodes.id is not None:
            types[f"nodes.{of_nodes.id}"] = _id_column(nodes, of_nodes.id)
        if not are_text(types):
            return False
        if of_nodes.id is None:
            raise text_without_ids(self.source.path, of_nodes.table)
        return True

    def _edge_table(self, table: Table, columns: Columns) -> EdgeTable:
        """The rows of a table of edges in pieces, and the width of their features."""
        if columns.weight is not None:
            numbers_of(table.empty[columns.weight], f"{table.called}.{columns.weight}")
        weighted = columns.weight is not None and self.settings.options.edge_weights == "use"
        rows = feature_rows(table.empty, columns.features, table.called)
        own = self._in_pieces(EdgeTable(table, (), 0, columns, weighted))
        if not columns.features or not table.rows:
            return own if rows is None else replace(own, read_width=rows.shape[1], width=rows.shape[1])
        try:
            width = feature_width(table, own.spans, columns.features)
            own = replace(own, read_width=width, options=self.settings.options)
            treatment = treatment_of(
                own.feature_rows,
                own.spans,
                lambda stage, text, task, items: self.stages.run(f"{stage}-{table.called}", text, task, items),
            )
            return replace(own, width=own.read_width + len(treatment.indicated), treatment=treatment)
        except UnequalListsError as e:
            raise self._explained(own) from e

    def _note_edge_features(self, own: EdgeTable, totals: dict[str, Any], notes: list[str]) -> None:
        """Note what features of edges hold. Raises InputError: see `Seen.check`."""
        seen, columns, key = Seen.of_record(totals["features"]), own.columns.features, own.table.source.type
        seen.check(replace(self.settings.options, normalize_features="none"), notes, columns, "edge")
        of = ",".join(key) if isinstance(key, tuple) else "edges"
        self.card += own.treatment.columns_of(seen, columns, of) if columns else []

    def _in_pieces(self, own: EdgeTable, row_bytes: int = 0) -> EdgeTable:
        """A table of edges whose rows are in pieces, where the features of a row take `row_bytes` or more."""
        features = own.columns.features
        row = 4 * len(features) + 2 * own.table.row_bytes if features else 0
        batch = self.budget.edge_batch(own.weighted, max(row, row_bytes))
        return replace(own, batch_rows=batch, spans=tuple(spans_of(own.table, self.budget.span(batch, own.table.rows))))

    def _check_space(self, nodes: Sequence[NodeTable], work: edge_tasks.EdgeWork, turned: bool) -> None:
        """Raise InputError unless there is space for spilled and sorted edges, reversed ones too if `turned`, and the
        store."""
        spilled, placed = edge_tasks.edge_bytes(work, turned)
        total = sum(own.table.rows for own in self.tables)
        # Features made of degrees have two columns.
        values = sum(own.feature_values for own in nodes) or (0 if work.relations else 2 * work.num_nodes)
        need = DiskNeed(work.num_nodes, total, values, spilled, placed).nbytes
        check_disk(self.folder.parent, need, held_by(self.folder))

    def _explained(self, *tables: EdgeTable) -> InputError:
        """The error for lists of several lengths in some of the tables of edges."""
        found = [explain_lists(t.table, t.spans, t.columns.features, t.batch_rows) for t in tables]
        own, error = next((own, error) for own, error in zip(tables, found) if error is not None)
        relation = own.table.source.type
        return error if relation is None else InputError(f"relation {','.join(relation)}: {error}")

    # -- nodes

    def _put_names(self, tables: Sequence[NodeTable]) -> None:
        """Outputs with the names of the nodes, if some have others than their numbers."""
        if not any(own.is_named for own in tables):
            return
        texts, starts, before = list[Piece](), [Piece(None, 1)], 0
        for own in tables:
            text, ends = own.names()
            texts += text
            starts += [piece._replace(base=piece.base + before) for piece in ends]
            before += sum(piece.rows for piece in text)
        self.outputs.append(Output("node_name_text", "uint8", tuple(texts)))
        self.outputs.append(Output("node_name_starts", "int64", tuple(starts)))
        self.integer_names = noted_kind(own.map.kind != "text" for own in tables)

    def _settle_labels(self, nodes: NodeTable, others: int = 0) -> None:
        """Labels and split of the nodes; so many others behind them have none."""
        chosen = self.settings.options, self.settings.split, self.settings.seed
        item = (nodes.map, nodes.ranges, nodes.scanned, *chosen, nodes.columns.labels)
        (self.labels,) = self.stages.run("labels", "labels and split", settle_labels, [item])
        (count, *entry), dtype, folder = self.labels["shape"], self.labels["dtype"], nodes.folder
        pieces = [Piece(folder / "labels", count)]
        if others:
            pieces.append(Piece(None, others, np.nan if entry else -1))
        self.outputs.append(Output("labels", dtype, tuple(pieces), dtype, tuple(entry)))
        for name in SPLITS:
            self.outputs.append(Output(name, "int64", (Piece(folder / name, self.labels["sizes"][name]),)))

    # -- edges

    def _edge_work(self, offsets: tuple[int, ...], relations: int = 0) -> edge_tasks.EdgeWork:
        weighted, width = any(own.weighted for own in self.tables), max(own.width for own in self.tables)
        return edge_tasks.EdgeWork(self.folder, self.settings.options, offsets, weighted, width, relations)

    def _spilled(self, work: edge_tasks.EdgeWork) -> list[dict[str, Any]]:
        """Spill the edges of all tables; what was seen of each."""
        every = [(replace(own, spans=()), span) for own in self.tables for span in own.spans]
        items = [(work, own, k, span) for k, (own, span) in enumerate(every)]
        try:
            seen = self.stages.run("spill", "reading edges", edge_tasks.spill_edges, items)
        except UnequalListsError as e:
            raise self._explained(*self.tables) from e
        ends = np.cumsum([len(own.spans) for own in self.tables]).tolist()
        return [edge_tasks.total_of(seen[end - len(own.spans) : end]) for own, end in zip(self.tables, ends)]

    def _spill_edges(self) -> None:
        known = self.nodes.map
        self.tables = [replace(self.tables[0], maps=(known, known))]
        self.work = self._edge_work((0, known.num_nodes))
        (self.totals,) = self._spilled(self.work)
        totals, (table,) = self.totals, self.tables
        kind = pa.string() if self.ids_are_text else pa.int64()
        for what, count in zip(table.columns.ends, totals["nulls"]):
            check_id_column(f"edges.{what}", kind, count, table.table.from_csv)
        for what, count, first in zip(table.columns.ends, totals["unknown"], totals["first_unknown"]):
            if count and self.nodes.is_named:
                raise unknown(count, f"edges.{what}", first)
        if totals["dropped"]:
            self.notes.append(dropped_note(totals["dropped"], table.table.called))

    def _sort_edges(self) -> list[dict[str, Any]]:
        totals, work = self.totals, self.work
        options, notes, num_nodes = work.options, self.notes, work.num_nodes
        if totals["edges"]:
            for name, low, high in zip(("source", "destination"), totals["least"], totals["largest"]):
                check_range(name, low, high, num_nodes)
        if self.ignored:
            notes.append(IGNORED)
        self._note_edge_features(self.tables[0], totals, notes)
        check_weights(WeightFaults(totals["infinite"], totals["negative"], totals["least_weight"]))
        note_loops(totals["loops"], totals["first_loop"], options, notes)
        if options.direction == "reverse":
            notes.append(REVERSED)
        found = self._sorted(work)
        repeats = [r["repeats"] for r in found]
        first = next((key for count, key in repeats if count), 0)
        note_repeats((sum(c for c, _ in repeats), first), num_nodes, work.weighted, work.width > 0, options, notes)
        before, after = sum(r["before"] for r in found), sum(r["edges"] for r in found)
        settled_direction(all(r["symmetric"] for r in found), before, options, None, notes)
        note_reverses(before, after, notes)
        return found

    def _sorted(self, work: edge_tasks.EdgeWork) -> list[dict[str, Any]]:
        """Sort the spilled edges, by ranges of destinations, into outputs."""
        tasks = sum(len(own.spans) for own in self.tables)
        items = [(work, tasks, k, *cells) for k, cells in enumerate(self._groups(work, tasks))]
        found = self.stages.run("sort", "sorting edges", edge_tasks.sort_edges, items)
        degrees, at = np.unique(np.concatenate([r["degrees"] for r in found]), return_inverse=True)
        counts = np.bincount(at, np.concatenate([r["counts"] for r in found])).astype(np.int64)
        self.in_degree = degree_summary(degrees.astype(np.int64), counts)
        for way in work.ways:
            shutil.rmtree(self.folder / way, ignore_errors=True)
        starts = np.cumsum([0, *(r["edges"] for r in found)]).tolist()

        def pieces(what: str, count: str = "edges") -> list[Piece]:
            return [Piece(edge_tasks.sorted_file(self.folder, what, k), r[count]) for k, r in enumerate(found)]

        rises = [piece._replace(base=start) for piece, start in zip(pieces("indptr", "rows"), starts)]
        outputs = {"indptr": ("int64", [Piece(None, 1), *rises])}
        outputs["indices"] = (str(index_dtype(work.num_nodes)), pieces("indices"))
        if work.weighted:
            outputs["edge_weight"] = ("float32", pieces("edge_weight"))
        self.outputs += [
            Output(name, dtype, tuple(parts), GRAPH_DIGESTS[name], npy=self.settings.graph == "npy")
            for name, (dtype, parts) in outputs.items()
        ]
        if work.relations:
            kind = str(edge_dtype(work.relations))
            self.outputs.append(Output("edge_type", kind, tuple(pieces("edge_type")), kind))
        if work.width:
            rows, npy = tuple(pieces(OF_EDGES)), self.settings.features == "npy"
            self.outputs.append(Output(OF_EDGES, "float32", rows, "float32", (work.width,), npy))
        return found

    def _groups(self, work: edge_tasks.EdgeWork, tasks: int) -> list[tuple[int, int]]:
        """Ranges of cells that one task sorts each. They are kept: the spilled files are gone when edges are sorted."""

        def measure() -> dict[str, Any]:
            sizes = sum(cell_sizes(self.folder / way, tasks, len(work.cells)) for way in work.ways)
            most = self.budget.edge_group(work.weighted, 4 * work.width)
            return {"groups": edge_tasks.groups_of(np.asarray(sizes), most)}

        found = self.stages.run_here("groups", measure)
        return [(first, stop) for first, stop in found["groups"]]

    # -- features and the rest

    def _write_features(self, groups: Sequence[dict[str, Any]]) -> Written:
        options, nodes = self.settings.options, self.nodes
        treatment = nodes.treatment(options) if nodes.width else Treatment(options)
        shape = nodes.map.num_nodes, nodes.width + len(treatment.indicated) or 2
        matrix = Matrix(self.store, shape, self.settings.features == "npy", kind=self.settings.feature_dtype)
        entries = matrix.make()
        if nodes.width:
            return self._written(matrix, entries, nodes.write_features(matrix, treatment, self.notes, self.card))
        columns_of.note_missing(options, self.notes)
        begins = np.cumsum([0, *(r["rows"] for r in groups)]).tolist()
        ends = [edge_tasks.sorted_file(self.folder, "indptr", k) for k in range(len(groups))]
        items = [(self.folder, matrix, ends[k], k, begins[k], r["rows"]) for k, r in enumerate(groups)]
        made = self.stages.run("features", "features from degrees", feature_tasks.write_degrees, items)
        return self._written(matrix, entries, nodes.joined(matrix, made))

    def _written(self, matrix: Matrix, entries: dict[str, Any], rows: WrittenRows, node_type: str = "") -> Written:
        """Features of the nodes, or of a type; what narrowing lost is noted at the end. Raises InputError: see
        `NarrowLoss.check`."""
        names = names_in({"columns": self.card}, node_type or "nodes", matrix.shape[1])
        self.lost += titled(node_type, matrix.lost(rows.loss, names))
        return Written(matrix, entries, rows.leaves)

    def _write_manifest(self, features: Sequence[Written], types: GraphTypes = SINGLE, **meta: Any) -> None:
        """Write the other arrays, and the manifest, which has `meta` too."""
        entries = make_outputs(self.store, self.outputs)
        items = [(self.store, output, *rows) for output in self.outputs for rows in output.slices()]
        written = self.stages.run("arrays", "writing arrays", write_slice, items)
        leaves: dict[str, list[bytes]] = {output.name: [] for output in self.outputs}
        for (_, output, *_), record in zip(items, written):
            leaves[output.name].append(bytes.fromhex(record["leaves"]))
        digest_of = {
            o.name: digest_of_leaves(o.digest_dtype, o.shape, leaves[o.name]) for o in self.outputs if o.digest_dtype
        }
        graph = {name: digest_of.get(name) for name in GRAPH_DIGESTS}
        if not types.is_single:
            graph |= {"types": types.record(), "edge_type": digest_of["edge_type"]}
        digests = {**self.labels["digests"], "labels": digest_of["labels"]}
        of_rows = [each.fingerprint() for each in features]
        fingerprint = {
            "graph": digest_record(graph),
            "features": of_rows[0] if types.is_single else typed_fingerprint(of_rows),
            "labels": digest_record({"labels": digests["labels"]}),
            "split": digest_record({name: digests[name] for name in SPLITS}),
        }
        if OF_EDGES in digest_of:
            (shape,) = (o.shape for o in self.outputs if o.name == OF_EDGES)
            fingerprint[OF_EDGES] = describe_features(shape[0], shape[1], np.float32, digest_of[OF_EDGES])
        kind, names = self.settings.feature_dtype, self.labels["class_names"]
        for each in features:
            entries |= each.entries
            if each.matrix.npy:
                meta[f"features_bytes{each.matrix.suffix}"] = (
                    (self.store / features_file(each.matrix.suffix)).stat().st_size
                )  # fmt: skip
        total = sum(each.matrix.shape[0] for each in features)
        meta |= {
            "name": self.source.name,
            "num_classes": self.labels["num_classes"],
            "task": self.labels["task"],
            "notes": [*self.notes, *self.lost],
            CARD: data_card(
                self.card,
                **card_facts(self.settings.split, self.settings.seed, self.labels["stored"]),
                read=self.read,
            ),
            "features_format": self.settings.features,
            **({"features_dtype": kind} if kind in NARROW else {}),
            **({"graph_format": "npy"} if self.settings.graph == "npy" else {}),
            "in_degree": self.in_degree,
            "digests": {**digests, "feature_sample": feature_sample_digest(total, sample_of(features))},
            **({} if names is None else {"class_names": list(names)}),
            **({} if self.integer_names is None else {INTEGER_NAMES: self.integer_names}),
            **({"read_as": given} if (given := self.settings.options.given) else {}),
        }
        if self.labels["task"] == "multilabel":
            meta["has_unknown"] = self.labels["has_unknown"] or total > self.labels["shape"][0]
        if not types.is_single:
            meta["types"] = types.record()
        write_manifest(self.store, KIND, fingerprint, meta, entries)


def _id_column(table: Table, key: str) -> IdColumn:
    return IdColumn(table.empty.schema.field(key).type, table.from_csv, table.numbers.get(key, False))
