"""Schedules, clipping, averages, groups and seeds in whole runs: on any system, on two ranks, after a resume."""

import json
from itertools import chain, repeat

import pytest
import torch

import millrace as mr
from millrace.pipeline.config.systems import SYSTEMS

JOB = {"epochs": 5, "seed": 3, "lr": 0.05, "hidden": 8, "layers": 2, "dropout": 0.1, "threads": 1, "dtype": "float64"}
TRAIN = {"schedule": {"name": "cosine", "warmup": 1.5}, "clip_norm": 0.2, "ema": 0.9, "optimizer": "nadam"}


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=300,classes=3,degree=8,features=5,train=0.3")


def model_of(run):
    return torch.load(run / "model.pt", weights_only=True)


def job_of(name):
    return {**JOB, "system": name} | ({"fanout": [4, 3], "batch_size": 16} if SYSTEMS[name].samples else {})


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(name, sbm, tmp_path):
    options = {**job_of(name), "train": TRAIN, "checkpoint": {"every_steps": 1}}
    whole = mr.run(sbm, out=tmp_path / "whole", **options)
    asked, lives = iter(range(1000)), 0
    while mr.run(
        sbm, out=tmp_path / "parts", resume=lives > 0, stop=lambda: next(asked) % 4 == 3, **options
    ).status == ("stopped"):
        lives += 1
    resumed = mr.run(sbm, out=tmp_path / "parts", resume=True, **options)
    assert lives and resumed.parameters_sha256 == whole.parameters_sha256
    assert (resumed.test_accuracy, resumed.best_epoch) == (whole.test_accuracy, whole.best_epoch)
    a, b = model_of(tmp_path / "whole"), model_of(tmp_path / "parts")
    assert all(torch.equal(a[k], b[k]) for k in a)
    plain = mr.run(sbm, out=tmp_path / "plain", **job_of(name))
    assert plain.parameters_sha256 != whole.parameters_sha256


def test_two_ranks_train_as_one_and_one_goes_on_for_two(sbm, scheduler, tmp_path):
    options = {**job_of("bulk"), "train": {**TRAIN, "minibatches_per_step": 2}}
    ranks = {"ranks": 2, "scheduler": scheduler}
    one = mr.run(sbm, out=tmp_path / "one", **options)
    two = mr.run(sbm, out=tmp_path / "two", **ranks, **options)
    # On a busy machine ranks may be done before the driver has asked four times.
    for times in (3, 1, 0):
        stop, folder = chain(repeat(False, times), repeat(True)).__next__, tmp_path / f"changed-{times}"
        stopped = {"stop": stop, "checkpoint": {"every_steps": 1}}
        if mr.run(sbm, out=folder, **ranks, **options, **stopped).status == "stopped":
            break
    else:
        pytest.fail("a run that is asked to stop at once ends as if it were not")
    changed = mr.run(sbm, out=folder, ranks=1, executor="inline", resume=True, **options)
    a = model_of(tmp_path / "one")
    for result, out in ((two, "two"), (changed, folder.name)):
        assert result.train_loss == pytest.approx(one.train_loss, rel=1e-9)
        b = model_of(tmp_path / out)
        for k in a:
            torch.testing.assert_close(a[k], b[k], rtol=1e-8, atol=1e-10)


def average_of(run):
    """The average, by the checkpoint after each step."""
    states = sorted((run / "checkpoints").glob("step-*"), key=lambda p: [int(x) for x in p.name.split("-")[1:]])
    average = {}
    for state in (torch.load(p / "state.pt", weights_only=True)["model"] for p in states if not p.name.endswith("-0")):
        average = {k: torch.lerp(average[k], v, 1 - TRAIN["ema"]) if average else v for k, v in state.items()}
    return average


@pytest.mark.parametrize("ends", ["done", "stopped"])
@pytest.mark.parametrize("name", ["bulk", "grappa"])
def test_the_average_is_what_is_saved(sbm, tmp_path, name, ends):
    """Without validation nodes, of the last step, whatever super-epochs there were."""
    data = mr.open_dataset(sbm, split="fraction:0.3,0")
    options = {**job_of(name), "checkpoint": {"every_steps": 1, "keep": 1000}}
    options |= {"grappa": {"repartition_every": 2}} if name == "grappa" else {}
    asked = iter(range(1000))
    stop = (lambda: next(asked) == 17) if ends == "stopped" else (lambda: False)
    plain = mr.run(data, out=tmp_path / "plain", **options)
    result = mr.run(data, out=tmp_path / "run", stop=stop, train={"ema": TRAIN["ema"]}, **options)
    assert result.status == ends
    assert ends == "stopped" or result.parameters_sha256 == plain.parameters_sha256, "the steps are the same"
    saved, average = model_of(tmp_path / "run"), average_of(tmp_path / "run")
    for k in saved:
        torch.testing.assert_close(saved[k], average[k], rtol=0, atol=1e-12)


