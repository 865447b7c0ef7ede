"""Labelled edges of a source, with their ends, labels, features, times and split; and datasets of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.dataset import SPLITS, Dataset, require_dataset
from ...storage.errors import InputError, whole_number
from ...storage.optional import when_present
from ...storage.plural import counted, were
from ...storage.store.manifest import MANIFEST
from ...storage.store.paths import expanded
from ...storage.stored.data_card import with_columns
from ...storage.times.moments import in_one_unit
from ...storage.typed.graph_types import RelationType
from .cleaning.columns import EDGES, LARGE_VALUE, Card, clean_edge_features
from .cleaning.kept import PAIRS, of_pairs
from .cleaning.labels import settled_labels
from .cleaning.options import DEFAULT_OPTIONS, ReadOptions, require_options
from .cleaning.raw import AnyArray, GivenLabels
from .cleaning.splits import make_split
from .links import like_edges, relations_of, without_pairs
from .pair_relation import with_pair_relation
from .pairs import Ends, as_pairs, ends_of_table, read_pairs, relations_of_table, require_file, times_like
from .readers.npz_members import load_members
from .readers.pyg import has_targets, store_of_pairs
from .readers.reader import path_of
from .readers.registry import is_table
from .readers.typed import host
from .schema.source import SourceTable

ARRAYS = {
    "ends": ("edge_label_index", "edge_index"),
    "features": ("edge_label_attr", "edge_attr"),
    "time": ("edge_label_time", "edge_time"),
}
"""Names of the arrays of labelled edges beside ``edge_label``; the second where all edges are labelled."""
NAMES = [key for keys in ARRAYS.values() for key in keys]
OF_SETS = [f"{part}_{form}" for part in SPLITS for form in ("idx", "mask")]
LABELLED = ("edge_label", *NAMES, *OF_SETS)


@dataclass(frozen=True, eq=False)
class LabelledEdges:
    """N labelled edges as a source stores them."""

    pairs: AnyArray
    """int64 [N, 2], source and destination, as the dataset numbers nodes."""
    labels: GivenLabels
    features: AnyArray | None = None
    """[N, K] or [N]."""
    time: AnyArray | None = None
    """[N]."""
    split: Mapping[str, AnyArray] = field(default_factory=dict)
    """See `Raw.split`."""
    feature_columns: Sequence[str] = ()
    """See `RawEdges.columns`."""
    has_own_columns: bool = False
    """True if features are others than those of the graph's edges."""
    notes: tuple[str, ...] = ()


def edge_dataset(
    dataset: Dataset,
    pairs: Any,
    labels: Any,
    *,
    features: Any = None,
    times: Any = None,
    train: Any = None,
    val: Any = None,
    test: Any = None,
    split: str | None = None,
    seed: int = 0,
    relation: str | RelationType | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
) -> Dataset:
    """A dataset whose labels are of edges: which transaction is a fraud, how a user rates an item.

    The labelled edges may be edges of the graph, several between two nodes too, or any other pairs of nodes. By default
    all edges stay in the graph, also those of val and test, whose labels alone are unknown. With
    ``ReadOptions(labelled_edges="hidden")`` the model predicts a labelled edge without seeing it.

    Args:
        dataset: its graph, features and names stay; labels and split are replaced.
        pairs: [N, 2] ids or names of nodes, source and destination. In a graph with several types, each column is of
            ids or names within the type of that end of `relation`.
        labels: [N] class numbers (-1: unlabelled), text or targets, or [N, C], as those of nodes.
        features: [N, K], features of these edges that their prediction reads, or None.
        times: [N], times of these edges, for splits and samples by time, or None.
        train: ids in [0, N) or a mask [N] of the edges to train on; None: drawn by `split`.
        val: likewise.
        test: likewise.
        split: of the labelled edges, see `open_dataset`; fraction:0.6,0.2 by default if no set is given.
        seed: seed of a drawn split.
        relation: the relation that is labelled, of a graph with several types: its name, or (source type, name,
            destination type), also joined by commas.
        options: the task, the treatment of defects of labels and splits, and `ReadOptions.labelled_edges`.

    Raises:
        InputError: an end is no node, numbers of rows differ, or labels have a defect.
    """
    require_dataset(dataset)
    require_options(options)
    if dataset.of_pairs:
        raise InputError(f"the labels of {dataset.name} are of pairs already; expected a dataset of nodes")
    dataset = with_pair_relation(dataset, relation)
    ends = as_pairs(pairs, dataset, "pairs")
    given = {"labels": labels, "features": features, "times": times}
    rows = {what: when_present(host, a) for what, a in given.items()}
    for what, array in rows.items():
        if array is not None and (not array.ndim or len(array) != len(ends)):
            raise InputError(f"{what} have shape {list(array.shape)}; expected a row for each of {len(ends)} pairs")
    y = rows["labels"]
    if y is None:
        raise InputError("labels are None; expected one for each pair")
    sets = {part: host(ids) for part, ids in zip(SPLITS, (train, val, test)) if ids is not None}
    own = GivenLabels(y, task="regression" if hasattr(labels, "detach") and has_targets(labels) else None)
    raw = LabelledEdges(ends, own, rows["features"], rows["times"], sets)
    return with_labelled_edges(dataset, raw, split, seed, options)


