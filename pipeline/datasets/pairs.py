"""Files of pairs of nodes: tables with the columns src and dst, ``.npz`` and ``.npy``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...storage.array_kinds import AnyArray, IdArray, NumberArray
from ...storage.dataset import SPLITS, Dataset
from ...storage.errors import InputError, nearest
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, node_ranges
from ...storage.node_names import NodeNames
from ...storage.optional import present_items, when_present
from ...storage.plural import listed
from ...storage.store.paths import expanded
from ...storage.times.moments import as_times
from ...storage.typed.graph_types import GraphTypes
from .cleaning.options import DEFAULT_OPTIONS
from .readers.npz_members import load_members
from .readers.pyg import store_of_pairs
from .readers.typed import host

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
Times = dict[str, AnyArray]
SetsAndTimes = tuple[dict[str, PairArray], Times]
FORMS = f"expected a table ({', '.join(KINDS)}) with the columns src, dst, or .npy or .npz"


def read_sets(path: Path, dataset: Dataset) -> SetsAndTimes:
    """int64 [n, 2] of each set of pairs in a file, by `SETS`, and times [n] by set if there are any. See
    `ReadOptions.pairs` for its form. Raises InputError: the file cannot be read, or a pair has an end that is no
    node."""
    require_file(path)
    if path.suffix == ".npz":
        if dataset.graph.types.predicts_several:
            raise InputError(f"{path} names no relations, but pairs are of several; expected a table with relation")
        arrays, held = load_members(path, (*SETS, *TIMES))
        if not arrays:
            raise InputError(f"{path} holds {', '.join(held) or 'nothing'}; expected sets of pairs: {', '.join(SETS)}")
        return _of_arrays(arrays, dataset, f"{path}: ")
    table, types = _table(path), dataset.graph.types
    for key in ("split", *(["relation"] if types.predicts_several else [])):
        if key not in table.column_names:
            what = " of train, val or test" if key == "split" else ", and pairs are of several relations"
            raise InputError(f"{path} has no column '{key}'{what}; it holds {', '.join(table.column_names)}")
    of = relations_of_table(table, path, types)
    return _joined(dataset, lambda r, one: _sets_of_table(table if r is None else table.filter(of == r), path, one))


def _sets_of_table(table: "Table", path: Path, dataset: Dataset) -> SetsAndTimes:
    """The sets of a table whose pairs are of the one relation that is predicted."""
    pairs, splits = ends_of_table(table, path, dataset), np.asarray(table["split"].to_pylist(), dtype=object)
    if len(wrong := sorted({str(s) for s in splits if s not in SPLITS})):
        raise InputError(f"{path}: split is '{wrong[0]}'; expected train, val or test{nearest(wrong[0], SPLITS)}")
    negative = np.zeros(len(pairs), bool)
    if "label" in table.column_names:
        labels = np.asarray(table["label"].to_pylist(), dtype=object)
        if bad := [value for value in labels.tolist() if value not in (0, 1)]:
            raise InputError(f"{path}: label is {bad[0]!r}; expected 1, or 0 for a negative")
        negative = labels == 0
    rows = {name: (splits == name.partition("_")[0]) & (negative == ("_" in name)) for name in SETS}
    rows, time = {name: own for name, own in rows.items() if own.any()}, _time(table, path, dataset)
    times = {} if time is None else {name: time[rows[name]] for name in SPLITS if name in rows}
    return {name: pairs[own] for name, own in rows.items()}, times


def relations_of_table(table: "Table", path: Path, types: GraphTypes) -> IdArray | None:
    """int64 [n], the column relation of a table of pairs, as numbers; None where there is none, or edges have one type.
    Raises InputError: a relation is none of those that are predicted."""
    if types.is_single or "relation" not in table.column_names:
        return None
    names = _relation_names(table, path)
    try:
        number_of = {name: predicted_number(types, name) for name in dict.fromkeys(names)}
    except InputError as e:
        raise InputError(f"{path}: {e}") from None
    return np.array([number_of[name] for name in names], np.int64)


def _relation_names(table: "Table", path: Path) -> list[str]:
    """The column relation of a table of pairs."""
    if table["relation"].null_count:
        raise InputError(f"{path}: column relation has rows without one; expected a relation in each row")
    return [str(name) for name in table["relation"].to_pylist()]


def relation_text(name: Any) -> str:
    """A relation's name, or its three names joined by commas; of a number, as triples of numbers have, its digits.
    Raises InputError if it is nothing like it."""
    if isinstance(name, Integral):
        return str(int(name))
    if isinstance(name, tuple | list) and name and all(isinstance(part, str) for part in name):
        return ",".join(name)
    if not isinstance(name, str):
        raise InputError(f"relation is {name!r}; expected its name, or (source type, name, destination type)")
    return name


def predicted_number(types: GraphTypes, name: Any) -> int:
    """Number of a predicted relation by its name, or its three names. Raises InputError if it is none."""
    number = types.relation(relation_text(name))
    if number not in types.predicted:
        some = listed([types.relations[r][1] for r in types.predicted])
        raise InputError(f"relation is {name!r}, whose pairs are not predicted; expected one of {some}")
    return number


def _joined(dataset: Dataset, sets_of_one: Callable[[int | None, Dataset], SetsAndTimes]) -> SetsAndTimes:
    """Sets and times that `sets_of_one` gives for each predicted relation, with the dataset that has it alone: of one
    relation as they are; of several with the relation's number as a third column."""
    types, graph = dataset.graph.types, dataset.graph
    if not types.predicts_several:
        return sets_of_one(None, dataset)
    every: list[SetsAndTimes] = []
    for r in types.predicted:
        found, own = sets_of_one(r, replace(dataset, graph=replace(graph, types=types.predicting(r))))
        if own and (without := found.keys() & set(SPLITS) - own.keys()):
            raise InputError(f"{types.relations[r][1]} has no times in {sorted(without)[0]}; give times to all or none")
        every.append(({name: np.insert(rows, 2, r, axis=1) for name, rows in found.items()}, own))
    joined, moments = (
        {name: np.concatenate([own[name] for own in of if name in own]) for name in dict.fromkeys(chain(*of))}
        for of in zip(*every)
    )
    if short := [name for name, rows in moments.items() if len(rows) < len(joined[name])]:
        raise InputError(f"pairs of some relations in {short[0]} have times, and others have none; give times of all")
    return joined, moments


