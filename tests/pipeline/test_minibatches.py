"""Minibatches for loops of one's own: those of a run, on any number of ranks, from a store, and under torchrun."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.prepare import prepare
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import minibatch_digest
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.forked_command import run_forked
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
    model = prepare(resolve(options), sbm).build_model()
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


DDP = """
import sys
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
import millrace as mr

dist.init_process_group("gloo")
torch.manual_seed(0)
loader = mr.minibatches("sbm:nodes=300,classes=3,degree=8,features=5,train=0.3", fanout=[4, 3], batch_size=16, epochs=2)


class Net(torch.nn.Module):
    num_layers = 2

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.ModuleList([torch.nn.Linear(10, 8), torch.nn.Linear(16, 3)])

    def forward(self, neighbourhoods, h):
        for linear, n in zip(self.linear, neighbourhoods):
            h = linear(torch.cat([mr.destinations(n, h), n.mean(h)], 1)).relu()
        return h


model = DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with model.join():
    for batch in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(batch.neighbourhoods, batch.h), batch.y).backward()
        optimizer.step()
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
both = [torch.empty_like(flat) for _ in range(2)]
dist.all_gather(both, flat)
assert torch.equal(*both)
assert len(loader) == 6
print(f"rank {dist.get_rank()} ended", file=sys.stderr)
dist.destroy_process_group()
"""


TORCHRUN = """
import runpy, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork")
elastic_launch(config, lambda: bool(runpy.run_path(sys.argv[1], run_name="__main__")))()
"""
"""What ``torchrun --standalone --nproc-per-node 2`` does, but for ranks that are forked."""


@pytest.mark.slow
def test_torchs_own_data_parallelism_trains_on_them(tmp_path):
    """Six minibatches an epoch over two ranks."""
    (tmp_path / "ddp.py").write_text(DDP)
    code, _, err = run_python("-c", TORCHRUN, tmp_path / "ddp.py", variables={"OMP_NUM_THREADS": "1"})
    assert code == 0, err
    # Two processes write to one pipe, so their lines may mix.
    assert all(f"rank {rank} ended" in err for rank in range(2))
