"""Link prediction in whole runs: against plain torch, over ranks, queues and stores of samples, after a resume, in
prediction and on the command line; and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.stages.evaluate.link_metrics import PairsOfSet, known_of, link_metrics
from millrace.stages.evaluate.links import LINK_METRICS
from millrace.stages.models.base import as_model
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.minibatch import Block
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.killed_run import check_goes_on_after_a_kill
from millrace.tests.contracts.pictures import draw_only
from millrace.tests.contracts.seed_plan import seed_plan

SPEC = "sbm:nodes=200,classes=4,degree=8,features=6"
LINK = {"width": 8, "num_negatives": 2}
JOB = {
    "epochs": 3, "seed": 3, "lr": 0.02, "threads": 1, "fanout": [4, 3], "batch_size": 64, "link": LINK,
    "hidden": 8, "dropout": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def links():
    return mr.link_dataset(mr.open_dataset(SPEC), seed=3)


@pytest.fixture(scope="module")
def store(links, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "links"
    write_dataset(path, links)
    return str(path)


@pytest.fixture(scope="module")
def result(links, tmp_path_factory):
    return mr.run(links, out=tmp_path_factory.mktemp("runs") / "run", verbose=False, **JOB)


class Mean(torch.nn.Module):
    """One layer over the mean of in-neighbours."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(12, 8)

    def layer(self, i, neighbourhood, h):
        return self.linear(torch.cat([mr.destinations(neighbourhood, h), neighbourhood.mean(h)], 1))


@pytest.mark.parametrize(
    ("negatives", "decoder", "loss"),
    [
        ("both", "dot", {"name": "bce", "pos_weight": "balanced"}),
        ("degree", "distmult", "margin"),
        ("batch", "complex", {"name": "infonce", "temperature": 0.5}),
        ("uniform", "mlp", "bce"),
    ],
)
def test_a_run_is_that_of_plain_torch(links, tmp_path, negatives, decoder, loss):
    options = {
        **{k: v for k, v in JOB.items() if k not in ("hidden", "dropout")}, "fanout": [-1], "dtype": "float64",
        "link": {**LINK, "decoder": decoder, "negatives": negatives}, "loss": loss, "train": {"evaluate_every": 0},
    }  # fmt: skip
    if negatives == "both":
        options["link"] |= {"negatives": "uniform", "negative_ends": "both"}
    result = mr.run(links, model=Mean(), out=tmp_path / "run", verbose=False, **options)
    start = mr.load(tmp_path / "run", model=Mean())
    model = as_model(Mean()).double()
    model.decoder = type(start.model.decoder)(*([8] if decoder != "dot" else [])).double()
    if decoder == "mlp":  # drawn from the run's seed
        torch.manual_seed(0)
        from millrace.stages.random import Purpose, stream, torch_seed

        torch.manual_seed(torch_seed(stream(3, Purpose.INIT)))
        model.decoder = type(start.model.decoder)(8).double()
    plan = seed_plan(start.config, links)
    graph, n = links.graph, links.num_nodes
    destination = np.repeat(np.arange(n), graph.in_degree)
    features = torch.from_numpy(links.features.gather(np.arange(n))).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(3):
        for index in range(plan.num_minibatches):
            pairs = plan.pairs(index, epoch)
            own = {p for u, v in pairs[:, 0].tolist() for p in ((u, v), (v, u))}
            keep = np.array([e not in own for e in zip(graph.indices.tolist(), destination.tolist())])
            left = mr.from_edges(graph.indices[keep], destination[keep], n)
            block = Block(n, np.arange(n), left.indptr, left.indices.astype(np.int32))
            rows = model.layer(0, BlockNeighbourhood(block, torch.from_numpy(left.degree)), features)
            scores = model.decoder(rows[pairs[..., 0]], rows[pairs[..., 1]])
            positive, negative = scores[:, :1], scores[:, 1:]
            if negatives == "both":  # one positive pair counts as much as its two negatives
                value = -(2 * positive.sigmoid().log().mean() + 2 * (-negative).sigmoid().log().mean()) / 3
            elif loss == "bce":
                signs = torch.cat([positive, -negative], 1)
                value = -torch.nn.functional.logsigmoid(signs).mean()
            elif loss == "margin":
                value = (1 - positive + negative).clamp(min=0).mean()
            else:
                value = -(scores / 0.5).log_softmax(1)[:, 0].mean()
            adam.zero_grad()
            value.backward()
            adam.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(start.model.state_dict()[name], value, rtol=1e-8, atol=1e-9)
    # Without validations the last parameters are tested.
    data = start.open_dataset()
    known = known_of(data.graph, data.labels)
    whole = BlockNeighbourhood(
        Block(n, np.arange(n), graph.indptr, graph.indices.astype(np.int32)), torch.from_numpy(graph.degree)
    )
    with torch.no_grad():
        rows = model.layer(0, whole, features)
    found = link_metrics(
        model.decoder, rows, PairsOfSet(data.labels, data.split.test, "test"), LINK_METRICS, known
    ).values
    assert result.test_metrics == pytest.approx({k: found[k] for k in result.test_metrics}, abs=1e-6)
    assert set(result.test_metrics) == {"mrr", "auc", "average_precision", "hits@10"} and result.test_accuracy is None


