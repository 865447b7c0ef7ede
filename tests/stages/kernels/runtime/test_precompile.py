"""Kernels compiled beside a first run are those that the run needs, and are compiled without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.sigutils import normalize_signature

from millrace.stages.kernels.runtime import precompile
from millrace.tests.contracts.fresh_python import run_python

MOST = 12
"""Kernels that the job without a flag compiles. Each costs a first run a tenth of a second to more than one."""
DEMO = """
import json
import millrace as mr
from numba.core import event
from millrace.stages.kernels.runtime import jit

class Compiled(event.Listener):
    names = []
    def on_start(self, event):
        self.names.append(event.data["dispatcher"].__name__)
    def on_end(self, event):
        pass

event.register("numba:compile", Compiled())
load, loaded = jit.SharedCache.load_overload, []

def noted(self, sig, context):
    found = load(self, sig, context)
    loaded.append([self._py_func.__name__, *map(str, sig)])
    return found

jit.SharedCache.load_overload = noted
mr.run(epochs=2, verbose=False, out="run")
print(json.dumps([Compiled.names, loaded]))
"""


def python(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_command_looks_for_the_marker_without_numba():
    code = (
        "import sys; from millrace.stages.kernels.runtime import precompile; precompile.marker();"
        "print({'numba', 'torch', 'numpy', 'scipy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.slow
def test_the_demo_compiles_nothing_more(tmp_path, monkeypatch):
    compile_all = "import sys; from millrace.stages.kernels.runtime import precompile; precompile.compile_all(); "
    assert python(compile_all + "print('torch' in sys.modules, precompile.marker().exists())", tmp_path) == "False True"
    monkeypatch.chdir(tmp_path)
    code, out, err = run_python("-c", DEMO)
    assert code == 0, err
    compiled, loaded = json.loads(out)
    assert compiled == []
    # The cache may hold more: what is asked of it must be what is compiled beforehand, down to the types.
    known = [
        [name, *map(str, normalize_signature(f"({', '.join(types)},)")[0])] for _, name, types in precompile.KERNELS
    ]
    assert sorted(loaded) == sorted(known)
    assert len(precompile.KERNELS) <= MOST


def test_processes_are_started_once(tmp_path, monkeypatch):
    started = []
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile.subprocess, "Popen", lambda command, **_: started.append(command))
    monkeypatch.setattr(precompile.os, "sched_getaffinity", lambda _: range(8))
    assert len(precompile.start()) == precompile.MOST
    assert started[0][1:4] == ["-P", "-m", "millrace.stages.kernels.runtime.precompile"]
    precompile.marker().touch()
    assert precompile.start() == []


def test_one_core_compiles_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile.os, "sched_getaffinity", lambda _: range(1))
    assert precompile.start() == []


def test_nothing_is_begun_for_a_process_that_has_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    precompile.compile_all(parent=-1)
    assert not precompile.marker().exists()


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, True),
        ({"model": "sage"}, True),
        ({"model": {"name": "sage", "hidden": 8}}, True),
        ({"model": "gat"}, False),
        ({"dtype": "float64"}, False),
        ({"device": "cuda"}, False),
        ({"kernel": "matrix"}, False),
    ],
)
def test_only_jobs_like_the_default_have_them_compiled(table, expected):
    assert precompile.is_of_use(table) is expected


def test_the_marker_is_of_this_machine_and_these_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    here = precompile.marker()
    monkeypatch.setattr(precompile, "_processor", lambda: "another")
    assert precompile.marker() != here
    assert here.parent == tmp_path
