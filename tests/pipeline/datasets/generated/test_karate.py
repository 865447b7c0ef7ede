"""``karate`` is NetworkX's graph, and can be learnt from its two leaders."""

import sys

import networkx as nx
import numpy as np
import pytest

import millrace as mr


def test_it_is_the_graph_that_networkx_ships() -> None:
    data, club = mr.open_dataset("karate"), nx.karate_club_graph()
    whole = nx.to_numpy_array(club)
    rows = np.repeat(np.arange(34), data.graph.in_degree)
    found = np.zeros((34, 34))
    found[data.graph.indices, rows] = data.graph.edge_weight
    assert (found == whole).all() and data.num_features == 34
    assert data.class_names is not None
    assert [data.class_names[c] for c in data.labels] == [club.nodes[n]["club"] for n in range(34)]
    assert {s: len(getattr(data.split, s)) for s in ("train", "val", "test")} == {"train": 2, "val": 8, "test": 24}


def test_most_members_follow_their_leader() -> None:
    result = mr.run("karate", model="gcn", layers=2, hidden=16, fanout=[-1, -1], epochs=40, lr=0.02, verbose=False)
    assert result.test_accuracy > 0.8


def test_without_networkx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(
        mr.InputError, match=r"the dataset karate comes with NetworkX; install it: pip install '.\[networkx\]'"
    ):
        mr.open_dataset("karate")


def test_a_folder_of_that_name_is_read_instead(tmp_path, monkeypatch):
    folder = tmp_path / "karate"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,x0,label\n0,1,a\n1,2,b\n2,3,a\n")
    (folder / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    monkeypatch.chdir(tmp_path)
    options = mr.ReadOptions(direction="undirected")
    assert mr.open_dataset("karate", options=options, split="fraction:0.4,0.3").num_nodes == 3
