"""The generated payments: which are frauds, and the best accuracy."""

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint


def test_who_knows_the_mules_has_the_best_accuracy():
    data = mr.open_dataset("payments:accounts=3000,flips=0.1,degree=8,noise=0")
    assert "more accurate than 0.900" in data.notes[0] and data.has_edge_labels and data.num_classes == 2
    # Without noise an account's features are those of its kind.
    x = data.features.gather(np.arange(3000))
    same = (x == x[0]).all(1)
    amount, (payer, payee) = data.pair_features[:, 0], data.pairs.T
    found = [((kind[payee] & (amount > 0)) == data.labels).mean() for kind in (same, ~same)]
    assert max(found) == pytest.approx(0.9, abs=0.01) and min(found) < 0.7
    mules = (same, ~same)[int(np.argmax(found))]
    assert mules.mean() == pytest.approx(0.4, abs=0.03)
    assert (mules[payer] == mules[payee]).mean() == pytest.approx(0.8 + 0.2 * 0.52, abs=0.02)
    assert (np.diff(data.pair_time) >= 0).all() and data.split_sizes == {"train": 14400, "val": 4800, "test": 4800}
    # The graph has the same edges, with their amounts and times.
    graph = data.graph
    edges = np.stack([graph.indices, np.repeat(np.arange(3000), graph.in_degree)], 1)
    rows = np.column_stack([edges, graph.edge_features.gather(np.arange(len(edges)))[:, 0], graph.edge_time])
    want = np.column_stack([data.pairs, amount, data.pair_time])
    assert np.array_equal(rows[np.lexsort(rows.T)], want[np.lexsort(want.T)])


def test_it_is_a_function_of_its_text():
    text = "payments:accounts=9,degree=3"
    assert dataset_fingerprint(mr.open_dataset(text)) == dataset_fingerprint(mr.open_dataset(text, name="other"))
    assert dataset_fingerprint(mr.open_dataset(text)) != dataset_fingerprint(mr.open_dataset(text + ",seed=1"))
    late = mr.open_dataset(text, split="time:0.5,0.2")
    assert late.pair_time[late.split.train].max() < late.pair_time[late.split.test].min()
    with pytest.raises(InputError, match="unknown key 'users'; payments knows accounts"):
        mr.open_dataset("payments:users=3")
    for mules in (0, 1):
        assert mr.open_dataset(f"payments:accounts=20,mules={mules},flips=0").labels.mean() == pytest.approx(
            mules / 2, abs=0.15
        )
