"""Cleaning of an edge list into in-neighbour lists: loops, duplicates, direction, weights.

An edge is one integer, dst * V + src, so that sorting the integers sorts by destination and then by source.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ....storage.array_kinds import Float32Array, IntArray
from ....storage.errors import InputError, NoDirectionError
from ....storage.features import ArrayFeatures
from ....storage.graph import Graph, as_times, index_dtype, run_starts, starts_of
from ....storage.optional import taken, when_present
from ....storage.plural import are, counted, were
from ....storage.typed.graph_types import RelationType
from .columns import Card, RowKind, clean_edge_features
from .options import Direction, ReadOptions
from .raw import AnyArray, Hint, RawEdges, about, noted, type_text

Keys = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class OfEdges:
    """Values that go with edges through every change of their order."""

    weight: Weights = None
    """float32 [E], summed where duplicates are merged, the larger one where an edge meets a stored reverse."""
    rows: AnyArray | None = None
    """[E, ...], features or the numbers of their rows: the first one's where duplicates are merged; those of the edge
    for a reverse that is not stored itself."""
    time: AnyArray | None = None
    """int64 or float64 [E]. Edges with times are all kept: an edge is another one at another time, and a reverse has
    the time of its edge."""
    id: AnyArray | None = None
    """int64 [E], of edges that have them already, which are neither merged nor reversed."""

    @property
    def is_empty(self) -> bool:
        """True if edges have none of them."""
        return all(array is None for array in vars(self).values())

    def __getitem__(self, index: AnyArray) -> "OfEdges":
        return OfEdges(*(taken(array, index) for array in vars(self).values()))

    def before(self, other: "OfEdges") -> "OfEdges":
        """Values of these edges, and behind them those of others, which have the same."""
        both = zip(vars(self).values(), vars(other).values())
        return OfEdges(*(None if array is None else np.concatenate([array, more]) for array, more in both))


IGNORED = "Edge weights were ignored (edge_weights=ignore)."
REVERSED = "Every edge was reversed (direction=reverse)."


def checked_edges(
    kind: RelationType | None,
    own: RawEdges,
    counts: tuple[int, int],
    options: ReadOptions,
    notes: list[str],
    card: Card | None = None,
) -> tuple[AnyArray, AnyArray, OfEdges]:
    """Sources, destinations and values of the edges of a relation, or of all (None), as they are read; `counts` are of
    the nodes of the types of both ends. Raises InputError: names the defect, the relation if there are several, and the
    option that resolves it."""
    seen, rows, name = list[str](), None, ",".join(kind or ())
    with about(type_text(kind)):
        src, dst = _checked_ends(own.ends, counts)
        weight = None if options.edge_weights == "ignore" else _checked_weight(own.weight, len(src))
        if own.features is not None:
            of = RowKind(own.columns, "edge", name or "edges")
            found = clean_edge_features(own.features, len(src), options, seen, of, card)
            rows = found if found.shape[1] else None
    notes += noted(kind, seen)
    what = f"edge_time of {name}" if kind else "edge_time"
    return src, dst, OfEdges(weight, rows, when_present(lambda time: as_times(time, what, len(src)), own.time))


def clean_edges(
    own: RawEdges, num_nodes: int, options: ReadOptions, hint: Hint | None, notes: list[str], card: Card | None = None
) -> Graph:
    """Build the graph with the repairs that `options` allow, each noted in `notes`. The `hint` decides the direction if
    the options do not and the edges are not symmetric. Raises InputError: names the defect and the option that resolves
    it."""
    src, dst, w = checked_edges(None, own, (num_nodes, num_nodes), options, notes, card)
    rows = w.rows
    w = replace(w, rows=when_present(lambda own: np.arange(len(own)), rows))
    if w.time is not None:
        options = keeping(options, notes)
    src, dst, w, loops = without_loops(src, dst, w, options)
    note_loops(*loops, options, notes)
    if options.direction == "reverse":
        src, dst = dst, src
        notes.append(REVERSED)
    keys, w = sort_keys(edge_keys(src, dst, num_nodes), w)
    keys, w, repeats = merge(keys, w, options)
    note_repeats(repeats, num_nodes, w.weight is not None, w.rows is not None, options, notes)
    symmetric = options.direction is None and is_symmetric(keys, w, *_back(keys, w, num_nodes))
    direction = settled_direction(symmetric, len(keys), options, hint, notes)
    if direction == "reverse":
        keys, w = _back(keys, w, num_nodes)
    elif direction == "undirected":
        before = len(keys)
        keys, w = with_reverses(keys, w, *_back(keys, w, num_nodes))
        note_reverses(before, len(keys), notes)
    graph = replace(graph_of_keys(keys, num_nodes, w.weight), edge_time=w.time)
    if rows is None or w.rows is None:
        return graph
    return replace(graph, edge_features=ArrayFeatures(rows[w.rows]))


def keeping(options: ReadOptions, notes: list[str]) -> ReadOptions:
    """The options for edges with times, which are not merged."""
    if options.duplicates == "merge":
        notes.append("Edges have times, so repeated ones were kept.")
        return replace(options, duplicates="keep")
    return options


def graph_of_keys(keys: Keys, num_nodes: int, weight: Weights = None) -> Graph:
    """The graph of ascending keys dst * V + src, int64 [E]."""
    indptr, indices = rows_of_keys(keys, num_nodes, num_nodes)
    return Graph(indptr, indices, weight)


def rows_of_keys(keys: Keys, num_nodes: int, num_rows: int) -> tuple[Keys, IntArray]:
    """``indptr`` of the first `num_rows` rows and the sources, from ascending keys dst * V + src of no other rows."""
    dst = keys // max(num_nodes, 1)
    indptr = starts_of(np.bincount(dst, minlength=num_rows))
    dst *= num_nodes
    return indptr, np.subtract(keys, dst, out=dst).astype(index_dtype(num_nodes))


def edge_keys(src: AnyArray, dst: AnyArray, num_nodes: int) -> Keys:
    """int64 [E], dst * V + src."""
    keys = dst.astype(np.int64)
    keys *= num_nodes
    keys += src.astype(np.int64, copy=False)
    return keys


def _back(keys: Keys, w: OfEdges, num_nodes: int) -> tuple[Keys, OfEdges]:
    """The reverses of the edges, sorted."""
    dst, src = np.divmod(keys, max(num_nodes, 1))
    return sort_keys(edge_keys(dst, src, num_nodes), w)


def sort_keys(keys: Keys, w: OfEdges, by_time: bool = True) -> tuple[Keys, OfEdges]:
    """Ascending keys and their values, equal keys by time and then in their order; without values in place."""
    if w.is_empty:
        keys.sort()
        return keys, w
    order = np.argsort(keys, kind="stable") if w.time is None or not by_time else np.lexsort((w.time, keys))
    return keys[order], w[order]


def _checked_ends(given: Sequence[AnyArray], counts: tuple[int, int]) -> list[AnyArray]:
    is_pair = isinstance(given, Iterable) and not sp.issparse(given)
    ends = [np.asarray(side) for side in given] if is_pair else []
    if len(ends) != 2 or any(e.ndim != 1 for e in ends) or len(ends[0]) != len(ends[1]):
        seen = [list(e.shape) for e in ends][:3] or f"a {type(given).__name__}"
        raise InputError(f"edges are {seen}; expected two vectors of one length, such as row and col of a COO matrix")
    if not len(ends[0]):
        return [side.astype(np.int64) for side in ends]
    for name, ids, num_nodes in zip(("source", "destination"), ends, counts):
        if ids.dtype.kind not in "iu":
            raise InputError(f"edge {name} ids are {ids.dtype}; expected integers: convert them before saving")
        check_range(name, int(ids.min()), int(ids.max()), num_nodes)
    return ends


def check_range(name: str, low: int, high: int, num_nodes: int) -> None:
    """Refuse ends of edges, a `name` such as source, that are not all in [0, V)."""
    if low < 0 or high >= num_nodes:
        remedy = "number the nodes from 0, one row of labels and features for each"
        if low == 1 and high == num_nodes:
            remedy = "they seem to be numbered from 1, so subtract 1"
        elif low >= 0:
            remedy = f"give the nodes {num_nodes} to {high} a row of labels and features too, or leave their edges out"
        raise InputError(
            f"edge {name} ids lie in [{low}, {high}], out of range for {num_nodes} nodes; expected [0, {num_nodes}): "
            f"{remedy}"
        )


def note_weights(weighted: Mapping[Any, bool], options: ReadOptions, notes: list[str]) -> None:
    """Note weights that are ignored, and relations without any of a graph with some."""
    bare = [kind or () for kind, has in weighted.items() if not has]
    if len(bare) < len(weighted) and options.edge_weights == "ignore":
        notes.append(IGNORED)
    elif 0 < len(bare) < len(weighted):
        notes.append(f"Edges of {', '.join(map(','.join, bare))} have no weights; each counts 1.")


def _checked_weight(given: AnyArray | None, num_edges: int) -> Weights:
    if given is None:
        return None
    weight = np.asarray(given)
    if weight.ndim == 2 and weight.shape[1] == 1:
        weight = weight[:, 0]
    if weight.shape != (num_edges,):
        raise InputError(
            f"edge weights have shape {list(weight.shape)}; expected one number for each of {num_edges} edges, or set "
            "edge_weights=ignore"
        )
    w, faults = as_weights(weight)
    check_weights(faults)
    return w


@dataclass(frozen=True)
class WeightFaults:
    """Counts of unusable edge weights, and the least weight."""

    infinite: int = 0
    """Number that are NaN or infinite as float32."""
    negative: int = 0
    least: float = 0.0


def as_weights(weight: AnyArray) -> tuple[Float32Array, WeightFaults]:
    """Weights as float32 [E], and their faults. Raises InputError if they are no numbers."""
    if weight.dtype.kind not in "biuf":
        raise InputError(f"edge weights are {weight.dtype}; expected numbers, or set edge_weights=ignore")
    with np.errstate(over="ignore"):
        w = weight.astype(np.float32)
    least = np.fmin.reduce(w) if len(w) else 0.0
    negative = int((w < 0).sum()) if least < 0 else 0
    return w, WeightFaults(int((~np.isfinite(w)).sum()), negative, float(least) if negative else 0.0)


def check_weights(faults: WeightFaults) -> None:
    """Raise InputError if there are any."""
    if faults.infinite:
        raise InputError(
            f"{counted(faults.infinite, 'edge weight')} {are(faults.infinite)} NaN or infinite as float32; correct "
            "them, or set edge_weights=ignore to read none"
        )
    if faults.negative:
        raise InputError(
            f"{counted(faults.negative, 'edge weight')} {are(faults.negative)} negative (least: "
            f"{np.float32(faults.least)}); expected >= 0: correct them, or set edge_weights=ignore"
        )


def without_loops(
    src: AnyArray, dst: AnyArray, w: OfEdges, options: ReadOptions
) -> tuple[AnyArray, AnyArray, OfEdges, tuple[int, int]]:
    """The edges that `self_loops` leaves; the number of loops, and the node of the first."""
    loops = src == dst
    count = int(loops.sum())
    found = (count, int(src[np.argmax(loops)]) if count else 0)
    if not count or options.self_loops == "keep":
        return src, dst, w, found
    return src[~loops], dst[~loops], w[~loops], found


def note_loops(count: int, first: int, options: ReadOptions, notes: list[str]) -> None:
    """Note the self loops. Raises InputError if there are any and they are an error."""
    if count and options.self_loops == "error":
        raise InputError(
            f"there {are(count)} {counted(count, 'self loop')} (first: node {first}); set self_loops=drop or "
            "self_loops=keep"
        )
    if count:
        how = "kept (self_loops=drop removes them)" if options.self_loops == "keep" else "dropped"
        notes.append(f"{counted(count, 'self loop')} {were(count)} {how}.")


def merge(keys: Keys, w: OfEdges, options: ReadOptions) -> tuple[Keys, OfEdges, tuple[int, int]]:
    """Ascending keys with each edge once, unless duplicates are kept; the number of duplicates, and the first's key."""
    first = run_starts(keys)
    count = len(keys) - int(np.count_nonzero(first))
    found = (count, int(keys[np.argmin(first)]) if count else 0)
    if not count or options.duplicates != "merge":
        return keys, w, found
    weight = w.weight
    if weight is not None:
        with np.errstate(over="ignore"):
            weight = np.add.reduceat(weight.astype(np.float64), np.flatnonzero(first)).astype(np.float32)
    return keys[first], replace(w[first], weight=weight), found


