"""Registry of readers: the kinds of input, and how each is recognised."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ....storage.dataset import Dataset
from ....storage.dataset_store import open_dataset_store
from ....storage.registry import Registry
from ....storage.store.manifest import MANIFEST
from ....storage.store.paths import expanded
from ....storage.store.regular import refuse_special
from ..cleaning.options import OF_TABLES, ReadOptions
from ..cleaning.raw import Raw
from ..generated.digits import read_digits
from ..generated.hsbm import generate_hsbm
from ..generated.karate import read_karate
from ..generated.kg import generate_kg
from ..generated.payments import generate_payments
from ..generated.ratings import generate_ratings
from ..generated.rmat import generate_rmat
from ..generated.sbm import generate_sbm
from ..generated.tsbm import generate_tsbm
from ..schema.files import SUFFIXES, entries_in
from ..schema.source import GraphTables
from .foreign.kinds import JSON, NETWORKX, SAINT, is_edge_list, is_planetoid, kind_of_folder
from .foreign.matrices import read_mat, read_mtx, with_roles
from .foreign.npz_layouts import OwnArrays
from .foreign.pickled import read_planetoid, read_torch, torch_file
from .npz import raw_of, read_arrays
from .pyg import OF_PYG, from_pyg
from .python import from_networkx
from .reader import Read, Reader, Request, path_of
from .triples import Triples, as_triples, files_of, read_triples

TABLES = SUFFIXES
"""Suffixes of files with tables."""


def is_table(path: Path) -> bool:
    """True if the file has the suffix of a table."""
    return path.name.lower().endswith(TABLES)


def _text(fits: Callable[[str], bool]) -> Callable[[object], bool]:
    """Recogniser of the texts that fit."""
    return lambda source: isinstance(source, str | Path) and fits(str(source))


def _path(fits: Callable[[Path], object]) -> Callable[[object], bool]:
    """Recogniser of the paths that fit, of what is there."""
    return lambda source: bool((path := path_of(source)) and fits(path))


def _folder(path: Path) -> str | None:
    """Kind of a folder by the names of its files: ``store``, ``ogb-folder``, ``triples``, ``tables``, or one of
    `kind_of_folder`; None if it is no folder, or holds none of these."""
    if not path.is_dir():
        return None
    if (path / MANIFEST).exists():
        return "store"
    if (path / "raw").is_dir() and not (path / "processed").is_dir():
        return "ogb-folder"
    if files_of(path):
        return "triples"
    if other := kind_of_folder(path, [f.name for f in path.iterdir()]):
        return other
    return "tables" if any(name.lower().endswith(TABLES) for name in entries_in(path)) else None


def _imported(function: str) -> Read:
    """Reader by ``module.function``, which takes a path and the request. The module, and with it Arrow, is imported
    when it is used: otherwise every rank and command would wait for it."""

    def read(source: str | Path, request: Request) -> Any:
        module, _, name = function.rpartition(".")
        return getattr(import_module(f".{module}", __package__), name)(expanded(source), request)

    return read


def _read_edge_list(source: str | Path, request: Request) -> GraphTables:
    from .foreign.edge_lists import edge_list
    from .tables import with_nodes_beside

    found = edge_list(expanded(source), request.name)
    return found if found.nodes else with_nodes_beside(found, request.options)


def _read_openke(source: str | Path, request: Request) -> Triples:
    from .foreign.published import openke_triples

    path = expanded(source)
    return as_triples(openke_triples(path), request.called(path))


def _of_arrays(read: Callable[[Path], OwnArrays]) -> Read:
    """Reader of a file or folder whose arrays are called as those of an ``.npz`` file."""

    def read_raw(source: str | Path, request: Request) -> Raw:
        path = expanded(source)
        labelled, split = request.options.task != "link", request.options.split
        return raw_of(read(path), path, request.name or path.stem, labelled=labelled, split=split)

    return read_raw


read_npz_file = _of_arrays(read_arrays)
"""Reads the graph of an ``.npz`` file, whatever its suffix."""


def _read_torch(source: str | Path, request: Request) -> Dataset:
    path = expanded(source)
    file = torch_file(path)
    assert file is not None, "the reader recognises no others"
    data, notes = read_torch(file, request.options.split)
    name, options = request.name or path.resolve().name.partition(".")[0], replace(request.options, split=None)
    found = _read_pyg(data, name=name, options=options, split=request.split, seed=request.seed)
    return replace(found, notes=(*notes, *found.notes), read_as=request.options.given)


def _read_pyg(source: Any, *, options: ReadOptions, **given: Any) -> Dataset:
    found = from_pyg(source, options=options, **given)
    if options.labels_of == "edges" or not any("edge_label_index" in store for store in source.edge_stores):
        return found
    note = "edge_label_index is not read; mr.link_dataset(..., pairs={'train': data}) takes RandomLinkSplit's pairs."
    return replace(found, notes=(*found.notes, note))


def _generated(name: str, generate: Callable[[str, str | None], Dataset], first: str) -> Reader:
    """Reader of a graph that is generated from a spec whose first option is `first`."""

    def read(source: object, request: Request) -> Dataset:
        return generate(str(source), request.name)

    return Reader(name, _text(lambda text: text.partition(":")[0] == name), read, f"{name}:{first}=...", is_name=True)


def _of_path(name: str, read: Read, form: str = "", *ends: str, columns: tuple[str, ...] = OF_TABLES) -> Reader:
    """Reader of the folders that `_folder` calls by its name, and of files whose names have these `ends`."""
    is_it = _path(lambda path: _folder(path) == name or (path.is_file() and path.name.lower().endswith(ends)))
    return Reader(name, is_it, read, form, is_clean=False, columns=columns)


def _of_object(name: str, package: str, make: Callable[..., Dataset], columns: tuple[str, ...] = ()) -> Reader:
    """Reader of objects of a package, by the names of their class's modules: importing it would make it required."""

    def is_it(source: object) -> bool:
        return not isinstance(source, str | Path) and package in {
            c.__module__.split(".")[0] for c in type(source).__mro__
        }

    def read(source: object, request: Request) -> Dataset:
        called, options = request.name or name, request.options
        return make(source, name=called, options=options, split=request.split, seed=request.seed)

    return Reader(name, is_it, read, is_clean=False, columns=columns)


