"""Links on isolated ranks: against dense autograd in float64 of what each rank sees, what crosses the network, and that
going on does not show."""

from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.records import negatives_of
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import QueueEnd
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member
from millrace.pipeline.training.lost_ranks import _seeds_of
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.assignment import isolated_plan
from millrace.stages.comm.gloo import ring_bytes, sum_waits
from millrace.stages.evaluate.link_metrics import PairsOfSet, known_of, link_metrics
from millrace.stages.feed.link_feed import LocalLinks
from millrace.stages.feed.local_feed import QUIET
from millrace.stages.links.plan import LinkPlan
from millrace.stages.links.train_pairs import Negatives, TrainPairs
from millrace.stages.losses import NamedLoss
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.stages.partition.base import Cut
from millrace.stages.partition.stage import cut_dataset, open_part
from millrace.stages.placement.chunk_schedule import ChunkSchedule
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import Interrupted
from millrace.storage.links.pairs import Pairs, SeenPairs
from millrace.storage.minibatch import Block
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.full_batch import make_case
from millrace.tests.contracts.graphs import links_of_multi_edges
from millrace.tests.contracts.isolated import CasePeers, as_job
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.thread_ranks import run_threads

EPOCHS, EVERY = 2, 1
TABLE = {
    "epochs": EPOCHS, "seed": 3, "threads": 1, "system": "grappa", "dtype": "float64", "check": True,
    "train": {"batch_size": 24, "lr": 0.02}, "link": {"width": 8, "num_negatives": 2},
    "sampler": {"fanout": [-1, -1]},
    "model": {"name": "gcn", "hidden": 8, "layers": 2, "dropout": 0.0},
    "partition": {"method": "hash"}, "queue": {"bulk_size": 2},
}  # fmt: skip
WAYS = {
    "dealt": (2, {"chunks": 2, "reshuffle_fraction": 0.5}, "destinations"),
    "halo": (3, {}, "uniform"),
    "none": (3, {"halo": 0, "correction": "node"}, "degree"),
}
"""Ranks, options and negatives."""


@pytest.fixture(scope="module")
def links():
    return links_of_multi_edges(60)


def job_of(way):
    ranks, options, law = WAYS[way]
    link = {**TABLE["link"], "negatives": law, **({"negative_ends": "both"} if law == "destinations" else {})}
    return resolve({**TABLE, "ranks": ranks, "link": link, "grappa": {"repartition_every": EVERY, **options}})


def train(group, links, runs):
    """By way: what the rank had sent before, and the reports of the whole run and of one that was stopped in the second
    super-epoch and went on."""
    found = {}
    for number, (job, out, parts, fingerprint, stop_after) in enumerate(runs):
        if group.rank >= job.ranks:
            continue
        own, way = group.sub(f"{number}", range(job.ranks)), out.name.removesuffix("-parted")
        ledger = own._ledger
        counted = {"bytes": ledger.get("network", "gradients"), "waits": ledger.waits()["network"]["gradients"]}
        prepared = prepare_part(
            job, CutData(Outline.from_dataset(links, job), parts, own.rank, fingerprint), dataset=links
        )
        asked = iter(range(1, 1 << 30))
        with suppress(Interrupted) if stop_after else nullcontext():
            report = train_and_evaluate(
                prepared, out, QueueEnd(), Member(own, ledger, Clock()),
                Control(stop=lambda asked=asked, last=stop_after: next(asked) == last),
            )  # fmt: skip
            assert not stop_after
            found.setdefault(way, [counted]).append(asdict(report))
        own.close()
    return found


