"""Leaves out each move of a tensor to a device, or from one, and says which test on the pretended device finds it.

    python benchmarks/planted_devices.py [--only stages/fetch] [--jobs 2] [--tests 60] [--noted FILE]

Places are calls of ``.to`` with a device, ``.cpu``, ``.cuda``, ``to_device``, and of whatever has a keyword ``device``,
in `planted.sitecustomize.WHERE`. First all tests with the fixture ``on_device`` run once and note which places they
reach; `FILE` keeps that for another time. Then, for each place, a process without it runs the shortest of those tests
until one fails. All processes are forked from one that has collected the tests; those that a test starts, such as
ranks, import ``sitecustomize`` first.

A place is ``found``, or ``survived``; ``moves nothing`` if what it moves is always there already, which is not run;
``not reached`` if no test with a device comes by.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
LIMIT_S = 300.0
"""Time after which a process that waits for ever is ended: so a place is found too."""
TOGETHER = 12
"""Tests of a process that notes places."""


@dataclass
class Place:
    """A move."""

    name: str
    line: int
    tests: set[str] = field(default_factory=set)
    """Tests in which it moves a tensor."""
    idle: set[str] = field(default_factory=set)
    """Tests in which what it moves is there already."""
    verdict: str = "not reached"
    why: str = ""


class Planting:
    """Plug-in of pytest that runs the tests of each place in processes of their own."""

    def __init__(self, folder: Path, places: dict[str, Place], jobs: int, most: int, noted: Path) -> None:
        self.folder, self.places, self.jobs, self.most, self.noted = folder, places, jobs, most, noted
        self.failures = list[tuple[str, str]]()
        self.seconds = defaultdict[str, float](float)

    def pytest_sessionstart(self) -> None:
        """Hypothesis draws the same examples each time, and looks for no smaller ones."""
        from hypothesis import Phase, settings

        options: dict[str, Any] = {"phases": (Phase.explicit, Phase.generate), "database": None, "derandomize": True}
        settings.register_profile("planted", settings.get_profile("millrace"), **options)
        settings.load_profile("planted")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember how long a test took, and how it failed."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            text = getattr(getattr(report.longrepr, "reprcrash", None), "message", None) or str(report.longrepr)
            errors = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b", line)]
            self.failures.append((report.nodeid, (errors or text.splitlines() or [""])[-1]))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Note which tests reach which place, then leave out one after the other."""
        items = {item.nodeid: item for item in session.items if "on_device" in getattr(item, "fixturenames", ())}
        if not self.noted.exists():
            self._note(list(items.values()))
        noted = json.loads(self.noted.read_text())
        self.seconds.update(noted["seconds"])
        for name, test, moves in noted["seen"]:
            if name in self.places and test in items:
                (self.places[name].tests if moves == "True" else self.places[name].idle).add(test)
        reached = [place for place in self.places.values() if place.tests]
        chosen = {p.name: sorted(p.tests, key=lambda test: self.seconds[test]) for p in reached}
        self._fork(
            (p.name, self._leaving_out(p.name, [items[t] for t in chosen[p.name][: self.most]])) for p in reached
        )
        for place in self.places.values():
            file, tried = self.folder / f"result-{_safe(place.name)}", chosen.get(place.name, [])
            if not tried:
                place.verdict = "moves nothing" if place.idle else "not reached"
            elif not file.exists():
                place.verdict, place.why = "found", f"no end within {LIMIT_S:.0f} s: {tried[0]}"
            elif failures := json.loads(file.read_text())["failures"]:
                place.verdict, place.why = "found", ": ".join(failures[0])
            else:
                some = min(self.most, len(tried))
                place.verdict, place.why = "survived", f"{some} of {len(tried)} tests, such as {tried[0]}"
        return True

    def _note(self, items: list[pytest.Item]) -> None:
        """Run all tests as they are, and write down which places they reach."""
        files = defaultdict(list)
        for item in items:
            files[item.path].append(item)
        parts = [tests[n : n + TOGETHER] for tests in files.values() for n in range(0, len(tests), TOGETHER)]
        self._fork((str(n), self._noting(tests)) for n, tests in enumerate(parts))
        seconds = {}
        for n, part in enumerate(parts):
            file = self.folder / f"result-{_safe(str(n))}"
            result = json.loads(file.read_text()) if file.exists() else {"failures": [(part[0].nodeid, "no end")]}
            seconds.update(result.get("seconds", {}))
            for test, error in result["failures"]:
                print(f"{test} fails as it is: {error}", file=sys.stderr)
        seen = [line.split("\t") for line in (self.folder / "seen").read_text().splitlines()]
        self.noted.write_text(json.dumps({"seconds": seconds, "seen": seen}))

    def _noting(self, items: list[pytest.Item]) -> Callable[[], None]:
        def run() -> None:
            current = self.folder / f"current-{os.getpid()}"
            os.environ["MILLRACE_PLANTED_CURRENT"] = str(current)
            self._run(items, current)

        return run

    def _leaving_out(self, place: str, items: list[pytest.Item]) -> Callable[[], None]:
        def run() -> None:
            os.environ["MILLRACE_PLANTED_PLACE"] = place
            self._run(items, None)

        return run

    def _run(self, items: list[pytest.Item], current: Path | None) -> None:
        """Run tests: all while they are noted, else until one fails."""
        for item, following in zip(items, [*items[1:], None]):
            if current is not None:
                current.write_text(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if current is None and self.failures:
                return

    def _fork(self, work: Iterable[tuple[str, Callable[[], None]]]) -> None:
        """Run each in a process of its own, `jobs` at a time; what they find is in files ``result-NAME``."""
        running = dict[int, tuple[str, float]]()
        for name, run in work:
            while len(running) >= self.jobs:
                self._wait(running)
            if not (process := os.fork()):
                os.setsid()
                for to in (1, 2):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), to)
                self.failures, self.seconds = [], defaultdict(float)
                run()
                aside = self.folder / f".{_safe(name)}"
                aside.write_text(json.dumps({"failures": self.failures, "seconds": self.seconds}))
                aside.rename(self.folder / f"result-{_safe(name)}")
                os._exit(0)
            running[process] = name, time.monotonic()
        while running:
            self._wait(running)

    def _wait(self, running: dict[int, tuple[str, float]]) -> None:
        """Wait until one of the processes has ended, or end it."""
        while True:
            for process, (name, begin) in list(running.items()):
                late = time.monotonic() - begin > LIMIT_S
                if os.waitpid(process, os.WNOHANG)[0] or late:
                    # With the servers that its tests have started.
                    os.killpg(process, signal.SIGKILL) if late else None
                    os.waitpid(process, 0) if late else None
                    del running[process]
                    print(f"{time.monotonic() - begin:.0f} s: {name}", file=sys.stderr, flush=True)
                    return
            time.sleep(0.05)


