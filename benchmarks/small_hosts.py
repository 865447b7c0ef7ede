"""A dataset that no process can hold: ingest, a given cut, training with parts, and going on, on two small hosts.

    python benchmarks/small_hosts.py --folder hosts/        as root; some 1.2 GB of disk

Two workers and their ranks are in two network namespaces with a cable between them; each of their processes may have
less private memory (``RLIMIT_DATA``) than the store has bytes, and the driver 1 GiB. Files are shared. A process with
the workers' limit first tries to hold the features, and cannot. Then ``millrace convert``, and for each system
``millrace run`` with the owners given, which is killed with all its ranks in mid-training and given again with
``--resume``, and a run that is left alone: both have the same parameters.
"""

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from millrace.benchmarks.namespaces import cluster, limited, linked, within

HERE, THERE = "10.213.9.1", "10.213.9.2"
DRIVER_BYTES = 1 << 30
SYSTEMS = {
    "bulk": (
        *("bulk", "--fanout", "5,5", "--batch-size", "128", "--set", "bulk.topology=partitioned"),
        *("--set", "bulk.prefetch_bytes=16777216"),
    ),
    "sar": ("sar",),
    "retexo": ("retexo",),
    "grappa": ("grappa", "--fanout", "5,5", "--batch-size", "512"),
}
HOLD = "import sys, numpy as np; np.array(np.load(sys.argv[1], mmap_mode='r'))"


@contextmanager
def most_data(spaces: list[str]) -> Iterator[list[int]]:
    """The most private memory that a process in the namespaces has had meanwhile, in bytes."""
    found, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            for space in spaces:
                pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
                for pid in pids:
                    try:
                        status = Path(f"/proc/{pid}/status").read_text()
                    except OSError:
                        continue
                    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmData")]
                    found[0] = max([found[0], *(int(size) << 10 for size in sizes)])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def call(space: str, *words: str, kill: Path | None = None) -> float:
    """Run ``millrace`` as a driver in a namespace; seconds. With `kill`, it is killed once that file has a step."""
    command = [*limited(DRIVER_BYTES), *within(space, "-m", "millrace", *words)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while kill is not None and process.poll() is None:
        if kill.exists() and '"StepDone"' in kill.read_text():
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.1)
    said, _ = process.communicate()
    if process.returncode != (0 if kill is None else -signal.SIGKILL):
        sys.exit(f"millrace {' '.join(words)} ended with {process.returncode}:\n{said[-3000:]}")
    return time.perf_counter() - start


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--nodes", type=float, default=1.5e6)
    parser.add_argument("--edges", type=float, default=1.5e7)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--limit-mib", type=int, default=780)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--systems", default="bulk", help="sar, retexo and grappa need more memory or more ranks")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    graph, store, owners = args.folder / "graph", args.folder / "store", args.folder / "owners.npy"
    if not graph.exists():
        sizes = [f"--{name}={int(getattr(args, name))}" for name in ("nodes", "edges", "features")]
        sizes += ["--kind=community", "--noise=0", f"--train={int(args.nodes) // 100}"]
        scale = Path(__file__).parent / "scale.py"
        subprocess.run([sys.executable, str(scale), "generate", *sizes, "--out", str(graph)], check=True)
    np.save(owners, (np.arange(int(args.nodes)) % 16 * args.ranks // 16).astype(np.int32))
    limit = args.limit_mib << 20
    with linked(HERE, THERE) as spaces, most_data(spaces) as most:
        where = {"data_bytes": limit, "threads": args.ranks // 2}
        with cluster([HERE, THERE], spaces, args.folder, **where) as scheduler:
            if not store.exists():
                words = ["--memory", "1500MiB", "--features", "npy", "--graph", "npy", "--scheduler", scheduler]
                settings = ["read.direction=directed", f"cluster.host={HERE}", "cluster.insecure=true"]
                words += [word for setting in settings for word in ("--set", setting)]
                seconds = call(spaces[0], "convert", str(graph), "--out", str(store), *words)
                print(f"ingest: {seconds:.1f} s, at most {most[0] / 2**20:.0f} MiB in a process", flush=True)
            size = sum(f.stat().st_size for f in store.rglob("*") if f.is_file())
            assert size > limit, f"the store has {size / 2**20:.0f} MiB: choose a lower limit"
            hold = [*limited(limit), sys.executable, "-c", HOLD, str(store / "features.npy")]
            print(f"store: {size / 2**20:.0f} MiB; each process of a worker may have {args.limit_mib} MiB", flush=True)
            done = subprocess.run(hold, capture_output=True, text=True)
            assert "MemoryError" in done.stderr, "a process could hold the features"
            for name in args.systems.split(","):
                digests = []
                for kind in ("killed", "alone"):
                    out, most[0] = args.folder / f"run-{name}-{kind}", 0
                    words = ["run", "--dataset", str(store), "--system", *SYSTEMS[name], "--hidden", "16"]
                    words += ["--layers", "2", "--epochs", "2", "--ranks", str(args.ranks), "--out", str(out)]
                    words += ["--scheduler", scheduler, "--host", HERE]
                    settings = [f"partition.owners={owners}", "cluster.insecure=true", "threads=1"]
                    settings += ["checkpoint.every_steps=2", "train.evaluate_every=2"]
                    words += [word for setting in settings for word in ("--set", setting)]
                    seconds = 0.0
                    if kind == "killed":
                        seconds = call(spaces[0], *words, kill=out / "metrics.jsonl")
                        words = ["run", "--resume", "--out", str(out), "--scheduler", scheduler, "--host", HERE]
                    seconds += call(spaces[0], *words)
                    result = json.loads((out / "result.json").read_text())
                    digests.append(result["parameters_sha256"])
                    print(
                        f"{name}, {kind}: {seconds:.1f} s, train loss {result['train_loss']:.4f}, at most "
                        f"{most[0] / 2**20:.0f} MiB in a process",
                        flush=True,
                    )
                assert digests[0] == digests[1], f"{name}: other parameters after the kill"
    print("the same parameters after each kill", flush=True)


if __name__ == "__main__":
    main()
