"""Predictions of a plan against real runs: bytes by formula to the byte; and messages for impossible plans."""

import json
import re
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import Job
from millrace.pipeline.config.records import make_system, without_partitioner
from millrace.pipeline.planning import forecast as forecasting
from millrace.pipeline.planning import inputs, traffic, trial, trial_server, trial_setup
from millrace.pipeline.planning.candidate import Candidate
from millrace.pipeline.planning.forecast import Forecast
from millrace.pipeline.planning.inputs import Cluster, Numbers, candidates
from millrace.pipeline.planning.network import LINKS, Link
from millrace.pipeline.planning.planner import Plan, plan
from millrace.pipeline.planning.table import as_text
from millrace.pipeline.planning.traffic import Moved, table_memory
from millrace.pipeline.planning.trial import TrialResult
from millrace.pipeline.telemetry.events import StageAdvanced, StageStarted
from millrace.stages.kernels.runtime import triton_rng
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts.forked_cluster import forked_cluster
from millrace.tests.contracts.forked_command import ForkedCommand
from millrace.tests.contracts.forked_trials import ForkedTrials, without_base
from millrace.tests.contracts.process_ends import command_of
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.whole_runs.test_cli import millrace

SBM = "sbm:nodes=300,classes=3,degree=6,features=12,train=0.5"
SMALL = {"hidden": 8, "layers": 2, "fanout": "3,2", "batch_size": 16, "epochs": 3, "ranks": 2, "threads": 1}


class Played:
    """A plan for two ranks, and for each candidate the bytes predicted for its trial and those counted there."""

    def __init__(self, patch: pytest.MonkeyPatch, data: Any = SBM, **options: Any) -> None:
        self.candidates: dict[str, Candidate] = {}
        self.seen: dict[str, TrialResult] = {}
        self.predicted: dict[str, Moved] = {}
        self.events: list[object] = []
        jobs: list[Job] = []
        foresee, measured = forecasting.foresee, trial.measured

        def tried(s: Candidate, job: Job, *of_trial: Any) -> TrialResult:
            jobs.append(job)
            return measured(s, job, *of_trial)

        def heard(s: Candidate, room: int, seen: TrialResult | None = None) -> Forecast:
            if seen is None:
                return foresee(s, room)
            as_tried = replace(s, job=jobs[-1], system=make_system(without_partitioner(jobs[-1])))
            self.candidates[s.label], self.seen[s.label] = as_tried, seen
            self.predicted[s.label] = forecasting.moves(as_tried, seen)
            return foresee(s, room, seen)

        patch.setattr(trial_setup, "measured", tried)
        patch.setattr(trial_setup, "foresee", heard)
        self.plan: Plan = plan(data, emit=self.events.append, **{**SMALL, **options})


@pytest.fixture(scope="module")
def played() -> Played:
    with pytest.MonkeyPatch.context() as patch, forked_cluster():
        return Played(patch)


def only(patch: pytest.MonkeyPatch, *labels: str) -> None:
    """Plans of candidates with these labels. The process of trials on one rank is forked."""
    known = inputs.variants()
    patch.setattr(inputs, "variants", lambda: {label: known[label] for label in labels or known})
    patch.setattr(trial_server, "subprocess", SimpleNamespace(Popen=ForkedTrials, PIPE=None, DEVNULL=None))


@pytest.fixture(scope="module")
def with_edges() -> dict[str, Played]:
    """Plans for models that read features of edges, with types and without."""
    plain, found = mr.open_dataset(SBM), {}
    rows = ArrayFeatures(np.ones((plain.graph.num_edges, 3), np.float32))
    plain = replace(plain, graph=replace(plain.graph, edge_features=rows))
    typed = typed_dataset(degree=100, edge_features=True)
    with forked_cluster():
        for model, data, batch, labels in (
            ("rgat", typed, 4, ("bulk, owned features", "bulk, partitioned", "grappa", "sar")),
            ("gine", plain, 16, ("grappa", "retexo")),
        ):
            with pytest.MonkeyPatch.context() as patch:
                only(patch, *labels)
                without_base(patch)
                found[model] = Played(patch, data, model=model, batch_size=batch)
    return found