@dataclass(frozen=True, eq=False)
class GivenPairs:
    """Pairs as they are given: an array [n, 2], or a table with the columns src and dst."""

    rows: Any
    what: str
    """Words for errors."""
    path: Path | None = None
    """File of the table that `rows` are; None: they are an array."""
    time: AnyArray | None = None
    """[n], the column time of the table, if it has one."""

    @classmethod
    def read(cls, pairs: Any, dataset: Dataset) -> "GivenPairs":
        """Pairs of an array, a tensor or a list, or of a file: a table, whose dates count as those of the dataset, or
        ``.npy``. Raises InputError: the file cannot be read."""
        if not isinstance(pairs, str | Path):
            return cls(host(pairs), "pairs")
        path = expanded(pairs)
        require_file(path)
        if path.suffix == ".npy":
            try:
                return cls(np.load(path, allow_pickle=False), str(path))
            except (ValueError, OSError) as e:
                raise InputError(f"{path} cannot be read ({e}); {FORMS}") from None
        table = _table(path)
        return cls(table, str(path), path, _time(table, path, dataset))

    @property
    def relations(self) -> list[str] | None:
        """n names, the column relation of the table, if it has one. Raises InputError if a row has none."""
        if self.path is None or "relation" not in self.rows.column_names:
            return None
        return _relation_names(self.rows, self.path)

    def ends(self, at: Any, dataset: Dataset, ends: Ends | None) -> PairArray:
        """int64 [m, 2], the pairs at some positions, or a slice of all. `ends` as in `as_pairs`. Raises InputError: see
        `as_pairs`; or a column is missing."""
        if self.path is None:
            return as_pairs(self.rows[at], dataset, self.what, ends)
        return ends_of_table(self.rows if isinstance(at, slice) else self.rows.take(at), self.path, dataset, ends)

    def __len__(self) -> int:
        """n."""
        return len(self.rows)


