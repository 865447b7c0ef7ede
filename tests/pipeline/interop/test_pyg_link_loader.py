"""`LinkNeighborLoader` against PyG's documented fields and order, exact neighbourhoods, and the laws of negatives."""

import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import k_hop_subgraph

from millrace import LinkNeighborLoader
from millrace.storage.errors import InputError

V = 40


def graph(edges: int = 160) -> Data:
    rng = torch.Generator().manual_seed(0)
    edge_index = torch.randint(V, (2, edges), generator=rng)
    return Data(x=torch.arange(V)[:, None].float(), at=torch.arange(V) % 9, edge_index=edge_index)


PAIRS = torch.randint(V, (2, 23), generator=torch.Generator().manual_seed(1))
CASES = [None, "binary", NegativeSampling("binary", 0.5), "triplet", {"mode": "triplet", "amount": 3}]


def ends(batch, triplet):
    """Global ends of the positive pairs and of the negatives, [n, 2] each."""
    if not triplet:
        pairs = batch.n_id[batch.edge_label_index].T
        count = len(batch.input_id)
        return pairs[:count], pairs[count:]
    source, positive = batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]
    negative = batch.n_id[batch.dst_neg_index].reshape(len(source), -1)
    repeated = source[:, None].expand_as(negative)
    return torch.stack([source, positive], 1), torch.stack([repeated, negative], 2).reshape(-1, 2)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_minibatches_have_the_pairs_and_their_whole_neighbourhoods(case, disjoint):
    data, law = graph(), CASES[case]
    cast = NegativeSampling.cast(law)
    triplet = cast is not None and cast.is_triplet()
    loader = LinkNeighborLoader(data, [-1, -1], PAIRS, neg_sampling=law, batch_size=8, shuffle=True, disjoint=disjoint)
    assert len(loader) == 3
    seen = []
    for batch in loader:
        positive, negative = ends(batch, triplet)
        count = len(batch.input_id)
        seen += batch.input_id.tolist()
        assert torch.equal(positive, PAIRS.T[batch.input_id])
        assert torch.equal(batch.x[:, 0], batch.n_id.float())
        amount = 0 if cast is None else cast.amount
        assert len(negative) == -(-count * amount // 1)
        seeds = torch.cat([positive, negative]).unique()
        nodes, _, _, _ = k_hop_subgraph(seeds, 2, data.edge_index, num_nodes=V)
        if not disjoint:
            assert torch.equal(batch.n_id.sort().values, nodes)
            assert torch.equal(batch.n_id[: len(seeds)], seeds) and batch.num_sampled_nodes[0] == len(seeds)
            # Every in-edge of the seeds and of their in-neighbours, once.
            rows, _, _, _ = k_hop_subgraph(seeds, 1, data.edge_index, num_nodes=V)
            wanted = torch.isin(data.edge_index[1], rows).nonzero()[:, 0]
            assert torch.equal(batch.e_id.sort().values, wanted)
        else:
            assert torch.equal(batch.n_id.unique(), nodes) and batch.num_sampled_nodes[0] >= 2 * count
            assert int(batch.batch.max()) < count
            # Both ends of a pair are in its tree.
            where = batch.edge_label_index[:, :count] if not triplet else [batch.src_index, batch.dst_pos_index]
            assert all(torch.equal(batch.batch[at], torch.arange(count)) for at in where)
            if triplet:
                tree = batch.batch[batch.dst_neg_index].reshape(count, -1)
                assert (tree == torch.arange(count)[:, None]).all()
        if triplet:
            assert "edge_label_index" not in batch and "edge_label" not in batch
            assert batch.dst_neg_index.shape == ((count,) if amount == 1 else (count, 3))
        elif law is None:
            assert "edge_label" not in batch
        else:
            assert batch.edge_label.tolist() == [1.0] * count + [0.0] * len(negative)
        assert "batch_size" not in batch
    assert sorted(seen) == list(range(23))


def test_labels_are_those_of_the_pairs():
    labels = torch.arange(23) % 3
    plain = LinkNeighborLoader(graph(), [2], PAIRS, labels, batch_size=23)
    assert torch.equal(next(iter(plain)).edge_label, labels)
    binary = LinkNeighborLoader(graph(), [2], PAIRS, labels, neg_sampling_ratio=2, batch_size=23)
    assert torch.equal(next(iter(binary)).edge_label, torch.cat([labels + 1, torch.zeros(46, dtype=torch.int64)]))
    above = LinkNeighborLoader(graph(), [2], PAIRS, labels + 1, neg_sampling="binary", batch_size=23)
    assert torch.equal(next(iter(above)).edge_label[:23], labels + 1)
    every = LinkNeighborLoader(graph(), [2], batch_size=200)
    batch = next(iter(every))
    assert torch.equal(batch.n_id[batch.edge_label_index], graph().edge_index)
    named = LinkNeighborLoader(graph(), [2], PAIRS, input_id=torch.arange(23) + 100, batch_size=23)
    assert next(iter(named)).input_id.tolist() == list(range(100, 123))


def test_negatives_have_their_laws():
    weight = torch.arange(V).double()
    law = NegativeSampling("binary", 200, src_weight=weight)
    batch = next(iter(LinkNeighborLoader(graph(), [1], PAIRS, neg_sampling=law, batch_size=23, seed=1)))
    _, negative = ends(batch, False)
    source, destination = (np.bincount(negative[:, i], minlength=V) for i in (0, 1))
    assert source[0] == 0
    assert chisquare(source[1:], (weight[1:] / weight.sum()).numpy() * source.sum()).pvalue > 1e-3
    assert chisquare(destination).pvalue > 1e-3
    # Sources and destinations are drawn apart.
    pairs = Counter(map(tuple, (negative // 20).tolist()))
    share = np.outer([weight[:20].sum(), weight[20:].sum()], [0.5, 0.5]) / weight.sum().item()
    found = [pairs[i, j] for i in (0, 1) for j in (0, 1)]
    assert chisquare(found, share.reshape(-1) * sum(found)).pvalue > 1e-3


@pytest.mark.parametrize("law", ["binary", "triplet"])
def test_a_seed_fixes_minibatches_whatever_the_bulk(law):
    def epochs(**options):
        loader = LinkNeighborLoader(
            graph(), [2, 1], PAIRS, neg_sampling=law, batch_size=4, seed=7, shuffle=True, **options
        )
        return [[(b.n_id.tolist(), b.e_id.tolist(), b.input_id.tolist()) for b in loader] for _ in range(2)]

    first = epochs()
    assert first == epochs(bulk_size=1) == epochs(bulk_size=3, prefetch_bulks=2) and first[0] != first[1]


def test_positions_are_sampled_at_once():
    loader = LinkNeighborLoader(graph(), [-1], PAIRS, neg_sampling="binary", batch_size=4)
    batch = loader([3, 1])
    assert torch.equal(ends(batch, False)[0], PAIRS.T[[3, 1]]) and batch.edge_label.tolist() == [1, 1, 0, 0]
    assert batch.n_id.tolist() != loader([3, 1]).n_id.tolist()
    empty = LinkNeighborLoader(graph(), [2], PAIRS[:, :0], neg_sampling="triplet")
    assert not list(empty)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"edge_label_index": PAIRS + V}, r"sources of edge_label_index lie in \[4\d, 7\d\]; expected \[0, 40\)"),
        ({"edge_label_index": PAIRS[0]}, r"edge_label_index is torch|edge_label_index is int64\[23\]"),
        ({"edge_label_index": PAIRS.float()}, "expected integer node ids"),
        ({"edge_label_index": (("a", "to", "b"), PAIRS)}, "names an edge type"),
        ({"edge_label": torch.ones(3)}, r"edge_label has shape \[3\]"),
        ({"edge_label": torch.ones(23), "neg_sampling": "triplet"}, "beside triplets"),
        ({"edge_label_time": torch.ones(23)}, "'time_attr' is not set, but edge_label_time is"),
        ({"time_attr": "at"}, "'edge_label_time' is not set, but time_attr is"),
        ({"time_attr": "at", "edge_label_time": torch.ones(3)}, r"edge_label_time has shape \[3\]; expected \[23\]"),
        ({"neg_sampling": "all"}, "neg_sampling is 'all'"),
        ({"neg_sampling": {"mode": "triplet", "amount": 0.5}}, "neg_sampling is"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.ones(3))}, "neg_sampling.src_weight has shape"),
        ({"neg_sampling": NegativeSampling("binary", 1, None, torch.zeros(V))}, "not all 0"),
        ({"input_nodes": torch.arange(3)}, "expected pairs"),
        ({"batchsize": 3}, "batchsize"),
    ],
)
def test_bad_arguments_are_a_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence):
        LinkNeighborLoader(graph(), [2], **{"edge_label_index": PAIRS, **options})


