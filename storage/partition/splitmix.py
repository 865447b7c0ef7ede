"""Random words: 64 pseudo-random bits for a key and a number, computed, so that any process can repeat them.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), a bijection of 64-bit words.
"""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
NODE = np.uint64(0xD1342543DE82EF95)
M1, M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(z: Words) -> Words:
    """SplitMix64's finaliser over uint64 arrays; overflow wraps silently."""
    z = (z ^ (z >> np.uint64(30))) * M1
    z = (z ^ (z >> np.uint64(27))) * M2
    return z ^ (z >> np.uint64(31))


def node_words(key: int, nodes: npt.ArrayLike) -> Words:
    """One word per node, uint64, of the stream `key`."""
    with np.errstate(over="ignore"):
        return mix(np.uint64(key) + np.asarray(nodes).astype(np.uint64) * NODE)
