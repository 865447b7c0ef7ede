"""Traffic of sampling over block rows: bytes and messages, counted, compared with formulas. See
`collective_feed.py`."""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millrace.benchmarks.graphs import Recipe, make
from millrace.stages.assignment import SeedPlan
from millrace.stages.feed.collective_feed import SampledByOwners
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.messages import Part, Phase, RankJob
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.placement.row_blocks import BlockRows, Blocks, Grid
from millrace.stages.placement.row_owners import Owners
from millrace.stages.sample.base import Sampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.storage.minibatch import MiniBatch
from millrace.storage.partition.book import RangeBook
from millrace.storage.partition.edge_shards import shard_edges
from millrace.storage.partition.partition import extract_partition
from millrace.tests.contracts.process_ranks import run_ranks

WORD = 4
"""Bytes of an id."""
SIZE = 8
"""Bytes of the size that ranks tell each other before an exchange, and of a number in the head of a question."""
PLENTY = 1 << 40


def placed(
    group: Any,
    c: int,
    graph: Graph,
    train: npt.NDArray[np.int64],
    features: int,
    batch: int,
    bulk: int,
    name: str,
    *,
    rows_meet: bool = False,
) -> tuple[BlockRows, RankJob]:
    """This rank's block of a graph that every process of the benchmark has, placed as a run places it.

    Args:
        group: all ranks.
        c: how many of them hold each block.
        graph: V nodes.
        train: int64, the seeds.
        features: F; every number of a row is the id of its node.
        batch: seeds of a minibatch.
        bulk: minibatches of this rank in a bulk.
        name: of the meeting, which is used once.
        rows_meet: see `Blocks`.
    """
    grid = Grid(group.size, c)
    group = group.sub(name, range(group.size))
    book = Blocks(c).partitioner.assign(graph, grid.blocks, 0)
    partition = extract_partition(graph, book, grid.block(group.rank))
    owned = partition.owned
    shards = shard_edges(partition, book, graph.indptr[owned], graph.num_edges)
    rows = np.repeat(owned[:, None].astype(np.float32), features, axis=1)
    none = np.empty(0, np.int64)
    split = Split(np.flatnonzero(np.isin(owned, train)), none, none)
    part = Part(shards, owned, ArrayFeatures(rows), torch.zeros(len(owned), dtype=torch.int64), split)
    job = RankJob(
        seed=0,
        batch_size=batch,
        bulk_size=bulk,
        epochs=1,
        dtype=torch.float32,
        kernel=cpu,
        group=group,
        ledger=group._ledger,
        minibatches_per_step=group.size,
    )
    return Blocks(c, rows_meet=rows_meet).place(part, Phase(0, 0, 1), job), job


