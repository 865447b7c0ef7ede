"""Seconds from giving a command to its first step, and to its end: the demo and two ranks, with nothing compiled and
with everything compiled; `--help`; `millrace warm`.

    python benchmarks/start.py --rounds 3 --json start.json
    python benchmarks/start.py --tree before=/path/to/older/checkout --tree after=. --rounds 5

Each tree is copied as a wheel would be installed, with its bytecode; the trees take turns. `first step` is when the
first step is done, by the run's metrics (of a second run in one process, from its own start); `rank` is the part of it
between the cluster being there and the first step of the ranks; `processor` is the time of all processes of the command
on all cores, which other load disturbs least.
"""

import argparse
import compileall
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAYERS = ("storage", "stages", "pipeline")
CASES = {
    "help": ["--help"],
    "help of run": ["run", "--help"],
    "demo, nothing compiled": ["run"],
    "demo": ["run"],
    "two ranks, nothing compiled": ["run", "--ranks", "2"],
    "two ranks": ["run", "--ranks", "2"],
    "two ranks, again in one process": [],
    "warm, nothing compiled": ["warm"],
}
"""Arguments of each command; a run takes the digits."""
AGAIN = """
import sys, time
import millrace as mr

if __name__ == "__main__":
    for name in ("first", "run"):
        begin = time.time()
        mr.run("digits", ranks=2, out=f"{sys.argv[1]}/{name}", verbose=False)
    print(begin)
"""
"""A notebook's second run."""


def installed(tree: Path, target: Path) -> Path:
    """A copy of the package, with its bytecode."""
    package = target / "millrace"
    for layer in LAYERS:
        shutil.copytree(tree / layer, package / layer, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("__init__.py", "__main__.py"):
        shutil.copy2(tree / file, package / file)
    compileall.compile_dir(package, quiet=2)
    return target


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a run."""
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def measure(site: Path, case: str, cache: Path) -> dict[str, float]:
    """One command in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        arguments = [*CASES[case], *(["--out", str(out)] if CASES[case] == ["run"] or "--ranks" in CASES[case] else [])]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(cache), "TMPDIR": scratch}
        if "nothing compiled" in case:
            shutil.rmtree(cache, ignore_errors=True)
        command = [sys.executable, "-m", "millrace", *arguments]
        if not arguments:
            (Path(scratch) / "again.py").write_text(AGAIN)
            command = [sys.executable, "again.py", scratch]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.time()
        done = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True)
        end, now = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{case}: {done.stderr[-2000:]}")
        found = {"processor": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime}
        if not arguments:
            begin = float(done.stdout.split()[-1])
            del found["processor"]  # of both runs
        found["seconds"] = end - begin
        cluster = None
        for event in events(out / "metrics.jsonl"):
            if event["event"] == "StageEnded" and event.get("stage") == "cluster":
                cluster = event["time"]
            if event["event"] in ("StepDone", "EpochDone"):
                found["first step"] = event["time"] - begin
                if cluster is not None:
                    found["rank"] = event["time"] - cluster
                break
        return found


def main() -> None:
    """Measure, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", help="NAME=CHECKOUT; this one by default")
    parser.add_argument("--case", action="append", choices=list(CASES), help="all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trees = dict(text.split("=", 1) for text in options.tree or [f"this={Path(__file__).resolve().parents[1]}"])
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sites = {name: installed(Path(tree), Path(folder) / name) for name, tree in trees.items()}
        for i in range(options.rounds):
            for case in options.case or CASES:
                for name in sites if i % 2 == 0 else reversed(sites):
                    if case.startswith("warm") and not (sites[name] / "millrace/pipeline/commands/warm.py").exists():
                        continue
                    # Each case that finds compiled code has a cache of its own, which it alone has filled.
                    cold = "nothing compiled" in case
                    cache = Path(folder) / f"cache-{name}-{'cold' if cold else list(CASES).index(case)}"
                    if i == 0 and not cold:
                        measure(sites[name], case, cache)  # untimed: compiles what the case needs
                    took = measure(sites[name], case, cache)
                    found.setdefault(case, {}).setdefault(name, []).append(took)
                    print(case, name, {k: round(v, 2) for k, v in took.items()}, file=sys.stderr, flush=True)
    print(f"{os.cpu_count()} cores, medians of {options.rounds}, seconds")
    print("| command | tree | first step | rank | end | processor |\n|---|---|---|---|---|---|")
    for case, by_tree in found.items():
        for name, rows in by_tree.items():
            cells = [
                f"{statistics.median(r[key] for r in rows):.2f}" if key in rows[0] else ""
                for key in ("first step", "rank", "seconds", "processor")
            ]
            print(f"| `{case}` | {name} | {' | '.join(cells)} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
