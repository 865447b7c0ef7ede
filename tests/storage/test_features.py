"""Feature stores: the contract, and what each refuses."""

import numpy as np
import pytest

from millrace.storage.errors import InputError, StoreError
from millrace.storage.features import ArrayFeatures, ConvertedFeatures, MappedFeatures, ZarrFeatures, write_features
from millrace.storage.store.store import write_store
from millrace.tests.contracts.features import FeatureStoreTests


class TestArrayFeatures(FeatureStoreTests):
    def make(self, rows, path):
        return ArrayFeatures(rows)


class TestMappedFeatures(FeatureStoreTests):
    def make(self, rows, path):
        np.save(path.with_suffix(".npy"), rows)
        return MappedFeatures(path.with_suffix(".npy"))


class TestZarrFeatures(FeatureStoreTests):
    @pytest.fixture(autouse=True)
    def _many_chunks(self, monkeypatch):
        monkeypatch.setattr("millrace.storage.store.arrays.CHUNK_BYTES", 100)

    def make(self, rows, path):
        return write_features(path, rows)


class TestZarrFeaturesInside(FeatureStoreTests):
    def make(self, rows, path):
        return ZarrFeatures.inside(
            write_store(path, "other", fingerprint={}, meta={}, arrays={"a": rows[:, 0], "x": rows}), "x"
        )


class TestConvertedFeatures(FeatureStoreTests):
    def make(self, rows, path):
        # Widening to float64 and back is exact, so the oracle stays the rows themselves.
        return ConvertedFeatures(ArrayFeatures(rows.astype(np.float64)), rows.dtype)


@pytest.mark.parametrize("rows", [np.zeros(3, np.float32), np.zeros((2, 2), np.int64), np.zeros((2, 2), np.float16)])
def test_refuses_what_are_no_features(rows):
    with pytest.raises(InputError, match="expected float32 or float64"):
        ArrayFeatures(rows)


def test_mapped_file_must_be_there_and_whole(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        MappedFeatures(tmp_path / "none.npy")
    file = tmp_path / "rows.npy"
    np.save(file, np.ones((50, 4), np.float32))
    data = file.read_bytes()
    for left in (0, 20, len(data) - 8):
        file.write_bytes(data[:left])
        with pytest.raises(StoreError, match=r"not a complete \.npy file"):
            MappedFeatures(file)


def test_zarr_damage_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.storage.store.arrays.CHUNK_BYTES", 40)
    rows = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    store = write_features(tmp_path / "f", rows, fingerprint={"graph": "g"})
    chunk = tmp_path / "f/arrays/rows/c/1/0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    assert np.array_equal(store.gather(np.array([0, 15])), rows[[0, 15]])
    with pytest.raises(StoreError, match="feature rows from 5 are damaged"):
        store.gather(np.array([0, 7]))
    chunk.unlink()
    with pytest.raises(StoreError, match="lacks 1 of its"):
        ZarrFeatures(tmp_path / "f")


def test_zarr_refuses_a_vector(tmp_path):
    store = write_store(tmp_path / "s", "other", fingerprint={}, meta={}, arrays={"x": np.zeros(4, np.float32)})
    with pytest.raises(StoreError, match=r"shape \[4\]; expected \[V, F\]"):
        ZarrFeatures.inside(store, "x")


def test_write_features_refuses_integers(tmp_path):
    with pytest.raises(InputError, match="int64"):
        write_features(tmp_path / "f", np.zeros((2, 2), np.int64))
    assert not (tmp_path / "f").exists()


def test_converted_rows_have_the_type_asked_for():
    rows = np.array([[1 / 3, 2.0]])
    store = ConvertedFeatures(ArrayFeatures(rows), np.float32)
    assert np.array_equal(store.gather(np.array([0])), rows.astype(np.float32))
