"""Loaders of a pair of PyG's stores: `Data` and `HeteroData` are stores too, so that both forms give the same bits."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, FeatureStore, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from millrace import LinkNeighborLoader, NeighborLoader
from millrace.storage.errors import InputError

BUYS, BACK = ("user", "buys", "item"), ("item", "rev_buys", "user")


def hetero() -> HeteroData:
    rng, data = torch.Generator().manual_seed(0), HeteroData()
    data["user"].x, data["item"].x = torch.arange(20), torch.arange(30.0)[:, None]
    data["user"].time, data["item"].time = torch.arange(20) % 5, torch.arange(30) % 7
    ends = torch.randint(20, (2, 100), generator=rng)
    data[BUYS].edge_index, data[BACK].edge_index = ends, ends.flip(0)
    return data


class Own(HeteroData):
    """A user's class."""


@pytest.mark.parametrize("options", [{}, {"time_attr": "time"}, {"disjoint": True}, {"subgraph_type": "induced"}])
def test_typed_stores_give_the_samples_of_their_data(options: dict[str, Any]) -> None:
    data = hetero()
    both = [
        NeighborLoader(d, [2, 2], "user", batch_size=6, seed=0, **options, **more)
        for d, more in ((data, {}), ((data, data), {"custom_cls": Own}))
    ]
    for one, two in zip(*both, strict=True):
        assert isinstance(two, Own) and two["user"].batch_size == one["user"].batch_size
        for t in data.node_types:
            assert torch.equal(one[t].n_id, two[t].n_id) and torch.equal(one[t].x, two[t].x)
        for r in data.edge_types:
            assert torch.equal(one[r].edge_index, two[r].edge_index) and torch.equal(one[r].e_id, two[r].e_id)


def test_stores_of_one_type() -> None:
    data = Data(x=torch.arange(10.0), time=torch.arange(10) % 4, edge_index=torch.randint(10, (2, 40)))
    features = MyFeatureStore()
    for name in ("x", "time"):
        features.put_tensor(data[name], group_name=None, attr_name=name, index=None)
    for options in ({}, {"time_attr": "time"}):
        both = [NeighborLoader(d, [2], batch_size=4, seed=1, **options) for d in (data, (features, data))]
        for one, two in zip(*both, strict=True):
            assert torch.equal(one.x, two.x) and torch.equal(one.e_id, two.e_id) and type(two) is Data


def test_pairs_of_stores() -> None:
    data = hetero()
    both = [LinkNeighborLoader(d, [2], BUYS, neg_sampling="binary", batch_size=9, seed=0) for d in (data, (data, data))]
    for one, two in zip(*both, strict=True):
        assert torch.equal(one[BUYS].edge_label_index, two[BUYS].edge_label_index)
        assert torch.equal(one["item"].x, two["item"].x)


def stores(size: Any, features: bool = True) -> tuple[FeatureStore, Any]:
    """Compressed columns, as a store of a user's own may have them."""
    tensors, graph = MyFeatureStore(), MyGraphStore()
    if features:
        tensors.put_tensor(torch.arange(5.0), group_name="a", attr_name="x", index=None)
    column = torch.tensor([3, 1, 4]), torch.tensor([0, 0, 2, 2, 2, 3])
    graph.put_edge_index(column, edge_type=("a", "to", "a"), layout="csc", size=size)
    return tensors, graph


@pytest.mark.parametrize("size", [(5, 5), None])
def test_layouts_and_sizes(size: Any) -> None:
    (batch,) = NeighborLoader(stores(size), [-1], "a", batch_size=5)
    assert batch["a"].x.tolist() == [0, 1, 2, 3, 4]
    assert batch["a", "to", "a"].edge_index.tolist() == [[1, 3, 4], [1, 1, 4]]
    assert batch["a", "to", "a"].e_id.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        ((3, 4, 5), {}, r"data is \(int, int, int\); expected a pair of FeatureStore and GraphStore"),
        (stores((5, 5)), {"weight_attr": "w"}, "weight_attr is not supported with feature stores"),
        (stores((5, 5)), {"time_attr": "t"}, "time_attr is 't'; expected the name of an attribute"),
        (stores(None, features=False), {}, "the stores do not tell the number of nodes of type 'a'"),
        ((MyFeatureStore(), MyGraphStore()), {}, "the GraphStore has no edges"),
    ],
)
def test_bad_stores_are_a_sentence(data: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        NeighborLoader(data, [2], "a", **options)
