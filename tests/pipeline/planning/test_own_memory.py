"""Memory of one's own is counted while it is held, and pages of a mapped file are not."""

from pathlib import Path

import numpy as np
import pytest

from millrace.pipeline.planning.own_memory import OwnMemory
from millrace.storage.store.scratch import InFiles

SIZE = 32 << 20


def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    if max((place, kind) for place, kind in mounts if tmp_path.is_relative_to(place))[1] == "tmpfs":
        pytest.skip("temporary files are in memory here")
    with OwnMemory() as mapped:
        InFiles(tmp_path)(SIZE, np.int8)[...] = 1
    with OwnMemory() as held:
        array = np.ones(SIZE, np.int8)
    assert len(array) == SIZE
    assert mapped.peak_bytes - mapped.start_bytes < SIZE // 2
    assert SIZE // 2 < held.peak_bytes - held.start_bytes < 2 * SIZE
