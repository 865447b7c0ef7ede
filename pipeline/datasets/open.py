"""`open_dataset`: opens every kind of dataset."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...storage.dataset import Dataset
from ...storage.dataset_store import FeaturesPlace, open_dataset_store
from ...storage.errors import InputError, nearest
from ...storage.store.manifest import MANIFEST
from .cleaning.clean import clean
from .cleaning.options import DEFAULT_OPTIONS, FREE, ReadOptions
from .cleaning.splits import make_split
from .readers.digits import read_digits
from .readers.npz import read_npz
from .readers.public import how_to_get
from .readers.python import from_networkx, from_pyg
from .readers.rmat import generate_rmat
from .readers.sbm import generate_sbm

TABLES = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
"""Suffixes of files that hold tables."""
GENERATED = {"sbm": generate_sbm, "rmat": generate_rmat}
FORMS = (
    "digits, sbm:nodes=..., rmat:scale=..., an .npz file, a .csv or .parquet file of edges, a folder of Parquet or "
    "CSV, a Millrace dataset store, or an OGB name such as ogbn-arxiv"
)


def open_dataset(
    spec: str | Path | object,
    *,
    name: str | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
    split: str | None = None,
    seed: int = 0,
    features: FeaturesPlace = "memory",
) -> Dataset:
    """Open a dataset, checked and cleaned. What was mended on the way is in `Dataset.notes`.

    Args:
        spec: ``digits``; ``sbm:key=value,...`` (see `Sbm`); ``rmat:key=value,...`` (see `Rmat`); the path of an
            ``.npz`` file, of a ``.csv`` or ``.parquet`` file of edges beside one of nodes, of a folder of Parquet or
            CSV, of an OGB folder or of a Millrace dataset store; an OGB name (``ogbn-...``, looked for under
            ``$OGB_ROOT`` or ``./dataset``); a NetworkX graph or a PyG `Data`; or a `Dataset`, to split it anew.
        name: what to call it; by default after the spec.
        options: what to do about defects. A store, a generated graph and a `Dataset` are clean and take none.
        split: ``public`` (the stored one), ``random:20,30`` (per class for train and val, the rest of the labelled
            nodes for test) or ``fraction:0.6,0.2``. By default the stored one; else random:20,30 where every class has
            60 labelled nodes; else fraction:0.6,0.2.
        seed: decides a random split, nothing else.
        features: where the features of a Millrace store lie: memory, mapped or zarr. Other sources are read into
            memory.

    Raises:
        InputError: says what was seen, what was expected and which option resolves it.
        StoreError: a store is damaged.
        MissingExtraError: an OGB name that is not on this machine, without the ``ogb`` package.
    """
    if features != "memory" and not (isinstance(spec, (str, Path)) and (Path(spec).expanduser() / MANIFEST).exists()):
        raise InputError(
            f"features is '{features}', but {_notes(spec)} is not a Millrace store; `millrace convert` makes one, or "
            "use memory"
        )
    if options.edges_on == "gpu" and not (
        isinstance(spec, (str, Path)) and any(Path(spec).expanduser().glob("*.parquet"))
    ):
        raise InputError(f"edges_on is 'gpu', but {_notes(spec)} is not a folder of Parquet; leave edges_on out")
    if isinstance(spec, Dataset):
        return _whole(spec, name, options, split, seed)
    if not isinstance(spec, (str, Path)):
        return _from_object(spec, name, options, split, seed)
    kind = str(spec).partition(":")[0]
    if kind in GENERATED:
        _check_options(options, str(spec))
        return GENERATED[kind](str(spec), name, split, seed)
    if str(spec) == "digits":
        return clean(read_digits(name), options, split, seed)
    path = Path(spec).expanduser()
    if str(spec).startswith("ogbn-") and not path.exists():
        from .readers.ogb import find_ogb, read_ogb_folder

        return clean(read_ogb_folder(find_ogb(str(spec)), name or str(spec)), options, split, seed)
    if not path.exists():
        if (public := how_to_get(str(spec))) is not None:
            raise InputError(public)
        raise InputError(
            f"'{spec}' is neither a file nor a known dataset; expected {FORMS}{nearest(kind, ['digits', *GENERATED])}"
        )
    _check_no_table_options(path, options)
    if path.is_file() and path.name.lower().endswith(TABLES):
        from .readers.parquet import read_edge_file

        return clean(read_edge_file(path, options, name), options, split, seed)
    if not path.is_dir():
        _check_format(path)
        return clean(read_npz(path, name), options, split, seed)
    if (path / MANIFEST).exists():
        return _whole(open_dataset_store(path, features), name, options, split, seed)
    # These import pyarrow, which every rank and command would wait for.
    if (path / "raw").is_dir():
        from .readers.ogb import read_ogb_folder

        return clean(read_ogb_folder(path, name), options, split, seed)
    if any(f.name.lower().endswith(TABLES) for f in path.iterdir()):
        from .readers.parquet import read_parquet_folder

        return clean(read_parquet_folder(path, options, name), options, split, seed)
    raise InputError(f"the folder {path} holds no manifest.json, no raw/ and no *.parquet or *.csv; expected {FORMS}")


def _check_no_table_options(path: Path, options: ReadOptions) -> None:
    """Raises InputError where options for tables are given and `path` is no table."""
    given = [name for name in FREE if getattr(options, name) is not None]
    tables = (
        path.name.lower().endswith(TABLES)
        if path.is_file()
        else not ((path / MANIFEST).exists() or (path / "raw").is_dir())
    )
    if given and not tables:
        raise InputError(
            f"{path} is no file or folder of tables, but {' and '.join(given)} is for tables alone; leave it out"
        )


def _check_format(path: Path) -> None:
    """Raises InputError for files of torch and NetworkX, and says how to read them."""
    suffix = path.suffix.lower()
    if suffix in (".pt", ".pth"):
        raise InputError(
            f"{path} is a file of torch.save, which may run code when it is loaded: where you trust it, use "
            f"mr.run(mr.from_pyg(torch.load('{path.name}', weights_only=False))), or mr.write_dataset to make a store "
            "of it"
        )
    if suffix in (".graphml", ".gml", ".gexf"):
        raise InputError(
            f"{path} is a file of graphs that NetworkX reads: use "
            f"mr.from_networkx(networkx.read_{suffix[1:]}('{path.name}'))"
        )


def _notes(spec: str | Path | object) -> str:
    return str(spec) if isinstance(spec, str | Path) else f"a {type(spec).__name__}"


def _whole(dataset: Dataset, name: str | None, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    """A clean dataset under another name or with another split."""
    _check_options(options, dataset.name)
    notes = list(dataset.notes)
    parts = make_split(dataset.labels, dataset.split, split, seed, options, notes)
    return replace(dataset, name=name or dataset.name, split=parts, notes=tuple(notes))


def _check_options(options: ReadOptions, what: str) -> None:
    given = [f.name for f in fields(options) if getattr(options, f.name) != f.default]
    if given:
        raise InputError(f"'{what}' is clean already and takes no reading options; leave out {', '.join(given)}")


def _from_object(spec: Any, name: str | None, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    # Packages are recognised by the names of the classes' modules: importing them to ask would make them required.
    packages = {c.__module__.partition(".")[0] for c in type(spec).__mro__}
    if "networkx" in packages:
        return from_networkx(spec, name=name or "networkx", options=options, split=split, seed=seed)
    if "torch_geometric" in packages:
        return from_pyg(spec, name=name or "pyg", options=options, split=split, seed=seed)
    if "scipy" in packages:
        raise InputError("a SciPy matrix has no labels; use from_scipy(adjacency, features, labels)")
    if isinstance(spec, type):
        raise InputError(f"the dataset is the class {spec.__name__}; expected an object of it")
    raise InputError(
        f"cannot open a {type(spec).__name__} as a dataset; expected {FORMS}, a NetworkX graph or a PyG Data"
    )
