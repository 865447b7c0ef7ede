"""Kills processes of a run at random moments, and checks that the run reports it, leaves nothing behind, and ends with
the same parameters.

    python benchmarks/faults.py --times 20 --what rank,worker,producer,driver --json faults.json

A run of two ranks and one producer on a local cluster is started over and over. After a random time in training one
process gets SIGKILL: a rank, a worker that holds one, the worker that samples, or the driver. For each kill a line says
what died, how many seconds later the run said so ("told"), how soon what had to go with it was gone ("gone": the other
ranks; with the driver every process), and whether the run, gone on with by itself or after the driver by ``--resume``,
ended with the bits of an undisturbed run ("same"). A run that ended before it could be hit is tried again.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

WHAT = ("rank", "worker", "producer", "driver")
JOB = (
    "--dataset", "sbm:nodes=20000,classes=8", "--ranks", "2", "--epochs", "12", "--batch-size", "256", "--hidden", "16",
    "--fanout", "5,5", "--set", "model.norm=batch", "--set", "threads=1", "--set", "queue.kind=zarr", "--set",
    "queue.bulk_size=4",
    "--set", "checkpoint.every_steps=3", "--set", "cluster.dashboard_port=0", "--json",
)  # fmt: skip
TOLD_S, GONE_S, RUN_S = 5.0, 5.0, 300.0
TELLING = ("start again", "which sampled, is gone")


def start(out: Path, *flags: str) -> subprocess.Popen[str]:
    """A run in `out`; what it prints goes to files beside it."""
    command = [sys.executable, "-m", "millrace.pipeline", "run", *JOB, "--out", str(out), *flags]
    with out.with_suffix(".out").open("w") as printed, out.with_suffix(".err").open("w") as said:
        return subprocess.Popen(command, stdout=printed, stderr=said, text=True)


def finish(out: Path, process: subprocess.Popen[str]) -> str | None:
    """The digest of the parameters that a run ended with; None: it failed or hung, and its last words are printed."""
    try:
        code: int | None = process.wait(RUN_S)
    except subprocess.TimeoutExpired:
        code = None
        for p in [*family(process.pid)[0], *family(process.pid)[1], process]:
            p.kill()
        process.wait()
    if code == 0:
        return json.loads(out.with_suffix(".out").read_text().splitlines()[-1])["parameters_sha256"]
    print(
        f"  ended with {code}: {out.with_suffix('.err').read_text()[-2000:]}"
        if code is not None
        else f"  hung: see {out}",
        flush=True,
    )
    return None


def family(pid: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """(ranks, workers) of the driver `pid`."""
    ranks, workers = [], []
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return [], []
    for child in children:
        try:
            command = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "cluster.rank_main" in command:
            ranks.append(child)
        elif "spawn_main" in command:
            workers.append(child)
    return ranks, workers


def holds(worker: psutil.Process, rank: psutil.Process) -> bool:
    """True if the worker has the other end of the rank's standard input."""
    try:
        pipe = os.readlink(f"/proc/{rank.pid}/fd/0")
        files = Path(f"/proc/{worker.pid}/fd")
        return any(os.readlink(files / name) == pipe for name in os.listdir(files))
    except OSError:
        return False