def test_data_without_edges_needs_pairs():
    with pytest.raises(InputError, match="data has no edges"):
        LinkNeighborLoader(Data(x=torch.ones(3, 1)), [2])


# --- several types
# ----------------------------------------------------------------------------------------------------------------------

BUYS, LIKES, BACK = ("user", "buys", "item"), ("user", "likes", "user"), ("item", "rev_buys", "user")
SIZES = {"item": 30, "user": 25}


def hetero():
    rng, data = torch.Generator().manual_seed(0), HeteroData()
    for t, n in SIZES.items():
        data[t].x, data[t].at = torch.arange(n), torch.arange(n) % 9
    for r, count in ((BUYS, 90), (LIKES, 60), (BACK, 80)):
        data[r].edge_index = torch.stack([torch.randint(SIZES[t], (count,), generator=rng) for t in (r[0], r[2])])
        data[r].e = torch.arange(count)
    return data


def typed_ends(batch, kind, triplet):
    """`ends`, of a HeteroData."""
    source, destination = batch[kind[0]], batch[kind[2]]
    if not triplet:
        at, count = batch[kind].edge_label_index, len(batch[kind].input_id)
        pairs = torch.stack([source.n_id[at[0]], destination.n_id[at[1]]], 1)
        return pairs[:count], pairs[count:]
    first = source.n_id[source.src_index]
    negative = destination.n_id[destination.dst_neg_index].reshape(len(first), -1)
    repeated = first[:, None].expand_as(negative)
    positive = torch.stack([first, destination.n_id[destination.dst_pos_index]], 1)
    return positive, torch.stack([repeated, negative], 2).reshape(-1, 2)


