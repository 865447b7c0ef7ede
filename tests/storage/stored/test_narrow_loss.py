"""What columns lose in fewer bytes is counted, named, and refused where a column would hold one value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.store.narrow import narrow, widen
from millrace.storage.stored.narrow_loss import NarrowLoss

X = arrays(np.float32, st.tuples(st.integers(0, 9), st.just(2)), elements=st.floats(-1e6, 1e6, width=32))


@settings(max_examples=40, deadline=None)
@given(x=X, cut=st.integers(0, 9), kind=st.sampled_from(["float16", "bfloat16", "int8"]))
def test_counts_do_not_depend_on_pieces(x, cut, kind):
    parts = [(p, widen(narrow(p, kind), kind)) for p in (x[:cut], x[cut:])]
    found = NarrowLoss.of_record(sum((NarrowLoss.from_rows(*p, kind) for p in parts), NarrowLoss.none(2)).record())
    kept = np.concatenate([k for _, k in parts])
    assert found.clipped.tolist() == ((np.abs(x) > 65504).sum(0) if kind == "float16" else np.zeros(2)).tolist()
    assert found.rounded.tolist() == ((x == np.floor(x)) & (x != kept)).sum(0).tolist()
    if len(x):
        assert found.kept_least.tolist() == kept.min(0).tolist() and found.largest.tolist() == x.max(0).tolist()


def table(folder, **columns):
    folder.mkdir()
    rows = len(next(iter(columns.values())))
    lines = [",".join(map(str, (v, "ab"[v % 2], *row))) for v, row in enumerate(zip(*columns.values()))]
    (folder / "nodes.csv").write_text("\n".join([f"id,label,{','.join(columns)}", *lines]))
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"{v},{(v + 1) % rows}\n" for v in range(rows)))
    return mr.ReadOptions(direction="directed", feature_columns=",".join(columns))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
def test_a_column_that_vanishes_is_refused_by_both_readers(tmp_path, kind):
    columns = {"flag": [v % 2 for v in range(30)], "amount": [2e5 + 4096 * v for v in range(30)]}
    columns = columns if kind == "int8" else {"flag": columns["flag"], "year": [3e38 + v * 1e31 for v in range(30)]}
    options, gone = table(tmp_path / "g", **columns), "flag" if kind == "int8" else "year"
    with pytest.raises(
        InputError, match=rf"feature_dtype is {kind}, in which 1 column .* '{gone}' .*read.normalize_features="
    ):
        mr.convert(tmp_path / "g", tmp_path / "out", options=options, feature_dtype=kind, verbose=False)
    data = mr.open_dataset(tmp_path / "g", options=options)
    with pytest.raises(InputError, match=f"in which 1 column would have one value only: '{gone}'"):
        mr.write_dataset(tmp_path / "out", data, feature_dtype=kind)
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


def test_what_is_clipped_and_rounded_is_noted(tmp_path):
    columns = {
        "pay": [1000 + 5000 * v for v in range(30)],
        "rank": [2048 + v for v in range(30)],
        "x": [v / 8 for v in range(30)],
    }
    options = table(tmp_path / "g", **columns)
    store = mr.convert(tmp_path / "g", tmp_path / "out", options=options, feature_dtype="float16", verbose=False)
    note = next(n for n in store.meta["notes"] if "loses values" in n)
    assert (
        "column 'pay': 17 values are clipped to 65,504" in note
        and "column 'rank': 15 whole numbers are rounded" in note
    )
    assert "'x'" not in note


def test_whole_numbers_that_float32_does_not_have(tmp_path):
    options = table(tmp_path / "g", since=[1_700_000_000 + 60 * v for v in range(30)], x=range(30))
    data = mr.open_dataset(tmp_path / "g", options=options)
    rounded = sum(float(np.float32(v)) != v for v in range(1_700_000_000, 1_700_001_800, 60))
    assert any(
        f"{rounded} whole numbers of 'since' (to 1,700,001,740) were rounded to float32" in n for n in data.notes
    )
    options = table(tmp_path / "h", since=[1_700_000_000 + v for v in range(30)], x=range(30))
    for read in (
        lambda: mr.open_dataset(tmp_path / "h", options=options),
        lambda: mr.convert(tmp_path / "h", tmp_path / "out", options=options, verbose=False),
    ):
        with pytest.raises(InputError, match="'since' from 1,700,000,000 to 1,700,000,029 is one value as float32"):
            read()
