"""Typed graphs from arrays and from HeteroData: what comes out, and one sentence for each defect."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.storage.lazy_dataset import open_lazily
from millrace.tests.fuzz.forge import forge

RNG = np.random.default_rng(0)
EDGES = {
    ("author", "writes", "paper"): (RNG.integers(0, 4, 9), RNG.integers(0, 6, 9)),
    ("paper", "cites", "paper"): RNG.integers(0, 6, (2, 8)),
    ("paper", "in", "venue"): (np.arange(6), np.zeros(6, int)),
}
GIVEN = {
    "labels": np.array([0, 1, 0, 1, -1, 1]),
    "target": "paper",
    "num_nodes": {"venue": 2},
    "features": {"author": RNG.random((4, 3)), "paper": RNG.random((6, 2))},
    "train": [0, 1],
    "val": [2],
    "test": [3, 5],
}


def read(**changed):
    return mr.from_relations(**{"edges": EDGES, **GIVEN, **changed})


def edges_of(graph):
    """Edges of each relation by the ids of their types, sorted."""
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    found = {}
    for r, (a, b) in enumerate(graph.types.ends):
        own = graph.edge_type == r
        src, dst = graph.indices[own] - graph.types.offsets[a], rows[own] - graph.types.offsets[b]
        found[graph.types.relations[r]] = sorted(zip(src.tolist(), dst.tolist()))
    return found


def test_arrays_become_a_graph_whose_target_keeps_its_ids():
    data = read()
    assert data.graph.types.node_types == ("paper", "venue", "author")
    assert data.graph.types.offsets == (0, 6, 8, 12) and data.num_targets == 6
    assert edges_of(data.graph) == {k: sorted(zip(*np.asarray(v).tolist())) for k, v in EDGES.items()}
    assert data.features.widths == (2, 0, 3)
    np.testing.assert_array_equal(
        data.features.gather(np.array([1, 7, 9]))[0, :2], GIVEN["features"]["paper"][1].astype(np.float32)
    )
    assert data.labels.tolist() == [0, 1, 0, 1, -1, 1] + [-1] * 6
    assert (data.split.train.tolist(), data.split.test.tolist()) == ([0, 1], [3, 5])
    order = np.lexsort((data.graph.indices, data.graph.edge_type, np.repeat(np.arange(12), data.graph.in_degree)))
    assert (order == np.arange(data.graph.num_edges)).all()


def test_reverse_relations_are_added():
    found = edges_of(read(add_reverse=True).graph)
    assert set(found) == set(EDGES) | {(d, f"rev_{r}", s) for s, r, d in EDGES}
    for (s, r, d), pairs in edges_of(read().graph).items():
        assert found[d, f"rev_{r}", s] == sorted((b, a) for a, b in pairs)


def test_labels_of_every_task():
    names = read(labels=np.array(["b", "a", "b", "a", "", "a"]))
    assert names.class_names == ("a", "b") and names.labels[:6].tolist() == [1, 0, 1, 0, -1, 0]
    targets = read(labels=np.linspace(0.5, 2, 6), options=mr.ReadOptions(task="regression"))
    assert targets.task == "regression" and np.isnan(targets.labels[6:]).all() and targets.labels.shape == (12, 1)
    drawn = read(train=None, val=None, test=None, split="fraction:0.4,0.2", seed=1)
    assert max(map(max, (drawn.split.train, drawn.split.val, drawn.split.test))) < 6
    again = mr.open_dataset(drawn, split="fraction:0.6,0.2")
    assert len(again.split.train) == 3


@pytest.mark.parametrize("features_format", ["zarr", "npy"])
def test_a_store_gives_the_dataset_back(tmp_path, features_format):
    data = read()
    store = mr.write_dataset(tmp_path / "s", data, features_format=features_format)
    assert dict(store.fingerprint) == dataset_fingerprint(data)
    for place in ("memory", "zarr" if features_format == "zarr" else "mapped"):
        for found in (mr.open_dataset(tmp_path / "s", features=place), open_lazily(tmp_path / "s", place).as_read()):
            assert found.graph.types == data.graph.types and dataset_fingerprint(found) == dataset_fingerprint(data)
            np.testing.assert_array_equal(found.features.gather(np.arange(12)), data.features.gather(np.arange(12)))


def relabelled(arrays, meta):
    arrays["edge_type"][:] = 2


def reversed_relation(arrays, meta):
    meta["types"]["relations"][2].reverse()


def shifted(arrays, meta):
    meta["types"]["offsets"][2] += 1


@pytest.mark.parametrize("change", [relabelled, reversed_relation, shifted])
def test_a_store_that_does_not_fit_together_is_refused(tmp_path, change):
    mr.write_dataset(tmp_path / "s", read())
    forge(tmp_path / "s", change)
    for opened in (mr.open_dataset, lambda path: open_lazily(path).as_read()):
        with pytest.raises(mr.StoreError):
            opened(tmp_path / "s")


def test_damaged_features_of_one_type_are_noticed(tmp_path):
    mr.write_dataset(tmp_path / "s", read(), features_format="npy")
    with open(tmp_path / "s" / "features_2.npy", "r+b") as f:
        f.seek(-1, 2)
        f.write(b"\x55")
    with pytest.raises(mr.StoreError, match="does not match its digest"):
        mr.open_dataset(tmp_path / "s")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"edges": {("author", "writes", "papr"): ([0], [0])}}, "has the node type 'papr', which is not there"),
        (
            {"edges": {("author", "writes", "paper"): ([9], [0])}},
            r"relation author,writes,paper: edge source ids lie in \[9, 9\], out of range for 4 nodes",
        ),
        (
            {"edges": {("author", "writes", "paper"): ([0], [-1])}},
            "edge destination ids lie in",
        ),
        (
            {"edges": {("author", "writes", "paper"): ([0.5], [1])}},
            "edge source ids are float64; expected integers",
        ),
        ({"edges": {("author", "writes", "paper"): ([0, 1], [1])}}, "expected two vectors of one length"),
        ({"edges": {("author", "writes", "paper"): sp.coo_matrix(np.eye(2))}}, "edges are a coo_matrix;.* row and col"),
        ({"edges": {("author", "writes", "paper"): sp.csr_matrix(np.eye(2))}}, "edges are a csr_matrix; expected two"),
        ({"edges": {("author", "writes", "paper"): 5}}, "edges are a int; expected two vectors"),
        ({"edges": {"writes": ([0], [1])}}, "a relation is called 'writes'"),
        ({"edges": {("author", "a,b", "paper"): ([0], [1])}}, "without commas"),
        ({"edges": {}}, "there are no relations"),
        (
            {
                "edges": {**EDGES, ("paper", "rev_in", "paper"): ([0], [1]), ("venue", "rev_in", "paper"): ([0], [1])},
                "add_reverse": True,
            },
            "add_reverse would add venue,rev_in,paper",
        ),
        ({"num_nodes": {"venue": -1}}, "num_nodes of 'venue' is -1"),
        ({"num_nodes": {"venue": 2, "paper": 7}}, "there are 6 labels of 'paper', and num_nodes says 7"),
        ({"features": {"shop": None}}, "node type 'shop' has no features; expected num_nodes"),
        (
            {"features": {**GIVEN["features"], "paper": [[1.0, 2.0]] * 5 + [[1.0]]}},
            "'paper': features have rows of different widths",
        ),
        (
            {"features": {**GIVEN["features"], "paper": np.ones((5, 2))}},
            r"'paper': features have shape \[5, 2\]; expected \[6, F\]",
        ),
        (
            {"features": {**GIVEN["features"], "paper": np.full((6, 2), np.nan)}},
            "features of node type 'paper': 12 feature values are NaN",
        ),
        ({"features": {**GIVEN["features"], "a,b": np.ones((2, 1))}}, "a node type is called 'a,b'"),
        ({"labels": []}, "there are no labels"),
        ({"train": [6]}, "train"),
        (
            {"edge_weights": {("paper", "in", "venue"): [1.0]}},
            r"edge weights have shape \[1\]; expected one number for each of 6",
        ),
        ({"edge_weights": {("a", "b", "c"): [1.0]}}, "weights of a,b,c, which is no relation"),
        ({"options": mr.ReadOptions(target="venue")}, "target is 'paper' and the option target 'venue'"),
        ({"options": mr.ReadOptions(self_loops="drop")}, "a typed graph is read as it is, without self_loops"),
    ],
)
def test_each_defect_is_one_sentence(changed, said):
    with pytest.raises(InputError, match=said):
        read(**changed)


@pytest.fixture
def hetero():
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    data["author"].x = torch.from_numpy(GIVEN["features"]["author"])
    data["paper"].x = torch.from_numpy(GIVEN["features"]["paper"])
    data["paper"].y = torch.tensor([0, 1, 0, 1, -1, 1])
    for part in ("train", "val", "test"):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[GIVEN[part]] = True
        data["paper"][f"{part}_mask"] = mask
    data["venue"].num_nodes = 2
    for key, (src, dst) in EDGES.items():
        data[key].edge_index = torch.from_numpy(np.stack([src, dst]))
    return data


def test_a_heterodata_is_the_same_dataset(hetero):
    for found in (mr.from_pyg(hetero), mr.open_dataset(hetero), mr.from_pyg(hetero, target="paper")):
        own = read(num_nodes={"author": 4, "venue": 2})
        assert found.graph.types.node_types == ("paper", "author", "venue")
        assert edges_of(found.graph) == edges_of(own.graph)
        np.testing.assert_array_equal(found.features.gather(np.arange(12)), own.features.gather(np.arange(12)))
        assert (found.labels == own.labels).all() and found.split.test.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["author"].update({"y": torch.zeros(4)}), "the node types author, paper have y; say which"),
        (lambda d: d["paper"].pop("y"), "no node type has y"),
        (lambda d: d["paper", "in", "venue"].update({"edge_weight": -torch.ones(6)}), "paper,in,venue: 6 edge weights"),
        (lambda d: d["paper", "in", "venue"].pop("edge_index"), "paper,in,venue has no edge_index"),
    ],
)
def test_what_a_heterodata_lacks_is_named(hetero, change, said):
    change(hetero)
    with pytest.raises(InputError, match=said):
        mr.from_pyg(hetero)


def test_weights_of_a_relation_go_to_pyg_and_back(hetero):
    weight = torch.arange(6.0)
    hetero["paper", "in", "venue"].edge_weight = weight
    data = mr.from_pyg(hetero)
    again = data.to_pyg()
    assert again["paper", "in", "venue"].edge_weight.tolist() == weight.tolist()
    assert (again["paper", "cites", "paper"].edge_weight == 1).all()
    assert dataset_fingerprint(mr.from_pyg(again)) == dataset_fingerprint(data)
    hetero["author"].y = torch.zeros(4)
    assert mr.open_dataset(hetero, options=mr.ReadOptions(target="paper")).num_targets == 6


def test_a_target_must_be_there_and_have_labels(hetero):
    for target, said in [("papr", "there is no node type 'papr'"), ("author", "the node type 'author' has no y")]:
        with pytest.raises(InputError, match=said):
            mr.from_pyg(hetero, target=target)
    with pytest.raises(InputError, match="the PyG data has one node type"):
        mr.from_pyg(hetero.to_homogeneous(), target="paper")


def test_edge_attributes_of_any_width_come_along_and_go_back(hetero):
    cites = hetero["paper", "cites", "paper"]
    hetero["paper", "in", "venue"].edge_attr = torch.arange(12.0).view(6, 2)
    cites.edge_attr = torch.arange(cites.num_edges)
    hetero["paper"].y = torch.linspace(0.5, 2, 6)
    found = mr.from_pyg(hetero)
    assert found.task == "regression"
    widths = dict(zip(found.graph.types.relations, found.graph.types.edge_widths))
    assert [w for w in widths.values() if w] == [1, 2] and widths["paper", "in", "venue"] == 2
    again = found.to_pyg()
    for relation in hetero.edge_types:
        own, theirs = again[relation], hetero[relation]
        assert ("edge_attr" in own) == ("edge_attr" in theirs)
        if "edge_attr" in theirs:
            rows = torch.cat([theirs.edge_index.T, theirs.edge_attr.view(theirs.num_edges, -1)], 1)
            mine = torch.cat([own.edge_index.T, own.edge_attr], 1)
            assert sorted(mine.tolist()) == sorted(rows.tolist())
    assert dataset_fingerprint(mr.from_pyg(again)) == dataset_fingerprint(found)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.array([[1.0], [np.nan]]), "relation a,r,b: 1 edge feature value is NaN or infinite .first: edge 1 of"),
        (np.ones((3, 1)), r"relation a,r,b: edge features have shape \[3, 1\]; expected \[2, D\]"),
        ([[1.0], [1.0, 2.0]], "relation a,r,b: features have rows of different widths; expected one"),
        (np.array(["x", "y"]), "relation a,r,b: edge features are <U1; expected numbers"),
    ],
    ids=["nan", "rows", "widths", "text"],
)
def test_bad_features_of_edges_name_their_relation(rows, said):
    given = {"target": "b", "num_nodes": {"a": 2}}
    with pytest.raises(InputError, match=said):
        mr.from_relations(ONE, [0, 1], edge_features={("a", "r", "b"): rows}, **given)
    with pytest.raises(InputError, match="features of edges of a,s,b, which is no relation"):
        mr.from_relations(ONE, [0, 1], edge_features={("a", "s", "b"): np.ones(2)}, **given)


ONE = {("a", "r", "b"): ([0, 1], [1, 0])}


def test_reverse_relations_have_the_features_of_their_edges():
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    given = {"target": "b", "num_nodes": {"a": 2}, "edge_features": {("a", "r", "b"): rows}, "add_reverse": True}
    found = mr.from_relations(ONE, [0, 1], split="fraction:0.5,0", **given).to_pyg()
    assert found["a", "r", "b"].edge_index.tolist() == [[1, 0], [0, 1]]
    assert found["a", "r", "b"].edge_attr.tolist() == [[3, 4], [1, 2]]
    assert found["b", "rev_r", "a"].edge_index.tolist() == [[1, 0], [0, 1]]
    assert found["b", "rev_r", "a"].edge_attr.tolist() == [[1, 2], [3, 4]]


def test_times_of_some_types_and_relations(hetero, tmp_path):
    """Nodes and edges without times have been there always; edges have their sources' times; stored, and in PyG."""
    cites, papers, always = np.arange(8) * 3, np.arange(6) + 10, np.iinfo(np.int64).min
    key = ("paper", "cites", "paper")
    data = read(edge_times={key: cites}, node_times={"paper": papers}, add_reverse=True, split="time:0.5,0.2")
    graph, types = data.graph, data.graph.types
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    assert graph.node_time.tolist() == [*papers, *[always] * 6]
    for r, (a, name, b) in enumerate(types.relations):
        turned = name.startswith("rev_")
        src, dst = EDGES[(b, name[4:], a) if turned else (a, name, b)]
        times = cites if "cites" in name else papers[dst if turned else src] if a == "paper" else np.full(9, always)
        ends = zip(dst, src, times) if turned else zip(src, dst, times)
        own, (first, second) = graph.edge_type == r, np.array(types.offsets)[types.ends[r]]
        found = zip(graph.indices[own] - first, rows[own] - second, graph.edge_time[own])
        assert sorted((int(u), int(v), int(t)) for u, v, t in found) == sorted(
            (int(u), int(v), int(t)) for u, v, t in ends
        )
    assert papers[data.split.train].max() < papers[data.split.val].min() < papers[data.split.test].min()
    mr.write_dataset(tmp_path / "store", data)
    again = mr.from_pyg(data.to_pyg())
    for other in (mr.open_dataset(tmp_path / "store"), open_lazily(tmp_path / "store").as_read()):
        assert dataset_fingerprint(other) == dataset_fingerprint(data)
    assert "time" not in str(data.to_pyg()["author"].keys()) and np.array_equal(again.graph.node_time[:6], papers)
    hetero["author"].when = torch.arange(4.0)
    only = mr.open_dataset(hetero, options=mr.ReadOptions(node_time="when")).graph
    assert only.node_time is None and only.edge_time.dtype == np.float64
    assert (only.edge_time[only.edge_type != 0] == -np.inf).all() and set(only.edge_time[only.edge_type == 0]) <= {
        0,
        1,
        2,
        3,
    }