def note_repeats(
    repeats: tuple[int, int], num_nodes: int, weighted: bool, featured: bool, options: ReadOptions, notes: list[str]
) -> None:
    """Note the duplicates, of which `merge` has told. Raises InputError if there are any and they are an error."""
    count, key = repeats
    if not count:
        return
    if options.duplicates == "error":
        dst, src = divmod(key, num_nodes)
        raise InputError(
            f"there {are(count)} {counted(count, 'duplicate edge')} (first: {src} -> {dst}); set duplicates=merge "
            "(weights are summed) or duplicates=keep"
        )
    if options.duplicates == "keep":
        notes.append(f"{counted(count, 'duplicate edge')} {were(count)} kept.")
        return
    how = ", their weights summed" if weighted else ""
    how += ", the first one's features kept" if featured else ""
    notes.append(f"{counted(count, 'duplicate edge')} {were(count)} merged{how}.")


def settled_direction(
    symmetric: bool, num_edges: int, options: ReadOptions, hint: Hint | None, notes: list[str]
) -> Direction:
    """The direction in which edges that are already reversed if the options say so remain to be read: by the options,
    by the edges' symmetry, which counts only without options, or by the hint. Raises InputError: nothing decides it."""
    if options.direction is not None:
        return "undirected" if options.direction == "undirected" else "directed"
    if symmetric:
        if num_edges:
            notes.append("The edges are symmetric as stored and were used as they are.")
        return "directed"
    if hint is None:
        raise NoDirectionError(
            "the edges are not symmetric and their direction is not known: set direction=directed (messages flow "
            "src -> dst), direction=reverse (dst -> src) or direction=undirected (both ways)"
        )
    notes.append(
        f"The edges were read with direction={hint.direction} because {hint.reason} (set direction to change that)."
    )
    return hint.direction


