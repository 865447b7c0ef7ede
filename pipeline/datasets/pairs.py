"""Pairs of nodes as they are given, in arrays, PyG's data and files, and the nodes that they name."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...storage.array_kinds import AnyArray, IdArray, NumberArray
from ...storage.dataset import SPLITS, Dataset
from ...storage.errors import InputError, nearest
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray
from ...storage.node_names import NodeNames
from ...storage.optional import present, present_items, taken, when_present
from ...storage.plural import listed
from ...storage.store.paths import expanded
from ...storage.times.moments import as_times
from ...storage.typed.graph_types import GraphTypes
from .cleaning.options import DEFAULT_OPTIONS
from .readers.npz_members import load_members
from .readers.pyg import store_of_pairs
from .readers.typed import host
from .schema.files import SUFFIXES

if TYPE_CHECKING:
    from pyarrow import Table

SETS = (*SPLITS, *(f"{name}_negatives" for name in SPLITS))
"""Names of sets of pairs."""
TIMES = tuple(f"{name}_time" for name in SPLITS)
"""Names of their times."""
SetsAndTimes = tuple[dict[str, PairArray], dict[str, NumberArray]]
FORMS = "expected a table, such as .csv or .parquet, with the columns src, dst, or .npy or .npz"


@dataclass(frozen=True, eq=False)
class PairTable:
    """n pairs as they are given, whatever their source. Here alone are they matched to nodes and moments."""

    what: str
    """Words for errors."""
    ends: AnyArray
    """[n, 2], ids or names of sources and destinations: see `as_pairs`."""
    relation: IdArray | None = None
    """int64 [n], numbers of the relations; None: all are of the one that is predicted."""
    time: AnyArray | None = None
    """[n], numbers or dates."""

    def __len__(self) -> int:
        """n."""
        return len(np.atleast_1d(self.ends)) if self.ends.size else 0  # [2, 0] are none, as in `as_pairs`

    def take(self, rows: AnyArray) -> "PairTable":
        """Some pairs."""
        return PairTable(self.what, self.ends[rows], taken(self.relation, rows), taken(self.time, rows))

    def nodes(self, dataset: Dataset) -> PairArray:
        """int64 [n, 2], see `as_pairs`."""
        return as_pairs(self.ends, dataset, self.what, self.relation)

    def rows(self, dataset: Dataset) -> PairArray:
        """int64, `nodes`, and where several relations are predicted a third column with the relation's number."""
        nodes, several = self.nodes(dataset), dataset.graph.types.predicts_several
        return np.insert(nodes, 2, self.relation, axis=1) if several and self.relation is not None else nodes

    def times(self, graph: Graph) -> NumberArray | None:
        """[n], see `times_like`."""
        return when_present(lambda given: times_like(given, f"{self.what}: time", len(self), graph), self.time)


def read_pairs(pairs: Any, dataset: Dataset) -> PairTable:
    """Pairs of an array, a tensor or a list, or of a file: a table or ``.npy``. Raises InputError: the file cannot be
    read."""
    if not isinstance(pairs, str | Path):
        return PairTable("pairs", host(pairs))
    path = expanded(pairs)
    require_file(path)
    if path.suffix != ".npy":
        return pairs_of_table(_table(path), path, dataset)
    try:
        return PairTable(str(path), np.load(path, allow_pickle=False))
    except (ValueError, OSError) as e:
        raise InputError(f"{path} cannot be read ({e}); {FORMS}") from None


