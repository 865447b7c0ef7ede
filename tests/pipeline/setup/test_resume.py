"""Runs are gone on with by other numbers of ranks than began them: the same minibatches, each once."""

import shutil
import tomllib
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.schema import Train
from millrace.pipeline.setup.resume import Pace, elsewhere, position, redistributed, resumable, without_executor
from millrace.pipeline.setup.run_folder import CHECKPOINTS, JOB, MODEL, RESULT, check_resumable
from millrace.pipeline.telemetry.events import Note, StepDone
from millrace.stages.assignment import Steps
from millrace.stages.messages import Phase
from millrace.storage.checkpoint import CheckpointStore, Cursor
from millrace.storage.errors import InputError, RunError, StoreError
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command

SPEC = "sbm:nodes=120,classes=3,degree=5,features=4,train=0.5"
MINIBATCHES = 9
"""Minibatches of an epoch: an odd number of which the last is short."""
TABLE = {
    "dtype": "float64",
    "epochs": 3,
    "sampler": {"name": "neighbor", "fanout": [3, 2]},
    "model": {"name": "sage", "hidden": 4, "dropout": 0.3, "norm": "batch"},
    "queue": {"bulk_size": 2},
}


def table(ranks: int, width: int | None = None, **options) -> dict:
    return {
        **TABLE,
        "ranks": ranks,
        "train": {"batch_size": 7, "minibatches_per_step": width, "evaluate_every": 1},
        **options,
    }


def total(reports, name: str) -> int:
    return sum(r[name] for r in reports)


@pytest.mark.parametrize("minibatches", [1, 5, 8, 9])
def test_no_minibatch_is_trained_twice_or_left_out(minibatches):
    for before, now in product(range(1, 6), repeat=2):
        was, is_ = Pace.from_steps(Steps(minibatches, before)), Pace.from_steps(Steps(minibatches, now))
        for steps in range(3 * was.steps_per_epoch + 1):
            epoch, step = divmod(steps, was.steps_per_epoch)
            trained = epoch * minibatches + min(step * before, minibatches)
            position, begun = was.position(steps, is_)
            epoch, step = divmod(position, is_.steps_per_epoch)
            assert epoch * minibatches + step * now + begun == trained
            assert begun < now


