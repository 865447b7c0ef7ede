"""Times of edges and nodes through cleaning, readers, stores and splits."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.pipeline.datasets.cleaning.edges import clean_edges
from millrace.pipeline.datasets.cleaning.options import ReadOptions
from millrace.pipeline.datasets.cleaning.raw import RawEdges
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.storage.lazy_dataset import open_lazily


def events(graph):
    """Number of edges by source, destination, time and weight."""
    destination = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    return Counter(
        zip(graph.indices.tolist(), destination.tolist(), graph.edge_time.tolist(), weight.tolist(), strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 5))
@pytest.mark.parametrize("direction", ["directed", "reverse", "undirected"])
def test_events_are_kept_and_a_reverse_has_the_time_of_its_edge(direction, data, nodes):
    node = st.integers(0, nodes - 1)
    given = data.draw(st.lists(st.tuples(node, node, st.integers(0, 2)), max_size=20))
    src, dst, time = np.array(given, np.int64).reshape(-1, 3).T
    notes: list[str] = []
    graph = clean_edges(RawEdges((src, dst), time=time), nodes, ReadOptions(direction=direction), None, notes)
    stored = Counter((v, u, t) if direction == "reverse" else (u, v, t) for u, v, t in given)
    if direction == "undirected":
        stored |= Counter({(v, u, t): count for (u, v, t), count in stored.items()})
    assert events(graph) == Counter({(*key, 1.0): count for key, count in stored.items()})
    assert graph.check() and "Edges have times, so repeated ones were kept." in notes
    if direction == "undirected":
        ends = graph.indices, np.repeat(np.arange(nodes), graph.in_degree)
        again = clean_edges(RawEdges(ends, time=graph.edge_time), nodes, ReadOptions(), None, [])
        assert events(again) == events(graph)


def arrays():
    rng = np.random.default_rng(0)
    return {
        "edge_index": rng.integers(0, 30, (2, 90)), "y": np.arange(30) % 3, "x": rng.random((30, 2), np.float32),
        "edge_time": rng.integers(0, 9, 90), "node_time": rng.random(30), "meta": np.array('{"direction": "directed"}'),
    }  # fmt: skip


def test_npz_tables_pyg_and_stores_hold_the_same_times(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from torch_geometric.data import Data

    given = arrays()
    np.savez(tmp_path / "g.npz", **given)
    data = mr.open_dataset(tmp_path / "g.npz", split="time:0.5,0.25")
    times = data.graph.node_time
    assert times[data.split.train].max() < times[data.split.val].min()
    assert times[data.split.val].max() < times[data.split.test].min() and len(data.split.train) == 15
    (tmp_path / "t").mkdir()
    src, dst = given["edge_index"]
    pq.write_table(pa.table({"src": src, "dst": dst, "at": given["edge_time"]}),
                   tmp_path / "t" / "edges.parquet")  # fmt: skip
    order = np.random.default_rng(1).permutation(30)
    nodes = {
        "id": order,
        "label": given["y"][order],
        "year": given["node_time"][order],
        "features": list(given["x"][order]),
    }
    pq.write_table(pa.table(nodes), tmp_path / "t" / "nodes.parquet")
    of_tables = ReadOptions(direction="directed", edge_time="at", node_time="year")
    tables = mr.open_dataset(tmp_path / "t", options=of_tables, split="time:0.5,0.25")
    pyg = Data(
        edge_index=torch.from_numpy(given["edge_index"]), y=torch.from_numpy(given["y"]),
        x=torch.from_numpy(given["x"]), edge_time=torch.from_numpy(given["edge_time"]), when=torch.from_numpy(times),
    )  # fmt: skip
    options = ReadOptions(direction="directed", node_time="when")
    objects = mr.open_dataset(pyg, options=options, split="time:0.5,0.25")
    write_dataset(tmp_path / "s", data, graph_format="npy", features_format="npy")
    made = mr.convert(tmp_path / "t", tmp_path / "c", split="time:0.5,0.25", options=of_tables, verbose=False)
    found = [tables, objects, open_dataset_store(tmp_path / "s"), open_lazily(tmp_path / "s").as_read()]
    found += [open_dataset_store(tmp_path / "s", "mapped", graph="mapped"), open_dataset_store(made.path)]
    for other in found:
        assert dataset_fingerprint(other) == dataset_fingerprint(data)
        assert np.array_equal(other.graph.node_time, times) and events(other.graph) == events(data.graph)
    whole = mr.open_dataset(pyg, options=ReadOptions(direction="directed"))
    assert dataset_fingerprint(whole)["graph"] != dataset_fingerprint(data)["graph"]
    back = data.to_pyg()
    assert torch.equal(back.node_time, pyg.when) and len(back.edge_time) == 90
    moved = mr.reorder(data, order).graph
    assert np.array_equal(moved.node_time, times[order])
    named = Counter({(order[u], order[v], t, w): n for (u, v, t, w), n in events(moved).items()})
    assert named == events(data.graph)


def test_edges_without_times_have_those_of_their_sources(tmp_path):
    given = arrays()
    del given["edge_time"]
    np.savez(tmp_path / "g.npz", **given)
    graph = mr.open_dataset(tmp_path / "g.npz").graph
    assert np.array_equal(graph.edge_time, graph.node_time[graph.indices])


@pytest.mark.parametrize(
    ("change", "split", "sentence"),
    [
        (
            {"edge_time": np.where(np.arange(90) == 7, np.nan, 1.0)},
            None,
            "holds 1 time that is NaN (first: position 7)",
        ),
        ({"edge_time": np.arange(3)}, None, "edge_time is int64[3]; expected numbers or dates [90]"),
        ({"node_time": np.array(["a"] * 30)}, None, "node_time is <U1[30]; expected numbers or dates"),
        ({}, "until:0.7,0.2", "the future trains the past"),
        ({}, "until:0.7,2", "leave none for test"),
        ({}, "time:0.7", "expected two numbers after 'time:'"),
        ({"node_time": np.zeros(30)}, "time:0.7,0.15", "leave none for val"),
        ({"node_time": None}, "time:0.7,0.15", "nodes have no times"),
    ],
)
def test_bad_times_and_splits_are_refused(tmp_path, change, split, sentence):
    given = {key: value for key, value in (arrays() | change).items() if value is not None}
    np.savez(tmp_path / "g.npz", **given)
    with pytest.raises(InputError) as caught:
        mr.open_dataset(tmp_path / "g.npz", split=split)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_columns_that_are_not_there_are_refused():
    import torch
    from torch_geometric.data import Data

    data = Data(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]), num_nodes=2)
    with pytest.raises(InputError, match="edge_time is 'at', but the PyG data has no such attribute"):
        mr.open_dataset(data, options=ReadOptions(edge_time="at"))


def test_times_of_pyg_are_none_if_none():
    import torch
    from torch_geometric.data import Data

    times = {"edge_time": torch.tensor([5]), "node_time": torch.tensor([1, 2])}
    data = Data(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]), num_nodes=2, **times)
    seen, none = (
        mr.open_dataset(data, options=ReadOptions(direction="directed", **given)).graph
        for given in ({}, {"edge_time": "none", "node_time": "none"})
    )
    assert (seen.has_node_times, seen.has_edge_times) == (True, True)
    assert (none.has_node_times, none.has_edge_times) == (False, False)
