"""Environment for peers that cannot share ours: dgl 2.1.0, the last release on the package index, fits torch 2.0 to
2.2.1 only."""

import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

# torch's wheel for Linux does not import without the CUDA libraries that it depends on: 2.4 GB to fetch, 5.2 GB on
# disk.
REQUIREMENTS = (
    "torch==2.2.1",
    "dgl==2.1.0",
    "torchdata==0.7.1",
    "numpy<2",
    "pydantic",
    "pandas",
    "packaging",
    "PyYAML",
)


def python(cache: Path) -> Path:
    """The interpreter of the peers' environment under `cache`, made on first use (two minutes with a fast package
    index)."""
    folder = cache / "peers-dgl-2.1.0"
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"making the peers' environment in {folder} (5.2 GB)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--no-cache-dir", *REQUIREMENTS], check=True)
        (folder / "complete").touch()
    return interpreter


def jemalloc(cache: Path) -> Path | None:
    """The allocator's library: the system's, else Debian's package unpacked under `cache`; None where there is
    neither."""
    if found := find_library("jemalloc"):
        return Path(found)
    folder = cache / "jemalloc"
    if not list(folder.rglob("libjemalloc.so.2")):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["apt-get", "download", "libjemalloc2"], cwd=folder, check=True, capture_output=True)
            subprocess.run(
                ["dpkg", "-x", *[p.name for p in folder.glob("libjemalloc2*.deb")][:1], "."], cwd=folder, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
    return next(folder.rglob("libjemalloc.so.2"), None)
