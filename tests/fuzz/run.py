"""Read many mutated inputs, and print the outcomes: ``python tests/fuzz/run.py --inputs 10000`` from the repository.

A crash ends the process: the last line of the log names the input that caused it.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000, help="how many, over all targets")
    parser.add_argument("--targets", help="names, separated by commas; by default all")
    parser.add_argument("--first", type=int, default=0, help="seed of the first input of each target")
    parser.add_argument("--log", type=Path, help="a file that names the input being read")
    parser.add_argument("--json", action="store_true", help="print the tallies as JSON")
    args = parser.parse_args()
    from millrace.tests.fuzz.contract import Tally, judge
    from millrace.tests.fuzz.targets import TARGETS, Bench, one

    chosen = args.targets.split(",") if args.targets else list(TARGETS)
    whole = sum(TARGETS[name][1] for name in chosen)
    tallies = {name: Tally() for name in chosen}
    # Stores are synced to disk before they count as written, which is not under test here.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="millrace-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        bench = Bench(Path(folder))
        for name, tally in tallies.items():
            start = time.perf_counter()
            for seed in range(args.first, args.first + max(1, round(args.inputs * TARGETS[name][1] / whole))):
                if args.log is not None:
                    args.log.write_text(f"{name} {seed}")
                judge(tally, name, seed, one(bench, name, seed))
            if not args.json:
                told = f"accepted {tally.accepted}, refused {sum(tally.refused.values())}, broken {len(tally.broken)}"
                slow = (
                    f"slowest {tally.seconds:.2f} s, most memory {tally.peak_bytes >> 20} MiB, "
                    f"{time.perf_counter() - start:.1f} s in all"
                )
                print(f"{name:<9} {tally.inputs:>6} inputs: {told}; {slow}", flush=True)
    broken = [line for tally in tallies.values() for line in tally.broken]
    print(json.dumps({name: vars(tally) for name, tally in tallies.items()}) if args.json else "\n".join(broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
