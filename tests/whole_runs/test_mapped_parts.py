"""Ranks whose parts lie in files that they map: the parameters of parts in memory, to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.prepare import prepare, prepare_part
from millrace.pipeline.telemetry.events import silent
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.partition.stage import partition_dataset
from millrace.storage.store import scratch
from millrace.storage.store.npy import is_map
from millrace.tests.contracts.process_ranks import run_ranks

JOB: dict[str, Any] = {
    "epochs": 2, "seed": 3, "threads": 1, "dtype": "float64", "check": True, "ranks": 2, "features": "mapped",
    "partition": {"method": "hash"}, "model": {"name": "sage", "hidden": 8, "layers": 2}, "train": {"lr": 0.02},
}  # fmt: skip
MINIBATCHES = {"sampler": {"fanout": [4, 3]}, "train": {"lr": 0.02, "batch_size": 16}}
SYSTEMS: dict[str, dict[str, Any]] = {
    "blocks": {**MINIBATCHES, "bulk": {"topology": "partitioned"}},
    "ranges": {**MINIBATCHES, "bulk": {"topology": "partitioned"}, "partition": {"method": "contiguous"}},
    "one exchange": {"system": "sar"},
    "in turn": {"system": "sar", "sar": {"mode": ["keep", "rematerialize"]}},
    "grappa": {**MINIBATCHES, "system": "grappa", "grappa": {"repartition_every": 1}},
    "retexo": {"system": "retexo"},
}


def train_all(group: Any, runs: list[tuple[Any, ...]], outline: Outline, folder: Path) -> list[tuple[str, int, int]]:
    """Of each run the parameters' digest, and how many arrays of the graph and of features were mapped."""
    scratch.LEAST_BYTES, made, found = 1, [], []
    make = scratch.InFiles.__call__

    def counted(self: Any, shape: Any, dtype: Any) -> Any:
        array = make(self, shape, dtype)
        made.extend([array.ndim] if is_map(array) else [])
        return array

    scratch.InFiles.__call__ = counted
    for number, (name, table, fingerprint) in enumerate(runs):
        own, job = group.sub(f"{number}", range(group.size)), resolve(table)
        own._ledger = type(own._ledger)()
        made.clear()
        prepared = prepare_part(job, outline, folder / name / "parts", group.rank, fingerprint)
        report = train_and_evaluate(
            prepared, folder / name, None, group=own, ledger=own._ledger, produce=True, producer_alive=lambda: True,
            emit=silent, stop=lambda: False, clock=Clock(),
        )  # fmt: skip
        found.append((report.parameters_sha256, made.count(1), made.count(2)))
        own.close()
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, int, int]]]:
    """Results of the ranks by run; each run in memory, and mapped."""
    folder, runs = tmp_path_factory.mktemp("mapped"), []
    data = mr.open_dataset("sbm:nodes=200,classes=3,degree=8,features=5,train=0.5", seed=3)
    weight = np.random.default_rng(0).random(data.graph.num_edges).astype(np.float32)
    data = replace(data, graph=replace(data.graph, edge_weight=weight))
    for name, changes in SYSTEMS.items():
        for place in ("memory", "mapped"):
            table, out = {**JOB, **changes, "graph": place}, folder / f"{name}-{place}"
            prepared = prepare(resolve(table), data)
            assert prepared.system.partition.partitioner is not None
            out.mkdir()
            partition_dataset(data, prepared.system.partition.partitioner, 2, out / "parts", prepared.job.seed)
            runs.append((out.name, table, prepared.fingerprint))
    ranks = run_ranks(train_all, 2, runs, Outline.of(data), folder)
    return {name: [found[i] for found in ranks] for i, (name, *_) in enumerate(runs)}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_place_of_a_part_does_not_show(trained: dict[str, list[tuple[str, int, int]]], name: str) -> None:
    for (held, *none), (mapped, of_graph, of_features) in zip(trained[f"{name}-memory"], trained[f"{name}-mapped"]):
        assert held == mapped
        assert none == [0, 0]
        # Edge shards, and the lists that are made of them; rows to read.
        assert of_graph > 8 and of_features >= 1
