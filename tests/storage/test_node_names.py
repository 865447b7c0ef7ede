"""Names as one text: a list of strings in all but memory."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.storage.errors import InputError
from millrace.storage.node_names import NodeNames, noted_kind

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=8)


@settings(deadline=None, max_examples=20)
@given(TEXTS, st.randoms())
def test_names_are_the_list_that_they_were_made_from(texts, random):
    names = NodeNames.from_values(texts).check()
    assert list(names) == texts
    assert names[1:3] == texts[1:3]
    assert [names[v] for v in range(-len(texts), len(texts))] == texts * 2
    for column in (pa.array(texts, pa.string()), pa.chunked_array([texts[:2], texts[2:]], pa.large_string())):
        assert list(NodeNames.of_arrow(column)) == texts
    assert list(NodeNames.of_arrow(pa.array(["x", *texts], pa.string())[1:]).check()) == texts
    assert names.as_arrow().to_pylist() == texts
    keep = np.array([random.random() < 0.5 for _ in texts], bool)
    assert list(names.kept(keep).check()) == [t for t, k in zip(texts, keep) if k]
    order = [random.randrange(len(texts)) for _ in texts]
    assert names.take(np.array(order, np.int64)) == [texts[v] for v in order]
    assert names.find([texts[v] for v in order]).tolist() == [texts.index(texts[v]) for v in order]


def test_what_is_no_name_is_refused():
    names = NodeNames.from_values(["ann", "bob"])
    with pytest.raises(InputError, match=r"1 name \(first: 'eve'\) is no node's; expected names such as 'ann'"):
        names.find(["bob", "eve"])
    for node in (2, -3):
        with pytest.raises(IndexError, match="of 2 named"):
            names[node]
    for starts in ([0, 3, 7], [0, 4, 3, 6], [1, 6], []):
        with pytest.raises(InputError, match="no ascending offsets"):
            NodeNames(names.text, np.array(starts, np.int64)).check()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8, unique=True), st.randoms())
def test_integers_are_names_where_names_are_integers(numbers, random):
    order = np.array([random.randrange(len(numbers)) for _ in numbers])
    own = NodeNames.from_values(numbers)
    for names in (own, NodeNames.of_integers(np.array(numbers)), NodeNames(own.text, own.starts)):
        assert names.are_integers and names.meant(np.array(numbers)[order]).tolist() == order_of(numbers, order)
        assert names.reordered(order).called(np.arange(len(order))).tolist() == [numbers[v] for v in order]
        assert names.meant(np.array([str(numbers[0])])).tolist() == [0]
    assert own.integers and not NodeNames.from_values(map(str, numbers)).are_integers
    assert NodeNames.from_values(map(str, numbers)).called(order) == [str(numbers[v]) for v in order]


def order_of(numbers, order):
    return [numbers.index(numbers[v]) for v in order]


def test_integers_that_may_mean_two_nodes_are_refused():
    names = NodeNames.from_values(["ann", "0", "2", "17", "07"])
    assert names.meant(np.array([2, 3, 4])).tolist() == [2, 3, 4]  # the node called 2 has that number
    for wanted in ([0], [3, 17]):
        with pytest.raises(InputError, match=r"(0|17) is the number of a node, and node [13] is called '(0|17)'"):
            names.meant(np.array(wanted))
    for texts in (["1", "x"], ["01"], ["1.0"], ["9" * 20], []):  # of a store that did not note it
        old = NodeNames.from_values(texts)
        assert not NodeNames(old.text, old.starts).are_integers


def test_types_may_have_integers_beside_text():
    both = NodeNames.from_values(["ann", "bob", "30", "10"])
    names = NodeNames(both.text, both.starts, noted_kind([False, True]))
    assert names.called(np.array([3, 2]), (0, 2, 4)).tolist() == [10, 30]
    assert names.called(np.array([1, 2]), (0, 2, 4)) == ["bob", "30"]
    assert noted_kind([True, True]) is True and noted_kind([None, True]) is None
