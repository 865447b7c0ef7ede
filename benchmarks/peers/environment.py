"""Environments for peers that cannot share ours: dgl 2.1.0, the last release on the package index, fits torch 2.0 to
2.2.1 only; torch-sparse, with which PyG samples, is compiled for one torch."""

import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

# torch's wheel for Linux does not import without the CUDA libraries that it depends on: 2.4 GB to fetch, 5.2 GB on
# disk.
REQUIREMENTS = {
    "dgl-2.1.0": (
        ("torch==2.2.1", "dgl==2.1.0", "torchdata==0.7.1", "numpy<2", "pydantic", "pandas", "packaging", "PyYAML"),
    ),
    # The second step compiles for ten minutes.
    "pyg-2.8.1": (
        ("torch==2.14.1", "torch_geometric==2.8.1", "numpy", "setuptools", "wheel", "ninja"),
        ("--no-build-isolation", "torch-scatter==2.1.2", "torch-sparse==0.6.18"),
    ),
}
"""Arguments of pip's commands, by the peer."""


def python(cache: Path, peer: str = "dgl-2.1.0") -> Path:
    """The interpreter of a peer's environment under `cache`, made on first use (DGL's: two minutes with a fast package
    index)."""
    folder = cache / f"peers-{peer}"
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"making the environment of {peer} in {folder} (5.2 GB)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        for given in REQUIREMENTS[peer]:
            subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--no-cache-dir", *given], check=True)
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