@pytest.mark.parametrize("kind", [BUYS, LIKES])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_pairs_of_an_edge_type(case, disjoint, kind):
    data, law = hetero(), CASES[case]
    cast = NegativeSampling.cast(law)
    triplet = cast is not None and cast.is_triplet()
    pairs = data[kind].edge_index[:, 1::3]
    options = {"neg_sampling": law, "batch_size": 8, "shuffle": True, "disjoint": disjoint}
    seen = []
    for batch in LinkNeighborLoader(data, [-1], (kind, pairs), **options):
        assert isinstance(batch, HeteroData) and batch.input_type == kind
        positive, negative = typed_ends(batch, kind, triplet)
        store, count = batch[kind], len(batch[kind].input_id)
        seen += store.input_id.tolist()
        assert torch.equal(positive, pairs.T[store.input_id])
        assert len(negative) == -(-count * (0 if cast is None else cast.amount) // 1)
        both = torch.cat([positive, negative])
        for t in SIZES:
            assert torch.equal(batch[t].x, batch[t].n_id) and len(batch[t].n_id) == sum(batch[t].num_sampled_nodes)
            # The seeds of a type are its ends, and come first.
            seeds = torch.cat([both[:, i] for i in (0, 1) if kind[2 * i] == t] or [both[:0, 0]])
            first = batch[t].n_id[: batch[t].num_sampled_nodes[0]]
            assert torch.equal(first.unique(), seeds.unique()) and (disjoint or torch.equal(first, seeds.unique()))
            for r in data.edge_types:
                if r[2] == t and not disjoint:
                    wanted = torch.isin(data[r].edge_index[1], seeds).nonzero()[:, 0]
                    assert torch.equal(batch[r].e.sort().values, wanted)
        source, destination = batch[kind[0]], batch[kind[2]]
        if disjoint:
            here = (source.src_index, destination.dst_pos_index) if triplet else store.edge_label_index[:, :count]
            assert all(torch.equal(s.batch[at], torch.arange(count)) for s, at in zip((source, destination), here))
            assert all((batch[t].batch < count).all() for t in SIZES)
        if triplet:
            assert "edge_label_index" not in store and destination.dst_neg_index.shape[0] == count
            if disjoint:
                tree = destination.batch[destination.dst_neg_index].reshape(count, -1)
                assert (tree == torch.arange(count)[:, None]).all()
        elif law is not None:
            assert store.edge_label.tolist() == [1.0] * count + [0.0] * len(negative)
    assert sorted(seen) == list(range(pairs.shape[1]))


@pytest.mark.parametrize(
    "named", [BUYS, ("user", "item"), ("buys",), (BUYS, None), (("user", "item"), None), ["user", "item"]]
)
def test_an_edge_type_alone_means_all_its_edges(named):
    batch = next(iter(LinkNeighborLoader(hetero(), [1], named, batch_size=200)))
    assert torch.equal(typed_ends(batch, BUYS, False)[0], hetero()[BUYS].edge_index.T)


def test_negatives_of_an_edge_type_have_the_law_of_its_types():
    data = hetero()
    weight = torch.arange(25.0)
    law = NegativeSampling("binary", 60, src_weight=weight)
    (batch,) = LinkNeighborLoader(data, [1], (BUYS, data[BUYS].edge_index), neg_sampling=law, batch_size=90, seed=0)
    _, negative = typed_ends(batch, BUYS, False)
    users, items = np.bincount(negative[:, 0], minlength=25), np.bincount(negative[:, 1], minlength=30)
    assert users[0] == 0 and chisquare(users[1:], (weight[1:] / weight.sum()).double().numpy() * 5400).pvalue > 1e-3
    assert len(items) == 30 and chisquare(items).pvalue > 1e-3


# --- times
# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [None, "binary", "triplet"])
@pytest.mark.parametrize("typed", [False, True])
def test_nothing_is_later_than_its_pair(typed, law):
    data = hetero()
    kind, time = BUYS, torch.arange(90) % 8
    if not typed:
        data, time = graph(), torch.arange(160) % 8
    options = {"time_attr": "at", "edge_label_time": time, "neg_sampling": law, "batch_size": 16, "shuffle": True}
    for batch in LinkNeighborLoader(data, [3, 2], kind if typed else None, **options):
        pairs = batch[kind] if typed else batch
        count, mine = len(pairs.input_id), time[pairs.input_id]
        stores = [batch[t] for t in SIZES] if typed else [batch]
        if law == "triplet":
            assert all(torch.equal(store.seed_time, mine) for store in stores)
            negative = batch["item"].dst_neg_index if typed else batch.dst_neg_index
            assert (stores[0].at[negative] <= mine).all(), "a negative that was not there yet"
        else:
            again = mine if law is None else torch.cat([mine, mine])
            assert torch.equal(pairs.edge_label_time, again)
            if law == "binary":
                ends = [batch[kind[0]], batch[kind[2]]] if typed else [batch, batch]
                assert all((s.at[i[count:]] <= mine).all() for s, i in zip(ends, pairs.edge_label_index))
        # What was found in a tree is not later than its pair; the pair's own ends may be.
        for store in stores:
            found = slice(store.num_sampled_nodes[0], None)
            assert (store.at[found] <= mine[store.batch[found]]).all()


def test_negatives_at_a_time_have_their_law():
    data = Data(edge_index=torch.tensor([[0], [1]]), at=torch.tensor([3, 0, 5, 1, 1, 9]), num_nodes=6)
    weight = torch.tensor([2.0, 0, 3, 1, 4, 5])
    pairs = torch.zeros(2, 4000, dtype=torch.int64)
    time = torch.tensor([3, 0]).repeat(2000)
    for given, law in ((None, [1, 1, 0, 1, 1, 0]), (weight, [2, 0, 0, 1, 4, 0])):
        sampling = NegativeSampling("triplet", 1, dst_weight=given)
        options = {"time_attr": "at", "edge_label_time": time, "neg_sampling": sampling, "batch_size": 4000}
        (batch,) = LinkNeighborLoader(data, [1], pairs, seed=0, **options)
        drawn = batch.n_id[batch.dst_neg_index].view(2000, 2)
        # At 0 only node 1 is there; of no weight, it is the earliest.
        assert (drawn[:, 1] == 1).all()
        found, p = np.bincount(drawn[:, 0], minlength=6), np.array(law) / sum(law)
        assert not found[p == 0].any() and chisquare(found[p > 0], p[p > 0] * 2000).pvalue > 1e-3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "edge_label_index is for a HeteroData, and needs an edge type"),
        (PAIRS, "edge_label_index is for a HeteroData, and needs an edge type"),
        (("user", "owns", "item"), "names the edge type user,owns,item, which has no edges"),
        (("user", "buys", "itm"), "edge_label_index: there is no node type 'itm'.*did you mean 'item'"),
        (
            (BUYS, torch.full((2, 1), 29)),
            r"sources of edge_label_index of 'user' lie in \[29, 29\]; expected \[0, 25\)",
        ),
        ((BUYS, PAIRS, PAIRS), "edge_label_index has 3 parts"),
        (((3,), PAIRS), r"edge_label_index is \(3,\); expected an edge type"),
    ],
)
def test_bad_pairs_of_types_are_a_sentence(given, sentence):
    with pytest.raises(InputError, match=sentence):
        LinkNeighborLoader(hetero(), [2], given)


