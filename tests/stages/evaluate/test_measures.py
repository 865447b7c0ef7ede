"""Metrics of a split: against scikit-learn, on one rank and on several, and what a user's metric may give."""

import numpy as np
import pytest
import sklearn.metrics as of_sklearn
import torch
from torch.nn import functional as F

from millrace.stages.comm.solo import Solo
from millrace.stages.evaluate.measures import MOST_CLASSES, Measures, Scored, is_small
from millrace.storage.errors import InputError
from millrace.tests.contracts.thread_ranks import run_threads


def rows(task, n=200, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator)
    if task == "multiclass":
        y = torch.randint(0, classes - 1, (n,), generator=generator)  # the last class is nobody's
        logits[:, -1] -= 100
    else:
        y = (torch.rand(n, classes, generator=generator) < 0.3).float()
    return logits, y


def spread(logits, y):
    return float(logits.std() * len(y))


def all_of(task, loss=None):
    return Measures(task, ("loss", "macro_f1"), {"spread": spread}, loss)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_built_in_metrics_are_those_of_sklearn_and_torch(task):
    logits, y = rows(task)
    scored = all_of(task).measured(logits, y, by_class=True)
    if task == "multiclass":
        said, labels = logits.argmax(1), range(4)
        assert scored.accuracy == pytest.approx(of_sklearn.accuracy_score(y, said))
        assert scored.values["loss"] == pytest.approx(float(F.cross_entropy(logits, y)))
        expected = of_sklearn.confusion_matrix(y, said, labels=range(5))
        np.testing.assert_array_equal(scored.counts.confusion, expected)
    else:
        said, labels = (logits > 0).float(), range(5)
        assert scored.accuracy == pytest.approx(of_sklearn.f1_score(y, said, average="micro"))
        assert scored.values["loss"] == pytest.approx(float(F.binary_cross_entropy_with_logits(logits, y)), rel=1e-5)
        assert scored.counts.confusion is None
    assert scored.values["macro_f1"] == pytest.approx(of_sklearn.f1_score(y, said, average="macro", labels=labels))
    each = of_sklearn.f1_score(y, said, average=None, labels=labels)
    np.testing.assert_allclose(scored.counts.f1()[: len(labels)], each)
    assert scored.values["spread"] == spread(logits, y)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize("cuts", [(0, 200), (90, 90), (1, 60)])
def test_ranks_measure_what_one_process_does(task, cuts):
    logits, y = rows(task)
    parts = list(zip(logits.tensor_split(cuts), y.tensor_split(cuts)))
    whole = all_of(task).measured(logits, y, by_class=True)
    for scored in run_threads(lambda g: all_of(task).over_ranks(*parts[g.rank], g, by_class=True), 3):
        assert scored.accuracy == whole.accuracy
        assert scored.values == pytest.approx(whole.values, rel=1e-6)
        assert torch.equal(scored.counts.per_class, whole.counts.per_class)


def test_a_loss_of_ones_own_is_the_loss():
    logits, y = rows("multiclass")
    loss = torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=0.2)
    scored = all_of("multiclass", loss).over_ranks(logits, y, Solo())
    assert scored.values["loss"] == pytest.approx(float(F.cross_entropy(logits, y, label_smoothing=0.2)))


def test_many_classes_have_no_matrix():
    logits, y = rows("multiclass", classes=MOST_CLASSES + 1)
    counts = Measures().measured(logits, y, by_class=True).counts
    assert counts.confusion is None and counts.per_class.shape == (3, MOST_CLASSES + 1)


@pytest.mark.parametrize(
    ("monitor", "merit"), [(None, 0.5), ("accuracy", 0.5), ("loss", -2.0), ("macro_f1", 0.4), ("-brier", -0.1)]
)
def test_the_monitor_chooses_what_is_to_be_large(monitor, merit):
    scored = Scored(0.5, {"loss": 2.0, "macro_f1": 0.4, "brier": 0.1})
    assert Measures(monitor=monitor).validation(scored).merit == merit
    assert is_small(monitor or "") == (merit < 0)


@pytest.mark.parametrize("value", [torch.zeros(3), "much", None])
def test_a_metric_that_gives_no_number_is_refused(value):
    with pytest.raises(InputError, match=r"the metric 'mine' gave a \w+"):
        Measures(own={"mine": lambda logits, y: value}).measured(*rows("multiclass"))
