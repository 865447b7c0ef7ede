"""Layer-wise sampling in one block of rows: terms hit by darts, edges among known nodes, partial sums of P."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.array_kinds import Float32Array, IdArray, Int32Array, IntArray
from ....storage.graph import Graph
from ..runtime.jit import JIT, njit
from ..sampling.cpu.layerwise import add_up, weigh
from ..sampling.cpu.terms import Rates, column, integer, square, throw
from .numbering import _slot, _table

__all__ = ["Rates", "add_up", "extract", "partial_sums", "resolve", "summed", "throw", "weigh"]


Common = tuple[Any, Any, Any, Any, Any, Any]


@njit(**JIT)
def _resolve(indptr, sources, weight, degree, scale, one, own, rows, rests, out):
    for i in range(len(rows)):
        out[i] = column(indptr, sources, weight, degree, scale, one, rows[i], rests[i], own[i])


def resolve(common: Common, first: int | IdArray, rows: IdArray, rests: IdArray, dtype: npt.DTypeLike) -> IntArray:
    """Column of the term that each dart hits in its row; `common` as in `cpu.terms.Rates`, of these rows, and `first`
    as in `partial_sums`."""
    out = np.empty(len(rows), dtype)
    _resolve(*common, _names(first, rows), rows, rests, out)
    return out


def _names(first: int | IdArray, rows: IdArray) -> IdArray:
    return rows + first if isinstance(first, int) else first[rows]


@njit(**JIT)
def _extract(indptr, sources, weight, table, shift, rows, counts, out, values, places):
    e = 0
    for i in range(len(rows)):
        v, begin = rows[i], e
        for edge in range(indptr[v], indptr[v + 1]):
            u = np.int64(sources[edge])
            at = _slot(table, u, shift)
            if table[at] == u:
                out[e] = table[at + 1]
                if weight is not None:
                    values[e] = weight[edge]
                if places is not None:
                    places[e] = edge
                e += 1
        counts[i] = e - begin
    return e


def extract(
    graph: Graph, nodes: IntArray, rows: IdArray, keep_positions: bool = False
) -> tuple[Int32Array, Int32Array, Float32Array, IdArray]:
    """In-edges of `rows` whose source is among `nodes`.

    Args:
        graph: some rows, with global sources.
        nodes: distinct global ids.
        rows: int64, rows of the graph.
        keep_positions: also return the positions of the edges.

    Returns: int32 [rows], edges of each; int32 [e], places in `nodes`; float32 [e], weights, or nothing for an
        unweighted graph; int64 [e], positions in the edge arrays of `graph`, or nothing.
    """
    table, shift = _table(nodes, len(nodes))
    room = int(graph.in_degree[rows].sum())
    counts, out = np.empty(len(rows), np.int32), np.empty(room, np.int32)
    values = np.empty(0 if graph.edge_weight is None else room, np.float32)
    places = np.empty(room, np.int64) if keep_positions else None
    e = _extract(graph.indptr, graph.indices, graph.edge_weight, table, shift, rows, counts, out, values, places)
    return counts, out[:e], values[:e], np.empty(0, np.int64) if places is None else places[:e]


@njit(**JIT)
def _terms(indptr, sources, weight, degree, scale, one, names, rows, columns, mass):
    own = np.int64(1) if weight is None else integer(1.0, scale)
    n = 0
    for i in range(len(rows)):
        v = rows[i]
        lo, hi = indptr[v], indptr[v + 1]
        whole = hi - lo + 1 if weight is None else degree[v]
        for at in range(lo, hi + 1):
            part = own if at == hi or weight is None else integer(weight[at], scale)
            w = square(part, whole, one)
            if w != 0:
                columns[n] = names[i] if at == hi else np.int64(sources[at])
                mass[n] = w
                n += 1
    return n


def partial_sums(common: Common, first: int | IdArray, rows: IdArray) -> tuple[IdArray, IdArray]:
    """Contribution of these rows of the block to P = Q (W o W): distinct columns, ascending, and their sums.

    Args:
        common: as in `cpu.terms.Rates`, of the block.
        first: global id of row 0, if rows are consecutive; otherwise int64 [N], that of each.
        rows: int64, local ids.
    """
    indptr = common[0]
    room = int((indptr[rows + 1] - indptr[rows] + 1).sum())
    columns, mass = np.empty(room, np.int64), np.empty(room, np.int64)
    n = _terms(*common, _names(first, rows), rows, columns, mass)
    return summed(columns[:n], mass[:n])


def summed(columns: IdArray, mass: IdArray) -> tuple[IdArray, IdArray]:
    """Distinct columns, ascending, and the sum of each one's masses."""
    found, place = np.unique(columns, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, place, mass)
    return found.astype(np.int64), total
