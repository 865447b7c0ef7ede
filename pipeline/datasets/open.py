"""`open_dataset`, which opens every kind of dataset."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...storage.dataset import Dataset, Split
from ...storage.dataset_store import FeaturesAccess, GraphAccess
from ...storage.errors import InputError, nearest, whole_number
from ...storage.store.manifest import MANIFEST
from ...storage.store.paths import expanded
from ...storage.urls import is_url
from .cleaning.clean import clean
from .cleaning.kept import is_new
from .cleaning.labels import as_task
from .cleaning.options import DEFAULT_OPTIONS, ReadOptions, require_options
from .cleaning.raw import Raw
from .cleaning.splits import NO_SPLIT, make_split
from .edge_labels import labelled_edges, with_labelled_edges
from .links import link_dataset, links_of_sets, relations_of
from .pair_relation import with_pair_relation
from .readers.foreign.public import how_to_get
from .readers.foreign.refused import check_read, looks_like_npz
from .readers.reader import Request, path_of
from .readers.registry import READERS, forms, read_npz_file, reader_of
from .readers.triples import Triples
from .schema.columns import NONE, listed
from .schema.source import GraphTables

OF_EDGE_LABELS = (
    "labels_of", "labelled_edges", "label_columns", "edge_feature_columns", "edge_time", "ignored_labels", "nan_labels",
    "label_gaps", "overlapping_splits", "unlabelled_in_split",
)  # fmt: skip
"""Options for reading labels of edges, whose graph may be clean."""


def open_dataset(
    spec: str | Path | object,
    *,
    name: str | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
    split: str | None = None,
    seed: int = 0,
    features: FeaturesAccess = "memory",
    graph: GraphAccess = "memory",
) -> Dataset:
    """Open a dataset, check it and clean it. `Dataset.notes` lists the repairs.

    Args:
        spec: ``digits``; ``sbm:key=value,...`` (see `Sbm`); ``rmat:key=value,...`` (see `Rmat`); the path of an
            ``.npz`` file, of a ``.csv`` or ``.parquet`` file of edges beside one of nodes, of a folder of Parquet or
            CSV, of an OGB folder or of a Millrace dataset store; an OGB name (``ogbn-...``, searched under
            ``$OGB_ROOT`` or ``./dataset``); a NetworkX graph or a PyG `Data`; or a `Dataset`, to be split again.
        name: name of the dataset; by default taken from the spec.
        options: treatment of defects. Stores, generated graphs and `Dataset` objects are clean and take none but the
            task.
        split: ``public`` (the stored split), ``random:20,30`` (per class for train and val, the rest of the labelled
            nodes for test) or ``fraction:0.6,0.2``; in the order of the nodes' times ``time:0.7,0.15`` (shares) or
            ``until:2017,2018`` (last times of train and val, or ISO dates where times are). By default
            the stored one; else random:20,30 if every class has 60 labelled nodes; else fraction:0.6,0.2. Links: see
            `link_dataset`.
        seed: seed of a random split; nothing else depends on it.
        features: place of a Millrace store's features: memory, mapped or zarr. Other sources are read into memory.
        graph: place of a Millrace store's graph: memory or mapped.

    Raises:
        InputError: says what was seen, what was expected and which option resolves it.
        StoreError: a store is damaged.
        MissingExtraError: an OGB dataset is not on this machine, and the ``ogb`` package is not installed.
    """
    require_options(options)
    stored = isinstance(spec, (str, Path)) and (expanded(spec) / MANIFEST).exists()
    for key, place in (("features", features), ("graph", graph)):
        if not isinstance(place, str):
            raise InputError(
                f"{key} is a {type(place).__name__}, but says where a store's lie: memory or mapped; leave it out"
            )
        if place != "memory" and not stored:
            raise InputError(
                f"{key} is '{place}', but {_described(spec)} is not a Millrace store; `millrace convert` makes one, or "
                "use memory"
            )
    if options.edges_on == "gpu" and not (isinstance(spec, (str, Path)) and any(expanded(spec).glob("*.parquet"))):
        raise InputError(f"edges_on is 'gpu', but {_described(spec)} is not a folder of Parquet; leave edges_on out")
    if options.labels_of == "nodes" and options.labelled_edges != "seen":
        raise InputError("labelled_edges is 'hidden', but labels are of nodes; set labels_of=edges, or leave it out")
    request = Request(name, options, split, seed, features, graph)
    if request.is_of_pairs:
        return with_pairs(_opened(spec, graph_request(spec, request)), spec, request)
    _check_no_pairs(options, "the task is not link; set task=link, or")
    return _opened(spec, request)


def graph_request(spec: str | Path | object, request: Request) -> Request:
    """The request for the graph of links, or of labelled edges, which `with_pairs` then has."""
    options = request.options
    if options.labels_of == "edges":
        if options.task == "link":
            raise InputError("task is 'link', which has no labels, but labels_of is 'edges'; leave one of them out")
        return replace(request, options=_of_graph(spec, options), split=None, pairs=options.pairs)
    plain, divided = replace(options, pairs=None, relation=None), options.pairs is not None or request.split is not None
    if options.pairs is not None:  # the sets are those of the pairs
        plain = replace(plain, overlapping_splits="error")
    return replace(request, options=plain, split=None, pairs=options.pairs, is_divided=divided)


def with_pairs(plain: Dataset, spec: str | Path | object, request: Request) -> Dataset:
    """The dataset of links, or of labelled edges, of a source whose graph is that of `plain`."""
    options = request.options
    if options.labels_of == "edges" and plain.of_pairs:
        _check_no_pairs(options, f"{plain.name} has its pairs;")
        return _finished(plain, replace(request, options=replace(DEFAULT_OPTIONS, task=options.task)))
    if options.labels_of == "edges":
        plain = with_pair_relation(plain, options.relation)
        edges = labelled_edges(spec, options, plain)
        found = with_labelled_edges(plain, edges, request.split, request.seed, options)
    else:
        chosen: Any = {key: getattr(options, key) for key in ("pairs", "relation", "overlapping_splits")}
        has_sets = is_new(options) and (plain.task == "link" or options.pairs is not None)
        split = None if has_sets else request.split
        found = link_dataset(plain, split=split, seed=request.seed, **chosen)
        if is_new(options) and split is not None:
            note = f"{NO_SPLIT} its edges are divided by that of the run, {split}."
            found = replace(found, notes=(*found.notes, note))
    return replace(found, read_as={**plain.read_as, **options.given})


def _check_no_pairs(options: ReadOptions, why: str) -> None:
    for key in ("pairs", "relation"):
        if (given := getattr(options, key)) is not None:
            raise InputError(f"{key} is '{given}', but {why} leave {key} out")


def open_graph(spec: str | Path | object, options: ReadOptions, seed: int = 0) -> Dataset:
    """Open the graph, features and names of a source, which is not clean, whose labels are not wanted: they need not be
    there, and are 0."""
    return _opened(spec, Request(options=_of_graph(spec, options), seed=seed))


def _of_graph(spec: str | Path | object, options: ReadOptions) -> ReadOptions:
    """The options for reading a source without labels of nodes."""
    split = options.names("split")
    split = (*split, NONE) if split and split != (NONE,) else split
    found = replace(options, task="link", pairs=None, relation=None, ignored_labels=None, split=split)
    if options.pairs is None:
        return found
    # Columns are those of that table, and where the graph is one, of both.
    found, reader = replace(found, label_columns=None), reader_of(spec)
    if reader is not None and reader.name == "tables":
        return found
    followed = reader.columns if reader is not None and not reader.is_clean else ()
    of_pairs = {"src", "dst", "weight", "one_hot"} - {*followed}
    return found.without(("edge_feature_columns", "edge_time", "split", *of_pairs))


def _opened(spec: str | Path | object, request: Request) -> Dataset:
    options, split, seed = request.options, request.split, whole_number("seed", request.seed)
    if isinstance(spec, Dataset):
        return _finished(spec, request)
    reader = reader_of(spec)
    if options.triples is not None and (reader is None or "triples" not in reader.takes):
        raise InputError(f"triples is '{options.triples}', but {_described(spec)} holds none; leave triples out")
    if reader is None:
        return clean(_read_unrecognised(spec, request), options, split, seed)
    if reader.is_clean:
        _check_no_options(options, str(spec), reader.takes)
    options.check_no_tables(_described(spec), reader.columns)
    read = reader.read(spec, request)
    if isinstance(read, GraphTables):
        # Arrow starts a thread when it is imported, which the server of ranks must not have.
        from .readers.graph import read_graph

        read = read_graph(read, request)
    if isinstance(read, Raw):
        return clean(read, options, split, seed)
    if isinstance(read, Triples):
        read = links_of_sets(read.plain, read.sets, relations_of(read.plain.graph), options.overlapping_splits)
    request = replace(request, options=replace(options, **{key: getattr(DEFAULT_OPTIONS, key) for key in reader.takes}))
    return _finished(read, request) if reader.is_clean else read


def is_name(source: str | Path | object) -> bool:
    """True if a source is a name such as ``digits``, which means the same from any folder, and not a path."""
    reader = reader_of(source)
    return reader is not None and reader.is_name


def _read_unrecognised(spec: str | Path | object, request: Request) -> Raw:
    """Handle a source that no reader recognises: read a NumPy archive with another suffix, or raise an error."""
    path = path_of(spec)
    if path is not None and path.is_file():
        check_read(path)
        if path.suffix == ".toml":
            raise InputError(f"{path} is a job, and no dataset: give it without --dataset, as in millrace run {path}")
        if not looks_like_npz(path):
            raise InputError(
                f"the suffix of {path} names no kind of file that is read: call a list of edges .txt, tables .csv or "
                f".parquet; expected {forms()}"
            )
        request.options.check_no_tables(path, ("split",))
        return read_npz_file(path, request)
    if path is not None:
        check_read(path)
        said = f"the folder {path} holds no manifest.json, no raw/ and no *.parquet or *.csv, but"
        held = listed(sorted(f.name for f in path.iterdir())) or "nothing"
        raise InputError(f"{said} {held}; expected tables called edges* and nodes*, or give one file that is read")
    if isinstance(spec, str) and is_url(spec):
        raise InputError(f"'{spec}' is a URL; copy it once, `millrace convert {spec} --out STORE`, and give STORE")
    if isinstance(spec, str | Path):
        if (public := how_to_get(str(spec))) is not None:
            raise InputError(public)
        names = [reader.name for reader in READERS.available().values() if reader.is_name]
        kind = str(spec).partition(":")[0]
        raise InputError(f"'{spec}' is neither a file nor a known dataset; expected {forms()}{nearest(kind, names)}")
    if any(c.__module__.partition(".")[0] == "scipy" for c in type(spec).__mro__):
        raise InputError("a SciPy matrix has no labels; use from_scipy(adjacency, features, labels)")
    if isinstance(spec, type):
        raise InputError(f"the dataset is the class {spec.__name__}; expected an object of that class")
    raise InputError(f"cannot open a {type(spec).__name__}; expected {forms()}, a NetworkX graph or a PyG Data")


def _described(spec: str | Path | object) -> str:
    return str(spec) if isinstance(spec, str | Path) else f"a {type(spec).__name__}"


def _finished(dataset: Dataset, request: Request) -> Dataset:
    """A clean dataset with the name, task and split of the request."""
    _check_no_options(request.options, dataset.name)
    task = request.options.task or dataset.task
    # A split that is asked for takes the place of one that was drawn unasked.
    notes = [note for note in dataset.notes if request.split is None or not note.startswith(NO_SPLIT)]
    if request.options.labels_of == "edges":
        return replace(dataset, name=request.name or dataset.name)
    if task == "link":
        if dataset.task == "link" and request.split is not None:
            raise InputError(f"split is '{request.split}', but pairs of {dataset.name} are split already; leave it out")
        return replace(dataset, name=request.name or dataset.name)
    if dataset.hides_pairs and request.split is not None:
        raise InputError(
            f"split is '{request.split}', but val and test edges are left out of the graph of {dataset.name} already; "
            "leave it out"
        )
    labels, number = as_task(dataset, task)
    parts = _split_of(replace(dataset, labels=labels), dataset.split, request, notes)
    name, distinct = request.name or dataset.name, tuple(dict.fromkeys(notes))
    return replace(dataset, name=name, labels=labels, num_classes=number, task=task, split=parts, notes=distinct)


def divided(dataset: Dataset, split: str | None, seed: int) -> Dataset:
    """The dataset with a split that is drawn, whatever split it has. Arguments as those of `open_dataset`."""
    return replace(dataset, split=_split_of(dataset, None, Request(split=split, seed=seed), []))


def _split_of(dataset: Dataset, stored: Split | None, request: Request, notes: list[str]) -> Split:
    times, unit = (dataset.pair_time, "edge") if dataset.has_edge_labels else (dataset.graph.node_time, "node")
    more: Any = {"times": times, "unit": unit, "time_unit": dataset.graph.time_unit}
    return make_split(dataset.labels, stored, request.split, request.seed, request.options, notes, **more)


def _check_no_options(options: ReadOptions, what: str, takes: tuple[str, ...] = ()) -> None:
    free = ("task", *takes, *(OF_EDGE_LABELS if options.labels_of == "edges" else ()))
    given = [f.name for f in fields(ReadOptions) if f.name not in free and getattr(options, f.name) != f.default]
    if given:
        raise InputError(f"'{what}' is already clean and takes no reading options; leave out {', '.join(given)}")
