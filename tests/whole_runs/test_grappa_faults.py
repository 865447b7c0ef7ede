"""Isolated ranks of which some are lost in mid super-epoch: the others go on, agree, and say what they lack, until all
are there again."""

import copy
import json
import os
import re
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

import millrace as mr
from millrace.pipeline.assembly.update_part import UpdatePart
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.schema import Train
from millrace.pipeline.setup.model import ModelPart, Outline
from millrace.pipeline.setup.open_queue import QueueEnd
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.systems.grappa import grappa
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.events import EpochDone, Note, StepDone
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member, RankControl, TrainContext
from millrace.pipeline.training.loop import train_rank
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.comm.base import Overlap, nothing
from millrace.stages.comm.gloo import Contact, Gloo
from millrace.stages.comm.solo import Solo
from millrace.stages.comm.survivors import Survivors
from millrace.stages.feed.local_feed import QUIET
from millrace.stages.forward_backward import forward_backward
from millrace.stages.messages import Phase
from millrace.stages.models.sage import SAGE
from millrace.stages.partition.stage import partition_dataset
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import ShortHandedError
from millrace.tests.contracts.failing_ranks import DeadError, ThreadedRanks
from millrace.tests.contracts.full_batch import C, F, job, make_case
from millrace.tests.contracts.isolated import CasePeers, placed
from millrace.tests.contracts.process_ends import command_of
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.oracles.sampling import backend as reference

