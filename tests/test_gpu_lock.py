"""The second lock, ``constraints-gpu.txt``: what the extra `gpu` needs, in versions that go together."""

import importlib.util
import json
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import millrace

ROOT = Path(millrace.__file__).resolve().parent
LOCK = ROOT / "constraints-gpu.txt"
HELD_BACK = {"numba", "llvmlite", "dask", "distributed", "pandas"}
"""Of what both locks have, RAPIDS wants older versions of these."""


def pins(file: Path) -> dict[str, str]:
    return {canonicalize_name(n): v for n, v in re.findall(r"^([^#\s=]+)==(\S+)$", file.read_text(), re.MULTILINE)}


def needed() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["dependencies"] + project["optional-dependencies"]["gpu"]


def test_the_lock_has_all_that_is_asked_for_and_holds_back_no_more_than_it_must():
    whole, gpu = pins(ROOT / "constraints.txt"), pins(LOCK)
    for requirement in map(Requirement, needed()):
        assert gpu[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert {name for name, version in whole.items() if gpu.get(name) != version} == HELD_BACK


def pip(*words: str) -> subprocess.CompletedProcess[str]:
    """Metadata alone is read, from the index's wheels: nothing is installed, and no wheel is downloaded whole."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--only-binary=:all:"]
    # Without it pip downloads three gigabytes from an index that has no files of metadata.
    options = ["--use-feature=fast-deps", "--quiet", "--no-input"]
    return subprocess.run([*command, *options, *words], capture_output=True, text=True, timeout=550)


@pytest.mark.slow
def test_pip_resolves_the_extra_for_gpus_to_the_lock():
    if (sys.platform, platform.machine()) != ("linux", "x86_64") or importlib.util.find_spec("pip") is None:
        pytest.skip("wheels of RAPIDS are for Linux on x86_64; and this environment must have pip")
    done = pip("--constraint", str(LOCK), "--report", "-", *needed())
    if done.returncode and "(from versions: none)" in done.stderr:
        pytest.skip(f"no package index here has cudf-cu13=={pins(LOCK)['cudf-cu13']}: {done.stderr}")
    assert done.returncode == 0, done.stderr
    # What pip found needs older versions than the other lock has: with that lock there is no solution.
    whole, refused = pins(ROOT / "constraints.txt"), set[str]()
    for package in json.loads(done.stdout)["install"]:
        for need in map(Requirement, package["metadata"].get("requires_dist", ())):
            name, here = canonicalize_name(need.name), need.marker is None or need.marker.evaluate({"extra": ""})
            if here and name in whole and whole[name] not in need.specifier:
                refused.add(name)
    assert refused == HELD_BACK
