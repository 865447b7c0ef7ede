"""A folder as OGB unpacks it, found by its name."""

import gzip

import numpy as np

import millrace as mr
from millrace.pipeline.datasets.readers.foreign.ogb import find_ogb


def test_a_name_finds_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OGB_ROOT", str(tmp_path))
    folder = tmp_path / "ogbn_small"
    files = {
        "raw/edge": "0,1\n1,2\n2,0\n", "raw/node-label": "0\n1\n0\n", "raw/num-node-list": "3\n",
        "raw/node-feat": "1,2\n3,4\n5,6\n",
        "split/time/train": "0\n", "split/time/valid": "1\n", "split/time/test": "2\n",
    }  # fmt: skip
    for name, text in files.items():
        (path := folder / f"{name}.csv.gz").parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    assert find_ogb("ogbn-small") == folder
    dataset = mr.open_dataset("ogbn-small", options=mr.ReadOptions(direction="directed"))
    assert dataset.num_nodes == 3 and dataset.graph.num_edges == 3
    assert np.asarray(dataset.features.gather(np.arange(3))).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert [np.asarray(part).tolist() for part in (dataset.split.train, dataset.split.val, dataset.split.test)] == [
        [0],
        [1],
        [2],
    ]
