"""Links with times in whole runs: against plain torch, over queues, after a stop, in prediction; and refusals."""

import json

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.evaluate.links import KnownPairs
from millrace.stages.evaluate.temporal import NEGATIVES, _with_negatives
from millrace.stages.models.base import as_model
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.storage.lazy_dataset import open_lazily
from millrace.tests.contracts.command import command
from millrace.tests.contracts.seed_plan import seed_plan

SPEC = "ratings:users=40,items=60,genres=4,degree=6,days=9,features=5"
JOB = {
    "epochs": 2, "seed": 3, "lr": 0.02, "threads": 1, "batch_size": 64, "hidden": 8, "dtype": "float64",
    "sampler": {"name": "temporal", "fanout": [3, 2], "strategy": "last"}, "link": {"width": 8, "num_negatives": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def links():
    return mr.link_dataset(mr.open_dataset(SPEC), split="time:0.7,0.1")


@pytest.fixture(scope="module")
def store(links, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "links"
    write_dataset(path, links)
    return str(path)


class Mean(torch.nn.Module):
    """One layer over the mean of in-neighbours."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(10, 8)

    def layer(self, i, neighbourhood, h):
        return self.linear(torch.cat([mr.destinations(neighbourhood, h), neighbourhood.mean(h)], 1))


@pytest.fixture(scope="module")
def exact(links, tmp_path_factory):
    """A run over all earlier edges, its folder, and the same training by plain torch."""
    options = {k: v for k, v in JOB.items() if k != "hidden"} | {"sampler": {"name": "temporal", "fanout": [-1]}}
    options |= {
        "link": {**JOB["link"], "negatives": "destinations", "negative_ends": "both"},
        "train": {"evaluate_every": 0},
    }
    out = tmp_path_factory.mktemp("runs") / "run"
    result = mr.run(links, model=Mean(), out=out, verbose=False, **options)
    start, graph = mr.load(out, model=Mean()), links.graph
    model, plan = as_model(Mean()).double(), seed_plan(start.config, links)
    x, ends = (
        torch.from_numpy(links.features.gather(np.arange(100))).double(),
        np.repeat(np.arange(100), graph.in_degree),
    )

    def row(v, t):
        mine = graph.indices[(ends == v) & (graph.edge_time < t)]
        return model.linear(torch.cat([x[v], x[mine].mean(0) if len(mine) else torch.zeros(5)]))

    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        for index in range(plan.num_minibatches):
            pairs, time = plan.pairs(index, epoch), links.pair_time[plan.numbers(index, epoch)]
            scores = torch.stack(
                [torch.stack([row(u, t) @ row(v, t) for u, v in group]) for group, t in zip(pairs, time)]
            )
            signs = torch.cat([scores[:, :1], -scores[:, 1:]], 1)
            adam.zero_grad()
            (-torch.nn.functional.logsigmoid(signs).mean()).backward()
            adam.step()
    return result, start, model, row


def test_a_run_is_that_of_plain_torch(exact, links):
    _, start, model, _ = exact
    for name, value in model.state_dict().items():
        torch.testing.assert_close(start.model.state_dict()[name], value, rtol=1e-8, atol=1e-9)
    assert (links.labels[links.split.train, 1] >= 40).all()


def test_metrics_and_predictions_are_of_what_lies_before(exact, links, tmp_path):
    result, start, _, row = exact
    pairs, time = links.labels[links.split.test, :2], links.pair_time[links.split.test]
    known = KnownPairs.from_graph(links.graph, links.labels)
    every, valid = _with_negatives(pairs, np.unique(links.labels[:, 1]), known, "test")
    assert valid.all() and every.shape == (len(pairs), 1 + NEGATIVES, 2)
    linked = set(map(tuple, pairs.tolist())) | set(zip(*np.divmod(known.keys, 100)))
    assert not linked & set(map(tuple, every[:, 1:].reshape(-1, 2).tolist())) and (every[:, 1:, 1] >= 40).all()
    scores = mr.predict_links(start, every.reshape(-1, 2), times=np.repeat(time, 101)).scores.reshape(-1, 101)
    with torch.no_grad():
        u, v = pairs[0]
        assert scores[0, 0] == pytest.approx(float(row(u, time[0]) @ row(v, time[0])), rel=1e-6)
    ranks = 1 + (scores[:, 1:] > scores[:, :1]).sum(1) + (scores[:, 1:] == scores[:, :1]).sum(1) / 2
    assert result.test_metrics["mrr"] == pytest.approx((1 / ranks).mean(), abs=1e-6)
    assert result.test_metrics["hits@10"] == pytest.approx((ranks <= 10).mean(), abs=1e-6)
    # A file may have times; without any, all edges are earlier.
    table = "src,dst,time\n" + "".join(f"{u},{v},{t}\n" for (u, v), t in zip(pairs, time))
    (tmp_path / "pairs.csv").write_text(table)
    np.testing.assert_allclose(mr.predict_links(start, tmp_path / "pairs.csv").scores, scores[:, 0], rtol=1e-6)
    late = mr.predict_links(start, pairs, times=np.full(len(pairs), 1e6)).scores
    np.testing.assert_allclose(mr.predict_links(start, pairs).scores, late)
    with pytest.raises(InputError, match="nodes alone have none"):
        mr.embed(start)
    with pytest.raises(InputError, match=r"times is int64\[3\]"):
        mr.predict_links(start, pairs, times=[1, 2, 3])


def test_bulks_queue_and_threads_change_nothing(store, tmp_path):
    found = {}
    for name, more in {"1": {}, "k": {"queue": {"bulk_size": 3, "kind": "zarr"}, "threads": 2}}.items():
        table = {**JOB, "minibatches_per_step": 2, "model": "gcn", **more}
        found[name] = mr.run(store, out=tmp_path / name, verbose=False, **table)
    assert found["k"].parameters_sha256 == found["1"].parameters_sha256
    assert found["k"].test_metrics == found["1"].test_metrics


def test_the_command_line_and_a_stop(links, tmp_path):
    job = ["--dataset", SPEC, "--set", "task=link", "--split", "time:0.7,0.1", "--epochs", "2", "--seed", "3"]
    job += ["--set", "sampler.name=temporal", "--fanout", "3,2", "--hidden", "8", "--set", "link.width=8"]
    job += ["--set", "checkpoint.every_steps=1", "--batch-size", "64"]
    assert command("run", *job, "--out", tmp_path / "run")[0] == 0
    report = json.loads(command("evaluate", tmp_path / "run", "--json")[1])
    result = mr.load(tmp_path / "run").result
    assert report["metrics"]["test"]["mrr"] == pytest.approx(result.test_metrics["mrr"])
    asked, options = iter(range(1000)), {"config": mr.load(tmp_path / "run").config}
    assert mr.run(**options, out=tmp_path / "b", stop=lambda: next(asked) == 3, verbose=False).status == "stopped"
    again = mr.run(**options, out=tmp_path / "b", resume=True, verbose=False)
    assert again.parameters_sha256 == result.parameters_sha256 and again.test_metrics == result.test_metrics


def test_pairs_and_their_times_are_those_of_first_edges_and_are_stored(links, store, tmp_path):
    graph, n = links.graph, links.num_nodes
    ends = np.repeat(np.arange(n), graph.in_degree)
    for (u, v), t in zip(links.labels[:, :2].tolist(), links.pair_time):
        assert u < v and t == graph.edge_time[(graph.indices == u) & (ends == v)].min()
    times = [links.pair_time[getattr(links.split, name)] for name in ("train", "val", "test")]
    assert times[0].max() < times[1].min() and times[1].max() < times[2].min()
    assert graph.num_edges == mr.open_dataset(SPEC).graph.num_edges == 2 * len(links.labels)
    for other in (mr.open_dataset(store), open_lazily(store).as_read()):
        assert dataset_fingerprint(other) == dataset_fingerprint(links)
        assert np.array_equal(other.pair_time, links.pair_time)
    given = {name: links.labels[getattr(links.split, name), :2] for name in ("train", "val", "test")}
    given |= {f"{name}_time": time for name, time in zip(("train", "val", "test"), times)}
    np.savez(tmp_path / "p.npz", **given)
    for pairs in (given, tmp_path / "p.npz"):
        other = mr.link_dataset(mr.open_dataset(SPEC), pairs=pairs)
        assert np.array_equal(other.labels, links.labels) and np.array_equal(other.pair_time, links.pair_time)


PAIR = np.array([[0, 50]])


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ({"train": PAIR, "val": PAIR + 1, "train_time": [1]}, "pairs of val have no times"),
        ({"train": PAIR, "train_time": [np.nan]}, "holds 1 time that is NaN"),
        ({"train": PAIR, "train_time": [1], "train_negatives": PAIR}, "train_negatives are given"),
        ({"val": PAIR, "val_time": [1]}, "none are for train"),
        ({"train": PAIR, "val_time": [1]}, "val_time is there without val"),
        ({"train": np.r_[PAIR, PAIR], "train_time": [1, 2]}, "at several times"),
        ({"train": PAIR, "val": PAIR, "train_time": [1], "val_time": [2]}, "in the train and the val set"),
        ({"train": PAIR + 100, "train_time": [1]}, "an end that is no node"),
    ],
)
def test_bad_pairs_are_refused(pairs, sentence):
    with pytest.raises(InputError, match=sentence):
        mr.link_dataset(mr.open_dataset(SPEC), pairs=pairs)


def test_what_does_not_go_together_is_refused(links, tmp_path):
    plain = mr.link_dataset(mr.open_dataset(SPEC))
    untimed = mr.open_dataset("sbm:nodes=60")
    swapped = {"train": PAIR, "val": PAIR + 1, "train_time": [5], "val_time": [2]}
    for data, options, sentence in (
        (links, {"sampler": {"name": "neighbor", "fanout": [2]}}, "use the sampler temporal under system"),
        (plain, {}, "the pairs of .* have none"),
        (links, {"system": "grappa"}, "system 'grappa' trains on a rank's own part without times"),
        (links, {"features": "owned"}, "owned"),
        (links, {"bulk": {"topology": "partitioned"}}, 'topology is "partitioned", where no rank has all edges'),
        (mr.link_dataset(mr.open_dataset(SPEC), pairs=swapped), {}, "the future trains the past"),
    ):
        with pytest.raises(InputError, match=sentence) as caught:
            mr.run(data, out=tmp_path / "run", verbose=False, **{**JOB, **options})
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=r"the edges of .* have no times"):
        mr.link_dataset(untimed, split="time:0.7,0.1")
    with pytest.raises(InputError, match=r"the edges of .* have none"):
        mr.link_dataset(untimed, pairs={"train": PAIR, "train_time": [1]})
    static = mr.run(plain, epochs=1, fanout=[2], out=tmp_path / "static", verbose=False)
    with pytest.raises(InputError, match="was trained without them"):
        mr.predict_links(static, PAIR, times=[1])
