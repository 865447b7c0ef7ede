"""Negatives: their laws by chi-square, their keys; and degrees without a minibatch's own edges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

import millrace as mr
from millrace.pipeline.datasets.cleaning.relations import graph_of_relations
from millrace.stages.links import train_pairs
from millrace.stages.links.train_pairs import DRAWN_ENDS, LAWS, Negatives, TrainPairs
from millrace.storage.errors import InputError
from millrace.storage.links.pairs import Pairs, SeenPairs
from millrace.tests.contracts.graphs import graphs
from millrace.tests.contracts.typed import typed_dataset

KEY = 12345


def labels_of(pairs, given=()):
    return np.array([*((u, v, 0) for u, v in pairs), *((u, v, 1) for u, v in given)], np.int64).reshape(-1, 3)


def skewed():
    rng = np.random.default_rng(0)
    dst = np.minimum(rng.geometric(0.3, 400) - 1, 9)
    return mr.from_edges(rng.integers(10, size=400), dst, 11)


def drawn(law, *, size=64, count=50, key=KEY, ends="destination"):
    graph = skewed()
    given = [(i, 10 - i) for i in range(5)]
    labels = labels_of([(i % 11, (3 * i) % 11) for i in range(size)], given)
    links = TrainPairs.from_graph(graph, Pairs(labels, {}), Negatives(law, count, ends))
    return graph, links, links.with_negatives(np.arange(size), key)


@pytest.mark.parametrize("law", ["uniform", "degree", "destinations"])
def test_destinations_have_their_law(law):
    graph, _, made = drawn(law, **({"size": 4, "count": 800} if law == "destinations" else {}))
    seen = np.bincount(made[:, 1:, 1].reshape(-1), minlength=11)
    ends = np.isin(np.arange(11), [0, 3, 6, 9, 10, 8, 7])  # of four pairs and of the given negatives
    laws = {"uniform": np.full(11, 1 / 11), "degree": graph.in_degree / graph.num_edges, "destinations": ends / 7}
    share = laws[law]
    assert not seen[share == 0].any()
    assert chisquare(seen[share > 0], share[share > 0] * seen.sum()).pvalue > 1e-3
    # Sources are those of the positive pairs.
    assert (made[:, :, 0] == made[:, :1, 0]).all()


@pytest.mark.parametrize("law", ["uniform", "degree", "destinations"])
def test_negatives_of_a_part_are_nodes_that_may_be_ends(law):
    """Nodes 7 to 10 are there as sources of edges only."""
    graph, seen = skewed(), [[0, 3], [4, 5], [6, 2], [9, 1]]
    pairs = SeenPairs.from_pairs(Pairs(labels_of(seen), {"train": np.arange(4)}), np.arange(7), 7)
    made = TrainPairs.of_seen(graph, 7, pairs, Negatives(law, 3000, "both")).with_negatives(np.arange(3), KEY)
    keep = graph.in_degree.copy()
    keep[7:] = 0
    rows = mr.from_edges(graph.indices[: keep.sum()], np.repeat(np.arange(11), keep), 11)
    if law == "degree":  # rows of other nodes are not there
        made = TrainPairs.of_seen(rows, 7, pairs, Negatives(law, 3000, "both")).with_negatives(np.arange(3), KEY)
    laws = {
        "uniform": [np.arange(11) < 7] * 2,
        "degree": [np.bincount(rows.indices, minlength=11) * (np.arange(11) < 7), keep],
        "destinations": [np.isin(np.arange(11), [0, 4, 6]), np.isin(np.arange(11), [3, 5, 2, 1])],
    }
    for column in (0, 1):
        found = np.bincount(made[:, 1:, column].reshape(-1), minlength=11)
        share = laws[law][column] / laws[law][column].sum()
        assert not found[share == 0].any()
        assert chisquare(found[share > 0], share[share > 0] * found.sum()).pvalue > 1e-3


@pytest.mark.parametrize("law", ["uniform", "degree", "destinations"])
def test_with_types_both_ends_are_of_theirs_by_the_law_of_the_relation(law):
    """Types in two parts, as ranks renumber them: authors 8 to 11 and 20 to 27, papers 0 to 7 and 12 to 19."""
    data = typed_dataset(degree=90)
    order = np.r_[0:8, 20:24, 8:20, 24:32, 32:36]
    new, graph = np.argsort(order), data.graph
    src, dst = (new[a] for a in (graph.indices, np.repeat(np.arange(36), graph.in_degree)))
    edges = {r: (src[graph.edge_type == i], dst[graph.edge_type == i]) for i, r in enumerate(graph.types.relations)}
    offsets = (0, 8, 12, 12, 24, 32, 36)
    graph = graph_of_relations(edges, replace(graph.types, offsets=offsets, pair_relations=((0, 1),)))
    source, destination = edges["author", "writes", "paper"]
    some = np.stack([source, destination], 1)[::25]
    links = TrainPairs.from_graph(graph, Pairs(labels_of(some), {}), Negatives(law, 2000, "both"))
    made = links.with_negatives(np.arange(4), KEY)
    kinds = graph.types.types_of(np.arange(36))
    laws = {
        "uniform": [kinds == 1, kinds == 0],
        "degree": [np.bincount(e, minlength=36) for e in (source, destination)],
        "destinations": [np.isin(np.arange(36), e) for e in some.T],
    }
    for column in (0, 1):
        found = np.bincount(made[:, 1:, column].reshape(-1), minlength=36)
        share = laws[law][column] / laws[law][column].sum()
        assert not found[share == 0].any()
        assert chisquare(found[share > 0], share[share > 0] * found.sum()).pvalue > 1e-3
    # Own edges are those of writes and written_by.
    lost = links.lost_degree(np.arange(4), np.arange(36))
    own = {p for u, v in some.tolist() for p in ((u, v), (v, u))}
    back = edges["paper", "written_by", "author"]
    every = [e for pair in ((source, destination), back) for e in zip(*(a.tolist() for a in pair)) if e in own]
    assert lost.tolist() == [sum(v == node for _, v in every) for node in range(36)]


@pytest.mark.parametrize("law", ["uniform", "degree", "destinations", "batch"])
def test_both_ends_have_their_law_independently(law):
    few = law in ("destinations", "batch")
    graph, links, made = drawn(law, **({"size": 4, "count": 2000} if few else {"count": 100}), ends="both")
    keeps = drawn(law, **({"size": 4, "count": 2000} if few else {"count": 100}))[2]
    assert np.array_equal(made[..., 1], keeps[..., 1]) and np.array_equal(made[:, 0], keeps[:, 0])
    uniform, edges = np.full(11, 1 / 11), graph.num_edges
    laws = {
        "uniform": (uniform, uniform),
        "degree": (np.bincount(graph.indices, minlength=11) / edges, graph.in_degree / edges),
        # Of four pairs and of the given negatives.
        "destinations": (np.arange(11) < 5, np.isin(np.arange(11), [0, 3, 6, 9, 10, 8, 7])),
    }  # fmt: skip
    for row in range(4) if law == "batch" else [None]:
        others = np.delete(links.pairs[:4], 0 if row is None else row, 0)
        source, destination = laws.get(law) or [np.bincount(e, minlength=11) for e in others.T]
        share = np.outer(source / sum(source), destination / sum(destination)).reshape(-1)
        pairs = made[:, 1:].reshape(-1, 2) if row is None else made[row, 1:]
        seen = np.bincount(pairs[:, 0] * 11 + pairs[:, 1], minlength=121)
        assert not seen[share == 0].any()
        assert chisquare(seen[share > 0], share[share > 0] * seen.sum()).pvalue > 1e-3


@pytest.mark.parametrize("law", ["uniform", "degree", "destinations"])
def test_of_either_end_half_keep_the_source_and_half_the_destination(law):
    """Drawn ends are those that negatives of both have at their place."""
    kept, both = drawn(law, ends="either", count=7), drawn(law, ends="both", count=7)[2]
    positive, made = kept[1].pairs[:64, None], kept[2]
    assert np.array_equal(made[:, 1:5, 1], both[:, 1:5, 1]) and (made[:, 1:5, 0] == positive[..., 0]).all()
    assert np.array_equal(made[:, 5:, 0], both[:, 5:, 0]) and (made[:, 5:, 1] == positive[..., 1]).all()


@pytest.mark.parametrize("law", ["uniform", "degree", "destinations"])
@pytest.mark.parametrize("ends", DRAWN_ENDS)
def test_shared_ends_are_those_of_the_first_pair_and_have_their_law(law, ends):
    graph = skewed()
    labels = labels_of([(i % 11, (3 * i) % 11) for i in range(64)])
    of = {s: TrainPairs.from_graph(graph, Pairs(labels, {}), Negatives(law, 7, ends, s)) for s in (False, True)}
    made = of[True].with_negatives(np.arange(64), KEY)
    first = of[False].with_negatives(np.arange(1), KEY)[0, 1:]
    until = {"destination": 7, "either": 4, "both": 7}[ends]
    assert (made[:, 1 : 1 + until, 1] == first[:until, 1]).all()
    assert of[True].shares_all(np.arange(64)) == (ends != "both") and not of[False].shares_all(np.arange(64))
    if ends != "destination":
        since = 4 if ends == "either" else 0
        assert (made[:, 1 + since :, 0] == first[since:, 0]).all()
    else:
        assert (made[..., 0] == labels[:, :1]).all()


def test_those_of_the_minibatch_are_the_other_destinations():
    _, links, made = drawn("batch", size=7, count=4000)
    for i in range(7):
        others = np.delete(links.pairs[:7, 1], i)
        seen = np.array([np.count_nonzero(made[i, 1:, 1] == v) for v in np.unique(others)])
        share = np.unique(others, return_counts=True)[1] / 6
        assert seen.sum() == 4000 and chisquare(seen, share * 4000).pvalue > 1e-3
    alone = drawn("batch", size=1, count=500)[2]
    assert len(np.unique(alone[0, 1:, 1])) == 11  # there is no other pair: uniform


def test_given_ones_are_uniform_pairs_of_them():
    _, links, made = drawn("given")
    at = [links.given.tolist().index(p) for p in made[:, 1:].reshape(-1, 2).tolist()]
    assert chisquare(np.bincount(at, minlength=5)).pvalue > 1e-3


@pytest.mark.parametrize(("law", "ends"), [*((law, "destination") for law in LAWS), ("uniform", "both")])
def test_negatives_depend_on_the_key_and_the_position_alone(law, ends):
    _, links, made = drawn(law, ends=ends)
    assert np.array_equal(made, links.with_negatives(np.arange(64), KEY))
    assert (made != links.with_negatives(np.arange(64), KEY + 1)).any()
    assert np.array_equal(made[:, 0], links.pairs[:64])


@given(graphs(), st.data())
def test_lost_degrees_are_counted_edge_by_edge(graph, data):
    n = graph.num_nodes
    if not n:
        return
    node = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=6))
    weight = np.arange(graph.num_edges) % 5 if data.draw(st.booleans()) else None
    dst = np.repeat(np.arange(n), graph.in_degree)
    graph = mr.from_edges(graph.indices, dst, n, edge_weight=weight)
    links = TrainPairs.from_graph(graph, Pairs(labels_of(pairs), {}), Negatives())
    chosen = np.array(data.draw(st.lists(st.sampled_from(range(len(pairs))), min_size=1, max_size=4, unique=True)))
    own = {p for i in chosen for p in (pairs[i], pairs[i][::-1])}
    expected = np.zeros(n)
    for e, (u, v) in enumerate(zip(graph.indices.tolist(), dst.tolist())):
        if (u, v) in own:
            expected[v] += 1 if weight is None else graph.edge_weight[e]
    np.testing.assert_allclose(links.lost_degree(chosen, np.arange(n)), expected)


def test_what_cannot_be_drawn_is_refused():
    empty = mr.from_edges(np.empty(0, np.int64), np.empty(0, np.int64), 3)
    with pytest.raises(InputError, match="no negatives are given for train"):
        TrainPairs.from_graph(empty, Pairs(labels_of([(0, 1)]), {}), Negatives("given"))
    with pytest.raises(InputError, match="the graph has no edges"):
        TrainPairs.from_graph(empty, Pairs(labels_of([(0, 1)]), {}), Negatives("degree"))
    with pytest.raises(InputError, match="expected one of uniform"):
        Negatives("all")
    with pytest.raises(InputError, match="negative_ends is 'source'; expected one of destination, either, both"):
        Negatives("uniform", 1, "source")
    with pytest.raises(InputError, match=r"negative_ends is 'both', but link\.negatives is 'given'"):
        Negatives("given", 1, "both")
    with pytest.raises(InputError, match="1 or more"):
        Negatives("uniform", 0)
    for law in ("batch", "given"):
        with pytest.raises(InputError, match=f"shared_negatives is true, but link.negatives is '{law}'"):
            Negatives(law, shared=True)
    with pytest.raises(InputError, match=r"exclude_known is true, but link\.negatives is 'given'"):
        Negatives("given", exclude_known=True)


@pytest.mark.parametrize(("law", "ends"), [*((law, "destination") for law in LAWS), ("degree", "both")])
def test_negatives_of_several_relations_are_those_of_each_alone(law, ends, monkeypatch):
    """By the law of each pair's own relation: as if the minibatch had its pairs of that relation only."""
    data = typed_dataset(degree=90)
    types = replace(data.graph.types, pair_relations=((2,), (0, 1), (3,)))
    graph = replace(data.graph, types=types)
    dst = np.repeat(np.arange(36), graph.in_degree)
    rows = np.stack([graph.indices, dst, np.zeros(len(dst), int), graph.edge_type], 1)[
        np.isin(graph.edge_type, (0, 2, 3))
    ]
    negatives = rows[::9].copy()
    negatives[:, 2] = 1
    table = np.concatenate([rows, negatives]).astype(np.int64)
    links = TrainPairs.from_graph(graph, Pairs(table, {"train": np.arange(len(rows))}), Negatives(law, 3, ends))
    numbers = np.random.default_rng(0).permutation(len(rows))[:24]
    made = links.with_negatives(numbers, KEY)
    assert np.array_equal(made[:, 0], table[numbers, :2])
    assert links.relation_indices(numbers).tolist() == [[2, 0, 3].index(r) for r in table[numbers, 3].tolist()]
    kinds = types.types_of(np.arange(36))
    for r in types.predicted:
        own = table[:, 3] == r
        alone = Pairs(table[own, :3], {"train": np.arange((own & (table[:, 2] == 0)).sum())})
        one = TrainPairs.from_graph(replace(graph, types=types.predicting(r)), alone, Negatives(law, 3, ends))
        at = np.flatnonzero(table[numbers, 3] == r)
        assert len(at) > 1 and (kinds[made[at]] == types.ends[r]).all()
        place = (np.cumsum(own) - 1)[numbers[at]]
        # The random words are those of the places in the whole minibatch.
        words = np.zeros(len(numbers), np.int64)
        words[at] = place
        if law == "batch":
            others = [
                {*made[at, 0, 1].tolist()} - ({v} if (made[at, 0, 1] == v).sum() == 1 else set())
                for v in made[at, 0, 1]
            ]
            assert all({*w.tolist()} <= o for w, o in zip(made[at, 1:, 1], others))
        else:
            assert np.array_equal(made[at], one.with_negatives(words, KEY)[at])
    # A minibatch makes no pass over the edges for each relation.
    with monkeypatch.context() as patch:
        patch.setattr(train_pairs, "of_pairs", None)
        assert np.array_equal(links.with_negatives(numbers, KEY), made)
    # A pair's own edges are those of its relation, and those of the reverse the other way.
    own = {(u, v, r) for u, v, _, r in table[numbers].tolist()}
    own |= {(v, u, 1) for u, v, r in own if r == 0}
    every = [e for e in zip(graph.indices.tolist(), dst.tolist(), graph.edge_type.tolist()) if e in own]
    assert links.lost_degree(numbers, np.arange(36)).tolist() == [sum(v == n for _, v, _ in every) for n in range(36)]


def test_laws_are_checked_for_each_relation_that_trains():
    data = typed_dataset(degree=90)
    graph = replace(data.graph, types=replace(data.graph.types, pair_relations=((0, 1), (4,))))
    table = np.array([[20, 3, 0, 0], [21, 33, 0, 4], [20, 4, 1, 0]])
    for law, said in (("degree", "the graph has no edges of chairs"), ("given", "no negatives of chairs are given")):
        TrainPairs.from_graph(graph, Pairs(table, {"train": np.array([0])}), Negatives(law))
        with pytest.raises(InputError, match=said):
            TrainPairs.from_graph(graph, Pairs(table, {"train": np.array([0, 1])}), Negatives(law))
