"""`benchmarks/grappa_weights.py`, which trains for all ranks in one process, beside runs of as many ranks."""

import pytest
import torch

import millrace as mr
from millrace.benchmarks.grappa_weights import DECAY, EVERY, LR, Amount, Cell, train
from millrace.stages.random import Purpose, stream, torch_seed
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.isolated import train_processes

CORRECTIONS = {
    "none": {"correction": "none"},
    "batch": {"correction": "batch"},
    "shrunk": {"correction": "batch", "shrink": "empirical"},
}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_parameters_are_those_of_a_run(tmp_path):
    dataset = mr.open_dataset("sbm:nodes=90,classes=3,degree=6,features=5,train=0.4", seed=1)
    model, trained = {"hidden": 6, "layers": 2, "dropout": 0.0}, {}
    for way, options in CORRECTIONS.items():
        table = {
            "epochs": 2 * EVERY, "seed": 3, "ranks": 3, "model": model, "sampler": {"fanout": [-1, -1]},
            "train": {"lr": LR, "weight_decay": DECAY, "batch_size": 90}, "partition": {"method": "hash"},
            "grappa": {"repartition_every": EVERY, "halo": 0, **options},
        }  # fmt: skip
        train_processes(dataset, tmp_path / way, table)
        torch.manual_seed(torch_seed(stream(3, Purpose.INIT)))
        here = mr.GraphSAGE(hidden=6, layers=2, dropout=0.0).build(5, 3)
        train(dataset, here, Cell(3, "hash", 2), way, 3, Amount(90, -1, 2 * EVERY))
        for name, value in last_parameters(tmp_path / way).items():
            torch.testing.assert_close(here.state_dict()[name], value, rtol=1e-4, atol=2e-6)
        trained[way] = torch.cat([p.detach().flatten() for p in here.parameters()])
    for one, other in (("none", "batch"), ("batch", "shrunk")):
        assert (trained[one] - trained[other]).abs().max() > 1e-4
