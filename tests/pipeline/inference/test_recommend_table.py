"""Files of the best destinations: the same by every suffix, in pieces of any size, by ids and by names."""

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

import millrace as mr
from millrace.pipeline.inference import recommend
from millrace.pipeline.inference.recommend import Recommendations, sources_at_once
from millrace.storage.node_names import NodeNames

DESTINATIONS = np.array([[2, 0, 1], [1, -1, -1], [-1, -1, -1], [0, 2, -1], [1, 2, 0]])
SCORES = np.where(DESTINATIONS < 0, -np.inf, [3.0, 2.0, 1.0]).astype(np.float32)
SOURCES = np.array([4, 0, 2, 1, 0])
NAMED = NodeNames.from_values([f"user {i}" for i in range(5)]), NodeNames.from_values(["ä", "b", "c"])


@pytest.mark.parametrize("names", [None, NAMED], ids=["ids", "names"])
@pytest.mark.parametrize("pairs", [1 << 20, 8, 3])
def test_every_suffix(names, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(recommend, "PIECE_PAIRS", pairs)
    found = Recommendations(SOURCES, DESTINATIONS, SCORES, names)
    for suffix in (".parquet", ".csv", ".zarr", ".npy"):
        found.write(tmp_path / f"r{suffix}")
    rows, places = np.nonzero(DESTINATIONS >= 0)
    src, dst = SOURCES[rows], DESTINATIONS[rows, places]
    if names is not None:
        src, dst = (np.array(of.take(nodes)) for of, nodes in zip(names, (src, dst)))
        assert found.source_names.tolist() == [f"user {i}" for i in SOURCES]
        assert found.destination_names.tolist()[:3] == [["c", "ä", "b"], ["b", "", ""], [""] * 3]
    else:
        assert found.source_names is None and found.destination_names is None
    for table in (pyarrow.parquet.read_table(tmp_path / "r.parquet"), pyarrow.csv.read_csv(tmp_path / "r.csv")):
        assert table.column_names == ["src", "dst", "rank", "score"]
        for name, want in {"src": src, "dst": dst, "rank": places + 1, "score": SCORES[rows, places]}.items():
            assert table[name].to_pylist() == want.tolist()
    assert np.array_equal(np.load(tmp_path / "r.npy"), DESTINATIONS)
    import zarr

    group = zarr.open_group(tmp_path / "r.zarr", mode="r")
    assert np.array_equal(group["score"][:], SCORES)
    assert np.array_equal(group["src"][:], SOURCES if names is None else found.source_names)
    assert np.array_equal(group["dst"][:], DESTINATIONS if names is None else found.destination_names)


def test_no_sources_are_files_too(tmp_path):
    nothing = Recommendations(SOURCES[:0], DESTINATIONS[:0], SCORES[:0], NAMED)
    for suffix in (".parquet", ".csv", ".zarr", ".npy"):
        nothing.write(tmp_path / f"r{suffix}")
    assert pyarrow.parquet.read_table(tmp_path / "r.parquet").column_names == ["src", "dst", "rank", "score"]
    assert np.load(tmp_path / "r.npy").shape == (0, 3) and len(nothing) == 0
    assert repr(nothing) == "Recommendations(0 sources, the 3 best of each)"
    with pytest.raises(mr.InputError, match=r"ends in '.txt'"):
        nothing.write(tmp_path / "r.txt")


def test_a_piece_is_bounded():
    assert [sources_at_once(k) for k in (1, 10, 1000, 1 << 20, 1 << 30)] == [65536, 65536, 1024, 1, 1]
