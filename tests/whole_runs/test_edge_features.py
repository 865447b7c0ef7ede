"""Models that read features of edges in whole runs: what only these say is learnt by every system, on one rank and
several, after a stop too; and refusals."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup.checks import check_edges
from millrace.stages.partition.base import Cut, book_of
from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts.command import command

V, E, CLASSES = 300, 3000, 3
JOB: dict[str, Any] = {
    "model": {"name": "gine", "hidden": 16, "layers": 2, "dropout": 0.0},
    "epochs": 3, "seed": 1, "threads": 1, "dtype": "float64", "train": {"lr": 0.02},
}  # fmt: skip
SAMPLED = {"sampler": {"fanout": [6, 3]}, "batch_size": 16}


@pytest.fixture(scope="module")
def pairs() -> Dataset:
    """A random graph whose edges say, with noise, the class of the node that they lead to; nothing else does."""
    rng = np.random.default_rng(0)
    src, dst, y = rng.integers(0, V, E), rng.integers(0, V, E), rng.integers(0, CLASSES, V)
    rows = np.eye(CLASSES)[y[dst]] + 0.5 * rng.normal(size=(E, CLASSES))
    graph = mr.from_edges(src, dst, V, edge_features=rows.astype(np.float32))
    x = ArrayFeatures(rng.normal(size=(V, 4)).astype(np.float32))
    parts = np.split(rng.permutation(V), [160, 220])
    return Dataset("pairs", graph, x, y, Split(*map(np.sort, parts)), CLASSES).check()


@pytest.fixture(scope="module")
def store(pairs: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "store"
    mr.write_dataset(path, pairs, features_format="npy")
    return path


def trained(data: Any, out: Path, **options: Any) -> tuple[mr.Result, list[torch.Tensor]]:
    job = {k: v for k, v in JOB.items() if k != "model" or "model" not in options}
    result = mr.run(data, out=out, verbose=False, **{**job, **options})
    return result, list(torch.load(out / "model.pt", weights_only=True).values())


def assert_alike(found: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert max(float((a - b).abs().max()) for a, b in zip(found, want, strict=True)) <= 1e-9


def test_only_edges_say_the_class(pairs: Dataset, tmp_path: Path) -> None:
    edges, _ = trained(pairs, tmp_path / "edges", **SAMPLED)
    nodes, _ = trained(pairs, tmp_path / "nodes", **{**SAMPLED, "model": {**JOB["model"], "name": "gin"}})
    assert edges.test_accuracy is not None and edges.test_accuracy > 0.9
    assert nodes.test_accuracy is not None and nodes.test_accuracy < 0.5
    assert "edge_features" in edges.fingerprint and "edge_features" not in nodes.fingerprint
    rows = edges.bytes["store"]["features"] - nodes.bytes["store"]["features"]
    assert rows == edges.sampled_edges * CLASSES * 8, "features of sampled edges only, and each once"
    # The folder of a run is enough to predict and evaluate.
    run = mr.load(edges)
    assert run.config.model["edge_width"] == CLASSES and run.config.sampler["edge_ids"]
    predicted = mr.predict(edges)
    assert (predicted.classes[pairs.split.test] == pairs.labels[pairs.split.test]).mean() == edges.test_accuracy


@pytest.fixture(scope="module")
def marked(pairs: Dataset) -> Dataset:
    """The same edges, marked where the source is of the kind that is the class of the destination: what a node must
    attend to."""
    rng, dst = np.random.default_rng(1), np.repeat(np.arange(V), np.diff(pairs.graph.indptr))
    kind = rng.integers(0, CLASSES, V)
    marks = np.stack([kind[pairs.graph.indices] == pairs.labels[dst], rng.random(E)], 1).astype(np.float32)
    graph = replace(pairs.graph, edge_features=ArrayFeatures(marks))
    return replace(pairs, graph=graph, features=ArrayFeatures(np.eye(CLASSES, dtype=np.float32)[kind]))


@pytest.mark.parametrize(("name", "layers"), [("gatv2", 2), ("gcn", 1)])
def test_only_edges_say_whom_to_listen_to(marked: Dataset, tmp_path: Path, name: str, layers: int) -> None:
    found = []
    for width in (2, 0):
        model = {**JOB["model"], "name": name, "layers": layers, "edge_width": width}
        sampled = {"sampler": {"fanout": [6, 3][:layers]}, "batch_size": 16}
        result, _ = trained(marked, tmp_path / str(width), **sampled, model=model, epochs=8, train={"lr": 0.1})
        assert result.num_edge_features == width and ("edge_features" in result.fingerprint) == (width > 0)
        found.append(result.test_accuracy)
    assert found[0] > 0.85 and found[1] < 0.6


@pytest.mark.parametrize("name", ["labor", "ladies"])
def test_other_samplers_and_queues_on_disk(pairs: Dataset, tmp_path: Path, name: str) -> None:
    sampler = {"name": name, **({"fanout": [6, 3]} if name == "labor" else {"sizes": [80, 80]})}
    options = {"sampler": sampler, "batch_size": 16}
    memory, want = trained(pairs, tmp_path / "memory", **options)
    assert memory.test_accuracy is not None and memory.test_accuracy > 0.8
    _, found = trained(pairs, tmp_path / "disk", **options, queue={"kind": "zarr"})
    assert all(map(torch.equal, found, want))


def test_ranks_share_the_work(pairs: Dataset, store: Path, tmp_path: Path, scheduler: str) -> None:
    """Replicated, with owned rows, and in blocks of rows by ranges and by another cut."""
    many = {**SAMPLED, "epochs": 1, "cluster": {"scheduler": scheduler}}
    many["train"] = {"lr": 0.02, "minibatches_per_step": 4}
    _, want = trained(store, tmp_path / "one", **{**many, "executor": "inline"})
    blocks = {"bulk": {"topology": "partitioned"}}
    ways = {
        "two": {"ranks": 2, "features": "mapped"},
        "owned": {"ranks": 2, "features": "owned"},
        "blocks": {"ranks": 2, **blocks},
        "grid": {"ranks": 4, "bulk": {"topology": "partitioned", "replication": 2}},
    }
    for name, options in ways.items():
        result, found = trained(store, tmp_path / name, **many, **options)
        assert_alike(found, want)
        moved = result.bytes["network"]["features"]
        assert (moved > 0) == (name != "two"), "rows of edges lie with their owners"
    # The workers predict, with the features where they lie, and written to a file.
    alone = mr.predict(tmp_path / "one")
    for data in (store, pairs):
        shared = mr.predict(tmp_path / "one", data, scheduler=scheduler)
        assert np.abs(shared.logits - alone.logits).max() <= 1e-12
    # Another cut trains what the graph that is renumbered by it trains.
    order = book_of(pairs, Cut(mr.partitioner("hash"), 2, JOB["seed"]))
    _, want = trained(mr.reorder(pairs, order), tmp_path / "renumbered", **{**many, "executor": "inline"})
    _, found = trained(store, tmp_path / "hash", **many, ranks=2, **blocks, partition={"method": "hash"})
    assert_alike(found, want)


def test_full_batches_and_isolated_ranks(store: Path, tmp_path: Path, scheduler: str) -> None:
    full = {"system": "sar", "epochs": 10, "train": {"lr": 0.1}}
    alone, _ = trained(store, tmp_path / "sar", **full)
    assert alone.test_accuracy is not None and alone.test_accuracy > 0.9
    full["epochs"] = 2
    _, want = trained(store, tmp_path / "short", **full)
    cluster = {"ranks": 2, "cluster": {"scheduler": scheduler}}
    for mode in ("halo", "rematerialize"):
        _, found = trained(store, tmp_path / f"sar-{mode}", **full, **cluster, sar={"mode": mode})
        assert_alike(found, want)
    result, _ = trained(store, tmp_path / "grappa", system="grappa", **SAMPLED, **cluster)
    assert result.test_accuracy is not None and result.test_accuracy > 0.9
    moved = result.bytes["network"]
    assert moved["gradients"] and not (moved["features"] or moved["activations"] or moved["graph"])


def test_a_stopped_run_goes_on_with_the_same_bits(pairs: Dataset, tmp_path: Path) -> None:
    _, want = trained(pairs, tmp_path / "whole", **SAMPLED)
    steps = iter(range(100))
    stopped, _ = mr.run(
        pairs, out=tmp_path / "r", verbose=False, stop=lambda: next(steps) > 13, **JOB, **SAMPLED
    ), None  # fmt: skip
    assert stopped.status == "stopped"
    mr.run(pairs, out=tmp_path / "r", resume=True, verbose=False)
    found = list(torch.load(tmp_path / "r" / "model.pt", weights_only=True).values())
    assert all(map(torch.equal, found, want))


class Own(torch.nn.Module):
    """A user's module: the mean of what edges say."""

    num_layers = 1
    reads_edges = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(CLASSES, CLASSES)

    def layer(self, i: int, neighbourhood: Any, h: torch.Tensor) -> torch.Tensor:
        said = self.linear(neighbourhood.edge_features)
        return neighbourhood.apply(lambda a, b, weight, edge: edge, h, reduce="mean", edge=said)