def test_pairs_of_a_type_without_edges():
    data = HeteroData()
    data["a"].num_nodes = 5
    loader = LinkNeighborLoader(data, [2], (("a", "a"), torch.tensor([[3, 1], [3, 2]])), neg_sampling="binary")
    assert [typed_ends(b, ("a", "to", "a"), False)[0].tolist() for b in loader] == [[[3, 3]], [[1, 2]]]


def test_labels_that_have_negatives_already_are_told_of() -> None:
    """As `RandomLinkSplit` makes them: 0 and 1 become 1 and 2 beside drawn negatives, as in PyG."""
    edges = torch.stack([torch.arange(8), (torch.arange(8) + 1) % 8])
    data, labels = Data(x=torch.randn(8, 2), edge_index=edges), torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
    pairs = {"num_neighbors": [2], "edge_label_index": edges, "edge_label": labels, "batch_size": 8}
    with pytest.warns(UserWarning, match="edge_label has 0 already.*become 1 to 2"):
        loader = LinkNeighborLoader(data, neg_sampling="binary", **pairs)
    assert set(next(iter(loader)).edge_label.tolist()) == {0, 1, 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LinkNeighborLoader(data, **pairs)
        LinkNeighborLoader(data, neg_sampling="binary", **pairs | {"edge_label": labels + 1})
        LinkNeighborLoader(data, neg_sampling="binary", **pairs | {"edge_label": labels / 2})


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_classes_beside_drawn_negatives_are_told_of(ratio: float) -> None:
    """`RandomLinkSplit` makes 0 to 3 of classes 0 to 2, and PyG's loader 1 to 4 of these."""
    edges = torch.stack([torch.arange(30), (torch.arange(30) + 1) % 30])
    data = Data(x=torch.randn(30, 2), edge_index=edges, edge_label=torch.arange(30) % 3)
    split = RandomLinkSplit(0.2, 0.2, neg_sampling_ratio=ratio, add_negative_train_samples=True)
    found = split(data)[0]
    pairs = {"edge_label_index": found.edge_label_index, "edge_label": found.edge_label}
    last = int(found.edge_label.max())
    with pytest.warns(UserWarning, match=f"edge_label has 0 already.*become 1 to {last + 1}, "):
        loader = LinkNeighborLoader(data, [2], neg_sampling="binary", batch_size=100, **pairs)
    assert set(next(iter(loader)).edge_label.tolist()) == set(range(last + 2))
