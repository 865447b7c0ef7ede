"""The run's copy of its data: made once, kept where it is sound, made again where it is not."""

import numpy as np
import pytest

from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.shared_dataset import open_shared, share
from millrace.tests.fuzz.targets import dataset


def flip(file):
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["features.npy", "manifest.json", "arrays/indices/c/0", "arrays/labels/zarr.json"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_copy_is_made_again(tmp_path, name, gone):
    data, told = dataset(), []
    path, place = share(resolve({}), data, tmp_path, told.append)
    inode = (path / "manifest.json").stat().st_ino
    assert share(resolve({}), data, tmp_path, told.append) == (path, place)
    assert not told and (path / "manifest.json").stat().st_ino == inode, "a sound one stays"
    (path / name).unlink() if gone else flip(path / name)
    assert share(resolve({}), data, tmp_path, told.append) == (path, place)
    assert len(told) == 1 and "was damaged, and was written again" in told[0]
    again = open_shared(path, "x", place)
    assert np.array_equal(again.graph.indices, data.graph.indices)
    assert np.array_equal(again.features.gather(np.arange(30)), data.features.gather(np.arange(30)))
