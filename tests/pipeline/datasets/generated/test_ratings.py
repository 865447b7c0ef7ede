"""The generated ratings: who rates what when, and the best AUC."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import millrace as mr
from millrace.pipeline.datasets.generated.ratings import Ratings
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint

SPEC = "ratings:users=300,items=500,genres=5,degree=30,days=100,noise=0,taste=0.8"


def test_who_knows_the_taste_of_the_moment_has_the_best_auc_and_who_does_not_has_less():
    data = mr.link_dataset(mr.open_dataset(SPEC), split="time:0.7,0.1")
    (user, item), time = data.labels[:, :2].T, data.pair_time
    plain = mr.open_dataset(SPEC)
    genre, days = plain.labels, np.arange(100)
    assert (genre[:300] == -1).all() and (user < 300).all() and (item >= 300).all()
    # The day on which a user's favourite changes, and both favourites, by counting.
    liked = np.zeros((300, 100), np.int64)
    for u in range(300):
        mine = user == u
        counts = np.zeros((100, 5))
        np.add.at(counts, (time[mine], genre[item[mine]]), 1)
        before = np.cumsum(counts, 0)
        after = before[-1] - before
        day = (before.max(1) + after.max(1)).argmax()
        liked[u] = np.where(days <= day, before[day].argmax(), after[day].argmax())
    rng = np.random.default_rng(0)
    other = rng.integers(300, 800, len(item))
    truth = np.repeat([1, 0], len(item))

    def auc(taste):
        return roc_auc_score(truth, np.concatenate([taste == genre[item], taste == genre[other]]))

    best = Ratings(taste=0.8, genres=5).best_auc
    assert best == pytest.approx(0.82) and f"above {best:.3f} on average" in plain.notes[0]
    assert auc(liked[user, time]) == pytest.approx(best, abs=0.02)
    assert auc(liked[user, 0]) < best - 0.1


def test_it_is_a_function_of_its_text():
    text = "ratings:users=9,items=7,genres=3,degree=4"
    assert dataset_fingerprint(mr.open_dataset(text)) == dataset_fingerprint(mr.open_dataset(text, name="other"))
    assert dataset_fingerprint(mr.open_dataset(text)) != dataset_fingerprint(mr.open_dataset(text + ",seed=1"))
    graph = mr.open_dataset("ratings:users=2,items=3,genres=8,degree=30").graph
    assert graph.num_edges == 12  # every pair once, both ways
    with pytest.raises(InputError, match="unknown key 'edges'; ratings knows users"):
        mr.open_dataset("ratings:edges=3")
