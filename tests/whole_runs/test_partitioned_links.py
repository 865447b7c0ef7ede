"""Links over blocks of rows: the parameters and metrics of runs whose ranks have the whole graph."""

from contextlib import nullcontext, suppress
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import QueueEnd
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.evaluate.link_metrics import PairsOfSet, known_of, link_metrics
from millrace.stages.partition.base import Cut
from millrace.stages.partition.stage import cut_dataset
from millrace.storage.errors import Interrupted, RunError
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.graphs import links_of_multi_edges
from millrace.tests.contracts.process_ranks import run_ranks

TABLE = {
    "epochs": 2, "seed": 3, "threads": 1, "system": "bulk", "dtype": "float64", "train": {"batch_size": 48, "lr": 0.02,
    "minibatches_per_step": 4}, "link": {"width": 8, "num_negatives": 2}, "sampler": {"fanout": [4, 3]},
    "model": {"name": "gcn", "hidden": 8, "layers": 2, "dropout": 0.1}, "queue": {"bulk_size": 2},
}  # fmt: skip
WAYS = {
    2: {"owners": {}},
    4: {
        "ranges": {},
        "grid": {"bulk": {"topology": "partitioned", "replication": 2, "algorithm": "1.5d", "cache_fraction": 0.2}},
    },
}


@pytest.fixture(scope="module")
def links():
    return links_of_multi_edges(120)


@pytest.fixture(scope="module")
def owners(links):
    """Owner of each node: no ranges."""
    return np.random.default_rng(1).integers(2, size=links.num_nodes)


def renumbered(links, owners):
    """The dataset with the nodes of each part as a range of ids."""
    old = np.argsort(owners, kind="stable")
    new = np.argsort(old)
    none = np.empty(0, np.int64)
    nodes = replace(
        links, labels=np.zeros(links.num_nodes, np.int64), task="multiclass", split=mr.Split(none, none, none)
    )
    labels = np.concatenate([new[links.labels[:, :2]], links.labels[:, 2:]], axis=1)
    return replace(mr.reorder(nodes, old), labels=labels, task="link", num_classes=1, split=links.split)


def train(group, links, runs):
    """Reports of the runs; each is stopped after three steps, and goes on."""
    found = []
    for number, (job, out, fingerprint) in enumerate(runs + runs):
        own = group.sub(f"{number}", range(group.size))
        prepared = prepare_part(
            job, CutData(Outline.from_dataset(links, job), out / "parts", own.rank, fingerprint), dataset=links
        )
        asked, last = iter(range(1, 1 << 30)), 3 if number < len(runs) else 0
        with suppress(Interrupted) if number < len(runs) else nullcontext():
            report = train_and_evaluate(
                prepared, out, QueueEnd(), Member(own, own._ledger, Clock()),
                Control(stop=lambda asked=asked, last=last: next(asked) == last),
            )  # fmt: skip
            found.append(asdict(report))
        own.close()
    assert len(found) == len(runs)
    return found


@pytest.fixture(scope="module")
def wholes(links, owners, tmp_path_factory):
    """Runs of one rank with the whole graph: as it is, and with each part's nodes as a range of ids."""
    folder = tmp_path_factory.mktemp("wholes")
    found = {}
    for name, data in {"ranges": links, "owners": renumbered(links, owners)}.items():
        found[name] = mr.run(data, config=TABLE, out=folder / name, verbose=False), last_parameters(folder / name)
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_blocks_train_what_whole_graphs_train(links, owners, wholes, tmp_path, ranks):
    np.save(tmp_path / "owners.npy", owners)
    runs = []
    for name, more in WAYS[ranks].items():
        table = {**TABLE, "bulk": {"topology": "partitioned"}, "ranks": ranks, **more}
        if name == "owners":
            table["partition"] = {"owners": str(tmp_path / "owners.npy")}
        job, out = resolve(table), tmp_path / name
        prepared = prepare(job, links)
        out.mkdir()
        partitioner, parts = prepared.system.partition.partitioner, prepared.system.parts_before(ranks)
        cut_dataset(links, Cut(partitioner, parts, job.seed), out / "parts")
        runs.append((job, out, prepared.fingerprint))
    reports = run_ranks(train, ranks, links, runs)
    for number, name in enumerate(WAYS[ranks]):
        whole, parameters = wholes["owners" if name == "owners" else "ranges"]
        # Evaluation negatives follow from the nodes' own numbers.
        known, metrics = known_of(links.graph, links.labels), ("mrr", "hits@10", "auc", "average_precision")
        order = PairsOfSet(links.labels, links.split.test, "test"), metrics, known
        model = mr.load(whole).model
        expected = link_metrics(model.decoder, mr.infer(model, links), *order).values
        for report in (r[number] for r in reports):
            assert report["test_metrics"] == pytest.approx(expected, abs=1e-9)
        for key, value in last_parameters(tmp_path / name).items():
            torch.testing.assert_close(value, parameters[key], rtol=1e-8, atol=1e-9)
        assert sum(r[number]["sampled_edges"] for r in reports) == whole.sampled_edges


def test_one_rank_has_the_only_block(links, wholes, tmp_path):
    found = mr.run(links, config={**TABLE, "bulk": {"topology": "partitioned"}}, out=tmp_path / "one", verbose=False)
    whole = wholes["ranges"][0]
    assert (found.parameters_sha256, found.test_metrics) == (whole.parameters_sha256, whole.test_metrics)


def test_a_rank_that_sees_other_pairs_stops(links, tmp_path):
    job = resolve({**TABLE, "bulk": {"topology": "partitioned"}, "ranks": 2})
    fingerprint = prepare(job, links).fingerprint
    other = replace(links, labels=links.labels[:, [1, 0, 2]])
    with pytest.raises(RunError, match="rank 1 sees other pairs than the driver"):
        prepare_part(job, CutData(Outline.from_dataset(links, job), tmp_path, 1, fingerprint), dataset=other)