def test_any_number_of_ranks_queue_and_store_of_samples_train_the_same(store, tmp_path):
    table = {**JOB, "epochs": 2, "system": "bulk", "minibatches_per_step": 4, "dtype": "float64"}
    table["link"] = {**LINK, "negative_ends": "both"}
    found = {}
    for name, more in {
        "1": {}, "2": {"ranks": 2}, "4": {"ranks": 4},
        "owned": {"ranks": 2, "features": "owned", "bulk": {"cache_fraction": 0.2}},
        "zarr": {"queue": {"kind": "zarr", "bulk_size": 3}},
    }.items():  # fmt: skip
        if name == "zarr":
            mr.run(store, out=tmp_path / name, verbose=False, **table, **more)
            continue
        found[name] = train_bulk(store, tmp_path / name, {**table, **more})[0]
    job = resolve({**table, "dataset": store})
    precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    found["stored"] = train_bulk(store, tmp_path / "stored", {**table, "ranks": 2}, samples=str(tmp_path / "samples"))[
        0
    ]
    report, model = found["1"], last_parameters(tmp_path / "1")
    for name in (*found, "zarr"):
        for key, value in last_parameters(tmp_path / name).items():
            torch.testing.assert_close(value, model[key], rtol=1e-8, atol=1e-9)
        if name in found:
            assert found[name]["test_metrics"] == pytest.approx(report["test_metrics"], abs=1e-9)
    stored, live = (list(mr.minibatches(store, samples=s, **table)) for s in (tmp_path / "samples", None))
    assert len(stored) == len(live) > 0
    for a, b in zip(stored, live):
        assert torch.equal(a.pairs, b.pairs) and torch.equal(a.h, b.h) and (a.epoch, a.index) == (b.epoch, b.index)
    graph = mr.to_pyg(stored[0].minibatch, pairs=stored[0].pairs)
    count, (source, destination) = len(stored[0].pairs), graph.n_id[graph.edge_label_index]
    assert graph.edge_label.tolist() == [1.0] * count + [0.0] * 2 * count
    wanted = seed_plan(job, mr.open_dataset(store)).pairs(0, 0)
    assert np.array_equal(torch.stack([source, destination], 1)[:count], wanted[:, 0])
    assert np.array_equal(torch.stack([source, destination], 1)[count : 2 * count], wanted[:, 1])
    other = resolve({**table, "dataset": store, "link": LINK})
    with pytest.raises(StoreError, match="sampler"):
        mr.run(config=other, samples=tmp_path / "samples", out=tmp_path / "other", verbose=False)


def test_a_killed_run_goes_on_to_the_same_bits(store, tmp_path, result):
    check_goes_on_after_a_kill(store, tmp_path / "run", result, JOB)


def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(links, tmp_path, result):
    options = {**JOB, "checkpoint": {"every_steps": 1}}
    asked, lives = iter(range(1000)), 0
    while mr.run(
        links, out=tmp_path / "parts", resume=lives > 0, verbose=False, stop=lambda: next(asked) % 7 == 6, **options
    ).status == ("stopped"):
        lives += 1
    again = mr.run(links, out=tmp_path / "parts", resume=True, verbose=False, **options)
    assert lives and again.parameters_sha256 == result.parameters_sha256
    assert (again.test_metrics, again.best_epoch) == (result.test_metrics, result.best_epoch)


def test_a_run_of_a_job_file_splits_by_its_seed_and_resumes(tmp_path, links):
    job = {**JOB, "dataset": SPEC, "task": "link", "split": "fraction:0.85,0.05"}
    first = mr.run(config=resolve(job), out=tmp_path / "run", verbose=False)
    data = mr.load(first).open_dataset()
    assert np.array_equal(data.labels, links.labels)
    more = mr.run(config=resolve({**job, "epochs": 4}), out=tmp_path / "run", resume=True, verbose=False)
    assert more.epochs == 4
    # The same from Python, with the graph in memory, whose links the run's folder keeps.
    plain = mr.open_dataset(SPEC)
    other = mr.run(plain, task="link", split="fraction:0.85,0.05", out=tmp_path / "own", verbose=False, **JOB)
    assert other.parameters_sha256 == first.parameters_sha256
    assert np.array_equal(mr.load(other).open_dataset().labels, links.labels)