@pytest.fixture(scope="module")
def of_tasks() -> dict[str, Played]:
    """Plans of links, of samples by time, and of learnt features."""
    every, found = ("bulk", "bulk, owned features", "bulk, partitioned", "grappa", "sar"), {}
    labels = {"links": every, "learned": every, "learned alone": every[2:3], "learned, typed": every[4:]}
    links = mr.link_dataset(mr.open_dataset(SBM))
    options = {
        "links": {"data": links, "batch_size": 64, "config": {"link": {"decoder": "mlp", "num_negatives": 2}}},
        "time": {"data": "tsbm:nodes=300,degree=6", "config": {"sampler": {"name": "temporal"}}},
        "learned": {"learned": {"width": 5, "optimizer": "adam"}, "minibatches_per_step": 4},
        "learned, typed": {
            "data": typed_dataset(degree=100),
            "batch_size": 4,
            "model": "rgcn",
            "learned": {"width": 3},
        },
        "learned alone": {"learned": {"width": 5, "beside": False}},
        "learned links": {"data": links, "batch_size": 64, "learned": {"width": 3, "beside": False}},
    }
    with forked_cluster():
        for task, given in options.items():
            with pytest.MonkeyPatch.context() as patch:
                only(patch, *labels.get(task, ("bulk", "sar")))
                without_base(patch)
                found[task] = Played(patch, **given)
    return found


@pytest.mark.parametrize(
    ("task", "label"),
    [
        ("links", "bulk"),
        ("links", "bulk, owned features"),
        ("links", "bulk, partitioned"),
        ("links", "grappa"),
        ("time", "bulk"),
        ("learned", "bulk"),
        ("learned", "bulk, owned features"),
        ("learned", "bulk, partitioned"),
        ("learned", "sar"),
        ("learned, typed", "sar"),
        ("learned alone", "bulk, partitioned"),
        ("learned links", "bulk"),
    ],
)
def test_pairs_times_and_learnt_rows_are_counted(of_tasks: dict[str, Played], task: str, label: str) -> None:
    test_bytes_are_those_that_ranks_count(of_tasks[task], label)
    found = next(f for f in of_tasks[task].plan.systems if f.label == label)
    assert ("learned" in found.memory) == task.startswith("learned") and found.fits


def test_what_does_not_train_such_a_task_is_left_out(of_tasks: dict[str, Played]) -> None:
    text = {task: as_text(of_tasks[task].plan) for task in of_tasks}
    assert "12 features, links, 744 pairs to train on" in text["links"]
    assert "sar is left out: the task is link, but system 'sar' trains all pairs at once" in text["links"]
    assert "sar is left out: samples go by time, but system 'sar' passes messages over all edges" in text["time"]
    assert "grappa is left out: learned.width is 5, but" in text["learned"]
    assert "bulk.algorithm" in text["learned"] and not of_tasks["links"].plan.grids, "ends are no seeds of one size"
    assert "bulk.algorithm" not in text["time"], "no rank has all edges of a seed"