def pairs_of_table(
    table: "Table",
    path: Path,
    dataset: Dataset,
    columns: tuple[str, str] = ("src", "dst"),
    time: str | None = None,
    relation: str | None = "relation",
) -> PairTable:
    """The pairs of a table with these `columns` of ends, the column `time`, or else one of that name, and perhaps that
    of the `relation`, which counts where edges have several types. Raises InputError: a column is missing, or a row has
    no node, or no relation that is predicted."""
    import pyarrow as pa

    from .readers.parquet import times_of
    from .schema.columns import is_list

    names, types, found, numbers = table.column_names, dataset.graph.types, [], None
    for key in columns:
        if key not in names:
            raise InputError(f"{path} has no column '{key}'; it holds {', '.join(names)}")
        column = table[key]
        if column.null_count or is_list(column.type):
            raise InputError(f"{path}: column {key} has rows without one node; expected a node in each row")
        if dataset.node_names is None and pa.types.is_integer(column.type):
            found.append(column.to_numpy())
            continue
        values = column.to_pylist()
        found.append(np.asarray([str(v) for v in values] if dataset.node_names is not None else values))
    if relation in names and not types.is_single:
        if table[relation].null_count:
            raise InputError(f"{path}: column relation has rows without one; expected a relation in each row")
        try:
            numbers = predicted_numbers(types, map(str, table[relation].to_pylist()))
        except InputError as e:
            raise InputError(f"{path}: {e}") from None
    when = time or ("time" if "time" in names else None)
    return PairTable(str(path), np.stack(found, 1), numbers, times_of(table, when, "edges"))


def as_pairs(pairs: Any, dataset: Dataset, what: str, relation: IdArray | None = None) -> PairArray:
    """Pairs of nodes, int64 [n, 2], from an array or tensor [n, 2] of ids, or names where nodes have names; where these
    are integers, integers are names. With types, each is of the ids, or names, within the type of that end of the
    dataset's one predicted relation, or of `relation`, int64 [n]. Raises InputError: another shape, or an end that is
    no node."""
    rows = host(pairs)
    if rows.size == 0:
        return np.empty((0, 2), np.int64)
    if rows.ndim != 2 or rows.shape[1] != 2:
        fix = ": transpose it" if rows.ndim == 2 and rows.shape[0] == 2 else ""
        raise InputError(f"{what} has shape {list(rows.shape)}; expected pairs [n, 2]{fix}")
    kinds, offsets = _kinds_of_ends(dataset, relation)
    if rows.dtype.kind in "UOiu" and dataset.node_names is not None:
        names, given, rows = NodeNames.from_values(dataset.node_names), rows, np.empty(rows.shape, np.int64)
        try:
            for kind in kinds.flat[np.sort(np.unique(kinds, return_index=True)[1])]:  # sources first
                own, nodes = np.broadcast_to(kinds == kind, rows.shape), range(*offsets[kind : kind + 2].tolist())
                rows[own] = names.between(nodes).meant(given[own])
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
    counts = np.diff(offsets)[kinds]
    outside = ((rows < 0) | (rows >= counts)).any(1)
    if outside.any():
        first = int(outside.argmax())
        own = np.broadcast_to(counts, rows.shape)[first]
        wanted = " and ".join(dict.fromkeys(f"[0, {count})" for count in own))
        raise InputError(
            f"{what} has the pair {tuple(rows[first].tolist())} with an end that is no node; expected {wanted}"
        )
    return rows.astype(np.int64) + offsets[kinds]


def _kinds_of_ends(dataset: Dataset, relation: IdArray | None) -> tuple[IdArray, IdArray]:
    """Numbers of the node types of the ends of pairs, [2], or of a `relation` for each [n, 2]; and the first node of
    each type, and V."""
    types = dataset.graph.types
    if types.is_single:
        return np.zeros(2, np.int64), np.array([0, dataset.num_nodes])
    return types.ends[types.one_predicted if relation is None else relation], np.array(types.offsets)


def own_ids(pairs: PairArray, dataset: Dataset, relation: IdArray | None = None) -> PairArray:
    """int64 [n, 2], pairs by the ids that users give: with types, those within the type of each end, as in
    `as_pairs`."""
    kinds, offsets = _kinds_of_ends(dataset, relation)
    return pairs - offsets[kinds]


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


