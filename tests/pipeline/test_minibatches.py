"""Minibatches for loops of one's own: those of a run, on any number of ranks, from a store, and under torchrun."""

import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.prepare import prepare
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.forked_command import run_forked
from millrace.tests.contracts.forked_path import forked_path
from millrace.tests.contracts.fresh_python import run_python

SPEC = "sbm:nodes=300,classes=3,degree=8,features=5,train=0.3"
JOB = {"fanout": [4, 3], "batch_size": 16, "seed": 3, "epochs": 2}


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset(SPEC)


def found(batches):
    return [(b.epoch, b.index, minibatch_digest(b.minibatch)) for b in batches]


def wanted(sbm):
    sampler = mr.NeighborSampler((4, 3))
    return [
        (epoch, index, minibatch_digest(m))
        for epoch in range(2)
        for index, m in enumerate(
            mr.sample_minibatches(sbm, sampler, sbm.split.train, batch_size=16, epoch=epoch, seed=3)
        )
    ]


def test_they_are_those_of_a_run_with_rows_and_labels(sbm):
    loader = mr.minibatches(sbm, **JOB)
    assert (loader.num_features, loader.num_classes, loader.epochs) == (5, 3, 2)
    assert found(loader) == found(loader) == wanted(sbm)
    assert len(loader) == len(wanted(sbm)) == 2 * loader.steps_per_epoch
    for batch in loader:
        np.testing.assert_array_equal(batch.h.numpy(), sbm.features.gather(batch.nodes))
        np.testing.assert_array_equal(batch.y.numpy(), sbm.labels[batch.seeds])
        assert np.array_equal(batch.nodes[: len(batch.seeds)], batch.seeds)
        assert batch.neighbourhoods[0].num_src == len(batch.nodes)
    assert found(loader.epoch(1)) == [entry for entry in wanted(sbm) if entry[0] == 1]
    assert found(mr.minibatches(resolve({"dataset": SPEC, **JOB}))) == wanted(sbm)


def test_a_loop_of_ones_own_takes_the_steps_of_a_run(sbm, tmp_path):
    options = {**JOB, "hidden": 8, "dropout": 0.0, "dtype": "float64", "lr": 0.1, "optimizer": "sgd"}
    mr.run(sbm, out=tmp_path / "run", verbose=False, **options)
    trained = last_parameters(tmp_path / "run")
    model = prepare(resolve(options), sbm).model.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in mr.minibatches(sbm, **options):
        optimizer.zero_grad()
        F.cross_entropy(model(batch.neighbourhoods, batch.h), batch.y).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, trained[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("ranks", "per_step"), [(2, None), (3, None), (2, 5)])
