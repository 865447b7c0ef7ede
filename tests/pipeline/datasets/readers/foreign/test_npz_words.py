"""Arrays of an .npz file under other words are read as what they mean, or named."""

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import millrace as mr
from millrace.storage.errors import InputError

V = 12
PARTS = [np.arange(V)[k::3] for k in range(3)]
OPTIONS = mr.ReadOptions(direction="directed")
EDGES = np.array([np.arange(V), (np.arange(V) + 1) % V])


def save(path, **arrays):
    np.savez(path, **{"edge_index": EDGES, "y": np.arange(V) % 4, "x": np.ones((V, 2)), **arrays})
    return mr.open_dataset(path, options=OPTIONS)


def drop(path, *keys, **arrays):
    given = {"edge_index": EDGES, "y": np.arange(V) % 4, "x": np.ones((V, 2)), **arrays}
    np.savez(path, **{key: a for key, a in given.items() if key not in keys})
    return mr.open_dataset(path, options=OPTIONS)


@pytest.mark.parametrize(
    "keys",
    [
        ("train_idx", "valid_idx", "test_idx"),
        ("idx_train", "idx_val", "idx_test"),
        ("trainNodes", "dev_ids", "testIndex"),
    ],
)
def test_sets_under_other_words(tmp_path, keys):
    data = save(tmp_path / "g.npz", **dict(zip(keys, PARTS)))
    assert [getattr(data.split, p).tolist() for p in ("train", "val", "test")] == [p.tolist() for p in PARTS]


def test_other_arrays_under_other_words(tmp_path):
    data = save(tmp_path / "g.npz", edge_weights=np.full(V, 2.0), num_nodes=V, comment=np.zeros(3))
    assert data.graph.edge_weight.tolist() == [2.0] * V
    assert "g.npz: edge_weights was read as edge_weight." in data.notes
    assert "Keys of g.npz were not read: comment." in data.notes
    data = drop(tmp_path / "h.npz", "y", "x", labels=np.arange(V) % 4, feat=np.full((V, 1), 3.0))
    assert data.num_classes == 4 and data.features.gather(np.arange(2)).tolist() == [[3.0], [3.0]]


def test_what_is_not_read_and_counts_is_refused(tmp_path):
    with pytest.raises(InputError, match="the key my_weights is not read, and looks like a split or weights"):
        save(tmp_path / "g.npz", my_weights=np.ones(V))
    with pytest.raises(InputError, match="the key split_0 is not read"):
        save(tmp_path / "g.npz", split_0=np.ones(V))
    with pytest.raises(InputError, match="the keys val_idx and valid_idx both mean val_idx"):
        save(tmp_path / "g.npz", valid_idx=PARTS[0], val_idx=PARTS[1])
    with pytest.raises(InputError, match=r"num_nodes is 20, and y has shape \[12\]"):
        save(tmp_path / "g.npz", num_nodes=20)
    with pytest.raises(InputError, match="val_mask holds values other than 0 and 1; save node ids as val_idx"):
        save(tmp_path / "g.npz", valid_mask=np.arange(V))


def test_masks_of_pyg_that_are_numbers():
    masks = {p: torch.zeros(V, dtype=torch.uint8) for p in ("train", "val", "test")}
    for (_, mask), part in zip(masks.items(), PARTS):
        mask[part] = 1
    data = Data(edge_index=torch.from_numpy(EDGES), y=torch.arange(V) % 4, num_nodes=V)
    typed = HeteroData()
    typed["a"].y, typed["a"].num_nodes, typed["a", "to", "a"].edge_index = data.y, V, data.edge_index
    for part, mask in masks.items():
        data[f"{part}_mask"] = mask.long()
        typed["a"][f"{part}_mask"] = mask
    for source in (data, typed):
        found = mr.open_dataset(source, options=OPTIONS if source is data else mr.ReadOptions())
        assert [getattr(found.split, p).tolist() for p in masks] == [p.tolist() for p in PARTS]
    data.train_mask = torch.arange(V)
    with pytest.raises(InputError, match="train_mask holds values other than 0 and 1; expected a flag for each node"):
        mr.from_pyg(data, options=OPTIONS)


def test_sets_of_pyg_under_other_words():
    data = Data(edge_index=torch.from_numpy(EDGES), y=torch.arange(V) % 4, num_nodes=V)
    data.train_idx, data.valid_idx = (torch.from_numpy(part) for part in PARTS[:2])
    data.test_index, data.my_rows = torch.from_numpy(PARTS[2]), torch.zeros(V)
    found = mr.from_pyg(data, options=OPTIONS)
    assert [getattr(found.split, p).tolist() for p in ("train", "val", "test")] == [p.tolist() for p in PARTS]
    assert "the PyG data has my_rows, which is not read." in found.notes


