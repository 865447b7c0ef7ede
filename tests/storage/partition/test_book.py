"""Partition books: the contract for ranges, tables and hashes, and what `check` and `open_book` refuse."""

import random
import zlib

import numpy as np
import pytest

from millrace.storage.errors import InputError, StoreError
from millrace.storage.partition.book import KIND, HashBook, RangeBook, TableBook, open_book
from millrace.storage.store.store import write_store
from millrace.tests.contracts.partition_book import PartitionBookTests


class TestRangeBook(PartitionBookTests):
    def make(self, sizes, seed):
        return RangeBook(np.cumsum([0, *sizes])), [p for p, n in enumerate(sizes) for _ in range(n)]


class TestTableBook(PartitionBookTests):
    def make(self, sizes, seed):
        owners = [p for p, n in enumerate(sizes) for _ in range(n)]
        random.Random(seed).shuffle(owners)
        return TableBook(np.array(owners, np.int16 if seed % 2 else np.int32), len(sizes)), owners


class TestHashBook(PartitionBookTests):
    block = 0

    def make(self, sizes, seed):
        key, parts = zlib.crc32(repr((sizes, seed)).encode()) << 31 | 5, len(sizes)
        word = 2**64 - 1

        def owner(v):
            z = (key + v * 0xD1342543DE82EF95) & word
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
            return (((z ^ (z >> 31)) >> 32) * parts) >> 32

        return HashBook(key, sum(sizes), parts, self.block), [owner(v) for v in range(sum(sizes))]


class TestHashBookOfManyBlocks(TestHashBook):
    block = 3


def test_a_hash_book_is_as_large_for_any_graph():
    few, many = HashBook(7, 10**6, 1000), HashBook(7, 10**12, 1000)
    ids = np.array([0, 17, 999_999])
    assert np.array_equal(few.part(ids), many.part(ids))
    assert not vars(many).keys() - {"key", "num_nodes", "num_parts", "block"}


@pytest.mark.parametrize(
    ("book", "message"),
    [
        (RangeBook(np.array([0, 2], np.int32)), "offsets is int32"),
        (RangeBook(np.array([0])), "with P >= 1"),
        (RangeBook(np.array([[0, 1]])), "offsets is int64"),
        (RangeBook(np.array([1, 2])), "start at 1"),
        (RangeBook(np.array([0, 3, 2])), "1 of them fall"),
        (TableBook(np.zeros(3, np.int64), 1), "part_of is int64"),
        (TableBook(np.zeros((1, 3), np.int32), 1), r"int16 or int32 \[V\]"),
        (TableBook(np.zeros(0, np.int32), 0), "0 partitions"),
        (TableBook(np.array([0, 2], np.int32), 2), r"lies in \[0, 2\]; expected \[0, 2\)"),
        (HashBook(1, 3, 0), "at least 1 part"),
        (HashBook(1, 3, 1 << 31), "at least 1 part"),
        (HashBook(-1, 3, 2), "a key of 64 bits"),
        (TableBook(np.array([-1, 0], np.int16), 2), r"lies in \[-1, 0\]"),
    ],
)
def test_check_refuses(book, message):
    with pytest.raises(InputError, match=message):
        book.check()


def test_an_unknown_form_is_refused(tmp_path):
    write_store(
        tmp_path / "b",
        KIND,
        fingerprint={},
        meta={"form": "ring", "num_parts": 2},
        arrays={"book": np.zeros(2, np.int32)},
    )
    with pytest.raises(StoreError, match="form 'ring'; expected 'range', 'table' or 'hash'"):
        open_book(tmp_path / "b")


def test_the_width_of_a_table_does_not_change_its_fingerprint():
    owners = [0, 1, 1]
    assert TableBook(np.array(owners, np.int16), 2).fingerprint == TableBook(np.array(owners, np.int32), 2).fingerprint
