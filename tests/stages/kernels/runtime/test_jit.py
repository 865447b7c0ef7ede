"""The cache of compiled kernels, as several processes use it."""

import os
import subprocess
import sys
import time

import numba.core.config
import pytest
from numba.core.errors import TypingError

from millrace.stages.kernels.runtime import jit
from millrace.stages.kernels.runtime.jit import njit

KERNELS = """
from millrace.stages.kernels.runtime.jit import njit

@njit()
def add(a, b):
    return a + b
"""
USER = """
import os, sys, time
import kernels
from numba.core.caching import IndexDataCacheFile
kept = IndexDataCacheFile._save_data

def slowly(self, name, data):
    # Long enough for the other process to be at the same place, were it let in.
    time.sleep(1.0)
    kept(self, name, data)

IndexDataCacheFile._save_data = slowly
pipes = [os.pipe() for _ in sys.argv[1:]]
# A process for each argument, forked where numba is imported and nothing is compiled.
for kind, (_, end) in zip(sys.argv[1:], pipes):
    if os.fork() == 0:
        a = {"int": 2, "float": 2.5, "complex": 2j}[kind]
        os.write(end, f"{kernels.add(a, a)} {sum(kernels.add.stats.cache_hits.values())}".encode())
        os._exit(0)
for end, own in pipes:
    os.close(own)
    print(open(end).read())
"""


def users(folder, *kinds):
    """Answers of processes that use the kernel at the same time, one for each kind of number."""
    command = [sys.executable, "user.py", *kinds]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.splitlines()


def test_versions_that_are_kept_at_once_are_not_mixed_up(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "user.py").write_text(USER)
    kinds = ("int", "float", "complex")
    assert users(tmp_path, *kinds) == ["4 0", "5.0 0", "4j 0"]
    assert users(tmp_path, *kinds) == ["4 1", "5.0 1", "4j 1"]


def test_only_one_process_compiles(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "user.py").write_text(USER)
    assert sorted(users(tmp_path, "int", "int", "int")) == ["4 0", "4 1", "4 1"]


def test_a_process_that_dies_while_it_compiles_holds_nobody_up(tmp_path, monkeypatch):
    (tmp_path / "kernels.py").write_text(KERNELS)
    dies = USER.replace("time.sleep(1.0)", "import os; os._exit(1)")
    (tmp_path / "dies.py").write_text(dies)
    (tmp_path / "user.py").write_text(USER)
    dying = subprocess.run([sys.executable, "dies.py", "int"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert dying.stdout == "\n", "it told nothing"
    assert users(tmp_path, "int") == ["4 0"]


def test_a_change_of_any_kernels_source_makes_all_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path / "cache"))
    folders = [tmp_path / name for name in ("before", "after")]
    for folder, text in zip(folders, ("K = 1", "K = 2")):
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "shared.py").write_text(text)
    assert jit.sources_digest(folders[0]) != jit.sources_digest(folders[1])

    def quadruple(x):
        return 4 * x

    def hits(folder):
        monkeypatch.setattr(jit, "KERNELS", folder)
        kernel = njit()(quadruple)
        assert kernel(2) == 8
        return sum(kernel.stats.cache_hits.values())

    assert [hits(folders[i]) for i in (0, 0, 1, 1)] == [0, 1, 0, 1]


def test_where_no_lock_can_be_made_kernels_are_compiled_all_the_same(tmp_path):
    @njit()
    def double(x):
        return 2 * x

    double._cache._lock_path = tmp_path / "nowhere" / "lock"
    assert double(4) == 8


def test_waiting_has_an_end(tmp_path, monkeypatch):
    # Not beside this file, where a run of this test before has left it compiled.
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))

    @njit()
    def triple(x):
        return 3 * x

    cache = triple._cache
    cache._lock()
    held, cache._locked = cache._locked, None
    monkeypatch.setattr(jit, "WAIT_S", 0.05)
    start = time.monotonic()
    assert triple(2) == 6
    assert 0.05 <= time.monotonic() - start < 60
    assert cache._locked is None, "it went on without the lock"
    os.close(held)


def test_what_cannot_be_compiled_holds_no_lock(tmp_path):
    @njit()
    def wrong(x):
        return x + "a"

    with pytest.raises(TypingError):
        wrong(2)
    assert wrong._cache._locked is None and not wrong._cache.is_being_compiled()