def test_times_of_no_edges_are_of_any_kind():
    dates = np.array(["2020-01-01", "2020-01-03"], "datetime64[D]")
    edges = {("a", "r", "a"): ([0, 1], [1, 0]), ("a", "s", "a"): ([], [])}
    for none in ([], np.empty(0, np.int64)):
        graph = mr.from_relations(edges, [0, 1], target="a", edge_times=dict(zip(edges, (dates, none)))).graph
        assert (graph.time_unit, graph.edge_time.tolist()) == ("D", [18264, 18262])
    with pytest.raises(InputError, match="edge_time of a,r,a is "):
        mr.from_relations(edges, [0, 1], target="a", edge_times={("a", "r", "a"): []})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"edge_times": {("a", "b", "c"): [1]}}, "times of edges of a,b,c, which is no relation"),
        ({"node_times": {"shop": [1]}}, "times of nodes of shop, which is no node type"),
        ({"node_times": {"paper": [1, 2]}}, r"node_time of 'paper' is int64\[2\]"),
        ({"edge_times": {("paper", "cites", "paper"): [np.nan] * 8}}, "edge_time of paper,cites,paper holds 8 times"),
        ({"node_times": {"author": np.arange(4)}, "split": "time:0.5,0.2"}, "nodes have no times"),
    ],
)
def test_times_that_are_none_are_refused(changed, said):
    with pytest.raises(InputError, match=said):
        read(**changed)
    with pytest.raises(InputError, match="edge_time is 'when', but the PyG data has no such attribute"):
        mr.open_dataset(mr.open_dataset("hsbm:nodes=20").to_pyg(), options=mr.ReadOptions(edge_time="when"))


@pytest.mark.parametrize(
    "made", [lambda x: x.requires_grad_(), lambda x: x.bfloat16(), lambda x: x.bfloat16().to_sparse()]
)
def test_features_may_be_any_tensor(made):
    rows = torch.arange(6.0).reshape(3, 2)
    ring, y = (torch.tensor([0, 1, 2, 1, 2, 0]), torch.tensor([1, 2, 0, 0, 1, 2])), torch.tensor([0, 1, 0])
    edges = {("a", "to", "a"): ring}
    split = {"train": torch.tensor([0, 1]), "val": torch.tensor([2]), "test": torch.tensor([], dtype=torch.int64)}
    adjacency = sp.coo_matrix((np.ones(6), (ring[0].numpy(), ring[1].numpy())), shape=(3, 3))
    data = Data(x=made(rows.clone()), edge_index=torch.stack(ring), y=y)
    for dataset in (
        mr.from_scipy(adjacency, made(rows.clone()), y, **split),
        mr.from_relations(edges, y, target="a", features={"a": made(rows.clone())}, **split),
        mr.from_pyg(data, split="fraction:0.6,0"),
    ):
        np.testing.assert_array_equal(dataset.features.gather(np.arange(3)), rows.numpy())