def test_a_table_takes_what_its_ranks_hold(of_tasks: dict[str, Played]) -> None:
    # Rows, two numbers of SparseAdam for each of a row, and the rows of the best epoch.
    whole = 300 * 5 * 4 * (1 + 2 + 1)
    s = of_tasks["learned"].candidates["bulk"]
    assert s.validates and table_memory(s, 300, 2, gathers=True) == {"learned": whole // 2, "checkpoint": whole}
    assert table_memory(s, 300, 2, gathers=False) == {"learned": whole // 2}
    assert table_memory(s, 300, 1, gathers=True) == {"learned": whole}
    links = of_tasks["learned links"].candidates["bulk"]
    assert table_memory(links, 300, 1, gathers=True) == {"learned": 300 * 3 * 4 * 3} and links.row_bytes == (0, 0)
    assert table_memory(of_tasks["links"].candidates["bulk"], 300, 2, gathers=True) == {}


def test_a_run_of_links_with_learnt_rows_moves_what_the_plan_says(of_tasks, tmp_path, scheduler) -> None:
    forecast, links = of_tasks["learned links"].plan.systems[0], mr.link_dataset(mr.open_dataset(SBM))
    options = {**SMALL, "batch_size": 64, "learned": {"width": 3, "beside": False}}
    result = mr.run(links, out=tmp_path / "run", cluster={"scheduler": scheduler}, verbose=False, **options)
    for kind in ("features", "gradients", "control"):
        # Epochs draw different rows.
        assert forecast.bytes["network"][kind] == pytest.approx(result.bytes["network"][kind], rel=0.02)
    assert forecast.bytes["store"]["features"] == result.bytes["store"]["features"] == 0


@pytest.mark.parametrize(
    ("model", "label"),
    [("rgat", "bulk, owned features"), ("rgat", "bulk, partitioned"), ("rgat", "sar"), ("gine", "grappa")],
)
def test_types_and_rows_of_edges_are_counted(with_edges: dict[str, Played], model: str, label: str) -> None:
    test_bytes_are_those_that_ranks_count(with_edges[model], label)


def test_systems_that_do_not_run_are_left_out(with_edges: dict[str, Played]) -> None:
    text = as_text(with_edges["rgat"].plan)
    assert "typed: 36 nodes of 3 types, 320 edges of 5 relations with 3 features, 5 features, 3 classes" in text
    assert "\ngrappa is left out: the graph has 3 node types and 5 relations, but system 'grappa' corrects" in text
    assert [f.label for f in with_edges["gine"].plan.systems] == ["grappa"]
    assert "\nretexo is left out: the model reads features of edges, but system 'retexo' gives its layers rows of" in (
        as_text(with_edges["gine"].plan)
    )


@pytest.mark.parametrize("label", ["sar", "retexo", "bulk", "bulk, owned features", "bulk, partitioned", "grappa"])
def test_bytes_are_those_that_ranks_count(played: Played, label: str) -> None:
    s, seen = played.candidates[label], played.seen[label]
    law = played.predicted[label].bytes(1, s.epochs)
    for channel in ("network", "store"):
        counted = {kind: count for kind, count in seen.bytes[channel].items() if count and kind != "control"}
        assert {kind: count for kind, count in law[channel].items() if count and kind != "control"} == counted
    assert law["network"]["control"] == pytest.approx(seen.bytes["network"]["control"], rel=0.5)


def test_epochs_and_steps_are_those_of_the_run(played: Played) -> None:
    by_label = {f.label: f for f in played.plan.systems}
    # 150 seeds in minibatches of 16 are 10, two of them in a step.
    assert by_label["bulk"].steps_per_epoch == 5
    assert by_label["sar"].steps_per_epoch == 1
    assert (by_label["sar"].epochs, by_label["retexo"].epochs) == (3, 6)
    gradients = {label: f.bytes["network"]["gradients"] for label, f in by_label.items()}
    assert gradients["bulk"] == 5 * gradients["sar"] == gradients["bulk, owned features"]
    assert gradients["bulk"] == gradients["bulk, partitioned"]


def test_memory_holds_the_process_and_time_is_more_than_nothing(played: Played) -> None:
    for f in played.plan.systems:
        # What a graph of this size takes does not show beside the process.
        assert f.fits and f.memory_bytes == sum(f.memory.values()) >= f.memory["process"] > 100 << 20
        assert f.seconds_per_epoch is not None and f.seconds_per_epoch > 0
        assert not f.estimate


def test_a_plan_is_told_and_recorded(played: Played) -> None:
    text, record = as_text(played.plan), json.loads(json.dumps(played.plan.to_record(), allow_nan=False))
    assert all(f.label in text for f in played.plan.systems)
    assert f"Choose {played.plan.recommended}: " in text
    head, errors = text.splitlines()[3:5]
    # Below its head each forecast has the range by which such forecasts were off.
    assert [errors[i:].split()[0] for i in (head.index("memory") - 3, head.index("epoch") - 4)] == [
        "-25..+25%",
        "-68..+87%",
    ]
    stand_in = as_text(replace(played.plan, stands_in=True)).splitlines()[4]
    assert "-82..+157%" in stand_in and "-72..+1%" in stand_in
    assert played.plan.recommended not in (None, "grappa", "retexo"), "on one machine"
    assert (
        "Other goals:\n  shortest pass over all labels: " in text and "\n  fewest bytes between ranks: retexo, " in text
    )
    assert record["systems"][0]["bytes"]["network"]["gradients"] > 0
    shares = {f["label"]: f["share_seen"] for f in record["systems"]}
    assert shares.pop("grappa") == 1.0 and not any(shares.values()), "two isolated ranks show each other all"
    assert "A rank of grappa sees 100% of the nodes at a time." in text
    grids = record["grids"]
    assert [(g["replication"], g["algorithm"]) for g in grids] == [(1, "owners"), (1, "1.5d")]
    assert sum(g["chosen"] for g in grids) == 1 and all(g["seconds"] > 0 for g in grids)
    assert f"{grids[1]['words']:,.0f}" in text and 'bulk.algorithm = "auto"' in text
    assert max(len(line) for line in text.splitlines()) <= 140
    assert any(isinstance(e, StageStarted) and e.stage == "plan" for e in played.events)
    assert [e.done for e in played.events if isinstance(e, StageAdvanced) and e.stage == "plan"] == [1, 2, 3, 4, 5, 6]


def test_a_run_moves_what_the_plan_says(played: Played, tmp_path, scheduler) -> None:
    forecast = next(f for f in played.plan.systems if f.label == "sar")
    options = {k: v for k, v in SMALL.items() if k not in ("fanout", "batch_size")}
    result = mr.run(SBM, system="sar", out=tmp_path / "run", cluster={"scheduler": scheduler}, **options)
    for channel in ("network", "store"):
        predicted, counted = (sum(of[channel].values()) for of in (forecast.bytes, result.bytes))
        assert predicted == pytest.approx(counted, rel=0.02)
        for kind in ("gradients", "activations", "graph") if channel == "network" else ("features",):
            assert forecast.bytes[channel][kind] == result.bytes[channel][kind]


def test_blocks_send_what_the_plan_says(played: Played, tmp_path, scheduler) -> None:
    forecast = next(f for f in played.plan.systems if f.label == "bulk, partitioned")
    options = {**SMALL, "bulk": {"topology": "partitioned"}, "cluster": {"scheduler": scheduler}}
    result = mr.run(SBM, out=tmp_path / "run", verbose=False, **options)
    # Two epochs fewer than in the trial, with other samples.
    for kind in ("graph", "features"):
        assert forecast.bytes["network"][kind] == pytest.approx(result.bytes["network"][kind], rel=0.02)
    assert forecast.bytes["network"]["gradients"] == result.bytes["network"]["gradients"]
    assert forecast.bytes["store"]["features"] == result.bytes["store"]["features"] == 300 * 12 * 4


def test_messages_before_the_first_step_are_those_of_blocks(played: Played, of_tasks: dict[str, Played]) -> None:
    s, links = (of.candidates["bulk, partitioned"] for of in (played, of_tasks["links"]))
    first = traffic._first_messages
    # Each of the train nodes goes to every other rank, as an id and a label.
    assert first(s, 2, 150 / 16, s.at.dataset) == 150 * 16 and first(s, 4, 150 / 16, s.at.dataset) == 3 * 150 * 16
    # Two numbers for each pair are added up over two ranks, each of which sends half of them twice.
    assert first(links, 2, 1, links.at.dataset) == 2 * 2 * len(links.at.dataset.labels) * 8


def test_slower_links_take_longer(played: Played) -> None:
    s, seen = played.candidates["sar"], played.seen["sar"]
    here, slow = (
        forecasting.foresee(replace(s, at=replace(s.at, link=link)), 1, seen) for link in (None, LINKS["edge"])
    )
    assert here.network_seconds == 0 and here.seconds_per_epoch is not None
    # Two layers, one way and back but for the first layer's gradients where features are aggregated first; three sums.
    moved = played.predicted["sar"]
    sent = {kind: count.max() for (channel, kind), count in moved.per_epoch.items() if channel == "network"}
    expected = sum(sent[k] / LINKS["edge"].bandwidth + 2 * n * LINKS["edge"].latency_s for k, n in moved.waits.items())
    assert slow.network_seconds == pytest.approx(expected)
    assert slow.seconds_per_epoch == pytest.approx(here.seconds_per_epoch + expected)
    assert expected > 0.2


def test_larger_graphs_than_were_tried_grow(played: Played) -> None:
    s, seen = played.candidates["sar"], played.seen["sar"]
    assert forecasting.share_of_work(s) == pytest.approx(1)
    n = s.at.numbers
    double = replace(s, at=replace(s.at, numbers=replace(n, nodes=2 * n.nodes, edges=2 * n.edges)))
    assert forecasting.share_of_work(double) == pytest.approx(2)
    seen = replace(seen, base_bytes=10 << 20)
    small, large = (forecasting.memory_of(x, seen, 0) for x in (s, double))
    assert large["data"] == pytest.approx(2 * small["data"], abs=2) and large["process"] == 10 << 20


def test_ranks_that_share_cores_take_longer(played: Played) -> None:
    def load(ranks: int, threads: int, cores: int) -> float:
        return replace(played.candidates["sar"].at, threads=threads, cores=cores).load(ranks)

    assert (load(8, 2, 4), load(2, 2, 4), load(2, 1, 4), load(3, 1, 2)) == (4, 1, 1, 1.5)
    s, seen = played.candidates["sar"], played.seen["sar"]
    few, many = (
        forecasting.foresee(replace(s, at=replace(s.at, per_host=n, threads=4, cores=4, link=None)), 1, seen)
        for n in (seen.ranks, 4 * seen.ranks)
    )
    assert many.seconds_per_epoch == pytest.approx(4 * few.seconds_per_epoch)
    assert many.evaluate_seconds == pytest.approx(4 * few.evaluate_seconds)


@pytest.mark.parametrize("key", ["system", "executor"])
def test_what_a_plan_replaces_is_still_checked(key: str) -> None:
    with pytest.raises(InputError, match=f"'{key}' is 'nonsense'"):
        candidates({key: "nonsense"})


def test_candidates_leave_out_what_a_system_has_no_use_for() -> None:
    table = {
        "ranks": 2,
        "sampler": {"fanout": [4, 3]},
        "train": {"batch_size": 8},
        "queue": {"bulk_size": 2},
        "system": "sar",
    }
    jobs = candidates(table)
    assert list(jobs) == ["bulk", "bulk, owned features", "bulk, partitioned", "grappa", "sar", "retexo"]
    assert [jobs[label].bulk.topology for label in list(jobs)[:3]] == ["replicated", "replicated", "partitioned"]
    assert {job.model["layers"] for job in jobs.values()} == {2}
    assert jobs["bulk"].train.batch_size == 8 and jobs["sar"].sampler == {}
    assert list(candidates({"ranks": 1})) == ["bulk", "grappa", "sar", "retexo"]
    places = {label: job.graph for label, job in candidates({**table, "graph": "mapped"}).items()}
    assert set(places.values()) == {"mapped"}
    places = {label: job.graph for label, job in candidates({"graph": "mapped"}).items()}
    assert {label for label, place in places.items() if place == "memory"} == {"sar", "retexo"}, "one rank"


def test_a_stand_in_is_as_dense_and_no_larger() -> None:
    spec = Numbers(nodes=10**9, edges=16 * 10**9, features=128, classes=7, train=0.25).stand_in()
    dataset = mr.open_dataset(spec.replace("scale=18", "scale=10"))
    assert spec.startswith("rmat:scale=18,edge_factor=8,features=128,classes=7")
    assert dataset.graph.num_edges / dataset.num_nodes == pytest.approx(16, rel=0.3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "5"), "--nodes and --edges go together"),
        (("--nodes", "5", "--edges", "9", "--dataset", "digits"), "in place of --dataset"),
        (("--nodes", "1", "--edges", "9"), "nodes is 1; expected"),
        (("--nodes", "5", "--edges", "9", "--train-share", "0"), "the share of train nodes is 0.0"),
        (("--hosts", "3", "--ranks", "2"), "hosts is 3 for 2 ranks; expected from 1 to 2"),
        (("--hosts", "2", "--ranks", "2"), "no link connects them"),
        (("--link", "wam"), "link is 'wam'; expected one of data centre, wan, edge, proximity; did you mean 'wan'?"),
        (("--bandwidth", "1"), "--bandwidth and --latency go together"),
        (("--bandwidth", "0", "--latency", "1"), "expected a bandwidth above 0"),
        (("--memory", "-1"), "expected a finite number above 0"),
        (("--memory", "nan"), "the memory is nan GiB; expected a number, as of 1.5 GiB"),
        (("--device-memory", "inf"), "the memory is inf GiB; expected a number, as of 1.5 GiB"),
        (("--set", "bulk.algorithm=1.5d"), "bulk.algorithm is '1.5d': plan does not predict that"),
        (("--set", "bulk.local_seeds=true"), "bulk.local_seeds is True: plan does not predict that"),
        (("--set", "retexo.local_steps=3"), "retexo.local_steps is 3"),
        (("--ranks", "2", "--set", "model.norm=batch"), "use another norm, or one rank"),
        (("--device-memory", "9"), 'the memory of a GPU is given, but device is "cpu"; leave it out'),
        (("--device-memory", "0"), "the memory of a rank's GPU is 0 bytes; expected a finite number above 0"),
        (("--fanout", "2,2", "--layers", "3"), "give one number per layer"),
    ],
)
def test_mistakes_are_sentences(words: tuple[str, ...], said: str) -> None:
    seen = millrace("plan", *words)
    assert seen.code == 2 and said in seen.err and seen.err.count("\n") <= 3