def with_labelled_edges(
    dataset: Dataset, raw: LabelledEdges, split: str | None, seed: int, options: ReadOptions
) -> Dataset:
    """The dataset with these labelled edges, checked and cleaned; its graph names the relation of pairs if it has
    several types. See `edge_dataset`."""
    notes = [*dataset.notes, *raw.notes]
    settled = settled_labels(raw.labels, options, notes, "edge")
    times = None
    if raw.time is not None:
        timed = dataset.graph.has_edge_times or dataset.graph.has_node_times
        if not timed and (own := in_one_unit([raw.time])[1]) is not None:
            dataset = replace(dataset, graph=replace(dataset.graph, time_unit=own))
        found = times_like(raw.time, "times of labelled edges", len(raw.pairs), dataset.graph)
        times = like_edges(found, dataset.graph)
    unit = dataset.graph.time_unit
    more: Any = {"times": times, "unit": "edge", "time_unit": unit}
    parts = make_split(settled.labels, raw.split, split, whole_number("seed", seed), options, notes, **more)
    features = None
    if raw.features is not None:
        given = np.asarray(raw.features)
        if given.dtype.kind not in "biuf" or given.ndim > 2:
            raise InputError(
                f"features of labelled edges are {given.dtype} {list(given.shape)}; expected numbers [N, K]: encode "
                "them first"
            )
        features = given.reshape(len(raw.pairs), -1).astype(np.float32)
        if features.size:
            columns: Card = []
            of = EDGES._replace(columns=raw.feature_columns)
            features = clean_edge_features(given, len(given), of_pairs(options), notes, of, columns)
            if raw.has_own_columns and (card := dataset.card):
                dataset = replace(dataset, card=with_columns(card, [each | {"of": PAIRS} for each in columns]))
        if (largest := float(np.abs(features).max(initial=0))) > LARGE_VALUE:
            notes.append(
                f"Features of labelled edges reach {largest:,.0f}, and training needs values near 1: scale them before "
                "they are read, amounts by their logarithm."
            )
    hidden, graph = options.labelled_edges == "hidden", dataset.graph
    if hidden:
        held_out = raw.pairs[np.concatenate([parts.val, parts.test])]
        graph = without_pairs(graph, held_out, relations_of(graph))
        if removed := dataset.graph.num_edges - graph.num_edges:
            notes.append(
                f"{counted(removed, 'edge')} {were(removed)} held out: the val and test edges, left out of the graph."
            )
    more = {"pairs": raw.pairs, "pair_features": features, "pair_time": times, "hides_pairs": hidden}
    return replace(dataset, graph=graph, split=parts, notes=tuple(notes), **settled._asdict(), **more).check()


def labelled_edges(source: Any, options: ReadOptions, dataset: Dataset, ends: Ends | None = None) -> LabelledEdges:
    """The labelled edges of a source whose graph is that of `dataset`, or those of the file `ReadOptions.pairs`. With
    `ends`, as in `as_pairs`, those of the source, whose labels are not read and need not be there. Raises InputError:
    there are none, or an end is no node."""
    path = path_of(source)
    if ends is None and options.pairs is not None:
        return _of_file(expanded(options.pairs), options, dataset)
    if path is None and not isinstance(source, str | Path):
        return _of_pyg(source, dataset, ends)
    if path is None or (ends is None and (path / MANIFEST).exists()):
        raise InputError(
            f"labels_of is 'edges', but {source} has no labels of edges; give pairs, a table with the columns src, dst "
            "and label"
        )
    if path.is_file() and not is_table(path):
        return _of_npz(path, dataset) if ends is None else _of_file(path, options, dataset, ends)
    return _of_tables(_edge_table(path, options, dataset), path, options, dataset, ends)