class Seen:
    """View of a rank in a super-epoch, found edge by edge."""

    def __init__(self, links, job, folder, rank, phase):
        m = job.grappa.chunks
        deal = ChunkSchedule(job.seed, job.ranks, m, job.grappa.reshuffle_fraction)
        owned = [open_part(folder, c)[0].owned for c in range(m * job.ranks)]
        chunks = [*deal.base(rank, phase), *deal.variable(rank, phase)]
        ids = np.concatenate([owned[c] for c in chunks]).tolist()
        here, own = set(ids), set(ids[: sum(len(owned[c]) for c in chunks[:m])])
        graph = links.graph
        edges = zip(graph.indices.tolist(), dst_of(graph).tolist(), graph.edge_weight.tolist())
        edges = [(u, v, w) for u, v, w in edges if v in here and (job.grappa.halo or u in here)]
        self.ids, around = ids, sorted({u for u, _, _ in edges} - here)
        self.nodes = ids + around
        at = {v: i for i, v in enumerate(self.nodes)}
        u, v, w = (np.array(column) for column in zip(*((at[a], at[b], c) for a, b, c in edges)))
        self.graph = mr.from_edges(u, v, len(self.nodes), edge_weight=w)
        train = links.labels[links.split.train, :2].tolist()
        pairs = np.array([[at[a], at[b]] for a, b in train if a in here and b in own])
        ends = tuple(np.unique([at[a] for a in links.labels[:, i].tolist() if a in here]) for i in (0, 1))
        none = np.empty((0, 2), np.int64)
        self.pairs = TrainPairs(self.graph, pairs, negatives_of(job), none, num_nodes=len(ids), ends=ends)
        present, whole = np.bincount(dst_of(self.graph), minlength=len(ids))[: len(ids)], graph.in_degree[ids]
        self.coverage = np.where(whole > 0, present / np.maximum(whole, 1), 1.0)
        self.degree = graph.degree[self.nodes]
        self.x = torch.from_numpy(links.features.gather(np.array(self.nodes))).double()

    def scores(self, model, pairs):
        """Scores of pairs in the graph without their own edges."""
        own, n = {p for u, v in pairs[:, 0].tolist() for p in ((u, v), (v, u))}, len(self.nodes)
        src, dst, weight = self.graph.indices, dst_of(self.graph), self.graph.edge_weight
        keep = np.array([edge not in own for edge in zip(src.tolist(), dst.tolist())])
        lost = np.bincount(dst[~keep], weight[~keep], minlength=n)
        left = mr.from_edges(src[keep], dst[keep], n, edge_weight=weight[keep])
        block = Block(n, np.arange(n), left.indptr, left.indices.astype(np.int32), left.edge_weight)
        h = self.x
        for i in range(2):
            h = model.layer(i, BlockNeighbourhood(block, torch.from_numpy(self.degree - lost)), h)
        return model.decoder(h[pairs[..., 0]], h[pairs[..., 1]])


def dst_of(graph):
    return np.repeat(np.arange(graph.num_nodes), graph.in_degree)


