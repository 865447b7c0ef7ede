"""An ingest from end to end: the stages, what they hand to each other, and the manifest at the end.

Node types are ranges of ids, and a relation is part of the key that edges are sorted by. A graph with one type is
numbered and written likewise, and its edges are mended besides.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...storage import fingerprint as fingerprints
from ...storage.dataset import SPLITS
from ...storage.dataset_store import KIND, NARROW, features_file
from ...storage.errors import InputError
from ...storage.graph import degree_summary
from ...storage.node_names import INTEGER_NAMES, noted_kind
from ...storage.optional import present_items, when_present
from ...storage.store.manifest import write_manifest
from ...storage.stored.data_card import CARD, data_card, names_in, titled
from ...storage.stored.edge_features import OF_EDGES
from ...storage.stored.narrow_loss import NarrowLoss
from ...storage.times.moments import check_known
from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..datasets.cleaning import columns as columns_of
from ..datasets.cleaning import edges as mended
from ..datasets.cleaning.clean import card_facts
from ..datasets.cleaning.filling import Seen, Treatment, check_indicators
from ..datasets.cleaning.node_ids import EndColumn, faults_of_ends
from ..datasets.cleaning.raw import Faults, about, noted, refuse
from ..datasets.cleaning.typed import note_of_types, reversed_relations
from ..datasets.readers import described
from ..datasets.readers.csv_file import is_text_read
from ..datasets.readers.derived_tables import open_graph
from ..datasets.readers.parquet import labels_of
from ..datasets.schema.source import GraphTables, Request
from . import edges as edge_tasks
from . import features as feature_tasks
from .arrays import Matrix, Output, Piece, Written, sample_of, write_outputs
from .budget import Budget, check_disk, disk_bytes, held_by
from .edges import edge_table
from .nodes import NodeTable, settle_labels
from .opened import MADE, InPieces
from .scratch import STORE
from .source import Formats
from .tasks import Stages
from .times import NO_TIMES, gather_times, settled_times

KEYS = 1 << 63
"""Numbers of (destination, relation, source) that a key can tell apart."""


class Ingest:
    """One ingest of tables of nodes and edges, in the folder of `stages`. Call `run`."""

    def __init__(self, source: GraphTables, request: Request, formats: Formats, budget: Budget, stages: Stages) -> None:
        self.source, self.request, self.formats, self.budget, self.stages = source, request, formats, budget, stages
        self.options = request.options
        self.folder, self.store = stages.folder, stages.folder / STORE
        self.outputs: list[Output] = []
        self.entries: dict[str, Any] = {}  # of features, for the manifest
        self.integer_names: bool | None = None
        self.card: columns_of.Card = []
        self.lost: list[str] = []
        self.typed = described.is_typed(source, request.options)

    def run(self) -> None:
        """Make the store, with its manifest. Raises InputError: the input is refused, with the sentence of
        `open_dataset`; RunError: a task failed; the same command goes on."""
        with about(self.source.name if self.typed else ""):
            self._run()

    def _run(self) -> None:
        self._describe()
        of_ids, labels, of_features, groups = Faults(), Faults(), Faults(), list[dict[str, Any]]()
        for t in self.source.nodes:
            notes = self.opened.added[t.type]
            with of_ids.noted(), about(t.of_type):
                self.of_types[t.type].number(self.opened.ids_are_text[t.type], self.opened.numbering, notes)
            self.notes += noted(t.type, notes)
        refuse(of_ids)
        self._put_names(list(self.of_types.values()))
        self._put_times()
        with labels.noted():
            self._settle_labels()
        faults = self._spill_edges()
        with about(self.source.name):
            if not faults:
                with faults.noted():
                    self._note_edges()
                    groups = self._sorted(self.work)
            fails = bool(faults or labels)
            self.notes += [] if labels else self.labels["notes"]
            with of_features.noted():
                every = enumerate(self.of_types.values())
                features = [self._features_of(k, own) for k, own in every if own.width or not fails]
            refuse([*faults, *labels, *of_features])
            self.notes += self.labels["split_notes"]
            more: dict[str, Any] = {}
            if self.typed:
                self.notes += [note_of_types(self.types)] if self.options.task != "link" else []
                more["edges_of_types"] = np.sum([r["of_relations"] for r in groups], axis=0).tolist()
        self._write_manifest(features, **more)

    def _describe(self) -> None:
        """The columns of all tables, and what they refuse before rows are read."""
        found = open_graph(self.source, self.request, InPieces(self.options, self.stages, self.budget))
        self.opened, self.source, self.notes, self.target = found, found.source, found.notes, found.schema.target
        with_widths = [(t.with_widths((*own.labels, *own.features)), own) for t, own in found.tables]
        nodes, edges = ([own for own in with_widths if own[0].source.kind == kind] for kind in ("nodes", "edges"))
        target_first = sorted(nodes, key=lambda each: each[0].source.type != self.target)
        self.tables = [edge_table(*own, self.options, self.budget, self.stages.run) for own in edges]
        self.of_types = dict[Any, NodeTable]()
        for table, own in target_first:
            t, labelled = table.source.type, table.source.type == self.target and self.options.task != "link"
            with about(table.source.of_type):
                labels_of(table.empty, own.labels, own.table)
                self.of_types[t] = NodeTable(table, own, len(self.of_types), labelled, self.stages, self.budget)
        self.times = settled_times(target_first, edges, self.folder / "node_time")
        self._make_types()
        weighted, self.weight_notes = {t.source.type: own.weight is not None for t, own in edges}, list[str]()
        mended.note_weights(weighted, self.options, self.weight_notes)

    def _make_types(self) -> None:
        """The types of the graph, and how the edges of its tables are spilled. Raises InputError: see `check_disk`."""
        nodes, options, name = list(self.of_types.values()), self.options, self.source.name
        self.offsets = tuple(np.cumsum([0, *(own.table.num_rows for own in nodes)]).tolist())
        widest = max(own.width for own in self.tables)
        self.types, self.turned = SINGLE, self.typed and options.direction == "undirected"
        if self.typed:
            if widest:  # rows of all relations are so wide
                self.tables = [own.in_pieces(self.budget, 4 * widest) for own in self.tables]
            relations: Any = tuple(own.table.source.type for own in self.tables)
            both = (*relations, *(reversed_relations(name, relations) if self.turned else ()))
            widths = tuple(own.width for own in self.tables) * (1 + self.turned) if widest else ()
            self.types = GraphTypes(tuple(self.of_types), self.offsets, both, widths).check(self.offsets[-1], widest)
            if self.offsets[-1] ** 2 * len(both) >= KEYS:
                said = f"there are {self.offsets[-1]:,} nodes and {len(both)} relations; edges are sorted by numbers"
                raise InputError(f"{said} below 2**63, and nodes times nodes times relations are more: leave some out")
            options = replace(edge_tasks.AS_THEY_ARE, dangling_edges=options.dangling_edges)
            turned = [r + len(relations) for r in self.times.borrowed if self.turned]
            self.times = replace(self.times, borrowed=(*self.times.borrowed, *turned))
        weighted, kinds = any(own.weighted for own in self.tables), len(self.types.relations) if self.typed else 0
        self.kept = list[str]()
        if self.tables[0].columns.time and not self.typed:
            options = mended.keeping(options, self.kept)
        self.work = edge_tasks.EdgeWork(self.folder, options, self.offsets, weighted, widest, kinds, times=self.times)
        spilled, placed = edge_tasks.edge_bytes(self.work, self.turned)
        # Features made of degrees have two columns. Which columns miss values is known when all rows are read.
        values = sum(own.feature_values for own in nodes) or (0 if self.typed else 2 * self.offsets[-1])
        values *= 1 + (self.options.nan_features == "indicator")
        edges = sum(own.table.num_rows for own in self.tables)
        made = sum(held_by(self.folder / name) for name in MADE)
        made += (edges * placed + 4 * values) * (self.options.task == "link")  # stored twice
        need = disk_bytes(self.offsets[-1], edges, values, spilled, placed)
        check_disk(self.folder.parent, need + made, held_by(self.folder))

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

    def _put_times(self) -> None:
        """The times of nodes, which are an output if those of the target type have some."""
        if not (kind := self.times.of_nodes):
            return
        name, every = "node_time of '{}'" if self.typed else "node_time", zip(self.of_types.items(), self.offsets)
        types = [(n.map, first, name.format(t) if n.columns.time else "") for (t, n), first in every]
        with about(self.source.name):
            self.stages.run("times", "times of nodes", gather_times, [(self.times, types)])
        if self.target in self.of_types and self.of_types[self.target].columns.time:
            self.outputs.append(Output("node_time", kind, (Piece(self.times.file, self.offsets[-1]),), kind))

    def _settle_labels(self) -> None:
        """Labels and split of the nodes that are predicted; those of other types have none."""
        nodes, others = next(iter(self.of_types.values())), sum(np.diff(self.offsets)[1:].tolist())
        times = self.times if nodes.columns.time else NO_TIMES
        item = (nodes.map, nodes.given, self.request, nodes.columns.labels, times)
        (self.labels,) = self.stages.run("labels", "labels and split", settle_labels, [item])
        (count, *entry), dtype, folder = self.labels["shape"], self.labels["dtype"], nodes.folder
        pieces = [Piece(folder / "labels", count)]
        if others:
            pieces.append(Piece(None, others, np.nan if entry else -1))
        self.outputs.append(Output("labels", dtype, tuple(pieces), dtype, tuple(entry)))
        for name in SPLITS:
            self.outputs.append(Output(name, "int64", (Piece(folder / name, self.labels["sizes"][name]),)))

    # -- edges

    def _spill_edges(self) -> Faults:
        """Spill the edges of all tables. Returns faults of ends that are no nodes."""
        types = list(self.of_types)
        for k, own in enumerate(self.tables):
            maps, kinds = zip(*((self.of_types[t].map, types.index(t)) for t in own.table.source.ends))
            reverse = k + len(self.tables) if self.turned else None
            self.tables[k] = replace(own, maps=maps, kinds=kinds, number=k, reverse=reverse)
        own, seen, on_gpus = self.tables[0], list[dict[str, Any]](), self.options.edges_on == "gpu"
        if on_gpus and (found := self.stages.run_here("gpu", lambda: edge_tasks.spill_from_gpus(self.work, own))):
            seen, self.tables = [found], [replace(own, spans=own.spans[:1])]  # as if by one task
        every = [(replace(own, spans=()), span) for own in self.tables for span in own.spans]
        items = [(self.work, own, k, span) for k, (own, span) in enumerate(every)]
        seen = seen or self.stages.run("spill", "reading edges", edge_tasks.spill_edges, items)
        stops = np.cumsum([len(own.spans) for own in self.tables]).tolist()
        self.seen = [
            edge_tasks.total_of([edge_tasks.nothing_seen(own), *seen[stop - len(own.spans) : stop]])
            for own, stop in zip(self.tables, stops)
        ]
        faults = Faults()
        for t in self.source.nodes:
            named, columns = self.typed or self.of_types[t.type].is_named, list[EndColumn]()
            for own, seen in zip(self.tables, self.seen):
                for side in own.table.source.sides_at(t):
                    what = f"{own.table.called}.{own.columns.ends[side]}"
                    from_csv = is_text_read(own.table.source, own.columns.ends[side])
                    nulls, unknown, first = (seen[key][side] for key in ("nulls", "unknown", "first_unknown"))
                    columns.append(EndColumn(what, nulls, from_csv, unknown * named, first))
            faults += faults_of_ends(columns, t.of_type)
        self.notes += described.dropped_notes(
            [(own.table.called, seen["dropped"]) for own, seen in zip(self.tables, self.seen)]
        )
        return faults

    def _note_edges(self) -> None:
        """Note what was seen of the edges' values; of one type, their loops and direction too."""
        options = replace(self.options, normalize_features="none")
        if not self.typed and self.seen[0]["edges"]:
            for name, low, high in zip(("source", "destination"), self.seen[0]["least"], self.seen[0]["largest"]):
                mended.check_range(name, low, high, self.offsets[-1])
        self.notes += self.weight_notes
        for own, seen in zip(self.tables, self.seen):
            kind, columns, notes = own.table.source.type, own.feature_rows.names, list[str]()
            with about(own.table.source.of_type):
                mended.check_weights(mended.WeightFaults(seen["infinite"], seen["negative"], seen["least_weight"]))
                held = Seen.of_record(seen["features"])
                held.check(options, notes, columns, "edge")
            name = ",".join(kind) if kind else "edges"
            self.card += own.treatment.columns_of(held, columns, name) if columns else []
            self.notes += noted(kind, notes)
            unknown = [(seen[f"{what}_times"], seen[f"first_{what}_time"]) for what in ("missing", "infinite")]
            check_known(f"edge_time of {name}" if kind else "edge_time", *unknown)
        self.notes += self.kept
        if self.typed:
            timed = {t for t, own in self.of_types.items() if own.columns.time}
            bare = [r for k, r in enumerate(self.types.relations) if k in self.times.borrowed]
            mended.note_borrowed([",".join(r) for r in bare if r[0] in timed], self.notes)
        else:
            mended.note_loops(self.seen[0]["loops"], self.seen[0]["first_loop"], options, self.notes)
            self.notes += [mended.REVERSED] if options.direction == "reverse" else []

    def _directed(self, work: edge_tasks.EdgeWork, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add reverses to what was `found` of sorted edges if the source's hint says so; note or refuse repeats."""
        notes, repeats = self.notes, [r["repeats"] for r in found]
        total = sum(c for c, _ in repeats), next((key for count, key in repeats if count), 0)
        mended.note_repeats(total, work.num_nodes, work.weighted, work.width > 0, work.options, notes=notes)
        before, symmetric = sum(r["before"] for r in found), all(r["symmetric"] for r in found)
        direction = mended.settled_direction(symmetric, before, work.options, self.source.hint, notes)
        if work.options.direction is None and direction == "undirected":
            found = self._sort(replace(work, options=replace(work.options, direction=direction)), "reverses")
        mended.note_reverses(before, sum(r["edges"] for r in found), notes)
        mended.note_borrowed(self.times.borrowed, notes)
        return found

    def _sort(self, work: edge_tasks.EdgeWork, stage: str) -> list[dict[str, Any]]:
        tasks = sum(len(own.spans) for own in self.tables)
        return edge_tasks.sort_spilled(self.stages, work, tasks, self.budget, stage)

    def _sorted(self, work: edge_tasks.EdgeWork) -> list[dict[str, Any]]:
        """Sort the spilled edges, by ranges of destinations, into outputs."""
        found = self._sort(work, "sort")
        found = found if self.typed else self._directed(work, found)
        degrees, at = np.unique(np.concatenate([r["degrees"] for r in found]), return_inverse=True)
        counts = np.bincount(at, np.concatenate([r["counts"] for r in found])).astype(np.int64)
        self.in_degree = degree_summary(degrees.astype(np.int64), counts)
        for way in work.ways:
            shutil.rmtree(self.folder / way, ignore_errors=True)
        self.outputs += edge_tasks.sorted_outputs(work, found, self.formats.graph, self.formats.features)
        return found

    # -- features and the rest

    def _features_of(self, number: int, own: NodeTable) -> Written:
        """Write the features of the nodes of a type; of one type without any, they are made of degrees."""
        options, kind = self.options, own.table.source.type
        called, notes, (first, stop) = str(kind or "nodes"), list[str](), self.offsets[number : number + 2]
        treatment = own.treatment(options) if own.width else Treatment(options)
        width = own.width + len(treatment.indicated) or (0 if self.typed else 2)
        npy, narrow = self.formats.features == "npy", self.formats.feature_dtype
        matrix = Matrix(self.store, (stop - first, width), npy, kind=narrow)
        if self.typed:
            matrix = matrix._replace(suffix=f"_{number}", nodes_before=first, num_nodes=self.offsets[-1])
        self.entries |= matrix.make()
        if own.width:
            with about(f"features of {own.table.source.of_type}" if self.typed else ""):
                rows = own.write_features(matrix, treatment, notes, self.card, called)
            self.notes += noted(kind, notes)
        elif self.typed:
            rows = Written(matrix, {}, NarrowLoss.none(0))
        else:
            columns_of.note_missing(options, self.notes)
            (indptr,) = (output for output in self.outputs if output.name == "indptr")
            begins = range(0, stop, matrix.chunk)
            items = [(matrix, indptr, begin, min(begin + matrix.chunk, stop)) for begin in begins]
            made = self.stages.run("features", "features from degrees", feature_tasks.write_degrees, items)
            rows = Written.by_tasks(matrix, made)
        lost = matrix.lost(rows.loss, names_in({"columns": self.card}, called, width))
        self.lost += titled(called if self.typed else "", lost)
        return rows

    def _write_manifest(self, features: Sequence[Written], **meta: Any) -> None:
        """Write the other arrays, and the manifest, which has `meta` too."""
        types = self.types
        entries, digest_of = write_outputs(self.stages.run, self.store, self.outputs)
        graph = {name: digest_of.get(name) for name in fingerprints.GRAPH_DIGESTS}
        graph |= {name: digest_of[name] for name in ("edge_time", "node_time") if name in digest_of}
        if not types.is_single:
            graph |= {"types": types.record(), "edge_type": digest_of["edge_type"]}
        digests = {**self.labels["digests"], "labels": digest_of["labels"]}
        of_rows = [each.fingerprint() for each in features]
        rows = of_rows[0] if types.is_single else fingerprints.typed_fingerprint(of_rows)
        found = {**digests, "graph": fingerprints.digest_record(graph), "features": rows}
        if OF_EDGES in digest_of:
            (shape,) = (o.shape for o in self.outputs if o.name == OF_EDGES)
            found[OF_EDGES] = fingerprints.describe_features(shape[0], shape[1], np.float32, digest_of[OF_EDGES])
        kind, names = self.formats.feature_dtype, when_present(list, self.labels["class_names"])
        files = {m.suffix: self.store / features_file(m.suffix) for m in (each.matrix for each in features) if m.npy}
        meta |= {f"features_bytes{suffix}": file.stat().st_size for suffix, file in files.items()}
        total = sum(each.matrix.shape[0] for each in features)
        check_indicators(self.options, self.card)
        meta |= {
            "name": self.source.name,
            "num_classes": self.labels["num_classes"],
            "task": self.labels["task"],
            "notes": [*self.notes, *self.lost],
            CARD: data_card(
                self.card,
                **card_facts(self.request.split, self.request.seed, self.labels["stored"]),
                read=self.opened.schema.record(),
            ),
            "features_format": self.formats.features,
            **({"features_dtype": kind} if kind in NARROW else {}),
            **({"graph_format": "npy"} if self.formats.graph == "npy" else {}),
            "in_degree": self.in_degree,
            "digests": {**digests, "feature_sample": fingerprints.feature_sample_digest(total, sample_of(features))},
            **present_items({"class_names": names, INTEGER_NAMES: self.integer_names, "time_unit": self.times.unit}),
            **({"read_as": given} if (given := self.options.given) else {}),
        }
        if self.labels["task"] == "multilabel":
            meta["has_unknown"] = self.labels["has_unknown"] or total > self.labels["shape"][0]
        if not types.is_single:
            meta["types"] = types.record()
        write_manifest(self.store, KIND, fingerprints.fingerprint_of(found), meta, entries | self.entries)
