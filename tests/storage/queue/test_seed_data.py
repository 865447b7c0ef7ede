"""What a store of samples keeps of the dataset: all that training reads, or it is damaged and said to be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import millrace as mr
from millrace.storage.dataset import Split
from millrace.storage.errors import InputError, StoreError
from millrace.storage.fingerprint import DatasetDigests
from millrace.storage.queue.location import FolderLocation
from millrace.storage.queue.seed_data import DIGESTS, SeedData
from millrace.tests.fuzz.forge import manifest_of, sign


@pytest.mark.parametrize("kind", ["classes", "targets", "unknown"])
def test_seeds_have_their_labels_and_the_run_its_digests(kind: str, tmp_path: Path) -> None:
    data = mr.open_dataset("sbm:nodes=60,classes=3,train=0.4,features=8")
    if kind != "classes":
        labels = np.random.default_rng(3).random((60, 2)).round().astype(np.float32)
        labels[0, 0] = np.nan if kind == "unknown" else 1
        data = replace(data, labels=labels, num_classes=2, task="multilabel", class_names=("a", "b"))
    place = FolderLocation(tmp_path)
    SeedData.of_dataset(data).write(place)
    found = SeedData.read(place).dataset(str(tmp_path))
    train = data.split.train
    assert np.array_equal(found.labels[train], data.labels[train], equal_nan=True)
    assert found.split_sizes == {"train": len(train), "val": 0, "test": 0}
    for name in ("name", "task", "num_classes", "num_features", "num_nodes", "class_names", "has_unknown"):
        assert getattr(found, name) == getattr(data, name), name
    assert found.graph.num_edges == data.graph.num_edges and found.features.dtype == data.features.dtype
    assert all(DatasetDigests(found)[name] == DatasetDigests(data)[name] for name in DIGESTS)
    for use in (lambda: found.features.gather(train), lambda: found.graph.indptr, lambda: found.graph.rows(0, 1)):
        with pytest.raises(InputError, match="name the dataset beside it"):
            use()


def test_other_seeds_and_damage_are_told(tmp_path: Path) -> None:
    data, place = mr.open_dataset("sbm:nodes=60,classes=3,train=0.4"), FolderLocation(tmp_path)
    SeedData.of_dataset(data).write(place)
    SeedData.of_dataset(data).write(place)
    split = Split(data.split.train[1:], data.split.val, data.split.test)
    with pytest.raises(StoreError, match="is of other seeds"):
        SeedData.of_dataset(replace(data, split=split)).write(place)
    with open(tmp_path / "seeds" / "labels.npy", "r+b") as file:
        file.seek(4096)
        file.write(b"\7")
    with pytest.raises(StoreError, match="does not match its checksum"):
        SeedData.read(place)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_classes", 1),
        ("num_classes", "3"),
        ("num_features", -1),
        ("num_nodes", 1 << 61),
        ("labels_shape", []),
        ("labels_shape", [10**12]),
        ("train_shape", [10**12]),
        ("train_shape", [-1]),
        ("num_edges", None),
        ("dtype", "O"),
        ("task", "binary"),
        ("task", "x"),
        ("class_names", ["a"]),
        ("class_names", 3),
    ],
)
def test_forged_facts_are_refused(tmp_path: Path, key: str, value: object) -> None:
    place = FolderLocation(tmp_path)
    SeedData.of_dataset(mr.open_dataset("sbm:nodes=60,classes=3,train=0.4")).write(place)
    body = manifest_of(tmp_path / "seeds")
    body["meta"][key] = value
    sign(tmp_path / "seeds", body)
    with pytest.raises(StoreError, match=r"does not say what it holds|the store is damaged or was changed"):
        SeedData.read(place).dataset(str(tmp_path))


def test_a_number_of_nodes_that_memory_has_no_room_for_is_refused_before_they_are_read(tmp_path: Path) -> None:
    place = FolderLocation(tmp_path)
    SeedData.of_dataset(mr.open_dataset("sbm:nodes=60,classes=3,train=0.4")).write(place)
    body = manifest_of(tmp_path / "seeds")
    body["meta"]["num_nodes"] = 10**14
    sign(tmp_path / "seeds", body)
    with pytest.raises(
        StoreError, match=r"seeds: what it says of nodes .* MiB are left; if that is wrong, sample again"
    ):
        SeedData.read(place)
