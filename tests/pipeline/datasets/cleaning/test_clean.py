"""Cleaning against models written with dictionaries, on nasty little graphs."""

from itertools import zip_longest

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.pipeline.datasets import ReadOptions, from_scipy
from millrace.pipeline.datasets.cleaning.clean import clean
from millrace.pipeline.datasets.cleaning.columns import clean_features
from millrace.pipeline.datasets.cleaning.edges import clean_edges, note_weights
from millrace.pipeline.datasets.cleaning.labels import clean_labels
from millrace.pipeline.datasets.cleaning.raw import GivenLabels, Hint, Raw, RawEdges
from millrace.pipeline.datasets.cleaning.splits import clean_split, make_split
from millrace.storage.errors import InputError


def cleaned_labels(values, options, notes, **given):
    return clean_labels(GivenLabels(values, **given), options, notes)


@st.composite
def edge_lists(draw):
    num_nodes = draw(st.integers(1, 5))
    node = st.integers(0, num_nodes - 1)
    ends = draw(st.lists(st.tuples(node, node), max_size=14))
    # Quarters add up exactly in float32, so that sums compare with ==.
    weights = draw(st.none() | st.lists(st.integers(0, 8).map(lambda q: q / 4), min_size=len(ends), max_size=len(ends)))
    return num_nodes, ends, weights


def grouped(ends, weights, options):
    """(src, dst) -> weights of its copies, after loops, reversal and duplicates."""
    groups = {}
    for (s, d), w in zip(ends, weights or [None] * len(ends)):
        if s == d and options.self_loops == "drop":
            continue
        if options.direction == "reverse":
            s, d = d, s
        groups.setdefault((s, d), []).append(w)
    if options.duplicates == "merge":
        groups = {pair: [None if weights is None else sum(ws)] for pair, ws in groups.items()}
    return groups


def larger(a, b):
    return a if b is None else b if a is None else max(a, b)


def model(ends, weights, options):
    groups = grouped(ends, weights, options)
    if options.direction == "undirected":
        pairs = set(groups) | {(d, s) for s, d in groups}
        groups = {
            (s, d): [larger(a, b) for a, b in zip_longest(groups.get((s, d), []), groups.get((d, s), []))]
            for s, d in pairs
        }
    return (
        sorted((d, s, w) for (s, d), ws in groups.items() for w in ws)
        if weights
        else sorted((d, s) for (s, d), ws in groups.items() for _ in ws)
    )


def seen(graph):
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree).tolist()
    columns = [dst, graph.indices.tolist()] + ([] if graph.edge_weight is None else [graph.edge_weight.tolist()])
    return sorted(zip(*columns))


def build(num_nodes, ends, weights, options, hint=None):
    src, dst = np.array([e[0] for e in ends], np.int64), np.array([e[1] for e in ends], np.int64)
    notes = []
    graph = clean_edges(
        RawEdges((src, dst), None if weights is None else np.array(weights)), num_nodes, options, hint, notes
    )
    return graph.check(), notes


@settings(max_examples=100, deadline=None)
@given(
    edge_lists(),
    st.sampled_from(["directed", "undirected", "reverse"]),
    st.sampled_from(["merge", "keep"]),
    st.sampled_from(["drop", "keep"]),
)
def test_edges_equal_the_model(edges, direction, duplicates, self_loops):
    num_nodes, ends, weights = edges
    options = ReadOptions(direction=direction, duplicates=duplicates, self_loops=self_loops)
    graph, _ = build(num_nodes, ends, weights, options)
    assert seen(graph) == model(ends, weights, options)
    assert all((np.diff(graph.indices[a:b]) >= 0).all() for a, b in zip(graph.indptr, graph.indptr[1:]))


@settings(max_examples=50, deadline=None)
@given(edge_lists(), st.sampled_from(["merge", "keep"]))
def test_symmetric_input_is_recognised_and_only_then(edges, duplicates):
    num_nodes, ends, weights = edges
    options = ReadOptions(duplicates=duplicates)
    groups = grouped(ends, weights, options)
    weigh = (lambda ws: len(ws)) if weights is None else sorted
    symmetric = all((d, s) in groups and weigh(ws) == weigh(groups[(d, s)]) for (s, d), ws in groups.items())
    if symmetric:
        graph, notes = build(num_nodes, ends, weights, options)
        assert seen(graph) == model(ends, weights, options)
        assert any("symmetric as stored" in n for n in notes) == bool(groups)
    else:
        with pytest.raises(InputError, match="not symmetric"):
            build(num_nodes, ends, weights, options)
        graph, notes = build(num_nodes, ends, weights, options, Hint("undirected", "a test says so"))
        assert seen(graph) == model(ends, weights, ReadOptions(direction="undirected", duplicates=duplicates))
        assert any("a test says so" in n for n in notes)


