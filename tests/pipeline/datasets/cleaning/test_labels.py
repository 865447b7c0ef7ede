"""Labels become classes, a multi-label matrix, or targets: by what they are, or by the option that says so."""

import numpy as np
import pytest

from millrace.pipeline.datasets import ReadOptions, open_dataset
from millrace.pipeline.datasets.cleaning.labels import as_task, clean_labels, settled_labels
from millrace.pipeline.datasets.cleaning.raw import GivenLabels
from millrace.pipeline.datasets.cleaning.splits import make_split
from millrace.storage.errors import InputError

NAN = np.nan
FORMS = {
    "whole numbers": ([0, 2, 1], None, ("multiclass", 3, [0, 2, 1])),
    "flags": ([True, False], None, ("multiclass", 2, [1, 0])),
    "whole floats": ([0.0, 1.0, -1.0], None, ("multiclass", 2, [0, 1, -1])),
    "floats": ([0.5, -1.0, NAN], None, ("regression", 1, [[0.5], [-1.0], [NAN]])),
    "a column of floats": ([[0.5], [2.0]], None, ("regression", 1, [[0.5], [2.0]])),
    "beyond whole numbers": ([1e17, 0.0], None, ("regression", 1, [[1e17], [0.0]])),
    "several targets": ([[0.5, 1], [NAN, 3]], None, ("regression", 2, [[0.5, 1], [NAN, 3]])),
    "bits": ([[0, 1], [1, 1]], None, ("multilabel", 2, [[0, 1], [1, 1]])),
    "bits that are not all known": ([[0.0, NAN], [1, 1]], None, ("multilabel", 2, [[0, NAN], [1, 1]])),
    "asked: binary": ([0, 1, -1], "binary", ("binary", 2, [0, 1, -1])),
    "asked: one class of two": ([0, 0], "binary", ("binary", 2, [0, 0])),
    "asked: targets that are whole": ([3, -1, 12], "regression", ("regression", 1, [[3], [-1], [12]])),
    "asked: targets that are bits": ([[0, 1], [1, 1]], "regression", ("regression", 2, [[0, 1], [1, 1]])),
    "asked: one label": ([0, 1], "multilabel", ("multilabel", 1, [[0], [1]])),
    "asked: classes": ([0.0, 1.0], "multiclass", ("multiclass", 2, [0, 1])),
}


def cleaned_labels(values, options, notes, **given):
    return clean_labels(GivenLabels(values, **given), options, notes)


@pytest.mark.parametrize("case", FORMS)
def test_labels_by_what_they_are(case):
    values, asked, (task, number, want) = FORMS[case]
    y, classes, found = cleaned_labels(np.array(values), ReadOptions(task=asked), [])
    assert (found, classes, y.dtype) == (task, number, np.int64 if y.ndim == 1 else np.float32)
    np.testing.assert_array_equal(y, np.array(want, y.dtype))


BAD = [
    ([0.5, np.inf], {}, r"1 target is infinite, or beyond float32 \(first: node 1\)"),
    ([0.5, 1e300], {}, "beyond float32"),
    ([0.0, 2.0**64], {}, r"labels are whole numbers to 1.84467e\+19; number classes"),
    ([NAN, NAN], {"task": "regression"}, r"no node has a target \(all are NaN\)"),
    ([[0.5, NAN], [1, NAN]], {}, r"no node has a target in column 1"),
    ([0, 0.5], {"task": "multiclass"}, r"non-integer \(first: 0.5\); expected class numbers, or task=regression for"),
    ([0, 1, 2], {"task": "binary"}, "there are 3 classes; expected 0 and 1 for task=binary"),
    ([[0, 1], [1, 0]], {"task": "multiclass"}, "labels have 2 columns; expected one column of class numbers"),
    ([[0, 1], [1, 0]], {"task": "binary"}, "labels have 2 columns; expected one column of class numbers"),
    ([[0, 3], [1, 0]], {}, "values other than 0 and 1"),
    ([0.5, 2], {"task": "multilabel"}, "values other than 0 and 1"),
    ([0.5, 1], {"ignored_labels": 7}, "ignored_labels is .7., but labels are no class numbers"),
    ([0, 10**6], {}, "numbers to predict need task=regression"),
]


@pytest.mark.parametrize(("values", "options", "sentence"), BAD)
def test_labels_that_do_not_fit_are_refused(values, options, sentence):
    with pytest.raises(InputError, match=sentence):
        cleaned_labels(np.array(values), ReadOptions(**options), [])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "regresion"}, "task is 'regresion'; expected one of .*did you mean 'regression'"),
        ({"label_columns": 3}, "label_columns is 3; expected names"),
        ({"ignored_labels": 1.5}, "ignored_labels is 1.5; expected class numbers"),
        ({"ignored_labels": (1, True)}, "ignored_labels"),
    ],
)
def test_options_are_checked(options, sentence):
    with pytest.raises(InputError, match=sentence):
        ReadOptions(**options)


def test_text_is_no_target():
    for task in ("regression", "multilabel"):
        with pytest.raises(InputError, match="labels are text"):
            cleaned_labels(np.array([0, 1]), ReadOptions(task=task), [], class_names=())


def test_missing_values_are_unlabelled_and_nan_is_refused():
    y, _, _ = cleaned_labels(np.array([0, NAN, 1]), ReadOptions(), [], nulls=1)
    assert y.tolist() == [0, -1, 1]
    with pytest.raises(InputError, match="1 label is NaN"):
        cleaned_labels(np.array([0, NAN, NAN]), ReadOptions(), [], nulls=1)