def test_a_machine_without_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rng, "INTERPRETED", False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    seen = millrace("plan", "--device", "cuda")
    said = 'a plan tries steps on this machine, which has no GPU to try them on: device is "cuda", but this torch ('
    assert seen.code == 2 and said in seen.err and seen.err.count("\n") == 1


def test_a_trial_has_the_queue_of_the_run_and_is_too_short_for_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "bulk", "retexo")
    without_base(monkeypatch)
    job = {"fanout": [4, 3], "batch_size": 32, "hidden": 8, "epochs": 50}
    job |= {"train": {"schedule": {"name": "cosine", "warmup": 20}}, "queue": {"kind": "zarr"}}
    task = {"loss": "huber", "monitor": "mae"}  # of a regression; trials do not validate
    plan = mr.plan("sbm:nodes=200,targets=2,train=0.2", verbose=False, **job, **task)
    assert plan.recommended is not None
    tried, epochs = plan.trials["bulk"]["bytes"]["store"]["minibatches"], 50 / trial.EPOCHS
    assert tried > 0 and plan.systems[0].bytes["store"]["minibatches"] == pytest.approx(epochs * tried)


@pytest.mark.usefixtures("forked_workers")
def test_a_mapped_store_is_planned_by_itself_and_by_a_stand_in(tmp_path, monkeypatch) -> None:
    only(monkeypatch, "bulk", "sar")
    asked = without_base(monkeypatch)
    mr.write_dataset(tmp_path / "store", mr.open_dataset(SBM), features_format="npy", graph_format="npy")
    job = {"fanout": [4, 3], "batch_size": 8, "hidden": 8, "epochs": 2, "features": "mapped", "graph": "mapped"}
    plan = mr.plan(tmp_path / "store", verbose=False, ranks=2, **job)
    assert all(f.fits for f in plan.systems) and {f.system for f in plan.systems} >= {"bulk", "sar"}
    assert "without the pages of files" in " ".join(plan.notes) and 'graph = "memory"' not in " ".join(plan.notes)
    assert asked == ["bulk"] and plan.trials["bulk"]["minibatches"] == 16 < 150 / 8, "of fewer train nodes"
    (packed,) = (note for note in plan.notes if "beside samples" in note)
    config = {"features": job["features"]}
    made = mr.sample(tmp_path / "store", out=tmp_path / "s", verbose=False, config=config, **{**job, "features": "own"})
    rows = made["packed_bytes"] / (1 + 8 / (4 * plan.numbers.features))  # without degrees
    bulk = next(f for f in plan.systems if f.label == "bulk")
    assert bulk.disk is not None and bulk.seconds_per_epoch is not None and all(not f.disk for f in plan.systems[1:])
    assert bulk.seconds_per_epoch >= bulk.disk.seconds_per_epoch > 0 and bulk.disk.packed_seconds > 0
    told = re.search(r"features of 2 epochs take ([\d.]+) (KiB|MiB) of disk; a minibatch reads", packed)
    assert told and float(told[1]) * {"KiB": 1 << 10, "MiB": 1 << 20}[told[2]] == pytest.approx(rows, rel=0.15)
    monkeypatch.setattr(inputs, "MOST_EDGES", 200)
    typed = typed_dataset(degree=100, edge_features=True)
    mr.write_dataset(tmp_path / "typed", typed, features_format="npy", graph_format="npy")
    plan = mr.plan(tmp_path / "typed", verbose=False, model="rgat", **job)
    notes = " ".join(plan.notes)
    assert "stands in for the graph" in notes and asked == ["bulk", "bulk", "sar"], "each its own"
    assert 'sar is planned with graph = "memory": it arranges the edges of one rank in memory.' in notes
    assert plan.numbers.relations == 5
    assert [(f.label, f.estimate) for f in plan.systems] == [("bulk", True), ("sar", True)]