@settings(max_examples=20, deadline=None)
@given(edge_lists())
def test_making_symmetric_twice_changes_nothing(edges):
    options = ReadOptions(direction="undirected", duplicates="keep")
    once, _ = build(*edges, options)
    dst = np.repeat(np.arange(once.num_nodes), once.in_degree)
    twice = clean_edges(RawEdges((once.indices, dst), once.edge_weight), once.num_nodes, options, None, [])
    assert seen(twice) == seen(once)


def test_copies_of_an_edge_may_lie_in_any_order_in_the_two_directions():
    ends, weights, keep = [(0, 1), (0, 1), (1, 0), (1, 0)], [1.0, 2.0, 2.0, 1.0], ReadOptions(duplicates="keep")
    assert seen(build(2, ends, weights, keep)[0]) == model(ends, weights, keep)
    with pytest.raises(InputError, match="not symmetric"):
        build(2, ends, [1.0, 2.0, 2.0, 3.0], keep)


def test_a_hint_may_reverse_and_an_option_overrules_it():
    hint = Hint("reverse", "it is so")
    assert seen(build(3, [(0, 1)], [2.0], ReadOptions(), hint)[0]) == [(0, 1, 2.0)]
    assert seen(build(3, [(0, 1)], [2.0], ReadOptions(direction="directed"), hint)[0]) == [(1, 0, 2.0)]


def test_each_mended_defect_is_noted():
    cases = [
        (ReadOptions(direction="reverse"), [(0, 1)], None, "reversed"),
        (ReadOptions(direction="undirected"), [(0, 1)], None, "1 stored, 2 with their reverses"),
        (ReadOptions(direction="directed"), [(0, 1), (0, 1)], None, "1 duplicate edge was merged."),
        (ReadOptions(direction="directed"), [(0, 1), (0, 1)], [1, 2], "their weights summed"),
        (ReadOptions(direction="directed", duplicates="keep"), [(0, 1), (0, 1)], None, "1 duplicate edge was kept"),
        (ReadOptions(), [(1, 1)], None, "1 self loop was kept"),
        (ReadOptions(self_loops="drop"), [(1, 1)], None, "1 self loop was dropped"),
    ]
    for options, ends, weights, sentence in cases:
        assert any(sentence in n for n in build(2, ends, weights, options)[1]), sentence
    graph, _ = build(2, [(1, 1)], [-3], ReadOptions(edge_weights="ignore"))
    note_weights({None: True}, ReadOptions(edge_weights="ignore"), notes := [])
    assert not graph.is_weighted and notes == ["Edge weights were ignored (edge_weights=ignore)."]


def test_narrow_and_unsigned_ids_do_not_overflow():
    num_nodes = 70_000
    src, dst = np.array([60_000, 1], np.uint16), np.array([1, 60_000], np.uint64)
    graph = clean_edges(RawEdges((src, dst)), num_nodes, ReadOptions(), None, [])
    assert seen(graph) == [(1, 60_000), (60_000, 1)]


@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=20).filter(lambda y: max(y) >= 0),
    st.sampled_from(["keep", "compact"]),
)
def test_labels_equal_the_model(y, gaps):
    labels, classes, task = cleaned_labels(np.array(y, np.int16), ReadOptions(label_gaps=gaps), notes := [])
    used = sorted(set(y) - {-1})
    want = y if gaps == "keep" else [-1 if v < 0 else used.index(v) for v in y]
    assert labels.dtype == np.int64
    assert labels.tolist() == want
    assert (classes, task) == ((max(y) + 1) if gaps == "keep" else len(used), "multiclass")
    assert any("unlabelled" in n for n in notes) == (-1 in y)
    assert any("no labelled node" in n for n in notes) == (len(used) < max(y) + 1)


