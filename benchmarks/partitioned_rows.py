"""Traffic of fetching feature rows over block rows, and the savings of cached rows: counts compared with formulas.

See `collective_feed.py`.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import millrace as mr
from millrace.benchmarks.partitioned_words import PLENTY, WORD, drawn_by_one, generated, placed, shared_out
from millrace.stages.assignment import SeedPlan
from millrace.stages.feed.collective_feed import SampledByOwners
from millrace.stages.feed.queue_feed import UNBOUNDED, QueueFeed
from millrace.stages.fetch.ahead.units import MOST_STEPS, RowsAhead
from millrace.stages.fetch.exchange import PREFETCH_BYTES, OwnedFeatures
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.messages import Phase, RankJob
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.placement.row_blocks import BlockRows, Grid
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph
from millrace.storage.minibatch import Bulk, MiniBatch
from millrace.storage.partition.book import RangeBook
from millrace.storage.queue.base import MemoryQueue
from millrace.tests.contracts.process_ranks import run_ranks

HOT_RANKS = 4
WAYS = ("samples", "degree")


def trained(
    policy: OwnedFeatures, sample: SampledByOwners, rows: BlockRows, job: RankJob, epochs: int
) -> tuple[bool, dict[str, int]]:
    """Fetch the rows of all of this rank's minibatches as training does.

    Returns:
        Whether they were the rows of the nodes; the fetcher's account with ``sent_bytes`` of rows.
    """
    before, phase = job.ledger.get("network", "features"), Phase(0, 0, epochs)
    fetcher = Fetch(policy).fetcher(rows, job)
    ahead = fetcher.ahead(sample.feed(rows, phase, job, (0, 0)), sample, phase, (0, 0))
    assert isinstance(ahead, RowsAhead)
    same, steps = True, job.steps(sample.num_minibatches(rows, job))
    try:
        for epoch in range(epochs):
            for step in range(len(steps)):
                for index in filter(steps.is_mine, steps.minibatches_of(step)):
                    work = ahead.get(epoch, index)
                    found = ahead.rows(work)
                    assert found is not None
                    got, place = found.rows, found.place
                    same = (
                        same
                        and np.array_equal(got[place, 0], work.nodes)
                        and np.array_equal(got[place, -1], work.nodes)
                    )
                # As the gradients' all-reduce does, so that no rank is further ahead than in a run.
                job.group.any(False)
                ahead.release(epoch, steps.minibatches_of(step).stop - 1)
    finally:
        ahead.close()
    return same, {**fetcher.hit_counts, "sent_bytes": job.ledger.get("network", "features") - before}


def fetch(
    group: Any,
    graph: Graph,
    train: npt.NDArray[np.int64],
    sampler: Any,
    batch: int,
    features: int,
    copies: Sequence[int],
) -> list[dict[str, Any]]:
    """One rank's part in fetching the rows of an epoch, for each c, in units of one step and of many."""
    found = []
    for c in copies:
        for prefetch_bytes in (0, PLENTY):
            rows, job = placed(group, c, graph, train, features, batch, 4, f"rows of {c}, {prefetch_bytes} ahead")
            same, told = trained(
                OwnedFeatures(c, prefetch_bytes=prefetch_bytes), SampledByOwners(sampler), rows, job, 1
            )
            found.append({"c": c, "prefetch_bytes": prefetch_bytes, "same": same, **told})
    return found


def units(steps: int, together: int, first_epoch: bool) -> list[range]:
    """The steps of each unit of an epoch. The first unit of a run is of one step: what that takes decides about the
    others."""
    cuts = [0, *range(1, steps, together), steps] if first_epoch else [*range(0, steps, together), steps]
    return [range(a, b) for a, b in zip(cuts, cuts[1:])]


