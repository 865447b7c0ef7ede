"""Contract of every feature store."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from millrace.storage.features import FeatureStore


class FeatureStoreTests:
    """Subclass as ``TestX`` and define how to make a store of given rows."""

    def make(self, rows: np.ndarray, path: Path) -> FeatureStore:
        """A store that holds `rows` [V, F]; `path` is a place that does not exist yet."""
        raise AssertionError("a subclass makes the store")

    @pytest.fixture(params=[np.float32, np.float64])
    def rows(self, request: pytest.FixtureRequest) -> np.ndarray:
        return np.random.default_rng(0).random((23, 3)).astype(request.param)

    @pytest.fixture
    def store(self, rows: np.ndarray, tmp_path: Path) -> FeatureStore:
        return self.make(rows, tmp_path / "rows")

    def test_is_a_feature_store(self, store, rows):
        assert isinstance(store, FeatureStore)
        assert (store.num_rows, store.num_features) == rows.shape
        assert store.dtype == rows.dtype
        assert isinstance(store.dtype, np.dtype)

    @pytest.mark.parametrize(
        "ids", [[], [0], [22], [5, 5, 5], [22, 0, 7, 7, 1], list(range(23)), list(range(22, -1, -1))]
    )
    @pytest.mark.parametrize("width", [np.int32, np.int64])
    def test_gathers_rows_in_the_order_asked(self, store, rows, ids, width):
        ids = np.array(ids, width)
        out = store.gather(ids)
        assert out.dtype == rows.dtype
        assert np.array_equal(out, rows[ids])

    def test_writes_into_out(self, store, rows):
        ids, out = np.array([3, 1]), np.full((2, 3), -1, rows.dtype)
        assert store.gather(ids, out) is out
        assert np.array_equal(out, rows[ids])

    @pytest.mark.parametrize("ids", [[-1], [23], [0, 23], [4, -2, 1]])
    def test_refuses_ids_out_of_range(self, store, ids):
        with pytest.raises(IndexError, match="there are 23"):
            store.gather(np.array(ids))

    def test_gathers_from_many_threads(self, store, rows):
        rng = np.random.default_rng(1)
        asked = [rng.integers(0, 23, 40) for _ in range(16)]
        with ThreadPoolExecutor(4) as pool:
            for ids, out in zip(asked, pool.map(store.gather, asked)):
                assert np.array_equal(out, rows[ids])

    def test_no_rows(self, tmp_path):
        store = self.make(np.zeros((0, 3), np.float32), tmp_path / "none")
        assert store.gather(np.empty(0, np.int64)).shape == (0, 3)
        with pytest.raises(IndexError):
            store.gather(np.array([0]))
