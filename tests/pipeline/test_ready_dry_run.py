"""A dry run says what would run, refuses what a run refuses, and writes nothing."""

import json

import pytest

import millrace as mr
from millrace.pipeline.config.systems import SYSTEMS
from millrace.tests.contracts.command import command

SOURCE = "sbm:nodes=150,classes=3,degree=6,features=5,train=0.3"
JOB = {"epochs": 2, "hidden": 8, "layers": 2, "threads": 1}


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_what_is_said_is_what_runs(name, tmp_path):
    sampled = {"fanout": [3, 3], "batch_size": 10} if SYSTEMS[name].samples else {}
    options = {**JOB, **sampled, "system": name, "out": tmp_path / "run"}
    said = mr.dry_run(SOURCE, **options)
    assert not list(tmp_path.iterdir())
    result = mr.run(SOURCE, **options, checkpoint={"every_steps": 1})
    assert (said["model"], said["nodes"], said["edges"]) == (result.model, result.num_nodes, result.num_edges)
    assert said["parameters"] == sum(p.numel() for p in mr.load(result).model.parameters())
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {e["steps_per_epoch"] for e in steps if e["event"] == "StepDone"} == {said["steps_per_epoch"]}
    again = {**options, "resume": True}
    assert mr.dry_run(SOURCE, **again)["out"] == str(tmp_path / "run")
    with pytest.raises(mr.StoreError, match=r"model.hidden \(was 8, now 9\)"):
        mr.dry_run(SOURCE, **{**again, "hidden": 9})


def test_the_command_refuses_what_a_run_refuses(tmp_path):
    arguments = ("run", "--dataset", SOURCE, "--fanout", "3,3", "--out", tmp_path / "run", "--dry-run")
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    assert json.loads(out)["splits"] == {"train": 45, "val": 15, "test": 90}
    code, out, err = command(*arguments, "--set", "ranks=2")
    assert code == 0 and "2 ranks on cpu (dask)" in out and "nothing was written" in out, err
    code, out, err = command(*arguments, "--code", "loss=torch.nn.functional:cross_entropy")
    assert code == 2 and 'reduction="none"' in err
    code, out, err = command(*arguments, "--set", f"queue.location={tmp_path / 'queue'}")
    assert code == 2 and "queue.location is set, but the queue is in memory; set queue.kind=zarr" in err
    assert not list(tmp_path.iterdir())
