"""Cost of pulses, worker metrics and the dashboard's page: the share by which they lengthen an epoch.

    python benchmarks/telemetry.py --json telemetry.json
    python benchmarks/telemetry.py --paired runs --pairs 12

Two ranks of one thread on a local cluster, features of a rank's own, minibatches from a thread of each rank (``--queue
zarr``: from sampling tasks, which come in bursts and make epochs differ by a third). With telemetry: ranks tell their
pulses, workers hand them on with every heartbeat, the driver tells queue and epochs, the scheduler keeps the history,
and one browser (a Bokeh session, as a browser holds it) has the page open, which is drawn anew each second, while
``/millrace.json`` is asked for once a second. Without: none of this, and everything else the same.

``--paired epochs`` (the default) turns it on in one epoch of each two, drawn by lot, in one run: neighbours in time are
compared, so that what else the machine does cancels. ``--paired runs`` compares whole runs, in pairs of random order,
by their median epochs. The figure is the mean of the logarithms of with / without over the pairs, without the tenth
that is largest and the tenth that is smallest (now and then the machine does something else for a while), with its 95 %
interval by Yuen and Tukey's t. The first epochs compile and fill caches and are left out.
"""

import argparse
import json
import math
import os
import platform
import random
import runpy
import statistics
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scipy.stats import t as student

import millrace as mr
from millrace.pipeline.dashboard import plugin, publisher
from millrace.pipeline.supervision import rank_work
from millrace.pipeline.telemetry.events import EpochDone, Note

SWITCH = Path(__file__).with_name("telemetry_switch")
DATASET = "sbm:nodes=100000,classes=16,degree=15,features=100"
COLD = 4
"""Epochs that are left out."""


