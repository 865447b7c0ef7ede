"""The run's copy of its data: made once, kept where it is sound, made again where it is not."""

from pathlib import Path

import numpy as np
import pytest

from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.shared_dataset import share
from millrace.storage.store.npy import is_map
from millrace.tests.fuzz.targets import dataset


def flip(file):
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["features.npy", "manifest.json", "arrays/indices/c/0", "arrays/labels/zarr.json"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_copy_is_made_again(tmp_path, name, gone):
    data, told = dataset(), []
    part = share(resolve({}), data, tmp_path, told.append)
    path = Path(part.store)
    inode = (path / "manifest.json").stat().st_ino
    assert share(resolve({}), data, tmp_path, told.append) == part
    assert not told and (path / "manifest.json").stat().st_ino == inode, "a sound one stays"
    (path / name).unlink() if gone else flip(path / name)
    assert share(resolve({}), data, tmp_path, told.append) == part
    assert len(told) == 1 and "was damaged, and was written again" in told[0]
    again = part.open()
    assert np.array_equal(again.graph.indices, data.graph.indices)
    assert np.array_equal(again.features.gather(np.arange(30)), data.features.gather(np.arange(30)))


def test_a_copy_is_made_so_that_its_graph_can_be_mapped(tmp_path):
    data, told = dataset(), []
    share(resolve({}), data, tmp_path, told.append)
    job = resolve({"graph": "mapped"})
    part = share(job, data, tmp_path, told.append)
    assert len(told) == 1 and "graph_format='zarr'" in told[0], "a copy from before that cannot be mapped"
    again = part.open()
    assert is_map(again.graph.indices) and is_map(again.features.rows.view(np.ndarray))
    assert np.array_equal(again.graph.indices, data.graph.indices)
    (tmp_path / "data" / "indices.npy").write_bytes(b"")
    share(job, data, tmp_path, told.append)
    assert len(told) == 2 and "indices.npy has 0 bytes" in told[1]
