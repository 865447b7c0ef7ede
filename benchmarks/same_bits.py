"""The numbers of this checkout beside those of a commit: prints each line that differs, and exits with 1 if any does.

    make bits                    # beside main
    make bits BASE=HEAD~3
    python benchmarks/same_bits.py --base main --cells memory,two-zarr

A change that only moves code must leave every bit as it is. Forty small jobs (`bit_cells.py`), 28 in one process and
12 of two ranks, run on this checkout as it lies on the disk, and on the commit, from a copy of its files, with the same
installed packages. Recorded are digests of parameters, of the first bulks and of converted stores, losses and metrics
to the last digit, bytes by channel, fingerprints, and the sentences of refusals. Cells that must train the same
parameters as each other are compared too.

Bits depend on the processor and on torch, so that no values are committed: those of a commit are kept in
``~/.cache/millrace-bits`` for this machine, these packages and these cells. Where kernels differ from this checkout's,
the commit's are compiled first, which takes minutes.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import bit_cells

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace-bits"
KERNELS = "stages/kernels"
PACKAGES = ("torch", "numpy", "numba", "dask", "zarr", "pyarrow", "scipy")
Values = dict[str, dict[str, str]]


def measured(root: Path, wanted: list[str]) -> Values:
    """Values of cells of a checkout: all, or those that are wanted. Both parts run at the same time."""
    with tempfile.TemporaryDirectory(prefix="millrace-bits-") as folder, ExitStack() as stack:
        # The package has its name from the link, whatever the folder of the checkout is called.
        package = Path(folder, "millrace")
        package.symlink_to(root, target_is_directory=True)
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        processes = {
            part: subprocess.Popen(
                [sys.executable, Path(bit_cells.__file__).resolve(), part, *wanted],
                env=os.environ | one | {"PYTHONPATH": folder, "PYTHONHASHSEED": "0"},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(Path(folder, f"{part}.txt").open("w")),
                text=True,
            )
            for part, cells in bit_cells.PARTS.items()
            if not wanted or set(wanted) & set(cells)
        }
        values: Values = {}
        try:
            for part, process in processes.items():
                lines = [json.loads(line) for line in process.communicate()[0].splitlines() if line.startswith("{")]
                if process.returncode or not lines:
                    said = Path(folder, f"{part}.txt").read_text()[-2000:]
                    raise SystemExit(f"cells '{part}' of {root} ended with exit code {process.returncode}:\n{said}")
                if Path(lines[0]["file"]) != package / "__init__.py":
                    raise SystemExit(f"{lines[0]['file']} was measured; expected {root}")
                values |= {line["cell"]: line["values"] for line in lines[1:]}
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
    return values


def copied(commit: str, folder: Path) -> Path:
    """A copy of a commit's files, with this checkout's compiled kernels where their sources are the same."""
    tree = folder / "millrace"
    tree.mkdir()
    archive = subprocess.Popen(["git", "-C", ROOT, "archive", commit], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", tree], stdin=archive.stdout, check=True)
    if archive.wait():
        raise SystemExit(f"git archive {commit} failed")
    ours, theirs = (
        {p.relative_to(root): p.read_bytes() for p in sorted((root / KERNELS).rglob("*.py"))} for root in (ROOT, tree)
    )
    if ours != theirs:
        print("kernels differ: those of the base are compiled first", flush=True)
        return tree
    for path in ours:
        shutil.copystat(ROOT / path, tree / path)  # numba looks at the time of the source
    for compiled in (ROOT / KERNELS).rglob("__pycache__/*"):
        if compiled.suffix in (".nbi", ".nbc") or compiled.name.startswith("compiled-"):
            target = tree / compiled.relative_to(ROOT)
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(compiled, target)
    return tree


def kept_values(commit: str, wanted: list[str], fresh: bool) -> Values:
    """Values of a commit: those that are kept for this machine, or measured now."""
    processor = Path("/proc/cpuinfo")
    model = {s for s in processor.read_text().splitlines() if "model name" in s} if processor.exists() else ()
    facts = [platform.node(), platform.machine(), sorted(model), sys.version, *map(version, PACKAGES)]
    facts += [Path(file).read_text() for file in (__file__, bit_cells.__file__)]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    file = CACHE / f"{commit[:16]}-{key}.json"
    if file.exists() and not fresh:
        known: Values = json.loads(file.read_text())
        return {name: v for name, v in known.items() if not wanted or name in wanted}
    with tempfile.TemporaryDirectory(prefix="millrace-bits-") as folder:
        values = measured(copied(commit, Path(folder)), wanted)
    if not wanted:
        CACHE.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(f".{os.getpid()}")
        half.write_text(json.dumps(values, indent=1))
        half.replace(file)
    return values


def differences(base: Values, head: Values) -> list[str]:
    """Lines that differ, of the base with a minus, of this checkout with a plus."""
    lines = []
    for name in dict.fromkeys([*base, *head]):
        a, b = base.get(name, {}), head.get(name, {})
        for key in dict.fromkeys([*a, *b]):
            if a.get(key) != b.get(key):
                lines += [f"{sign} {name}.{key} {v[key]}" for sign, v in (("-", a), ("+", b)) if key in v]
    return lines


def broken(head: Values) -> list[str]:
    """Lines of cells that must train the same parameters, and do not, and of cells that failed."""
    lines = [f"! {name} failed: {v['error']}" for name, v in head.items() if "error" in v]
    for names in bit_cells.SAME:
        trained = {n: head[n].get("parameters_sha256", "") for n in names if n in head}
        if len(set(trained.values())) > 1:
            lines.append(f"! not the same parameters: {', '.join(f'{n} {p[:10]}' for n, p in trained.items())}")
    return lines


def main() -> None:
    """Measure, and print what differs."""
    parser = argparse.ArgumentParser(description="The numbers of this checkout beside those of a commit.")
    parser.add_argument("--base", default="main", help="the commit (main)")
    parser.add_argument("--cells", type=lambda s: s.split(","), default=[], help="only these, between commas")
    parser.add_argument("--fresh", action="store_true", help="measure the base again, though its values are kept")
    args = parser.parse_args()
    known = {name for cells in bit_cells.PARTS.values() for name in cells}
    if unknown := set(args.cells) - known:
        parser.error(f"unknown cells {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    found = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--verify", "--quiet", f"{args.base}^{{commit}}"],
        capture_output=True,
        text=True,
    )
    if found.returncode:
        parser.error(f"there is no commit {args.base}; give one: make bits BASE=HEAD")
    start = time.perf_counter()
    head = measured(ROOT, args.cells)  # first: what it compiles serves the base
    of_head = time.perf_counter() - start
    base = kept_values(found.stdout.strip(), args.cells, args.fresh)
    lines = [*differences(base, head), *broken(head)]
    print("\n".join(lines), end="\n" if lines else "")
    values = sum(map(len, head.values()))
    print(
        f"{len(lines)} lines differ between {args.base} and this checkout: {values} values of {len(head)} cells, "
        f"{of_head:.0f} s and {time.perf_counter() - start - of_head:.0f} s"
    )
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
