"""Rankings, Hits@k, AUC and average precision of pairs, against counting by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.evaluate import links
from millrace.stages.evaluate.link_metrics import PairsOfSet, link_metrics
from millrace.stages.evaluate.links import KnownPairs, filtered_ranks, ranks_among, score_pairs
from millrace.stages.links.decoders import make_decoder
from millrace.storage.links.pairs import is_symmetric
from millrace.tests.contracts.graphs import graphs, sbm
from millrace.tests.contracts.typed import typed_graphs

ALL = links.LINK_METRICS
DOT = make_decoder("dot", 2)


def known_by_hand(graph, positives):
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    both = is_symmetric(graph)
    return {*zip(graph.indices.tolist(), dst.tolist()), *positives, *(p[::-1] for p in positives if both)}


@given(graphs(), st.data())
def test_ranks_are_counted_one_by_one(graph, data):
    n = graph.num_nodes
    if not n:
        return
    node = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=5, unique=True))
    labels = np.array([(*p, 0) for p in pairs], np.int64)
    # Few different numbers, so that scores are equal.
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), dtype=torch.float64)[:, None]
    known = KnownPairs.from_graph(graph, labels)
    linked = known_by_hand(graph, pairs)
    expected = []
    for u, v in pairs:
        others = [w for w in range(n) if w != u and (u, w) not in linked]
        own, scores = float(rows[u] * rows[v]), [float(rows[u] * rows[w]) for w in others]
        expected.append(1 + sum(s > own for s in scores) + sum(s == own for s in scores) / 2)
    for size in ((links.PAIRS, links.NODES), (2, 3), (1, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(links, "PAIRS", size[0])
            patch.setattr(links, "NODES", size[1])
            assert filtered_ranks(DOT, rows, labels[:, :2], known).tolist() == expected
    rowwise, destinations = known.destinations(labels[:, 0])
    assert {(pairs[i][0], w) for i, w in zip(rowwise.tolist(), destinations.tolist())} == {
        p for p in linked if p[0] in {u for u, _ in pairs}
    }


@settings(max_examples=30)
@given(typed_graphs(linked=True), st.data())
def test_with_types_ranks_are_among_nodes_of_the_destinations_type(graph, data):
    own, n = graph.edge_type == 0, graph.num_nodes
    edges = np.stack([graph.indices, np.repeat(np.arange(n), graph.in_degree)], 1)[own]
    if not len(edges):
        return
    pairs = edges[:5].astype(np.int64)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), dtype=torch.float64)[:, None]
    known = KnownPairs.from_graph(graph, np.insert(pairs, 2, 0, axis=1))
    linked, expected = {tuple(e) for e in edges.tolist()}, []
    for u, v in pairs.tolist():
        others = [w for w in known.ends[1] if w != u and (u, w) not in linked]
        mine, scores = float(rows[u] * rows[v]), [float(rows[u] * rows[w]) for w in others]
        expected.append(1 + sum(s > mine for s in scores) + sum(s == mine for s in scores) / 2)
    for size in ((links.PAIRS, links.NODES), (2, 3)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(links, "PAIRS", size[0])
            patch.setattr(links, "NODES", size[1])
            assert filtered_ranks(DOT, rows, pairs, known).tolist() == expected
    some = np.arange(graph.num_edges) % 3 == 0
    of_some = np.stack([graph.indices, np.repeat(np.arange(n), graph.in_degree)], 1)[own & some].astype(np.int64)
    early = KnownPairs.from_graph(graph, np.empty((0, 3), np.int64), some)
    assert early.keys.tolist() == sorted({u * n + v for u, v in of_some.tolist()})
    for u, w in known.unknown(20, "test").tolist():
        assert u in known.ends[0] and w in known.ends[1] and (u, w) not in linked


@pytest.mark.parametrize(("name", "width"), [("dot", 64), ("distmult", 130), ("complex", 6), ("mlp", 10)])
def test_equal_rows_have_equal_scores_wherever_they_stand(name, width, monkeypatch):
    """Among rows of a few kinds nearly all ranks are shared, and the smallest error of a score would part them."""
    draw = np.random.default_rng(width)
    kinds, kind = torch.randn(7, width, generator=torch.Generator().manual_seed(0)), draw.integers(7, size=611)
    decoder = make_decoder(name, width)
    pairs = draw.integers(611, size=(90, 2))
    known = KnownPairs(611, np.unique(draw.integers(611**2, size=3000)))
    # From float64, whose errors are below the differences of the kinds.
    exact = decoder.double().against(kinds.double(), kinds.double()).detach()[kind[pairs[:, 0]]][:, kind]
    own = exact[torch.arange(90), torch.from_numpy(pairs[:, 1])][:, None]
    above, equal = exact > own + 1e-9, (exact - own).abs() <= 1e-9
    out = np.zeros((90, 611), bool)
    out[known.destinations(pairs[:, 0])] = True
    out[np.arange(90), pairs[:, 0]] = True
    expected = 1 + (above & ~torch.from_numpy(out)).sum(1) + (equal & ~torch.from_numpy(out)).sum(1) / 2
    decoder.float()
    for size in ((links.PAIRS, links.NODES), (7, 100), (64, 37), (1, 611)):
        monkeypatch.setattr(links, "PAIRS", size[0])
        monkeypatch.setattr(links, "NODES", size[1])
        assert torch.equal(filtered_ranks(decoder, kinds[kind], pairs, known), expected.double()), size


@given(st.lists(st.integers(0, 4), min_size=1), st.lists(st.integers(0, 4)))
def test_ranks_among_given_negatives(positive, negative):
    found = ranks_among(torch.tensor(positive).float(), torch.tensor(negative).float())
    assert found.tolist() == [1 + sum(n > p for n in negative) + negative.count(p) / 2 for p in positive]


def test_all_metrics_of_given_negatives():
    labels = np.array([(0, 1, 0), (2, 3, 0), (0, 2, 2), (1, 3, 2), (4, 5, 3)], np.int64)
    rows = torch.tensor([[1.0, 0], [0.9, 0], [0, 1], [0, 0.2], [0.5, 0.5], [1, 1]])
    known = KnownPairs(6, np.empty(0, np.int64))
    found = link_metrics(DOT, rows, PairsOfSet(labels, np.array([0, 1]), "val"), ALL, lambda _: known).values
    # Scores: positives 0.9 and 0.2, negatives of val 0 and 0.
    assert found == dict.fromkeys(ALL, 1.0)
    rows[1] = -1
    # Now -1 and 0.2 against 0 and -0.2 + 0 of (1, 3) -> the first is last.
    found = link_metrics(DOT, rows, PairsOfSet(labels, np.array([0, 1]), "val"), ALL, lambda _: known).values
    assert found["mrr"] == pytest.approx((1 / 3 + 1) / 2) and found["auc"] == 0.5
    assert (found["hits@1"], found["hits@3"]) == (0.5, 1.0)
    diverged = link_metrics(
        DOT, rows * float("nan"), PairsOfSet(labels, np.array([0]), "val"), ALL, lambda _: known
    ).values
    assert all(np.isnan(value) for value in diverged.values())


def test_drawn_negatives_are_uniform_unlinked_pairs_and_always_the_same():
    graph = sbm(50)
    known = KnownPairs.from_graph(graph, np.empty((0, 3), np.int64))
    drawn = known.unknown(3000, "test")
    assert len(drawn) == 3000 and np.array_equal(drawn, known.unknown(3000, "test"))
    assert not known_by_hand(graph, []) & set(map(tuple, drawn.tolist()))
    assert (drawn[:, 0] != drawn[:, 1]).all() and (drawn != known.unknown(3000, "val")).any()
    free = [(u, v) for u in range(50) for v in range(50) if u != v and (u, v) not in known_by_hand(graph, [])]
    from scipy.stats import chisquare

    seen = np.bincount(drawn[:, 0] * 50 + drawn[:, 1], minlength=2500)
    assert chisquare(seen[[u * 50 + v for u, v in free]]).pvalue > 1e-3
    complete = KnownPairs(4, np.arange(16))
    assert len(complete.unknown(5, "test")) == 0
    labels = np.array([(0, 1, 0)])
    found = link_metrics(
        DOT, torch.ones(4, 2), PairsOfSet(labels, np.array([0]), "test"), ALL, lambda _: complete
    ).values
    assert found["mrr"] == 1 and np.isnan(found["auc"])


def test_scores_of_many_pairs_come_in_pieces(monkeypatch):
    rows, pairs = torch.randn(20, 2), np.random.default_rng(0).integers(20, size=(33, 2))
    whole = score_pairs(DOT, rows, pairs)
    monkeypatch.setattr(links, "CHUNK_BYTES", 64)
    torch.testing.assert_close(score_pairs(DOT, rows, pairs), whole)
    assert score_pairs(DOT, rows, pairs[:0]).shape == (0,)


@pytest.mark.parametrize("typed", [False, True])
@given(st.data())
@settings(max_examples=15)
def test_sources_are_ranked_one_by_one(typed, data):
    """Scores depend on the direction, so that a source that is ranked as a destination shows."""
    graph = data.draw(typed_graphs(linked=True) if typed else graphs())
    n = graph.num_nodes
    edges = np.stack([graph.indices, np.repeat(np.arange(n), graph.in_degree)], 1).astype(np.int64)
    edges = edges[graph.edge_type == 0] if typed else edges
    if not len(edges):
        return
    pairs, rows = (
        np.unique(edges[:4], axis=0),
        torch.tensor(
            data.draw(st.lists(st.tuples(st.integers(-1, 2), st.integers(-1, 2)), min_size=n, max_size=n)),
            dtype=torch.float64,
        ),
    )

    def skew(a, b):
        return a[:, 0] * b[:, 1]

    labels = np.insert(pairs, 2, 0, axis=1)
    known = KnownPairs.from_graph(graph, labels)
    linked = {tuple(e) for e in edges.tolist()} | (
        {tuple(e[::-1]) for e in edges.tolist()} if is_symmetric(graph) else set()
    )
    expected = []
    for u, v in pairs.tolist():
        among = range(n) if known.ends is None else known.ends[0]
        others = [w for w in among if w != v and (w, v) not in linked]
        own, scores = float(rows[u, 0] * rows[v, 1]), [float(rows[w, 0] * rows[v, 1]) for w in others]
        expected.append(1 + sum(s > own for s in scores) + sum(s == own for s in scores) / 2)
    ranks = filtered_ranks(links.Turned(skew), rows, pairs[:, ::-1].copy(), known.turned)
    assert ranks.tolist() == expected
    both = link_metrics(
        skew, rows, PairsOfSet(labels, np.arange(len(pairs)), "test"), ["mrr"], lambda one: known, ranks_sources=True
    )
    tails = filtered_ranks(skew, rows, pairs, known)
    assert both.values["mrr"] == pytest.approx(float((1 / torch.cat([tails, ranks])).mean()))
