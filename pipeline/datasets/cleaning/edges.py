"""Cleaning of an edge list into in-neighbour lists: loops, duplicates, direction, weights.

An edge is one integer, dst * V + src, so that sorting the integers sorts by destination and then by source.
"""

import numpy as np
import numpy.typing as npt

from ....storage.errors import InputError
from ....storage.graph import Graph, index_dtype
from ....storage.plural import are, counted, were
from .options import ReadOptions
from .raw import AnyArray, Hint, Ordered

Keys = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32] | None
IGNORED = "Edge weights were ignored (edge_weights=ignore)."
REVERSED = "Every edge was reversed (direction=reverse)."


def clean_edges(
    src: AnyArray,
    dst: AnyArray,
    weight: AnyArray | None,
    num_nodes: int,
    options: ReadOptions,
    hint: Hint | None,
    notes: list[str],
) -> Graph:
    """Build the graph with the repairs that `options` allow, each noted in `notes`.

    Args:
        src: [E] integers in [0, V).
        dst: [E] integers in [0, V); messages flow src -> dst.
        weight: [E] numbers or None.
        num_nodes: V.
        options: treatment of loops, duplicates, weights and direction.
        hint: decides the direction if the options do not and the edges are not symmetric.
        notes: appended to.

    Raises:
        InputError: names the defect and the option that resolves it.
    """
    src, dst = _checked_ids(src, dst, num_nodes)
    w = _checked_weight(weight, len(src), options, notes)
    src, dst, w = _self_loops(src, dst, w, options, notes)
    if options.direction == "reverse":
        src, dst = dst, src
        notes.append(REVERSED)
    keys, w = _sorted(_keys(src, dst, num_nodes), w)
    return _of_sorted(keys, w, num_nodes, options, hint, notes)


def clean_ordered(ordered: Ordered, num_nodes: int, options: ReadOptions, hint: Hint | None, notes: list[str]) -> Graph:
    """Build the graph and notes of `clean_edges` from edges that are already checked and sorted.

    Raises:
        InputError: see `clean_edges`.
    """
    if ordered.has_weights and options.edge_weights == "ignore":
        notes.append(IGNORED)
    if ordered.loops:
        notes.append(_loop_notes(ordered.loops, options))
    if options.direction == "reverse":
        notes.append(REVERSED)
    if options.direction in ("directed", "reverse") and not ordered.repeated:
        indptr = np.zeros(num_nodes + 1, np.int64)
        np.cumsum(ordered.in_degree, out=indptr[1:])
        return Graph(indptr, ordered.src, ordered.weight)
    keys = _keys(ordered.src, np.repeat(np.arange(num_nodes), ordered.in_degree), num_nodes)
    return _of_sorted(keys, ordered.weight, num_nodes, options, hint, notes)


def _of_sorted(
    keys: Keys, w: Weights, num_nodes: int, options: ReadOptions, hint: Hint | None, notes: list[str]
) -> Graph:
    keys, w = _duplicates(keys, w, num_nodes, options, notes)
    keys, w = _directed(keys, w, num_nodes, options, hint, notes)
    return graph_of_keys(keys, num_nodes, w)


def graph_of_keys(keys: Keys, num_nodes: int, weight: Weights = None) -> Graph:
    """The graph of ascending keys dst * V + src, int64 [E]."""
    dst = keys // max(num_nodes, 1)
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
    dst *= num_nodes
    return Graph(indptr, np.subtract(keys, dst, out=dst).astype(index_dtype(num_nodes)), weight)


def _keys(src: AnyArray, dst: AnyArray, num_nodes: int) -> Keys:
    keys = dst.astype(np.int64)
    keys *= num_nodes
    keys += src.astype(np.int64, copy=False)
    return keys


def _transposed(keys: Keys, num_nodes: int) -> Keys:
    dst, src = np.divmod(keys, max(num_nodes, 1))
    return _keys(dst, src, num_nodes)


def _sorted(keys: Keys, weight: Weights) -> tuple[Keys, Weights]:
    if weight is None:
        keys.sort()
        return keys, None
    order = np.argsort(keys, kind="stable")
    return keys[order], weight[order]


def _starts(*columns: AnyArray) -> npt.NDArray[np.bool_]:
    """True where a run of equal rows begins."""
    first = np.ones(len(columns[0]), bool)
    if len(first) > 1:
        first[1:] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    return first


def _checked_ids(src: AnyArray, dst: AnyArray, num_nodes: int) -> tuple[AnyArray, AnyArray]:
    if src.ndim != 1 or src.shape != dst.shape:
        raise InputError(
            f"edge sources have shape {list(src.shape)} and destinations {list(dst.shape)}; expected two vectors of "
            "one length"
        )
    for name, ids in (("source", src), ("destination", dst)):
        if len(ids) == 0:
            continue
        if ids.dtype.kind not in "iu":
            raise InputError(f"edge {name} ids are {ids.dtype}; expected integers: convert them before saving")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= num_nodes:
            raise InputError(
                f"edge {name} ids lie in [{low}, {high}], out of range for {num_nodes} nodes; expected [0, "
                f"{num_nodes}): number the nodes from 0, one row of labels and features for each"
            )
    if len(src) == 0:
        return src.astype(np.int64), dst.astype(np.int64)
    return src, dst