@pytest.mark.parametrize(("before", "now", "width"), [(1, 3, None), (3, 2, None), (2, 1, 2)])
def test_other_ranks_go_on_in_mid_epoch(tmp_path, before, now, width):
    unchanged = train_bulk(SPEC, tmp_path / "whole", table(1, width))
    began = train_bulk(SPEC, tmp_path / "run", table(before, width), steps=-(-MINIBATCHES // (width or before)) + 1)
    _, last, per_epoch = began[0]["steps"][-1]
    assert last + 1 < per_epoch, "not in mid-epoch"
    epochs = 4 if now == 3 else 3
    ended = train_bulk(SPEC, tmp_path / "run", table(now, width, epochs=epochs))
    assert len(ended[0]["history"]) == epochs
    assert total(ended, "minibatches") == epochs * MINIBATCHES
    assert all(s == -(-MINIBATCHES // (width or now)) for _, _, s in ended[0]["steps"])
    assert len({r["parameters_sha256"] for r in ended}) == 1
    if epochs == 3:
        assert total(ended, "sampled_edges") == total(unchanged, "sampled_edges")
    changed = [n for n in ended[0]["notes"] if "minibatches, but other steps" in n]
    assert bool(changed) == (width is None)
    if width is not None:
        for mine, theirs in zip(ended[0]["history"], unchanged[0]["history"], strict=True):
            assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        left, right = last_parameters(tmp_path / "run"), last_parameters(tmp_path / "whole")
        assert all(torch.allclose(left[k], right[k], rtol=1e-6, atol=1e-9) for k in right)


def test_what_former_ranks_counted_is_kept():
    ledgers = [[1, 10], [2, 20], [3, 30]]
    assert redistributed(ledgers, 3) == ledgers
    assert redistributed(ledgers, 2) == [[4, 40], [2, 20]]
    assert redistributed(ledgers, 1) == [[6, 60]]
    assert redistributed(ledgers, 4) == [*ledgers, [0, 0]]


def test_checkpoints_of_earlier_versions_tell_their_pace():
    state = {"ledgers": [[0], [0], [0]]}
    assert Pace.written(state, Train(), 9) == Pace(3, 3)
    assert Pace.written(state, Train(minibatches_per_step=2), 9) == Pace(2, 5)
    assert Pace.written({**state, "pace": {"minibatches_per_step": 4, "steps_per_epoch": 3}}, Train(), 9) == Pace(4, 3)


@pytest.mark.parametrize("system", ["grappa", "sar", "retexo"])
def test_parts_are_of_as_many_ranks(tmp_path, system):
    (tmp_path / JOB).write_text(resolve({"system": system, "ranks": 2}).to_toml())
    CheckpointStore(tmp_path / CHECKPOINTS, {"parts": "2"}).save(Cursor(0, 1), {})
    with pytest.raises(StoreError, match=r"started with ranks = 2, .* cannot continue with 3; resume with --ranks 2"):
        check_resumable(tmp_path, resolve({"system": system, "ranks": 3}), {"parts": "3"}, None)


def test_ranks_are_not_blamed_for_what_they_do_not_decide(tmp_path):
    (tmp_path / JOB).write_text(resolve({"ranks": 2, "seed": 1}).to_toml())
    CheckpointStore(tmp_path / CHECKPOINTS, {"seed": "1"}).save(Cursor(0, 1), {})
    with pytest.raises(StoreError, match=r"other settings: seed \(was 1, now 2\);"):
        check_resumable(tmp_path, resolve({"ranks": 3, "seed": 2}), {"seed": "2"}, None)


def test_a_stored_executor_gives_way_to_more_ranks():
    assert without_executor({"executor": "inline", "ranks": 2}) == {"ranks": 2}
    for table_ in ({"executor": "inline", "ranks": 1}, {"executor": "dask", "ranks": 2}, {"executor": "inline"}):
        assert without_executor(table_) == table_


def test_the_executor_is_implied_when_a_run_is_resumed(tmp_path, monkeypatch):
    """One that holds a single rank is refused only where it was asked for."""
    seen = []
    monkeypatch.setattr("millrace.pipeline.ready.check_available", lambda job: seen.append(job) or 1 / 0)
    stored = resolve({"executor": "inline"}).model_dump(exclude_none=True)
    for options in ({"ranks": 2}, {"ranks": 2, "executor": "inline"}, {}):
        with pytest.raises(ZeroDivisionError):
            mr.run(out=tmp_path, resume=True, config=stored, **options)
    assert [(job.executor, job.ranks) for job in seen] == [("dask", 2), ("inline", 2), ("inline", 1)]


def test_a_resume_that_fails_leaves_the_result(tmp_path):
    options = {"out": tmp_path / "run", "fanout": [2], "hidden": 2, "threads": 1}
    data = mr.open_dataset("sbm:nodes=60,classes=2,degree=4,features=3")
    mr.run(data, epochs=1, **options)
    before = [(tmp_path / "run" / name).read_bytes() for name in (RESULT, MODEL)]

    def fail(event):
        if isinstance(event, StepDone):
            raise RunError("the disk is full")

    with pytest.raises(RunError, match="disk is full"):
        mr.run(data, epochs=3, resume=True, emit=fail, **options)
    assert [(tmp_path / "run" / name).read_bytes() for name in (RESULT, MODEL)] == before


def test_the_position_of_a_resumed_run_counts_from_one():
    one, pace = (Phase(0, 0, 3),), {"minibatches_per_step": 1, "steps_per_epoch": 8}
    assert position(Cursor(0, 0), one, pace) == "epoch 1, step 1"
    assert position(Cursor(0, 18), one, pace) == "epoch 3, step 3"
    assert position(Cursor(0, 24), one, pace) == "the end of epoch 3"
    assert position(Cursor(1, 0), one, pace) == "the end of training"
    assert position(Cursor(0, 18), one, None) == "step 19", "checkpoints of earlier versions know no pace"
    two = (Phase(0, 0, 3), Phase(1, 3, 6))
    assert position(Cursor(1, 9), two, pace) == "phase 2 of 2, epoch 5, step 2"


def test_a_folder_does_not_choose_who_is_connected(tmp_path, monkeypatch):
    out = tmp_path / "run"
    mr.run(SPEC, config=TABLE, epochs=1, out=out, verbose=False)
    text = (out / JOB).read_text().replace('executor = "inline"', 'executor = "dask"')
    (out / JOB).write_text(text.replace("[cluster]", '[cluster]\nscheduler = "tcp://127.0.0.1:9"'))
    tried = []
    monkeypatch.setattr("millrace.pipeline.cluster.dask_cluster.check_reachable", tried.append)
    again = "--set cluster.scheduler=tcp://127.0.0.1:9"
    code, _, said = command("run", "--resume", "--out", out)
    assert code == 2
    assert again in said
    with pytest.raises(InputError, match=r"was trained with cluster.scheduler = 'tcp://127.0.0.1:9'; .* name it if"):
        mr.run(out=out, resume=True, verbose=False)
    assert not tried
    assert command("run", "--resume", "--out", out, "--set", "executor=inline")[0] == 0

    class TriedError(Exception):
        pass

    def reached(cluster):
        raise TriedError(cluster.scheduler)

    monkeypatch.setattr("millrace.pipeline.cluster.dask_cluster.check_reachable", reached)
    (out / JOB).write_text(text.replace("[cluster]", '[cluster]\nscheduler = "tcp://127.0.0.1:9"'))
    with pytest.raises(TriedError, match=r"127\.0\.0\.1:8"):
        mr.run(out=out, resume=True, verbose=False, scheduler="tcp://127.0.0.1:8")


def test_only_what_opens_a_run_to_others_is_left_out_of_its_configuration():
    given = {"cluster": {"host": "0.0.0.0", "insecure": True, "restarts": 1}, "epochs": 2}
    assert resumable(given) == {"cluster": {"restarts": 1}, "epochs": 2}


@pytest.mark.parametrize("queue", ["memory", "zarr"])
@pytest.mark.parametrize("named", [{}, {"kernel": "cuda"}, {"kernel": "cpu"}])
def test_a_kernel_that_the_gpu_chose_is_chosen_anew_and_one_that_was_named_stays(queue, named):
    begun = resolve({**TABLE, "dataset": SPEC, "device": "cuda", "queue": {"kind": queue}, **named})
    kept = resumable(tomllib.loads(begun.to_toml()))
    assert ("kernel" in kept) == bool(named)
    again = resolve(kept)
    assert (again.kernel, "kernel" in again.model_fields_set) == (begun.kernel, bool(named))
    assert again.model_dump() == begun.model_dump()


@pytest.mark.parametrize("way", ["resume", "load"])
def test_what_a_folder_has_a_run_do_elsewhere_is_said_before(tmp_path, way):
    """A folder may come from anyone."""
    out, place, other, far = tmp_path / "run", tmp_path / "far", tmp_path / "other", "https://127.0.0.1:9/graph.npz"
    job = {"fanout": [3, 2], "hidden": 4, "epochs": 1, "queue": {"kind": "zarr", "location": str(place)}}
    mr.run(SPEC, out=out, verbose=False, **job)
    shutil.rmtree(place)
    text = (out / JOB).read_text().replace(f'dataset = "{SPEC}"', f'dataset = "{far}"')
    text = f'start_from = "{other}"\n{text}'
    (out / JOB).write_text(text.replace("track = []", 'track = ["tensorboard"]'))
    told = []
    go = partial(mr.run, out=out, resume=True) if way == "resume" else partial(mr.predict, out)
    with pytest.raises((InputError, RunError)):
        go(emit=told.append)
    wanted = f"the run of {out} reads {far} and {other}, writes minibatches to {place}, reports to tensorboard"
    assert told[0] == Note(wanted if way == "resume" else f"reading {far}, which {out} names")
    assert not place.exists()


def test_data_given_in_the_place_of_the_jobs_are_what_is_read(tmp_path):
    job = resolve({"dataset": "https://127.0.0.1:9/graph.npz"})
    assert elsewhere(job, tmp_path) == [f"the run of {tmp_path} reads https://127.0.0.1:9/graph.npz"]
    assert elsewhere(job, tmp_path, is_given=True) == []


def test_a_refused_resume_names_what_was_set_and_nothing_else(tmp_path):
    data = mr.open_dataset(SPEC)
    rows = np.random.default_rng(0).normal(size=(data.graph.num_edges, 2)).astype(np.float32)
    data = replace(data, graph=replace(data.graph, edge_features=ArrayFeatures(rows)))
    job = {"out": tmp_path / "run", "model": "gine", "fanout": [2, 2], "hidden": 4, "verbose": False}
    mr.run(data, epochs=1, **job)
    assert "edge_ids = true" in (tmp_path / "run" / JOB).read_text(), "which nobody has set"
    with pytest.raises(StoreError, match=r"other settings: train\.lr \(was [\d.]+, now 0\.5\); resume with the same"):
        mr.run(data, epochs=2, lr=0.5, resume=True, **job)
