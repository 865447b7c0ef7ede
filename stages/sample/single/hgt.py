"""Budget sampling in graphs with several types (Hu, Dong, Wang, Sun: Heterogeneous Graph Transformer, WWW 2020)."""

from dataclasses import dataclass

import numpy as np

from ....storage.array_kinds import IdArray, WordArray
from ...kernels.row_block.relation_rows import RelationRows
from ...kernels.row_block.segments import draw_segments
from ...kernels.sampling.exponential_race import keys as race
from ...random import NODE, branches, draw, mix, node_words

MOST_NEIGHBORS = 50
"""In-edges of a node in a relation that count: of more, these many, chosen uniformly, as in torch-sparse."""
Keys = WordArray


@dataclass(frozen=True, eq=False)
class BudgetSample:
    """Nodes, and the edges among them."""

    nodes: IdArray
    """int64 [n]: the seeds, then the nodes of each round, ascending."""
    row: IdArray
    """int64 [e], positions of the edges' sources in `nodes`."""
    col: IdArray
    """int64 [e], positions of their destinations."""
    positions: IdArray
    """int64 [e], positions of the edges in the edge arrays of the graph."""


def sample_by_budget(relations: RelationRows, seeds: IdArray, num_samples: IdArray, keys: Keys) -> BudgetSample:
    """Sample the same number of nodes of each type in each round (Algorithms 1 and 2 of the paper).

    A node that joins the sample gives each of its in-neighbours 1 / d of budget, for each of its relations, in which it
    has d in-edges; multi-edges count each. A round then draws ``num_samples[round, t]`` nodes of each type t without
    replacement, one after the other in proportion to the square of their budgets, or takes all that have one; only
    after all types have drawn, the new nodes give theirs. Edges are all those among the sampled nodes. At most
    `MOST_NEIGHBORS` in-edges of a node and relation count, in a budget as among the edges (drawn apart for both).
    A node that is a seed twice gives twice; edges out of it leave its first position.

    Args:
        relations: rows of a graph.
        seeds: int64 [B], node ids.
        num_samples: int64 [rounds, T].
        keys: uint64 [2 * rounds + 1], streams of the budgets, of the rounds' draws, and of the edges.
    """
    types, rounds = relations.types, len(num_samples)
    nodes, known = seeds, np.unique(seeds)
    last, turn = seeds, earlier_occurrences(seeds)
    found = [seeds]
    candidates, budget = np.empty(0, np.int64), np.empty(0)
    for i in range(rounds):
        _, positions, kept = _in_edges(relations, last, turn, keys[i])
        sources = relations.graph.indices[positions].astype(np.int64)
        candidates, where = np.unique(np.concatenate([candidates, sources]), return_inverse=True)
        budget = np.bincount(where, np.concatenate([budget, 1.0 / kept]), minlength=len(candidates))
        outside = ~np.isin(candidates, known)
        candidates, budget = candidates[outside], budget[outside]
        drawn = race(draw(node_words(int(keys[rounds + i]), candidates), 0), budget * budget)
        kinds = types.types_of(candidates)
        chosen = np.zeros(len(candidates), np.bool_)
        for t, most in enumerate(num_samples[i]):
            at = np.flatnonzero(kinds == t)
            chosen[at[np.argsort(drawn[at], kind="stable")[:most]]] = True
        last, turn = candidates[chosen], np.zeros(int(chosen.sum()), np.int64)
        candidates, budget = candidates[~chosen], budget[~chosen]
        known = np.union1d(known, last)
        found.append(last)
    nodes = np.concatenate(found)
    turn = np.concatenate([earlier_occurrences(seeds), np.zeros(len(nodes) - len(seeds), np.int64)])
    column, positions, _ = _in_edges(relations, nodes, turn, keys[-1])
    ascending, place = np.unique(nodes, return_index=True)
    sources = relations.graph.indices[positions]
    at = np.minimum(np.searchsorted(ascending, sources), max(len(ascending) - 1, 0))
    inside = ascending[at] == sources if len(ascending) else np.zeros(0, np.bool_)
    return BudgetSample(nodes, place[at[inside]], column[inside], positions[inside])


def _in_edges(
    relations: RelationRows, nodes: IdArray, turn: IdArray, key: np.uint64
) -> tuple[IdArray, IdArray, IdArray]:
    """In-edges that count: positions of their destinations in `nodes`, their own, and how many the row has."""
    streams = np.where(turn == 0, key, branches(int(key), turn))
    columns, positions, counts = ([np.empty(0, np.int64)] for _ in range(3))
    indptr = relations.graph.indptr
    for _, at, rows in relations.parts(nodes):
        with np.errstate(over="ignore"):
            words = mix(streams[at] + rows.astype(np.uint64) * NODE)
        kept, edges = draw_segments(indptr[rows], indptr[rows + 1], words, MOST_NEIGHBORS, replace=False)
        columns.append(np.repeat(at, kept))
        positions.append(edges)
        counts.append(np.repeat(kept, kept))
    return np.concatenate(columns), np.concatenate(positions), np.concatenate(counts)


def earlier_occurrences(seeds: IdArray) -> IdArray:
    """Number of earlier occurrences of each seed."""
    order = np.argsort(seeds, kind="stable")
    _, begin, times = np.unique(seeds[order], return_index=True, return_counts=True)
    turn = np.empty(len(seeds), np.int64)
    turn[order] = np.arange(len(seeds)) - np.repeat(begin, times)
    return turn
