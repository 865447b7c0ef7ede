"""Partitioned graphs that no rank holds as a whole: traffic of sampling and fetching, savings of caching and
prefetching, memory and time by ranks.

    python benchmarks/partitioned.py --only words --ranks 1,2,4
    python benchmarks/partitioned.py --data DIR --json partitioned.json
    python benchmarks/partitioned.py --only overlap --namespaces a,b --addresses 10.0.0.1,10.0.0.2 --bandwidth-mbit 1000

Tripathy, Yelick, Buluc, MLSys 2024 (arXiv 2311.02909), sections on partitioned graphs: p ranks in p/c rows and c
columns of a grid; those who own a row draw in it, so the rows themselves do not travel. ``products_15d.py`` has the
paper's products, in which they do.

``words``       an R-MAT graph, every p and every divisor c; ranks are gloo processes. Sampling: of each hop, words (4
                bytes) that a rank sends on average, beside R (1 + s) / p times (1 - c/p), for R frontier rows over the
                whole bulk and fanout s. That is as if every row had s in-edges; a byte a row, for how many it has, is
                left out. ``exact``: every rank's bytes, messages and waits are what the sizes of all frontiers imply,
                to the byte. ``R d/p``: the words of the rows themselves, 1 - c/p of them, and how many times more these
                are. LADIES: darts and facts of all hops, beside the rows that its P would take (d with the loop).
                Features: kB beside (1 - c/p) n F 4, n the distinct rows that a rank's units name, in units of one step
                and of 8. Minibatches must be those of the whole graph, and rows those of the nodes.
``algorithms``  sampling by owners beside 1.5D products (``bulk.algorithm``), for each c and --bulks: words, messages,
                seconds; beside those expected, by which ``auto`` chooses. With --link-mbit also over limited links
                (``links.py``).
``hot``         hot rows on the ogbn-arxiv graph, beside the best choice of as many that knows the epochs.
``overlap``     2 ranks, fetching ahead (`bulk.prefetch_bytes` at its default) and in turns (0). With ``--namespaces``
                over the link between them, which are network namespaces that exist, each with the address given; and
                always on loopback, for the processor time. ``waited`` is `fetch` + `queue_wait`; of it the network's is
                what is beyond the same run with all rows local (c = p). In units of several steps fewer rows travel,
                which is part of what is saved. The goal is to hide 70 % at 1 Gb/s, for 3 % more processor time at most.
``memory``      resident size of a rank on the graph of ogbn-products' size, beside a prediction: see
                ``partitioned_memory.py``. A --scale below 1 takes so much of its nodes and edges. Ranks that together
                might take more than --limit-gib are not run.
``times``       epochs on a small graph: topology replicated, in blocks, and in one block that all ranks hold (c = p).

Seconds are good for nothing on a machine with other work. Bytes are the ledger's: payload, counted by who sends it. The
graph of ``hot`` is a ``.npz`` file in `--data`, ``MILLRACE_DATA``, or ``../shared/data`` beside this repository; the
others are generated.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.benchmarks.graphs import RECIPES
from millrace.benchmarks.partitioned_algorithms import measure_algorithms
from millrace.benchmarks.partitioned_memory import measure_memory
from millrace.benchmarks.partitioned_rows import measure_hot, measure_units
from millrace.benchmarks.partitioned_runs import FEATURES, measure_overlap, measure_times
from millrace.benchmarks.partitioned_words import measure_words

Measure = Callable[[argparse.Namespace, dict[str, Any]], None]
SECTIONS: dict[str, tuple[Measure, ...]] = {
    "words": (measure_words, measure_units),
    "algorithms": (measure_algorithms,),
    "hot": (measure_hot,),
    "overlap": (measure_overlap,),
    "memory": (measure_memory,),
    "times": (measure_times,),
}


def numbers(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Parser of a list separated by commas."""
    return lambda text: tuple(kind(n) for n in text.split(","))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Sampling and fetching over block rows: bytes, memory and time.")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--only", type=numbers(str), default=tuple(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="generated graphs"
    )
    words = parser.add_argument_group("words")
    words.add_argument("--ranks", type=numbers(int), default=(1, 2, 4, 8, 16), help="p; all divisors c follow")
    words.add_argument("--graph-nodes", type=int, default=20_000)
    words.add_argument("--degree", type=int, default=20, help="mean, before loops and duplicates go")
    words.add_argument("--minibatches", type=int, default=16, help="of the bulk, over all ranks")
    words.add_argument("--batch", type=int, default=256, help="seeds of each; a quarter where rows are fetched")
    words.add_argument("--fanout", type=numbers(int), default=(10, 5))
    words.add_argument("--sizes", type=numbers(int), default=(512, 512), help="of LADIES")
    words.add_argument("--features", type=int, default=100)
    words.add_argument("--steps", type=int, default=17, help="in which rows are fetched")
    algorithms = parser.add_argument_group("algorithms")
    algorithms.add_argument("--recipe", choices=tuple(RECIPES), default="arxiv")
    algorithms.add_argument("--train", type=int, default=65_536, help="seeds to draw minibatches from")
    algorithms.add_argument("--bulks", type=numbers(int), default=(1, 4, 16), help="k of a rank")
    algorithms.add_argument(
        "--link-mbit", type=float, help="also over links of so many Mb/s, in namespaces made for it; needs root"
    )
    hot = parser.add_argument_group("hot")
    hot.add_argument(
        "--data", type=Path, default=Path(os.environ.get("MILLRACE_DATA", beside)), help="folder of ogbn_arxiv.npz"
    )
    hot.add_argument("--hot", type=numbers(float), default=(0.01, 0.05, 0.2), help="shares of all rows")
    hot.add_argument("--hot-epochs", type=int, default=3)
    hot.add_argument("--hot-features", type=int, default=128)
    runs = parser.add_argument_group("overlap and times")
    runs.add_argument("--epochs", type=int, default=4, help="of which the first is left out of seconds an epoch")
    runs.add_argument("--rounds", type=int, default=3)
    runs.add_argument("--hidden", type=int, default=128)
    runs.add_argument("--batch-size", type=int, default=1024, help="but for times; of memory too")
    runs.add_argument("--overlap-nodes", type=int, default=60_000)
    runs.add_argument("--overlap-seeds", type=float, default=0.4, help="the share of nodes that are trained on")
    runs.add_argument("--overlap-fanout", type=numbers(int), default=(15, 10, 5))
    runs.add_argument(
        "--overlap-topology",
        choices=("partitioned", "replicated"),
        default="partitioned",
        help="replicated: rows alone travel",
    )
    runs.add_argument("--namespaces", type=numbers(str), help="two network namespaces; needs root")
    runs.add_argument("--addresses", type=numbers(str), help="an address in each of them")
    runs.add_argument("--bandwidth-mbit", type=float, help="of the link between them, for the report")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--graph", choices=tuple(RECIPES), default="products")
    memory.add_argument("--scale", type=float, default=1.0)
    memory.add_argument("--memory-ranks", type=numbers(int), default=(1, 2, 4, 8), help="p, one after the other; c = 1")
    memory.add_argument("--memory-hidden", type=int, default=128)
    memory.add_argument("--memory-seeds", type=int, default=32_768)
    memory.add_argument("--limit-gib", type=float, default=20.0, help="for all ranks together")
    args = parser.parse_args()
    args.cache = args.cache.resolve()
    if unknown := set(args.only) - set(SECTIONS):
        parser.error(f"--only has {', '.join(sorted(unknown))}; known are {', '.join(SECTIONS)}")
    if (
        min(
            *args.ranks, *args.memory_ranks, args.minibatches, args.steps, args.rounds, args.features, args.hot_features
        )
        < 1
    ):
        parser.error("--ranks, --memory-ranks, --minibatches, --steps, --rounds and features must be at least 1")
    if min(args.fanout) < 1:
        parser.error("--fanout must be at least 1: the formulas know no 'all'")
    if args.batch < 4 or min(args.epochs, args.hot_epochs) < 2:
        parser.error("--batch must be at least 4, --epochs and --hot-epochs at least 2")
    seeds = max(args.minibatches * args.batch, max(args.ranks) * args.steps * (args.batch // 4))
    if "words" in args.only and seeds > args.graph_nodes:
        parser.error(
            f"{seeds} seeds are wanted, but --graph-nodes is {args.graph_nodes}; use "
            f"more, or fewer --steps or --minibatches"
        )
    if args.memory_hidden < FEATURES:
        parser.error(f"--memory-hidden must be at least {FEATURES}: the prediction is for layers that aggregate first")
    if args.namespaces and (len(args.namespaces) != 2 or len(args.addresses or ()) != 2):
        parser.error("--namespaces needs two, and two --addresses")
    if "hot" in args.only and not (args.data / "ogbn_arxiv.npz").exists():
        parser.error(
            f"{args.data} has no ogbn_arxiv.npz; name the folder with --data or "
            f"MILLRACE_DATA, or leave out section 'hot'"
        )
    return args


def main() -> int:
    """Measure and print. Returns 1 if something is not as the formulas, or the goals, have it."""
    args = arguments()
    report: dict[str, Any] = {
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "problems": [],
    }
    for name, measures in SECTIONS.items():
        if name in args.only:
            for measure in measures:
                measure(args, report)
            if args.json:
                args.json.write_text(json.dumps(report, indent=1) + "\n")
    for text in report["problems"]:
        print(f"PROBLEM: {text}")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
