"""Runs whose samples go by time: the same for any bulk, queue, threads and ranks, to the bit after a stop; and
refusals."""

import json

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.killed_run import check_goes_on_after_a_kill

SPEC = "tsbm:nodes=600,degree=6,days=20,features=6"
JOB = {
    "epochs": 3, "seed": 3, "lr": 0.02, "threads": 1, "batch_size": 64, "hidden": 8, "dropout": 0.1,
    "sampler": {"name": "temporal", "fanout": [4, 2]},
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return mr.open_dataset(SPEC)


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "timed"
    write_dataset(path, data)
    return str(path)


@pytest.fixture(scope="module")
def result(data, tmp_path_factory):
    return mr.run(data, out=tmp_path_factory.mktemp("runs") / "run", verbose=False, **JOB)


def test_any_number_of_ranks_queue_and_store_of_samples_train_the_same(store, tmp_path):
    table = {**JOB, "epochs": 2, "system": "bulk", "minibatches_per_step": 4, "dtype": "float64", "model": "gcn"}
    found = {name: train_bulk(store, tmp_path / name, {**table, "ranks": int(name)})[0] for name in ("1", "2")}
    zarr = {"queue": {"kind": "zarr", "bulk_size": 3}, "threads": 2}
    mr.run(store, out=tmp_path / "zarr", verbose=False, **{**table, **zarr})
    job = resolve({**table, "dataset": store})
    precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    found["stored"] = train_bulk(store, tmp_path / "stored", table, samples=str(tmp_path / "samples"))[0]
    model = last_parameters(tmp_path / "1")
    for name in (*found, "zarr"):
        for key, value in last_parameters(tmp_path / name).items():
            torch.testing.assert_close(value, model[key], rtol=1e-8, atol=1e-9)
        if name in found:
            assert found[name]["test_accuracy"] == found["1"]["test_accuracy"]


def test_a_killed_run_goes_on_to_the_same_bits(store, tmp_path, result):
    check_goes_on_after_a_kill(store, tmp_path / "run", result, JOB)


def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(data, tmp_path, result):
    options = {**JOB, "checkpoint": {"every_steps": 1}}
    asked, lives = iter(range(1000)), 0
    while mr.run(
        data, out=tmp_path / "parts", resume=lives > 0, verbose=False, stop=lambda: next(asked) % 5 == 4, **options
    ).status == ("stopped"):
        lives += 1
    again = mr.run(data, out=tmp_path / "parts", resume=True, verbose=False, **options)
    assert lives and again.parameters_sha256 == result.parameters_sha256
    assert (again.test_accuracy, again.best_epoch) == (result.test_accuracy, result.best_epoch)


def test_time_tells_what_the_whole_graph_does_not(data, tmp_path):
    told = {}
    for name in ("temporal", "neighbor"):
        job = {**JOB, "sampler": {"name": name, "fanout": [-1]}, "epochs": 20, "dropout": 0.0, "hidden": 16}
        told[name] = mr.run(data, out=tmp_path / name, verbose=False, **job).test_accuracy
    assert told["temporal"] > 0.8 and told["neighbor"] < 0.7


def test_predictions_are_those_of_the_evaluation(result, data, tmp_path):
    run = mr.load(result)
    found = mr.predict(run, nodes="test")
    right = np.mean(np.asarray(found.classes) == data.labels[data.split.test])
    assert right == pytest.approx(result.test_accuracy)
    assert mr.embed(run, nodes=[1, 2]).rows.shape == (2, 8)
    report = json.loads(command("evaluate", result.out, "--json")[1])
    assert report["accuracy"]["test"] == pytest.approx(result.test_accuracy)
    for refused in (
        lambda: mr.predict(run, workers=2),
        lambda: mr.predict(run, mr.open_dataset("sbm:nodes=50,features=6")),
    ):
        with pytest.raises(InputError, match="temporal"):
            refused()


def test_minibatches_for_ones_own_loop(data):
    for batch in mr.minibatches(data, **{**JOB, "epochs": 1}):
        rows = mr.GCN(hidden=8, layers=2).build(6, 4)(batch.neighbourhoods, batch.h)
        assert len(rows) == len(batch.y) == len(batch.seeds)


class ByRelation(torch.nn.Module):
    """One layer over the mean of each relation's in-neighbours."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.ModuleDict({name: torch.nn.Linear(4, 3) for name in ("likes", "dislikes", "sells")})

    def layer(self, i, neighbourhood, h):
        out = h.new_zeros(neighbourhood.num_dst, 3)
        for relation in neighbourhood.relations():
            if relation.name in self.linear:
                out = out.index_add(0, relation.targets, self.linear[relation.name](relation.mean(h[:, :4])))
        return out


@pytest.fixture(scope="module")
def typed():
    """Items have times, shops have none; users like at times of their own."""
    plain, rng = mr.open_dataset("hsbm:nodes=80,classes=3,degree=4,features=4").to_pyg(), np.random.default_rng(0)
    plain["item"].when = torch.from_numpy(rng.integers(0, 9, 80))
    for relation in (("user", "likes", "item"), ("user", "dislikes", "item")):
        plain[relation].at = torch.from_numpy(rng.integers(0, 9, plain[relation].edge_index.shape[1]))
    options = mr.ReadOptions(edge_time="at", node_time="when")
    return mr.open_dataset(plain, split="time:0.5,0.2", options=options)


def test_relations_go_by_time_as_in_plain_torch(typed, tmp_path):
    job = {**{k: v for k, v in JOB.items() if k not in ("hidden", "dropout")}, "dtype": "float64", "batch_size": 100}
    job |= {"sampler": {"name": "temporal", "fanout": [-1]}, "train": {"evaluate_every": 0}}
    result = mr.run(typed, model=ByRelation(), out=tmp_path / "run", verbose=False, **job)
    graph, model = typed.graph, ByRelation().double()
    ends = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    x = torch.from_numpy(typed.features.gather(np.arange(graph.num_nodes))[:, :4]).double()

    def rows(nodes):
        out = []
        for v in nodes:
            own, there = torch.zeros(3, dtype=torch.float64), (ends == v) & (graph.edge_time <= graph.node_time[v])
            for name, layer in model.linear.items():
                mine = graph.indices[there & (graph.edge_type == graph.types.relation(name))]
                own = own + layer(x[mine].mean(0) if len(mine) else torch.zeros(4, dtype=torch.float64))
            out.append(own)
        return torch.stack(out)

    adam, labels = torch.optim.Adam(model.parameters(), lr=0.02), torch.from_numpy(typed.labels)
    for _ in range(3):
        adam.zero_grad()
        torch.nn.functional.cross_entropy(rows(typed.split.train), labels[typed.split.train]).backward()
        adam.step()
    for name, value in mr.load(result, model=ByRelation()).model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-8, atol=1e-9)
    right = (rows(typed.split.test).argmax(1) == labels[typed.split.test]).double().mean()
    assert result.test_accuracy == pytest.approx(float(right))
    found = mr.predict(mr.load(result, model=ByRelation()), nodes=typed.split.test)
    assert np.array_equal(found.classes, rows(typed.split.test).argmax(1))


def test_queue_stop_and_store_change_nothing_with_types(typed, tmp_path):
    write_dataset(tmp_path / "store", typed)
    job = {**JOB, "batch_size": 8, "sampler": {"name": "temporal", "fanout": [2, 2], "strategy": "last"}}
    job |= {"model": {"name": "rgcn", "hidden": 8}, "verbose": False}
    del job["hidden"]
    whole = mr.run(str(tmp_path / "store"), out=tmp_path / "a", **job)
    other = {**job, "queue": {"kind": "zarr", "bulk_size": 3}, "threads": 2}
    asked = iter(range(1000))
    assert mr.run(typed, out=tmp_path / "b", stop=lambda: next(asked) == 4, **other).status == "stopped"
    again = mr.run(typed, out=tmp_path / "b", resume=True, **other)
    assert again.parameters_sha256 == whole.parameters_sha256
    assert again.test_accuracy == whole.test_accuracy


REFUSED = [
    ({"system": "grappa"}, "system 'grappa' trains on a rank's own part without times"),
    ({"bulk": {"topology": "partitioned"}}, 'topology is "partitioned"'),
    ({"features": "owned"}, "features is 'owned'"),
    ({"split": "fraction:0.5,0.2"}, "the future trains the past"),
    ({"split": "until:15,10"}, "the future trains the past"),
    ({"sampler": {"name": "temporal", "strategy": "first"}}, "strategy"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(data, tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        mr.run(data, out=tmp_path / "run", verbose=False, **{**JOB, "epochs": 1, **options})
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("system", ["sar", "retexo"])
def test_systems_without_samples_have_no_sampler(data, tmp_path, system):
    with pytest.raises(InputError, match="sampler"):
        mr.run(data, out=tmp_path / "run", verbose=False, system=system, sampler=JOB["sampler"])


def test_seeds_and_edges_need_times(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 0]]), y=np.array([0, 1]), edge_time=np.array([1, 1]))
    for spec, sentence in ((tmp_path / "g.npz", "which are seeds, have none"), ("sbm:nodes=60", "the edges have none")):
        job = ["--dataset", spec, "--set", "sampler.name=temporal", "--out", tmp_path / "run"]
        job += ["--set", "split=fraction:0.5,0.0"] if "sbm" not in str(spec) else []
        code, out, err = command("run", *job)
        assert (code, out) == (2, "") and sentence in err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