def read_pairs(path: Path, dataset: Dataset, ends: Ends | None = None) -> tuple[PairArray, AnyArray | None]:
    """int64 [n, 2], the pairs of a file, and its times if it has some. `ends` as in `as_pairs`."""
    given = GivenPairs.read(path, dataset)
    return given.ends(slice(None), dataset, ends), given.time


def as_pairs(pairs: Any, dataset: Dataset, what: str, ends: Ends | None = None) -> PairArray:
    """Pairs of nodes, int64 [n, 2], from an array or tensor [n, 2] of ids, or names where nodes have names; where these
    are integers, integers are names. With types, each column is of the ids, or names, within the type of that end,
    whose nodes are `ends`: by default those of the dataset's pairs. Raises InputError: another shape, or an end that is
    no node."""
    rows = host(pairs)
    if rows.size == 0:
        return np.empty((0, 2), np.int64)
    if rows.ndim != 2 or rows.shape[1] != 2:
        fix = ": transpose it" if rows.ndim == 2 and rows.shape[0] == 2 else ""
        raise InputError(f"{what} has shape {list(rows.shape)}; expected pairs [n, 2]{fix}")
    ends = ends or node_ranges(dataset.graph.types, dataset.num_nodes)
    if rows.dtype.kind in "UOiu" and dataset.node_names is not None:
        names = NodeNames.from_values(dataset.node_names)
        try:
            if dataset.graph.types.is_single:
                rows = names.meant(rows.reshape(-1)).reshape(-1, 2)
            else:
                rows = np.stack([names.between(e).meant(column) for column, e in zip(rows.T, ends)], axis=1)
        except InputError as e:
            raise InputError(f"{what}: {e}") from None
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


def sets_of(pairs: Mapping[str, Any] | str | Path, dataset: Dataset) -> SetsAndTimes:
    """Sets of pairs, and their times if they have any, from a file, or from arrays by `SETS` and `TIMES`."""
    if isinstance(pairs, str | Path):
        sets, times = read_sets(expanded(pairs), dataset)
    else:
        sets, times = _given_sets(pairs, dataset)
    if "train" not in sets and not any(map(len, sets.values())):
        where = pairs if isinstance(pairs, str | Path) else "pairs"
        raise InputError(f"{where} holds no pair; expected some, or leave pairs out: edges are split then")
    return sets, times


def _given_sets(pairs: Mapping[str, Any], dataset: Dataset) -> SetsAndTimes:
    for name in pairs:
        if name not in (*SETS, *TIMES):
            raise InputError(
                f"pairs has '{name}'; expected some of {', '.join(SETS)}{nearest(str(name), (*SETS, *TIMES))}"
            )
    given = present_items(pairs)

    def of_one(relation: int | None, one: Dataset) -> SetsAndTimes:
        own = {name: _of_relation(name, rows, relation, dataset.graph.types) for name, rows in given.items()}
        own = present_items(own)
        for name in [n for n in SPLITS if hasattr(own.get(n), "is_undirected")]:  # a PyG Data or HeteroData
            own = {**_of_pyg(own.pop(name), one, name), **own}
        return _of_arrays(own, one, "pairs: ")

    return _joined(dataset, of_one)


def _of_relation(name: str, rows: Any, relation: int | None, types: GraphTypes) -> Any:
    """The pairs of one relation, of a set that is given for several; None: it has none."""
    if relation is None:
        return rows
    if hasattr(rows, "is_undirected"):
        there = types.relations[relation] in getattr(rows, "edge_types", ())
        return rows if there and "edge_label_index" in rows[types.relations[relation]] else None
    if not isinstance(rows, Mapping):
        raise InputError(
            f"pairs: {name} is a {type(rows).__name__}, but pairs are of several relations; expected a mapping from "
            "each relation to its pairs [n, 2]"
        )
    own = [value for key, value in rows.items() if predicted_number(types, key) == relation]
    if len(own) > 1:
        raise InputError(f"pairs: {name} has {types.relations[relation][1]} twice; expected each relation once")
    return own[0] if own else None