def _shipped(name: str, read: Callable[[str | None], Raw], gives_way: bool = True) -> Reader:
    """Reader of a graph that an installed package ships. A file or folder of its name is read instead if it
    `gives_way`."""
    is_it = _text(lambda text: text == name and not (gives_way and path_of(text)))
    reader = _of_path(name, lambda source, request: read(request.name), name, columns=())
    return replace(reader, recognises=is_it, is_name=True)


READERS: Registry[Reader] = Registry(
    "reader",
    (
        _shipped("digits", read_digits, gives_way=False),  # the default, wherever a command runs
        _shipped("karate", read_karate),
        _generated("sbm", generate_sbm, "nodes"),
        _generated("rmat", generate_rmat, "scale"),
        _generated("hsbm", generate_hsbm, "nodes"),
        _generated("kg", generate_kg, "people"),
        _generated("tsbm", generate_tsbm, "nodes"),
        _generated("ratings", generate_ratings, "users"),
        _generated("payments", generate_payments, "accounts"),
        replace(
            _of_path("edge-list", _read_edge_list, "a .txt or .edges list of edges"),
            recognises=_path(lambda path: path.is_file() and is_edge_list(path)),
        ),
        _of_path(
            "network",
            _imported("foreign.networks.read_network"),
            "a .graphml, .gml, .gexf, .net or .json file",
            *(*JSON, *NETWORKX, *(f"{s}.gz" for s in NETWORKX)),
        ),
        _of_path("property-graph", _imported("foreign.property_graph.read"), "a folder of Neo4j's or Neptune's CSV"),
        _of_path("dgl", _imported("foreign.declared.read_dgl")),
        _of_path("citations", _imported("foreign.published.read_citations")),
        replace(_of_path("openke", _read_openke), is_clean=True, takes=("overlapping_splits",)),
        _of_path("mtx", _of_arrays(read_mtx), "", ".mtx", ".mtx.gz", columns=("split",)),
        _of_path("mat", _of_arrays(read_mat), "a .mtx or .mat file", ".mat", columns=("split",)),
        replace(
            _of_path("planetoid", _of_arrays(read_planetoid), columns=("split",)),
            recognises=_path(lambda path: _folder(path) == "planetoid" or is_planetoid(path)),
        ),
        replace(
            _of_path("torch", _read_torch, "a .pt file of PyG", columns=("split", *OF_PYG)),
            recognises=_path(lambda path: not _folder(path) and torch_file(path)),
        ),
        _of_path("graphsaint", _of_arrays(lambda f: with_roles(f, read_arrays(f / SAINT))), columns=("split",)),
        _of_path("npz", read_npz_file, "an .npz file", ".npz", columns=("split",)),
        _of_path(
            "tables",
            _imported("tables.tables_at"),
            "a folder of Parquet or CSV, a .csv, .parquet or .npy file of edges",
            *(*TABLES, ".npy"),
        ),
        replace(
            _of_path("triples", read_triples, "a folder of triples: train.txt, valid.txt, test.txt"),
            is_clean=True,
            takes=("triples", "overlapping_splits"),
        ),
        replace(
            _of_path(
                "store",
                lambda source, asked: open_dataset_store(expanded(source), asked.features, graph=asked.graph),
                "a Millrace dataset store",
            ),
            is_clean=True,
        ),
        _of_path("ogb-folder", _imported("foreign.ogb.read_ogb_folder"), columns=()),
        replace(
            _of_path("ogb", _imported("foreign.ogb.read_ogb"), "an OGB name such as ogbn-arxiv", columns=()),
            recognises=_text(lambda text: text.startswith("ogbn-") and path_of(text) is None),
        ),
        _of_object("networkx", "networkx", from_networkx),
        _of_object("pyg", "torch_geometric", _read_pyg, OF_PYG),
    ),
)
"""All readers; at most one of them recognises a source."""


def reader_of(source: object) -> Reader | None:
    """The reader that recognises a source; None if none does. Raises InputError: none does, and a reader of another
    package cannot be imported; it is a pipe or the like."""
    if isinstance(source, str | Path):
        refuse_special(expanded(source))
    # Readers of other packages come last: a source of a known kind imports none of them.
    return next((reader for name in READERS if (reader := READERS.find(name)).recognises(source)), None)


def forms() -> str:
    """Written forms of sources, for messages."""
    *most, last = [reader.form for reader in READERS.available().values() if reader.form]
    return f"{', '.join(most)}, or {last}"
