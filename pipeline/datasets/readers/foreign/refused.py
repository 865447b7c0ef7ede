"""Sentences for files and folders that Millrace does not read: what they are, and the way from there."""

from pathlib import Path

from .....storage.errors import NOT_READABLE, InputError

_PICKLE = "is a pickle, which may run code when it is loaded, and is not opened here: load it yourself if you trust it,"
_TABLES = "read it with pandas and write edges.parquet and nodes.parquet"
KINDS = {
    (".pkl", ".pickle", ".gpickle", ".p"): f"{_PICKLE} and give the graph to mr.from_networkx, from_pyg or from_scipy",
    (".bin", ".dgl"): "is a file of dgl.save_graphs: load it, and give mr.from_relations the edges of each type",
    (".h5", ".hdf5", ".h5ad"): f"is HDF5, which is not read: {_TABLES}, or save the arrays with np.savez",
    (".xlsx", ".xls", ".ods"): f"is a spreadsheet: save its sheets as edges.csv and nodes.csv, or {_TABLES}",
    (".db", ".sqlite", ".sqlite3"): f"is a database: {_TABLES}",
    (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar"): "is an archive: unpack it, and give the file or folder in it",
    (".rdf", ".ttl", ".nt", ".nq", ".owl"): "is RDF: write its triples of resources as train.txt, head, relation and "
    "tail between tabs",
    (".dot", ".gv"): "is a Graphviz file: give what networkx.nx_pydot.read_dot reads to mr.from_networkx",
    (".kryo",): "is a binary file of TinkerPop: export GraphML from it",
    (".avro",): f"is Avro: {_TABLES}",
}
"""What files are by their suffixes, and what to do."""
MAGIC = {
    b"\x80": KINDS[".pkl", ".pickle", ".gpickle", ".p"],
    b"\x89HDF": KINDS[".h5", ".hdf5", ".h5ad"],
    b"SQLite": KINDS[".db", ".sqlite", ".sqlite3"],
    b"PAR1": "is a Parquet file: rename it to .parquet",
    b"ARROW1": "is an Arrow file: rename it to .arrow",
    b"\x1f\x8b": "is compressed by gzip: its name says not what is in it; rename it, for example to .csv.gz",
    b"%PDF": "is a PDF; expected a file of edges",
}
"""The same by the bytes that they begin with."""


def check_read(path: Path) -> None:
    """Raise InputError, with the way to read it, for a file or folder that is known and not read."""
    if path.is_dir():
        return
    name = path.name.lower()
    sentence = next((text for suffixes, text in KINDS.items() if name.endswith(suffixes)), None)
    if sentence is None and name.startswith("ind."):
        sentence = "is one of Planetoid's files: give ind.NAME.graph, which stands for all of that graph, or the folder"
    if sentence is None:
        try:
            with path.open("rb") as file:
                begin = file.read(8)
        except PermissionError as e:
            raise InputError(f"{path}: {NOT_READABLE}") from e
        sentence = next((text for magic, text in MAGIC.items() if begin.startswith(magic)), None)
    if sentence is not None:
        raise InputError(f"{path} {sentence.format(name=path.name)}")


def looks_like_npz(path: Path) -> bool:
    """True for a file that begins as an archive or an array of NumPy, or is empty."""
    with path.open("rb") as file:
        begin = file.read(6)
    return not begin or begin.startswith((b"PK", b"\x93NUMPY"))
