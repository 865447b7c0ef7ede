"""Shared parts of the layer-wise kernels: exact probabilities, the steps that need no speed, debiasing, and results.

W = D^-1 (A + I) is the row-normalised adjacency with self loops, taken edge by edge (parallel edges are entries of
their own, and so is the added loop beside a loop of the graph). Entries of W o W are integers with `fraction_bits`
fractional bits, so that sums of them do not depend on any order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np

from ....storage.array_kinds import Float32Array, Float64Array, FloatArray, IdArray, Int32Array, IntArray, WordArray
from ....storage.minibatch import Block
from ...random import GOLDEN, NODE, draw, mix, node_words
from . import exponential_race

DEBIAS = ("ratio", "bottom_k", "with_replacement", "none")
"""Corrections for columns that were not sampled; see `LadiesSampler`."""
_DARTS, _CLOCK = -1, -2
"""Streams of darts and of their times: streams of nodes that no graph has."""


@dataclass(frozen=True, eq=False)
class LayerSample:
    """One minibatch of layer-wise sampling: L blocks, each between all nodes known before a hop and all known after
    it."""

    nodes: IntArray
    """[n] global ids: the seeds in their order, then each hop's new nodes ascending."""
    node_ends: tuple[int, ...]
    """L+1 numbers: nodes[:node_ends[h]] are known after h hops."""
    indptr: tuple[Int32Array, ...]
    """L vectors, nearest the seeds first: int32 [node_ends[h] + 1]."""
    indices: tuple[Int32Array, ...]
    """L vectors: int32 [e_h], positions in `nodes`, rows in the graph's own order."""
    weight: tuple[Float32Array, ...] | None
    """L vectors float32 [e_h], see `Block.weight`, or None."""
    positions: tuple[IdArray, ...] | None = None
    """L vectors int64 [e_h], positions in the graph's edge arrays, if requested."""

    def blocks(self) -> tuple[Block, ...]:
        """The blocks, outermost first."""
        return tuple(
            Block(
                self.node_ends[h],
                self.nodes[: self.node_ends[h + 1]],
                self.indptr[h],
                self.indices[h],
                None if self.weight is None else self.weight[h],
                None if self.positions is None else self.positions[h],
            )
            for h in reversed(range(len(self.indptr)))
        )

    @classmethod
    def from_blocks(
        cls, nodes: IntArray, node_ends: Sequence[int], blocks: Iterable[Sequence[Any]], weighted: bool, positions: bool
    ) -> "LayerSample":
        """Of the lists, indices, weights and positions of each block; weights and positions if they are asked for."""
        indptr, indices, weight, at = zip(*blocks)
        return cls(nodes, tuple(node_ends), indptr, indices, weight if weighted else None, at if positions else None)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Result of SAMPLE for one minibatch and hop."""

    nodes: IdArray
    """[m] distinct global ids."""
    counts: IdArray | None
    """[m] number of times each was drawn (with replacement only)."""
    clock: float
    """Time at which the first node outside the sample would have come, in units in which darts come at rate 1; infinite
    if none is left."""


def fraction_bits(num_nodes: int) -> int:
    """Fractional bits of W o W: as many as let any sum over V rows fit an int64, at most 40."""
    return min(40, 62 - num_nodes.bit_length())


def weight_scale(heaviest: float) -> float:
    """Factor that turns edge weights up to `heaviest`, and the self loop's weight 1, into integers of at most 26
    bits."""
    return (1 << exponential_race.WEIGHT_BITS) / max(heaviest, 1.0)


def integers(weight: FloatArray, scale: float) -> IdArray:
    """Edge weights in units of 1/scale; a positive weight is at least 1."""
    w = weight.astype(np.float64)
    return np.where(w > 0, np.maximum(np.rint(w * scale).astype(np.int64), 1), 0)


def squares(part: IdArray, whole: IdArray, bits: int) -> IdArray:
    """(part / whole)^2 in fixed point; at least 1 if `part` is positive. IEEE operations only."""
    t = part / whole
    return np.where(part > 0, np.maximum(np.rint(t * t * 2.0**bits).astype(np.int64), 1), 0)


def dart_word(key: int) -> np.uint64:
    """Dart j of the stream `key` is the 64-bit word ``mix(dart_word + (j + 1) * GOLDEN)``."""
    return node_words(key, np.array([_DARTS]))[0]


def dart_words(keys: WordArray) -> WordArray:
    """`dart_word` of each key, in an array of the same shape."""
    with np.errstate(over="ignore"):
        return mix(keys + np.array([_DARTS]).astype(np.uint64) * NODE)


def clock(key: int, darts: int) -> float:
    """Time of the last of so many darts: a sum of exponential times, exact except for the last rounding."""
    word = node_words(key, np.array([_CLOCK]))
    with np.errstate(over="ignore"):
        bits = mix(word + np.arange(1, darts + 1, dtype=np.uint64) * GOLDEN) >> np.uint64(32)
    return int(exponential_race.exponentials(bits).sum()) * log(2) / 2**exponential_race.FRACTION_BITS


def budget(s: int) -> int:
    """Number of darts that are thrown before a race decides the rest: too few distinct hits by then mean few
    candidates, or very uneven ones."""
    return 4 * (s + 1)


def with_replacement(darts: IntArray) -> Drawn:
    """The draw in which darts may repeat."""
    nodes, counts = np.unique(darts.astype(np.int64), return_counts=True)
    return Drawn(nodes, counts.astype(np.int64), inf)


def complete(key: int, s: int, found: IdArray, darts: int, total: int, candidates: IdArray, mass: IdArray) -> Drawn:
    """Finish a draw whose darts ran out: the remaining candidates race with exponential times, which has the same
    distribution (they are memoryless).

    Args:
        key: stream of the minibatch and hop.
        s: nodes wanted.
        found: distinct nodes that were hit, in order; at most s.
        darts: number of darts thrown.
        total: sum of P over all candidates.
        candidates: int64, distinct, every node with P > 0.
        mass: int64, P of each.
    """
    left = ~np.isin(candidates, found)
    rest, weights = candidates[left], mass[left]
    keys = exponential_race.keys(draw(node_words(key, rest), 0), weights)
    order = np.lexsort((rest, keys))
    need = s - len(found)
    late = inf
    if len(rest) > need:
        late = clock(key, darts) + float(keys[order[need]]) * total * log(2) / 2**exponential_race.FRACTION_BITS
    return Drawn(np.concatenate([found, rest[order[:need]]]), None, late)


def factors(debias: str, p: Float64Array, src: IntArray, num_dst: int, drawn: Drawn) -> Float64Array:
    """Factor of the edges from each source, float64 [S].

    A destination is always a source: except under "ratio" its factor is 1, and only the other columns are sampled.

    Args:
        debias: see `DEBIAS`.
        p: float64 [S], the normalised P of each source.
        src: [S] global ids.
        num_dst: leading sources that are destinations.
        drawn: the hop's sample.
    """
    if debias == "ratio":
        return 1 / p
    f = np.ones(len(src))
    p = p[num_dst:]
    if debias == "bottom_k":
        f[num_dst:] = -1 / np.expm1(-p * drawn.clock)
    elif debias == "with_replacement":
        assert drawn.counts is not None
        f[num_dst:] = drawn.counts[np.searchsorted(drawn.nodes, src[num_dst:])] / (drawn.counts.sum() * p)
    return f


def same_scale(debias: str) -> bool:
    """True if a row's coefficients are scaled to add up to the sum of all its edges' weights."""
    return debias in ("ratio", "none")
