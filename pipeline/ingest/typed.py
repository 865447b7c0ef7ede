"""An ingest of tables of several types: node types are ranges of ids, and a relation is part of the key that edges are
sorted by."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...storage.errors import InputError
from ...storage.typed.graph_types import GraphTypes, RelationType
from ..datasets.cleaning.edges import IGNORED, WeightFaults, check_weights
from ..datasets.cleaning.filling import Treatment
from ..datasets.cleaning.node_ids import check_id_column, unknown
from ..datasets.cleaning.options import ReadOptions
from ..datasets.cleaning.typed import note_of_types, note_unweighted, noted, reversed_relations
from ..datasets.readers.graph import about, check_ends, check_options, dropped_note
from ..datasets.readers.parquet import UnequalListsError, feature_rows, labels_of
from ..datasets.schema.columns import Columns
from .arrays import Matrix, Written
from .nodes import NodeTable
from .run import Ingest
from .source import Table

KEYS = 1 << 63
"""Numbers of (destination, relation, source) that a key can tell apart."""
AS_THEY_ARE = ReadOptions(direction="directed", duplicates="keep")
"""Treatment of edges, but for those with an end that is no node."""


class TypedIngest(Ingest):
    """One ingest of a table for each node type and each relation."""

    def run(self) -> None:
        with about(self.source.name):
            check_options(self.source.path, self.settings.options)
            tables = self._describe_all()
            self._number_nodes()
            self._put_names(list(self.of_types.values()))
            with self._lists(self.target):
                self._settle_labels(self.of_types[self.target], self.types.offsets[-1] - self.types.offsets[1])
            self._spill_relations(tables)
            edges_of_types = np.sum([r["of_relations"] for r in self._sorted(self.work)], axis=0).tolist()
            features = [self._features_of(k, t, own) for k, (t, own) in enumerate(self.of_types.items())]
            self.notes += [*self.labels["notes"], *self.labels["split_notes"], note_of_types(self.types)]
            self._write_manifest(features, self.types, edges_of_types=edges_of_types)

    @contextmanager
    def _lists(self, node_type: str) -> Iterator[None]:
        """Context in which lists of several lengths of a node type raise an error that says which."""
        try:
            yield
        except UnequalListsError:
            with about(f"node type '{node_type}'"), self.of_types[node_type].explained():
                raise

    # -- what is there

    def _describe_all(self) -> dict[RelationType, Table]:
        """The columns of all tables, and what they refuse before any row is read. Returns the tables of relations."""
        options, source = self.settings.options, self.source
        of_tables = {t.type: t for t in source.edges if isinstance(t.type, tuple)}
        for key in of_tables:
            check_ends(key, [str(own.type) for own in source.nodes])
        schema = self._read_schema()
        assert schema.target is not None, "links are read in memory"
        self.target = schema.target
        edges = dict(zip(of_tables, self.edge_tables))
        of_edges = dict(zip(edges, schema.edges))
        nodes = {str(t.source.type): (t, own) for t, own in zip(self.node_tables, schema.nodes)}
        self.ids_are_text_of = {}
        for t, (table, own) in nodes.items():
            ends = [(e, of_edges[key], i) for key, e in edges.items() for i in (0, 1) if key[2 * i] == t]
            with about(f"node type '{t}'"):
                self.ids_are_text_of[t] = self._are_text(table, own, ends)
        for key, table in edges.items():
            with about(f"relation {','.join(key)}"):
                feature_rows(table.empty, of_edges[key].features, table.called)
        self.of_types = {}
        for t in sorted(nodes, key=lambda t: t != self.target):
            table, own = nodes[t]
            number, labelled = len(self.of_types), t == self.target
            folder, common = self.folder / "types" / str(number), (self.stages, self.budget)
            with about(f"node type '{t}'"):
                feature_rows(table.empty, own.features)
                labels_of(table.empty, own.labels)
                self.of_types[t] = NodeTable(table, folder, *common, own, labelled, number, t)
        self._make_types(edges, of_edges)
        self.later_notes = list[str]()
        given = [key for key, own in of_edges.items() if own.weight is not None]
        if given and options.edge_weights == "ignore":
            self.later_notes.append(IGNORED)
        elif given:
            note_unweighted([key for key in edges if key not in given], self.later_notes)
        return edges

    def _make_types(self, edges: Mapping[RelationType, Table], columns: Mapping[RelationType, Columns]) -> None:
        """The types of the graph, and the tables of its relations."""
        self.tables = []
        for key, table in edges.items():
            with about(f"relation {','.join(key)}"):
                self.tables.append(self._edge_table(table, columns[key]))
        widest = max(own.width for own in self.tables)
        if widest:  # rows of all relations are so wide
            self.tables = [self._in_pieces(own, 4 * widest) for own in self.tables]
        turned = self.settings.options.direction == "undirected"
        relations = tuple(edges)
        both = (*relations, *(reversed_relations(self.source.name, relations) if turned else ()))
        offsets = tuple(np.cumsum([0, *(own.table.rows for own in self.of_types.values())]).tolist())
        widths = tuple(own.width for own in self.tables) * (2 if turned else 1) if widest else ()
        self.types = GraphTypes(tuple(self.of_types), offsets, both, widths).check(offsets[-1], widest)
        if offsets[-1] ** 2 * len(both) >= KEYS:
            raise InputError(
                f"there are {offsets[-1]:,} nodes and {len(both)} relations; edges are sorted by numbers below 2**63, "
                "and nodes times nodes times relations are more: leave some out"
            )
        self.work = replace(
            self._edge_work(offsets, len(both)),
            options=replace(AS_THEY_ARE, dangling_edges=self.settings.options.dangling_edges),
        )
        self._check_space(list(self.of_types.values()), self.work, turned)

    # -- nodes and edges

    def _number_nodes(self) -> None:
        for t in self.ids_are_text_of:
            own_notes = list[str]()
            with about(f"node type '{t}'"):
                self.of_types[t].number(self.ids_are_text_of[t], self.settings.options, own_notes)
            self.notes += noted(t, own_notes)

    def _spill_relations(self, edges: Mapping[RelationType, Table]) -> None:
        """Spill all edges, and check what was seen of them."""
        types, maps = self.types, {t: own.map for t, own in self.of_types.items()}
        turned = len(types.relations) > len(edges)
        self.tables = [
            replace(
                own,
                maps=(maps[source], maps[destination]),
                kinds=(types.node_types.index(source), types.node_types.index(destination)),
                number=number,
                reverse=number + len(edges) if turned else None,
            )
            for number, (own, (source, _, destination)) in enumerate(zip(self.tables, edges))
        ]
        seen = dict(zip(edges, self._spilled(self.work)))
        for t, is_text in self.ids_are_text_of.items():
            ends = [
                (f"{edges[key].called}.{end}", edges[key].from_csv, found, i)
                for own, (key, found) in zip(self.tables, seen.items())
                for i, end in enumerate(own.columns.ends)
                if key[2 * i] == t
            ]
            with about(f"node type '{t}'"):
                for what, from_csv, found, i in ends:
                    check_id_column(what, pa.string() if is_text else pa.int64(), found["nulls"][i], from_csv)
                for what, _, found, i in ends:
                    if count := found["unknown"][i]:
                        raise unknown(count, what, found["first_unknown"][i])
        self.notes += [dropped_note(r["dropped"], edges[key].called) for key, r in seen.items() if r["dropped"]]
        self.notes += self.later_notes
        for key, found in seen.items():
            with about(f"relation {','.join(key)}"):
                check_weights(WeightFaults(found["infinite"], found["negative"], found["least_weight"]))
            own_notes, own = list[str](), next(own for own in self.tables if own.table.source.type == key)
            with about(f"relation {','.join(key)}"):
                self._note_edge_features(own, found, own_notes)
            self.notes += [f"Relation {','.join(key)}: {note}" for note in own_notes]

    # -- features

    def _features_of(self, number: int, node_type: str, own: NodeTable) -> Written:
        """Write the features of a node type."""
        first, stop = self.types.offsets[number : number + 2]
        options = self.settings.options
        with self._lists(node_type):
            treatment = own.treatment(options) if own.width else Treatment(options)
        matrix = Matrix(
            self.store,
            (stop - first, own.width + len(treatment.indicated)),
            self.settings.features == "npy",
            kind=self.settings.feature_dtype,
            suffix=f"_{number}",
            nodes_before=first,
            num_nodes=self.types.offsets[-1],
        )
        entries, own_notes = matrix.make(), list[str]()
        if not own.width:
            return Written(matrix, entries, {})
        with self._lists(node_type):
            try:
                rows = own.write_features(matrix, treatment, own_notes, self.card, node_type)
            except UnequalListsError:
                raise
            except InputError as e:
                raise InputError(f"features of node type '{node_type}': {e}") from e
        self.notes += noted(node_type, own_notes)
        return self._written(matrix, entries, rows, node_type)
