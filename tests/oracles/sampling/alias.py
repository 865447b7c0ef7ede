"""Alias tables in plain Python, the definition of `cpu.alias`; and draws from them."""

import numpy as np
import numpy.typing as npt

from millrace.stages.kernels.sampling import exponential_race
from millrace.stages.kernels.sampling.alias import RACE, SLOT_BITS, AliasTable, tries
from millrace.stages.random import draw, draw_word
from millrace.storage.graph import Graph

FULL = 1 << SLOT_BITS
_LOW = FULL - 1


def alias_table(graph: Graph) -> AliasTable:
    """Alias tables of a weighted graph."""
    assert graph.edge_weight is not None
    weights = [graph.edge_weight[a:b] for a, b in zip(graph.indptr, graph.indptr[1:])]
    return AliasTable(
        np.array([slot for row in weights for slot in _row(masses(row))], np.uint64),
        graph.edge_weight,
        np.array([np.count_nonzero(row) for row in weights], np.int32),
    )


def masses(weights: npt.NDArray[np.floating]) -> list[int]:
    """Masses of a row's d edges, which are d 2**32 together: rounded to nearest, at least 1 if the weight is positive,
    and the first of the largest takes what rounding leaves."""
    total = 0.0
    for w in weights:
        total += float(w)
    if not total:
        return [0] * len(weights)
    scale = len(weights) * float(FULL) / total
    found = [max(round(float(w) * scale), 1) if w > 0 else 0 for w in weights]
    found[found.index(max(found))] += len(weights) * FULL - sum(found)
    return found


def _row(mass: list[int]) -> list[int]:
    """Slots of one row. Edges of less than a slot are filled up in order, each from the first edge that has more than
    a slot; one that falls below a slot thereby is the next to be filled up."""
    if not any(mass):
        return [0] * len(mass)
    left = list(mass)
    slots = [i << SLOT_BITS | _LOW for i in range(len(mass))]
    giver = 0
    for first in range(len(mass)):
        short = first
        while left[short] < FULL:
            while left[giver] <= FULL:
                giver += 1
            slots[short] = giver << SLOT_BITS | left[short]
            left[giver] -= FULL - left[short]
            left[short] = FULL
            short = giver
    return slots


def pick(slots: npt.NDArray[np.uint64], word: npt.NDArray[np.uint64], i: int) -> int:
    """The i-th draw of a row: a position in it."""
    t = int(draw_word(word, i)[0]) * len(slots) >> 32
    slot, rest = t >> SLOT_BITS, t & _LOW
    return slot if rest < int(slots[slot]) & _LOW else int(slots[slot]) >> SLOT_BITS


def successive(
    slots: npt.NDArray[np.uint64], weight: npt.NDArray[np.float32], word: npt.NDArray[np.uint64], s: int
) -> list[int]:
    """s distinct positions in a row, in the order of the draws; all of positive weight, in the row's order, if they
    are no more."""
    positive = np.flatnonzero(weight)
    if not s or len(positive) <= s:
        return positive[:s].tolist()
    found: list[int] = []
    for i in range(tries(s)):
        if (at := pick(slots, word, i)) not in found:
            found.append(at)
            if len(found) == s:
                return found
    left = weight.copy()
    left[found] = 0
    bits = np.array([int(draw(word, RACE + i)[0]) for i in range(len(slots))], np.uint64)
    order = np.argsort(exponential_race.keys(bits, left), kind="stable")
    return [*found, *order[: s - len(found)].tolist()]