def test_positions_of_a_networkx_graph():
    g = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    for v in g:
        g.nodes[v].update(x=0.5 * v, y=1.25 * v, kind="ab"[v % 2])
    with pytest.raises(InputError, match="x and y are one number each and look like the positions of a drawing"):
        mr.from_networkx(g)
    assert mr.from_networkx(g, label="kind", features="").class_names == ("a", "b")
    assert mr.from_networkx(g, options=mr.ReadOptions(task="regression"), split="fraction:0.5,0").task == "regression"


def test_attributes_of_a_networkx_graph_are_read_or_refused():
    g = nx.DiGraph([(0, 1, {"weight": 2.0}), (1, 2, {"weight": 2.0}), (2, 0, {"weight": 2.0})])
    for v in g:
        g.nodes[v].update(y=v % 2, train_mask=v == 0, val_mask=v == 1, test_mask=v == 2)
    with pytest.raises(mr.InputError, match="no node has a set in 'split', but test_mask, train_mask, val_mask look"):
        mr.from_networkx(g)
    assert mr.from_networkx(g, options=mr.ReadOptions(task="link")).graph.num_edges == 3  # no sets of nodes
    assert mr.from_networkx(g, train=[0], val=[1], test=[2], weight=None).graph.edge_weight is None
    asked = {"split": "fraction:0.5,0"}
    for name, of in (("features", "node"), ("weight", "edge")):
        with pytest.raises(mr.InputError, match=f"no {of} has the attribute 'none'; name one that they have"):
            mr.from_networkx(g, **asked, **{name: "none"})
    with pytest.raises(mr.InputError, match="no node has a set in 'part', but"):
        mr.from_networkx(g, split_attribute="part")
    assert mr.from_networkx(g, **asked).graph.edge_weight.tolist() == [2.0] * 3
    nx.set_node_attributes(g, {0: "training", 1: "valid", 2: "Test"}, "split")
    assert [getattr(mr.from_networkx(g).split, p).tolist() for p in ("train", "val", "test")] == [[0], [1], [2]]


def test_an_edge_in_each_row(tmp_path):
    data = drop(tmp_path / "g.npz", "edge_index", edges=EDGES.T)
    assert data.graph.num_edges == V
    assert f"edge_index has shape [{V}, 2]: an edge is a row." in data.notes


def test_arrays_beside_those_of_another_layout(tmp_path):
    three = {"edges": EDGES.T, "node_features": np.ones((V, 2)), "node_labels": np.arange(V) % 4}
    rest = {f"{part}_mask": np.isin(np.arange(V), ids) for part, ids in zip(("train", "valid", "test"), PARTS)}
    np.savez(tmp_path / "g.npz", **three, **rest, edge_weights=np.full(V, 2.0))
    data = mr.open_dataset(tmp_path / "g.npz", options=OPTIONS)
    assert data.split.val.tolist() == PARTS[1].tolist()
    assert data.graph.edge_weight.tolist() == [2.0] * V
    masks = {f"{part}_masks": np.isin(np.arange(V), ids)[None] for part, ids in zip(("train", "val", "test"), PARTS)}
    np.savez(tmp_path / "h.npz", **three, **masks, edge_weights=np.ones(V))
    with pytest.raises(InputError, match="the key edge_weights is not read, and looks like a split or weights"):
        mr.open_dataset(tmp_path / "h.npz", options=OPTIONS)


@pytest.mark.parametrize("more", [{}, {"data": [1, 1, 1, 0]}, {"data": [2.0, 2, 2, 0], "shape": [12, 12]}])
def test_entries_of_a_matrix(tmp_path, more):
    """A SciPy matrix [V, V] without its format; an entry of 0 is no edge."""
    arrays = {"row": [0, 1, 2, 5], "col": [1, 2, 0, 5], **more}
    np.savez(tmp_path / "g.npz", **arrays, y=np.arange(12) % 2)
    data = mr.open_dataset(tmp_path / "g.npz", options=mr.ReadOptions(direction="directed", self_loops="keep"))
    assert data.num_nodes == 12
    assert data.graph.indices.tolist() == ([2, 0, 1] if more else [2, 0, 1, 5])
    assert data.graph.in_degree.tolist()[:6] == [1, 1, 1, 0, 0, 0 if more else 1]
    assert (data.graph.edge_weight is None) == ("shape" not in more)
    np.savez(tmp_path / "bad.npz", **{**arrays, "row": [0.5, 1, 2, 5]}, y=np.arange(12) % 2)
    with pytest.raises(mr.InputError, match=r"row, col and data are not a COO matrix \(row holds float64"):
        mr.open_dataset(tmp_path / "bad.npz")
    np.savez(tmp_path / "one.npz", row=1, col=2, y=np.arange(12) % 2)
    with pytest.raises(mr.InputError, match="row, col and data are not a COO matrix"):
        mr.open_dataset(tmp_path / "one.npz")
