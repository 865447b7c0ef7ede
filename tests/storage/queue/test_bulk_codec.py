"""Packed rows: exact both ways, views where they can be, and nothing wrong gets through."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.storage.errors import StoreError
from millrace.storage.minibatch import Bulk
from millrace.storage.queue import bulk_codec as codec
from millrace.storage.queue.bulk_codec import HEADER_WORDS, pack_bulk, packed_bytes, packed_words, unpack_row
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.messages import make_bulk, make_minibatch, minibatches


def bulk_of(*found):
    return Bulk(found[0].epoch, 0, tuple(replace(m, index=i) for i, m in enumerate(found)))


@given(st.lists(minibatches(epoch=2), min_size=1, max_size=3))
def test_round_trip(found):
    bulk = bulk_of(*found)
    rows = pack_bulk(bulk)
    assert rows.dtype == np.int32
    assert rows.shape == (len(found), max(map(packed_words, found)))
    assert packed_bytes(bulk) == 4 * sum(map(packed_words, found))
    for row, m in zip(rows, bulk.minibatches):
        again = unpack_row(row).check()
        assert (again.epoch, again.index, again.nested) == (m.epoch, m.index, m.nested)
        assert minibatch_digest(again) == minibatch_digest(m)
        assert again.nodes.dtype == m.nodes.dtype
        for a, b in zip(again.blocks, m.blocks):
            assert (a.weight is None, a.edge_id is None) == (b.weight is None, b.edge_id is None)


@given(minibatches(), st.integers(0, 9))
def test_arrays_are_aligned_views_and_may_be_read_only(m, padding):
    rows = np.pad(pack_bulk(bulk_of(m, m)), ((0, 0), (0, 2 * padding)))
    rows.flags.writeable = False
    for row in rows:
        for b in unpack_row(row).blocks:
            for a in (b.src, b.indptr, b.indices, b.weight, b.edge_id):
                assert a is None or not a.size or (np.shares_memory(a, rows) and a.flags.aligned)


def test_nested_minibatches_store_their_edges_once():
    rng = np.random.default_rng(0)
    flat, nested = (make_minibatch(rng, (50, 50, 50), nested=n, max_degree=9) for n in (False, True))
    assert packed_words(nested) < 0.7 * packed_words(flat)


def test_wide_row_pointers_are_stored_narrow():
    m = make_minibatch(np.random.default_rng(0), (2, 5))
    wide = replace(m, blocks=tuple(replace(b, indptr=b.indptr.astype(np.int64)) for b in m.blocks))
    (again,) = map(unpack_row, pack_bulk(bulk_of(wide)))
    assert again.blocks[0].indptr.dtype == np.int32
    assert minibatch_digest(again) == minibatch_digest(m)


@pytest.mark.parametrize("extra", ["weight", "edge_id"])
def test_extras_on_some_blocks_only_are_our_mistake(extra):
    m = make_minibatch(np.random.default_rng(0), (2, 5, 9), nested=False)
    with pytest.raises(AssertionError, match="all blocks"):
        pack_bulk(bulk_of(replace(m, blocks=(replace(m.blocks[0], **{extra: None}), *m.blocks[1:]))))


@given(st.data())
def test_a_changed_word_is_refused_or_is_content(data):
    """Structure words are checked; ids, weights and positions that stay in range are Zarr's checksum's to see."""
    m = data.draw(minibatches())
    row = pack_bulk(bulk_of(m))[0]
    at = data.draw(st.integers(0, len(row) - 1))
    row[at] = data.draw(st.sampled_from([-1, 0, 1, 2, 7, 99, 2**31 - 1, -(2**31)]) | st.integers(-(2**31), 2**31 - 1))
    try:
        again = unpack_row(row)
    except StoreError:
        return
    for a, b in zip(again.blocks, again.blocks[1:]):
        assert a.num_dst == b.num_src
    for b in again.blocks:
        assert b.indptr[0] == 0
        assert b.indptr[-1] == b.num_edges
        assert (np.diff(b.indptr) >= 0).all()
        assert not b.num_edges or (b.indices.min() >= 0 and b.indices.max() < b.num_src)


ROW = pack_bulk(make_bulk(0, 0, 1))[0]
FLAT = pack_bulk(bulk_of(make_minibatch(np.random.default_rng(3), (2, 4, 9), nested=False)))[0]
FIRST_BLOCK = HEADER_WORDS
"""Its num_dst; num_src and num_edges follow."""


@pytest.mark.parametrize("row", [ROW, FLAT])
@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 0, "magic number 0x0 seen"),
        (1, 2, "version 2; this Millrace reads version 1"),
        (2, -1, "-1 words used"),
        (2, 10**6, "1000000 words used of"),
        (2, 12, "a section ends at word"),
        (3, -1, "epoch -1"),
        (4, -1, "index -1"),
        (6, 0, "0 layers"),
        (6, 10**9, "a section ends at word"),
        (7, -1, "-1 nodes"),
        (7, 3, "do not chain"),
        (FIRST_BLOCK, -1, "block sizes"),
        (FIRST_BLOCK, 10**6, "block sizes"),
        (FIRST_BLOCK, 1, "do not chain"),
        (FIRST_BLOCK + 2, -5, "block sizes"),
        (FIRST_BLOCK + 2, 2**31 - 1, "a section ends at word"),
        (FIRST_BLOCK + 2, 0, "do not rise|sections end"),
    ],
)
def test_bad_counts_are_refused(row, at, value, message):
    bad = row.copy()
    bad[at] = value
    with pytest.raises(StoreError, match=f"^here.*({message})"):
        unpack_row(bad, "here")


def sections(row):
    """First bytes of indptr and indices of the outermost block."""
    layers, nodes = int(row[6]), int(row[7])
    indptr = codec._even(HEADER_WORDS + 3 * layers) + 2 * nodes
    return indptr, indptr + codec._even(int(row[FIRST_BLOCK]) + 1)


@pytest.mark.parametrize("row", [ROW, FLAT])
def test_bad_edges_are_refused(row):
    indptr, indices = sections(row)
    for at, value, message in [
        (indptr, 1, "row pointers"),
        (indptr + 1, 10**6, "row pointers"),
        (indptr + 1, -1, "row pointers"),
        (indices, -1, "source in block 0 is out of range"),
        (indices, int(row[7]), "source in block 0 is out of range"),
    ]:
        bad = row.copy()
        bad[at] = value
        with pytest.raises(StoreError, match=message):
            unpack_row(bad)


def test_a_nested_block_must_end_with_a_row():
    bad = ROW.copy()
    bad[FIRST_BLOCK + 5] += 1
    with pytest.raises(StoreError, match=r"block 1 has \d+ edges, its rows have"):
        unpack_row(bad)


def test_words_beyond_the_sections_are_refused():
    bad = np.append(ROW, np.zeros(4, np.int32))
    unpack_row(bad)
    bad[2] += 2
    with pytest.raises(StoreError, match=f"sections end at word {len(ROW)}, the header says {len(ROW) + 2}"):
        unpack_row(bad)


def test_what_is_no_row_is_refused():
    for bad in (ROW[:4], ROW[None], ROW.astype(np.int64), ROW[:0]):
        with pytest.raises(StoreError):
            unpack_row(bad)
    with pytest.raises(StoreError, match="magic number 0x0"):
        unpack_row(np.zeros(100, np.int32))


@pytest.mark.parametrize("words", range(2, 40, 4))
def test_a_short_row_is_refused(words):
    with pytest.raises(StoreError):
        unpack_row(ROW[:-words])
