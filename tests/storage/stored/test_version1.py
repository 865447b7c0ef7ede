"""Dataset stores of schema version 1 are read, and their digests hold."""

import hashlib
import json

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError, StoreError
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.tests.contracts.command import command

SPEC = "sbm:nodes=300,classes=3,degree=6,features=8,train=0.4"
FINGERPRINT = {
    "features": "float32[300,8]:38e1f8e68696fd7292b0708f6dcaedc60cb77b82d10cbb8bea764f0db3696403",
    "graph": "a908c936c5913988cdcf3ed673e1a0a4352d9f81a5ea3d5f6971db8f54592e31",
    "labels": "9deb9badd8de324ad77eba02b7439384e7bba758f8026c64600c657092200796",
    "split": "e1538d80c72fdb357373f410af7817cdce3b81bf6012ac8b79696e23dde9dbd9",
}
"""What version 04fca63 wrote for this dataset."""


@pytest.fixture(params=["zarr", "npy"])
def store(tmp_path, request):
    mr.write_dataset(tmp_path / "store", mr.open_dataset(SPEC), features_format=request.param)
    as_of_version_1(tmp_path / "store", FINGERPRINT)
    return tmp_path / "store"


def as_of_version_1(path, fingerprint):
    """Rewrite a manifest as version 04fca63 did."""
    body = json.loads((path / "manifest.json").read_text()) | {"schema_version": 1, "fingerprint": fingerprint}
    del body["checksum"]
    kept = ("name", "num_classes", "task", "notes", "features_format", "features_bytes")
    body["meta"] = {k: v for k, v in body["meta"].items() if k in kept}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    (path / "manifest.json").write_text(json.dumps({**body, "checksum": hashlib.sha256(text.encode()).hexdigest()}))


def test_it_opens_in_memory_and_converts(store, tmp_path):
    wanted = dataset_fingerprint(mr.open_dataset(SPEC))
    assert dataset_fingerprint(mr.open_dataset(store)) == wanted
    assert "300" in command("inspect", store)[1]
    assert command("convert", store, "--out", tmp_path / "new")[0] == 0
    assert dataset_fingerprint(mr.open_dataset(tmp_path / "new")) == wanted
    assert json.loads((tmp_path / "new" / "manifest.json").read_text())["schema_version"] == 2
    with pytest.raises(InputError, match="earlier version, which is read into memory only; write it again"):
        mr.open_dataset(store, features="mapped")


def test_what_is_damaged_is_named(store):
    features = store / "features.npy"
    if features.exists():
        features.unlink()
        with pytest.raises(StoreError, match=r"features\.npy is damaged .*No such file.*: make the store again"):
            mr.open_dataset(store)
        for content in (b"", b"x" * 300, b"\x93NUMPY"):
            features.write_bytes(content)
            with pytest.raises(StoreError, match=r"features\.npy is damaged .*: make the store again"):
                mr.open_dataset(store)
        np.save(features, np.zeros(300, np.float32))
        with pytest.raises(StoreError, match=r"is damaged \(float32\[300\]\); expected features \[V, F\]"):
            mr.open_dataset(store)
    as_of_version_1(store, "x")
    with pytest.raises(StoreError, match="is not laid out as a manifest"):
        mr.open_dataset(store)


@pytest.mark.parametrize("name", list(FINGERPRINT))
def test_other_arrays_than_it_was_written_of_are_refused(store, name):
    as_of_version_1(store, {**FINGERPRINT, name: "0"})
    with pytest.raises(StoreError, match=f"'{name}' does not match its digest"):
        mr.open_dataset(store)
