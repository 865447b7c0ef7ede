"""Sampling over block rows by owners and by 1.5D products: words, messages and seconds of a bulk, beside what
`stages.placement.grid_costs` expects. See `partitioned.py`, section ``algorithms``."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.benchmarks.graphs import RECIPES, make
from millrace.benchmarks.links import HOST, links
from millrace.benchmarks.partitioned_words import WORD, digest, placed
from millrace.stages.assignment import BulkRequest
from millrace.stages.feed.collective_feed import SampledByOwners
from millrace.stages.placement.grid_costs import Cost, Degrees, expected
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.placement.row_owners import Owners
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph
from millrace.tests.contracts.process_ranks import run_ranks

ALGORITHMS = ("owners", "1.5d")
SLOW = (100e-6, 125e6)
"""Latency and bandwidth of a link of 1 Gb/s."""


def sample_once(group: Any, ledger: Any, sampler: Any, ways: Owners, request: BulkRequest) -> dict[str, Any]:
    """One bulk: seconds, words sent, messages waited for, and the digest of its minibatches."""
    group.any(False)
    before, waits = ledger.as_record()["network"], ledger.waits()["network"]
    start = time.perf_counter()
    drawn = sampler.sample_by_owners(ways, request)
    seconds = time.perf_counter() - start
    after, later = ledger.as_record()["network"], ledger.waits()["network"]
    return {
        "seconds": seconds,
        "words": (after["graph"] - before["graph"]) / WORD,
        "waits": sum(later[kind] - waits[kind] for kind in later),
        "digest": digest(drawn.minibatches),
    }


def sample_each(
    group: Any,
    graph: Graph,
    train: npt.NDArray[np.int64],
    samplers: Sequence[Any],
    batch: int,
    bulks: Sequence[int],
    copies: Sequence[int],
    rounds: int = 1,
) -> list[dict[str, Any]]:
    """One rank's part in sampling one bulk by each algorithm, for each c, bulk size and sampler; `seconds` are those of
    the soonest of so many rounds."""
    found = []
    for c in copies:
        for k in bulks:
            rows, job = placed(group, c, graph, train, 0, batch, k, f"algorithms of {c} and {k}", rows_meet=True)
            assert rows.column is not None
            for sampler in samplers:
                request = SampledByOwners(sampler).plan(rows, job).request(0, 0)
                for name in ALGORITHMS:
                    ways = SampledByOwners(sampler, algorithm=name).meet(rows, job, rows.column, rows.row)
                    each = [sample_once(group, job.ledger, sampler, ways, request) for _ in range(rounds)]
                    best = min(each, key=lambda r: r["seconds"])
                    found.append({"c": c, "k": k, "sampler": sampler.name, "algorithm": name, **best})
    return found


def measure_algorithms(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``algorithms``."""
    graph = make(RECIPES[args.recipe], 0)
    train = np.sort(np.random.default_rng(0).permutation(graph.num_nodes)[: args.train])
    samplers, degrees = [NeighborSampler(args.fanout), LadiesSampler(args.sizes)], Degrees.histogram(graph.in_degree)
    print(
        f"\nALGORITHMS: {args.recipe}, {graph.num_nodes:,} nodes, {graph.num_edges:,} edges; {len(train):,} seeds, "
        f"minibatches of {args.batch}; k of each rank in a bulk. Words sent and messages waited for by a rank, mean; "
        "*: fewer seconds; at 1 Gb/s: of messages, with 100 us, by these counts; loopback, link: of sampling, the "
        f'soonest of {args.rounds} rounds, the slowest rank; auto: what bulk.algorithm = "auto" takes'
    )
    print(f"{'sampler':>9}{'p':>3}{'c':>3}{'k':>5}{'algorithm':>11}{'words':>13}{'expected':>13}{'waits':>7}", end="")
    print(f"{'expected':>9}{'at 1 Gb/s':>11}{'loopback':>11}{'link':>11}{'auto':>6}")
    found = []
    for p in (p for p in args.ranks if p > 1):
        copies, start = [c for c in range(1, p) if p % c == 0], time.perf_counter()
        bulks = [k for k in args.bulks if k * p * args.batch <= len(train)]
        more = (graph, train, samplers, args.batch, bulks, copies, args.rounds)
        limits = {"timeout_s": 900.0, "group_timeout_s": 600.0}
        ranks = linked = run_ranks(sample_each, p, *more, **limits)
        if args.link_mbit:
            with links(p, args.link_mbit) as places:
                linked = run_ranks(sample_each, p, *more, **limits, host=HOST, places=places)
        print(f"  {p} ranks: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        for records, over in zip(zip(*ranks), zip(*linked)):
            r = records[0]
            sampler = next(s for s in samplers if s.name == r["sampler"])
            want = expected(sampler, degrees, Grid(p, r["c"]), batch=args.batch, bulk=r["k"])
            cost = Cost(sum(x["words"] for x in records) / p, sum(x["waits"] for x in records) / p)
            found.append(
                {
                    **{key: r[key] for key in ("c", "k", "sampler", "algorithm")},
                    "p": p,
                    "words": cost.words,
                    "waits": cost.messages,
                    "expected": vars(want[r["algorithm"]]),
                    "slow_s": cost.seconds(*SLOW),
                    "seconds": max(x["seconds"] for x in records),
                    "link_s": max(x["seconds"] for x in over) if args.link_mbit else None,
                    "auto": r["algorithm"] == min(want, key=lambda name: want[name].seconds()),
                    "digests": [x["digest"] for x in records],
                }
            )
    for a, b in zip(found[::2], found[1::2]):
        if a["digests"] != b["digests"]:
            report["problems"].append(f"{a['sampler']}, p = {a['p']}, c = {a['c']}: minibatches differ")
        for r, other in ((a, b), (b, a)):
            print(
                f"{r['sampler']:>9}{r['p']:>3}{r['c']:>3}{r['k']:>5}{r['algorithm']:>11}{r['words']:>13,.0f}"
                f"{r['expected']['words']:>13,.0f}{r['waits']:>7.0f}{r['expected']['messages']:>9.0f}"
                + "".join(
                    f"{r[key]:>10.4f}{'*' if r[key] < other[key] else ' '}" if r[key] is not None else f"{'':>11}"
                    for key in ("slow_s", "seconds", "link_s")
                )
                + f"{'auto' if r['auto'] else '':>6}"
            )
    report["algorithms"] = found
