"""Times of nodes and edges in pieces: the store, and the sentences, of the reader in memory."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.pipeline.datasets import ReadOptions, open_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import cut_small, parquet, same

KINDS = {
    "whole": lambda t: pa.array(t, pa.int32()),
    "numbers": lambda t: pa.array(t / 4, pa.float64()),
    "days": lambda t: pa.array(t, pa.int32()).cast(pa.date32()),
    "texts": lambda t: pa.array(t, pa.int32()).cast(pa.date32()).cast(pa.string()),
    "seconds": lambda t: pa.array(t, pa.int64()).cast(pa.timestamp("s", tz="UTC")),
    "millis": lambda t: pa.array(t * 10, pa.int64()).cast(pa.timestamp("ms")),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


def tables(folder, seed, of_edges, of_nodes, typed=False):
    """Tables of one type, or of two with a relation whose edges have times and one whose edges have none."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(50) if seed % 2 else np.arange(50)

    def nodes(stem, kind):
        more = {} if kind is None else {"born": KINDS[kind](rng.integers(0, 90, 50))}
        parquet(folder, stem, pa.table({"id": ids, "label": rng.integers(0, 3, 50), "x0": rng.normal(size=50), **more}))

    def edges(stem, kind):
        more = {} if kind is None else {"at": KINDS[kind](rng.integers(0, 9, 300))}
        more |= {"weight": rng.random(300)} if seed % 3 == 0 else {}
        more |= {"feature_0": rng.normal(size=300)} if seed % 3 == 1 else {}
        parquet(folder, stem, pa.table({"src": rng.choice(ids[:9], 300), "dst": rng.choice(ids[:7], 300), **more}))

    if not typed:
        nodes("nodes", of_nodes)
        edges("edges", of_edges)
        return
    nodes("nodes-a", of_nodes)
    parquet(folder, "nodes-b", pa.table({"id": ids, "note": ids}))
    for stem, kind in (("a-r-b", of_edges), ("b-s-a", None), ("a-t-a", None)):
        edges(f"edges-{stem}", kind)


def chosen(of_edges, of_nodes):
    return {"edge_time": of_edges and "at", "node_time": of_nodes and "born"}


EACH = [("whole", None), ("numbers", "whole"), ("days", "millis"), (None, "seconds"), ("millis", "days")]


@pytest.mark.parametrize(("of_edges", "of_nodes"), EACH)
def test_the_store_is_that_of_the_reader_in_memory(tmp_path, of_edges, of_nodes):
    each = product([None, "directed", "reverse", "undirected"], ["merge", "keep"])
    for n, (direction, duplicates) in enumerate(each, EACH.index((of_edges, of_nodes))):
        if direction is None:
            continue
        tables(folder := tmp_path / f"g{n}", n, of_edges, of_nodes)
        options = ReadOptions(
            direction=direction, duplicates=duplicates, self_loops=["keep", "drop"][n % 2],
            **chosen(of_edges, of_nodes),
        )  # fmt: skip
        same(folder, tmp_path, options, split="time:0.5,0.2" if of_nodes and n % 2 else None)


def test_dates_as_text(tmp_path):
    held = {}
    for kind in ("days", "texts"):
        tables(folder := tmp_path / kind, 0, kind, kind)
        graph = same(folder, tmp_path, ReadOptions(direction="directed", **chosen(kind, kind))).graph
        held[kind] = [np.array(graph.edge_time), np.array(graph.node_time)]
        held[kind] = [times.astype(np.int64).view(f"M8[{graph.time_unit}]") for times in held[kind]]
    assert all(map(np.array_equal, held["days"], held["texts"])) and held["texts"][0].size


@pytest.mark.parametrize(("of_edges", "of_nodes"), EACH)
def test_several_types(tmp_path, of_edges, of_nodes):
    for direction in ("directed", "undirected"):
        tables(folder := tmp_path / direction, len(direction), of_edges, of_nodes, typed=True)
        options = ReadOptions(direction=direction, **chosen(of_edges, of_nodes))
        data = same(folder, tmp_path, options, ["zarr", "npy"][direction == "directed"])
        assert data.graph.edge_time is not None


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(
    ("times", "told"),
    [
        (pa.array([1, None, 3, None]), "2 times that are NaN (first: position 1)"),
        (pa.array([1.0, 2.0, np.inf, 3.0]), "1 infinite time (first: position 2)"),
        (pa.array(["x", "", "y", "z"]), "(first: 'x')"),
        (pa.array([[1]] * 4), "expected numbers"),
    ],
)
def test_what_is_no_time_is_refused_as_in_memory(tmp_path, typed, times, told):
    name = "-a-r-a" if typed else ""
    for of in ("edge_time", "node_time"):
        folder = tmp_path / of
        folder.mkdir()
        nodes, edges = {"label": [0, 1, 0, 1]}, {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]}
        (nodes if of == "node_time" else edges)["t"] = times
        parquet(folder, f"nodes{'-a' if typed else ''}", pa.table(nodes))
        parquet(folder, f"edges{name}", pa.table(edges))
        options = ReadOptions(direction="directed", **{of: "t"})
        with pytest.raises(InputError) as want:
            open_dataset(folder, options=options)
        with pytest.raises(InputError) as got:
            mr.convert(folder, tmp_path / "out", options=options, verbose=False)
        assert told in str(want.value) and str(got.value) == str(want.value)
        assert not (tmp_path / "out").exists()
