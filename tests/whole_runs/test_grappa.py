"""Runs of system `grappa`: isolated ranks that send each other gradients, what they send, and that going on does not
show."""

import copy
import gc
import json
import re
import shutil
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import millrace as mr
from millrace.pipeline.config.load import read_toml, resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.config.schema import Train
from millrace.pipeline.config.systems import System
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.run_folder import CHECKPOINTS, MODEL
from millrace.pipeline.systems.grappa import grappa
from millrace.pipeline.training.step import StepRunner
from millrace.stages.comm.gloo import ring_bytes
from millrace.stages.comm.solo import Solo
from millrace.stages.feed.local_feed import QUIET, Local, nothing
from millrace.stages.forward_backward import forward_backward
from millrace.stages.messages import Phase
from millrace.stages.models.base import ModelConfig
from millrace.stages.models.gat import GAT
from millrace.stages.models.gcn import GCN
from millrace.stages.models.sage import SAGE
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.metis import Metis
from millrace.stages.partition.stage import open_part, open_shards, partition_dataset
from millrace.stages.placement.chunk_schedule import ChunkSchedule
from millrace.stages.placement.chunks import Chunks
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.stages.schedule.policies import SuperEpochs
from millrace.storage.minibatch import Block
from millrace.tests.contracts.accuracies import evaluate
from millrace.tests.contracts.command import command
from millrace.tests.contracts.full_batch import C, Case, F, job, make_case
from millrace.tests.contracts.isolated import as_job, names, placed, train_processes, train_threads
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.oracles.sampling import backend as reference