def test_a_module_of_ones_own(pairs: Dataset, tmp_path: Path) -> None:
    options = {k: v for k, v in JOB.items() if k != "model"}
    out = tmp_path / "own"
    result = mr.run(pairs, model=Own(), out=out, verbose=False, **options, sampler={"fanout": [5]}, batch_size=16)
    assert result.test_accuracy is not None and result.test_accuracy > 0.9


def convolutions(edge_dim: int = CLASSES) -> list[torch.nn.Module]:
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(1)
    return [
        pyg.TransformerConv(4, 8, edge_dim=edge_dim),
        pyg.GINEConv(torch.nn.Linear(8, CLASSES), edge_dim=edge_dim),
    ]


PYG = {k: v for k, v in JOB.items() if k != "model"}


def test_convolutions_of_pyg_learn_and_predict(pairs: Dataset, tmp_path: Path) -> None:
    """Predictions from a run's folder are those of PyG's own modules on the whole graph."""
    result, _ = trained(pairs, tmp_path / "run", **PYG, **SAMPLED, model=convolutions())
    assert result.test_accuracy is not None and result.test_accuracy > 0.9 and result.num_edge_features == CLASSES
    found = mr.predict(tmp_path / "run", model=convolutions())
    assert (found.classes[pairs.split.test] == pairs.labels[pairs.split.test]).mean() == result.test_accuracy
    module = mr.load(tmp_path / "run", model=convolutions()).model
    data = pairs.to_pyg()
    with torch.no_grad():
        rows = module.convs[0](data.x.double(), data.edge_index, data.edge_attr.double()).relu()
        logits = module.convs[1](rows, data.edge_index, data.edge_attr.double())
    assert np.abs(found.logits - logits.numpy()).max() <= 1e-10
    embedded = mr.embed(tmp_path / "run", layer=1, model=convolutions())
    assert np.abs(embedded.rows - rows.numpy()).max() <= 1e-10
    fewer = replace(pairs, graph=replace(pairs.graph, edge_features=ArrayFeatures(np.ones((E, 2), np.float32))))
    with pytest.raises(InputError, match=r"pairs has 2 features of edges, but PyGModel of .* reads 3; give a dataset"):
        mr.predict(tmp_path / "run", fewer, model=convolutions())


