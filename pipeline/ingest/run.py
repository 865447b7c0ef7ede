"""An ingest from end to end: the stages, what they hand to each other, and the manifest at the end."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...storage.dataset import SPLITS
from ...storage.dataset_store import FEATURES_FILE, KIND, NARROW
from ...storage.errors import InputError
from ...storage.fingerprint import GRAPH_DIGESTS, describe_features, digest_of_leaves, digest_record
from ...storage.graph import check_edge_rows, degree_summary, index_dtype
from ...storage.store.manifest import write_manifest
from ...storage.store.narrow import FeatureDtype
from ...storage.stored.edge_features import OF_EDGES
from ..datasets.cleaning import columns as columns_of
from ..datasets.cleaning.edges import (
    IGNORED,
    REVERSED,
    WeightFaults,
    check_range,
    check_weights,
    settled_direction,
    tell_loops,
    tell_repeats,
    tell_reverses,
)
from ..datasets.cleaning.node_ids import check_id_column, check_one_kind, have_gaps, unknown
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers.csv_file import is_csv
from ..datasets.readers.parquet import (
    chosen_features,
    column_of,
    edge_columns,
    feature_rows,
    label_columns,
    labels_of,
    numbers_of,
)
from . import edges as edge_tasks
from . import features as feature_tasks
from .arrays import Matrix, Output, Piece, join_seams, make_outputs, seams_of, write_slice
from .budget import Budget, DiskNeed, check_disk, held_by
from .labels import settle_labels
from .names import NodeMap, index_names, name_ids, sort_ids
from .scan import UnequalListsError, ascend, scan_nodes
from .scratch import STORE
from .source import Source, describe, import_csv, spans_of
from .spill import cell_sizes, cells_of, shift_of
from .tasks import Stages

SCAN_BYTES = 48
"""Bytes of a node's id, label and split in memory, about."""
SPAN_ROWS = 1 << 16
"""Fewest nodes of a task, unless there are no more."""
SEAMS_PER_TASK = 16
"""Chunks of features with several writers that one task joins."""


@dataclass(frozen=True)
class Settings:
    """Options of a conversion that decide the contents of the store."""

    options: ReadOptions
    split: str | None
    seed: int
    features: str
    """Form of the feature rows: zarr or npy."""
    graph: str = "zarr"
    """Form of the graph's arrays: zarr or npy."""
    feature_dtype: FeatureDtype | None = None
    """Dtype of stored feature rows; None: their own."""