NODES, EPOCHS, EVERY, BATCH = 120, 5, 2, 8
"""Three super-epochs, the last one cut short."""
JOB: dict[str, Any] = {
    "epochs": EPOCHS, "layers": 2, "hidden": 6, "dropout": 0.3, "lr": 0.05, "seed": 3, "threads": 1, "fanout": [4, 3],
    "batch_size": BATCH,
}  # fmt: skip
TABLE: dict[str, Any] = {
    "epochs": EPOCHS, "seed": 3, "ranks": 2, "check": True, "model": {"hidden": 6, "layers": 2, "dropout": 0.3},
    "sampler": {"fanout": [4, 3]}, "train": {"lr": 0.05, "batch_size": BATCH}, "partition": {"method": "hash"},
    "grappa": {"repartition_every": EVERY},
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def dataset():
    return mr.open_dataset(f"sbm:nodes={NODES},classes=3,degree=6,features={F},train=0.4", seed=1)


@pytest.fixture(scope="module")
def store(dataset, tmp_path_factory):
    """The dataset as every process can open it."""
    path = tmp_path_factory.mktemp("data") / "store"
    mr.write_dataset(path, dataset, features_format="npy", graph_format="npy")
    return path


# --- one rank ---


@pytest.fixture(scope="module")
def bulk(dataset, tmp_path_factory):
    return mr.run(dataset, system="bulk", out=tmp_path_factory.mktemp("bulk") / "run", **JOB)


@pytest.mark.parametrize("correction", ["none", "batch", "node"])
def test_one_rank_trains_as_bulk_does(dataset, bulk, tmp_path, correction):
    """Bit for bit, over switches of super-epochs: the optimiser goes on too."""
    told = []
    options = {"correction": correction, "repartition_every": EVERY}
    result = mr.run(dataset, system="grappa", grappa=options, out=tmp_path / "run", emit=told.append, check=True, **JOB)
    assert result.train_loss == pytest.approx(bulk.train_loss, rel=1e-6)
    assert (result.val_accuracy, result.test_accuracy, result.best_epoch) == (
        bulk.val_accuracy,
        bulk.test_accuracy,
        bulk.best_epoch,
    )
    assert (result.minibatches, result.sampled_edges) == (bulk.minibatches, bulk.sampled_edges)
    notes = [e.text for e in told if type(e).__name__ == "Note"]
    assert [n for n in notes if n.startswith("phase")] == [f"phase {t} of 3: super-epoch {t}" for t in (1, 2, 3)]
    assert not sum(result.bytes["network"].values())
    assert result.parameters_sha256 == bulk.parameters_sha256


def checkpoint_names(run):
    return sorted(p.name for p in (run / CHECKPOINTS).glob("step-*"))


def test_one_rank_goes_on_bit_for_bit(dataset, bulk, tmp_path):
    """Stopped in the middle of an epoch; and from every checkpoint of a finished run, those at switches too."""
    out, asked = tmp_path / "run", iter(range(100))
    options = {
        **JOB,
        "system": "grappa",
        "grappa": {"repartition_every": EVERY},
        "out": out,
        "checkpoint": {"every_steps": 1, "keep": 1000},
    }
    assert mr.run(dataset, stop=lambda: next(asked) == 3, **options).status == "stopped"
    assert mr.run(dataset, resume=True, **options).parameters_sha256 == bulk.parameters_sha256
    steps = bulk.minibatches // EPOCHS
    cursors = [(t, s) for t, epochs in enumerate((2, 2, 1)) for s in range(epochs * steps + 1) if (t, s) != (0, 0)]
    assert checkpoint_names(out) == sorted(f"step-{t}-{s}" for t, s in cursors)
    for last in ((0, 2 * steps), (1, 0), (1, steps + 2), (2, 0)):
        for t, s in cursors:
            if (t, s) > last:
                shutil.rmtree(out / CHECKPOINTS / f"step-{t}-{s}", ignore_errors=True)
        result = mr.run(dataset, resume=True, **options)
        assert (result.parameters_sha256, result.epochs) == (bulk.parameters_sha256, EPOCHS), last


def test_more_epochs_go_on_in_the_super_epoch_that_was_cut_short(dataset, tmp_path):
    options = {**JOB, "system": "grappa", "grappa": {"repartition_every": EVERY}}
    whole = mr.run(dataset, out=tmp_path / "whole", **{**options, "epochs": EPOCHS + 2})
    mr.run(dataset, out=tmp_path / "run", **options)
    more = mr.run(dataset, out=tmp_path / "run", resume=True, **{**options, "epochs": EPOCHS + 2})
    assert more.parameters_sha256 == whole.parameters_sha256


# --- schedule and configuration ---


@pytest.mark.parametrize(("epochs", "every"), [(1, 50), (50, 50), (7, 3), (6, 3), (3, 1)])
def test_super_epochs_cover_all_epochs(epochs, every):
    phases = SuperEpochs(every).phases(epochs, nn.Identity())
    assert [e for p in phases for e in range(p.first_epoch, p.last_epoch)] == list(range(epochs))
    assert [p.number for p in phases] == list(range(len(phases)))
    assert all(p.epochs == every for p in phases[:-1])
    assert not any(p.fresh_optimizer for p in phases)


def test_records_become_the_configuration():
    options = {
        "chunks": 4, "rotation": "fixed", "reshuffle_fraction": 0.5, "repartition_every": 3, "halo": 0,
        "ahead": False, "correction": "node", "shrink": "empirical",
    }  # fmt: skip
    system = grappa(LaborSampler((4, 2)), partitioner=Contiguous(), **options)
    found = configure({}, system=system, model=mr.GCN(layers=2))
    assert (found.system, found.partition.method, found.sampler["name"], found.sampler["fanout"]) == (
        "grappa",
        "contiguous",
        "labor",
        [4, 2],
    )
    assert found.grappa.model_dump() == options | {"full_batch": False}
    assert configure({}, system="grappa").grappa == configure({}, system=grappa()).grappa
    assert configure({}, system="grappa").partition == configure({}, system=grappa()).partition
    again = make_system(found)
    cut = again.partition
    assert (cut.rotation, cut.halo, cut.per_rank, cut.reshuffle_fraction, cut.ahead, cut.partitioner.name) == (
        "fixed",
        0,
        4,
        0.5,
        False,
        "contiguous",
    )
    assert [again.parts_before(r) for r in range(4)] == [0, 4, 8, 12]
    assert (again.sample, again.fetch, again.reduce, again.schedule) == (
        system.sample,
        system.fetch,
        system.reduce,
        system.schedule,
    )
    assert not again.reduce.by_batch
    assert grappa().reduce.by_batch


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (
            {"queue": {"kind": "zarr"}},
            "system 'grappa' lets each rank sample for itself: only queue.bulk_size is used",
        ),
        (
            {"minibatches_per_step": 2},
            "'train.minibatches_per_step' is 2, but under system 'grappa' each of the 1 ranks",
        ),
        ({"grappa": {"rotation": "fresh"}}, "'grappa.rotation' is 'fresh': input should be 'sweep', 'fixed' or 'none'"),
        ({"grappa": {"correction": "nodes"}}, "'grappa.correction' is 'nodes'"),
        (
            {"grappa": {"correction": "hops"}},
            "'grappa.correction' is 'hops': input should be 'none', 'batch' or 'node'",
        ),
        ({"grappa": {"shrink": "james-stein"}}, "is 'james-stein': input should be 'none' or 'empirical'"),
        ({"grappa": {"halo": 2}}, "'grappa.halo' is 2"),
        ({"grappa": {"repartition_every": 0}}, "'grappa.repartition_every' is 0"),
        ({"grappa": {"chunks": 0}}, "'grappa.chunks' is 0"),
        ({"grappa": {"reshuffle_fraction": 1.1}}, "'grappa.reshuffle_fraction' is 1.1"),
        ({"grappa": {"reshuffle_fraction": -0.1}}, "'grappa.reshuffle_fraction' is -0.1"),
        (
            {"grappa": {"kappa": 1.0}},
            "unknown configuration key 'grappa.kappa'; it was removed: no correction did better than none",
        ),
        ({"grappa": {"rotatoin": "fixed"}}, "unknown configuration key 'grappa.rotatoin'.*did you mean"),
        ({"grappa": {"rotation": "x", "shrink": "y", "halo": 3, "repartition_every": -1}}, "'grappa.rotation' is 'x'"),
        ({"features": "owned"}, "features is 'owned', but system 'grappa'"),
        ({"samples": "samples"}, "--samples is samples, but system 'grappa'"),
        ({"partition": {"method": "metiss"}}, "did you mean 'metis'"),
        (
            {"sampler": {"name": "neighbor", "fanout": [2, 2], "weighted": True}},
            "the sampler is weighted but the graph has no edge weights",
        ),
        ({"ranks": 2, "executor": "inline"}, "one process holds one rank"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(dataset, tmp_path, options, phrase):
    with pytest.raises(mr.InputError, match=phrase) as caught:
        mr.run(dataset, out=tmp_path / "run", **{"system": "grappa", "layers": 2, "epochs": 1, **options})
    assert 1 <= len(str(caught.value).splitlines()) <= 3
    assert not (tmp_path / "run").exists()


def test_a_step_is_one_minibatch_of_each_rank_without_a_configuration_too():
    def rank(group: ThreadGroup) -> None:
        Local(NeighborSampler((2,))).num_minibatches(place_of(5), as_job(group, batch_size=2, minibatches_per_step=3))

    with pytest.raises(
        mr.InputError, match="each of the 2 ranks trains on one minibatch of its own in every step; leave it out"
    ):
        run_threads(rank, 2)


def test_a_step_may_be_given_where_it_is_the_ranks():
    assert (
        resolve({"system": "grappa", "ranks": 3, "train": {"minibatches_per_step": 3}}).train.minibatches_per_step == 3
    )


# --- minibatches of one's own ---


def place_of(seeds: int) -> Any:
    """A ring with so many train nodes."""
    n = 12
    graph = mr.from_edges(np.arange(n), (np.arange(n) + 1) % n, n)
    return SimpleNamespace(graph=graph, seeds=np.arange(seeds))


@pytest.mark.parametrize("seeds", [[7, 3, 0], [2, 12, 1], [5], [0, 0, 4]])
def test_each_rank_goes_through_its_own_seeds(seeds):
    """Once an epoch, in as many steps as the others, and from the middle as from the beginning."""
    batch, layers = 2, 2
    steps = -(-max(seeds) // batch)

    def rank(group: ThreadGroup) -> Any:
        local, place = Local(NeighborSampler((2,) * layers)), place_of(seeds[group.rank])
        of = as_job(group, batch_size=batch, bulk_size=2, seed=5, kernel=reference)
        assert local.num_minibatches(place, of) == steps * group.size
        seen: dict[tuple[int, int, int], Any] = {}
        # At the end of every rank's own minibatches another one may still go on.
        firsts = [(e, s) for e in (2, 3) for s in range(steps)]
        for first in firsts:
            feed = local.feed(place, Phase(0, 2, 4), of, (first[0], first[1] * group.size))
            for epoch, step in firsts[firsts.index(first) :]:
                index = step * group.size + group.rank
                work = feed.get(epoch, index).check()
                assert (work.epoch, work.index, len(work.blocks)) == (epoch, index, layers)
                assert len(work.seeds) <= batch
                key, nodes = (
                    (epoch, step, 0),
                    [work.seeds.tolist(), work.nodes.tolist(), work.blocks[0].indices.tolist()],
                )
                assert seen.setdefault(key, nodes) == nodes, "as before"
                feed.release(epoch, step * group.size + group.size - 1)
            feed.close()
            feed.close()
        return seen

    for r, seen in enumerate(run_threads(rank, len(seeds))):
        for epoch in (2, 3):
            drawn = [v for s in range(steps) for v in seen[epoch, s, 0][0]]
            assert sorted(drawn) == list(range(seeds[r]))
            # Whoever has minibatches for all steps has no empty one among them.
            assert seeds[r] < steps or all(seen[epoch, s, 0][0] for s in range(steps))


def test_chunks_do_not_share_their_draws():
    def rank(group: ThreadGroup) -> Any:
        feed = Local(NeighborSampler((1,))).feed(
            SimpleNamespace(graph=dense, seeds=np.arange(12)),
            Phase(0, 0, 1),
            as_job(group, batch_size=12, kernel=reference),
            (0, 0),
        )
        work = feed.get(0, group.rank)
        feed.close()
        return work.seeds.tolist(), work.blocks[0].src[work.blocks[0].indices].tolist()

    dense = mr.from_edges(*np.indices((12, 12)).reshape(2, -1), 12)
    seen = run_threads(rank, 3)
    assert len({tuple(s) for s, _ in seen}) == len({tuple(d) for _, d in seen}) == 3


@pytest.mark.parametrize("kind", [*QUIET, "gradients", "control"])
def test_a_feed_notices_what_must_not_have_travelled(kind):
    def rank(group: ThreadGroup) -> None:
        feed = Local(NeighborSampler((2,))).feed(place_of(4), Phase(0, 0, 1), as_job(group, kernel=reference), (0, 0))
        group.ledger.add("evaluation", "features", 9)
        group.ledger.add("network", kind, 1)
        feed.close()

    if kind in QUIET:
        with pytest.raises(AssertionError, match="an isolated phase moved"):
            run_threads(rank, 1)
    else:
        run_threads(rank, 1)


def test_nothing_is_a_minibatch():
    work = nothing(3, 5, 2).check()
    assert (work.epoch, work.index, len(work.seeds), len(work.nodes), work.num_edges, len(work.blocks)) == (
        3,
        5,
        0,
        0,
        0,
        2,
    )


# --- ranks that are threads: on nasty graphs ---

CONFIGS: dict[str, ModelConfig] = {
    "gcn": GCN(hidden=5, layers=2, dropout=0.0),
    "sage": SAGE(hidden=5, layers=2, dropout=0.0),
    "gat": GAT(hidden=4, layers=2, heads=2, dropout=0.0),
}


def initial(kind: str, classes: int = C) -> nn.Module:
    torch.manual_seed(5)
    return CONFIGS[kind].build(F, classes).double()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


SAMPLERS = {
    "neighbor": NeighborSampler((2, 2)),
    "all": NeighborSampler((2, -1), expand="all"),
    "labor": LaborSampler((2, 2)),
    "ladies": LadiesSampler((4, 4)),
}


@given(
    case=st.builds(make_case, st.integers(0, 10**6), st.sampled_from([2, 3, 4]), st.booleans()),
    kind=st.sampled_from(list(CONFIGS)),
    sampler=st.sampled_from(list(SAMPLERS)),
    rotation=st.sampled_from(["sweep", "fixed", "none"]),
    halo=st.sampled_from([0, 1]),
    correction=st.sampled_from(["none", "batch", "node"]),
    shrink=st.sampled_from(["none", "empirical"]),
    batch=st.sampled_from([1, 3]),
    dealt=st.sampled_from([(1, 0.0), (1, 1.0), (2, 0.0), (2, 0.5), (3, 1.0)]),
)
@example(
    make_case(1, 2), "sage", "neighbor", "sweep", 0, "batch", "none", 1, (1, 0.0)
)  # one node with loops, and a rank without any
@example(make_case(2, 3), "gcn", "neighbor", "sweep", 1, "batch", "empirical", 1, (1, 0.0))  # no edges
@example(make_case(3, 4), "gat", "all", "sweep", 0, "batch", "empirical", 1, (2, 1.0))  # dense
@example(make_case(4, 3), "sage", "labor", "sweep", 1, "node", "none", 1, (1, 1.0))  # all nodes in one part
@example(make_case(5, 3), "sage", "ladies", "fixed", 0, "none", "none", 1, (2, 0.5))  # all train nodes in one part
@example(make_case(8, 2), "gcn", "neighbor", "none", 0, "node", "none", 1, (3, 1.0))  # chunks without nodes
@settings(deadline=None, max_examples=12)
def test_nasty_graphs_train(case, kind, sampler, rotation, halo, correction, shrink, batch, dealt):
    """No rank waits for ever, no number is lost, and all ranks end with the same parameters."""
    size, per_rank = case.parts, dealt[0]
    many = np.random.default_rng(0).integers(0, per_rank, case.graph.num_nodes)
    case = replace(case, part_of=case.part_of * per_rank + many, parts=size * per_rank)
    options = {
        "chunks": per_rank,
        "reshuffle_fraction": dealt[1],
        "rotation": rotation,
        "halo": halo,
        "correction": correction,
        "shrink": shrink,
    }
    system = grappa(SAMPLERS[sampler], repartition_every=1, **options)
    train, epochs = Train(lr=0.05, batch_size=batch), 3
    if not len(case.split.train):
        with pytest.raises(mr.InputError, match="train split is empty"):
            train_threads(case, system, initial(kind), epochs, train)
        return
    ranks = train_threads(case, system, initial(kind), epochs, train)
    per_chunk = np.bincount(case.part_of[case.split.train], minlength=case.parts)
    deal = ChunkSchedule(7, size, per_rank, dealt[1], rotation)
    steps = [max(-(-per_chunk[list(deal.base(p, t))].sum() // batch) for p in range(size)) for t in range(epochs)]
    for progress, model, group in ranks:
        assert torch.equal(flat(model), flat(ranks[0][1]))
        assert torch.isfinite(flat(model)).all()
        assert all(np.isfinite(h["train_loss"]) for h in progress.history)
        assert len(progress.history) == epochs
        assert (progress.cursor.phase, progress.minibatches) == (epochs - 1, sum(steps))
        assert not sum(group.ledger.get("network", kind) for kind in QUIET)


def test_what_earlier_super_epochs_saw_is_given_back(monkeypatch):
    """While one trains, the rows of those before it are not there; no collector is needed to find them."""
    place, seen = Chunks.place, {}

    def watched(self, data, phase, job, before=None):
        mine = seen.setdefault(job.group.rank, [])
        assert [ref() is not None for ref in mine] == [False] * (len(mine) - 1) + [True] * bool(mine), (
            "the last one is handed on"
        )
        found = place(self, data, phase, job, before)
        mine.append(weakref.ref(found.features))
        return found

    monkeypatch.setattr(Chunks, "place", watched)
    # The first optimiser of a process imports torch's compiler, and an error within that import keeps the frames of all
    # that were calling, until they are collected. A rank leaves the compiler out.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    gc.collect()
    gc.disable()
    try:
        train_threads(
            make_case(8, 3),
            grappa(NeighborSampler((2, 2)), repartition_every=1),
            initial("sage"),
            4,
            Train(batch_size=4),
        )
    finally:
        gc.enable()
    assert [len(refs) for refs in seen.values()] == [4] * 3


def one_step(case: Case, system: System, model: nn.Module, lr: float) -> np.ndarray:
    """The gradient that a step of all seeds is taken along."""
    before = flat(model)
    after = flat(train_threads(case, system, model, 1, Train(optimizer="sgd", lr=lr, batch_size=1000))[0][1])
    return ((before - after) / lr).numpy()


def test_pieces_that_were_begun_while_gradients_travelled_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    case, taken = make_case(59, 2), []  # three and four train nodes
    taken_up = StepRunner._take_begun

    def follow(loop: Any, epoch: int, index: int) -> Any:
        found = taken_up(loop, epoch, index)
        taken.append(found[0] is not None)
        if index + case.parts < loop.steps.minibatches:
            # Whether the next piece is there when it is asked for is not left to chance.
            loop.feed.get(epoch, index + case.parts)
        return found

    def trained() -> list[torch.Tensor]:
        taken.clear()
        system = grappa(NeighborSampler((2, 2)), repartition_every=2)
        return [flat(model) for _, model, _ in train_threads(case, system, initial("sage"), 4, Train(batch_size=1))]

    monkeypatch.setattr(StepRunner, "_take_begun", follow)
    early = trained()
    assert any(taken)
    monkeypatch.setattr(StepRunner, "_begin_next", lambda *_: None)
    late = trained()
    assert not any(taken)
    assert all(torch.equal(a, b) for a, b in zip(early, late, strict=True))


@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("correction", ["none", "batch", "node"])
@pytest.mark.parametrize(("seed", "parts", "kind"), [(0, 3, "sage"), (11, 3, "gcn"), (3, 4, "gat")])
def test_a_step_against_each_rank_by_itself(seed, parts, kind, correction, halo):
    """sum of w g over sum of w, with the gradient of each seed's loss on what its rank sees."""
    case, model = make_case(seed, parts), initial(kind)
    system = grappa(NeighborSampler((-1, -1)), halo=halo, correction=correction)
    total, count = np.zeros(len(flat(model))), 0.0
    for rank in range(parts):
        place = placed(case, system.partition, rank)
        solo = replace(job(Solo(), 2), batch_size=1000, kernel=reference)
        if not len(place.seeds):
            continue
        feed = system.sample.feed(place, Phase(0, 0, 1), solo, (0, 0))
        fetched = system.fetch.fetcher(place, solo, model).fetch(feed.get(0, 0))
        feed.close()
        weight = np.ones(len(fetched.y)) if fetched.weight is None else fetched.weight.numpy()
        if correction == "batch":
            weight = np.full(len(weight), place.coverage[place.seeds].numpy().mean())
        for i, w in enumerate(weight):
            alone, pick = copy.deepcopy(model), torch.zeros(len(weight), dtype=torch.float64)
            pick[i] = 1.0
            forward_backward(alone, fetched, 0, "multiclass", 1.0, weights=pick)
            total += w * torch.cat([p.grad.reshape(-1) for p in alone.parameters()]).numpy()
            count += w
    np.testing.assert_allclose(one_step(case, system, model, 0.01), total / count, rtol=1e-8, atol=1e-10)


def test_two_chunks_with_a_halo_are_all_there_is():
    """Each of two ranks then sees the whole graph: a step is that of one rank, whatever the correction."""
    case, model = make_case(11, 2), initial("sage")
    for rank in range(2):
        assert sorted(names(case, placed(case, grappa().partition, rank))) == list(range(case.graph.num_nodes))
    alone = make_case(11, 1)
    want = one_step(alone, grappa(NeighborSampler((-1, -1))), model, 0.01)
    for correction in ("none", "batch", "node"):
        for shrink in ("none", "empirical"):
            got = one_step(case, grappa(NeighborSampler((-1, -1)), correction=correction, shrink=shrink), model, 0.01)
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("correction", ["none", "batch", "node"])
@pytest.mark.parametrize("full_batch", [False, True])
@pytest.mark.parametrize(("seed", "kind"), [(0, "sage"), (11, "gcn"), (3, "gat")])
def test_full_batch_in_isolation(seed, kind, full_batch, correction, halo):
    """A full batch, or a minibatch of all seeds with every neighbour, is a step of the visible graph as a whole: each
    layer over all of it."""
    case, model = make_case(seed, 3), initial(kind)
    sampler = None if full_batch else NeighborSampler((-1, -1))
    system = grappa(sampler, halo=halo, correction=correction, full_batch=full_batch)
    assert len(case.split.train)
    total, weights = np.zeros(len(flat(model))), 0.0
    for rank in range(3):
        place = placed(case, grappa(halo=halo).partition, rank)
        graph, n = place.graph, place.graph.num_nodes
        whole = Block(n, np.arange(n), graph.indptr, graph.indices, weight=graph.edge_weight)
        neighbourhood = BlockNeighbourhood(whole, place.degree)
        alone, h = copy.deepcopy(model), torch.from_numpy(place.features.gather(np.arange(n)))
        seeds = torch.from_numpy(place.seeds)
        weight = place.coverage[seeds] if correction != "none" else torch.ones(len(seeds), dtype=torch.float64)
        weight = weight.mean().expand(len(seeds)) if correction == "batch" and len(seeds) else weight
        losses = nn.functional.cross_entropy(
            alone((neighbourhood, neighbourhood), h)[seeds], place.labels[seeds], reduction="none"
        )
        (weight * losses).sum().backward()
        total += torch.cat([p.grad.reshape(-1) for p in alone.parameters()]).numpy()
        weights += float(weight.sum())
    np.testing.assert_allclose(one_step(case, system, model, 0.01), total / weights, rtol=1e-8, atol=1e-10)


def test_a_full_batch_samples_nothing():
    with pytest.raises(mr.InputError, match="leave one of them out"):
        grappa(NeighborSampler((2, 2)), full_batch=True)
    table = {"system": "grappa", "grappa": {"full_batch": True}}
    assert make_system(resolve({**table, "ranks": 4})).sample.sampler is None
    for more, phrase in (
        ({"sampler": {"fanout": [2, 2]}}, "with full_batch samples nothing"),
        ({"train": {"batch_size": 7}}, "takes all train nodes in one step"),
        ({"queue": {"bulk_size": 3}}, "'queue' is given, but grappa.full_batch"),
    ):
        with pytest.raises(mr.InputError, match=phrase):
            resolve({**table, **more})


# --- ranks that are processes ---


@pytest.fixture(scope="module")
def three(dataset, tmp_path_factory):
    """Three ranks whose minibatches are weighed and shrunk."""
    table = {**TABLE, "ranks": 3, "grappa": {"repartition_every": EVERY, "halo": 0, "shrink": "empirical"}}
    reports = train_processes(dataset, tmp_path_factory.mktemp("three"), table)
    assert reports is not None
    return reports


@pytest.fixture(scope="module")
def two(dataset, tmp_path_factory):
    """Two ranks, stopped by nobody."""
    out = tmp_path_factory.mktemp("two")
    reports = train_processes(dataset, out, {**TABLE, "checkpoint": {"every_steps": 1, "keep": 1000}})
    assert reports is not None
    return SimpleNamespace(out=out, reports=reports)


def steps_of(dataset, ranks):
    """Steps in an epoch."""
    owner = Hash().assign(dataset.graph, ranks, TABLE["seed"]).part(dataset.split.train)
    return -(-int(np.bincount(owner, minlength=ranks).max()) // BATCH)


def num_parameters():
    return sum(p.numel() for p in SAGE(hidden=6, layers=2).build(F, 3).parameters())


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_all_that_crosses_the_network(request, dataset, ranks):
    """By the ledger: 2 (P - 1) / P x 4 bytes for each parameter, rank and step, and two numbers more, the weight and a
    flag."""
    reports = request.getfixturevalue("three") if ranks == 3 else request.getfixturevalue("two").reports
    steps, numbers = EPOCHS * steps_of(dataset, ranks), num_parameters() + 2
    assert steps > EPOCHS
    for r, report in enumerate(reports):
        network = report["bytes"]["network"]
        assert network["gradients"] == steps * ring_bytes(numbers, 4, r, ranks)
        # A ring's chunks are of equal size but for the last.
        assert abs(network["gradients"] / steps - 2 * (ranks - 1) / ranks * 4 * numbers) <= 8 * ranks
        assert [network[kind] for kind in QUIET] == [0, 0, 0]
        assert report["bytes"]["evaluation"]["activations"] > 0, "whoever evaluates sees all neighbours"
        assert report["bytes"]["store"]["features"] > 0
        assert report["parameters_sha256"] == reports[0]["parameters_sha256"]
    assert sum(r["bytes"]["network"]["gradients"] for r in reports) == steps * 2 * (ranks - 1) * 4 * numbers


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {"rotation": "none"}),
        (3, {}),
        (4, {"halo": 0.5, "chunks": 2, "reshuffle_fraction": 0.5, "shrink": "empirical"}),
    ],
)
def test_full_batches_of_processes_go_on_bit_for_bit(dataset, tmp_path, ranks, options):
    """Ranks take one step an epoch, send nothing but gradients, and a run that was stopped in between ends the same;
    on four, half of the chunks move, half of the halo is there, and weights are shrunk."""
    table = {k: v for k, v in TABLE.items() if k != "sampler"}
    table |= {"ranks": ranks, "train": {"lr": 0.05}}
    table |= {"grappa": {"repartition_every": EVERY, "full_batch": True, **options}}
    whole, out = train_processes(dataset, tmp_path / "whole", table), tmp_path / "run"
    assert whole is not None
    for r, report in enumerate(whole):
        network = report["bytes"]["network"]
        assert [network[kind] for kind in QUIET] == [0, 0, 0]
        assert network["gradients"] == EPOCHS * ring_bytes(num_parameters() + 2, 4, r, ranks)
    assert train_processes(dataset, out, table, stop_after=EVERY + 1) is None
    again = train_processes(dataset, out, table)
    assert again is not None
    assert {r["parameters_sha256"] for r in again} == {r["parameters_sha256"] for r in whole}


def test_statistics_are_a_few_numbers_a_step(dataset, three, tmp_path):
    """Bytes that shrinking sends besides the gradients."""
    plain = train_processes(dataset, tmp_path, {**TABLE, "ranks": 3, "grappa": {"repartition_every": EVERY, "halo": 0}})
    assert plain is not None
    steps = EPOCHS * steps_of(dataset, 3)
    for r, (a, b) in enumerate(zip(three, plain)):
        more = a["bytes"]["network"]["control"] - b["bytes"]["network"]["control"]
        assert more == steps * ring_bytes(7, 8, r, 3)
    assert plain[0]["parameters_sha256"] != three[0]["parameters_sha256"]


def test_chunks_are_read_once(dataset, two, three, tmp_path):
    """Two ranks see the same two chunks all the time; three each see the third one too, and read the second one
    again."""
    for reports, ranks in ((two.reports, 2), (three, 3)):
        folder = tmp_path / f"{ranks}"
        partition_dataset(dataset, Hash(), ranks, folder, TABLE["seed"])
        graph = [open_shards(folder, p)[0].nbytes for p in range(ranks)]
        for r, report in enumerate(reports):
            seen = [*(ChunkSchedule(0, ranks).variable(r, t)[0] for t in range(3 if ranks > 2 else 1))]
            assert report["bytes"]["store"]["graph"] == graph[r] + sum(graph[q] for q in seen)


@pytest.mark.parametrize("after", ["a request to stop", "a loss at a switch"])
def test_two_ranks_go_on_bit_for_bit(dataset, two, tmp_path, after):
    out, steps = tmp_path / "run", steps_of(dataset, 2)
    if after == "a request to stop":
        assert train_processes(dataset, out, TABLE, stop_after=EVERY * steps + 1) is None
        assert checkpoint_names(out)[-1] == "step-1-1", "in the second super-epoch"
    else:
        shutil.copytree(two.out, out)
        for name in checkpoint_names(out):
            if tuple(map(int, name.split("-")[1:])) > (1, 0):
                shutil.rmtree(out / CHECKPOINTS / name)
        assert checkpoint_names(out)[-1] == "step-1-0", "before the first step of the second super-epoch"
    reports = train_processes(dataset, out, TABLE)
    assert reports is not None
    for report, whole in zip(reports, two.reports):
        assert report["parameters_sha256"] == whole["parameters_sha256"]
        assert report["bytes"]["network"]["gradients"] == whole["bytes"]["network"]["gradients"], "both lives together"
        assert [h["train_loss"] for h in report["history"]] == [h["train_loss"] for h in whole["history"]]


@pytest.fixture(scope="module")
def dealt():
    """Two ranks with three of six fine clusters each; half of them are dealt anew after each super-epoch."""
    options = {
        "repartition_every": EVERY,
        "chunks": 3,
        "reshuffle_fraction": 0.5,
        "halo": 0,
        "correction": "node",
    }
    return {**TABLE, "partition": {"method": "metis"}, "grappa": options}


def test_fine_clusters_are_regrouped_and_go_on_bit_for_bit(dataset, dealt, tmp_path):
    """Ranks read what the schedule says and evaluate as one process does, and a run that was stopped in between ends
    the same."""
    whole, out = train_processes(dataset, tmp_path / "whole", dealt), tmp_path / "run"
    assert whole is not None
    deal = ChunkSchedule(TABLE["seed"], 2, 3, 0.5)
    assert {deal.base(0, t) for t in range(3)} != {deal.base(0, 0)}
    shards = [open_shards(tmp_path / "whole" / "parts", c)[0] for c in range(6)]
    for r, report in enumerate(whole):
        # Two ranks of three chunks see all six, whoever has them.
        assert report["bytes"]["store"]["graph"] == sum(s.nbytes for s in shards)
        assert [report["bytes"]["network"][kind] for kind in QUIET] == [0, 0, 0]
        assert report["parameters_sha256"] == whole[0]["parameters_sha256"]
        assert report["test_accuracy"] == whole[0]["test_accuracy"], r
    module = SAGE(hidden=6, layers=2).build(F, 3)
    module.load_state_dict(torch.load(tmp_path / "whole" / MODEL, weights_only=True))
    degree = torch.from_numpy(dataset.graph.degree).float()
    assert whole[0]["test_accuracy"] == evaluate(module, dataset, degree, ("test",))["test"]

    train = dataset.split.train
    owner = Metis().assign(dataset.graph, 6, TABLE["seed"]).part(train)
    per_chunk = np.bincount(owner, minlength=6)
    first = max(-(-per_chunk[list(deal.base(p, 0))].sum() // BATCH) for p in range(2))
    assert train_processes(dataset, out, dealt, stop_after=int(EVERY * first) + 1) is None
    assert checkpoint_names(out)[-1] == "step-1-1", "in the second super-epoch"
    again = train_processes(dataset, out, dealt)
    assert again is not None
    for report, other in zip(again, whole):
        assert report["parameters_sha256"] == other["parameters_sha256"]
        assert [h["train_loss"] for h in report["history"]] == [h["train_loss"] for h in other["history"]]


# --- on a cluster ---


@pytest.fixture(scope="module")
def clustered(store, scheduler, tmp_path_factory):
    """Two ranks, from the command line."""
    out = tmp_path_factory.mktemp("clustered") / "run"
    code, said, err = command(
        "run", "--system", "grappa", "--dataset", store, "--epochs", EPOCHS, "--layers", 2, "--hidden", 6, "--dropout",
        0.3, "--lr", 0.05,
        "--seed", 3, "--fanout", "4,3", "--batch-size", BATCH, "--set", "threads=1", "--set", "partition.method=hash",
        "--set", f"grappa.repartition_every={EVERY}", "--set", "check=true", "--ranks", 2, "--scheduler", scheduler,
        "--out", out, "--json",
    )  # fmt: skip
    assert code == 0, err
    return SimpleNamespace(out=out, record=json.loads(said), err=err)


def test_a_cluster_trains_what_processes_train(clustered, two, dataset):
    record = clustered.record
    assert record == json.loads((clustered.out / "result.json").read_text())
    assert (record["status"], record["system"], record["ranks"], record["epochs"]) == ("done", "grappa", 2, EPOCHS)
    assert record["parameters_sha256"] == two.reports[0]["parameters_sha256"]
    assert record["bytes"]["network"]["gradients"] == sum(r["bytes"]["network"]["gradients"] for r in two.reports)
    assert [record["bytes"]["network"][kind] for kind in QUIET] == [0, 0, 0]
    assert record["minibatches"] == 2 * EPOCHS * steps_of(dataset, 2)
    assert record["test_accuracy"] == two.reports[0]["test_accuracy"]
    assert "phase 2 of 3: super-epoch 2" in clustered.err
    owned = [open_part(clustered.out / "parts", r)[0].owned for r in range(2)]
    assert sorted(np.concatenate(owned).tolist()) == list(range(NODES))
    found = resolve(read_toml(clustered.out / "job.toml"))
    assert (found.system, found.grappa.repartition_every, found.grappa.correction, found.sampler["fanout"]) == (
        "grappa",
        EVERY,
        "batch",
        [4, 3],
    )


def test_evaluate_and_inspect(clustered):
    code, said, err = command("evaluate", clustered.out, "--json")
    assert code == 0, err
    accuracy = json.loads(said)["accuracy"]
    assert (accuracy["val"], accuracy["test"]) == (clustered.record["val_accuracy"], clustered.record["test_accuracy"])
    code, said, err = command("inspect", clustered.out, "--json")
    assert (code, json.loads(said)["system"]) == (0, "grappa"), err


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["--set", "grappa.repartition_every=3"], "grappa.repartition_every (was 2, now 3)"),
        (["--set", "grappa.reshuffle_fraction=1.0"], "grappa.reshuffle_fraction (was 0.0, now 1.0)"),
        (["--set", "grappa.correction=node"], "grappa.correction (was batch, now node)"),
        (["--ranks", 3], "resume with --ranks 2"),
    ],
)
def test_a_run_goes_on_as_it_began(clustered, scheduler, words, phrase):
    words = [*words, "--scheduler", scheduler]
    code, _, err = command("run", "--resume", "--out", clustered.out, "--epochs", EPOCHS + 1, *words)
    assert (code, phrase in err, "Traceback" in err) == (2, True, False), err


def labelled(dataset):
    """Three classes of edges."""
    pairs = np.stack([np.arange(30), np.arange(30) + 5], 1)
    return mr.edge_dataset(dataset, pairs, pairs[:, 0] % 3)


@pytest.mark.parametrize(
    ("options", "dataset_of", "phrase"),
    [
        ({"graph": "mapped"}, "store", "graph is 'mapped', but system 'grappa' arranges the edges of a full batch in"),
        ({}, mr.link_dataset, "the task is link, but system 'grappa' trains all pairs at once, each of which would"),
        ({}, labelled, "labels are of edges, but system 'grappa' has no minibatches of labelled edges"),
        ({"train": {"compile": True}}, "dataset", "compile is true, but system 'grappa' trains on full batches, whose"),
        ({"kernel": "cuda"}, "dataset", "kernel is \"cuda\", but system 'grappa' samples nothing"),
        (
            {"kernel": "cugraph", "device": "cuda"},
            "dataset",
            "kernel is \"cugraph\", but system 'grappa' samples nothing",
        ),
        ({"fanout": [3, 3]}, "dataset", "'sampler' is .*, but system 'grappa' with full_batch samples nothing"),
        ({"batch_size": 8}, "dataset", "'train.batch_size' is 8, but system 'grappa' with full_batch takes all train"),
        ({"queue": {"bulk_size": 4}}, "dataset", "section 'queue' is given, but grappa.full_batch is true"),
    ],
)
@pytest.mark.usefixtures("on_device")
def test_what_a_full_batch_of_isolated_ranks_cannot_use_is_refused(request, tmp_path, options, dataset_of, phrase):
    """In one sentence that says what to leave out, before anything is written; without it the job can run."""
    given = request.getfixturevalue(dataset_of if isinstance(dataset_of, str) else "dataset")
    data = dataset_of(given) if callable(dataset_of) else given
    job = {"system": "grappa", "layers": 2, "epochs": 1, "grappa": {"full_batch": True}}
    with pytest.raises(mr.InputError, match=phrase) as caught:
        mr.run(data, out=tmp_path / "run", **job, **options)
    assert re.search("; leave (grappa.full_batch|it|one of them) out$", str(caught.value))
    assert not (tmp_path / "run").exists()
    assert mr.dry_run(given, **job)


def test_what_isolated_ranks_cannot_use_is_refused(dataset):
    with pytest.raises(mr.InputError, match=r"only queue\.bulk_size is used"):
        mr.run(dataset, system="grappa", queue={"max_bytes": 1000})
    with pytest.raises(mr.InputError, match="normalises batches"):
        mr.run(dataset, system="grappa", ranks=2, model=mr.GraphSAGE(hidden=8, layers=2, norm="batch"), fanout=[3, 3])