def predicted_numbers(types: GraphTypes, names: Iterable[object]) -> IdArray:
    """int64 [n], numbers of predicted relations: see `predicted_number`."""
    texts = [relation_text(name) for name in names]
    number_of = {text: predicted_number(types, text) for text in dict.fromkeys(texts)}
    return np.array([number_of[text] for text in texts], np.int64)


def sets_of(pairs: Mapping[str, Any] | str | Path, dataset: Dataset) -> SetsAndTimes:
    """int64 [n, 2] of each set of pairs by `SETS`, and times [n] by set if there are any, from a file (see
    `ReadOptions.pairs` for its form), or from arrays by `SETS` and `TIMES`. Where several relations are predicted
    [n, 3], with the relation's number, relation by relation. Raises InputError: the file cannot be read, or a pair has
    an end that is no node."""
    given = _sets_of_file(pairs, dataset) if isinstance(pairs, str | Path) else _sets_of_arrays(pairs, dataset)
    sets, times = defaultdict[str, list[PairArray]](list), defaultdict[str, list[NumberArray]](list)
    for name, table in given:
        sets[name].append(table.rows(dataset))
        times[name] += present((table.times(dataset.graph),))
    found = {name: np.concatenate(own) for name, own in sets.items()}
    moments = {name: np.concatenate(own) for name, own in times.items() if own and name in SPLITS}
    if "train" not in found and not any(map(len, found.values())):
        where = pairs if isinstance(pairs, str | Path) else "pairs"
        raise InputError(f"{where} holds no pair; expected some, or leave pairs out: edges are split then")
    return found, moments


def _sets_of_file(file: str | Path, dataset: Dataset) -> Iterator[tuple[str, PairTable]]:
    """The sets of a file, by their names."""
    path, types = expanded(file), dataset.graph.types
    require_file(path)
    if path.suffix == ".npz":
        if types.predicts_several:
            raise InputError(f"{path} names no relations, but pairs are of several; expected a table with relation")
        arrays, held = load_members(path, (*SETS, *TIMES))
        if not arrays:
            raise InputError(f"{path} holds {', '.join(held) or 'nothing'}; expected sets of pairs: {', '.join(SETS)}")
        yield from _of_arrays(arrays, f"{path}: ", types)
        return
    table = _table(path)
    for key in ("split", *(["relation"] if types.predicts_several else [])):
        if key not in table.column_names:
            what = " of train, val or test" if key == "split" else ", and pairs are of several relations"
            raise InputError(f"{path} has no column '{key}'{what}; it holds {', '.join(table.column_names)}")
    every, splits = pairs_of_table(table, path, dataset), np.asarray(table["split"].to_pylist(), dtype=object)
    if len(wrong := sorted({str(s) for s in splits if s not in SPLITS})):
        raise InputError(f"{path}: split is '{wrong[0]}'; expected train, val or test{nearest(wrong[0], SPLITS)}")
    negative = np.zeros(len(every), bool)
    if "label" in table.column_names:
        labels = np.asarray(table["label"].to_pylist(), dtype=object)
        if bad := [value for value in labels.tolist() if value not in (0, 1)]:
            raise InputError(f"{path}: label is {bad[0]!r}; expected 1, or 0 for a negative")
        negative = labels == 0
    if every.relation is not None:  # rows come relation by relation, as those of arrays
        place = {number: k for k, number in enumerate(types.predicted)}
        order = np.argsort([place[r] for r in every.relation.tolist()], kind="stable")
        every, splits, negative = every.take(order), splits[order], negative[order]
    for name in SETS:
        own = (splits == name.partition("_")[0]) & (negative == ("_" in name))
        if own.any():
            yield name, every.take(own)


