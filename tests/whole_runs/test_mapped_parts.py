"""Ranks whose parts lie in files that they map: the parameters of parts in memory, to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import QueueEnd
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.partition.base import Cut
from millrace.stages.partition.stage import cut_dataset
from millrace.storage.features import ArrayFeatures
from millrace.storage.store import scratch
from millrace.storage.store.npy import is_map
from millrace.tests.contracts.graphs import links_of_multi_edges
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.whole_runs.test_typed import Own

JOB: dict[str, Any] = {
    "epochs": 1, "seed": 3, "threads": 1, "dtype": "float64", "check": True, "ranks": 2, "features": "mapped",
    "partition": {"method": "hash"}, "train": {"lr": 0.02},
}  # fmt: skip
MINIBATCHES = {"sampler": {"fanout": [4, 3]}, "train": {"lr": 0.02, "batch_size": 16}}
BLOCKS = {**MINIBATCHES, "bulk": {"topology": "partitioned"}}
GRAPPA = {**MINIBATCHES, "epochs": 2, "system": "grappa"}
SHAPE = {"hidden": 8, "layers": 2}
MODELS = {"plain": "sage", "edges": "gatv2", "links": "gcn", "types": "rgcn"}
"""By kind of graph."""
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "blocks": ("edges", BLOCKS),
    "ranges": ("plain", {**BLOCKS, "partition": {"method": "contiguous"}}),
    "blocks, links": ("links", BLOCKS),
    "blocks, types": ("types", BLOCKS),
    "one exchange": ("edges", {"system": "sar"}),
    "one exchange, types": ("types", {"system": "sar"}),
    "in turn": ("plain", {"system": "sar", "sar": {"mode": ["keep", "rematerialize"]}}),
    "grappa": ("edges", {**GRAPPA, "grappa": {"repartition_every": 1, "halo": 0.5}}),
    "grappa, links": ("links", {**GRAPPA, "grappa": {"repartition_every": 1}}),
    "retexo": ("plain", {"system": "retexo"}),
}
"""Kind of graph, and keys of the job."""


def graphs() -> dict[str, mr.Dataset]:
    """The same nodes with weights, and with features of edges; pairs to predict; several types."""
    rng = np.random.default_rng(0)
    data = mr.open_dataset("sbm:nodes=200,classes=3,degree=8,features=5,train=0.5", seed=3)
    weighted = replace(data.graph, edge_weight=rng.random(data.graph.num_edges).astype(np.float32))
    rows = ArrayFeatures(rng.normal(size=(data.graph.num_edges, 3)).astype(np.float32))
    return {
        "plain": replace(data, graph=weighted),
        "edges": replace(data, graph=replace(weighted, edge_features=rows)),
        "links": links_of_multi_edges(60),
        "types": mr.open_dataset("hsbm:nodes=120,classes=3,degree=4,features=6"),
    }


def own_model(kind: str, job: Any) -> Own | None:
    """Module of a user's own, which does not say that it reads all rows in one block."""
    return Own() if (kind, job.system) == ("types", "sar") else None


def train_all(group: Any, runs: list[tuple[Any, ...]], data: Any, folder: Path) -> list[tuple[Any, int, int]]:
    """Train each run. Returns its parameters' digest and the bytes of features read, and the numbers of arrays of the
    graph and of features that were mapped."""
    scratch.LEAST_BYTES, made, found = 1, [], []
    make = scratch.InFiles.__call__

    def counted(self: Any, shape: Any, dtype: Any) -> Any:
        array = make(self, shape, dtype)
        made.extend([array.ndim] if is_map(array) else [])
        return array

    scratch.InFiles.__call__ = counted
    for number, (name, kind, job, fingerprint) in enumerate(runs):
        own = group.sub(f"{number}", range(group.size))
        own._ledger = type(own._ledger)()
        made.clear()
        outline, pairs = Outline.from_dataset(data[kind], job), data[kind] if kind == "links" else None
        prepared = prepare_part(
            job,
            CutData(outline, folder / name / "parts", group.rank, fingerprint),
            model=own_model(kind, job),
            dataset=pairs,
        )
        report = train_and_evaluate(prepared, folder / name, QueueEnd(), Member(own, own._ledger, Clock()), Control())
        read = report.bytes["store"]["features"]
        found.append(((report.parameters_sha256, read), made.count(1), made.count(2)))
        own.close()
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, int, int]]]:
    """Results of the ranks by run; each run in memory, and mapped."""
    folder, runs, data = tmp_path_factory.mktemp("mapped"), [], graphs()
    for name, (kind, changes) in RUNS.items():
        for place in ("memory", "mapped"):
            table = {**JOB, **changes, "model": {"name": MODELS[kind], **SHAPE}, "graph": place}
            table |= {"link": {"width": 8, "num_negatives": 2}} if kind == "links" else {}
            job, out = resolve(table), folder / f"{name}-{place}"
            prepared = prepare(job, data[kind], model=own_model(kind, job))
            cut = prepared.system.partition.partitioner
            assert cut is not None
            parts = folder / f"{kind}-{type(cut).__name__}"  # the same ones for all runs that are cut alike
            cut_dataset(data[kind], Cut(cut, 2, JOB["seed"]), parts)
            out.mkdir()
            (out / "parts").symlink_to(parts)
            runs.append((out.name, kind, prepared.job, prepared.fingerprint))
    ranks = run_ranks(train_all, 2, runs, data, folder)
    return {name: [found[i] for found in ranks] for i, (name, *_) in enumerate(runs)}


@pytest.mark.parametrize("name", RUNS)
def test_the_place_of_a_part_does_not_show(trained: dict[str, list[tuple[Any, int, int]]], name: str) -> None:
    for (held, *none), (mapped, of_graph, of_features) in zip(trained[f"{name}-memory"], trained[f"{name}-mapped"]):
        assert held == mapped
        assert none == [0, 0]
        # Edge shards, and the lists that are made of them; rows to read, those of edges too.
        assert of_graph > 8 and of_features >= 1 + (RUNS[name][0] == "edges")