def test_what_is_not_known_is_counted_and_large_targets_are_told_of():
    cleaned_labels(np.array([[0.5, 300], [NAN, 2], [NAN, NAN]]), ReadOptions(), notes := [])
    assert notes[0] == "1 node is unlabelled (NaN)."
    assert notes[1].startswith("1 target of other nodes is NaN")
    assert notes[2].startswith("Targets reach 300")


def test_ignored_labels_are_unlabelled_and_leave_the_split():
    y, classes, _ = cleaned_labels(np.array([0, 255, -100, 1]), ReadOptions(ignored_labels=(255, -100)), notes := [])
    assert (y.tolist(), classes) == ([0, -1, -1, 1], 2) and "2 labels were ignored (ignored_labels)." in notes
    stored = {"train": np.array([0, 1]), "val": np.array([2, 3])}
    parts = make_split(y, stored, None, 0, ReadOptions(ignored_labels=(255, -100)), [])
    assert (parts.train.tolist(), parts.val.tolist()) == ([0], [3])


def test_nodes_without_targets_are_in_no_drawn_split():
    y = np.where(np.arange(40) % 4, 0.5, NAN).astype(np.float32)[:, None]
    parts = make_split(y, None, None, 0, ReadOptions(), [])
    assert len(parts.train) + len(parts.val) + len(parts.test) == 30
    assert not np.isnan(y[np.concatenate([parts.train, parts.val, parts.test])]).any()
    with pytest.raises(
        InputError, match=r"1 node of the train split .first: 0. is unlabelled; set unlabelled_in_split"
    ):
        make_split(y, {"train": np.array([0, 1])}, None, 0, ReadOptions(), [])
    kept = make_split(y, {"train": np.array([0, 1])}, None, 0, ReadOptions(unlabelled_in_split="drop"), [])
    assert kept.train.tolist() == [1]


def test_a_clean_dataset_is_read_for_another_task():
    two, three = (open_dataset(f"sbm:nodes=60,classes={c}") for c in (2, 3))
    binary = open_dataset(two, options=ReadOptions(task="binary")).check()
    assert (binary.task, binary.num_classes, binary.num_outputs) == ("binary", 2, 1)
    back = open_dataset(binary, options=ReadOptions(task="multiclass")).check()
    assert back.task == "multiclass" and np.array_equal(back.labels, two.labels)
    targets = open_dataset("sbm:nodes=60,classes=3", options=ReadOptions(task="regression")).check()
    np.testing.assert_array_equal(targets.labels[:, 0], three.labels.astype(np.float32))
    for task, sentence in (("binary", r"3 classes \(multiclass\)"), ("multilabel", "do not fit task=multilabel")):
        with pytest.raises(InputError, match=sentence):
            as_task(three, task)
    with pytest.raises(InputError, match=r"1 target \(regression\)"):
        as_task(targets, "multiclass")


def test_names_are_no_classes():
    names = np.array([f"Person {i}" for i in range(40)])
    with pytest.raises(InputError, match="the labels of 40 nodes are 40 classes, so they are names or ids"):
        settled_labels(GivenLabels(names), ReadOptions(), [])
    nearly = np.array([f"Person {max(i, 2)}" for i in range(40)])
    with pytest.raises(InputError, match="set label_columns=COLUMN for that of the class, task=link to predict edges"):
        settled_labels(GivenLabels(nearly), ReadOptions(), [])
    with pytest.raises(InputError, match="task=regression if they are targets"):
        settled_labels(GivenLabels(np.arange(40)), ReadOptions(), [])
    assert settled_labels(GivenLabels(names), ReadOptions(task="multiclass"), []).num_classes == 40
    assert settled_labels(GivenLabels(np.arange(40) // 2), ReadOptions(), []).num_classes == 20


def test_one_class_is_told():
    notes: list[str] = []
    settled_labels(GivenLabels(np.array(["a", "a", ""])), ReadOptions(), notes)
    assert "All labelled nodes are of one class, so every prediction is right, and nothing is learnt." in notes


def test_a_single_1_in_each_row_is_a_class():
    notes: list[str] = []
    y = np.eye(3, dtype=np.int8)[[2, 0, 1, 1]]
    found = settled_labels(GivenLabels(y, label_names=("a", "b", "c")), ReadOptions(), notes)
    assert (found.labels.tolist(), found.task, found.class_names) == ([2, 0, 1, 1], "multiclass", ("a", "b", "c"))
    assert "were read as one class of 3 (task=multilabel" in notes[0]
    assert settled_labels(GivenLabels(y), ReadOptions(task="multilabel"), []).task == "multilabel"
    y[0, 0] = 1
    assert settled_labels(GivenLabels(y), ReadOptions(), []).task == "multilabel"


def test_a_class_that_is_never_evaluated_is_told():
    y, notes = np.array([0, 0, 1, 2, 2, 0]), list[str]()
    sets = {"train": [0, 2, 3], "val": [1], "test": [4]}
    make_split(y, {part: np.array(ids) for part, ids in sets.items()}, None, 0, ReadOptions(), notes)
    assert notes == [
        "No val or test node has class 1, which accuracy does not count: classes by number, 1 of 3.",
    ]
    make_split(y, {"train": np.array([0, 1, 2])}, None, 0, ReadOptions(), more := list[str]())
    assert not any("accuracy" in note for note in more)
