"""Compiled look-up of texts in a sorted index of their hashes, which lies in a file.

An entry of the index is one uint64: the upper bits of a text's hash, and below them its number. A look-up compares the
texts themselves, so that equal hashes do no harm.
"""

import numpy as np

from ..runtime.jit import njit


@njit(nogil=True, cache=True)
def hash_texts(text, starts, out):
    """Hash each text: FNV-1a, then the finaliser of SplitMix64.

    Args:
        text: uint8 [N], all texts end to end.
        starts: int64 [n+1]; text i is ``text[starts[i]:starts[i + 1]]``.
        out: uint64 [n]; written.
    """
    for i in range(len(starts) - 1):
        h = np.uint64(14695981039346656037)
        for j in range(starts[i], starts[i + 1]):
            h = (h ^ np.uint64(text[j])) * np.uint64(1099511628211)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = h ^ (h >> np.uint64(31))


@njit(nogil=True, cache=True)
def find_texts(index, at, mask, known, known_starts, text, starts, hashes, out):
    """Number of each text, -1 where it is not known.

    Args:
        index: uint64 [V], ascending entries.
        at: int64 [n], where the entries of text i's hash begin, if there are any.
        mask: uint64, the bits of an entry that are the number.
        known: uint8, all known texts end to end.
        known_starts: int64 [V+1].
        text: uint8, the texts that are looked up.
        starts: int64 [n+1].
        hashes: uint64 [n], of these.
        out: int64 [n]; written.
    """
    for i in range(len(starts) - 1):
        out[i] = -1
        length = starts[i + 1] - starts[i]
        j = at[i]
        while j < len(index) and (index[j] | mask) == (hashes[i] | mask):
            number = np.int64(index[j] & mask)
            first = known_starts[number]
            same = known_starts[number + 1] - first == length
            if same:
                for b in range(length):
                    if known[first + b] != text[starts[i] + b]:
                        same = False
                        break
            if same:
                out[i] = number
                break
            j += 1
