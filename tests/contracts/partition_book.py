"""Contract of every partition book."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.storage.errors import StoreError
from millrace.storage.partition.book import PartitionBook, open_book, write_book

SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=9)
"""Nodes of each partition: empty ones at the ends and in between, more partitions than nodes, no nodes at all."""


class PartitionBookTests:
    """Subclass as ``TestX`` and define how to make a book of given sizes."""

    def make(self, sizes: list[int], seed: int) -> tuple[PartitionBook, list[int]]:
        """A book whose partitions have `sizes`, or as many and as many nodes, and the list of each node's owner as the
        oracle."""
        raise AssertionError("a subclass makes the book")

    # The contract is one test for several classes on purpose.
    @settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.differing_executors])
    @given(SIZES, st.integers(0, 1000))
    def test_agrees_with_the_list_of_owners(self, sizes, seed):
        book, owners = self.make(sizes, seed)
        sizes = [owners.count(p) for p in range(len(sizes))]
        assert isinstance(book, PartitionBook)
        assert book.check() is book
        assert (book.num_parts, book.num_nodes) == (len(sizes), len(owners))
        assert book.sizes().tolist() == sizes
        ids = np.arange(len(owners))
        part, local = book.part(ids), book.local(ids)
        assert part.dtype == np.int32
        assert local.dtype == np.int64
        assert part.tolist() == owners
        assert local.tolist() == [owners[:v].count(owners[v]) for v in range(len(owners))]
        for p in range(len(sizes)):
            owned = book.owned(p)
            assert owned.dtype == np.int64
            assert owned.tolist() == [v for v, o in enumerate(owners) if o == p]
            assert np.array_equal(book.global_ids(p, np.arange(sizes[p])), owned)
        assert np.array_equal(book.global_ids(part, local), ids)

    def test_ids_repeat_in_any_order_and_width(self):
        book, owners = self.make([2, 0, 3], 7)
        for width in (np.int32, np.int64):
            ids = np.array([4, 0, 4, 2], width)
            assert book.part(ids).tolist() == [owners[v] for v in ids]
            assert np.array_equal(book.global_ids(book.part(ids), book.local(ids)), ids)

    @pytest.mark.parametrize("ids", [[-1], [5], [0, 9]])
    def test_refuses_unknown_nodes(self, ids):
        book, _ = self.make([2, 3], 0)
        for ask in (book.part, book.local):
            with pytest.raises(IndexError, match="has 5 nodes"):
                ask(np.array(ids))

    @pytest.mark.parametrize("part", [-1, 2])
    def test_refuses_unknown_partitions(self, part):
        book, _ = self.make([2, 3], 0)
        with pytest.raises(IndexError, match="has 2"):
            book.owned(part)

    def test_store_round_trip(self, tmp_path: Path):
        book, owners = self.make([0, 2, 0, 3, 0], 3)
        write_book(tmp_path / "book", book, fingerprint={"graph": "g"})
        again = open_book(tmp_path / "book", fingerprint={"graph": "g"})
        assert type(again) is type(book)
        assert (again.num_parts, again.part(np.arange(5)).tolist()) == (5, owners)
        assert again.fingerprint == book.fingerprint
        with pytest.raises(StoreError, match="graph"):
            open_book(tmp_path / "book", fingerprint={"graph": "other"})

    def test_fingerprint_tells_books_apart(self):
        prints = [self.make(sizes, 0)[0].fingerprint for sizes in ([2, 3], [3, 2], [2, 3, 0])]
        assert len(set(prints)) == 3
        assert self.make([2, 3], 0)[0].fingerprint == prints[0]
