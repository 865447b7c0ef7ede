"""A stored dataset's manifest says what `inspect` shows, and the first names are read alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.commands.describe import _dataset, describe
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import write_dataset
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import degree_summary, from_edges
from millrace.storage.node_names import NodeNames, first_names


@given(st.lists(st.integers(0, 9), max_size=20))
def test_the_summary_is_that_of_all_degrees(degrees):
    array = np.array(degrees, np.int64)
    assert degree_summary(*np.unique(array, return_counts=True)) == {
        "median": int(np.median(array)) if degrees else 0,
        "largest": max(degrees, default=0),
        "zero": degrees.count(0),
    }


@pytest.mark.parametrize("names", [None, ["a", "", "äö", "d", "e", "f", "g"]])
@pytest.mark.parametrize("features", ["zarr", "npy"])
def test_a_store_is_described_without_its_arrays(tmp_path, names, features, monkeypatch):
    ids = np.arange(7)
    data = Dataset(
        "d", from_edges([0, 1, 1], [1, 2, 2], 7), ArrayFeatures(np.ones((7, 3), np.float32)), ids % 2,
        Split(ids[:2], ids[2:4], ids[4:]), 2, notes=("a note.",),
        node_names=None if names is None else NodeNames.from_values(names), class_names=("x", "y"),
    )  # fmt: skip
    store = write_dataset(tmp_path / "s", data, features_format=features, graph_format=features)
    assert first_names(store, 3) == (None if names is None else names[:3])
    monkeypatch.setattr("millrace.pipeline.commands.describe.open_data", None)
    found = describe(str(tmp_path / "s"), None)
    how = {
        "zarr": "millrace convert STORE --out NEW --graph npy",
        "npy": 'files of 0.00 GiB, which graph = "mapped" maps',
    }
    assert found.pop("graph on disk").endswith(how[features])
    assert found == _dataset(data)
    write_dataset(tmp_path / "int8", data, features_format=features, feature_dtype="int8")
    assert describe(str(tmp_path / "int8"), None)["features"] == "3 of int8"
