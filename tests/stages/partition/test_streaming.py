"""Streaming partitioners against the formulas of their papers, written out."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.stages.partition import rows
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.quality import measure
from millrace.stages.partition.streaming import Fennel, Ldg
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import open_stored, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.graphs import graphs, sbm


def by_hand(method: Ldg | Fennel, graph: Graph, parts: int) -> list[int]:
    """Every part is scored for every node."""
    v = graph.num_nodes
    capacity = max(1, int(np.ceil(method.slack * v / parts)))
    owner: dict[int, int] = {}
    for _ in range(method.passes):
        sizes = [0] * parts
        for node in range(v):
            scores = []
            for i, size in enumerate(sizes):
                if size >= capacity:
                    continue
                near = sum(owner.get(int(u)) == i for u in graph.indices[graph.indptr[node] : graph.indptr[node + 1]])
                if isinstance(method, Ldg):
                    score = near * (1 - size / capacity)
                else:
                    alpha = parts ** (method.gamma - 1) * graph.num_edges / v**method.gamma
                    score = near - alpha * method.gamma * size ** (method.gamma - 1)
                scores.append((score, -size, -i))
            owner[node] = -max(scores)[2]
            sizes[owner[node]] += 1
    return [owner[node] for node in range(v)]


@given(
    graph=graphs(),
    parts=st.integers(1, 6),
    method=st.sampled_from(
        [
            *(Ldg(), Ldg(slack=1.0), Ldg(slack=2.0), Ldg(passes=3)),
            *(Fennel(), Fennel(slack=1.0), Fennel(gamma=2.0), Fennel(gamma=1.0)),
            *(Fennel(passes=2), Fennel(slack=1.0, passes=3)),
        ]
    ),
)
@example(graph=sbm(60, 3, 6), parts=4, method=Ldg())
@example(graph=sbm(60, 3, 6), parts=4, method=Fennel())
@example(graph=sbm(60, 3, 6), parts=4, method=Fennel(slack=1.0))
@example(graph=sbm(60, 3, 6), parts=4, method=Ldg(passes=3))
@example(graph=from_edges([0, 0], [1, 1], 3), parts=9, method=Fennel())
@settings(deadline=None, max_examples=30)
def test_each_node_goes_where_the_formula_says(graph: Graph, parts: int, method: Ldg | Fennel) -> None:
    book = method.assign(graph, parts, 0)
    assert book.part(np.arange(graph.num_nodes)).tolist() == by_hand(method, graph, parts)
    assert book.sizes().max() <= max(1, np.ceil(method.slack * graph.num_nodes / parts))


@pytest.mark.parametrize("method", [Ldg(), Fennel()], ids=["ldg", "fennel"])
def test_fewer_edges_are_cut_than_by_hash(method: Ldg | Fennel) -> None:
    graph = sbm()
    assert (
        measure(graph, method.assign(graph, 4, 0)).cut_share
        < 0.75 * measure(graph, Hash().assign(graph, 4, 0)).cut_share
    )
    chain = np.arange(999)
    line = from_edges(np.r_[chain, chain + 1], np.r_[chain + 1, chain], 1000)
    assert measure(line, method.assign(line, 4, 0)).total("cut_edges") < 200, (
        "in the order of their ids, neighbours come together"
    )


@pytest.mark.parametrize("method", [Ldg(), Fennel()], ids=["ldg", "fennel"])
def test_a_stored_graph_is_read_a_stretch_of_rows_at_a_time(tmp_path, monkeypatch, method: Ldg | Fennel) -> None:
    graph, none = sbm(), np.empty(0, np.int64)
    labels, features = np.zeros(600, np.int64), ArrayFeatures(np.zeros((600, 1), np.float32))
    write_dataset(tmp_path / "store", Dataset("sbm", graph, features, labels, Split(np.arange(9), none, none), 1))
    stored = open_stored(tmp_path / "store").graph
    taken = []
    monkeypatch.setattr(stored, "rows", lambda i, j, read=stored.rows: taken.append(j - i) or read(i, j))
    monkeypatch.setattr(rows, "ROWS", 128)
    assert np.array_equal(method.assign(stored, 5, 0).part_of, method.assign(graph, 5, 0).part_of)
    assert taken == [128, 128, 128, 128, 88] * method.passes


@pytest.mark.parametrize(
    "options", [{"slack": 0.99}, {"slack": float("nan")}, {"gamma": 0.5}, {"gamma": 10}, {"passes": 0}, {"passes": 1.5}]
)
def test_senseless_options_are_refused(options: dict[str, float]) -> None:
    for method in (Fennel,) if "gamma" in options else (Ldg, Fennel):
        with pytest.raises(InputError, match="expected"):
            method(**options)


@pytest.mark.parametrize("method", [Ldg, Fennel])
def test_further_passes_cut_fewer_edges(method: type[Ldg | Fennel]) -> None:
    graph = sbm(3000, 4)
    once, again = (measure(graph, method(passes=k).assign(graph, 4, 0)) for k in (1, 6))
    assert again.total("cut_edges") < 0.8 * once.total("cut_edges")
    assert again.balance("nodes") <= 1.11