def test_what_cannot_be_is_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "bulk")
    seen = millrace("plan", "--dataset", SBM, "--memory", "0.05", "--epochs", "1")
    assert seen.code == 2 and "bulk does not fit: process " in seen.out and "of 51 MiB for a rank" in seen.out
    seen = millrace("plan", "--dataset", SBM, "--memory", "1e-6", "--epochs", "1")
    assert seen.code == 2 and "bulk does not fit: at least graph " in seen.out
    assert seen.err.count("nothing fits") == 1


def test_no_generated_graph_has_times(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "samples by time are planned on the graph itself, of at most 6,000,000 edges: no generated graph has its"
    by_time = {"sampler": {"name": "temporal"}}
    with pytest.raises(InputError, match=said):
        mr.plan(numbers=Numbers(1000, 9000), verbose=False, config=by_time)
    monkeypatch.setattr(inputs, "MOST_EDGES", 200)
    for data in ("tsbm:nodes=300,degree=6", mr.link_dataset(mr.open_dataset("ratings:users=50"), split="time:0.8,0.1")):
        with pytest.raises(InputError, match=said):
            mr.plan(data, verbose=False, config=by_time)


def test_a_stand_in_has_pairs_to_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "bulk")
    without_base(monkeypatch)
    job = {"fanout": [4, 3], "batch_size": 64, "hidden": 8, "epochs": 2, "verbose": False}
    made = mr.plan(numbers=Numbers(1000, 9000, 12), **job, config={"read": {"task": "link"}})
    # 85 % of the pairs train, and are edges in both directions.
    n = made.numbers
    assert n.task == "link" and n.edges == pytest.approx(0.85 * 9000, rel=0.01)
    assert n.train * n.nodes == pytest.approx(n.edges / 2, rel=0.02) and n.pairs == pytest.approx(9000 / 2, rel=0.05)
    (bulk,) = made.systems
    assert bulk.estimate and bulk.steps_per_epoch == pytest.approx(n.train * n.nodes / 64, abs=1)
    monkeypatch.setattr(inputs, "MOST_EDGES", 1000)
    links = mr.link_dataset(mr.open_dataset(SBM))
    made = mr.plan(links, **job)
    assert made.numbers == Numbers.from_dataset(links) and made.numbers.pairs == len(links.labels)
    assert made.systems[0].steps_per_epoch == -(-len(links.split.train) // 64)
    assert made.trials["bulk"]["minibatches"] < 8 and "stands in for the graph" in " ".join(made.notes)


@pytest.mark.parametrize("task", ["multiclass", "link"])
def test_a_trial_on_fewer_seeds_keeps_the_split(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    only(monkeypatch, "bulk")
    without_base(monkeypatch)
    job = {"fanout": [2, 2], "batch_size": 4, "hidden": 8, "epochs": 1, "split": "fraction:0.8,0.1"}
    made = mr.plan(SBM, verbose=False, **job, config={"read": {"task": task}})
    assert made.numbers.task == task and made.systems[0].steps_per_epoch >= 60
    # Eight steps of each of five epochs.
    assert (made.trials["bulk"]["minibatches"], made.trials["bulk"]["steps"]) == (8, 40)


def test_links_and_clusters_are_checked() -> None:
    with pytest.raises(InputError, match="model is a Linear: plan knows Millrace's own models"):
        mr.plan(SBM, model=torch.nn.Linear(2, 2), verbose=False)
    with pytest.raises(InputError, match=r"ranks is 400, but the graph has 300 nodes"):
        mr.plan(SBM, ranks=400, verbose=False)
    with pytest.raises(InputError, match="bandwidth above 0"):
        Cluster(1, None, Link(0, 0)).check(1)
    with pytest.raises(InputError, match="one of them"):
        plan("digits", numbers=Numbers(10, 10))


def test_rows_of_minibatches_fetched_together_are_asked_for_once(played: Played) -> None:
    s, seen = played.candidates["bulk, owned features"], played.seen["bulk, owned features"]
    united = [100.0, 180.0, 240.0, 280.0, 310.0, 335.0, 355.0, 370.0]
    seen, s = replace(seen, distinct=united), replace(s, job=s.job.model_copy(update={"epochs": 1}))
    # 11 steps of two ranks: one, then eight, then two; later eight and three.
    first, later = traffic.rows_asked(s, seen, 22, 2)
    assert first * 100 == pytest.approx(2 * (100 + 370 + 180)) and later * 100 == pytest.approx(2 * (370 + 240))
    # Of the last step one rank has a minibatch, the other none.
    assert traffic.rows_asked(s, seen, 21, 2)[1] * 100 == pytest.approx(2 * 370 + 180 + 240)
    assert traffic.rows_asked(s, seen, 1, 2) == pytest.approx((1, 1))
    assert traffic.rows_of(united, 0.5) == 50 and traffic.rows_of(united, 1.5) == 140
    assert traffic.rows_of(united, 9) == 370 + 15
    queue = s.job.queue.model_copy(update={"kind": "zarr"})
    stored = replace(s, job=s.job.model_copy(update={"queue": queue}))
    assert traffic.rows_asked(stored, seen, 22, 2) == pytest.approx((22, 22)), "step by step"


def test_what_is_made_faster_than_it_is_trained_on_comes_to_wait(played: Played) -> None:
    s, seen = played.candidates["bulk, owned features"], played.seen["bulk, owned features"]
    job = s.job.model_copy(update={"epochs": 100, "queue": s.job.queue.model_copy(update={"max_bytes": 1 << 30})})
    fast = replace(
        seen, distinct=[4800.0], minibatch_bytes=1000.0, step_s=1.0, sample_s=0.25, fetch_s=0.5, evaluate_s=0.0
    )
    # Rows of 12 numbers. Of a rank's 468.75 minibatches half are ready when the last one is, of the trial's too.
    held, tried = forecasting.waiting_bytes(replace(s, job=job), fast), trial.EPOCHS * seen.minibatches / 2
    assert held["rows"] == pytest.approx((468.75 - tried) * 0.5 * (100 * 12 * 4 + 1000), rel=0.01)
    assert held["bulks"] == pytest.approx((468.75 * (0.75 - 0.5) - s.job.queue.bulk_size) * 1000, rel=0.01)
    # Validation is time for the fetching too: where it takes as long as an epoch's training, three in four are ready.
    every = job.model_copy(update={"train": job.train.model_copy(update={"evaluate_every": 1})})
    data = s.at.dataset
    with_val = replace(data, split=replace(data.split, val=data.split.test[:1]))
    validates = replace(s, job=every, at=replace(s.at, dataset=with_val))
    validated = forecasting.waiting_bytes(validates, replace(fast, evaluate_s=9.375 / s.ranks))
    assert validated["rows"] / held["rows"] == pytest.approx(
        (468.75 * 0.75 - tried * 0.5) / ((468.75 - tried) * 0.5), rel=0.01
    )
    slow = replace(fast, sample_s=2.0)
    assert forecasting.waiting_bytes(replace(s, job=job), slow) == {"rows": 0, "bulks": 0}


def test_a_plan_with_a_stopped_process_ends_by_one_signal(tmp_path):
    command = ForkedCommand("plan", "--dataset", SBM, "--epochs", 3, err=tmp_path / "err")
    servers: list[psutil.Process] = []
    while not servers:
        assert command.poll() is None, (tmp_path / "err").read_text()
        children = psutil.Process(command.pid).children()
        servers = [child for child in children if "trial_server" in command_of(child)]
    servers[0].suspend()
    command.send_signal(signal.SIGTERM)
    assert command.wait(120) == 130 and not psutil.wait_procs(servers, timeout=60)[1]
    said = (tmp_path / "err").read_text()
    assert "interrupted" in said and "Traceback" not in said
