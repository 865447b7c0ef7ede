"""Runs on graphs with several types whose edges have features: what only these say is learnt, from memory and from
disk, on any number of ranks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.phase_ranks import train_phases

ITEMS, USERS, CLASSES = 90, 40, 3
RATES, LIKE = ("user", "rates", "item"), ("item", "like", "item")
MODEL = {"name": "rgat", "hidden": 8, "heads": 2, "layers": 2, "dropout": 0.0, "edge_width": 2}
JOB: dict[str, Any] = {"epochs": 2, "seed": 1, "lr": 0.05, "threads": 1, "dtype": "float64", "batch_size": 18}
TABLE = {**JOB, "system": "bulk", "model": MODEL}
ALL = {**TABLE, "batch_size": 54, "fanout": [-1, -1]}
"""All edges of all seeds at once: nothing is drawn, so that the numbering of nodes cannot show."""


def made(width: int = 2) -> mr.Dataset:
    """Users have kinds; their edges are marked where the kind is the class of the item: whom to listen to."""
    rng = np.random.default_rng(0)
    kind, y = rng.integers(0, CLASSES, USERS), rng.integers(0, CLASSES, ITEMS)
    src, dst = rng.integers(0, USERS, 700), rng.integers(0, ITEMS, 700)
    marks = np.stack([kind[src] == y[dst], *rng.random((width - 1, 700))], 1)
    edges = {
        RATES: (src, dst),
        ("item", "seen_by", "user"): (dst, src),
        LIKE: rng.integers(0, ITEMS, (2, 120)),
    }
    return mr.from_relations(
        edges, y, target="item", split="fraction:0.6,0.2", edge_features={RATES: marks, LIKE: rng.random(120)},
        features={"item": rng.random((ITEMS, 1)), "user": np.eye(CLASSES)[kind]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return made()


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("typed") / "store"
    mr.write_dataset(path, data, features_format="npy")
    return path


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """Parameters of a run of one rank over all edges."""
    out = tmp_path_factory.mktemp("typed") / "whole"
    train_bulk(str(store), out, ALL)
    return last_parameters(out)


def alike(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-8, atol=1e-9)


def test_only_edges_say_whom_to_listen_to(data, store, tmp_path):
    options: dict[str, Any] = {**JOB, "epochs": 8, "fanout": [8, 2], "verbose": False}
    all_of_them = {**MODEL, "edge_width": -1}
    edges = mr.run(store, out=tmp_path / "edges", config={"model": all_of_them}, features="mapped", **options)
    none = {**MODEL, "edge_width": 0}
    nodes = mr.run(data, out=tmp_path / "nodes", config={"model": none}, **options)
    assert edges.test_accuracy > 0.85 and nodes.test_accuracy < 0.6
    assert edges.types["edge_widths"] == [2, 0, 1] and (edges.num_edge_features, nodes.num_edge_features) == (2, 0)
    assert "edge_features" in edges.fingerprint and "edge_features" not in nodes.fingerprint
    found = mr.predict(tmp_path / "edges", data, nodes="test")
    assert np.mean(found.classes == data.labels[found.nodes]) == edges.test_accuracy
    with pytest.raises(InputError, match=r"has the edge widths \[3, 0, 1\], but rgat of .* reads \[2, 0, 1\]"):
        mr.predict(tmp_path / "edges", made(3))
    with pytest.raises(InputError, match=r"model.edge_width is 3, but edges of relations have 2 features"):
        mr.run(data, out=tmp_path / "x", config={"model": {**MODEL, "edge_width": 3}}, **options)


class Own(nn.Module):
    """The sum of what marked edges bring."""

    num_layers, reads_edges = 1, True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(CLASSES, CLASSES)

    def layer(self, i, neighbourhood, h):
        out = h.new_zeros(neighbourhood.num_dst, CLASSES)
        for relation in neighbourhood.relations():
            if relation.type == RATES:
                mark, own = relation.edge_features[:, :1], h[relation.targets]
                near = relation.apply(lambda a, b, weight, edge: edge * a, h, own, edge=mark)
                out = out.index_add(0, relation.targets, self.linear(near))
        return out


def test_a_layer_of_ones_own_over_relations(data, tmp_path):
    result = mr.run(data, model=Own(), out=tmp_path / "own", fanout=[8], verbose=False, **{**JOB, "epochs": 12})
    assert result.test_accuracy > 0.85
    unsaid = type("Unsaid", (Own,), {"reads_edges": False})()
    with pytest.raises(InputError, match="the model reads features of edges, but there are none here"):
        mr.run(data, model=unsaid, out=tmp_path / "x", fanout=[8], verbose=False, **JOB)


@pytest.mark.parametrize("topology", ["owned rows", "blocks of rows"])
def test_ranks_train_the_parameters_of_one(data, store, whole, tmp_path, topology):
    """Minibatches of two ranks are halves of the one; an item's edges lie with their owners."""
    two = {**ALL, "ranks": 2, "minibatches_per_step": 2, "batch_size": 27}
    if topology == "owned rows":
        reports = train_bulk(str(store), tmp_path / "2", {**two, "features": "owned"})
    else:
        cut = {"bulk": {"topology": "partitioned"}, "partition": {"method": "hash"}}
        reports = train_phases(data, tmp_path / "2", {**two, **cut})
    alike(whole, last_parameters(tmp_path / "2"))
    assert reports[0]["bytes"]["network"]["features"] > 0


def test_full_batches_over_ranks_train_the_parameters_of_one(data, tmp_path):
    table = {k: v for k, v in TABLE.items() if k != "batch_size"} | {"system": "sar", "partition": {"method": "hash"}}
    mr.run(data, config=table, out=tmp_path / "1", verbose=False)
    train_phases(data, tmp_path / "2", {**table, "ranks": 2})
    alike(last_parameters(tmp_path / "1"), last_parameters(tmp_path / "2"))


def test_inspect_says_which_relations_have_them(data, store):
    code, out, error = command("inspect", store)
    assert code == 0, error
    said = " ".join(out.split())
    assert "edge features of float32, for each relation" in said
    assert "user rates item 700 (2 features), item seen_by user 700, item like item 120 (1 feature)" in said
