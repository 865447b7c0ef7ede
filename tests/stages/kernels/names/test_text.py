"""Texts are found by their hashes, and compared: a dictionary of Python is the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.stages.kernels.names.text import find_texts, hash_texts
from millrace.storage.node_names import NodeNames

TEXTS = st.lists(st.text(max_size=4), unique=True, min_size=1, max_size=30)


def hashed(names: NodeNames, bits: int) -> np.ndarray:
    out = np.empty(len(names), np.uint64)
    hash_texts(names.text, names.starts, out)
    return out & np.uint64((1 << bits) - 1 << 64 - bits)


@pytest.mark.parametrize("bits", [1, 3, 40])
@given(TEXTS, st.lists(st.text(max_size=4), max_size=30))
def test_known_and_unknown_texts(bits, known, others):
    mask = np.uint64((1 << max(1, (len(known) - 1).bit_length())) - 1)
    names, wanted = NodeNames.from_values(known), NodeNames.from_values([*known[::2], *others])
    index = np.sort((hashed(names, bits) & ~mask) | np.arange(len(known), dtype=np.uint64))
    hashes, out = hashed(wanted, bits), np.empty(len(wanted), np.int64)
    at = np.searchsorted(index, hashes & ~mask)
    find_texts(index, at, mask, names.text, names.starts, wanted.text, wanted.starts, hashes, out)
    number = {name: i for i, name in enumerate(known)}
    assert out.tolist() == [number.get(name, -1) for name in [*known[::2], *others]]


def test_hashes_differ_in_their_upper_bits():
    names = NodeNames.from_values([f"node-{i}" for i in range(2000)])
    assert len(np.unique(hashed(names, 40))) == 2000
