"""Filtered ranking of pairs among all nodes, and the best nodes for each source, beside the matrix product alone.

    OMP_NUM_THREADS=1 python benchmarks/ranking.py --pairs 10000 --nodes 1000000

Prints processor seconds and the memory that each added at its peak. Each runs in a process of its own. The plain
product is ``rows[pairs] @ rows.T``, 256 pairs at a time into one array; nothing is compared, nobody is left out. Of
``topk`` torch's function takes the best of such a product. ``blocks`` are products in the blocks of rankings.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from millrace.stages.evaluate.best_links import NodeRows, best_destinations
from millrace.stages.evaluate.links import NODES, PAIRS, KnownPairs, filtered_ranks
from millrace.stages.links.decoders import Bilinear, DistMult

AT_ONCE = 256
WAYS = ("plain", "blocks", "dot", "distmult", "best", "topk")
DEGREE = 10


def measure(way: str, pairs: int, nodes: int, width: int, k: int) -> None:
    """Run one way, and print what it took."""
    draw = np.random.default_rng(0)
    rows = torch.randn(nodes, width, generator=torch.Generator().manual_seed(0))
    asked = draw.integers(nodes, size=(pairs, 2))
    keys = draw.integers(nodes**2, size=DEGREE * nodes)
    known = KnownPairs(nodes, np.unique(np.concatenate([keys, asked[:, 0] * nodes + asked[:, 1]])))
    decoder = DistMult(width) if way == "distmult" else Bilinear()
    # Loads what both need anyway.
    few = KnownPairs(1000, keys[:0])
    filtered_ranks(decoder, rows[:1000], asked[:10] % 1000, few)
    list(best_destinations(decoder, NodeRows(np.arange(1000), rows[:1000]), asked[:10, 0] % 1000, k, few, 10))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, start = peak_mib(), time.process_time()
    sources, found = (rows[torch.from_numpy(asked[at : at + AT_ONCE, 0])] for at in range(0, pairs, AT_ONCE)), ""
    if way == "plain":
        out = torch.empty(AT_ONCE, nodes)
        for of in sources:
            torch.mm(of, rows.T, out=out[: len(of)])
    elif way == "blocks":
        out = torch.empty(PAIRS, NODES)
        for of in sources:
            for block in rows.split(NODES):
                torch.mm(of, block.T, out=out[: len(of), : len(block)])
    elif way == "topk":
        for of in sources:
            (of @ rows.T).topk(k)
    elif way == "best":
        for _ in best_destinations(decoder, NodeRows(np.arange(nodes), rows), asked[:, 0], k, known, 65536):
            pass
    else:
        found = f", mean rank {float(filtered_ranks(decoder, rows, asked, known).mean()):.1f}"
    seconds = time.process_time() - start
    more = peak_mib() - before
    print(f"{way:9} {pairs:6} pairs {seconds:8.2f} s of processors, {more:7.0f} MiB more{found}")


def peak_mib() -> float:
    """Peak of resident memory. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        measure(args.ways[0], args.pairs, args.nodes, args.width, args.k)
    for way in [] if args.here else args.ways:
        sizes = [f"--{name}={getattr(args, name)}" for name in ("pairs", "nodes", "width", "k")]
        subprocess.run([sys.executable, __file__, "--here", *sizes, "--ways", way], check=True)
