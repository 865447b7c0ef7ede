"""Kernels that several processes compile at once are each kept as what they are."""

import subprocess
import sys

KERNELS = """
from numba import njit

@njit(cache=True)
def add(a, b):
    return a + b
"""
USER = """
import sys, time
import kernels
from millrace.tests.contracts import kernel_cache

kernel_cache.share()
from numba.core.caching import IndexDataCacheFile
kept = IndexDataCacheFile._save_index

def slowly(self, overloads):
    # Long enough for the other process to be at the same place, were it let in.
    time.sleep(1.0)
    kept(self, overloads)

IndexDataCacheFile._save_index = slowly
a = {"int": 2, "float": 2.5, "complex": 2j}[sys.argv[1]]
print(kernels.add(a, a), sum(kernels.add.stats.cache_hits.values()))
"""


def test_versions_that_are_kept_at_once_are_not_mixed_up(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "user.py").write_text(USER)
    kinds = ("int", "float", "complex")

    def told() -> list[str]:
        users = [
            subprocess.Popen([sys.executable, "user.py", kind], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            for kind in kinds
        ]
        return [user.communicate(timeout=120)[0].strip() for user in users]

    assert told() == ["4 0", "5.0 0", "4j 0"]
    assert told() == ["4 1", "5.0 1", "4j 1"]