def note_borrowed(relations: Sequence[object], notes: list[str]) -> None:
    """Note `relations` whose edges have the times of their sources; of a graph with one relation any number for it."""
    if relations:
        of = f" of {', '.join(map(str, relations))}" if isinstance(relations[0], str) else ""
        notes.append(f"Edges{of} have no times of their own, and have those of their sources.")


def note_reverses(before: int, after: int, notes: list[str]) -> None:
    """Note the reverses that were added to the edges."""
    if after > before:
        notes.append(f"The edges were made symmetric: {before} stored, {after} with their reverses.")


def is_symmetric(keys: Keys, of_edges: OfEdges, back: Keys, of_back: OfEdges) -> bool:
    """True if the edges and their reverses are the same, with their weights. Both are sorted."""
    w, back_w = of_edges.weight, of_back.weight
    if not np.array_equal(keys, back):
        return False
    time, back_time = of_edges.time, of_back.time
    if time is not None and back_time is not None and not np.array_equal(time, back_time):
        return False
    if w is None or back_w is None:
        return True
    here, there = np.lexsort((w, keys)), np.lexsort((back_w, back))
    # Sums of merged duplicates may differ by rounding between the two directions.
    return np.array_equal(keys[here], back[there]) and np.allclose(w[here], back_w[there], rtol=1e-5, atol=0)


