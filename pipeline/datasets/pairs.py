"""Files of pairs of nodes: tables with the columns src and dst, ``.npz`` and ``.npy``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...storage.dataset import SPLITS, Dataset
from ...storage.errors import InputError, nearest
from ...storage.links.pairs import PairArray, node_ranges
from ...storage.node_names import NodeNames
from ...storage.store.paths import expanded
from ...storage.times.moments import as_times
from .readers.npz_members import load_members

if TYPE_CHECKING:
    from pyarrow import Table

KINDS = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
"""Suffixes of tables, as in `readers.tables`."""
SETS = (*SPLITS, *(f"{name}_negatives" for name in SPLITS))
"""Names of sets of pairs."""
TIMES = tuple(f"{name}_time" for name in SPLITS)
"""Names of their times."""
Ends = tuple[range, range]
"""See `node_ranges`."""
Times = dict[str, npt.NDArray[Any]]
FORMS = f"expected a table ({', '.join(KINDS)}) with the columns src, dst, or .npy or .npz"


def read_sets(path: Path, dataset: Dataset) -> tuple[dict[str, PairArray], Times]:
    """int64 [n, 2] of each set of pairs in a file, by `SETS`, and times [n] by set if there are any. See
    `ReadOptions.pairs` for its form.

    Raises:
        InputError: the file cannot be read, or a pair has an end that is no node.
    """
    require_file(path)
    if path.suffix == ".npz":
        arrays, held = load_members(path, (*SETS, *TIMES))
        if not arrays:
            raise InputError(f"{path} holds {', '.join(held) or 'nothing'}; expected sets of pairs: {', '.join(SETS)}")
        return _of_arrays(arrays, dataset, f"{path}: ")
    table = _table(path)
    for key in ("split",):
        if key not in table.column_names:
            raise InputError(
                f"{path} has no column '{key}' of train, val or test; it holds {', '.join(table.column_names)}"
            )
    pairs, splits = ends_of_table(table, path, dataset), np.asarray(table["split"].to_pylist(), dtype=object)
    if len(wrong := sorted({str(s) for s in splits if s not in SPLITS})):
        raise InputError(f"{path}: split is '{wrong[0]}'; expected train, val or test{nearest(wrong[0], SPLITS)}")
    negative = np.zeros(len(pairs), bool)
    if "label" in table.column_names:
        labels = np.asarray(table["label"].to_pylist(), dtype=object)
        if bad := [value for value in labels.tolist() if value not in (0, 1)]:
            raise InputError(f"{path}: label is {bad[0]!r}; expected 1, or 0 for a negative")
        negative = labels == 0
    found = {name: pairs[(splits == name) & ~negative] for name in SPLITS}
    found |= {f"{name}_negatives": pairs[(splits == name) & negative] for name in SPLITS}
    time, times = _time(table, path, dataset), {}
    if time is not None:
        times = {name: time[(splits == name) & ~negative] for name in SPLITS}
    sets = {name: rows for name, rows in found.items() if len(rows)}
    return sets, {name: of for name, of in times.items() if name in sets}


def read_pairs(path: Path, dataset: Dataset, ends: Ends | None = None) -> tuple[PairArray, npt.NDArray[Any] | None]:
    """int64 [n, 2], the pairs of a table with columns src and dst, and its column time if it has one; or the pairs of a
    ``.npy`` file [n, 2]. `ends` as in `as_pairs`.

    Raises:
        InputError: see `read_sets`.
    """
    require_file(path)
    if path.suffix == ".npy":
        try:
            rows = np.load(path, allow_pickle=False)
        except (ValueError, OSError) as e:
            raise InputError(f"{path} cannot be read ({e}); {FORMS}") from None
        return as_pairs(rows, dataset, str(path), ends), None
    table = _table(path)
    return ends_of_table(table, path, dataset, ends), _time(table, path, dataset)


def as_pairs(pairs: Any, dataset: Dataset, what: str, ends: Ends | None = None) -> PairArray:
    """Pairs of nodes, int64 [n, 2], from an array or tensor [n, 2] of ids, or names where nodes have names. With types,
    each column is of the ids, or names, within the type of that end, whose nodes are `ends`: by default those of the
    dataset's pairs.

    Raises:
        InputError: another shape, or an end that is no node.
    """
    rows = np.asarray(pairs.detach().cpu() if hasattr(pairs, "detach") else pairs)
    if rows.size == 0:
        return np.empty((0, 2), np.int64)
    if rows.ndim != 2 or rows.shape[1] != 2:
        fix = ": transpose it" if rows.ndim == 2 and rows.shape[0] == 2 else ""
        raise InputError(f"{what} has shape {list(rows.shape)}; expected pairs [n, 2]{fix}")
    ends = ends or node_ranges(dataset.graph.types, dataset.num_nodes)
    if rows.dtype.kind in "UO" and dataset.node_names is not None:
        names = NodeNames.of(dataset.node_names)
        try:
            if dataset.graph.types is None:
                return names.find(rows.reshape(-1).tolist()).reshape(-1, 2)
            found = [names.between(e).find(column.tolist()) + e.start for column, e in zip(rows.T, ends)]
        except InputError as e:
            raise InputError(f"{what}: {e}") from None
        return np.stack(found, axis=1)
    if rows.dtype.kind in "UO":
        try:
            rows = np.array([[int(end) for end in pair] for pair in rows.tolist()], np.int64)
        except (TypeError, ValueError):
            raise InputError(
                f"{what} holds {str(rows.flat[0])!r}; expected numbers of nodes, which have no names here"
            ) from None
    if rows.dtype.kind not in "iu":
        raise InputError(f"{what} is {rows.dtype}; expected whole numbers, ids of nodes")
    outside = (rows < 0) | (rows >= [len(e) for e in ends])
    if outside.any():
        first = rows[outside.any(1)][0].tolist()
        wanted = " and ".join(dict.fromkeys(f"[0, {len(e)})" for e in ends))
        raise InputError(f"{what} has the pair {tuple(first)} with an end that is no node; expected {wanted}")
    return rows.astype(np.int64) + [e.start for e in ends]


def own_ids(pairs: PairArray, dataset: Dataset) -> PairArray:
    """int64 [n, 2], pairs by the ids that users give: with types, those within the type of each end."""
    return pairs - [e.start for e in node_ranges(dataset.graph.types, dataset.num_nodes)]


def sets_of(pairs: Mapping[str, Any] | str | Path, dataset: Dataset) -> tuple[dict[str, PairArray], Times]:
    """Sets of pairs, and their times if they have any, from a file, or from arrays by `SETS` and `TIMES`.

    Raises:
        InputError: see `read_sets`.
    """
    if isinstance(pairs, str | Path):
        sets, times = read_sets(expanded(pairs), dataset)
    else:
        sets, times = _given_sets(pairs, dataset)
    if "train" not in sets and not any(map(len, sets.values())):
        where = pairs if isinstance(pairs, str | Path) else "pairs"
        raise InputError(f"{where} holds no pair; expected some, or leave pairs out: edges are split then")
    return sets, times


def _given_sets(pairs: Mapping[str, Any], dataset: Dataset) -> tuple[dict[str, PairArray], Times]:
    """See `sets_of`."""
    for name in pairs:
        if name not in (*SETS, *TIMES):
            raise InputError(
                f"pairs has '{name}'; expected one of {', '.join(SETS)}{nearest(str(name), (*SETS, *TIMES))}"
            )
    given = {name: rows for name, rows in pairs.items() if rows is not None}
    for name in [n for n in SPLITS if hasattr(given.get(n), "is_undirected")]:  # a PyG Data or HeteroData
        split = _of_pyg(given.pop(name), dataset, name)
        given = {**split, **given}
    return _of_arrays(given, dataset, "pairs: ")


def _of_pyg(data: Any, dataset: Dataset, name: str) -> dict[str, Any]:
    """Pairs and negatives of a set from what PyG's `RandomLinkSplit` makes: `edge_label_index` and `edge_label`, which
    is 0 for negatives."""
    types, where = dataset.graph.types, f"the PyG data for {name}"
    if types is not None:
        relation = types.relations[types.pair_relations[0]]
        where += f" at {','.join(relation)}"
        data = data[relation] if relation in getattr(data, "edge_types", ()) else {}
    if "edge_label_index" not in data:
        raise InputError(f"{where} has no edge_label_index; expected pairs [2, N], as RandomLinkSplit makes them")
    pairs = data["edge_label_index"].detach().cpu().numpy().T
    labels = data["edge_label"].detach().cpu().numpy() if "edge_label" in data else np.ones(len(pairs))
    negatives = pairs[labels == 0]
    return {name: pairs[labels != 0], **({f"{name}_negatives": negatives} if len(negatives) else {})}


def _of_arrays(arrays: Mapping[str, Any], dataset: Dataset, what: str) -> tuple[dict[str, PairArray], Times]:
    sets = {name: as_pairs(rows, dataset, f"{what}{name}") for name, rows in arrays.items() if name in SETS}
    times: Times = {}
    for name in (name for name in SPLITS if f"{name}_time" in arrays):
        if name not in sets:
            raise InputError(f"{what}{name}_time is there without {name}; give both")
        times[name] = as_times(arrays[f"{name}_time"], f"{what}{name}_time", len(sets[name]), dataset.graph.time_unit)
    return sets, times


def require_file(path: Path) -> None:
    """Raise InputError unless a path is that of a file of pairs, by its suffix."""
    if not path.is_file():
        raise InputError(f"{path} is no file of pairs; {FORMS}")
    if not path.name.lower().endswith((*KINDS, ".npy", ".npz")):
        raise InputError(f"{path} is no file of pairs; {FORMS}")


def _table(path: Path) -> "Table":
    if path.suffix == ".npy":
        raise InputError(f"{path} holds one array; expected a table with a column split, or .npz")
    # Arrow starts a thread when it is imported, which the server of ranks must not have.
    from .readers.tables import read_table

    return read_table([path], "edges")


def _time(table: "Table", path: Path, dataset: Dataset) -> npt.NDArray[Any] | None:
    """The column time of a table of pairs, if it has one, as the dataset counts dates."""
    from .readers.parquet import times_of

    times = times_of(table, "time" if "time" in table.column_names else None, "pairs", path)
    return None if times is None else as_times(times, f"{path}: time", table.num_rows, dataset.graph.time_unit)


def ends_of_table(table: "Table", path: Path, dataset: Dataset, ends: Ends | None = None) -> PairArray:
    """int64 [n, 2], the columns src and dst of a table. `ends` as in `as_pairs`.

    Raises:
        InputError: a column is missing, or an end is no node.
    """
    import pyarrow as pa

    from .readers.parquet import is_list

    columns = []
    for key in ("src", "dst"):
        if key not in table.column_names:
            raise InputError(f"{path} has no column '{key}'; it holds {', '.join(table.column_names)}")
        column = table[key]
        if column.null_count or is_list(column.type):
            raise InputError(f"{path}: column {key} has rows without one node; expected a node in each row")
        if dataset.node_names is None and pa.types.is_integer(column.type):
            columns.append(column.to_numpy())
            continue
        values = column.to_pylist()
        columns.append(np.asarray([str(v) for v in values] if dataset.node_names is not None else values))
    return as_pairs(np.stack(columns, 1), dataset, str(path), ends)