def _sets_of_arrays(pairs: Mapping[str, Any], dataset: Dataset) -> Iterator[tuple[str, PairTable]]:
    """The sets that are given by their names, relation by relation."""
    types = dataset.graph.types
    for name in pairs:
        if name not in (*SETS, *TIMES):
            raise InputError(
                f"pairs has '{name}'; expected some of {', '.join(SETS)}{nearest(str(name), (*SETS, *TIMES))}"
            )
    for one in map(types.predicting, types.predicted) if types.predicts_several else (types,):
        given = present_items(pairs)
        if types.predicts_several:
            given = present_items({name: _of_relation(name, rows, types, one) for name, rows in given.items()})
        for name in [n for n in SPLITS if hasattr(given.get(n), "is_undirected")]:  # a PyG Data or HeteroData
            given = {**_of_pyg(given.pop(name), one, name), **given}
        yield from _of_arrays(given, "pairs: ", one)


def _of_relation(name: str, rows: Any, types: GraphTypes, one: GraphTypes) -> Any:
    """The pairs of `one` relation, of a set that is given for several; None: it has none."""
    relation = types.relations[one.one_predicted]
    if hasattr(rows, "is_undirected"):
        there = relation in getattr(rows, "edge_types", ())
        return rows if there and "edge_label_index" in rows[relation] else None
    if not isinstance(rows, Mapping):
        raise InputError(
            f"pairs: {name} is a {type(rows).__name__}, but pairs are of several relations; expected a mapping from "
            "each relation to its pairs [n, 2]"
        )
    own = [value for key, value in rows.items() if predicted_number(types, key) == one.one_predicted]
    if len(own) > 1:
        raise InputError(f"pairs: {name} has {relation[1]} twice; expected each relation once")
    return own[0] if own else None


def _of_pyg(data: Any, types: GraphTypes, name: str) -> dict[str, Any]:
    """Pairs and negatives of a set from what PyG's `RandomLinkSplit` makes: `edge_label_index` and `edge_label`, which
    is 0 for negatives."""
    data, where = store_of_pairs(data, types, f"the PyG data for {name}")
    if "edge_label_index" not in data:
        raise InputError(f"{where} has no edge_label_index; expected pairs [2, N], as RandomLinkSplit makes them")
    pairs = host(data["edge_label_index"]).T
    labels = host(data["edge_label"]) if "edge_label" in data else np.ones(len(pairs))
    negatives = pairs[labels == 0]
    return {name: pairs[labels != 0], **({f"{name}_negatives": negatives} if len(negatives) else {})}


def _of_arrays(arrays: Mapping[str, Any], what: str, types: GraphTypes) -> Iterator[tuple[str, PairTable]]:
    """The sets of arrays by `SETS` and `TIMES`, of the one relation that `types` predict."""
    if alone := [name for name in TIMES if name in arrays and name.removesuffix("_time") not in arrays]:
        raise InputError(f"{what}{alone[0]} is there without {alone[0].removesuffix('_time')}; give both")
    for name in [name for name in arrays if name in SETS]:
        ends, time = host(arrays[name]), when_present(np.asarray, arrays.get(f"{name}_time"))
        ends = ends if ends.size else np.empty((0, 2), np.int64)  # none may have the form [2, 0]
        yield name, PairTable(f"{what}{name}", ends, np.full(ends.shape[:1], (*types.predicted, 0)[0]), time)


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
    if not (path.is_file() and path.name.lower().endswith((*SUFFIXES, ".npy", ".npz"))):
        raise InputError(f"{path} is no file of pairs; {FORMS}")


def _table(path: Path) -> "Table":
    if path.suffix == ".npy":
        raise InputError(f"{path} holds one array; expected a table with a column split, or .npz")
    # Arrow starts a thread when it is imported, which the server of ranks must not have.
    from .readers.tables import read_rows
    from .schema.source import SourceTable
    from .schema.words import LABELS, end_columns, first_of

    table = read_rows(SourceTable("edges", (path,)), DEFAULT_OPTIONS).rows
    names = list(table.column_names)
    ends = dict(zip((end_columns(names) or [("src", "dst")])[0], ("src", "dst")))
    if "label" not in names and (label := first_of(names, LABELS)) is not None:
        ends[label] = "label"
    return table.rename_columns([ends.get(name, name) for name in names])
