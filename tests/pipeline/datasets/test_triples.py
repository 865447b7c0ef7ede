"""Triples as arrays: the same data as a folder of them; and bad input."""

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.tests.pipeline.datasets.readers.test_triples import TEST, TRAIN, VAL, written


def test_arrays_are_the_same_data(tmp_path):
    folder = mr.open_dataset(written(tmp_path / "triples", names=("train.tsv", "dev.tsv", "test.tsv")))
    arrays = mr.from_triples(TRAIN, np.array(VAL), TEST)
    assert dataset_fingerprint(folder) == dataset_fingerprint(arrays)
    names, relations = sorted({e for h, _, t in TRAIN + TEST for e in (h, t)}), sorted({r for _, r, _ in TRAIN})
    numbers = [[(names.index(h), relations.index(r), names.index(t)) for h, r, t in s] for s in (TRAIN, VAL, TEST)]
    plain = mr.from_triples(torch.tensor(numbers[0]), np.array(numbers[1]), numbers[2])
    assert np.array_equal(plain.labels, arrays.labels) and np.array_equal(plain.graph.indices, arrays.graph.indices)
    assert plain.node_names is None and plain.graph.types.relations[1] == ("entity", "1", "entity")
    one = mr.from_triples(TRAIN[:2], add_reverse=False)
    assert one.labels.shape == (2, 3) and one.graph.types.pair_relations == ((0,),) and not len(one.split.test)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (([(0, 1)],), r"the triples of train have shape \[1, 2\]; expected \[n, 3\]: head, relation, tail"),
        (([],), "the train set of triples has no triples"),
        ((None,), "the train set of triples has no triples"),
        (([(0, 0, 1), (0, 1)],), "the triples of train differ in length"),
        (([(0, 0, 10**15)],), "the triples of train have the entity 1,000,000,000,000,000, .* renumber them, or give"),
        (([(0, 10**9, 1)],), "the relation 1,000,000,000, .* below 65,536"),
        ((np.array([(0, 0, 2**63)], np.uint64),), "the entity 9,223,372,036,854,775,808"),
        (([(0, 40_000, 1)],), "has 40,001 relations; expected at most 32,768 beside their reverses"),
        (([("a", "r\nr", "b")],), "a relation of triples is called .*; expected a printable name"),
        (([(0, -1, 2)],), "the triples of train hold -1; expected whole numbers from 0"),
        (([(0.5, 1.0, 2.0)],), "the triples of train are float64; expected names, or whole numbers"),
        (([("a", "", "b")],), r"triple 0 of train is \['a', '', 'b'\]; expected a name in each place"),
        (([("a", "r", "b")], [(0, 0, 1)]), "some triples are of names and others of numbers"),
        (
            ([("a", "r", "b"), ("a", "r", "c")], [("a", "r", "c")]),
            r"the pair \('a', 'c'\) is in the train",
        ),
        (
            ([("a", "r", "b"), ("b", "rev_r", "a")],),
            "triples: add_reverse would add entity,rev_r,entity, which is there; rename it",
        ),
    ],
)
def test_bad_arrays_are_refused(sets, said):
    with pytest.raises(InputError, match=said):
        mr.from_triples(*sets)


def test_a_relation_that_is_only_tested_has_directions():
    data = mr.from_triples([("a", "r", "b"), ("b", "r", "c")], None, [("a", "s", "b"), ("b", "s", "a")])
    assert data.labels[data.split.test].tolist() == [[0, 1, 0, 1], [1, 0, 0, 1]]
    assert data.graph.types.pair_relations == ((0, 2), (1, 3))


def test_what_no_train_triple_has_is_noted():
    data = mr.from_triples([("a", "r", "b")], [("c", "r", "b")], [("a", "s", "d")])
    notes = " ".join(data.notes)
    assert "2 entities (first: 'c') are in no train triple" in notes
    assert "1 relation (first: 's') is in no train triple" in notes
    numbers = mr.from_triples([(0, 0, 1)], None, [(3, 0, 1)])
    assert "2 entities (first: 2) are in no train triple" in " ".join(numbers.notes)


def test_triples_in_two_sets_stay_in_the_first():
    sets = [("a", "r", "b"), ("b", "r", "c")], [("c", "r", "d")], [("c", "r", "d"), ("a", "r", "b"), ("d", "r", "a")]
    data = mr.from_triples(*sets, overlapping_splits="first")
    assert data.labels[data.split.test].tolist() == [[3, 0, 0]] and data.graph.num_edges == 4
    assert "2 pairs of test were in an earlier set too and stayed there." in data.notes
    with pytest.raises(InputError, match=r"'d'\) .* the val and the test set|'b'\) .* \(1 such pair\); .* overlapping"):
        mr.from_triples(*sets)