def of_units(
    minibatches: Sequence[MiniBatch],
    grid: Grid,
    book: RangeBook,
    features: int,
    together: int,
    ranks: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """A row of the table: the distinct rows of all units, and what they take."""
    p, shares = grid.ranks, shared_out(minibatches, grid.ranks)
    distinct, wanted = 0, np.zeros(p, np.int64)
    for rank, share in enumerate(shares):
        for steps in units(len(share), together, True):
            unit = np.unique(np.concatenate([share[s].nodes for s in steps]))
            distinct += len(unit)
            owned = np.bincount(book.part(unit), minlength=grid.blocks)
            wanted[grid.column(rank)] += np.where(np.arange(grid.blocks) == grid.block(rank), 0, owned)
    row_bytes, sent = features * WORD, [r["sent_bytes"] for r in ranks]
    return {
        "p": p,
        "c": grid.replication,
        "steps": together,
        "named": sum(len(m.nodes) for m in minibatches) / p,
        "distinct": distinct / p,
        "bytes": sum(sent) / p,
        "formula": (1 - grid.replication / p) * distinct / p * row_bytes,
        "exact": sent == (wanted * row_bytes).tolist(),
        "same": all(r["same"] for r in ranks),
        "seen": sent,
        "wanted": (wanted * row_bytes).tolist(),
    }


def measure_units(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """The second part of section ``words``: rows of features."""
    # Smaller minibatches than where sampling is counted: each rank has so many of them.
    graph, sampler, batch = generated(args), NeighborSampler(args.fanout), args.batch // 4
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    found: list[dict[str, Any]] = []
    print(
        f"\nROWS: F = {args.features}, {args.steps} steps of a minibatch of {batch} on "
        f"each rank; rows and kB sent, means over ranks"
    )
    print(
        f"{'p':>3}{'c':>4}{'steps of a unit':>17}{'named':>10}{'distinct n':>12}{'kB':>10}"
        f"{'(1-c/p) n F 4':>15}{'ratio':>7}{'exact':>7}"
    )
    for p in args.ranks:
        copies, start = [c for c in range(1, p + 1) if p % c == 0], time.perf_counter()
        train = np.sort(order[: p * args.steps * batch])
        minibatches = drawn_by_one(graph, train, sampler, batch)
        ranks = run_ranks(
            fetch, p, graph, train, sampler, batch, args.features, copies, timeout_s=600.0, group_timeout_s=300.0
        )
        for c in copies:
            grid = Grid(p, c)
            for prefetch_bytes, together in ((0, 1), (PLENTY, MOST_STEPS)):
                of = [next(r for r in rank if (r["c"], r["prefetch_bytes"]) == (c, prefetch_bytes)) for rank in ranks]
                r = of_units(minibatches, grid, Contiguous().assign(graph, grid.blocks, 0), args.features, together, of)
                found.append(r)
                where = f"p = {p}, c = {c}, units of {together} steps"
                if not r["exact"]:
                    report["problems"].append(
                        f"{where}: ranks sent {r['seen']} bytes of rows, implied are {r['wanted']}"
                    )
                if not r["same"]:
                    report["problems"].append(f"{where}: rows that were fetched are not those of the nodes")
                # With c = p nothing travels, which has been checked.
                if c < p:
                    print(
                        f"{p:>3}{c:>4}{together:>17}{r['named']:>10,.0f}"
                        f"{r['distinct']:>12,.0f}{r['bytes'] / 1e3:>10,.0f}"
                        f"{r['formula'] / 1e3:>15,.0f}{r['bytes'] / r['formula']:>7.2f}"
                        f"{'yes' if r['exact'] else 'NO':>7}",
                        flush=True,
                    )
        print(f"  {p} ranks: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    report["units"] = found


@dataclass(frozen=True)
class Drawn(SampledByOwners):
    """Minibatches that were drawn beforehand, once for all settings."""

    bulks: tuple[Bulk, ...] = field(default_factory=tuple)

    def preview(self, placement: BlockRows, job: RankJob, epoch: int) -> Iterator[MiniBatch]:
        """See `SampledByOwners.preview`."""
        return (m for bulk in self.bulks if bulk.epoch == epoch for m in bulk.minibatches)

    def feed(self, placement: BlockRows, phase: Phase, job: RankJob, first: tuple[int, int]) -> Any:
        """See `SamplePolicy.feed`."""
        per_epoch = self.num_minibatches(placement, job)
        queue = MemoryQueue(
            bulk_size=job.bulk_size * job.group.size, max_bytes=UNBOUNDED, minibatches_per_epoch=per_epoch
        )
        for bulk in self.bulks:
            if bulk.epoch < phase.last_epoch:
                queue.put(bulk, 1.0)
        return QueueFeed(queue, None, job.ledger, lambda: True)


def hits(
    group: Any,
    graph: Graph,
    train: npt.NDArray[np.int64],
    sampler: Any,
    batch: int,
    features: int,
    epochs: int,
    shares: Sequence[float],
) -> list[dict[str, Any]]:
    """One rank's part in fetching with hot rows: for each share and way to choose, what was asked for in the first
    epoch and the others."""
    rows, job = placed(group, 1, graph, train, features, batch, 8, "hot rows")
    plan = SeedPlan(train, batch, job.bulk_size * group.size, job.seed).of_rank(group.size, group.size, group.rank)
    steps = -(-plan.num_minibatches // group.size)
    bulks = tuple(sampler.sample(graph, plan.request(e, n), cpu) for e in range(epochs) for n in range(plan.num_bulks))
    named = {(b.epoch, m.index // group.size): m.nodes for b in bulks for m in b.minibatches}

    largest = torch.zeros(group.size, dtype=torch.int64)
    largest[group.rank] = len(named[0, 0]) * features * WORD
    group.all_reduce(largest, "control")
    # As many as may wait for training, by what the first takes.
    together = max(1, min(MOST_STEPS, PREFETCH_BYTES // int(largest.max())))
    times = np.zeros((epochs, graph.num_nodes), np.int64)
    for epoch in range(epochs):
        for unit in units(steps, together, epoch == 0):
            ids = [named[epoch, s] for s in unit if (epoch, s) in named]
            times[epoch, np.unique(np.concatenate(ids)) if ids else []] += 1
    # A rank's own rows do not travel.
    times[:, rows.first : rows.first + rows.graph.num_nodes] = 0
    spans = {"first": times[:1].sum(axis=0), "following": times[1:].sum(axis=0)}

    found = []
    for share in shares:
        count = int(share * graph.num_nodes)
        best = {name: int(np.sort(span)[::-1][:count].sum()) for name, span in spans.items()}
        for by in WAYS:
            told: list[dict[str, int]] = []
            for last in (1, epochs):
                meeting = job.group.sub(f"{share} by {by}, {last}", range(group.size))
                same, account = trained(
                    OwnedFeatures(1, share, by), Drawn(sampler, bulks=bulks), rows, replace(job, group=meeting), last
                )
                told.append({**account, "same": same})
            apart = dict(zip(spans, (told[0], {key: told[1][key] - told[0][key] for key in ("asked", "hits")})))
            exact = all(apart[name]["asked"] == int(span.sum()) for name, span in spans.items())
            counts = {
                name: {"asked": apart[name]["asked"], "hits": apart[name]["hits"], "best": best[name]} for name in spans
            }
            found.append(
                {
                    "share": share,
                    "by": by,
                    "rows": told[1]["rows"],
                    "together": together,
                    "exact": exact,
                    "all": told,
                    **counts,
                }
            )
    return found


def measure_hot(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``hot``."""
    dataset = mr.open_dataset(args.data / "ogbn_arxiv.npz", options=mr.ReadOptions(direction="undirected"))
    graph, train, P, E = dataset.graph, np.sort(dataset.split.train), HOT_RANKS, args.hot_epochs
    fanout, batch, row_bytes = (15, 10, 5), 1024, args.hot_features * WORD
    start = time.perf_counter()
    ranks = run_ranks(
        hits, P, graph, train, NeighborSampler(fanout), batch, args.hot_features, E, args.hot,
        timeout_s=590.0, group_timeout_s=300.0,
    )  # fmt: skip
    print(f"  hot: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(
        f"\nHOT: ogbn-arxiv, {graph.num_edges:,} edges, {P} ranks, c = 1, batch {batch}, "
        f"fanout {','.join(map(str, fanout))}, {E} epochs;"
    )
    print(
        f"F = {args.hot_features}; units of {ranks[0][0]['together']} steps. Share of the "
        f"rows of others that were hot, and the most"
    )
    print(
        "that any choice of as many rows could have had; MB of rows that a rank gets in "
        "an epoch, mean, hot rows themselves included"
    )
    print(
        f"{'':<16}{'rows kept':>10}{'EPOCH 0: hits':>16}{'best':>7}{'ratio':>7}"
        f"{'FOLLOWING: hits':>18}{'best':>7}{'ratio':>7}",
        end="",
    )
    print(f"{'MB without':>12}{'with':>8}{'saved':>7}")
    found = []
    for n, first in enumerate(ranks[0]):
        of = [rank[n] for rank in ranks]
        label = f"{first['share']:.0%} by {first['by']}"
        sums = {
            span: {key: sum(r[span][key] for r in of) for key in ("asked", "hits", "best")}
            for span in ("first", "following")
        }
        rates = {
            span: (s["hits"] / s["asked"], s["best"] / s["asked"]) if s["asked"] else (0.0, 0.0)
            for span, s in sums.items()
        }
        kept, sent = sum(r["rows"] for r in of), sum(r["all"][1]["sent_bytes"] for r in of)
        asked, hit = (sum(s[key] for s in sums.values()) for key in ("asked", "hits"))
        without = asked * row_bytes
        cells = "".join(f"{a:>{w}.1%}{b:>7.1%}{a / b if b else 0:>7.2f}" for w, (a, b) in zip((16, 18), rates.values()))
        mb = [b / P / E / 1e6 for b in (without, sent)]
        print(
            f"{label:<16}{kept / P:>10,.0f}{cells}{mb[0]:>12,.1f}{mb[1]:>8,.1f}{1 - sent / without:>7.0%}", flush=True
        )
        found.append(
            {
                "share": first["share"],
                "by": first["by"],
                "sums": sums,
                "rates": rates,
                "sent": sent,
                "without": without,
                "ranks": of,
            }
        )
        if not all(r["exact"] for r in of):
            report["problems"].append(
                f"hot, {label}: rows asked for are not those that the samples name in units of {first['together']}"
            )
        if sent != (asked - hit + kept) * row_bytes:
            report["problems"].append(
                f"hot, {label}: {sent} bytes of rows, but {asked} asked, {hit} hot and {kept} kept make another sum"
            )
        if not all(t["same"] for r in of for t in r["all"]):
            report["problems"].append(f"hot, {label}: rows that were fetched are not those of the nodes")
        if any(s["hits"] > s["best"] for s in sums.values()):
            report["problems"].append(f"hot, {label}: more hits than any choice of as many rows could have had: {sums}")
    report["hot"] = found