@pytest.mark.parametrize(
    ("model", "sampler"),
    [("gcn", {"name": "ladies", "sizes": [30, 30]}), ("gat", {"name": "labor", "fanout": [4, 3]})],
)
def test_other_models_and_samplers(links, tmp_path, model, sampler):
    job = {k: v for k, v in JOB.items() if k != "fanout"}
    found = mr.run(
        links, out=tmp_path / "run", verbose=False, **{**job, "model": model, "sampler": sampler, "epochs": 1}
    )
    assert np.isfinite([found.train_loss, *found.test_metrics.values()]).all()


def test_pairs_are_scored_and_written(result, links, tmp_path):
    run = mr.load(result)
    pairs = links.labels[links.split.test, :2]
    rows = torch.from_numpy(mr.embed(run).rows)
    assert rows.shape == (200, 8)
    found = mr.predict_links(run, pairs)
    np.testing.assert_allclose(found.scores, (rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(1), rtol=1e-4, atol=1e-5)
    assert len(found) == len(pairs) and "pairs" in repr(found)
    for suffix in (".parquet", ".csv", ".zarr", ".npy"):
        found.write(tmp_path / f"s{suffix}")
    import pyarrow.csv
    import pyarrow.parquet

    for table in (pyarrow.parquet.read_table(tmp_path / "s.parquet"), pyarrow.csv.read_csv(tmp_path / "s.csv")):
        assert table.column_names == ["src", "dst", "score"]
        assert np.array_equal(np.stack([table["src"], table["dst"]], 1), pairs)
    assert np.array_equal(np.load(tmp_path / "s.npy"), found.scores)
    np.save(tmp_path / "pairs.npy", pairs)
    assert np.array_equal(mr.predict_links(result.out, tmp_path / "pairs.npy").scores, found.scores)
    with pytest.raises(InputError, match=r"use mr\.predict_links"):
        mr.predict(run)
    with pytest.raises(InputError, match=r"relation is given, but .* has one type of edges; leave it out"):
        mr.predict_links(run, pairs, relation=["likes"] * len(pairs))
    nodes = mr.run("sbm:nodes=60", epochs=1, fanout=[2], out=tmp_path / "nodes", verbose=False)
    with pytest.raises(InputError, match=r"the task of .* is multiclass"):
        mr.predict_links(nodes, pairs)


def test_minibatches_for_ones_own_loop(links):
    loop = mr.minibatches(links, **{**JOB, "epochs": 1})
    model = mr.GraphSAGE(hidden=8, layers=2).build(6, 8)
    seen = 0
    for batch in loop:
        rows = model(batch.neighbourhoods, batch.h)
        assert batch.pairs.shape == (len(batch.y), 3, 2) and int(batch.pairs.max()) < len(rows)
        seen += len(batch.y)
    assert seen == len(links.split.train)


def test_the_command_line_from_start_to_end(tmp_path, monkeypatch):
    run, pairs, scores = (tmp_path / name for name in ("run", "pairs.csv", "scores.csv"))
    job = ["--dataset", SPEC, "--set", "task=link", "--epochs", "2", "--fanout", "4,3"]
    code, out, _ = command("run", *job, "--set", "link.width=8", "--out", run, "--json")
    assert code == 0 and json.loads(out)["task"] == "link"
    report = json.loads(command("evaluate", run, "--json")[1])
    assert set(report["metrics"]["test"]) == {"mrr", "auc", "average_precision", "hits@10"}
    pairs.write_text("src,dst\n0,1\n2,3\n")
    assert command("predict", run, "--pairs", pairs, "--out", scores)[0] == 0
    assert scores.read_text().splitlines()[0] == '"src","dst","score"'
    new = ["--out", tmp_path / "n.csv"]
    for arguments in (
        ["predict", run, *new],
        ["predict", run, "--pairs", pairs, "--nodes", "1", *new],
        ["predict", run, "--pairs", tmp_path / "none.csv", *new],
        ["predict", run, "--pairs", pairs, "--out", scores],
        ["run", *job, "--out", tmp_path / "b", "--set", f"pairs={pairs}"],
        ["run", *job, "--out", tmp_path / "b", "--set", "link.negatives=given"],
    ):
        code, out, err = command(*arguments)
        assert (code, out) == (2, "") and err.splitlines()[-1].startswith("millrace: "), err
    assert not (tmp_path / "b").exists() and not (tmp_path / "n.csv").exists()
    draw_only(monkeypatch, "curves")
    for name in ("report", "inspect"):
        assert command(name, run)[0] == 0


def test_a_cluster_samples_and_trains_the_same(scheduler, tmp_path):
    """With features of edges, of those that are left when the others are held out."""
    plain, store = mr.open_dataset(SPEC), tmp_path / "store"
    src, dst = plain.graph.indices, np.repeat(np.arange(200), plain.graph.in_degree)
    ends = np.stack([src, dst], 1).astype(np.float32) / 200
    data = mr.link_dataset(replace(plain, graph=replace(plain.graph, edge_features=ArrayFeatures(ends))), seed=3)
    left = np.stack([data.graph.indices, np.repeat(np.arange(200), data.graph.in_degree)], 1)
    assert len(left) < len(ends)
    np.testing.assert_array_equal(data.graph.edge_features.gather(np.arange(len(left))), left.astype(np.float32) / 200)
    write_dataset(store, data)
    store = str(store)
    options = {**JOB, "epochs": 1, "dtype": "float64", "minibatches_per_step": 2, "verbose": False, "model": "gine"}
    alone = mr.run(store, out=tmp_path / "alone", **options)
    both = {"ranks": 2, "scheduler": scheduler}
    ways = {"queue": {"queue": {"kind": "zarr"}, "features": "owned"}, "blocks": {"bulk": {"topology": "partitioned"}}}
    for name, more in ways.items():
        found = mr.run(store, out=tmp_path / name, **options, **both, **more)
        assert found.test_metrics == pytest.approx(alone.test_metrics, abs=1e-9)
        for key, value in last_parameters(tmp_path / name).items():
            torch.testing.assert_close(value, last_parameters(tmp_path / "alone")[key], rtol=1e-8, atol=1e-9)


CUT = {"topology": "partitioned"}
REFUSED = [
    (
        {"system": "sar"},
        "system 'sar' trains all pairs at once, each of which would see its own edge; use bulk or grappa",
    ),
    ({"system": "retexo"}, "all pairs at once, .*; use bulk or grappa"),
    ({"bulk": CUT, "link": {"negatives": "degree"}}, "no rank has the degrees of all nodes"),
    ({"bulk": {**CUT, "local_seeds": True}}, "whose two ends have owners of their own"),
    ({"model": "gine"}, "gine reads features of edges, but .* has none"),
    ({"metrics": ["macro_f1"]}, "the task is link"),
    ({"monitor": "accuracy"}, "train.monitor is 'accuracy'"),
    ({"loss": "cross_entropy"}, "expected bce or margin or infonce"),
    ({"loss": {"name": "bce", "class_weights": [2.0]}}, "which has no classes"),
    ({"loss": {"name": "bce", "pos_weight": [2.0, 1.0]}}, "expected one number, or"),
    ({"loss": {"name": "margin", "pos_weight": 2.0}}, "it goes with bce"),
    ({"link": {"negative_ends": "source"}}, "link.negative_ends"),
    (
        {"link": {"negatives": "given", "negative_ends": "both"}},
        "negative_ends is 'both', but link.negatives is 'given'",
    ),
    ({"loss": {"name": "bce", "margin": 2.0}}, "it goes with margin"),
    ({"link": {"negatives": "given"}}, "no negatives are given for train"),
    ({"link": {"negatives": "batch", "shared_negatives": True}}, "whose negatives are of each pair"),
    ({"system": "grappa", "link": {"exclude_known": True}}, "ranks of grappa know the train pairs of their own chunks"),
    ({"link": {"decoder": "complex", "width": 7}}, "expected an even number"),
    ({"split": "fraction:0.5,0.2"}, "split already"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(links, tmp_path, options, sentence):
    options = {"epochs": 1, **({} if options.get("system") in ("sar", "retexo") else {"fanout": [2]}), **options}
    with pytest.raises(InputError, match=sentence) as caught:
        mr.run(links, out=tmp_path / "run", verbose=False, **options)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_nodes_refuse_options_of_links_and_links_metrics_of_ones_own(links, tmp_path):
    with pytest.raises(InputError, match=r"link\.width is set, but the task is multiclass"):
        mr.run("sbm:nodes=60", link={"width": 3}, out=tmp_path / "run", verbose=False)
    with pytest.raises(InputError, match="the metric 'mine' is your own"):
        mr.run(links, metrics={"mine": lambda out, y: 0.0}, out=tmp_path / "run", verbose=False)
