"""Resident memory of a rank over block rows, compared with the size of its arrays: c0 + c1/p. See `collective_feed.py`.

What a rank holds of N rows, e edges into them, R pairs of a row and a block that it reads, and S rows that it reads of
other blocks:

==========  ============================================================================================================
held        edge shards 8 e + 8 R + 4 S; block rows 4 e + 8 N; 28 N for ids, labels, degrees and first edges; 16 for
            each train node
training    own rows 4 F N
evaluation  the shards in its own order, 8 e + 12 R + 8 N, and 52 N for ids, counts, degrees and scales; rows, 4 F N;
            and of the layer that takes most its input (where that is not the rows), rows beside their neighbours' mean,
            and its output: 4 N times 2 F + d, or 4 d; rows of other ranks, coming in and going out, of one rank at a
            time: 4 F, or 4 d, times both (as many ranks' as fit into `visit.PREFETCH_BYTES`, at least one's)
==========  ============================================================================================================

c1/p is held with the larger of training and evaluation. Beside them c0: a rank over a graph of 500 nodes, measured; and
in training what does not grow with the graph: the tensors of a step (as the run tells them), rows that lie ready,
minibatches that wait.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr
from millrace.benchmarks.graphs import RECIPES, Recipe, make
from millrace.benchmarks.partitioned_runs import FEATURES, dataset_at, known
from millrace.stages.feed.collective_feed import SampledByOwners
from millrace.stages.fetch.exchange import PREFETCH_BYTES
from millrace.stages.fetch.visit import PREFETCH_BYTES as VISIT_BYTES
from millrace.stages.partition.contiguous import Contiguous
from millrace.storage.graph import Graph

SMALL = Recipe(500, 5_000, {})
TOLERANCE = 0.15
BESIDE_BYTES = 1536 << 20
"""About what a rank takes that does not grow with the graph, before it is measured: c0, a step, rows ahead."""
LAYERS = 3


def store_for(args: argparse.Namespace, recipe: Recipe) -> Path:
    """A store with seeds, and with test nodes, so that it is evaluated."""
    train = min(recipe.num_nodes // 2, args.memory_seeds)
    if args.scale == 1.0 and recipe is RECIPES["products"]:
        return known("products", args.cache, train, test=1000)
    path = args.cache / "graphs" / f"blocks-{recipe.num_nodes}-{recipe.num_pairs}-{train}"
    return path if path.exists() else dataset_at(path, make(recipe), train, test=min(1000, recipe.num_nodes // 4))


def predicted(graph: Graph, p: int, hidden: int, seeds: int) -> dict[str, int]:
    """Bytes of the rank with most, by kind."""
    cuts = Contiguous().assign(graph, p, 0).offsets
    reads = np.zeros((p, p), np.int64)
    pairs = np.zeros(p, np.int64)
    for block in range(p):
        first, last = int(cuts[block]), int(cuts[block + 1])
        near = graph.indices[graph.indptr[first] : graph.indptr[last]]
        named = np.zeros(graph.num_nodes, bool)
        named[near] = True
        reads[block] = np.add.reduceat(named, cuts[:-1], dtype=np.int64)
        # Sources ascend in a row, so each pair of a row and a block is one stretch of edges.
        owner = np.searchsorted(cuts, near, side="right").astype(np.uint16)
        starts = np.zeros(len(near), bool)
        starts[1:] = owner[1:] != owner[:-1]
        starts[graph.indptr[first:last][np.diff(graph.indptr[first : last + 1]) > 0] - graph.indptr[first]] = True
        pairs[block] = np.count_nonzero(starts)
    F, d = FEATURES, hidden
    told = []
    for block in range(p):
        N, e, R = (
            int(cuts[block + 1] - cuts[block]),
            int(graph.indptr[cuts[block + 1]] - graph.indptr[cuts[block]]),
            int(pairs[block]),
        )
        # In round r rows go to the rank r places on, and come from the one r places back.
        rounds = [int(reads[block, (block - r) % p] + reads[(block + r) % p, block]) for r in range(1, p)]
        S = int(reads[block].sum() - reads[block, block])

        def layer(columns: int, width: int, N: int = N, rounds: list[int] = rounds) -> int:
            under_way = 0
            for n in rounds:
                if not under_way or under_way + 4 * n * width <= VISIT_BYTES:
                    under_way += 4 * n * width
            return 4 * columns * N + under_way

        told.append(
            {
                "rows": N,
                "edges": e,
                "held": 12 * e + 8 * R + 4 * S + 36 * N + 16 * seeds,
                "training": 4 * F * N,
                "evaluation": 8 * e + 12 * R + 60 * N + 4 * F * N + max(layer(2 * F + d, F), layer(4 * d, d)),
            }
        )
    return max(told, key=lambda t: t["held"] + max(t["training"], t["evaluation"]))


def run(args: argparse.Namespace, store: Path, p: int) -> dict[str, Any]:
    """One run: what its ranks told."""
    with tempfile.TemporaryDirectory() as scratch:
        done = mr.run(
            str(store),
            system=mr.bulk(mr.NeighborSampler((15, 10, 5)), topology="partitioned"),
            model=mr.GraphSAGE(hidden=args.memory_hidden, layers=LAYERS),
            ranks=p,
            executor="dask",
            features="mapped",
            epochs=1,
            threads=1,
            out=Path(scratch) / "run",
            config={"train": {"evaluate_every": 0, "batch_size": args.batch_size}, "cluster": {"dashboard_port": 0}},
        )
    return done.to_record()


def measure_memory(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``memory``."""
    whole = RECIPES[args.graph]
    recipe = (
        whole
        if args.scale == 1.0
        else Recipe(round(whole.num_nodes * args.scale), round(whole.num_pairs * args.scale), {})
    )
    store = store_for(args, recipe)
    dataset = mr.open_dataset(store, features="mapped")
    graph, seeds = dataset.graph, len(dataset.split.train)
    print(
        f"\nMEMORY: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {FEATURES} "
        f"features, SAGE {args.memory_hidden}, {LAYERS} layers,"
    )
    print(
        f"batch {args.batch_size}, {seeds:,} seeds, one epoch, c = 1; MiB of the largest "
        f"rank. 'none returned': training's memory stays"
    )
    print(
        f"{'p':>3}{'rows':>10}{'edges':>13}{'c0':>7}{'held':>7}{'own rows':>10}"
        f"{'evaluation':>12}{'c1/p':>8}{'step, ahead':>13}",
        end="",
    )
    print(
        f"{'predicted':>11}{'none returned':>15}{'measured':>10}{'ratio':>7}{'ratio':>7}{'all ranks':>11}", flush=True
    )
    report["memory"] = []
    small = store_for(args, SMALL)
    laws = {p: predicted(graph, p, args.memory_hidden, seeds) for p in (1, 2, 4, 8)} | {
        p: predicted(graph, p, args.memory_hidden, seeds) for p in args.memory_ranks if p not in (1, 2, 4, 8)
    }
    # A run keeps the whole graph in the driver's memory; ranks are not to pay for it here.
    del dataset, graph
    for p, law in sorted(laws.items()):
        c1 = law["held"] + max(law["training"], law["evaluation"])
        row: dict[str, Any] = {"p": p, **law, "c1_share": c1}
        cells = [f"{law[key] / 2**20:,.0f}" for key in ("held", "training", "evaluation")]
        most = p * (law["held"] + law["training"] + law["evaluation"] + BESIDE_BYTES)
        if p not in args.memory_ranks or most > args.limit_gib * 2**30:
            told = f"  not run: {p} ranks may take {most / 2**30:.0f} GiB, and --limit-gib is {args.limit_gib:g}"
            why = told if p in args.memory_ranks else ""
            print(
                f"{p:>3}{law['rows']:>10,}{law['edges']:>13,}{'':>7}{cells[0]:>7}"
                f"{cells[1]:>10}{cells[2]:>12}{c1 / 2**20:>8,.0f}{why}",
                flush=True,
            )
            report["memory"].append(row)
            continue
        c0 = max(run(args, small, p)["peak_rss_bytes"])
        record = run(args, store, p)
        step = max(m["step"] for m in record["memory_bytes"])
        # Of minibatches little more than their edges counts.
        waiting = min(SampledByOwners(mr.NeighborSampler()).max_bytes, 4 * record["sampled_edges"] // p)
        beside = step + PREFETCH_BYTES + waiting
        train = c0 + law["held"] + law["training"] + beside
        row |= {
            "c0": c0,
            "step": step,
            "beside": beside,
            "measured": max(record["peak_rss_bytes"]),
            "all": sum(record["peak_rss_bytes"]),
        }
        row["predicted"] = max(train, c0 + law["held"] + law["evaluation"])
        row["none_returned"] = train + law["evaluation"]
        ratios = [row["measured"] / row[key] for key in ("predicted", "none_returned")]
        mib = {
            key: f"{row[key] / 2**20:,.0f}"
            for key in ("c0", "beside", "predicted", "none_returned", "measured", "all", "c1_share")
        }
        print(
            f"{p:>3}{law['rows']:>10,}{law['edges']:>13,}{mib['c0']:>7}{cells[0]:>7}{cells[1]:>10}{cells[2]:>12}"
            f"{mib['c1_share']:>8}"
            f"{mib['beside']:>13}{mib['predicted']:>11}{mib['none_returned']:>15}{mib['measured']:>10}"
            f"{ratios[0]:>7.2f}{ratios[1]:>7.2f}{mib['all']:>11}",
            flush=True,
        )
        report["memory"].append({**row, "seconds": record["seconds"], "memory_bytes": record["memory_bytes"]})
        if abs(ratios[0] - 1) > TOLERANCE:
            report["problems"].append(f"memory, p = {p}: {ratios[0] - 1:+.0%} beside the prediction")
