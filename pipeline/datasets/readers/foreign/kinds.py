"""Recognition of other libraries' files and folders, by their names and the first lines of CSV files.

Arrow is imported only when a source is read: it starts threads, which the server of ranks must not have.
"""

import csv
import gzip
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from .....storage.errors import InputError
from ...schema.files import COMPRESSED, CSV
from ...schema.source import quoted

EDGE_LISTS = (".txt", ".edges", ".edgelist", ".edge", ".el", ".wel", ".ncol")
_OTHER_NAMES = {".xml": "graphml", ".net": "pajek", ".paj": "pajek", ".g6": "graph6", ".s6": "sparse6"}
_OWN_NAMES = ("gml", "graphml", "gexf", "pajek", "adjlist", "multiline_adjlist", "graph6", "sparse6")
NETWORKX = {end: f"read_{kind}" for end, kind in ({f".{kind}": kind for kind in _OWN_NAMES} | _OTHER_NAMES).items()}
"""Functions of NetworkX by the suffix of a file, which may be compressed by gzip or bzip2."""
JSON = (".json", ".json.gz")
MOST_COLUMNS = 8
"""Most columns of a list of edges."""
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
MOST_HEADERS = 64
"""Most files of a folder whose headers are looked at."""
_PROPERTY_GRAPH = re.compile(r"(?:START_)?ID(?:\([^)]*\))?|id|from")
"""What stands behind a ``:`` or ``~`` in a column of ids."""
SAINT, META, CONTENT, CITES, OPENKE = "adj_full.npz", "meta.yaml", ".content", ".cites", "train2id.txt"


def is_edge_list(path: Path) -> bool:
    """True if a file's name is one of a list of edges; KONECT's begin with ``out.``."""
    name = path.name.lower()
    return name.endswith(tuple(s + c for s in EDGE_LISTS for c in COMPRESSED)) or name.startswith("out.")


def networkx_reader(path: Path) -> str | None:
    """The function of NetworkX that reads a file, by its name; None if none does."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".bz2")
    return next((reader for suffix, reader in NETWORKX.items() if name.endswith(suffix)), None)


def is_planetoid(path: Path) -> bool:
    """True for the file of a graph among Planetoid's pickles, ``ind.cora.graph``."""
    return path.name.startswith("ind.") and path.name.endswith(".graph") and path.is_file()


def kind_of_folder(folder: Path, names: Collection[str]) -> str | None:
    """Name of the reader for a folder with files of these names; None if it is of no other library."""
    ends = {end for end in (CONTENT, CITES) if any(name.endswith(end) for name in names)}
    by_name = {
        "graphsaint": SAINT in names,
        "openke": {OPENKE, "entity2id.txt", "relation2id.txt"} <= set(names),
        "dgl": META in names,
        "citations": len(ends) == 2,
        "planetoid": any(is_planetoid(folder / name) for name in names),
    }
    if (found := next((kind for kind, fits in by_name.items() if fits), None)) is not None:
        return found
    tables = [name for name in sorted(names) if name.lower().endswith(CSV)][:MOST_HEADERS]
    return "property-graph" if any(has_marks(first_line_of(folder / name)) for name in tables) else None


def first_line_of(path: Path) -> str:
    """The first line of a text file; empty if it cannot be read."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
            return str(file.readline(1 << 14)).rstrip("\r\n")
    except (OSError, EOFError):
        return ""


def has_marks(line: str) -> bool:
    """True for a header with a column of ids that is marked as Neo4j or Neptune mark it: ``:ID``, ``~from``."""
    if ":" not in line and "~" not in line:
        return False
    cells = next(csv.reader([line], delimiter=separator_of(line)), [])
    marked = (re.split("[:~]", cell.strip(), maxsplit=1) for cell in cells)
    return any(len(parts) == 2 and _PROPERTY_GRAPH.fullmatch(parts[1]) for parts in marked)


def separator_of(line: str) -> str:
    """The character that separates the columns of a header."""
    return max(",\t;|", key=line.count)


Rows = Sequence[Sequence[str]]
"""Rows of cells."""


def check_no_matrix(path: object, rows: Rows, separator: str, names: Sequence[str] = (), above: int = 0) -> None:
    """Raise InputError for rows of an adjacency matrix, with a command that writes it as a file that is read: three
    numbers or more, and no fewer than there are rows, that are 0 or 1, or more than a list of edges has.

    `names` are those of a header, if there is one, below lines `above`; the first column may have them too.
    """
    index = bool(names and rows) and (not names[0] or rows[0][:1] == names[1:2])
    cells = [list(row[index:]) for row in rows]
    if not cells or len(cells[0]) < max(3, len(cells)):
        return
    is_wide = len(cells[0]) > MOST_COLUMNS and (index or not names)
    if all({*row} <= {"0", "1", "0.0", "1.0", ""} or (is_wide and all(map(NUMBER.fullmatch, row))) for row in cells):
        mark = "" if separator == " " else f", delimiter={separator!r}"
        head = f"skip_header={above + bool(names)}, filling_values=0{mark}"
        load = f"np.genfromtxt(a, encoding='utf-8-sig', {head})" + "[:, 1:]" * index
        said = f"{path} looks like an adjacency matrix; expected an edge in each row"
        if index and [row[0] for row in rows] != [*names[1 : len(rows) + 1]]:
            raise InputError(f"{said}: first give its rows the order of its columns, {', '.join(names[1:4])}, ...")
        raise InputError(f"{said}: {to_npz(path, load)}")


def to_npz(path: object, load: str) -> str:
    """A command that writes a matrix as a file that is read; `load` reads the file ``a``."""
    code = f"import sys, numpy as np, scipy.sparse as s; a, to = sys.argv[1:]; s.save_npz(to, s.csr_matrix({load}))"
    return f'python -c "{code}" {quoted(str(path))} {quoted(f"{path}.npz")}'
