"""Features of several node types as one store."""

from dataclasses import replace

import numpy as np
import pytest

from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.fingerprint import features_fingerprint
from millrace.storage.store.narrow import narrow, widen
from millrace.storage.typed.features import TypedFeatures
from millrace.tests.contracts.typed import typed_dataset


def parts(*shapes):
    rng = np.random.default_rng(0)
    return tuple(ArrayFeatures(rng.random(shape, np.float32) + 1) for shape in shapes)


@pytest.mark.parametrize("ids", [np.arange(9), np.array([8, 0, 4, 4, 3, 8]), np.array([6, 5]), np.empty(0, np.int64)])
def test_rows_are_those_of_their_type_and_zeros(ids):
    features = TypedFeatures(given := parts((3, 2), (4, 0), (2, 5)), (0, 3, 7, 9))
    whole = np.zeros((9, 5), np.float32)
    whole[:3, :2], whole[7:] = given[0].rows, given[2].rows
    assert (features.num_rows, features.num_features, features.widths) == (9, 5, (2, 0, 5))
    np.testing.assert_array_equal(features.gather(ids), whole[ids])
    out = np.full((len(ids), 5), np.nan, np.float32)
    assert features.gather(ids, out) is out
    np.testing.assert_array_equal(out, whole[ids])


def test_types_without_features_have_one_column():
    features = TypedFeatures(parts((2, 0), (1, 0)), (0, 2, 3))
    assert features.gather(np.arange(3)).tolist() == [[0], [0], [0]]


def test_what_does_not_fit_is_refused():
    with pytest.raises(IndexError, match="there are 3"):
        TypedFeatures(parts((3, 1)), (0, 3)).gather(np.array([3]))
    with pytest.raises(InputError, match=r"have \[3\] rows; the node types have \[2\] nodes"):
        TypedFeatures(parts((3, 1)), (0, 2))
    mixed = (*parts((3, 1)), ArrayFeatures(np.zeros((1, 1))))
    with pytest.raises(InputError, match="different dtypes"):
        TypedFeatures(mixed, (0, 3, 4))


def test_the_digest_is_of_each_type():
    one, other = (TypedFeatures(parts((2, 1), (2, 3)), (0, 2, 4)) for _ in range(2))
    assert features_fingerprint(one) == features_fingerprint(other)
    other.parts[1].rows[1, 2] += 1
    assert features_fingerprint(one) != features_fingerprint(other)


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_a_store_may_keep_them_narrow(tmp_path, kind):
    """Widths of 5, 3 and 0. A copy keeps the form, and float32 widens it."""
    data = typed_dataset()
    rows = [part.gather(np.arange(part.num_rows)) for part in data.features.parts]
    wide = TypedFeatures(tuple(ArrayFeatures(widen(narrow(x, kind), kind)) for x in rows), data.features.offsets)
    plain = write_dataset(tmp_path / "plain", replace(data, features=wide))
    for form, place in (("zarr", "zarr"), ("npy", "mapped")):
        store = write_dataset(tmp_path / form, data, features_format=form, feature_dtype=kind)
        assert (dict(store.fingerprint), store.meta["digests"]) == (dict(plain.fingerprint), plain.meta["digests"])
        for opened in (place, "memory"):
            found = open_dataset_store(tmp_path / form, opened)
            assert (found.features.kind, found.features.widths) == (kind, (5, 3, 0))
            assert np.array_equal(found.features.gather(np.arange(36)), wide.gather(np.arange(36)))
        again = write_dataset(tmp_path / f"{form}-again", found, features_format=form)
        assert (again.meta, again.entries) == (store.meta, store.entries)
        widened = write_dataset(tmp_path / f"{form}-wide", found, features_format=form, feature_dtype="float32")
        assert "features_dtype" not in widened.meta and dict(widened.fingerprint) == dict(plain.fingerprint)
