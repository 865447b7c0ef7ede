"""Missing features: known values alone scale their columns, and what fills the gaps comes after."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import millrace as mr
from millrace.pipeline.datasets.cleaning import filling
from millrace.pipeline.datasets.cleaning.columns import EDGES, RowKind, clean_edge_features, clean_features
from millrace.storage.errors import InputError

KNOWN = st.floats(-1000, 1000, width=32)
ROWS = arrays(
    np.float32, st.tuples(st.integers(1, 14), st.integers(1, 3)), elements=KNOWN | st.sampled_from([np.nan, np.inf])
)
KINDS = ["zero", "mean", "median", "indicator"]


def model(x, kind, normalize):
    """Column by column with NumPy, in float64."""
    bad = ~np.isfinite(x)
    known = np.where(bad, 0, x).astype(np.float64)
    if normalize == "row":
        total = np.abs(known).sum(1, keepdims=True)
        known = (known / np.where(total > 0, total, 1)).astype(np.float32).astype(np.float64)
    if normalize == "binary":
        known = (known != 0).astype(np.float64)
    out = []
    for column, gaps in zip(known.T, bad.T):
        own = column[~gaps]
        scaled = column
        if normalize == "standard" and len(own):
            deviation = own.std() if own.std() > 1e-9 * abs(own.mean()) else 1
            scaled = (column - own.mean()) / deviation
        of = {"mean": np.mean, "median": np.median}.get(kind, lambda _: 0.0)
        out.append(np.where(gaps, of(scaled[~gaps]) if len(own) else 0, scaled))
    flags = [gaps for gaps in bad.T if gaps.any()] if kind == "indicator" else []
    return np.stack([*out, *flags], 1)


@pytest.mark.parametrize("normalize", ["none", "standard", "row", "binary"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(x=ROWS)
def test_gaps_are_filled_after_scaling(kind, normalize, x):
    options = mr.ReadOptions(nan_features=kind, normalize_features=normalize)
    found = clean_features(x, len(x), options, [])
    np.testing.assert_allclose(found, model(x, kind, normalize), rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(x=ROWS, cut=st.integers(0, 14))
def test_medians_of_pieces_are_numpys(x, cut):
    bad = filling.taken_out(x)
    pieces = [(x[a:b], None if bad is None else bad[a:b]) for a, b in ((0, cut), (cut, None))]
    bins = filling.middle_bins([filling.value_counts(*p, dict.fromkeys(range(x.shape[1]))) for p in pieces])
    counts = [filling.value_counts(*p, {c: own for c, (own, _) in bins.items()}) for p in pieces]
    known = [len(x) if bad is None else int((~bad[:, c]).sum()) for c in range(x.shape[1])]
    found = filling.medians_of(counts, bins, known) if bins else np.zeros(x.shape[1])
    for c, median in enumerate(found):
        own = x[:, c] if bad is None else x[~bad[:, c], c]
        assert median == (np.median(own.astype(np.float64)) if len(own) else 0)


def test_columns_and_counts_are_named():
    x = np.array([[1, np.nan, 5], [np.nan, np.inf, 6], [3, np.nan, 7]], np.float64)
    names = ("pay", "rank", "age")
    with pytest.raises(
        InputError, match=r"4 feature values are NaN or infinite \(first: node 0\): 'pay' 1, 'rank' 3; set"
    ):
        clean_features(x, 3, mr.ReadOptions(), [], RowKind(names))
    clean_features(
        x, 3, mr.ReadOptions(nan_features="median", normalize_features="standard"), notes := [], RowKind(names)
    )
    assert notes[0] == (
        "4 NaN or infinite feature values were filled with the median of the known ones, after columns were scaled "
        "by the known ones (nan_features=median): 'pay' 1, 'rank' 3."
    )
    assert notes[1] == "No value of 'rank' is known, so that it is constant."
    with pytest.raises(
        InputError, match=r"1 edge feature value is NaN or infinite \(first: edge 1 of the input\): 'w\[0\]' 1"
    ):
        clean_edge_features(np.array([[1.0, 2], [np.nan, 2]]), 2, mr.ReadOptions(), [], EDGES._replace(columns=("w",)))
    found = clean_edge_features(np.array([1.0, np.nan, 4]), 3, mr.ReadOptions(nan_features="mean"), notes := [])
    assert found.tolist() == [[1], [2.5], [4]] and "'column 0' 1" in notes[0]
    assert filling.column_names(("a", "b"), 3) == ["column 0", "column 1", "column 2"]


def test_edges_of_graphs_labels_and_relations_too(tmp_path):
    ends, attr = np.array([[0, 1, 2, 3], [1, 2, 3, 0]]), np.array([2.0, np.nan, 4, 9])
    np.savez(tmp_path / "g.npz", edge_index=ends, y=[0, 1, 0, 1], edge_attr=attr, edge_label=[0, 1, 0, 1])
    options = {"direction": "directed", "nan_features": "median"}
    data = mr.open_dataset(tmp_path / "g.npz", options=mr.ReadOptions(**options), split="fraction:0.5,0.25")
    rows = data.graph.edge_features.gather(np.arange(4))[:, 0]
    assert dict(zip(data.graph.indices.tolist(), rows.tolist())) == {0: 2, 1: 4, 2: 4, 3: 9}
    labelled = mr.open_dataset(tmp_path / "g.npz", options=mr.ReadOptions(**options, labels_of="edges"))
    assert labelled.pair_features[:, 0].tolist() == [2, 4, 4, 9]
    relations = {("a", "r", "a"): ends}
    typed = mr.from_relations(
        relations, features={"a": np.array([[1.0], [np.nan], [3], [8]])}, labels=np.array([0, 1, 0, 1]), target="a",
        edge_features={("a", "r", "a"): attr}, options=mr.ReadOptions(nan_features="indicator"),
    )  # fmt: skip
    assert typed.features.gather(np.arange(4)).tolist() == [[1, 0], [0, 1], [3, 0], [8, 0]]
    assert typed.num_edge_features == 2