def _safe(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def main() -> int:
    """Entry point; 1 if a place is not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="places whose names begin so, several separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", type=int, default=60, help="most tests of a place, the shortest first")
    parser.add_argument("--noted", type=Path, help="file of which tests reach which place, written if it is not there")
    parser.add_argument("--files", nargs="*", help="files of tests; by default those that name the fixture")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "seen").touch()
        os.environ["MILLRACE_PLANTED"] = name
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "planted"), os.environ.get("PYTHONPATH", "")])
        spec = importlib.util.spec_from_file_location("planted", HERE / "planted" / "sitecustomize.py")
        assert spec is not None and spec.loader is not None
        planted = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(planted)
        sources = [file for where in planted.WHERE for file in sorted((HERE.parent / where).rglob("*.py"))]
        found = {k: v for file in sources for k, v in planted.rewritten(file)[1].items()}
        places = {k: Place(k, v) for k, v in found.items() if k.startswith(tuple(args.only.split(",")))}
        files = args.files or [str(f) for f in sorted(TESTS.rglob("test_*.py")) if "on_device" in f.read_text()]
        planting = Planting(folder, places, args.jobs, args.tests, args.noted or folder / "noted")
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
        if code := pytest.main(options, plugins=[planting]):
            return int(code)
    for place in places.values():
        file, _, source = place.name.partition(": ")
        print(f"{file}:{place.line}\t{source[:70]}\t{place.verdict}\t{place.why}")
    verdicts = [place.verdict for place in places.values()]
    print(", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts)))
    return int(any(verdict != "found" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
