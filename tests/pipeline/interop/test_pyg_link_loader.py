"""`LinkNeighborLoader` against PyG's documented fields and order, exact neighbourhoods, and the laws of negatives."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.utils import k_hop_subgraph

from millrace import LinkNeighborLoader
from millrace.storage.errors import InputError

V = 40


def graph(edges: int = 160) -> Data:
    rng = torch.Generator().manual_seed(0)
    return Data(x=torch.arange(V)[:, None].float(), edge_index=torch.randint(V, (2, edges), generator=rng))


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
        ({"edge_label_index": PAIRS + V}, "edge_label_index lies in"),
        ({"edge_label_index": PAIRS[0]}, r"edge_label_index is torch|edge_label_index is int64\[23\]"),
        ({"edge_label_index": PAIRS.float()}, "expected integer node ids"),
        ({"edge_label_index": (("a", "to", "b"), PAIRS)}, "names an edge type"),
        ({"edge_label": torch.ones(3)}, r"edge_label has shape \[3\]"),
        ({"edge_label": torch.ones(23), "neg_sampling": "triplet"}, "beside triplets"),
        ({"edge_label_time": torch.ones(23)}, "edge_label_time is not supported"),
        ({"time_attr": "t"}, "time_attr is not supported"),
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


def test_other_data_is_refused():
    with pytest.raises(InputError, match="HeteroData"):
        LinkNeighborLoader(HeteroData(), [2], PAIRS)
    with pytest.raises(InputError, match="data has no edges"):
        LinkNeighborLoader(Data(x=torch.ones(3, 1)), [2])
