"""Targets of minibatches of pairs; `tests/stages/fetch/test_fetch.py` trains on them."""

from dataclasses import replace

import pytest

from millrace.stages.links.train_pairs import Negatives
from millrace.storage.errors import StoreError
from millrace.tests.stages.fetch.test_fetch import placement_of, work_of


def test_minibatches_of_other_pairs_are_refused():
    placement = placement_of(False)
    _, fetcher, work = work_of(placement, Negatives(), None)
    assert fetcher.fetch(work[0]).links.pairs.shape[1:] == (2, 2)
    with pytest.raises(StoreError, match="has other ends than its pairs"):
        fetcher.fetch(replace(work[0], index=1))