def test_label_forms():
    assert cleaned_labels(np.array([[0.0], [1.0]]), ReadOptions(), [])[0].tolist() == [0, 1]
    assert cleaned_labels(np.array([True, False]), ReadOptions(), [])[0].tolist() == [1, 0]
    y, classes, _ = cleaned_labels(np.array([0.0, np.nan]), ReadOptions(nan_labels="unlabelled"), notes := [])
    assert (y.tolist(), classes) == ([0, -1], 1)
    assert "1 NaN label" in notes[0]
    y, classes, task = cleaned_labels(np.array([[0, 1, 1], [0, 0, 0]]), ReadOptions(), [])
    assert (y.dtype, classes, task) == (np.float32, 3, "multilabel")


@pytest.mark.parametrize(
    ("labels", "unlabelled", "lost"), [([-1, 1, -1, 1], 2, 1), ([-1.0, 0, 0, 0], 1, 0), ([-1, 0, 1, 1], 1, None)]
)
def test_unlabelled_nodes_are_counted_and_minus_one_as_a_class_is_told_of(labels, unlabelled, lost):
    cleaned_labels(np.array(labels), ReadOptions(), notes := [])
    assert f"{unlabelled} node{' is' if unlabelled == 1 else 's are'} unlabelled (-1)." in notes
    assert any(f"Besides -1 (unlabelled), all labels are {lost}, so that one class is left" in n for n in notes) == (
        lost is not None
    )
    cleaned_labels(np.array(labels), ReadOptions(), notes := [], class_names=())
    assert not any("one class is left" in n for n in notes)


def test_features_are_float32_and_the_input_is_left_alone():
    x = np.array([[1, -3], [0, 0], [np.nan, np.inf]])
    before = x.copy()
    cleaned = clean_features(x, 3, ReadOptions(nan_features="zero", normalize_features="row"), notes := [])
    assert cleaned.dtype == np.float32
    assert cleaned.tolist() == [[0.25, -0.75], [0, 0], [0, 0]]
    assert "2 NaN" in notes[0]
    assert np.array_equal(x, before, equal_nan=True)
    binary = clean_features(sp.csr_matrix([[5, 0], [0, -1], [0, 0]]), 3, ReadOptions(normalize_features="binary"), [])
    assert binary.tolist() == [[1, 0], [0, 1], [0, 0]]
    people = np.array([[20, 30_000, 0.1], [40, 50_000, 0.1], [60, 70_000, 0.1]])
    clean_features(people, 3, ReadOptions(), notes := [])
    assert notes == [
        "Features reach 70,000, and training needs values near 1: normalize_features=standard scales each column."
    ]
    scaled = clean_features(people, 3, ReadOptions(normalize_features="standard"), [])
    assert np.allclose(scaled, np.array([[-1, -1, 0], [0, 0, 0], [1, 1, 0]]) * np.sqrt(1.5))
    own = np.ones((3, 2), np.float32)
    assert not np.shares_memory(clean_features(own, 3, ReadOptions(), []), own)
    assert clean_features(None, 3, ReadOptions(), []).shape == (3, 0)
    ends = RawEdges((np.array([0, 1, 2]), np.array([1, 0, 0])))
    raw = Raw("degrees", {None: ends}, GivenLabels(np.array([0, 1, 0])))
    data = clean(raw, ReadOptions(direction="directed"), "fraction:0.4,0.3", 0)
    assert np.allclose(data.features.gather(np.arange(3)), [[1, np.log(3)], [1, np.log(2)], [1, 0]])
    assert any("no features" in note for note in data.notes)


@settings(deadline=None)
@given(
    st.integers(0, 5),
    st.integers(1, 4),
    st.integers(0, 4),
    st.lists(st.integers(-1, 2), min_size=1, max_size=60),
    st.integers(0, 2**40),
)
def test_random_split_counts_per_class(extra, train, val, y, seed):
    labels = np.array(y + [c for c in (0, 1, 2) for _ in range(train + val + extra)])
    split = make_split(labels, None, f"random:{train},{val}", seed, ReadOptions(), []).check(len(labels))
    for c in (0, 1, 2):
        assert [int((labels[ids] == c).sum()) for ids in (split.train, split.val)] == [train, val]
    assert len(split.train) + len(split.val) + len(split.test) == (labels >= 0).sum()
    again = make_split(labels, None, f"random:{train},{val}", seed, ReadOptions(), [])
    assert np.array_equal(split.train, again.train)
    assert np.array_equal(split.val, again.val)