def edges_to_predict(
    source: Any, options: ReadOptions, dataset: Dataset, ends: Ends, *, of_file: bool
) -> LabelledEdges:
    """The edges of a source, or `of_file` of a file of pairs, whose labels are not read. Missing values of features are
    filled as those that a run was trained on. `ends` as in `as_pairs`."""
    read = _of_file if of_file else labelled_edges
    found = read(source, options, dataset, ends)
    notes, of = [*found.notes], EDGES._replace(columns=found.feature_columns)

    def filled(given: AnyArray) -> AnyArray:
        rows = given.reshape(len(found.pairs), -1)
        return clean_edge_features(rows, len(rows), of_pairs(options), notes, of)

    return replace(found, features=when_present(filled, found.features), notes=tuple(notes))


def _of_file(path: Path, options: ReadOptions, dataset: Dataset, ends: Ends | None = None) -> LabelledEdges:
    """The edges of a file of pairs."""
    require_file(path)
    if path.suffix == ".npz":
        return _of_npz(path, dataset, ends)
    if path.suffix == ".npy" and ends is not None:
        pairs, _ = read_pairs(path, dataset, ends)
        return LabelledEdges(pairs, GivenLabels(np.zeros(len(pairs))))
    return _of_tables(SourceTable("edges", (path,)), path, options, dataset, ends)


def _edge_table(path: Path, options: ReadOptions, dataset: Dataset) -> SourceTable:
    """The table of edges at a path, of the relation of the dataset's pairs if there are several. Raises InputError:
    there is none."""
    from .readers.derived_tables import rows_by_relation
    from .readers.tables import read_rows
    from .schema.files import entries_in, tables_of

    types = dataset.graph.types
    wanted = None if types.is_single else types.relations[types.one_predicted]
    column = (*(options.names("relation_column") or ()), "")[0] if options.pairs is None else ""
    tables = [SourceTable("edges", (path,))] if path.is_file() else tables_of(entries_in(path), path, needs_nodes=False)
    tables = [t for t in tables if t.kind == "edges" and t.type in (None, wanted)]
    if not tables:
        raise InputError(f"{path} holds no table of edges of {','.join(wanted or ())}; give pairs, a table of them")
    if not wanted or not column or tables[0].type is not None:
        return tables[0]
    rows = read_rows(tables[0], replace(options, one_hot=None)).rows
    return replace(tables[0], type=wanted, rows=rows_by_relation(rows, column).get(wanted[1], rows[:0]))


def _of_tables(
    table: SourceTable, source: Path, options: ReadOptions, dataset: Dataset, to_predict: Ends | None = None
) -> LabelledEdges:
    """Labelled edges of a table; with the nodes that may be ends, edges `to_predict`, whose labels are not read."""
    # Arrow starts a thread when it is imported, which the server of ranks must not have.
    from .readers.parquet import feature_names, feature_rows, labels_of, sets_of, split_bits, times_of
    from .readers.tables import read_rows
    from .schema.roles import columns_of_pairs

    options = of_pairs(options)
    rows = read_rows(replace(table, type=None), options).rows
    if table.type is None:  # no table of one relation
        _ = relations_of_table(rows, source, dataset.graph.types)
    if to_predict is not None and not rows.num_rows:
        raise InputError(f"{source} has a header and no rows; expected an edge in each row")
    options = options if to_predict is None else replace(options, labels_of="edges")
    columns = columns_of_pairs(rows.schema, source, options, labelled=to_predict is None)
    found = labels_of(rows, columns.labels, "edges")
    features = feature_rows(rows, columns.features, "edges")
    when = columns.time or ("time" if "time" in rows.column_names else None)
    return LabelledEdges(
        ends_of_table(rows, source, dataset, to_predict, columns.ends),
        replace(found, label_names=columns.labels if options.label_columns else None),
        features,
        times_of(rows, when, "edges"),
        sets_of(split_bits(rows, columns, "edges")),
        feature_columns=feature_names(rows, columns.features, when_present(lambda x: x.shape[1], features) or 0),
        has_own_columns=options.pairs is not None or not dataset.graph.types.is_single,
        notes=columns.notes if options.pairs is not None else (),  # those of the graph's own table are told already
    )


