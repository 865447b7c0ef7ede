"""The wheel holds the package, all of it and nothing else, and runs from wherever it is put."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import millrace
from millrace.tests.contracts.fresh_python import run_python

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("storage", "stages", "pipeline")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: setuptools would pack whatever an earlier build left in the checkout's build/."""
    source, out = tmp_path_factory.mktemp("source") / "checkout", tmp_path_factory.mktemp("dist")
    ignore = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "runs", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, source, ignore=ignore, symlinks=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel unpacked, which for pure Python is all that installing it means."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_wheel_holds_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {f"millrace/{p.relative_to(ROOT).as_posix()}" for layer in LAYERS for p in (ROOT / layer).rglob("*.py")}
    pages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    page = {f"{package.replace('.', '/')}/{name}" for package, names in pages.items() for name in names}
    files = {
        f"millrace/{p.relative_to(ROOT).as_posix()}"
        for e in ("html", "css", "txt")
        for p in ROOT.glob(f"pipeline/**/*.{e}")
    }
    assert files <= page and "millrace/py.typed" in page
    assert held == modules | page | {"millrace/__init__.py", "millrace/__main__.py"}


def test_wheel_names_the_command_and_carries_the_licence(installed):
    (info,) = installed.glob("millrace_gnn-*.dist-info")
    assert "millrace = millrace.pipeline.__main__:main" in (info / "entry_points.txt").read_text()
    assert (info / "licenses" / "LICENSE").exists()
    metadata = (info / "METADATA").read_text()
    assert (
        "\nAuthor: The Millrace developers\n" in metadata
        and "\nClassifier: Programming Language :: Python :: 3.13\n" in metadata
    )


def test_millrace_runs_from_the_wheel(wheel, installed, tmp_path):
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    code = f"""
import importlib, millrace
from pathlib import Path
for name in {packages}:
    module = importlib.import_module(name)
    assert Path(module.__file__).is_relative_to({str(installed)!r}), module.__file__
from millrace.storage.graph import from_edges
print(millrace.__version__, from_edges([0, 1], [1, 2]).num_edges)
"""
    variables = {"PYTHONPATH": str(installed)}
    # Elsewhere than in the checkout.
    _, out, err = run_python("-c", f"import os; os.chdir({str(tmp_path)!r})\n{code}", variables=variables)
    version = millrace.__version__
    assert wheel.name.startswith(f"millrace_gnn-{version}-")
    assert out == f"{version} 2\n", err
    named = subprocess.run(
        [sys.executable, "-m", "millrace", "--version"],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert named.stdout.startswith("millrace "), named.stderr


@pytest.mark.slow
def test_wheel_trains_and_predicts_in_an_empty_environment(wheel, tmp_path):
    """pip puts the wheel into a new environment; libraries come from this one's folder, whose `.pth` files, by which
    this checkout is installed, are not read there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=240)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(pip, check=True, timeout=240)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    # What this process was started with must not lead to the checkout.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            arguments, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run(str(python), "-c", "import millrace; print(millrace.__file__)").strip() == f"{site}/millrace/__init__.py"
    millrace_command = str(python.with_name("millrace"))
    job = ["--dataset", "digits", "--layers", "1", "--fanout", "5", "--hidden", "8", "--epochs", "1", "--out", "run"]
    run(millrace_command, "run", *job, "--set", "threads=1", "--json")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "done" and result["versions"]["millrace-gnn"] == millrace.__version__
    run(millrace_command, "predict", "run", "--out", "predictions.csv")
    head, *rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert head.replace('"', "") == "node,class,probability" and len(rows) == result["num_nodes"]
