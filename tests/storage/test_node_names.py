"""Names as one text: a list of strings in all but memory."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.storage.errors import InputError
from millrace.storage.node_names import NodeNames

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=8)


@settings(deadline=None, max_examples=20)
@given(TEXTS, st.randoms())
def test_names_are_the_list_that_they_were_made_from(texts, random):
    names = NodeNames.of(texts).check()
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
    names = NodeNames.of(["ann", "bob"])
    with pytest.raises(InputError, match=r"1 name \(first: 'eve'\) is no node's; expected names such as 'ann'"):
        names.find(["bob", "eve"])
    for node in (2, -3):
        with pytest.raises(IndexError, match="of 2 named"):
            names[node]
    for starts in ([0, 3, 7], [0, 4, 3, 6], [1, 6], []):
        with pytest.raises(InputError, match="no ascending offsets"):
            NodeNames(names.text, np.array(starts, np.int64)).check()