class Browser:
    """Has the page open, and asks for its data, while it is on."""

    def __init__(self) -> None:
        self.on, self.asked = True, 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, address: str, token: str) -> None:
        """Look at the page there."""
        self._thread = threading.Thread(target=self._look, args=(address, token), daemon=True)
        self._thread.start()

    def _look(self, address: str, token: str) -> None:
        from bokeh.client import pull_session
        from bokeh.util.token import generate_jwt_token, generate_session_id

        # The page takes signed sessions alone, and Bokeh reads its settings once, when it is imported.
        for make in (generate_session_id, generate_jwt_token):
            make.__defaults__ = (token.encode(), True, *(make.__defaults__ or ())[2:])
        session = None
        while not self._over.wait(1.0):
            if self.on and session is None:
                session = pull_session(url=f"{address}/millrace")
            elif not self.on and session is not None:
                session.close()
                session = None
            if self.on:
                with (
                    suppress(OSError),
                    urllib.request.urlopen(f"{address}/millrace.json?token={token}", timeout=5) as answer,
                ):
                    self.asked += bool(answer.read())
        if session is not None:
            session.close()

    def close(self) -> None:
        """Look away."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(10)


@contextmanager
def switched(kind: str, browser: Browser):
    """Telemetry of this process, which holds the driver and the scheduler, as `kind` says; and what to call with
    events."""
    os.environ["MILLRACE_TELEMETRY"], before = kind, os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SWITCH), *([before] if before else [])])
    is_on = runpy.run_path(str(SWITCH / "sitecustomize.py"))["is_on"]
    shown, poll, tell = rank_work.show_run, plugin.MillracePage._poll, publisher._Publisher.publish
    browser.on = is_on(0)

    @contextmanager
    def hidden(client: Any, prepared: Any, out: Any, run: str, emit: Any):
        yield emit

    if kind == "off":
        rank_work.show_run = hidden
    plugin.MillracePage._poll = lambda self: poll(self) if browser.on else None
    publisher._Publisher.publish = lambda self, **message: (
        tell(self, **message) if browser.on or "about" in message else None
    )

    def hear(event: Any) -> None:
        if isinstance(event, EpochDone):
            browser.on = is_on(event.epoch + 1)
        elif isinstance(event, Note) and event.text.startswith("this run: "):
            browser.open(*event.text.removeprefix("this run: ").split("/millrace?token="))

    try:
        yield hear
    finally:
        rank_work.show_run, plugin.MillracePage._poll, publisher._Publisher.publish = shown, poll, tell
        del os.environ["MILLRACE_TELEMETRY"]
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def run(kind: str, dataset: mr.Dataset, epochs: int, queue: str) -> tuple[list[float], dict[str, Any]]:
    """Seconds of each epoch, and how much was told."""
    browser = Browser()
    with tempfile.TemporaryDirectory() as folder, switched(kind, browser) as hear:
        try:
            result = mr.run(
                dataset, out=Path(folder) / "run", emit=hear, epochs=epochs, ranks=2, threads=1, batch_size=512,
                fanout=(10, 5), hidden=128,
                features="owned", executor="dask", train={"evaluate_every": 0}, queue={"kind": queue, "bulk_size": 8},
                cluster={"dashboard_port": 0},
            )  # fmt: skip
        finally:
            browser.close()
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    pulses = sum(json.loads(line)["event"] == "Pulse" for line in lines)
    return result.seconds["per_epoch"], {"pulses": pulses, "asked": browser.asked}


def by_epochs(dataset: mr.Dataset, pairs: int, queue: str) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """(without, with) for pairs of epochs."""
    seconds, seen = run("paired", dataset, COLD + 2 * pairs, queue)
    return [_ordered(e, seconds[e], seconds[e + 1]) for e in range(COLD, len(seconds) - 1, 2)], seen


def _ordered(epoch: int, first: float, second: float) -> tuple[float, float]:
    return (second, first) if random.Random(epoch // 2).randrange(2) == 0 else (first, second)


def by_runs(
    dataset: mr.Dataset, pairs: int, epochs: int, queue: str
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """(without, with) for pairs of runs."""
    found, seen, lot = [], {}, random.Random(0)
    for number in range(pairs):
        medians = {}
        for kind in lot.sample(["off", "on"], 2):
            seconds, told_of = run(kind, dataset, epochs, queue)
            medians[kind] = statistics.median(seconds[COLD:])
            seen[kind] = told_of
        found.append((medians["off"], medians["on"]))
        print(f"pair {number + 1} of {pairs}: {medians['off']:.3f} s without, {medians['on']:.3f} s with", flush=True)
    return found, seen


def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """By how much an epoch is longer, as a share of one without, and the 95 % interval of that."""
    logs = sorted(math.log(b / a) for a, b in pairs)
    count, cut = len(logs), len(logs) // 10
    kept = logs[cut : count - cut]
    clipped = [min(max(x, kept[0]), kept[-1]) for x in logs]
    mean, error = statistics.fmean(kept), statistics.stdev(clipped) * math.sqrt(count) / len(kept)
    reach = float(student.ppf(0.975, len(kept) - 1)) * error
    return {
        "pairs": len(pairs),
        "epoch_s": statistics.median(a for a, _ in pairs),
        "share": math.expm1(mean),
        "from": math.expm1(mean - reach),
        "to": math.expm1(mean + reach),
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paired", choices=("epochs", "runs"), default="epochs")
    parser.add_argument("--pairs", type=int, default=200, help="of epochs, or of runs")
    parser.add_argument("--epochs", type=int, default=20, help="of a run, with --paired runs")
    parser.add_argument("--dataset", default=DATASET)
    parser.add_argument("--queue", choices=("memory", "zarr"), default="memory")
    parser.add_argument("--json", type=Path, help="write figures here")
    a = parser.parse_args()
    dataset, start, load = mr.open_dataset(a.dataset), time.perf_counter(), os.getloadavg()
    pairs, seen = (
        by_epochs(dataset, a.pairs, a.queue) if a.paired == "epochs" else by_runs(dataset, a.pairs, a.epochs, a.queue)
    )
    found = summary(pairs)
    print(
        f"{len(pairs)} pairs of {a.paired}, {time.perf_counter() - start:.0f} s; without "
        f"telemetry an epoch takes {found['epoch_s']:.3f} s"
    )
    print(f"with it {found['share']:+.2%}, 95 % interval {found['from']:+.2%} to {found['to']:+.2%}; told: {seen}")
    print(f"load of the machine before and after: {load[0]:.1f}, {os.getloadavg()[0]:.1f}")
    if a.json:
        record = {
            **found,
            "told": seen,
            "load": [load[0], os.getloadavg()[0]],
            "machine": platform.processor() or platform.machine(),
        }
        a.json.write_text(json.dumps({**record, "seconds": pairs}, indent=2))


if __name__ == "__main__":
    main()
