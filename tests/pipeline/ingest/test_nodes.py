"""Labels of tables in pieces: the classes, and the sentences, of the reader in memory."""

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.tests.contracts.ingest import cut_small, parquet, same


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


@pytest.mark.parametrize("ignored", [None, "unknown", ("7", "unknown", "none")])
def test_classes_that_are_text(tmp_path, ignored):
    kinds = ["7", "red ", " red", "unknown", "red", "?", "", None, "unknown ", "Red"]
    labels = [kinds[7 * i % 10] for i in range(70)]
    parquet(tmp_path / "g", "edges", pa.table({"src": range(70), "dst": [(3 * i + 1) % 70 for i in range(70)]}))
    parquet(tmp_path / "g", "nodes", pa.table({"label": labels, "feature_0": [float(i) for i in range(70)]}), group=7)
    same(
        tmp_path / "g", tmp_path, mr.ReadOptions(direction="directed", ignored_labels=ignored), split="fraction:0.5,0.2"
    )
    data = mr.open_dataset(tmp_path / "g", options=mr.ReadOptions(direction="directed", ignored_labels=ignored))
    assert "Blanks around" in " ".join(data.notes) and "red" in data.class_names
    assert ("unknown" in data.class_names) == (ignored is None)


def test_a_piece_whose_ids_are_its_rows_among_ids_with_gaps(tmp_path):
    rng, ids = np.random.default_rng(0), np.array([100, *range(1, 24)])
    parquet(tmp_path / "g", "edges", pa.table({end: rng.choice(ids, 80) for end in ("src", "dst")}))
    of_nodes = {"id": ids, "label": rng.integers(0, 3, 24), "feature_0": np.arange(24.0)}
    parquet(tmp_path / "g", "nodes", pa.table(of_nodes), cuts=(), group=8)
    options = mr.ReadOptions(direction="directed", missing_ids="compact")
    data = same(tmp_path / "g", tmp_path, options, split="fraction:0.5,0.2")
    assert data.features.gather(np.arange(24)).ravel().tolist() == np.argsort(ids).tolist()