def by_autograd(links, job, folder, model):
    """Train the model on what ranks see, step by step. Returns the number of steps."""
    adam, loss, taken = torch.optim.Adam(model.parameters(), lr=0.02), NamedLoss("link", "bce"), 0
    for epoch in range(EPOCHS):
        if epoch % EVERY == 0:
            seen = [Seen(links, job, folder, r, epoch // EVERY) for r in range(job.ranks)]
            steps = max(-(-len(s.pairs.pairs) // 24) for s in seen)
        plans = []
        for r, s in enumerate(seen):
            p = isolated_plan(np.arange(len(s.pairs.pairs)), 24, 2, 3, steps, r)
            plans.append(LinkPlan(p.seeds, p.batch_size, p.bulk_size, p.seed, links=s.pairs))
        for index in range(steps):
            total, count = 0.0, 0.0
            for s, plan in zip(seen, plans):
                pairs = plan.pairs(index, epoch)
                if len(pairs):
                    assert pairs.max() < len(s.ids)
                    weight = s.coverage[pairs].mean((1, 2))
                    if job.grappa.correction == "batch":
                        weight = np.full(len(pairs), weight.mean())
                    losses = loss(s.scores(model, pairs), torch.zeros(len(pairs), dtype=torch.int64))
                    total, count = total + losses @ torch.from_numpy(weight), count + weight.sum()
            adam.zero_grad()
            (total / count).backward()
            adam.step()
        taken += steps
    return taken


def test_isolated_ranks_train_their_pairs_send_gradients_and_go_on(links, tmp_path):
    runs = []
    for way in WAYS:
        job, parts = job_of(way), tmp_path / f"{way}-parts"
        prepared = prepare(job, links)
        cut, count = prepared.system.partition.partitioner, prepared.system.parts_before(job.ranks)
        cut_dataset(links, Cut(cut, count, job.seed), parts)
        for name, stop_after in ((way, 0), *([(f"{way}-parted", 6), (f"{way}-parted", 0)] if way == "dealt" else [])):
            (tmp_path / name).mkdir(exist_ok=True)
            runs.append((job, tmp_path / name, parts, prepared.fingerprint, stop_after))
    reports = run_ranks(train, 3, links, runs)
    for way in WAYS:
        job, parameters = job_of(way), last_parameters(tmp_path / way)
        model = prepare(job, links).model.build()
        steps = by_autograd(links, job, tmp_path / f"{way}-parts", model)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(parameters[key], value, rtol=1e-8, atol=1e-9)
        known, metrics = known_of(links.graph, links.labels), ("mrr", "hits@10", "auc", "average_precision")
        best = prepare(job, links).model.build()
        best.load_state_dict(torch.load(tmp_path / way / "model.pt", weights_only=True))
        order = PairsOfSet(links.labels, links.split.test, "test"), metrics, known
        expected = link_metrics(best.decoder, mr.infer(best, links), *order).values
        numbers = sum(p.numel() for p in model.parameters()) + 2
        for r in range(job.ranks):
            before, whole, *again = reports[r][way]
            assert whole["test_metrics"] == pytest.approx(expected, abs=1e-9)
            for other in again:
                assert other["parameters_sha256"] == whole["parameters_sha256"]
                assert other["test_metrics"] == whole["test_metrics"]
            sent, waits = (whole[k]["network"]["gradients"] - before[k] for k in ("bytes", "waits"))
            assert sent == steps * ring_bytes(numbers, 8, r, job.ranks)
            assert waits == steps * sum_waits(numbers, job.ranks, "gradients")
            assert [whole["bytes"]["network"][kind] for kind in QUIET] == [0, 0, 0]


def test_one_rank_trains_as_bulk_does(links, tmp_path):
    """Bit for bit, with each law of negatives that there is."""
    more = {"sampler": {"fanout": [3, 2]}, "link": {"width": 8, "negatives": "degree", "negative_ends": "both"}}
    found = [
        mr.run(links, config={**TABLE, **more, **system}, out=tmp_path / system["system"], verbose=False)
        for system in (
            {"system": "grappa", "grappa": {"repartition_every": EVERY}},
            {"system": "bulk", "partition": {}},
        )
    ]
    assert found[0].parameters_sha256 == found[1].parameters_sha256
    assert found[0].test_metrics == found[1].test_metrics
    assert not sum(found[0].bytes["network"].values())


def test_ranks_without_pairs_or_negatives_say_so():
    ring = mr.from_edges(np.arange(6), (np.arange(6) + 1) % 6, 6)
    labels = np.array([[0, 1, 0], [2, 3, 0], [4, 5, 1]])
    pairs = Pairs(labels, {"train": np.arange(2)})

    def told(law, ids, own, count=2):
        """Notes of the ranks, of which the first sees `ids`, and the others nothing."""
        said = []

        def rank(group):
            seen = SeenPairs.from_pairs(pairs, np.array([] if group.rank else ids, np.int64), own)
            place = SimpleNamespace(graph=ring, seeds=np.arange(len(seen.pairs)), seen=seen)
            of = as_job(group, batch_size=2, minibatches_per_step=count, tell=said.append)
            LocalLinks(NeighborSampler((2,)), negatives=Negatives(law)).num_minibatches(place, of)

        run_threads(rank, count)
        return said

    assert told("uniform", [0, 1, 2, 3], 4) == []
    assert told("uniform", [0, 1, 2], 3) == ["1 of 2 train pairs have both ends on one rank, and train now"]
    with pytest.raises(mr.InputError, match="no rank sees both ends of a train pair"):
        told("uniform", [0, 1, 2], 1)
    assert told("given", [1, 0, 4, 5], 1) == told("uniform", [0, 1, 2], 3)
    with pytest.raises(mr.InputError, match="'given', but there is none for 1 rank, which see"):
        told("given", [1, 0, 4], 1)


def test_a_lost_rank_is_recorded_with_its_pairs():
    case, pairs = make_case(11, 3), np.arange(8).reshape(4, 2)
    labels = np.insert(pairs % case.graph.num_nodes, 2, 0, axis=1)
    part = CasePeers(case).own(0)
    assert _seeds_of(1, part) == (int((case.part_of[case.split.train] == 1).sum()), "seeds")
    of_links = replace(part, pairs=Pairs(labels, {"train": np.arange(3)}))
    assert _seeds_of(1, of_links) == (int((case.part_of[labels[:3, 1]] == 1).sum()), "train pairs")