def _of_npz(path: Path, dataset: Dataset, ends: Ends | None = None) -> LabelledEdges:
    arrays, held = load_members(path, LABELLED if ends is None else NAMES)
    if ends is None and "edge_label" not in arrays:
        raise InputError(
            f"{path} has no key 'edge_label', and labels_of is 'edges'; it holds {', '.join(held) or 'nothing'}"
        )
    return _of_arrays(arrays, dataset, str(path), ends)


def _of_pyg(data: Any, dataset: Dataset, ends: Ends | None) -> LabelledEdges:
    data, where = store_of_pairs(data, dataset.graph.types, f"the PyG data for {dataset.name}")
    arrays = {key: host(data[key]) for key in (LABELLED if ends is None else NAMES) if key in data}
    if ends is not None:
        return _of_arrays(arrays, dataset, where, ends)
    by_part = {part: f"{part}_edge_label" for part in SPLITS}
    if all(key not in data for key in ("edge_label", *by_part.values())):
        raise InputError(f"{where} has no edge_label, and labels_of is 'edges'; expected a label for each edge")
    if "edge_label" not in data:  # as `Dataset.to_pyg` writes them
        parts = {
            part: {key: host(data[f"{part}_{key}"]) for key in ("edge_label", *NAMES) if f"{part}_{key}" in data}
            for part, key in by_part.items()
            if key in data
        }
        return _joined(parts, dataset, where)
    return _with_task(_of_arrays(arrays, dataset, where))


def _joined(parts: Mapping[str, Mapping[str, AnyArray]], dataset: Dataset, where: str) -> LabelledEdges:
    """The edges of all sets, one set after the other."""
    keys = {key for arrays in parts.values() for key in arrays}
    arrays = {
        key: np.concatenate([of[key] for of in parts.values()], axis=1 if key == "edge_label_index" else 0)
        for key in keys
        if all(key in of for of in parts.values())
    }
    ends = np.cumsum([0, *(len(of["edge_label"]) for of in parts.values())])
    sets = {f"{part}_idx": np.arange(*span) for part, span in zip(parts, zip(ends, ends[1:]))}
    return _with_task(_of_arrays({**arrays, **sets}, dataset, where))


def _with_task(found: LabelledEdges) -> LabelledEdges:
    is_regression = has_targets(found.labels.values)
    return replace(found, labels=replace(found.labels, task="regression")) if is_regression else found


def _of_arrays(
    arrays: Mapping[str, AnyArray], dataset: Dataset, where: str, nodes: Ends | None = None
) -> LabelledEdges:
    """Labelled edges by the names of `ARRAYS`, and of a split; with `nodes`, the ends of edges whose labels are not
    read."""
    all_edges = "edge_label_index" not in arrays
    found = {what: arrays.get(names[all_edges]) for what, names in ARRAYS.items()}
    ends, key = found["ends"], ARRAYS["ends"][all_edges]
    if ends is None or ends.ndim != 2 or ends.shape[0] != 2:
        seen = "is missing" if ends is None else f"has shape {list(ends.shape)}"
        raise InputError(f"{where}: {key} {seen}; expected the ends of the labelled edges, [2, N]")
    n = ends.shape[1]
    labels = arrays["edge_label"] if nodes is None else np.zeros(n)
    of_edges = {names[all_edges]: found[what] for what, names in ARRAYS.items() if what != "ends"}
    for name, rows in {"edge_label": labels, **of_edges}.items():
        if rows is not None and (not rows.ndim or len(rows) != n):
            raise InputError(f"{where}: {name} has shape {list(rows.shape)}; expected a row for each of {n} edges")
    split = {}
    for name in OF_SETS:
        part, _, form = name.partition("_")
        if name in arrays:
            split.setdefault(part, arrays[name].astype(bool) if form == "mask" else arrays[name])
    pairs = as_pairs(ends.T, dataset, f"{where}: {key}", nodes)
    own = not (all_edges and dataset.graph.types.is_single)
    return LabelledEdges(pairs, GivenLabels(labels), found["features"], found["time"], split, has_own_columns=own)