def with_reverses(keys: Keys, w: OfEdges, back: Keys, back_w: OfEdges) -> tuple[Keys, OfEdges]:
    """The union of the edges and their reverses, both sorted: the i-th copy of an edge pairs with the i-th copy of its
    reverse; with times, the i-th at one time."""
    both = np.concatenate([keys, back])
    if w.is_empty and run_starts(keys).all() and run_starts(back).all():
        both.sort()
        return both[run_starts(both)], w
    copies, every = np.concatenate([_copy_numbers(keys, w.time), _copy_numbers(back, back_w.time)]), w.before(back_w)
    if every.time is not None:
        # One number for a time and a copy, ascending by time.
        copies += np.unique(every.time, return_inverse=True)[1] * len(every.time)
    # Sorting keeps equal ones in their order: what is stored comes before a reverse.
    order = np.lexsort((copies, both))
    kept = np.flatnonzero(run_starts(both[order], copies[order]))
    weight, first = every.weight, order[kept]
    if weight is not None and len(kept):
        weight = np.maximum.reduceat(weight[order], kept)
    return both[first], replace(replace(every, weight=None)[first], weight=weight)


def _copy_numbers(keys: Keys, time: AnyArray | None = None) -> Keys:
    """Each ascending key's number among its equals, of the same time if there are times, which ascend among them."""
    at = np.arange(len(keys))
    return at - np.maximum.accumulate(np.where(run_starts(*([keys] if time is None else [keys, time])), at, 0))
