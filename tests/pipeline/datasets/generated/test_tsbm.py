"""The generated temporal communities: what the past tells, and what all edges tell."""

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint

SPEC = "tsbm:nodes=3000,degree=8,homophily=0.7,noise=0"


def test_the_majority_of_the_past_tells_the_class_and_all_edges_leave_two():
    data = mr.open_dataset(SPEC)
    graph, half = data.graph, 1500
    destination = np.repeat(np.arange(3000), graph.in_degree)
    # Members of one community have one row of features.
    community = np.unique(data.features.gather(np.arange(3000)).round(4)[half:], axis=0, return_inverse=True)[1]
    past = graph.edge_time <= graph.node_time[destination]
    assert past[destination < half].mean() == 0.5

    def right(edges):
        votes = np.zeros((half, 4))
        edges = np.flatnonzero(edges & (destination < half))
        np.add.at(votes, (destination[edges], community.reshape(-1)[graph.indices[edges] - half]), 1)
        best = np.array([np.bincount(data.labels[:half][votes.argmax(1) == c], minlength=4).argmax() for c in range(4)])
        return (best[votes.argmax(1)] == data.labels[:half]).mean()

    assert f"class of {right(past):.1%} of the nodes" in data.notes[0] and right(past) > 0.9
    assert right(np.ones(len(past), bool)) < 0.53
    assert (data.labels[half:] == -1).all() and data.split.test.max() < half
    times = graph.node_time
    assert times[data.split.train].max() < times[data.split.val].min() <= times[data.split.val].max()
    assert times[data.split.val].max() < times[data.split.test].min()


def test_it_is_a_function_of_its_text():
    assert dataset_fingerprint(mr.open_dataset(SPEC)) == dataset_fingerprint(mr.open_dataset(SPEC, name="other"))
    assert dataset_fingerprint(mr.open_dataset(SPEC)) != dataset_fingerprint(mr.open_dataset(SPEC + ",seed=1"))
    assert mr.open_dataset("tsbm:nodes=20,classes=40,train=0.5,val=0.2").num_nodes == 20
    with pytest.raises(InputError, match="unknown key 'edges'; tsbm knows nodes"):
        mr.open_dataset("tsbm:edges=3")
