"""The k best destinations, against scores of all pairs in float64 and a sort of each row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from millrace.stages.evaluate import best_links, links
from millrace.stages.evaluate.best_links import NodeRows, best_destinations, merged
from millrace.stages.evaluate.links import KnownPairs, filtered_ranks
from millrace.stages.links.decoders import make_decoder
from millrace.storage.graph import from_edges
from millrace.tests.contracts.graphs import graphs
from millrace.tests.contracts.typed import typed_graphs
from millrace.tests.stages.evaluate.test_links import known_by_hand
from millrace.tests.stages.kernels.test_best_of_rows import best_by_sort

DOT = make_decoder("dot", 2)
SIZES = [(links.PAIRS, links.NODES), (2, 3), (1, 1), (5, 100)]


class Distance(nn.Module):
    """A decoder of a user, which scores pairs and has no products."""

    def forward(self, source, destination):
        return -(source - destination).abs().sum(-1)


def by_hand(decoder, rows, sources, k, known, linked):
    """The best by scores of all pairs."""
    among = known.candidates
    ends = torch.tensor([(u, w) for u in sources for w in among], dtype=torch.int64).reshape(-1, 2)
    with torch.no_grad():
        scores = decoder(rows[ends[:, 0]], rows[ends[:, 1]]).double().numpy().reshape(len(sources), len(among)).copy()
    for i, u in enumerate(sources):
        scores[i, [w - among.start for w in among if w == u or (u, w) in linked]] = -np.inf
    ids, best = best_by_sort(scores, k)
    return np.where(ids < 0, -1, ids + among.start), best


def found_in(decoder, rows, sources, k, known, size=SIZES[0], step=3, nodes=None, there=False):
    """All pieces of the best, with blocks of that size."""
    of = NodeRows(np.arange(len(rows)), rows) if nodes is None else NodeRows(nodes, rows[torch.from_numpy(nodes)])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("PAIRS", "NODES"), size):
            patch.setattr(links, name, value)
        if there:  # the operations of a device, on this one
            patch.setattr(best_links, "KERNEL_ON", ())
        pieces = list(best_destinations(decoder, of, np.array(sources, np.int64), k, known, step))
    assert [len(ids) for ids, _ in pieces] == [min(step, len(sources) - a) for a in range(0, len(sources), step)]
    return tuple(np.concatenate(arrays) for arrays in zip(*pieces))


def check(decoder, rows, sources, k, known, linked, **options):
    wanted = by_hand(decoder, rows, sources, k, known, linked)
    for size in SIZES:
        for there in (False, True):
            got = found_in(decoder, rows, sources, k, known, size, there=there, **options)
            for a, b in zip(got, wanted):
                assert np.array_equal(a, b), (size, there)


@given(graphs(), st.data())
def test_any_graph(graph, data):
    """One node, self loops, multi-edges, sources linked to everything, fewer than k candidates, and few different
    numbers, so that most scores are shared."""
    n = graph.num_nodes
    if not n:
        return
    node = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=5, unique=True))
    labels = np.array([(*p, 0) for p in pairs], np.int64).reshape(-1, 3)
    rows = torch.tensor(data.draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)), dtype=torch.float64)[:, None]
    sources = data.draw(st.lists(node, min_size=1, max_size=6))
    k = data.draw(st.integers(1, n))
    decoder = data.draw(st.sampled_from([DOT, Distance()]))
    check(decoder, rows, sources, k, KnownPairs.from_graph(graph, labels), known_by_hand(graph, pairs))
    check(decoder, rows, sources, k, KnownPairs(n, np.empty(0, np.int64)), set())


@settings(max_examples=30)
@given(typed_graphs(linked=True), st.data())
def test_with_types_they_are_of_the_destinations_type(graph, data):
    own, n = graph.edge_type == 0, graph.num_nodes
    linked = set(zip(graph.indices[own].tolist(), np.repeat(np.arange(n), graph.in_degree)[own].tolist()))
    known = KnownPairs.from_graph(graph, np.empty((0, 3), np.int64))
    assert known.ends is not None
    sources, k = list(known.ends[0]), len(known.candidates)
    if not sources or not k:
        return
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), dtype=torch.float32)[:, None]
    nodes = np.union1d(sources, np.array(known.candidates))
    check(DOT, rows, sources, k, known, linked, nodes=nodes)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(("name", "width"), [("dot", 64), ("distmult", 130), ("complex", 6), ("mlp", 10)])
def test_equal_rows_are_in_the_order_of_ids(name, width, there):
    """Among rows of a few kinds nearly all scores are shared, and the smallest error of one would change the order."""
    draw = np.random.default_rng(width)
    kinds, kind = torch.randn(7, width, generator=torch.Generator().manual_seed(0)), draw.integers(7, size=611)
    decoder, sources = make_decoder(name, width), draw.integers(611, size=90).tolist()
    known = KnownPairs(611, np.unique(draw.integers(611**2, size=3000)))
    linked = set(zip(*(ends.tolist() for ends in np.divmod(known.keys, 611))))
    decoder.double()
    exact = by_hand(decoder, kinds.double()[kind], sources, 200, known, linked)
    decoder.float()
    for size in (SIZES[0], (7, 100), (64, 37), (1, 611)):
        ids, scores = found_in(decoder, kinds[kind], sources, 200, known, size, step=40, there=there)
        assert np.array_equal(ids, exact[0]), size
        np.testing.assert_allclose(scores, exact[1], rtol=1e-4, atol=1e-4)
        assert scores.dtype == np.float32


@pytest.mark.usefixtures("one_thread")
def test_threads_pieces_and_reports_do_not_show(monkeypatch):
    rows, known = torch.randn(3000, 16), KnownPairs(3000, np.arange(0, 9_000_000, 7))
    sources = np.random.default_rng(0).permutation(3000)[:700].tolist()
    want = found_in(DOT, rows, sources, 20, known, step=700)
    monkeypatch.setattr(best_links, "BETWEEN_REPORTS", 1)
    monkeypatch.setattr(best_links, "CHUNKS_OF_THREAD", 1)
    torch.set_num_threads(2)
    for step in (1, 256, 300, 700):
        for a, b in zip(want, found_in(DOT, rows, sources, 20, known, step=step)):
            assert np.array_equal(a, b)
    reports: list[tuple[int, int]] = []
    of = NodeRows(np.arange(3000), rows)
    list(best_destinations(DOT, of, np.array(sources), 20, known, 600, lambda *at: reports.append(at)))
    assert reports == [(512, 700), (600, 700), (700, 700)]


def test_a_source_linked_to_everything_has_none():
    graph = from_edges(np.zeros(5, np.int64), np.arange(5), 5)
    known = KnownPairs.from_graph(graph, np.empty((0, 3), np.int64))
    ids, scores = found_in(DOT, torch.ones(5, 2), [0, 1], 3, known)
    assert ids.tolist() == [[-1, -1, -1], [0, 2, 3]] and scores.tolist() == [[-np.inf] * 3, [2.0] * 3]


@pytest.mark.parametrize("there", [False, True])
def test_scores_that_are_no_numbers_are_left_out(there):
    rows = torch.tensor([[1.0], [np.nan], [3], [-np.inf], [np.inf], [2]])
    ids, scores = found_in(DOT, rows, [0, 1], 6, KnownPairs(6, np.empty(0, np.int64)), there=there)
    assert ids.tolist() == [[4, 2, 5, -1, -1, -1], [-1] * 6]
    assert scores[0].tolist() == [np.inf, 3, 2] + [-np.inf] * 3


def test_a_decoder_without_products_ranks_too(monkeypatch):
    """As one that has them; a thread gives it few pairs at once."""
    rows, known = torch.randint(0, 5, (40, 3)).float(), KnownPairs(40, np.arange(0, 1600, 9))
    pairs, scores = np.stack(np.divmod(known.keys, 40), 1), -(rows[:, None] - rows).abs().sum(-1)
    left_out, ranks = torch.eye(40, dtype=torch.bool), []
    left_out.view(-1)[torch.from_numpy(known.keys)] = True
    for u, v in pairs.tolist():
        own, others = scores[u, v], scores[u][~left_out[u]]
        ranks.append(1 + float((others > own).sum()) + float((others == own).sum()) / 2)
    for limit in (links.OWN_BYTES, 100):
        monkeypatch.setattr(links, "OWN_BYTES", limit)
        assert filtered_ranks(Distance(), rows, pairs, known).tolist() == ranks


def test_no_sources_give_no_pieces():
    assert not list(best_destinations(DOT, NodeRows(np.arange(3), torch.ones(3, 2)), np.empty(0, np.int64), 2,
                                      KnownPairs(3, np.empty(0, np.int64)), 4))  # fmt: skip


@given(st.data())
def test_blocks_are_merged_as_a_sort_of_all(data):
    """Blocks of which everything, something and nothing is let in."""
    k, widths = data.draw(st.integers(1, 6)), data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    numbers = st.sampled_from([-np.inf, np.nan, 0.0, 1.0, 2.0, np.inf])
    total = sum(widths)
    table = data.draw(st.lists(st.lists(numbers, min_size=total, max_size=total), min_size=1, max_size=3))
    scores, first = torch.tensor(table), 0
    best, ids = torch.full((len(table), k), -torch.inf), torch.full((len(table), k), -1)
    for width in widths:
        best, ids = merged(best, ids, scores[:, first : first + width], first)
        first += width
    want_ids, want = best_by_sort(scores.numpy(), k)
    assert np.array_equal(ids.numpy(), want_ids) and np.array_equal(best.numpy(), want)