def test_seeds_draw_different_splits():
    labels = np.repeat([0, 1], 50)
    for text in ("random:10,10", "fraction:0.5,0.2"):
        trains = {tuple(make_split(labels, None, text, seed, ReadOptions(), []).train) for seed in range(20)}
        assert len(trains) == 20


@given(st.integers(1, 40), st.sampled_from([(0.6, 0.2), (0.1, 0.9), (1.0, 0.0), (0.01, 0.01)]))
def test_fraction_split_counts(n, shares):
    labels = np.zeros(n, np.int64)
    split = make_split(labels, None, f"fraction:{shares[0]},{shares[1]}", 3, ReadOptions(), []).check(n)
    assert len(split.train) == max(1, round(shares[0] * n))
    assert abs(len(split.val) - shares[1] * n) <= 1
    assert len(split.train) + len(split.val) + len(split.test) == n


def test_the_default_split_depends_on_what_is_there():
    stored = {"train": np.array([0]), "val": np.array([1]), "test": np.array([2])}
    rich, poor = np.repeat([0, 1], 60), np.repeat([0, 1], [60, 59])
    assert make_split(rich, stored, None, 0, ReadOptions(), []).train.tolist() == [0]
    for labels, size, sentence in (
        (rich, 40, "random:20,30"),
        (poor, 71, "fraction:0.6,0.2"),
        (np.ones((10, 2), np.float32), 6, "fraction"),
    ):
        split = make_split(labels, {}, None, 0, ReadOptions(), notes := [])
        assert len(split.train) == size
        assert sentence in notes[0]


def test_stored_splits_are_mended():
    labels = np.array([0, 1, -1, 0, 1, 0])
    stored = {"train": np.array([1, 0, 1, 2], np.int32), "val": np.array([0, 0, 0, 1, 0, 1], bool)}
    options = ReadOptions(unlabelled_in_split="drop")
    split = clean_split({**stored, "test": np.array([4])}, labels, options, notes := [])
    assert [ids.tolist() for ids in (split.train, split.val, split.test)] == [[0, 1], [3, 5], [4]]
    assert any("1 repeated id of the train" in n for n in notes)
    assert any("1 unlabelled node of the train" in n for n in notes)
    first = clean_split(
        {**stored, "test": np.array([1, 4, 5])},
        labels,
        ReadOptions("directed", overlapping_splits="first", unlabelled_in_split="drop"),
        notes := [],
    )
    assert first.test.tolist() == [4]
    assert any("2 nodes of the test split were in an earlier" in n for n in notes)
    clean_split(stored, labels, options, notes := [])
    assert any("no test nodes" in n for n in notes)


def test_largest_component_alone():
    # Weakly connected: 1 -> 3 -> 5, and 0 -> 4; node 2 is isolated.
    adjacency = sp.coo_array((np.ones(3), ([1, 3, 0], [3, 5, 4])), shape=(6, 6))
    labels = np.array([0, 1, 0, 1, 0, 1])
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    sets = {"train": np.array([1, 2]), "val": np.array([3]), "test": np.array([0, 5])}
    options = ReadOptions(direction="directed", components="largest")
    data = from_scipy(adjacency, features, labels, options=options, **sets)
    assert data.features.gather(np.arange(3)).tolist() == features[[1, 3, 5]].tolist()
    assert data.labels.tolist() == [1, 1, 1]
    assert data.graph.indptr.tolist() == [0, 0, 1, 2]
    assert data.graph.indices.tolist() == [0, 1]
    assert [data.split.train.tolist(), data.split.val.tolist(), data.split.test.tolist()] == [[0], [1], [2]]
    assert any("3 nodes outside the largest connected component" in note for note in data.notes)
    masks = {k: np.isin(np.arange(6), v) for k, v in sets.items()}
    again = from_scipy(adjacency, features, labels, options=options, **masks)
    assert again.split.test.tolist() == [2]
    whole = from_scipy(adjacency, features, labels, options=ReadOptions(direction="directed"), **sets)
    assert whole.num_nodes == 6
