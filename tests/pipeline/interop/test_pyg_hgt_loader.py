"""`HGTLoader` against PyG's documented fields and order; its law: `tests/stages/sample/single/test_hgt.py`."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from millrace import HGTLoader
from millrace.pipeline.interop.pyg_arguments import UnknownArgumentError
from millrace.storage.errors import InputError

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def hetero() -> HeteroData:
    rng, data = torch.Generator().manual_seed(0), HeteroData()
    data["paper"].x, data["author"].x, data["venue"].num_nodes = torch.arange(60), torch.arange(60, 100), 4
    data[CITES].edge_index = torch.randint(60, (2, 300), generator=rng)
    data[WRITES].edge_index = torch.stack([torch.randint(n, (200,), generator=rng) for n in (40, 60)])
    data[WRITES].edge_attr = torch.arange(200)
    return data


def test_fields_and_order() -> None:
    data, mask = hetero(), torch.arange(60) < 25
    loader = HGTLoader(data, {"paper": [4, 3], "author": [5, 0], "venue": [2, 2]}, ("paper", mask), batch_size=10)
    assert len(loader) == 3 and str(loader) == "HGTLoader()"
    for i, batch in enumerate(loader):
        paper, author, venue = (batch[t] for t in ("paper", "author", "venue"))
        assert batch.input_type == "paper" and set(paper.keys()) == {"x", "n_id", "input_id", "batch_size"}
        size = paper.batch_size
        assert paper.n_id[:size].tolist() == paper.input_id.tolist() == list(range(10 * i, 10 * i + size))
        assert len(paper.n_id) == size + 7 and len(author.n_id) == 5 and len(venue.n_id) == 0
        assert all((part.diff() > 0).all() for part in torch.split(paper.n_id, [size, 4, 3]))
        assert torch.equal(paper.x, paper.n_id) and torch.equal(author.x, author.n_id + 60)
        for relation in (CITES, WRITES):
            store, ends = batch[relation], zip((relation[0], relation[2]), batch[relation].edge_index)
            assert torch.equal(
                torch.stack([batch[t].n_id[e] for t, e in ends]), data[relation].edge_index[:, store.e_id]
            )
            ends = zip((relation[0], relation[2]), data[relation].edge_index)
            inside = torch.stack([torch.isin(e, batch[t].n_id) for t, e in ends]).all(0).nonzero().flatten()
            assert store.e_id.sort().values.tolist() == inside.tolist()
        assert torch.equal(batch[WRITES].edge_attr, batch[WRITES].e_id)


def test_samples_follow_the_seed_not_bulks() -> None:
    def epochs(**options: Any) -> list[Any]:
        loader = HGTLoader(hetero(), [5, 5], "paper", batch_size=7, shuffle=True, seed=3, **options)
        return [[(b["paper"].n_id.tolist(), b["author"].n_id.tolist()) for b in loader] for _ in range(2)]

    first = epochs()
    assert first == epochs(bulk_size=1) == epochs(bulk_size=3, prefetch_bulks=2) and first[0] != first[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data": Data(num_nodes=3)}, "data has no types; HGTLoader expects a torch_geometric.data.HeteroData"),
        ({"num_samples": {"paper": [2], "authr": [2]}}, "node type 'authr', which is not there.*did you mean 'author'"),
        ({"num_samples": {"paper": [2], "author": [2]}}, "num_samples has nothing for the node type 'venue'"),
        ({"num_samples": {"paper": [2], "author": [2, 1], "venue": [0]}}, r"num_samples has \[1, 2, 1\] rounds"),
        ({"num_samples": []}, r"num_samples has \[0, 0, 0\] rounds"),
        ({"num_samples": [2, -1]}, r"num_samples is \[2, -1\]; expected numbers of nodes.*0 or more"),
        ({"num_samples": 3}, "num_samples is 3; expected numbers of nodes"),
        ({"input_nodes": "venues"}, "there is no node type 'venues'"),
    ],
)
def test_bad_arguments_are_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        HGTLoader(**{"data": hetero(), "num_samples": [2], "input_nodes": "paper", **options})


@pytest.mark.parametrize("name", ["disjoint", "time_attr", "batchsize"])
def test_arguments_of_other_loaders_are_refused(name: str) -> None:
    with pytest.raises(UnknownArgumentError, match=f"has no argument '{name}'"):
        HGTLoader(hetero(), [2], "paper", **{name: 1})
