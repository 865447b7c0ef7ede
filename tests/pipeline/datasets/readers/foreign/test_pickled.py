"""Planetoid's pickles and PyG's files are read without running what is in them."""

import pickle
from collections import defaultdict

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import millrace as mr
from millrace.storage.errors import InputError


def planetoid(folder, name="tiny", *, gap=False):
    """Files of 12 nodes of which the last four test, as `torch_geometric.io.read_planetoid_data` reads them; a gap
    leaves one of these without a row."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (12, 5)).astype(np.float32), np.eye(3, dtype=np.int32)[rng.integers(0, 3, 12)]
    test = [9, 8, 11, 10] if not gap else [9, 8, 11]
    graph = defaultdict(list, {i: [(i + 1) % 12, (i - 1) % 12] for i in range(12)})
    parts = {"x": sp.csr_matrix(x[:3]), "y": y[:3], "allx": sp.csr_matrix(x[:8]), "ally": y[:8], "graph": graph}
    parts |= {"tx": sp.csr_matrix(x[sorted(test)]), "ty": y[sorted(test)]}
    folder.mkdir(exist_ok=True)
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=2))
    # Row i of tx is that of the i-th number of test.index.
    (folder / f"ind.{name}.test.index").write_text("\n".join(map(str, sorted(test))) + "\n")
    return x, y.argmax(1)


@pytest.mark.parametrize("gap", [False, True])
def test_planetoids_files_are_read(tmp_path, gap, monkeypatch):
    monkeypatch.setattr("millrace.pipeline.datasets.readers.foreign.pickled.VAL_NODES", 4)
    x, y = planetoid(tmp_path / "p", gap=gap)
    for source in (tmp_path / "p", tmp_path / "p/ind.tiny.graph"):
        d = mr.open_dataset(source)
        assert d.num_nodes == 12 and d.graph.num_edges == 24
        rows = d.features.gather(np.arange(12))
        there = [v for v in range(12) if not (gap and v == 10)]
        np.testing.assert_array_equal(rows[there], x[there])
        np.testing.assert_array_equal(np.asarray(d.labels)[there], y[there])
        if gap:
            assert d.labels[10] == -1 and not rows[10].any() and any("no row in tx" in n for n in d.notes)
        assert [getattr(d.split, s).tolist() for s in ("train", "val")] == [[0, 1, 2], [3, 4, 5, 6]]
        assert d.split.test.tolist() == [v for v in (8, 9, 10, 11) if v in there]


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_no_code_is_run(tmp_path):
    planetoid(tmp_path / "p")
    (tmp_path / "p/ind.tiny.graph").write_bytes(pickle.dumps(Evil(str(tmp_path / "ran"))))
    with pytest.raises(InputError, match=r"ind\.tiny\.graph cannot be read \(it names \w+\.open, which might run code"):
        mr.open_dataset(tmp_path / "p")
    torch.save(Evil(str(tmp_path / "ran")), tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"without running code in it.*weights_only=False"):
        mr.open_dataset(tmp_path / "a.pt")
    assert not (tmp_path / "ran").exists()


def test_several_graphs_and_damage_are_refused(tmp_path):
    planetoid(tmp_path / "p")
    planetoid(tmp_path / "p", "other")
    with pytest.raises(InputError, match="holds the graphs other, tiny; give one, "):
        mr.open_dataset(tmp_path / "p")
    with pytest.raises(InputError, match=r"give ind.NAME.graph"):
        mr.open_dataset(tmp_path / "p/ind.tiny.allx")
    (tmp_path / "p/ind.tiny.test.index").write_text("20\n21\n22\n23\n")
    with pytest.raises(InputError, match=r"not those of test\.index"):
        mr.open_dataset(tmp_path / "p/ind.tiny.graph")
    (tmp_path / "p/ind.tiny.tx").write_bytes(pickle.dumps(["a"]))
    with pytest.raises(InputError, match=r"ind.tiny.\* cannot be read \(a part is no matrix"):
        mr.open_dataset(tmp_path / "p/ind.tiny.graph")


def data_of(**more):
    pyg = pytest.importorskip("torch_geometric.data")
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    return pyg.Data(x=torch.arange(8.0).reshape(4, 2), edge_index=edges, y=torch.tensor([0, 1, 1, 0]), **more)


def test_folders_and_files_of_pyg_are_read(tmp_path):
    masks = {f"{s}_mask": torch.tensor([[v == i, v == (i + 1) % 4] for v in range(4)])
             for i, s in enumerate(("train", "val", "test"))}  # fmt: skip
    data = data_of(**masks)
    (tmp_path / "g/processed").mkdir(parents=True)
    (tmp_path / "g/raw").mkdir()
    torch.save((data.to_dict(), None, type(data)), tmp_path / "g/processed/data.pt")
    torch.save(data, tmp_path / "g.pt")
    for source in (tmp_path / "g", tmp_path / "g.pt"):
        for which in (None, "1"):
            d = mr.open_dataset(source, options=mr.ReadOptions(split=which))
            assert [getattr(d.split, s).tolist() for s in ("train", "val", "test")] == (
                [[1], [2], [3]] if which else [[0], [1], [2]]
            )
            assert any("Of 2 splits" in n for n in d.notes)
            np.testing.assert_array_equal(d.features.gather(np.arange(4)), data.x)
    with pytest.raises(InputError, match=r"read.split is '2'; expected 0 to 1"):
        mr.open_dataset(tmp_path / "g.pt", options=mr.ReadOptions(split="2"))
    mr.convert(tmp_path / "g", tmp_path / "store", options=mr.ReadOptions(split="1"), verbose=False)
    assert mr.open_dataset(tmp_path / "store").split.train.tolist() == [1]


def test_what_is_no_single_graph_is_refused(tmp_path):
    torch.save((data_of().to_dict(), {"x": torch.tensor([0, 2, 4])}), tmp_path / "two.pt")
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    for name, text in (("two", "holds 2 graphs; expected one"), ("tensor", "holds a Tensor; expected a Data")):
        with pytest.raises(InputError, match=text):
            mr.open_dataset(tmp_path / f"{name}.pt")


def test_one_of_several_splits_of_arrays(tmp_path):
    edges = np.array([[0, 1], [2, 3], [1, 2]])
    masks = {f"{s}_masks": np.array([np.arange(4) == i, np.arange(4) == (i + 1) % 4]) for i, s in
             enumerate(("train", "val", "test"))}  # fmt: skip
    np.savez(
        tmp_path / "h.npz", edges=edges, node_features=np.ones((4, 1)), node_labels=np.array([0, 1, 0, 1]), **masks
    )
    for which, train in ((None, [0]), ("0", [0]), (0, [0]), ("1", [1]), (1, [1])):
        assert mr.open_dataset(tmp_path / "h.npz", options=mr.ReadOptions(split=which)).split.train.tolist() == train
    drawn = mr.open_dataset(tmp_path / "h.npz", options=mr.ReadOptions(split="none"), split="fraction:0.5,0.25")
    assert len(drawn.split.train) == 2
    np.savez(tmp_path / "one.npz", edge_index=np.array([[0, 1], [1, 0]]), y=np.array([0, 1]))
    with pytest.raises(InputError, match=r"read\.split is .0.; expected none, as it has no several splits"):
        mr.open_dataset(tmp_path / "one.npz", options=mr.ReadOptions(split="0"))
