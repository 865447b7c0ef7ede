"""Sentences for files and folders that Millrace does not read: what they are, and the way from there."""

from pathlib import Path

from .....storage.errors import NOT_READABLE, InputError
from ...schema.source import quoted

_PICKLE = "is a pickle, which may run code when it is loaded, and is not opened here: load it yourself if you trust it,"
_TABLES = "read it with pandas and write edges.parquet and nodes.parquet"
DIMACS = "is in the format of DIMACS: list its edges, awk '$1 ~ /^[ae]$/ {print $2, $3, $4} /^[0-9]/' FILE > FILE.edges"
_METIS = (
    "is METIS's by its name, a line of neighbours for each node: make a list of edges, awk '!/^%/ {if (!n++) {w = "
    "$3 % 10; s = 1 + ($3 >= 100) + (int($3 / 10) % 10 ? ($4 ? $4 : 1) : 0); next} for (k = s; k <= NF; k += 1 + w) "
    'print n - 1, $k, w ? $(k + 1) : ""}\' FILE > FILE.edges'
)
_HGB = (
    "is a folder of HGB, of which PyG reads ACM, DBLP, Freebase and IMDB: mkdir -p data/NAME/raw && cp -r FILE "
    'data/NAME/raw && python -c "import millrace as mr; from torch_geometric.datasets import HGBDataset as H; '
    "mr.write_dataset('NAME-store', mr.from_pyg(H('data', 'NAME')[0]))\""
)
_TU = (
    "holds a TU dataset, graphs to classify, which Millrace does not; its nodes are those of one graph by cd FILE && "
    "awk -F, -v OFS=, 'BEGIN {print \"src,dst\"} {print $1 - 1, $2 - 1}' "
)
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
    (".col", ".clq", ".dimacs", ".gr"): DIMACS,
    (".graph", ".metis"): _METIS,
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
    sentence = _of_folder(path) if path.is_dir() else _of_file(path)
    if sentence is not None:
        raise InputError(f"{path} {with_path(sentence, path)}")


def with_path(sentence: str, path: Path) -> str:
    """A sentence whose commands are about a path, its FILE."""
    return sentence.replace("FILE", quoted(str(path)))


def _of_folder(folder: Path) -> str | None:
    if all((folder / name).is_file() for name in ("node.dat", "link.dat", "label.dat")):
        return _HGB.replace("NAME", folder.resolve().name.lower())
    for file in folder.glob("*_graph_indicator.txt"):
        labels = file.with_name(name := file.name.replace("graph_indicator", "node_labels")).is_file()
        nodes = f" && (echo label; cat {quoted(name)}) > nodes.csv" * labels
        return f"{_TU}{quoted(file.name.replace('graph_indicator', 'A'))} > edges.csv{nodes}"
    return None


def _of_file(path: Path) -> str | None:
    name = path.name.lower()
    if (sentence := next((text for suffixes, text in KINDS.items() if name.endswith(suffixes)), None)) is not None:
        return sentence
    if name.startswith("ind."):
        return "is one of Planetoid's files: give ind.NAME.graph, which stands for all of that graph, or the folder"
    try:
        with path.open("rb") as file:
            begin = file.read(8)
    except PermissionError as e:
        raise InputError(f"{path}: {NOT_READABLE}") from e
    return next((text for magic, text in MAGIC.items() if begin.startswith(magic)), None)


def looks_like_npz(path: Path) -> bool:
    """True for a file that begins as an archive or an array of NumPy, or is empty."""
    with path.open("rb") as file:
        begin = file.read(6)
    return not begin or begin.startswith((b"PK", b"\x93NUMPY"))
