"""The generated typed graph: its types, and its best answer."""

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint

SPEC = "hsbm:nodes=2000,classes=4,degree=10,noise=0.2,spread=0.1"


def votes(data, *relations):
    """[items, C]: similarity of the mean of the features of in-neighbours to each class's mean over the train nodes."""
    graph, x = data.graph, data.features.gather(np.arange(data.num_nodes)).astype(np.float64)
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    numbers = [graph.types.relation(name) for name in relations]
    own = np.isin(graph.edge_type, numbers) & (rows < data.num_targets)
    mean = np.zeros((data.num_targets, x.shape[1]))
    np.add.at(mean, rows[own], x[graph.indices[own]])
    train = data.split.train
    centres = np.stack([mean[train][data.labels[train] == c].mean(0) for c in range(4)])
    return -((mean[:, None] - centres) ** 2).sum(-1)


def test_relations_tell_the_class_and_their_union_only_a_pair_of_classes():
    data = mr.open_dataset(SPEC)
    assert data.graph.types.node_types == ("item", "user", "shop") and data.features.widths == (8, 16, 0)
    labels = data.labels[: data.num_targets]
    right = np.mean(votes(data, "likes").argmax(1) == labels)
    assert right == pytest.approx(0.8, abs=0.03)
    assert np.mean(votes(data, "likes", "dislikes").argmax(1) == labels) < 0.5
    assert "no model is more accurate than 0.8" in data.notes[0]


def test_it_is_a_function_of_its_text():
    assert dataset_fingerprint(mr.open_dataset(SPEC)) == dataset_fingerprint(mr.open_dataset(SPEC, name="other"))
    assert dataset_fingerprint(mr.open_dataset(SPEC)) != dataset_fingerprint(mr.open_dataset(SPEC + ",seed=1"))
    assert mr.open_dataset("hsbm:nodes=4,classes=2,train=0.5,val=0.25").num_nodes == 7


def test_a_wrong_key_is_refused():
    with pytest.raises(InputError, match="unknown key 'edges'; hsbm knows nodes"):
        mr.open_dataset("hsbm:edges=3")
