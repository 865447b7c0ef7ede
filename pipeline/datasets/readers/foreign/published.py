"""Files as two collections publish them: citation graphs, ``NAME.content`` (id, features and class of each paper) and
``NAME.cites`` (cited and citing paper), and OpenKE's triples by number.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv as arrow_csv

from .....storage.errors import InputError
from ...cleaning.arrow import reading
from ...schema.source import GraphTables, Request, Role, SourceTable
from .kinds import CITES, CONTENT, OPENKE

SETS = {"train": OPENKE, "val": "valid2id.txt", "test": "test2id.txt"}
TABS, TRIPLES = "columns between tabs", "a count, then head, tail and relation by number in each line"


def _columns(path: Path, as_text: int) -> pa.Table:
    """Columns ``f0, f1, ...`` of a file without a header; the first ones are text."""
    with reading(path, TABS):
        return arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(autogenerate_column_names=True, block_size=64 << 20),
            arrow_csv.ParseOptions(delimiter="\t", quote_char=False),
            arrow_csv.ConvertOptions(column_types={f"f{i}": pa.string() for i in range(as_text)}),
        )


def read_citations(folder: Path, request: Request) -> GraphTables:
    """The tables of a folder with one ``.content`` and one ``.cites`` file. A citing paper is a source. Raises
    InputError: there are several, or one is damaged."""
    found = [sorted(folder.glob(f"*{suffix}")) for suffix in (CONTENT, CITES)]
    if again := next((files for files in found if len(files) != 1), None):
        raise InputError(f"{folder} holds {', '.join(f.name for f in again)}; expected one graph: give each a folder")
    content, cites = (files[0] for files in found)
    nodes, edges = _columns(content, 1), _columns(cites, 2)
    for path, table, fewest, most in ((content, nodes, 2, None), (cites, edges, 2, 2)):
        if not fewest <= table.num_columns <= (most or table.num_columns):
            raise InputError(f"{path} has {table.num_columns} columns; expected {most or 'id, features, class'} {TABS}")
    columns: dict[str, Any] = {"id": nodes[0], "label": nodes[nodes.num_columns - 1]}
    if width := nodes.num_columns - 2:
        with reading(content, "numbers between id and class"):
            x = np.stack([nodes[i + 1].cast(pa.float32()).to_numpy() for i in range(width)], axis=1)
        columns["features"] = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), width)
    edges = edges.rename_columns(["cited", "citing"])
    roles: dict[str, Role] = {"id": "id", "label": "label", "features": "feature"}
    of_nodes = SourceTable("nodes", (content,), None, pa.table(columns), roles)
    tables = (of_nodes, SourceTable("edges", (cites,), None, edges, {"cited": "target", "citing": "source"}))
    others = sorted(set(folder.iterdir()) - {content, cites})
    left = tuple((f.name, f"it is neither {CONTENT} nor {CITES}") for f in others)
    return GraphTables(request.called(folder), folder, tables, left)


def openke_triples(folder: Path) -> dict[str, npt.NDArray[np.object_]]:
    """Triples [n, 3] of names, head, relation and tail, by set. OpenKE's files have head, tail and relation by number.
    Raises InputError: a file is cut off, or a number has no name."""
    entity, relation = (_names(folder / f"{what}2id.txt") for what in ("entity", "relation"))
    found, paths = {}, {part: path for part, file in SETS.items() if (path := folder / file).exists()}
    for part, path in paths.items():
        with reading(path, TRIPLES):
            claimed = int(path.open().readline())
            rows = np.loadtxt(path, np.int64, skiprows=1, ndmin=2).reshape(-1, 3)
        if len(rows) != claimed:
            raise InputError(f"{path} has {len(rows):,} triples, and its first line says {claimed:,}; copy it again")
        for what, names, numbers in (("entity", entity, rows[:, :2]), ("relation", relation, rows[:, 2])):
            if len(rows) and not 0 <= numbers.min() <= numbers.max() < len(names):
                raise InputError(
                    f"{path} has the {what} {numbers.max()}, and {what}2id.txt names {len(names)}; expected {TRIPLES}"
                )
        found[part] = np.stack([entity[rows[:, 0]], relation[rows[:, 2]], entity[rows[:, 1]]], axis=1)
    return found


def _names(path: Path) -> npt.NDArray[np.object_]:
    """Names by number, from a count and a line of name and number for each."""
    with reading(path, "a count, then name and number in each line"):
        count, *lines = path.read_text("utf-8").rstrip("\n").split("\n")
        pairs = [line.rstrip("\r").rsplit(None, 1) for line in lines]
        numbers = [int(number) for _, number in pairs]
        if sorted(numbers) != list(range(int(count))):
            raise ValueError(f"the numbers are not 0 to {int(count) - 1}")
    names = np.empty(len(pairs), object)
    names[numbers] = [name for name, _ in pairs]
    return names