def test_the_average_is_what_is_validated(sbm, tmp_path):
    options = {**job_of("bulk"), "epochs": 1, "checkpoint": {"every_steps": 1, "keep": 1000}}
    mr.run(sbm, out=tmp_path / "run", train={"ema": TRAIN["ema"]}, **options)
    saved, average = model_of(tmp_path / "run"), average_of(tmp_path / "run")
    for k in saved:
        torch.testing.assert_close(saved[k], average[k], rtol=0, atol=1e-12)


def test_the_rate_is_in_the_events(sbm, tmp_path):
    mr.run(sbm, out=tmp_path / "run", **job_of("bulk"), train={"schedule": {"name": "step", "every": 2}})
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [e["lr"] for e in lines if e["event"] == "EpochDone"] == pytest.approx([0.05, 0.05, 0.005, 0.005, 0.0005])


def test_more_epochs_need_a_schedule_that_does_not_hang_on_them(sbm, tmp_path):
    for name in ("cosine", "step"):
        options = {**job_of("bulk"), "out": tmp_path / name, "train": {"schedule": name}}
        mr.run(sbm, **options)
        more = {**options, "epochs": 6, "resume": True}
        if name == "step":
            assert mr.run(sbm, **more).epochs == 6
        else:
            with pytest.raises(mr.StoreError, match=r"epochs \(was 5, now 6\)"):
                mr.run(sbm, **more)


def test_seeds_apart(sbm, tmp_path):
    """One store of samples serves runs with other initial parameters."""
    options = {**job_of("bulk"), "queue": {"kind": "zarr", "keep": "all"}}
    one = mr.run(sbm, out=tmp_path / "one", **options)
    again = mr.run(sbm, out=tmp_path / "again", **{**options, "seeds": {"minibatches": 3, "initial": 3, "split": 3}})
    assert again.parameters_sha256 == one.parameters_sha256
    job = {k: v for k, v in options.items() if k != "queue"}
    samples = tmp_path / "one" / "queue"
    other = mr.run(sbm, out=tmp_path / "other", samples=samples, **job, seeds={"initial": 4})
    assert other.parameters_sha256 != one.parameters_sha256
    with pytest.raises(mr.StoreError, match="seed"):
        mr.run(sbm, out=tmp_path / "refused", samples=samples, **job, seeds={"minibatches": 4})
    splits = [
        mr.run(sbm, out=tmp_path / f"s{k}", **{**job, "split": "fraction:0.3,0.2", "seeds": {"split": k}})
        for k in (1, 2)
    ]
    assert splits[0].fingerprint["seeds"] != splits[1].fingerprint["seeds"]


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"train": {"schedule": "plateau", "evaluate_every": 0}}, "but train.evaluate_every is 0"),
        ({"train": {"patience": 2, "evaluate_every": 0}}, "patience is 2 validations, but train.evaluate_every is 0"),
        ({"train": {"schedule": "plateau"}, "split": "fraction:0.3,0"}, "the dataset has no validation nodes"),
        ({"train": {"schedule": {"name": "cosine", "warmup": 5}}}, "train.schedule.warmup is 5 epochs of 5"),
        ({"train": {"optimizer": "adan"}}, "did you mean 'adam'"),
        ({"system": "retexo", "retexo": {"clients": 4, "local_steps": 2}, "train": {"ema": 0.9}}, "train.ema is set"),
        ({"train": {"schedule": "cosin"}}, "'train.schedule.name' is 'cosin'"),
    ],
)
def test_what_cannot_follow_a_gradient_is_refused(sbm, tmp_path, options, phrase):
    with pytest.raises(mr.InputError) as caught:
        mr.run(sbm, out=tmp_path / "run", **{**JOB, **options})
    assert phrase in str(caught.value)
    assert not (tmp_path / "run").exists()
