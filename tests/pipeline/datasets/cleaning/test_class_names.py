"""Classes that are text: blanks are no part of a name, some names are no classes, and what is done is told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.pipeline.datasets.cleaning.class_names import numbered
from millrace.pipeline.datasets.cleaning.labels import settled_labels
from millrace.pipeline.datasets.cleaning.raw import GivenLabels
from millrace.storage.errors import InputError

TEXT = st.lists(st.none() | st.text(" ab\t01\u00a0", max_size=4), max_size=30)


@given(TEXT)
def test_names_are_stripped_and_sorted(labels):
    found = numbered(labels)
    bare = [None if v is None else v.strip() for v in labels]
    assert [found.class_names[c] if c >= 0 else "" for c in found.labels] == [v or "" for v in bare]
    assert set(found.class_names) == {v for v in bare if v}
    whole = [int(n) for n in found.class_names if n.isdecimal()]
    assert whole == sorted(whole) and found.stripped == sum(a != b for a, b in zip(labels, bare))


def settled(values, **options):
    notes: list[str] = []
    found = settled_labels(GivenLabels(np.array(values, object)), mr.ReadOptions(**options), notes)
    return found, " ".join(notes)


def test_names_that_may_be_no_classes_are_told_of_or_ignored():
    values = ["oak", "N/A", "Elm", "oak", "?", "elm", None]
    found, notes = settled(values)
    assert found.class_names == ("?", "Elm", "N/A", "elm", "oak") and found.labels.tolist() == [4, 2, 1, 4, 0, 3, -1]
    assert (
        "'?' (1 node) and 'N/A' (1 node) are read as classes: if that means no label, set ignored_labels=?,N/A" in notes
    )
    assert "The classes 'Elm' and 'elm' differ in upper and lower case only." in notes
    found, notes = settled(values, ignored_labels="?, N/A,oak")
    assert found.class_names == ("Elm", "elm") and found.labels.tolist() == [-1, -1, 0, -1, -1, 1, -1]
    assert "4 labels were ignored (ignored_labels): '?' 1, 'N/A' 1, 'oak' 2." in notes and "read as" not in notes
    found, notes = settled(values, ignored_labels=("oka", "elm"))
    assert "1 label was ignored (ignored_labels): 'oka' 0, 'elm' 1; did you mean 'oak'?" in notes


@pytest.mark.parametrize("word", ["-1", "-100", "<unk>", "(None)", "N/A", "--", "No_Label", "[missing]"])
def test_words_for_no_label_are_named(word):
    _, notes = settled(["oak", word, "elm", "oak"])
    assert f"'{word}' (1 node) is read as a class: if that means no label, set ignored_labels={word}." in notes


def test_names_with_such_words_in_them_are_classes():
    assert "read as" not in settled(["oak", "unknown oak", "naïve", "1", "+", "**"])[1]


def test_numbers_among_names_may_be_ignored_by_either():
    for given_label in (9, "9", ("9",), [9]):
        found, _ = settled(["1", "9", "01", "9", "1"], ignored_labels=given_label)
        assert found.class_names == ("01", "1") and found.labels.tolist() == [1, -1, 0, -1, 1]
    numbers: list[str] = []
    found = settled_labels(GivenLabels(np.array([0, 255, 1])), mr.ReadOptions(ignored_labels="255"), numbers)
    assert found.labels.tolist() == [0, -1, 1]
    with pytest.raises(InputError, match="names 'unknown', but labels are numbers"):
        settled_labels(GivenLabels(np.array([0, 1])), mr.ReadOptions(ignored_labels="unknown"), [])


@pytest.mark.parametrize("bad", [1.5, ("a", 2.0), "", "a,,b", (None,)])
def test_values_of_the_key_are_checked(bad):
    with pytest.raises(InputError, match="ignored_labels is"):
        mr.ReadOptions(ignored_labels=bad)
