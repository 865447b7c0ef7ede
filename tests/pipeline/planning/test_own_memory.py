"""Memory of one's own is counted while it is held, and pages of a mapped file are not."""

from pathlib import Path

import numpy as np

from millrace.pipeline.planning.own_memory import OwnMemory
from millrace.storage.store.scratch import InFiles

SIZE = 32 << 20


def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    with OwnMemory() as mapped:
        InFiles(tmp_path)(SIZE, np.int8)[...] = 1
    with OwnMemory() as held:
        array = np.ones(SIZE, np.int8)
    assert len(array) == SIZE
    assert mapped.peak_bytes - mapped.start_bytes < SIZE // 2
    assert SIZE // 2 < held.peak_bytes - held.start_bytes < 2 * SIZE