def test_ranks_share_the_minibatches_of_each_step(sbm, ranks, per_step):
    options = {**JOB} | ({} if per_step is None else {"minibatches_per_step": per_step})
    loaders = [mr.minibatches(sbm, rank=r, ranks=ranks, **options) for r in range(ranks)]
    batches = [list(loader) for loader in loaders]
    assert sorted(entry for own in batches for entry in found(own)) == sorted(wanted(sbm))
    assert [len(loader) for loader in loaders] == [len(own) for own in batches]
    assert len({loader.steps_per_epoch for loader in loaders}) == 1
    for own in batches:
        assert all(b.step == b.index // (per_step or ranks) for b in own)


def test_a_store_of_samples_gives_the_same(sbm, tmp_path):
    mr.write_dataset(tmp_path / "data", sbm)
    code, _, err = run_forked(
        "sample", "--dataset", tmp_path / "data", "--fanout", "4,3", "--batch-size", 16, "--seed", 3, "--epochs", 2,
        "--out", tmp_path / "samples",
    )  # fmt: skip
    assert code == 0, err
    assert found(mr.minibatches(tmp_path / "data", samples=tmp_path / "samples", **JOB)) == wanted(sbm)


def test_a_loop_may_be_left_at_any_time(sbm):
    loader = mr.minibatches(sbm, **JOB)
    for batch in loader:
        assert batch.index == 0
        break
    assert found(loader) == wanted(sbm)


def test_torchrun_says_which_rank_it_is(sbm, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = mr.minibatches(sbm, **JOB)
    assert (loader.rank, loader.ranks) == (1, 2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    loader = mr.minibatches(sbm, **JOB)
    assert (loader.rank, loader.ranks) == (2, 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"system": "sar"}, "system 'sar' as configured has no minibatches"),
        ({"features": "owned"}, "system 'bulk' as configured has no minibatches"),
        ({"learned": 4}, "learned.width is set"),
        ({"queue": {"kind": "zarr"}}, "queue.kind is 'zarr'"),
        ({"ranks": 2}, "rank and ranks go together"),
        ({"rank": 2, "ranks": 2}, "0 <= rank < ranks"),
        ({"config": {"ranks": 2}}, "ranks is 2 in the configuration"),
        ({"config": resolve({}), "lr": 0.1}, "given beside a resolved configuration"),
        ({"samples": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused(sbm, options, sentence):
    job = {} if options.keys() & {"system", "config"} else JOB
    with pytest.raises(InputError, match=sentence):
        list(mr.minibatches(sbm, **{**job, **options}))
    with pytest.raises(InputError, match="epoch is 2; expected one from 0 to 1"):
        mr.minibatches(sbm, **JOB).epoch(2)


CONVERT = "--convert=--set read.missing_ids=compact --set read.direction=directed"
DYING = """
import os, torch
join = torch.nn.parallel.DistributedDataParallel.join

def dying(self, *words, **options):
    # At the beginning of the second epoch, once.
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.path.exists(os.environ["DIES_AT"]):
            os._exit(1)
    return join(self, *words, **options)

torch.nn.parallel.DistributedDataParallel.join = dying
"""
"""A rank dies."""
TORCHRUN = """
import os, runpy, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
config = LaunchConfig(
    1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork", max_restarts=1, monitor_interval=0.1
)
elastic_launch(config, lambda: bool(runpy.run_path(sys.argv[0], run_name="__main__")))()
"""
"""Does what ``torchrun --standalone --nproc-per-node 2 --max-restarts 1`` does, with forked ranks."""


@pytest.mark.slow
def test_torchs_own_data_parallelism_trains_on_them(tmp_path):
    """examples/on_torchrun.py from tables to predictions, on two ranks, of which one dies after the first epoch. Seven
    minibatches an epoch over two ranks."""
    tables, work = tmp_path / "tables", tmp_path / "work"
    tables.mkdir()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    ends = rng.integers(0, 200, (2, 900)) * 2 + 1
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), tables / "edges.parquet")
    x = (np.eye(3)[labels] + rng.normal(0, 0.1, (200, 3))).astype("f4")
    split = np.where(np.arange(200) < 100, "train", "test")
    nodes = {"id": np.arange(200) * 2 + 1, "label": labels, "split": split, "features": x.tolist()}
    pq.write_table(pa.table(nodes), tables / "nodes.parquet")
    (tmp_path / "job.toml").write_text("epochs = 4\nbatch_size = 16\nfanout = [4, 3]\n")
    script = Path(__file__).resolve().parents[2] / "examples" / "on_torchrun.py"
    with forked_path() as folder:
        path = f"{folder}:{os.environ['PATH']}"
        words = ("--tables", tables, "--work", work, "--job", tmp_path / "job.toml", "--sample", "--lr", 0.02, CONVERT)
        given = {"OMP_NUM_THREADS": "1", "PATH": path, "DIES_AT": str(work / "run" / "model.pt")}
        code, out, err = run_python("-c", DYING + TORCHRUN, script, *words, variables=given)
    assert code == 0, err
    epochs = re.findall(r"epoch (\d)/4: loss ([\d.]+)", out)
    numbers = [number for number, _ in epochs]
    assert set(numbers) == set("1234") and numbers.count("1") == 1, "the restarted ranks have gone on"
    assert float(epochs[-1][1]) < float(epochs[0][1])
    accuracy = re.search(r"test accuracy ([\d.]+) of 100 nodes", out)
    assert accuracy and float(accuracy[1]) > 0.8
    predictions = pq.read_table(work / "run" / "predictions.parquet")
    assert sorted(map(int, predictions["node"].to_pylist())) == nodes["id"].tolist()
