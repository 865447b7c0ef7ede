"""Labelled edges of a source, with their ends, labels, features, times and split; and datasets of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.dataset import SPLITS, Dataset, require_dataset
from ...storage.errors import InputError, whole_number
from ...storage.optional import present_items, when_present
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
from .links import held_out, like_edges, relations_of
from .pair_relation import with_pair_relation
from .pairs import as_pairs, pairs_of_table, read_pairs, require_file, times_like
from .readers.npz_members import load_members
from .readers.pyg import labels_of_tensor, store_of_pairs
from .readers.reader import path_of
from .readers.registry import is_table
from .readers.typed import host
from .schema.source import Request, SourceTable

ARRAYS = {
    "ends": ("edge_label_index", "edge_index"),
    "features": ("edge_label_attr", "edge_attr"),
    "time": ("edge_label_time", "edge_time"),
}
"""Names of the arrays of labelled edges beside ``edge_label``; the second where all edges are labelled."""
NAMES = [key for keys in ARRAYS.values() for key in keys]
OF_SETS = [f"{part}_{form}" for part in SPLITS for form in ("idx", "mask")]
LABELLED = ("edge_label", *NAMES, *OF_SETS)
NO_LABELS = GivenLabels(np.zeros(0))
"""Those of edges to predict, which are not read."""


@dataclass(frozen=True, eq=False)
class LabelledEdges:
    """N labelled edges as a source stores them."""

    pairs: AnyArray
    """int64 [N, 2], source and destination, as the dataset numbers nodes."""
    labels: GivenLabels = NO_LABELS
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
    if labels is None:
        raise InputError("labels are None; expected one for each pair")
    given = {"labels": labels, "features": features, "times": times}
    rows = {what: when_present(host, a) for what, a in given.items()}
    _check_rows(rows, len(ends))
    sets = {part: host(ids) for part, ids in zip(SPLITS, (train, val, test)) if ids is not None}
    own = labels_of_tensor(labels) if hasattr(labels, "detach") else GivenLabels(host(labels))
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
        rows = raw.pairs[np.concatenate([parts.val, parts.test])]
        graph = held_out(graph, rows, relations_of(graph), "edges", notes)
    more = {"pairs": raw.pairs, "pair_features": features, "pair_time": times, "hides_pairs": hidden}
    return replace(dataset, graph=graph, split=parts, notes=tuple(notes), **settled._asdict(), **more).check()


def labelled_edges(source: Any, options: ReadOptions, dataset: Dataset, *, labelled: bool = True) -> LabelledEdges:
    """The labelled edges of a source whose graph is that of `dataset`, or those of the file `ReadOptions.pairs`. If
    they are not `labelled`, those of the source, whose labels are not read and need not be there. Raises InputError:
    there are none, or an end is no node."""
    path = path_of(source)
    if labelled and options.pairs is not None:
        return _of_file(expanded(options.pairs), options, dataset)
    if path is None and not isinstance(source, str | Path):
        return _of_pyg(source, dataset, labelled)
    if path is None or (labelled and (path / MANIFEST).exists()):
        raise InputError(
            f"labels_of is 'edges', but {source} has no labels of edges; give pairs, a table with the columns src, dst "
            "and label"
        )
    if path.is_file() and not is_table(path):
        return _of_npz(path, dataset) if labelled else _of_file(path, options, dataset, labelled)
    return _of_tables(_edge_table(path, options, dataset), path, options, dataset, labelled)


def edges_to_predict(source: Any, options: ReadOptions, dataset: Dataset, *, of_file: bool) -> LabelledEdges:
    """The edges of a source, or `of_file` of a file of pairs, whose labels are not read. Missing values of features are
    filled as those that a run was trained on."""
    if of_file:
        found = _of_file(source, options, dataset, labelled=False)
    else:
        found = labelled_edges(source, options, dataset, labelled=False)
    notes, of = [*found.notes], EDGES._replace(columns=found.feature_columns)

    def filled(given: AnyArray) -> AnyArray:
        rows = given.reshape(len(found.pairs), -1)
        return clean_edge_features(rows, len(rows), of_pairs(options), notes, of)

    return replace(found, features=when_present(filled, found.features), notes=tuple(notes))


def _of_file(path: Path, options: ReadOptions, dataset: Dataset, labelled: bool = True) -> LabelledEdges:
    """The edges of a file of pairs."""
    require_file(path)
    if path.suffix == ".npz":
        return _of_npz(path, dataset, labelled)
    if path.suffix == ".npy" and not labelled:
        return LabelledEdges(read_pairs(path, dataset).nodes(dataset))
    return _of_tables(SourceTable("edges", (path,)), path, options, dataset, labelled)


def _edge_table(path: Path, options: ReadOptions, dataset: Dataset) -> SourceTable:
    """The table of edges at a path, of the relation of the dataset's pairs if there are several. Raises InputError:
    there is none."""
    from .readers.derived_tables import rows_by_relation
    from .readers.tables import read_rows, tables_at

    types = dataset.graph.types
    wanted = None if types.is_single else types.relations[types.one_predicted]
    column = (*(options.names("relation_column") or ()), "")[0] if options.pairs is None else ""
    request = Request(options=replace(options, labels_of="edges"), pairs=options.pairs)
    tables = [table for table in tables_at(path, request).edges if table.type in (None, wanted)]
    if not tables:
        raise InputError(f"{path} holds no table of edges of {','.join(wanted or ())}; give pairs, a table of them")
    if not wanted or not column or tables[0].type is not None:
        return tables[0]
    rows = read_rows(tables[0], replace(options, one_hot=None)).rows
    return replace(tables[0], type=wanted, rows=rows_by_relation(rows, column).get(wanted[1], rows[:0]))


def _of_tables(
    table: SourceTable, source: Path, options: ReadOptions, dataset: Dataset, labelled: bool
) -> LabelledEdges:
    """The edges of a table; their labels are read if they are `labelled`."""
    # Arrow starts a thread when it is imported, which the server of ranks must not have.
    from .readers.parquet import feature_names, feature_rows, labels_of, sets_of, split_bits
    from .readers.tables import read_rows
    from .schema.roles import columns_of_pairs

    options = of_pairs(options)
    rows = read_rows(replace(table, type=None), options).rows
    if not labelled and not rows.num_rows:
        raise InputError(f"{source} has a header and no rows; expected an edge in each row")
    options = options if labelled else replace(options, labels_of="edges")
    columns = columns_of_pairs(rows.schema, source, options, labelled=labelled)
    found = labels_of(rows, columns.labels, "edges")
    features = feature_rows(rows, columns.features, "edges")
    of_one = table.type is not None  # a column relation then says no more
    pairs = pairs_of_table(rows, source, dataset, columns.ends, columns.time, None if of_one else "relation")
    return LabelledEdges(
        pairs.nodes(dataset),
        replace(found, label_names=columns.labels if options.label_columns else None),
        features,
        pairs.time,
        sets_of(split_bits(rows, columns, "edges")),
        feature_columns=feature_names(rows, columns.features, when_present(lambda x: x.shape[1], features) or 0),
        has_own_columns=options.pairs is not None or not dataset.graph.types.is_single,
        notes=columns.notes if options.pairs is not None else (),  # those of the graph's own table are told already
    )


def _of_npz(path: Path, dataset: Dataset, labelled: bool = True) -> LabelledEdges:
    arrays, held = load_members(path, LABELLED if labelled else NAMES)
    if labelled and "edge_label" not in arrays:
        raise InputError(
            f"{path} has no key 'edge_label', and labels_of is 'edges'; it holds {', '.join(held) or 'nothing'}"
        )
    return _of_arrays(arrays, dataset, str(path))


def _of_pyg(data: Any, dataset: Dataset, labelled: bool) -> LabelledEdges:
    data, where = store_of_pairs(data, dataset.graph.types, f"the PyG data for {dataset.name}")
    arrays = {key: host(data[key]) for key in (LABELLED if labelled else NAMES) if key in data}
    if labelled and "edge_label" not in arrays:
        arrays = _of_parts(data)
        if not arrays:
            raise InputError(f"{where} has no edge_label, and labels_of is 'edges'; expected a label for each edge")
    found = _of_arrays(arrays, dataset, where)
    return replace(found, labels=labels_of_tensor(found.labels.values))


def _of_parts(data: Any) -> dict[str, AnyArray]:
    """Arrays of the edges of all sets, one set after the other, as `Dataset.to_pyg` writes them."""
    parts, arrays = [part for part in SPLITS if f"{part}_edge_label" in data], {}
    for key in ("edge_label", *NAMES):
        own = [host(data[f"{part}_{key}"]) for part in parts if f"{part}_{key}" in data]
        if parts and len(own) == len(parts):
            arrays[key] = np.concatenate(own, axis=1 if key == "edge_label_index" else 0)
    ends = np.cumsum([0, *(len(data[f"{part}_edge_label"]) for part in parts)])
    return arrays | {f"{part}_idx": np.arange(*span) for part, span in zip(parts, zip(ends, ends[1:]))}


def _of_arrays(arrays: Mapping[str, AnyArray], dataset: Dataset, where: str) -> LabelledEdges:
    """Edges by the names of `ARRAYS`, and of a split; labels are 0 where there are none."""
    all_edges = "edge_label_index" not in arrays
    found = {what: arrays.get(names[all_edges]) for what, names in ARRAYS.items()}
    ends, key = found["ends"], ARRAYS["ends"][all_edges]
    if ends is None or ends.ndim != 2 or ends.shape[0] != 2:
        seen = "is missing" if ends is None else f"has shape {list(ends.shape)}"
        raise InputError(f"{where}: {key} {seen}; expected the ends of the labelled edges, [2, N]")
    labels = arrays.get("edge_label", np.zeros(ends.shape[1]))
    of_edges = {names[all_edges]: found[what] for what, names in ARRAYS.items() if what != "ends"}
    _check_rows({"edge_label": labels, **of_edges}, ends.shape[1], f"{where}: ")
    split = {}
    for name in OF_SETS:
        part, _, form = name.partition("_")
        if name in arrays:
            split.setdefault(part, arrays[name].astype(bool) if form == "mask" else arrays[name])
    pairs = as_pairs(ends.T, dataset, f"{where}: {key}")
    own = not (all_edges and dataset.graph.types.is_single)
    return LabelledEdges(pairs, GivenLabels(labels), found["features"], found["time"], split, has_own_columns=own)


def _check_rows(arrays: Mapping[str, AnyArray | None], count: int, where: str = "") -> None:
    """Raise InputError unless arrays have a row for each edge."""
    for name, rows in present_items(arrays).items():
        if not rows.ndim or len(rows) != count:
            raise InputError(
                f"{where}the shape of {name} is {list(rows.shape)}; expected a row for each of {count} edges"
            )