def test_convolutions_of_pyg_over_ranks(store: Path, tmp_path: Path, scheduler: str) -> None:
    many = {**PYG, **SAMPLED, "epochs": 1, "cluster": {"scheduler": scheduler}}
    many["train"] = {"lr": 0.02, "minibatches_per_step": 2}
    _, want = trained(store, tmp_path / "one", **{**many, "executor": "inline"}, model=convolutions())
    alone, shared = (mr.predict(tmp_path / "one", model=convolutions(), scheduler=s) for s in (None, scheduler))
    assert np.abs(shared.logits - alone.logits).max() <= 1e-12
    blocks = {"ranks": 2, "bulk": {"topology": "partitioned"}}
    _, found = trained(store, tmp_path / "two", **many, **blocks, model=convolutions())
    assert_alike(found, want)
    for system, options in (("sar", {"epochs": 10, "train": {"lr": 0.1}}), ("grappa", SAMPLED)):
        job: dict[str, Any] = {**PYG, **options, "system": system, "executor": "inline"}
        alone, _ = trained(store, tmp_path / system, **job, model=convolutions())
        assert alone.test_accuracy is not None and alone.test_accuracy > 0.9


def test_convolutions_that_do_not_fit_are_refused(pairs: Dataset, tmp_path: Path) -> None:
    bare = replace(pairs, graph=replace(pairs.graph, edge_features=None))
    for data, edge_dim, told in (
        (bare, CLASSES, "the model TransformerConv reads features of edges, but pairs has none; give edge_attr"),
        (pairs, 2, "reads 2 features of an edge, but edges of the dataset have 3; make it TransformerConv"),
    ):
        with pytest.raises(InputError, match=told):
            mr.run(data, model=convolutions(edge_dim), out=tmp_path / "r", verbose=False, **PYG, **SAMPLED)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"system": "retexo"}, "system 'retexo' gives its layers rows of nodes only; use bulk or grappa or sar"),
        ({"train": {"compile": True}, **SAMPLED}, "train.compile is true, and layers that read them are not compiled"),
        (
            {"train": {"compile": True}, **SAMPLED, "model": {"name": "gatv2", "layers": 2}},
            "are not compiled; leave it out, or model.edge_width = 0 to read none",
        ),
        ({"model": {**JOB["model"], "edge_width": 2}}, "model.edge_width is 2, but edges of pairs have 3 features"),
    ],
    ids=["retexo", "compile", "compile gatv2", "width"],
)
def test_where_they_do_not_get_to_is_refused(pairs: Dataset, tmp_path: Path, options: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        mr.run(pairs, out=tmp_path / "r", verbose=False, **{**JOB, **options})
    assert not (tmp_path / "r").exists()


def test_a_device_that_their_rows_do_not_get_to_is_refused() -> None:
    job = resolve({"model": {"name": "gatv2", "edge_width": 3}, "device": "cuda"})
    for changed in ({}, {"system": "grappa"}, {"features": "owned"}, {"system": "sar"}):
        able = job.model_copy(update=changed)
        check_edges(able, make_system(able))
    system: Any = SimpleNamespace(name="bulk", fetch=SimpleNamespace(reads_edges_on_device=False))
    with pytest.raises(InputError, match=r"does not take them there; use device = .cpu., or model\.edge_width = 0"):
        check_edges(job, system)


def test_edges_without_features(tmp_path: Path) -> None:
    for call in (mr.plan, partial(mr.run, out=tmp_path / "r")):
        with pytest.raises(InputError, match=r"sbm:nodes=60 has none; give edge_attr"):
            call("sbm:nodes=60", verbose=False, **JOB)


def test_a_bad_file_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    attr = np.ones((4, 2))
    attr[2, 1] = np.nan
    np.savez(tmp_path / "bad.npz", edge_index=[[0, 1, 2, 3], [1, 2, 3, 0]], y=[0, 1, 0, 1], edge_attr=attr)
    words = ("--dataset", tmp_path / "bad.npz", "--model", "gine", "--set", "read.direction=directed")
    code, _, said = command("run", *words, "--out", tmp_path / "r")
    assert code == 2
    assert "1 edge feature value is NaN or infinite (first: edge 2 of the input): 'column 1' 1; set" in said
    assert "Traceback" not in said