def _checked_weight(weight: AnyArray | None, num_edges: int, options: ReadOptions, notes: list[str]) -> Weights:
    if weight is None:
        return None
    if options.edge_weights == "ignore":
        notes.append(IGNORED)
        return None
    if weight.ndim == 2 and weight.shape[1] == 1:
        weight = weight[:, 0]
    if weight.shape != (num_edges,):
        raise InputError(
            f"edge weights have shape {list(weight.shape)}; expected one number for each of {num_edges} edges, or set "
            "edge_weights=ignore"
        )
    if weight.dtype.kind not in "biuf":
        raise InputError(f"edge weights are {weight.dtype}; expected numbers, or set edge_weights=ignore")
    with np.errstate(over="ignore"):
        w = weight.astype(np.float32)
    if not np.isfinite(w).all():
        raise InputError(
            f"{(~np.isfinite(w)).sum()} edge weights are NaN or infinite as float32; correct them, or set "
            "edge_weights=ignore to read none"
        )
    if (w < 0).any():
        raise InputError(
            f"{(w < 0).sum()} edge weights are negative (least: {w.min()}); expected >= 0: correct them, or set "
            "edge_weights=ignore"
        )
    return w


def _self_loops(
    src: AnyArray, dst: AnyArray, w: Weights, options: ReadOptions, notes: list[str]
) -> tuple[AnyArray, AnyArray, Weights]:
    loops = src == dst
    count = int(loops.sum())
    if not count:
        return src, dst, w
    if options.self_loops == "error":
        raise InputError(
            f"there {are(count)} {counted(count, 'self loop')} (first: node {src[loops][0]}); set self_loops=drop or "
            "self_loops=keep"
        )
    notes.append(_loop_notes(count, options))
    if options.self_loops == "keep":
        return src, dst, w
    return src[~loops], dst[~loops], None if w is None else w[~loops]


def _loop_notes(count: int, options: ReadOptions) -> str:
    return f"{counted(count, 'self loop')} {were(count)} " + (
        "kept (self_loops=drop removes them)." if options.self_loops == "keep" else "dropped."
    )


def _duplicates(keys: Keys, w: Weights, num_nodes: int, options: ReadOptions, notes: list[str]) -> tuple[Keys, Weights]:
    first = _starts(keys)
    count = len(keys) - int(first.sum())
    if not count:
        return keys, w
    if options.duplicates == "error":
        dst, src = divmod(int(keys[~first][0]), num_nodes)
        raise InputError(
            f"there {are(count)} {counted(count, 'duplicate edge')} (first: {src} -> {dst}); set duplicates=merge "
            "(weights are summed) or duplicates=keep"
        )
    if options.duplicates == "keep":
        notes.append(f"{counted(count, 'duplicate edge')} {were(count)} kept.")
        return keys, w
    notes.append(
        f"{counted(count, 'duplicate edge')} {were(count)} merged{'' if w is None else ', their weights summed'}."
    )
    if w is not None:
        with np.errstate(over="ignore"):
            w = np.add.reduceat(w.astype(np.float64), np.flatnonzero(first)).astype(np.float32)
    return keys[first], w


def _directed(
    keys: Keys, w: Weights, num_nodes: int, options: ReadOptions, hint: Hint | None, notes: list[str]
) -> tuple[Keys, Weights]:
    direction = options.direction
    if direction is None:
        if _is_symmetric(keys, w, num_nodes):
            if len(keys):
                notes.append("The edges are symmetric as stored and were used as they are.")
            return keys, w
        if hint is None:
            raise InputError(
                "the edges are not symmetric and their direction is not known: set direction=directed (messages flow "
                "src -> dst), direction=reverse (dst -> src) or direction=undirected (both ways)"
            )
        direction = hint.direction
        notes.append(
            f"The edges were read with direction={direction} because {hint.reason} (set direction to change that)."
        )
        if direction == "reverse":
            return _sorted(_transposed(keys, num_nodes), w)
    if direction != "undirected":
        return keys, w
    before = len(keys)
    keys, w = _with_reverses(keys, w, num_nodes)
    if len(keys) > before:
        notes.append(f"The edges were made symmetric: {before} stored, {len(keys)} with their reverses.")
    return keys, w


def _is_symmetric(keys: Keys, w: Weights, num_nodes: int) -> bool:
    back = _transposed(keys, num_nodes)
    if w is None:
        back.sort()
        return np.array_equal(keys, back)
    here, there = np.lexsort((w, keys)), np.lexsort((w, back))
    # Sums of merged duplicates may differ by rounding between the two directions.
    return np.array_equal(keys[here], back[there]) and np.allclose(w[here], w[there], rtol=1e-5, atol=0)


def _with_reverses(keys: Keys, w: Weights, num_nodes: int) -> tuple[Keys, Weights]:
    """The union of the edges and their reverses: the i-th copy of an edge pairs with the i-th copy of its reverse."""
    back = _transposed(keys, num_nodes)
    both = np.concatenate([keys, back])
    first = _starts(keys)
    if w is None and first.all():
        both.sort()
        return both[_starts(both)], None
    copy = np.arange(len(keys)) - np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    copies = np.concatenate([copy, copy])
    order = np.lexsort((copies, both))
    both, copies = both[order], copies[order]
    kept = np.flatnonzero(_starts(both, copies))
    if w is not None:
        w = np.maximum.reduceat(np.concatenate([w, w])[order], kept) if len(kept) else w
    return both[kept], w
