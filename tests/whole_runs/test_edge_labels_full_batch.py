"""Labels of edges under `sar`: the steps of one minibatch of all train edges, on any number of ranks and in every mode,
whatever is on which rank; and refusals."""

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.prepare import prepare
from millrace.stages.partition.base import Cut
from millrace.stages.partition.stage import cut_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.whole_runs.test_edge_labels import nasty
from millrace.tests.whole_runs.test_partitioned_links import train

JOB = {
    "epochs": 5, "seed": 3, "threads": 1, "dtype": "float64", "link": {"width": 8}, "train": {"lr": 0.02},
    "model": {"name": "sage", "hidden": 8, "layers": 2, "dropout": 0.0},
}  # fmt: skip


def bulk(data, out, **more):
    """One minibatch of all train edges a step."""
    table = {**JOB, **more, "sampler": {"fanout": [-1, -1]}, "train": {**JOB["train"], "batch_size": 10**6}}
    return mr.run(data, config=table, out=out, verbose=False)


def on_ranks(data, ranks, out, **more):
    """Reports of a run on parts, which is stopped after three steps and goes on."""
    job = resolve({**JOB, "system": "sar", "ranks": ranks, **more})
    prepared = prepare(job, data)
    out.mkdir()
    partitioner, parts = prepared.system.partition.partitioner, prepared.system.parts_before(ranks)
    cut_dataset(data, Cut(partitioner, parts, job.seed), out / "parts")
    return [r[0] for r in run_ranks(train, ranks, data, [(job, out, prepared.fingerprint)])]


def same(out, whole):
    for name, value in last_parameters(whole).items():
        torch.testing.assert_close(last_parameters(out)[name], value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_one_rank_is_one_batch_of_bulk(tmp_path, task):
    data = nasty(False, task)
    wanted = bulk(data, tmp_path / "bulk")
    found = mr.run(data, config={**JOB, "system": "sar"}, out=tmp_path / "sar", verbose=False)
    same(tmp_path / "sar", tmp_path / "bulk")
    assert found.test_accuracy == wanted.test_accuracy
    assert found.test_metrics == pytest.approx(wanted.test_metrics)
    assert found.train_loss == pytest.approx(wanted.train_loss, rel=1e-10)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {"sar": {"mode": "rematerialize"}}),
        (2, {"sar": {"mode": "halo", "prune": False}}),
        (4, {"sar": {"mode": "keep"}, "partition": {"method": "hash"}}),
        (4, {"sar": {"mode": ["halo", "rematerialize"]}, "model": {**JOB["model"], "name": "gat"}}),
        (2, {"learned": {"width": 3}}),
    ],
    ids=str,
)
def test_any_number_of_ranks_in_every_mode(tmp_path, ranks, options):
    data = nasty()
    shared = {k: v for k, v in options.items() if k in ("model", "learned")}
    wanted = bulk(data, tmp_path / "bulk", **shared)
    reports = on_ranks(data, ranks, tmp_path / "run", **options)
    assert [r["test_accuracy"] for r in reports] == [pytest.approx(wanted.test_accuracy)] * ranks
    assert reports[0]["confusion"] == wanted.confusion
    same(tmp_path / "run", tmp_path / "bulk")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_without_edges_of_its_own_and_one_without_nodes(tmp_path, ranks):
    """All destinations lie on one rank; a third one holds nothing."""
    data = nasty()
    inside = data.pairs[:, 1] < 30
    kept = {name: ids[inside[ids]] for name, ids in vars(data.split).items()}
    data = mr.Dataset(**{**vars(data), "split": mr.Split(**kept)})
    np.save(tmp_path / "owners.npy", (np.arange(data.num_nodes) >= 30).astype(np.int64))
    wanted = bulk(data, tmp_path / "bulk")
    reports = on_ranks(data, ranks, tmp_path / "run", partition={"owners": str(tmp_path / "owners.npy")})
    assert reports[0]["test_accuracy"] == pytest.approx(wanted.test_accuracy)
    same(tmp_path / "run", tmp_path / "bulk")


def test_a_relation_of_a_graph_with_types(tmp_path):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 30, 200), rng.integers(0, 40, 200)
    edges = {
        ("user", "rates", "item"): (user, item),
        ("item", "like", "item"): (rng.integers(0, 40, 60), rng.integers(0, 40, 60)),
    }
    features = {"user": rng.standard_normal((30, 3)), "item": rng.standard_normal((40, 4))}
    graph = mr.from_relations(edges, features=features, add_reverse=True)
    data = mr.edge_dataset(graph, np.stack([user, item], 1), rng.standard_normal(200), relation="rates")
    model = {"model": {"name": "rgcn", "hidden": 8, "layers": 2, "dropout": 0.0}}
    bulk(data, tmp_path / "bulk", **model)
    on_ranks(data, 2, tmp_path / "run", partition={"method": "hash"}, **model)
    same(tmp_path / "run", tmp_path / "bulk")


def test_hidden_edges_are_refused(tmp_path):
    with pytest.raises(InputError, match='each of which would see itself; use "seen", or bulk'):
        mr.run(nasty(True), system="sar", out=tmp_path / "run", verbose=False)
    assert not (tmp_path / "run").exists()


def test_two_ranks_of_a_cluster_predict(scheduler, tmp_path):
    mr.write_dataset(tmp_path / "store", mr.open_dataset("payments:accounts=200,degree=5,features=6"))
    job = {**JOB, "system": "sar", "ranks": 2, "cluster": {"scheduler": scheduler}}
    result = mr.run(str(tmp_path / "store"), config=job, out=tmp_path / "run", verbose=False)
    data = mr.open_dataset(str(tmp_path / "store"))
    found = mr.predict_edges(result, "test")
    assert result.test_accuracy == pytest.approx((found.classes == data.labels[data.split.test]).mean())