class Heard:
    """A group that tells of each exchange what this rank has sent and waited for."""

    def __init__(self, group: Any, ledger: Any) -> None:
        self._group, self._ledger = group, ledger
        self.told: list[dict[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        """See `Group.all_to_all`."""
        seen = [self._counts()]
        heard = self._group.all_to_all(parts, kind, into)
        seen.append(self._counts())
        others = [p for r, p in enumerate(parts) if r != self._group.rank]
        # Sizes go to everybody.
        messages = sum(1 for p in others if len(p)) + (len(others) if into is None else 0)
        self.told.append({**{key: seen[1][key] - seen[0][key] for key in seen[0]}, "messages": messages})
        return heard

    def _counts(self) -> dict[str, int]:
        sent, waits = self._ledger.as_record()["network"], self._ledger.waits()["network"]
        return {"graph": sent["graph"], "control": sent["control"], "waits": waits["graph"] + waits["control"]}


def digest(minibatches: Sequence[MiniBatch]) -> str:
    """Digest of everything that makes up the minibatches."""
    found = hashlib.sha256()
    for m in minibatches:
        for array in [m.nodes, *(a for b in m.blocks for a in (b.indptr, b.indices, b.weight) if a is not None)]:
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def sample(
    group: Any,
    graph: Graph,
    train: npt.NDArray[np.int64],
    samplers: Sequence[Any],
    batch: int,
    bulk: int,
    copies: Sequence[int],
) -> list[dict[str, Any]]:
    """One rank's part in sampling one bulk by owners, for each c and sampler."""
    found = []
    for c in copies:
        rows, job = placed(group, c, graph, train, 0, batch, bulk, f"words of {c}")
        assert rows.column is not None
        for sampler in samplers:
            heard: Any = Heard(rows.column, job.ledger)
            request = SampledByOwners(sampler).plan(rows, job).request(0, 0)
            before, waits = job.ledger.as_record()["network"], job.ledger.waits()["network"]
            drawn = sampler.sample_by_owners(Owners(rows, heard), request)
            after, later = job.ledger.as_record()["network"], job.ledger.waits()["network"]
            total = {kind: after[kind] - before[kind] for kind in ("graph", "control")}
            total["waits"] = sum(later[kind] - waits[kind] for kind in later)
            found.append(
                {
                    "c": c,
                    "sampler": sampler.name,
                    "exchanges": heard.told,
                    "total": total,
                    "digest": digest(drawn.minibatches),
                }
            )
    return found


def ends_of(m: MiniBatch) -> list[int]:
    """L+1 numbers: nodes known after each hop."""
    return [m.blocks[-1].num_dst, *(b.num_src for b in reversed(m.blocks))]


def frontiers(m: MiniBatch) -> Iterator[tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]]:
    """For each hop of a node-wise minibatch: the rows drawn for, and how many edges each has got."""
    ends, kept = ends_of(m), np.diff(m.blocks[0].indptr)
    for first, last in zip([0, *ends], ends[:-1]):
        yield m.nodes[first:last], kept[first:last]


def implied(
    shares: Sequence[Sequence[MiniBatch]], hop: int, fanout: int, grid: Grid, book: RangeBook, graph: Graph
) -> list[dict[str, int]]:
    """Bytes sent by each rank in a hop, exactly, from the sizes of all frontiers.

    A question has a head, two numbers for each minibatch, and an id for each row; the answer how many edges each row
    has got, in the fewest bytes that hold the fanout, and their sources. Nothing travels between ranks of which one
    asks the other for no row.
    """
    asked = np.zeros((grid.ranks, grid.blocks, 2), np.int64)
    for rank, share in enumerate(shares):
        for m in share:
            rows, kept = list(frontiers(m))[hop]
            owner = book.part(rows)
            asked[rank, :, 0] += np.bincount(owner, minlength=grid.blocks)
            asked[rank, :, 1] += np.bincount(owner, kept, minlength=grid.blocks).astype(np.int64)
    each, count = graph.indices.itemsize, np.min_scalar_type(fanout).itemsize
    told = []
    for rank, share in enumerate(shares):
        own, column = grid.block(rank), grid.column(rank)
        questions = [int(n) for block, (n, _) in enumerate(asked[rank]) if block != own and n]
        answers = [(int(n), int(e)) for n, e in asked[[r for r in column if r != rank], own] if n]
        graph_bytes = sum(SIZE * (1 + 2 * len(share)) + WORD * n for n in questions) + sum(
            count * n + each * e for n, e in answers
        )
        others = len(column) - 1
        told.append(
            {
                "graph": graph_bytes,
                "control": 2 * SIZE * others,
                "waits": 4 * min(1, others),
                "messages": len(questions) + len(answers) + 2 * others,
            }
        )
    return told


def shared_out(minibatches: Sequence[MiniBatch], p: int) -> list[list[MiniBatch]]:
    """Each rank's minibatches, where a step has one of each."""
    return [[m for m in minibatches if m.index % p == rank] for rank in range(p)]


def drawn_by_one(graph: Graph, train: npt.NDArray[np.int64], sampler: Sampler, batch: int) -> Sequence[MiniBatch]:
    """The minibatches of an epoch, by who has the whole graph."""
    plan = SeedPlan(train, batch, len(train), 0)
    return sampler.sample(graph, plan.request(0, 0), cpu).minibatches


def per_hop(
    args: argparse.Namespace,
    graph: Graph,
    minibatches: Sequence[MiniBatch],
    p: int,
    c: int,
    ranks: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """A row for each hop of node-wise sampling: means over ranks, beside formulas."""
    grid, found = Grid(p, c), []
    book = Contiguous().assign(graph, grid.blocks, 0)
    for hop, s in enumerate(args.fanout):
        # Two exchanges a hop: what is asked, and the answers.
        seen = [{key: a[key] + b[key] for key in a} for a, b in (r["exchanges"][2 * hop : 2 * hop + 2] for r in ranks)]
        wanted = implied(shared_out(minibatches, p), hop, s, grid, book, graph)
        rows = np.concatenate([list(frontiers(m))[hop][0] for m in minibatches])
        words, away = sum(r["graph"] for r in seen) / p / WORD, 1 - c / p
        found.append(
            {
                "p": p,
                "c": c,
                "hop": hop + 1,
                "rows": len(rows),
                "words": words,
                "formula": len(rows) * (1 + s) / p * away,
                "row_words": int(graph.in_degree[rows].sum()) / p * away,
                "busiest": max(r["graph"] for r in seen) / WORD,
                "exact": seen == wanted,
                "seen": seen,
                "wanted": wanted,
            }
        )
    return found


def ladies_total(
    graph: Graph, minibatches: Sequence[MiniBatch], p: int, c: int, ranks: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Counts of all hops together, since the number of rounds of darts is random."""
    rows = np.concatenate([m.nodes[:end] for m in minibatches for end in ends_of(m)[:-1]])
    words = sum(r["total"]["graph"] for r in ranks) / p / WORD
    row_words = int((graph.in_degree[rows] + 1).sum()) / p * (1 - c / p)
    messages = max(sum(e["messages"] for e in r["exchanges"]) for r in ranks)
    waits = max(r["total"]["waits"] for r in ranks)
    return {
        "p": p,
        "c": c,
        "rows": len(rows),
        "words": words,
        "row_words": row_words,
        "messages": messages,
        "waits": waits,
        "seen": ranks,
    }


def generated(args: argparse.Namespace) -> Graph:
    """The graph of section ``words``."""
    return make(Recipe(args.graph_nodes, args.graph_nodes * args.degree // 2, {}), 0)


def measure_words(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """The first part of section ``words``: sampling."""
    graph = generated(args)
    train = np.sort(np.random.default_rng(0).permutation(graph.num_nodes)[: args.minibatches * args.batch])
    samplers = [NeighborSampler(args.fanout), LadiesSampler(args.sizes)]
    serial = [drawn_by_one(graph, train, s, args.batch) for s in samplers]
    hops: list[dict[str, Any]] = []
    ladies: list[dict[str, Any]] = []
    for p in args.ranks:
        copies, start = [c for c in range(1, p + 1) if p % c == 0], time.perf_counter()
        bulk = -(-args.minibatches // p)
        ranks = run_ranks(
            sample, p, graph, train, samplers, args.batch, bulk, copies, timeout_s=600.0, group_timeout_s=300.0
        )
        for c in copies:
            for sampler, whole in zip(samplers, serial):
                of = [next(r for r in rank if (r["c"], r["sampler"]) == (c, sampler.name)) for rank in ranks]
                if [r["digest"] for r in of] != [digest(share) for share in shared_out(whole, p)]:
                    report["problems"].append(
                        f"{sampler.name}, p = {p}, c = {c}: minibatches are not those of the whole graph"
                    )
                if sampler is samplers[0]:
                    hops += per_hop(args, graph, whole, p, c, of)
                else:
                    ladies.append(ladies_total(graph, whole, p, c, of))
        print(f"  {p} ranks: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    show(args, graph, hops, ladies)
    report["words"] = {"hops": hops, "ladies": ladies}
    for r in hops:
        if not r["exact"]:
            told = next((n, a, b) for n, (a, b) in enumerate(zip(r["seen"], r["wanted"])) if a != b)
            report["problems"].append(
                f"p = {r['p']}, c = {r['c']}, hop {r['hop']}: rank {told[0]} sent {told[1]}, implied are {told[2]}"
            )


def show(args: argparse.Namespace, graph: Graph, hops: list[dict[str, Any]], ladies: list[dict[str, Any]]) -> None:
    """Two tables. Grids with c = p are left out of them: nothing travels there, which is checked."""
    print(
        f"\nWORDS: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges; "
        f"{args.minibatches} minibatches of {args.batch} in one bulk,"
    )
    print(
        f"fanout {','.join(map(str, args.fanout))}; words of {WORD} bytes sent by a rank: mean, and the busiest rank's"
    )
    print(f"{'p':>3}{'c':>4}{'hop':>5}{'R':>9}{'words':>9}{'formula':>9}{'ratio':>7}{'busiest':>9}{'exact':>7}", end="")
    print(f"{'messages':>10}{'waits':>7}{'rows: R d/p':>13}{'times':>7}")
    for r in hops:
        if r["c"] < r["p"]:
            messages, waits = (max(s[key] for s in r["seen"]) for key in ("messages", "waits"))
            ratio, times = r["words"] / r["formula"], r["row_words"] / r["words"]
            print(
                f"{r['p']:>3}{r['c']:>4}{r['hop']:>5}{r['rows']:>9,}{r['words']:>9,.0f}{r['formula']:>9,.0f}"
                f"{ratio:>7.2f}{r['busiest']:>9,.0f}"
                f"{'yes' if r['exact'] else 'NO':>7}{messages:>10}{waits:>7}{r['row_words']:>13,.0f}{times:>7.1f}"
            )
    print(f"\nLADIES, {','.join(map(str, args.sizes))} nodes; all hops together")
    print(f"{'p':>3}{'c':>4}{'R':>9}{'words':>9}{'messages':>10}{'waits':>7}{'rows: R d/p':>13}{'times':>7}")
    for r in ladies:
        if r["c"] < r["p"]:
            print(
                f"{r['p']:>3}{r['c']:>4}{r['rows']:>9,}{r['words']:>9,.0f}{r['messages']:>10}{r['waits']:>7}"
                f"{r['row_words']:>13,.0f}"
                f"{r['row_words'] / r['words']:>7.1f}"
            )