class Ingest:
    """One ingest, in the folder of `stages`. Call `run`."""

    def __init__(self, source: Source, settings: Settings, budget: Budget, stages: Stages) -> None:
        self.source, self.settings, self.budget, self.stages = source, settings, budget, stages
        self.folder, self.store = stages.folder, stages.folder / STORE
        self.notes = list(source.notes)
        self.outputs: list[Output] = []

    def run(self) -> None:
        """Make the store, with its manifest.

        Raises:
            InputError: the input is refused, with the sentence of `open_dataset`.
            RunError: a task failed; the same command goes on.
        """
        self._describe()
        self._check_space()
        self._number_nodes()
        with self._named():
            self._settle_labels()
        totals = self._spill_edges()
        with self._named():
            groups = self._sort_edges(totals)
            self.notes += self.labels["notes"]
            features = self._write_features(groups)
            self.notes += self.labels["split_notes"]
        self._write_manifest(features)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Context whose refusals begin with the name of the input."""
        try:
            yield
        except UnequalListsError as e:
            raise self._explained() from e
        except InputError as e:
            raise InputError(f"{self.source.name}: {e}") from e

    # -- what is there

    def _describe(self) -> None:
        """The schemas of both tables, and what they refuse before any row is read."""
        tables, flags = {}, {}
        for stem, files in (("nodes", self.source.nodes), ("edges", self.source.edges)):
            imported = None
            if is_csv(files[0]):
                imported = [self.folder / "import" / f"{stem}-{k:06d}.parquet" for k in range(len(files))]
                items = [(file, stem, into) for file, into in zip(files, imported)]
                flags[stem] = self.stages.run(f"import-{stem}", f"reading {stem} from CSV", import_csv, items)
            tables[stem] = describe(files, stem, imported)
            if stem == "nodes" and not tables[stem].rows:
                raise InputError(
                    f"{self.source.path}: there are no nodes; expected a row for each node in {files[0].name}"
                )
        self.nodes, self.edges = tables["nodes"], tables["edges"]
        options, path, empty = self.settings.options, self.source.path, self.nodes.empty
        self.label_columns = label_columns(empty, path, options)
        labels_of(empty, self.label_columns)
        self.feature_columns = chosen_features(empty, path, options, self.notes)
        feature_rows(empty, self.feature_columns)
        self.edge_columns = edge_columns(self.edges.empty, path, options, self.notes)
        feature_rows(self.edges.empty, self.edge_columns, "edges")
        self.ids_are_text = self._check_ids(flags)
        has_weight = "weight" in self.edges.empty.column_names
        if has_weight:
            numbers_of(self.edges.empty["weight"], "edges.weight")
        self.weighted = has_weight and options.edge_weights == "use"
        self.ignored = has_weight and not self.weighted
        row = 4 * len(self.feature_columns) + 2 * self.nodes.row_bytes
        self.row_batch = self.budget.rows(row)
        self.node_spans = spans_of(self.nodes, max(self.budget.span(self.row_batch, self.nodes.rows), SPAN_ROWS))
        row = 4 * len(self.edge_columns) + 2 * self.edges.row_bytes if self.edge_columns else 0
        self.edge_batch = self.budget.edge_batch(self.weighted, row)
        self.edge_spans = spans_of(self.edges, self.budget.span(self.edge_batch, self.edges.rows))
        self.edge_width = self._edge_feature_width()

    def _check_ids(self, flags: dict[str, list[dict[str, Any]]]) -> bool:
        """True if ids are text."""
        path, types = self.source.path, {}
        for table, key in ((self.edges, "src"), (self.edges, "dst"), (self.nodes, "id")):
            if key == "id" and key not in table.empty.column_names:
                continue
            kind, what = column_of(table.empty, key, table.stem, path).type, f"{table.stem}.{key}"
            check_id_column(what, kind, 0, table.from_csv)
            numbers = table.from_csv and all(found.get(key) for found in flags[table.stem])
            types[what] = (kind, pa.int64() if numbers else kind)
        if all(pa.types.is_integer(kind) for _, kind in types.values()):
            return False
        check_one_kind({what: kind for what, (kind, _) in types.items()})
        if "nodes.id" not in types:
            raise InputError(
                f"{path}: the ends of edges are text, but nodes has no column 'id'; give each node the id that edges "
                "call it by"
            )
        return True

    def _check_space(self) -> None:
        spilled, placed = edge_tasks.edge_bytes(self._edge_work(NodeMap("rows", self.folder, self.nodes.rows)))
        width = self._width() or 2
        in_order = "id" not in self.nodes.empty.column_names
        need = DiskNeed(self.nodes.rows, self.edges.rows, width, spilled, placed, in_order).nbytes
        check_disk(self.folder.parent, need, held_by(self.folder))

    def _width(self) -> int:
        if not self.feature_columns:
            return 0
        try:
            self.width = feature_tasks.feature_width(self.nodes, self.node_spans, self.feature_columns)
        except UnequalListsError as e:
            raise self._explained() from e
        return self.width

    def _explained(self) -> InputError:
        columns = [*self.label_columns, *self.feature_columns]
        return feature_tasks.explain_lists(self.nodes, self.node_spans, columns, self.row_batch)

    def _edge_feature_width(self) -> int:
        """D, from the first row."""
        if not self.edge_columns or not self.edges.rows:
            rows = feature_rows(self.edges.empty, self.edge_columns, "edges")
            return 0 if rows is None else rows.shape[1]
        try:
            return feature_tasks.feature_width(self.edges, self.edge_spans, self.edge_columns)
        except UnequalListsError as e:
            raise self._explained_edges() from e

    def _explained_edges(self) -> InputError:
        return feature_tasks.explain_lists(self.edges, self.edge_spans, list(self.edge_columns), self.edge_batch)

    # -- nodes

    def _number_nodes(self) -> None:
        """Numbers of the nodes from their ids; labels and split as they are, in files."""
        rows = max(1, min(self.budget.task_bytes // (4 * SCAN_BYTES), 1 << 20))
        more = rows, self.ids_are_text, self.label_columns
        items = [(self.folder, self.nodes, k, span, *more) for k, span in enumerate(self.node_spans)]
        try:
            self.scanned = self.stages.run("scan", "reading ids and labels", scan_nodes, items)
        except UnequalListsError as e:
            raise self._explained() from e
        check_id_column("nodes.id", pa.int64(), sum(r["nulls"] for r in self.scanned), self.nodes.from_csv)
        total, spans = self.nodes.rows, [(span.first, span.rows) for span in self.node_spans]
        kind = "rows"
        if self.ids_are_text:
            kind = "text"
            self.stages.run("number", "numbering names", index_names, [(self.folder, len(spans))])
        elif "id" in self.nodes.empty.column_names and not all(r.get("are_rows") for r in self.scanned):
            (ends,) = self.stages.run("number", "sorting ids", sort_ids, [(self.folder, spans)])
            gaps = have_gaps(total, ends["least"], ends["largest"], self.settings.options, self.notes)
            kind = "gaps" if gaps else "dense"
        self.map = NodeMap(kind, self.folder, total)
        self._name_nodes()

    def _name_nodes(self) -> None:
        """Outputs with the names of nodes that have others than their numbers."""
        if self.map.kind == "text":
            text = self.folder / "names.text"
            starts = self.folder / "starts.npy"
            offset = starts.stat().st_size - 8 * (self.map.num_nodes + 1)
            pieces = (Piece(text, text.stat().st_size),), (Piece(starts, self.map.num_nodes + 1, 0, offset),)
        elif self.map.kind == "gaps":
            step, total = 1 << 20, self.map.num_nodes
            items = [(self.folder, k, i, min(i + step, total)) for k, i in enumerate(range(0, total, step))]
            named = self.stages.run("name", "writing names", name_ids, items)
            before = np.cumsum([0, *(r["bytes"] for r in named)]).tolist()
            path = self.folder
            pieces = (
                tuple(Piece(path / f"names-{k:06d}.text", r["bytes"]) for k, r in enumerate(named)),
                (
                    Piece(None, 1),
                    *(Piece(path / f"names-{k:06d}.starts", r["rows"], before[k]) for k, r in enumerate(named)),
                ),
            )
        else:
            return
        self.outputs += [
            Output("node_name_text", "uint8", pieces[0]),
            Output("node_name_starts", "int64", pieces[1]),
        ]

    def _settle_labels(self) -> None:
        spans = [(span.first, span.rows) for span in self.node_spans]
        chosen = self.settings.options, self.settings.split, self.settings.seed
        item = (self.map, spans, self.scanned, *chosen, self.label_columns)
        (self.labels,) = self.stages.run("labels", "labels and split", settle_labels, [item])
        shape, folder = self.labels["shape"], self.folder
        labels = Piece(folder / "labels", shape[0])
        self.outputs.append(Output("labels", self.labels["dtype"], (labels,), entry=tuple(shape[1:])))
        for name in SPLITS:
            self.outputs.append(Output(name, "int64", (Piece(folder / name, self.labels["sizes"][name]),)))

    # -- edges

    def _edge_work(self, nodes: NodeMap) -> edge_tasks.EdgeWork:
        of_edges = self.edge_columns, self.edge_width
        return edge_tasks.EdgeWork(self.folder, self.settings.options, nodes, self.weighted, self.edge_batch, *of_edges)

    def _spill_edges(self) -> dict[str, Any]:
        work = self._edge_work(self.map)
        items = [(work, self.edges, k, span) for k, span in enumerate(self.edge_spans)]
        try:
            totals = edge_tasks.total_of(self.stages.run("spill", "reading edges", edge_tasks.spill_edges, items))
        except UnequalListsError as e:
            raise self._explained_edges() from e
        kind = pa.string() if self.ids_are_text else pa.int64()
        for what, count in zip(edge_tasks.ENDS, totals["nulls"]):
            check_id_column(f"edges.{what}", kind, count, self.edges.from_csv)
        for what, count, first in zip(edge_tasks.ENDS, totals["unknown"], totals["first_unknown"]):
            if count:
                raise unknown(count, f"edges.{what}", first)
        return totals

    def _sort_edges(self, totals: dict[str, Any]) -> list[dict[str, Any]]:
        options, notes, num_nodes = self.settings.options, self.notes, self.map.num_nodes
        if totals["edges"]:
            for name, low, high in zip(("source", "destination"), totals["least"], totals["largest"]):
                check_range(name, low, high, num_nodes)
        if self.ignored:
            notes.append(IGNORED)
        check_edge_rows(totals["unusable"], totals["first_unusable"])
        check_weights(WeightFaults(totals["infinite"], totals["negative"], totals["least_weight"]))
        tell_loops(totals["loops"], totals["first_loop"], options, notes)
        if options.direction == "reverse":
            notes.append(REVERSED)
        work, tasks = self._edge_work(self.map), len(self.edge_spans)
        groups = self._groups(work)
        items = [(work, tasks, k, *cells) for k, cells in enumerate(groups)]
        found = self.stages.run("sort", "sorting edges", edge_tasks.sort_edges, items)
        repeats = [r["repeats"] for r in found]
        first = next((key for count, key in repeats if count), 0)
        tell_repeats((sum(c for c, _ in repeats), first), num_nodes, self.weighted, self.edge_width > 0, options, notes)
        before, after = sum(r["before"] for r in found), sum(r["edges"] for r in found)
        settled_direction(all(r["symmetric"] for r in found), before, options, None, notes)
        tell_reverses(before, after, notes)
        degrees, at = np.unique(np.concatenate([r["degrees"] for r in found]), return_inverse=True)
        counts = np.bincount(at, np.concatenate([r["counts"] for r in found])).astype(np.int64)
        self.in_degree = degree_summary(degrees.astype(np.int64), counts)
        for way in work.ways:
            shutil.rmtree(self.folder / way, ignore_errors=True)
        starts = np.cumsum([0, *(r["edges"] for r in found)]).tolist()

        def pieces(what: str, count: str) -> list[Piece]:
            return [Piece(edge_tasks.sorted_file(self.folder, what, k), r[count]) for k, r in enumerate(found)]

        rises = [piece._replace(base=start) for piece, start in zip(pieces("indptr", "rows"), starts)]
        outputs = {"indptr": ("int64", [Piece(None, 1), *rises])}
        outputs["indices"] = (str(index_dtype(num_nodes)), pieces("indices", "edges"))
        if self.weighted:
            outputs["edge_weight"] = ("float32", pieces("edge_weight", "edges"))
        self.outputs += [
            Output(name, dtype, tuple(parts), GRAPH_DIGESTS[name], npy=self.settings.graph == "npy")
            for name, (dtype, parts) in outputs.items()
        ]
        if self.edge_width:
            rows, npy = tuple(pieces(OF_EDGES, "edges")), self.settings.features == "npy"
            self.outputs.append(Output(OF_EDGES, "float32", rows, "float32", (self.edge_width,), npy))
        return found

    def _groups(self, work: edge_tasks.EdgeWork) -> list[tuple[int, int]]:
        """Ranges of cells that one task sorts each. They are kept: the spilled files are gone when edges are sorted."""
        folder, cells = self.folder, cells_of(self.map.num_nodes)

        def measure() -> dict[str, Any]:
            sizes = sum(cell_sizes(folder / way, len(self.edge_spans), cells) for way in work.ways)
            most = self.budget.edge_group(self.weighted, 4 * self.edge_width)
            return {"groups": edge_tasks.groups_of(np.asarray(sizes), most)}

        found = self.stages.run_here("groups", measure)
        return [(first, stop) for first, stop in found["groups"]]

    # -- features and the rest

    def _write_features(self, groups: Sequence[dict[str, Any]]) -> tuple[Matrix, dict[int, str]]:
        """Write the features. Returns their array, and the digests of its leaves by first row."""
        options, degrees = self.settings.options, not self.feature_columns or not self.width
        shape = (self.map.num_nodes, 2 if degrees else self.width)
        matrix = Matrix(self.store, shape, self.settings.features == "npy", kind=self.settings.feature_dtype)
        self.feature_entries = matrix.make()
        work = feature_tasks.FeatureWork(self.folder, options, self.map, matrix, self.feature_columns, self.row_batch)
        if degrees:
            columns_of.tell_missing(options, self.notes)
            begins = np.cumsum([0, *(r["rows"] for r in groups)]).tolist()
            items = [(work, k, begins[k], r["rows"]) for k, r in enumerate(groups)]
            written = self.stages.run("features", "features from degrees", feature_tasks.write_degrees, items)
        else:
            written = self._features_of_rows(work)
        chunks = seams_of(written, matrix.chunk)
        items = [
            (matrix, self.folder / "seams", chunks[i : i + SEAMS_PER_TASK])
            for i in range(0, len(chunks), SEAMS_PER_TASK)
        ]
        joined = self.stages.run("seams", "joining features", join_seams, items)
        return matrix, {first: leaf for r in [*written, *joined] for first, leaf in r["leaves"]}

    def _features_of_rows(self, work: feature_tasks.FeatureWork) -> list[dict[str, Any]]:
        items = [(work, self.nodes, k, span) for k, span in enumerate(self.node_spans)]
        moved = self.map.kind in ("dense", "gaps") and not ascend(self.scanned)
        task = feature_tasks.spill_features if moved else feature_tasks.write_features
        seen = self.stages.run("features", "features", task, items)
        faults = [r for r in seen if r["unusable"]]
        first = min((r["first_unusable"] for r in faults), default=0)
        options = self.settings.options
        columns_of.tell_unusable(sum(r["unusable"] for r in faults), first, options, self.notes)
        columns_of.tell_normalized(max((r["largest"] for r in seen), default=0.0), options, self.notes)
        if not moved:
            return seen
        cells = cells_of(self.map.num_nodes)
        row = 8 + 4 * work.matrix.shape[1]
        most = max(1, self.budget.task_bytes // (3 * row))
        sizes = np.full(cells, 1 << shift_of(self.map.num_nodes))
        items = [(work, len(seen), k, *c) for k, c in enumerate(edge_tasks.groups_of(sizes, most))]
        gathered = self.stages.run("gather", "features in order", feature_tasks.gather_features, items)
        shutil.rmtree(self.folder / "features", ignore_errors=True)
        return gathered

    def _write_manifest(self, features: tuple[Matrix, dict[int, str]]) -> None:
        """Write the other arrays, and the manifest."""
        entries = make_outputs(self.store, self.outputs) | self.feature_entries
        items = [(self.store, output, *rows) for output in self.outputs for rows in output.slices()]
        written = self.stages.run("arrays", "writing arrays", write_slice, items)
        leaves: dict[str, list[bytes]] = {output.name: [] for output in self.outputs}
        for (_, output, *_), record in zip(items, written):
            leaves[output.name].append(bytes.fromhex(record["leaves"]))
        by_name = {output.name: output for output in self.outputs}
        graph = {
            name: digest_of_leaves(dtype, by_name[name].shape, leaves[name]) if name in by_name else None
            for name, dtype in GRAPH_DIGESTS.items()
        }
        matrix, of_rows = features
        digest = digest_of_leaves(np.float32, matrix.shape, [bytes.fromhex(of_rows[k]) for k in sorted(of_rows)])
        fingerprint = {
            "graph": digest_record(graph),
            "features": describe_features(*matrix.shape, np.float32, digest),
            **self.labels["fingerprint"],
        }
        if self.edge_width:
            shape = by_name[OF_EDGES].shape
            digest = digest_of_leaves(np.float32, shape, leaves[OF_EDGES])
            fingerprint[OF_EDGES] = describe_features(shape[0], shape[1], np.float32, digest)
        names = self.labels["class_names"]
        meta: dict[str, Any] = {
            "name": self.source.name,
            "num_classes": self.labels["num_classes"],
            "task": self.labels["task"],
            "notes": self.notes,
            "features_format": self.settings.features,
            **({"features_dtype": matrix.kind} if matrix.kind in NARROW else {}),
            **({"graph_format": "npy"} if self.settings.graph == "npy" else {}),
            "in_degree": self.in_degree,
            "digests": {**self.labels["digests"], "feature_sample": matrix.sample_digest()},
            **({} if names is None else {"class_names": list(names)}),
            **({"has_unknown": self.labels["has_unknown"]} if self.labels["task"] == "multilabel" else {}),
            **({"features_bytes": (self.store / FEATURES_FILE).stat().st_size} if matrix.npy else {}),
        }
        write_manifest(self.store, KIND, fingerprint, meta, entries)