def events(out: Path) -> list[dict[str, Any]]:
    """Events that the run has reported so far."""
    metrics = out / "metrics.jsonl"
    return (
        [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
        if metrics.exists()
        else []
    )


def kill(what: str, driver: int, rng: random.Random) -> list[psutil.Process]:
    """Kill one process, and give those that have to go with it; none: there was nothing to kill any more."""
    try:
        ranks, workers = family(driver)
        holders = {w.pid for w in workers if any(holds(w, r) for r in ranks)}
        choice = {
            "rank": ranks,
            "worker": [w for w in workers if w.pid in holders],
            "producer": [w for w in workers if w.pid not in holders],
            "driver": [psutil.Process(driver)],
        }[what]
        if len(ranks) < 2 or not choice:
            return []
        target = rng.choice(choice)
        target.kill()
    except psutil.NoSuchProcess:
        return []
    return {"rank": ranks, "worker": [*ranks, target], "producer": [target], "driver": [*ranks, *workers]}[what]


def kill_once(what: str, out: Path, rng: random.Random, longest_s: float, want: str) -> dict[str, Any] | None:
    """Start a run, kill, see how it ends; None: it ended before it could be hit."""
    driver = start(out)
    while driver.poll() is None and not any(e["event"] == "StepDone" for e in events(out)):
        time.sleep(0.05)
    time.sleep(rng.uniform(0, longest_s))
    going = kill(what, driver.pid, rng) if driver.poll() is None else []
    killed_at = time.time()
    if not going:
        finish(out, driver)
        return None
    left = psutil.wait_procs(going, timeout=GONE_S)[1]
    record: dict[str, Any] = {"what": what, "gone": not left, "gone_s": time.time() - killed_at}
    if what == "driver":
        driver.wait()
        driver = start(out, "--resume")
    got = finish(out, driver)
    if what != "driver":
        told = [
            e
            for e in events(out)
            if e["event"] == "Note" and e["time"] >= killed_at and any(w in e["text"] for w in TELLING)
        ]
        record["told_s"] = told[0]["time"] - killed_at if told else None
        record["told"] = told[0]["text"] if told else None
    record["same"] = got == want
    # A rank or a producer that was hit in its last moment has nothing left to tell.
    record["ok"] = record["same"] and record["gone"] and (record.get("told_s") or 0.0) < TOLD_S
    return record


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill processes of a run at random moments.")
    parser.add_argument("--times", type=int, default=20, help="kills of each kind")
    parser.add_argument("--what", default=",".join(WHAT), help="comma-separated: " + ", ".join(WHAT))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--longest", type=float, default=2.5, help="seconds after the first step, at most")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    what = args.what.split(",")
    if unknown := set(what) - set(WHAT):
        parser.error(f"--what knows {', '.join(WHAT)}, not {', '.join(unknown)}")
    rng, records = random.Random(args.seed), []
    with tempfile.TemporaryDirectory() as folder:
        want = finish(Path(folder) / "undisturbed", start(Path(folder) / "undisturbed"))
        if want is None:
            raise SystemExit("the undisturbed run failed")
        for kind in what:
            done = missed = 0
            while done < args.times and missed < 10 * args.times:
                record = kill_once(kind, Path(folder) / f"{kind}-{done}-{missed}", rng, args.longest, want)
                if record is None:
                    missed += 1
                    continue
                done += 1
                records.append(record)
                told = (
                    "" if record.get("told_s") is None else f"told after {record['told_s']:.2f} s ({record['told']}); "
                )
                gone = f"{'gone in' if record['gone'] else 'NOT gone after'} {record['gone_s']:.2f} s; "
                print(
                    f"{kind} {done}: {told}{gone}{'same parameters' if record['same'] else 'OTHER parameters'}",
                    flush=True,
                )
    summary = {}
    print(f"\n{'what':10}{'kills':>6}{'ok':>5}{'told, median s':>16}{'slowest s':>11}{'gone, slowest s':>17}")
    for kind in what:
        mine = [r for r in records if r["what"] == kind]
        told = [r["told_s"] for r in mine if r.get("told_s") is not None]
        gone = [r["gone_s"] for r in mine]
        summary[kind] = {
            "kills": len(mine),
            "ok": sum(r["ok"] for r in mine),
            "told_median_s": statistics.median(told) if told else None,
            "told_slowest_s": max(told, default=None),
            "gone_slowest_s": max(gone, default=None),
            "untold": sum(kind != "driver" and r["told_s"] is None for r in mine),
        }
        cells = [f"{v:.2f}" if v is not None else "-" for v in list(summary[kind].values())[2:5]]
        print(f"{kind:10}{len(mine):>6}{summary[kind]['ok']:>5}{cells[0]:>16}{cells[1]:>11}{cells[2]:>17}")
    if args.json:
        args.json.write_text(
            json.dumps({"job": JOB, "seed": args.seed, "summary": summary, "kills": records}, indent=1) + "\n"
        )
        print(f"written: {args.json}")
    if not all(r["ok"] for r in records):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