RANKS, EVERY, EPOCHS, LONG = 3, 2, 4, 36
TABLE: dict[str, Any] = {
    "system": "grappa", "epochs": EPOCHS, "seed": 3, "ranks": RANKS, "threads": 1,
    "model": {"hidden": 6, "layers": 2, "dropout": 0.3},
    "sampler": {"fanout": [4, 3]}, "train": {"lr": 0.05, "batch_size": 8}, "partition": {"method": "hash"},
    "grappa": {"repartition_every": EVERY},
    "cluster": {"on_rank_loss": "continue"},
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset() -> mr.Dataset:
    return mr.open_dataset(f"sbm:nodes=120,classes=3,degree=6,features={F},train=0.4", seed=1)


# --- one step, against an oracle ---


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(("victim", "correction"), [(0, "node"), (2, "batch"), (2, "none")])
def test_the_seeds_of_a_lost_rank_drop_out_of_the_step(victim: int, correction: str) -> None:
    """sum of w g over sum of w, over the ranks that are left, each by itself; the rank dies when gradients are to be
    summed."""
    case, model, lr = make_case(8, RANKS), SAGE(hidden=5, layers=2, dropout=0.0).build(F, C).double(), 0.01
    system = grappa(NeighborSampler((-1, -1)), halo=0, correction=correction)
    total, count = np.zeros(len(flat(model))), 0.0
    for rank in set(range(RANKS)) - {victim}:
        place = placed(case, system.partition, rank)
        solo = replace(job(Solo(), 2), batch_size=1000, kernel=reference)
        feed = system.sample.feed(place, Phase(0, 0, 1), solo, (0, 0))
        fetched = system.fetch.fetcher(place, solo, model).fetch(feed.get(0, 0))
        feed.close()
        alone = copy.deepcopy(model)
        w = torch.ones(len(fetched.y), dtype=torch.float64) if fetched.weight is None else fetched.weight
        w = torch.full_like(w, float(w.mean())) if correction == "batch" else w
        forward_backward(alone, fetched, 0, "multiclass", 1.0, weights=w)
        total += torch.cat([p.grad.reshape(-1) for p in alone.parameters() if p.grad is not None]).numpy()
        count += float(w.sum())
    assert count > 0
    ends: dict[int, torch.Tensor] = {}
    told: list[str] = []

    def rank(group: Survivors) -> Any:
        torch.set_num_threads(1)
        group.bears = False  # a phase says when it is
        mine: Any = copy.deepcopy(model)
        if group.rank == victim:

            def die(flat: torch.Tensor, kind: str, overlap: Overlap = nothing) -> None:
                if kind == "gradients":
                    raise DeadError
                Survivors.all_reduce(group, flat, kind, overlap)

            group.all_reduce = die
        of = replace(job(group, 2), epochs=1, batch_size=1000, kernel=reference, ledger=ranks.ledgers[group.rank])

        def tell(event: Any) -> None:
            if isinstance(event, Note):
                told.append(event.text)

        train = Train(optimizer="sgd", lr=lr, batch_size=1000)
        trainer = TrainContext(
            system,
            of,
            CasePeers(case).own(group.rank),
            mine,
            UpdatePart("multiclass", train),
            control=RankControl(tell),
        )
        with pytest.raises(ShortHandedError, match=rf"super-epoch 1 ended without rank {victim}"):
            train_rank(trainer)
        ends[group.rank] = flat(mine)

    ranks = ThreadedRanks(RANKS)
    ranks.run(rank)
    a, b = ends.values()
    assert torch.equal(a, b)
    np.testing.assert_allclose(((flat(model) - a) / lr).numpy(), total / count, rtol=1e-8, atol=1e-10)
    seeds = int(np.isin(case.split.train, np.flatnonzero(case.part_of == victim)).sum())
    assert told == [
        (
            f"rank {victim} is missing from epoch 1, step 1 of 1 on: its {seeds} seeds, and "
            f"validation, are left out until super-epoch 1 ends"
        )
    ]


# --- ranks that are processes and die at a chosen instant ---


class Doomed(Survivors):
    """Ranks that kill themselves in the sum of gradients that they are to, before it or after it, and name those that
    are left."""

    plan: dict[int, tuple[int, str]]
    sums = 0

    def all_reduce(self, flat: torch.Tensor, kind: str, overlap: Overlap = nothing) -> None:
        due = kind == "gradients" and self.plan.get(self.rank, (0, ""))[0] == self.sums + 1
        self.sums += kind == "gradients"
        if due and self.plan[self.rank][1] == "before":
            self.die()
        super().all_reduce(flat, kind, overlap)
        if due:
            self.die()

    def die(self) -> None:
        before = {r for r, (n, _) in self.plan.items() if n <= self.sums}
        self._store.set(f"members/{len(before)}", json.dumps([r for r in range(self.size) if r not in before]))
        os.kill(os.getpid(), signal.SIGKILL)


def one_life(
    group: Any, outline: Outline, out: Path, fingerprint: dict[str, str], plan: dict[int, tuple[int, str]]
) -> Any:
    """A rank's report, or the words with which it ended short-handed, and a digest of its parameters."""
    store, rank, size, ledger = group._store, group.rank, group.size, group._ledger
    prepared = prepare_part(resolve(TABLE), CutData(outline, out / "parts", rank, fingerprint))
    built: list[nn.Module] = []

    class Kept(ModelPart):
        def build(self) -> nn.Module:
            built.append(super().build())
            return built[-1]

    prepared = replace(prepared, model=Kept(**vars(prepared.model)))
    own = dist.PrefixStore("survivors", store)
    group = Doomed(
        own, rank, size, lambda store, rank, size: Gloo(store, rank, size, ledger, Contact("127.0.0.1", timeout_s=30))
    )
    group.plan = plan
    notes: list[str] = []
    try:
        report = train_and_evaluate(
            prepared, out, QueueEnd(produce=False), Member(group, ledger, Clock()),
            Control(lambda e: notes.append(e.text) if isinstance(e, Note) else None),
        )  # fmt: skip
    except ShortHandedError as e:
        return str(e), [p.detach().numpy().tobytes() for p in built[0].parameters()], notes
    finally:
        group.close()
    return asdict(report)


@pytest.fixture
def live(dataset: mr.Dataset, tmp_path: Path) -> Any:
    """Lives of one run, one after the other; each from where the one before ended."""
    table = resolve(TABLE)
    prepared = prepare(table, dataset)
    assert prepared.system.partition.partitioner is not None
    partition_dataset(dataset, prepared.system.partition.partitioner, RANKS, tmp_path / "parts", table.seed)

    def life(plan: dict[int, tuple[int, str]]) -> list[Any]:
        return run_ranks(
            one_life,
            RANKS,
            Outline.from_dataset(dataset),
            tmp_path,
            prepared.fingerprint,
            plan,
            mortal=tuple(plan),
            timeout_s=100,
        )

    return life


def test_whoever_is_left_agrees_and_all_go_on_from_there(live: Any) -> None:
    """Rank 0, which speaks and writes, dies in mid super-epoch, then rank 2 is alone; all three go on with the next
    one."""
    short = live({0: (3, "after"), 1: (5, "before")})
    assert short[:2] == [None, None]
    words, end, notes = short[2]
    assert words == "super-epoch 1 ended without rank 0, 1"
    assert [n for n in notes if "is missing" not in n] == [], "it speaks only once it is the first"
    assert len([n for n in notes if n.startswith("rank 1 is missing")]) == 1
    reports = live({2: (2, "after")})
    assert reports[2] is None
    assert [r[0] for r in reports[:2]] == ["super-epoch 2 ended without rank 2"] * 2
    assert reports[0][1] == reports[1][1], "to the bit"
    assert reports[0][1] != end
    done = live({})
    assert len({r["parameters_sha256"] for r in done}) == 1
    first = done[0]
    assert [{k: r[k] for k in ("rank", "phase")} for r in first["lost"]] == [
        {"rank": r, "phase": p} for r, p in ((0, 0), (1, 0), (2, 1))
    ]
    assert all(r["seeds"] > 0 and 1 <= r["epochs"] <= EVERY for r in first["lost"])
    assert [h["epoch"] for h in first["history"]] == list(range(EPOCHS))
    # Of each super-epoch the last epoch is validated late; the others before the loss or not at all.
    assert {1, 3} <= {int(h["epoch"]) for h in first["history"] if "val_accuracy" in h}
    assert first["best_accuracy"] == max(h.get("val_accuracy", 0.0) for h in first["history"])
    assert first["test_accuracy"] is not None
    for report in done:
        assert [report["bytes"]["network"][kind] for kind in QUIET] == [0, 0, 0]
        assert report["bytes"]["network"]["gradients"] > 0


# --- on a cluster ---


def processes() -> dict[int, psutil.Process]:
    """The processes of ranks below this one, by rank."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            if "millrace.pipeline.cluster.rank_main" in command_of(child):
                log = re.search(r"rank-(\d+)\.log$", os.readlink(f"/proc/{child.pid}/fd/2"))
                if log:
                    found[int(log[1])] = child
        except (psutil.Error, OSError):
            continue
    return found


class Reaper:
    """Kills ranks once epochs are reached, and the others have said that they miss the one before."""

    def __init__(self, *plan: tuple[int, int]) -> None:
        self.plan, self.notes, self.epochs, self.pids = list(plan), list[str](), list[EpochDone](), list[int]()
        self.told = ""

    def __call__(self, event: Any) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)
        elif isinstance(event, EpochDone):
            self.epochs.append(event)
        elif (
            isinstance(event, StepDone)
            and self.plan
            and event.epoch >= self.plan[0][1]
            and any(n.startswith(self.told) for n in ["", *self.notes])
            and self.plan[0][0] in processes()
        ):
            rank, _ = self.plan.pop(0)
            self.told = f"rank {rank} is missing from"
            process = processes()[rank]
            self.pids.append(process.pid)
            process.kill()


CLUSTERED = {
    **TABLE, "epochs": 2 * LONG, "grappa": {"repartition_every": LONG},
    "train": {"lr": 0.02, "batch_size": 8, "evaluate_every": LONG},  # validation needs all ranks
    "model": {"hidden": 8, "layers": 2}, "checkpoint": {"every_s": 1000.0},
}  # fmt: skip
DATASET = f"sbm:nodes=400,classes=3,degree=6,features={F},train=0.4"


@pytest.mark.slow
def test_a_run_goes_on_and_says_what_was_lost(scheduler: str, tmp_path: Path) -> None:
    """Two of three ranks die in the first super-epoch, one after the other, the first rank among them; one in the last,
    and the run may not
    start again: it ends, and with --resume all that is left to do is to evaluate."""
    reaper, out = Reaper((2, 1), (0, 3), (1, LONG + 1)), tmp_path / "run"
    config = {**CLUSTERED, "cluster": {"on_rank_loss": "continue", "restarts": 1, "scheduler": scheduler}}
    with pytest.raises(
        mr.RunError, match=r"^super-epoch 2 ended without rank 1; resume from the last checkpoint with --resume$"
    ):
        mr.run(DATASET, out=out, emit=reaper, config=config)
    assert not reaper.plan
    assert not processes()
    note = r"rank (\d) \(process (\d+)\) was killed by signal 9; (.*) to go on without it"
    killed = [found.groups() for n in reaper.notes if "killed" in n and (found := re.fullmatch(note, n))]
    left = ("ranks 0, 1 are", "rank 1 is", "ranks 0, 2 are")
    assert killed == [(rank, str(pid), who) for rank, pid, who in zip("201", reaper.pids, left)]
    assert [n for n in reaper.notes if "start again" in n] == [
        "super-epoch 1 ended without rank 0, 2; all ranks start again from the last checkpoint (restart 1 of 1)"
    ]
    assert f"resumed at phase 2 of 2, epoch {LONG + 1}, step 1" in reaper.notes
    assert [e.epoch for e in reaper.epochs] == list(range(2 * LONG)), (
        "nothing is trained twice, and whoever is first tells it"
    )
    result = mr.run(DATASET, out=out, resume=True, emit=reaper, config=config)
    assert len(reaper.epochs) == 2 * LONG
    assert [(r["rank"], r["phase"]) for r in result.lost] == [(2, 0), (0, 0), (1, 1)]
    for record, epoch in zip(result.lost, (1, 3, LONG + 1)):
        assert record["epoch"] >= epoch
        assert record["epochs"] == LONG * (record["phase"] + 1) - record["epoch"]
        left_out = (
            f"its {record['seeds']} seeds, and validation, are left out until super-epoch {record['phase'] + 1} ends"
        )
        where = (
            rf"rank {record['rank']} is missing from epoch {record['epoch'] + 1}, step "
            rf"{record['step'] + 1} of \d+ on: {left_out}"
        )
        assert [n for n in reaper.notes if re.fullmatch(where, n)]
    assert json.loads((out / "result.json").read_text())["lost"] == result.lost
    assert (result.status, result.epochs) == ("done", 2 * LONG)
    assert result.val_accuracy is not None
    assert result.test_accuracy is not None and result.test_accuracy > 0.5
    assert [result.bytes["network"][kind] for kind in QUIET] == [0, 0, 0]
    assert not processes()


# --- what does not go together ---


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (
            {"system": "bulk", "ranks": 2},
            r"under system 'bulk' ranks need each other's rows or minibatches; use \"restart\"",
        ),
        ({"system": "sar", "ranks": 2}, "under system 'sar' ranks need"),
        ({"system": "retexo", "ranks": 2}, "under system 'retexo' ranks need"),
    ],
)
def test_what_cannot_go_on_alone_is_refused(
    dataset: mr.Dataset, tmp_path: Path, options: dict[str, Any], phrase: str
) -> None:
    with pytest.raises(mr.InputError, match=f'^cluster.on_rank_loss is "continue", but .*{phrase}'):
        mr.run(
            dataset, out=tmp_path / "run", model=mr.GraphSAGE(layers=2), cluster={"on_rank_loss": "continue"}, **options
        )
    assert not (tmp_path / "run").exists()
