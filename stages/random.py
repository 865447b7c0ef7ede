"""Counter-based random streams: every choice is a pure function of its coordinates, never of the process that makes it.

A stream's key folds its coordinates one after the other; draw i of node v in a stream is one more fold, by the mixing
function of `storage.partition.splitmix`. NumPy forms are the definition; `kernels/cpu` compiles the same arithmetic.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ..storage.array_kinds import IdArray
from ..storage.partition.splitmix import M1, M2, NODE, Words, mix, node_words

__all__ = [
    "GOLDEN",
    "M1",
    "M2",
    "NODE",
    "Purpose",
    "Words",
    "branches",
    "draw",
    "draw_word",
    "mix",
    "node_words",
    "permutation",
    "stream",
    "torch_seed",
]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1


class Purpose(IntEnum):
    """Purpose of a stream. Streams of different purposes are independent."""

    SAMPLE = 1
    SHUFFLE = 2
    DROPOUT = 3
    INIT = 4
    SPLIT = 5
    PARTITION = 6
    DATA = 7
    # 8 was used by an earlier version.
    DEAL = 9
    HALO = 10
    NEGATIVE = 11
    EVALUATE = 12


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * int(M1)) & _WORD
    z = ((z ^ (z >> 27)) * int(M2)) & _WORD
    return z ^ (z >> 31)


def stream(seed: int, purpose: Purpose, *coordinates: int) -> int:
    """64-bit key of the stream for these coordinates, e.g. ``stream(seed, Purpose.SAMPLE, epoch, minibatch, hop)``."""
    key = 0
    for value in (seed, int(purpose), *coordinates):
        key = _mix_int((key + ((value + 1) & _WORD) * int(GOLDEN)) & _WORD)
    return key


def branches(key: int, values: npt.ArrayLike) -> Words:
    """Keys of the streams that have one more coordinate than the stream `key`: one for each of `values`, each >= 0."""
    with np.errstate(over="ignore"):
        return mix(np.uint64(key) + (np.asarray(values).astype(np.uint64) + np.uint64(1)) * GOLDEN)


def draw_word(words: Words, i: int) -> Words:
    """64 uniform bits: the i-th draw (i >= 0) of each node's word."""
    with np.errstate(over="ignore"):
        return mix(words + np.uint64((i + 1) * int(GOLDEN) & _WORD))


def draw(words: Words, i: int) -> Words:
    """Upper 32 bits of `draw_word`, in uint64."""
    return draw_word(words, i) >> np.uint64(32)


def permutation(key: int, values: IdArray) -> IdArray:
    """`values` in the order of their words: a uniform permutation that depends only on the key and the *set* of
    values."""
    # Distinct nodes have distinct words (mixing is one to one), so neither the order given nor the stability of the
    # sort affects the result.
    return values[np.argsort(node_words(key, values))]


def torch_seed(key: int) -> int:
    """The key folded into the range that `torch.manual_seed` takes."""
    return key & 0x7FFF_FFFF_FFFF_FFFF