def _of_pyg(data: Any, dataset: Dataset, name: str) -> dict[str, Any]:
    """Pairs and negatives of a set from what PyG's `RandomLinkSplit` makes: `edge_label_index` and `edge_label`, which
    is 0 for negatives."""
    data, where = store_of_pairs(data, dataset.graph.types, f"the PyG data for {name}")
    if "edge_label_index" not in data:
        raise InputError(f"{where} has no edge_label_index; expected pairs [2, N], as RandomLinkSplit makes them")
    pairs = host(data["edge_label_index"]).T
    labels = host(data["edge_label"]) if "edge_label" in data else np.ones(len(pairs))
    negatives = pairs[labels == 0]
    return {name: pairs[labels != 0], **({f"{name}_negatives": negatives} if len(negatives) else {})}


def _of_arrays(arrays: Mapping[str, Any], dataset: Dataset, what: str) -> SetsAndTimes:
    sets = {name: as_pairs(rows, dataset, f"{what}{name}") for name, rows in arrays.items() if name in SETS}
    times: Times = {}
    for name in (name for name in SPLITS if f"{name}_time" in arrays):
        if name not in sets:
            raise InputError(f"{what}{name}_time is there without {name}; give both")
        times[name] = times_like(arrays[f"{name}_time"], f"{what}{name}_time", len(sets[name]), dataset.graph)
    return sets, times


def times_like(values: npt.ArrayLike, what: str, count: int, graph: Graph) -> NumberArray:
    """Times of so many pairs, as `as_times` gives them; beside a graph with times, dates if those are, else numbers.
    Raises InputError: they are of the other kind; or see `as_times`."""
    given, kinds = np.asarray(values), ("numbers", "dates")
    has, wants = given.dtype.kind == "M", graph.time_unit is not None
    if has != wants and (graph.has_edge_times or graph.has_node_times):
        raise InputError(f"{what} holds {kinds[has]}, but the times of the graph are {kinds[wants]}; give such times")
    return as_times(given, what, count, graph.time_unit)


def require_file(path: Path) -> None:
    """Raise InputError unless a path is that of a file of pairs, by its suffix."""
    if not (path.is_file() and path.name.lower().endswith((*KINDS, ".npy", ".npz"))):
        raise InputError(f"{path} is no file of pairs; {FORMS}")


def _table(path: Path) -> "Table":
    if path.suffix == ".npy":
        raise InputError(f"{path} holds one array; expected a table with a column split, or .npz")
    # Arrow starts a thread when it is imported, which the server of ranks must not have.
    from .readers.tables import plain, read_file
    from .schema.source import SourceTable
    from .schema.words import LABELS, end_columns, first_of

    table = plain(read_file(SourceTable("edges", (path,)), path, DEFAULT_OPTIONS))
    names = list(table.column_names)
    ends = dict(zip((end_columns(names) or [("src", "dst")])[0], ("src", "dst")))
    if "label" not in names and (label := first_of(names, LABELS)) is not None:
        ends[label] = "label"
    return table.rename_columns([ends.get(name, name) for name in names])


def _time(table: "Table", path: Path, dataset: Dataset) -> AnyArray | None:
    """The column time of a table of pairs, if it has one, as the dataset counts dates."""
    from .readers.parquet import times_of

    times = times_of(table, "time" if "time" in table.column_names else None, "pairs")
    return when_present(lambda own: times_like(own, f"{path}: time", table.num_rows, dataset.graph), times)


def ends_of_table(
    table: "Table", path: Path, dataset: Dataset, ends: Ends | None = None, columns: tuple[str, str] = ("src", "dst")
) -> PairArray:
    """int64 [n, 2], the `columns` of the ends in a table. `ends` as in `as_pairs`. Raises InputError: a column is
    missing, or an end is no node."""
    import pyarrow as pa

    from .schema.columns import is_list

    found = []
    for key in columns:
        if key not in table.column_names:
            raise InputError(f"{path} has no column '{key}'; it holds {', '.join(table.column_names)}")
        column = table[key]
        if column.null_count or is_list(column.type):
            raise InputError(f"{path}: column {key} has rows without one node; expected a node in each row")
        if dataset.node_names is None and pa.types.is_integer(column.type):
            found.append(column.to_numpy())
            continue
        values = column.to_pylist()
        found.append(np.asarray([str(v) for v in values] if dataset.node_names is not None else values))
    return as_pairs(np.stack(found, 1), dataset, str(path), ends)
