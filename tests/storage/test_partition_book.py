"""Partition books: the contract for ranges and tables, and what `check` and `open_book` refuse."""

import random

import numpy as np
import pytest

from millrace.storage.errors import InputError, StoreError
from millrace.storage.partition_book import KIND, RangeBook, TableBook, open_book
from millrace.storage.store import write_store
from tests.contracts.partition_book import PartitionBookTests


class TestRangeBook(PartitionBookTests):
    def make(self, sizes, seed):
        return RangeBook(np.cumsum([0, *sizes])), [p for p, n in enumerate(sizes) for _ in range(n)]


class TestTableBook(PartitionBookTests):
    def make(self, sizes, seed):
        owners = [p for p, n in enumerate(sizes) for _ in range(n)]
        random.Random(seed).shuffle(owners)
        return TableBook(np.array(owners, np.int16 if seed % 2 else np.int32), len(sizes)), owners


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
        (TableBook(np.array([-1, 0], np.int16), 2), r"lies in \[-1, 0\]"),
    ],
)
def test_check_refuses(book, message):
    with pytest.raises(InputError, match=message):
        book.check()


def test_an_unknown_form_is_refused(tmp_path):
    write_store(tmp_path / "b", KIND, fingerprint={}, meta={"form": "hash", "num_parts": 2}, arrays={"book": np.zeros(2, np.int32)})
    with pytest.raises(StoreError, match="form 'hash'; expected 'range' or 'table'"):
        open_book(tmp_path / "b")


def test_the_width_of_a_table_does_not_change_its_fingerprint():
    owners = [0, 1, 1]
    assert TableBook(np.array(owners, np.int16), 2).fingerprint == TableBook(np.array(owners, np.int32), 2).fingerprint
