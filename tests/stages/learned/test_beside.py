"""Learnt rows beside a dataset's features, and in their place."""

import numpy as np
import pytest
import torch

from millrace.stages.learned.beside import WithLearned
from millrace.storage.features import ArrayFeatures, FeatureStore
from millrace.storage.typed.features import TypedFeatures

GIVEN = np.arange(10, dtype=np.float32).reshape(5, 2)
ROWS = np.arange(15, dtype=np.float64).reshape(5, 3) / 7
IDS = np.array([3, 0, 3])


@pytest.mark.parametrize("given", [None, ArrayFeatures(GIVEN)])
@pytest.mark.parametrize("into", [False, True])
def test_rows_come_after_the_features(given, into):
    store = WithLearned(given, 5, 3, np.float64, ArrayFeatures(ROWS))
    assert isinstance(store, FeatureStore)
    wanted = ROWS[IDS] if given is None else np.concatenate([GIVEN[IDS], ROWS[IDS]], 1)
    assert (store.num_rows, store.num_features, store.dtype) == (5, wanted.shape[1], np.dtype(np.float64))
    out = np.empty_like(wanted) if into else None
    found = store.gather(IDS, out)
    assert np.array_equal(found, wanted) and (out is None or found is out)


def test_widths_are_known_before_there_are_rows():
    store = WithLearned(ArrayFeatures(GIVEN), 5, 3, np.float32, None)
    assert store.num_features == 5
    with pytest.raises(AssertionError, match="no learnt rows yet"):
        store.gather(IDS)


def test_ids_out_of_range_are_refused():
    store = WithLearned(None, 5, 3, np.float64, ArrayFeatures(ROWS))
    with pytest.raises(IndexError):
        store.gather(np.array([5]))


def test_columns_that_a_node_type_reads_come_first():
    """A type with 1 of 3 columns reads 4: its learnt ones, then its own."""
    own = TypedFeatures((ArrayFeatures(GIVEN[:2, :1].copy()), ArrayFeatures(GIVEN[2:])), (0, 2, 5))
    store = WithLearned(own, 5, 3, np.float64, ArrayFeatures(ROWS), typed=True)
    found = store.gather(np.array([1, 3]))
    assert np.array_equal(found[0, :4], [*ROWS[1], GIVEN[1, 0]])
    assert np.array_equal(found[1], [*ROWS[3], *GIVEN[3]])
    rows, learned = torch.from_numpy(own.gather(np.array([1, 3]))), torch.from_numpy(ROWS[[1, 3]])
    assert np.array_equal(store.beside(rows, learned).numpy(), found)
