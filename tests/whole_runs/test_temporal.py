"""Runs whose samples go by time: the same for any bulk, queue, threads and ranks, to the bit after a stop; and
refusals."""

import json

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.killed_run import check_goes_on_after_a_kill

SPEC = "tsbm:nodes=600,degree=6,days=20,features=6"
JOB = {
    "epochs": 3, "seed": 3, "lr": 0.02, "threads": 1, "batch_size": 64, "hidden": 8, "dropout": 0.1,
    "sampler": {"name": "temporal", "fanout": [4, 2]},
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return mr.open_dataset(SPEC)


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "timed"
    write_dataset(path, data)
    return str(path)


@pytest.fixture(scope="module")
def result(data, tmp_path_factory):
    return mr.run(data, out=tmp_path_factory.mktemp("runs") / "run", verbose=False, **JOB)


def test_any_number_of_ranks_queue_and_store_of_samples_train_the_same(store, tmp_path):
    table = {**JOB, "epochs": 2, "system": "bulk", "minibatches_per_step": 4, "dtype": "float64", "model": "gcn"}
    found = {name: train_bulk(store, tmp_path / name, {**table, "ranks": int(name)})[0] for name in ("1", "2")}
    zarr = {"queue": {"kind": "zarr", "bulk_size": 3}, "threads": 2}
    mr.run(store, out=tmp_path / "zarr", verbose=False, **{**table, **zarr})
    job = resolve({**table, "dataset": store})
    precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    found["stored"] = train_bulk(store, tmp_path / "stored", table, samples=str(tmp_path / "samples"))[0]
    model = last_parameters(tmp_path / "1")
    for name in (*found, "zarr"):
        for key, value in last_parameters(tmp_path / name).items():
            torch.testing.assert_close(value, model[key], rtol=1e-8, atol=1e-9)
        if name in found:
            assert found[name]["test_accuracy"] == found["1"]["test_accuracy"]


def test_a_killed_run_goes_on_to_the_same_bits(store, tmp_path, result):
    check_goes_on_after_a_kill(store, tmp_path / "run", result, JOB)


def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(data, tmp_path, result):
    options = {**JOB, "checkpoint": {"every_steps": 1}}
    asked, lives = iter(range(1000)), 0
    while mr.run(
        data, out=tmp_path / "parts", resume=lives > 0, verbose=False, stop=lambda: next(asked) % 5 == 4, **options
    ).status == ("stopped"):
        lives += 1
    again = mr.run(data, out=tmp_path / "parts", resume=True, verbose=False, **options)
    assert lives and again.parameters_sha256 == result.parameters_sha256
    assert (again.test_accuracy, again.best_epoch) == (result.test_accuracy, result.best_epoch)


def test_time_tells_what_the_whole_graph_does_not(data, tmp_path):
    told = {}
    for name in ("temporal", "neighbor"):
        job = {**JOB, "sampler": {"name": name, "fanout": [-1]}, "epochs": 20, "dropout": 0.0, "hidden": 16}
        told[name] = mr.run(data, out=tmp_path / name, verbose=False, **job).test_accuracy
    assert told["temporal"] > 0.8 and told["neighbor"] < 0.7


def test_predictions_are_those_of_the_evaluation(result, data, tmp_path):
    run = mr.load(result)
    found = mr.predict(run, nodes="test")
    right = np.mean(np.asarray(found.classes) == data.labels[data.split.test])
    assert right == pytest.approx(result.test_accuracy)
    assert mr.embed(run, nodes=[1, 2]).rows.shape == (2, 8)
    report = json.loads(command("evaluate", result.out, "--json")[1])
    assert report["accuracy"]["test"] == pytest.approx(result.test_accuracy)
    for refused in (
        lambda: mr.predict(run, workers=2),
        lambda: mr.predict(run, mr.open_dataset("sbm:nodes=50,features=6")),
        lambda: mr.plan(data, config={"sampler": JOB["sampler"]}),
    ):
        with pytest.raises(InputError, match="temporal"):
            refused()


def test_minibatches_for_ones_own_loop(data):
    for batch in mr.minibatches(data, **{**JOB, "epochs": 1}):
        rows = mr.GCN(hidden=8, layers=2).build(6, 4)(batch.neighbourhoods, batch.h)
        assert len(rows) == len(batch.y) == len(batch.seeds)


REFUSED = [
    ({"system": "grappa"}, "system 'grappa' trains on a rank's own part without times"),
    ({"bulk": {"topology": "partitioned"}}, 'topology is "partitioned"'),
    ({"features": "owned"}, "features is 'owned'"),
    ({"learned": 4}, "learned.width is 4"),
    ({"split": "fraction:0.5,0.2"}, "the future trains the past"),
    ({"split": "until:15,10"}, "the future trains the past"),
    ({"kernel": "cuda"}, "cuda|GPU|CUDA"),
    ({"sampler": {"name": "temporal", "strategy": "first"}}, "strategy"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(data, tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        mr.run(data, out=tmp_path / "run", verbose=False, **{**JOB, "epochs": 1, **options})
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("system", ["sar", "retexo"])
def test_systems_without_samples_have_no_sampler(data, tmp_path, system):
    with pytest.raises(InputError, match="sampler"):
        mr.run(data, out=tmp_path / "run", verbose=False, system=system, sampler=JOB["sampler"])


def test_seeds_and_edges_need_times(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 0]]), y=np.array([0, 1]), edge_time=np.array([1, 1]))
    for spec, sentence in ((tmp_path / "g.npz", "which are seeds, have none"), ("sbm:nodes=60", "the edges have none")):
        job = ["--dataset", spec, "--set", "sampler.name=temporal", "--out", tmp_path / "run"]
        job += ["--set", "split=fraction:0.5,0.0"] if "sbm" not in str(spec) else []
        code, out, err = command("run", *job)
        assert (code, out) == (2, "") and sentence in err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
