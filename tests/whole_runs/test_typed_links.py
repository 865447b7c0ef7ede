"""Links between nodes of two types in whole runs: against plain torch, over ranks, queues and stores, after a kill, in
prediction by the users' ids and on the command line; and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.stages.evaluate.link_metrics import PairsOfSet, known_of, link_metrics
from millrace.stages.evaluate.links import LINK_METRICS
from millrace.stages.models.base import as_model
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.killed_run import check_goes_on_after_a_kill
from millrace.tests.contracts.phase_ranks import train_phases
from millrace.tests.contracts.pictures import draw_only
from millrace.tests.contracts.seed_plan import seed_plan

SPEC = "hsbm:nodes=120,classes=3,degree=4,features=6"
ITEMS = 120
JOB = {
    "epochs": 2, "seed": 3, "lr": 0.02, "threads": 1, "dtype": "float64", "batch_size": 64, "fanout": [3, 2],
    "link": {"width": 8, "num_negatives": 2}, "model": {"name": "rgcn", "hidden": 8, "layers": 2, "dropout": 0.1},
    "system": "bulk", "minibatches_per_step": 2,
}  # fmt: skip


CUT = {"topology": "partitioned"}


@pytest.fixture(scope="module")
def links():
    return mr.link_dataset(mr.open_dataset(SPEC), relation="likes", seed=3)


@pytest.fixture(scope="module")
def store(links, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "links"
    write_dataset(path, links)
    return str(path)


@pytest.fixture(scope="module")
def result(store, tmp_path_factory):
    return mr.run(store, out=tmp_path_factory.mktemp("runs") / "run", verbose=False, **JOB)


class Own(torch.nn.Module):
    """Two layers over the means of all relations."""

    num_layers = 2

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        linear, several = torch.nn.Linear, torch.nn.ModuleList
        self.own = several(linear(width, 8) for width in (6, 8))
        self.by = several(several(linear(width, 8, bias=False) for _ in range(6)) for width in (6, 8))

    def layer(self, i, neighbourhood, h):
        out = self.own[i](mr.destinations(neighbourhood, h))
        for linear, relation in zip(self.by[i], neighbourhood.relations()):
            out = out.index_add(0, relation.targets, linear(relation.mean(h)))
        return out.relu() if i == 0 else out

    def dense(self, x, adjacency):
        """Rows of all nodes by dense products: `adjacency` [R, V, V] counts the edges of each relation."""
        means = adjacency / adjacency.sum(2, keepdim=True).clamp(min=1)
        for i in range(2):
            x = self.own[i](x) + sum(linear(a @ x) for linear, a in zip(self.by[i], means))
            x = x.relu() if i == 0 else x
        return x


def dense_edges(graph):
    counts = torch.zeros(6, graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    places = [torch.from_numpy(a.astype(np.int64)) for a in (graph.edge_type, dst, graph.indices)]
    return counts.index_put(tuple(places), torch.ones(graph.num_edges, dtype=torch.float64), accumulate=True)


@pytest.mark.parametrize(
    ("negatives", "decoder", "loss"),
    [("degree", "distmult", "bce"), ("uniform", "mlp", {"name": "infonce", "temperature": 0.5})],
)
def test_a_run_is_that_of_dense_torch(links, tmp_path, negatives, decoder, loss):
    options = {k: v for k, v in JOB.items() if k not in ("model", "minibatches_per_step")}
    options |= {"fanout": [-1, -1], "train": {"evaluate_every": 0}}
    options |= {"link": {**JOB["link"], "decoder": decoder, "negatives": negatives}, "loss": loss}
    result = mr.run(links, model=Own(), out=tmp_path / "run", verbose=False, **options)
    start = mr.load(tmp_path / "run", model=Own())
    model = as_model(Own()).double()
    model.decoder = type(start.model.decoder)(8).double()
    if decoder == "mlp":  # drawn from the run's seed
        from millrace.stages.random import Purpose, stream, torch_seed

        torch.manual_seed(torch_seed(stream(3, Purpose.INIT)))
        model.decoder = type(start.model.decoder)(8).double()
    plan, edges = seed_plan(start.config, links), dense_edges(links.graph)
    x = torch.from_numpy(links.features.gather(np.arange(links.num_nodes))).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        for index in range(plan.num_minibatches):
            pairs = plan.pairs(index, epoch)
            assert (pairs[..., 1] < ITEMS).all() and (pairs[..., 0] >= ITEMS).all() and (pairs[..., 0] < 180).all()
            left, (u, v) = edges.clone(), pairs[:, 0].T
            left[0, v, u], left[1, u, v] = 0, 0  # likes and liked_by, and not dislikes
            rows = model.dense(x, left)
            scores = model.decoder(rows[pairs[..., 0]], rows[pairs[..., 1]])
            signs = torch.cat([scores[:, :1], -scores[:, 1:]], 1)
            value = -torch.nn.functional.logsigmoid(signs).mean()
            if loss != "bce":
                value = -(scores / 0.5).log_softmax(1)[:, 0].mean()
            adam.zero_grad()
            value.backward()
            adam.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(start.model.state_dict()[name], value, rtol=1e-8, atol=1e-9)
    with torch.no_grad():
        rows = model.dense(x, edges)
    known = known_of(links.graph, links.labels)
    found = link_metrics(
        model.decoder, rows, PairsOfSet(links.labels, links.split.test, "test"), LINK_METRICS, known
    ).values
    assert result.test_metrics == pytest.approx({k: found[k] for k in result.test_metrics}, abs=1e-6)
    # By hand: among all items that the user is not known to like.
    linked = set(map(tuple, links.labels[:, :2].tolist()))
    with torch.no_grad():
        scores = model.decoder.against(rows, rows[:ITEMS])
    ranks = []
    for u, v in links.labels[links.split.test, :2].tolist():
        others = scores[u, [w for w in range(ITEMS) if (u, w) not in linked]]
        ranks.append(1 + float((others > scores[u, v]).sum()) + float((others == scores[u, v]).sum()) / 2)
    assert result.test_metrics["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-6)


def test_two_ranks_that_own_the_features_train_the_same(store, result, tmp_path):
    owned = {"ranks": 2, "features": "owned", "bulk": {"cache_fraction": 0.2}}
    report = train_bulk(store, tmp_path / "2", {**JOB, **owned})[0]
    for key, value in last_parameters(tmp_path / "2").items():
        torch.testing.assert_close(value, last_parameters(Path(result.out))[key], rtol=1e-8, atol=1e-9)
    assert report["test_metrics"] == pytest.approx(result.test_metrics, abs=1e-9)


def test_four_ranks_as_dask_tasks_train_over_blocks_what_one_trains(store, result, tmp_path, scheduler):
    """As it is, each block a range of ids; owners draw, and evaluation goes over the blocks."""
    cluster = {"ranks": 4, "bulk": CUT, "cluster": {"scheduler": scheduler}}
    found = mr.run(store, out=tmp_path / "4", verbose=False, **{**JOB, **cluster})
    for key, value in last_parameters(tmp_path / "4").items():
        torch.testing.assert_close(value, last_parameters(Path(result.out))[key], rtol=1e-8, atol=1e-9)
    assert found.test_metrics == pytest.approx(result.test_metrics, abs=1e-9)


def test_stored_samples_train_the_same_bits_and_feed_a_loop_of_ones_own(store, result, links, tmp_path):
    precompute(resolve({**JOB, "dataset": store}), tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    found = mr.run(store, samples=tmp_path / "samples", out=tmp_path / "run", verbose=False, **JOB)
    assert found.parameters_sha256 == result.parameters_sha256
    batch = next(iter(mr.minibatches(store, samples=tmp_path / "samples", config=JOB)))
    assert {links.graph.types.types_of(batch.seeds[batch.pairs[..., i]]).max() for i in (0, 1)} == {1, 0}
    graph = mr.to_pyg(batch.minibatch, pairs=batch.pairs)
    assert graph.edge_label_index.shape == (2, 3 * len(batch.pairs))


def test_a_killed_run_goes_on_to_the_same_bits(store, tmp_path, result):
    check_goes_on_after_a_kill(store, tmp_path / "run", result, JOB)


def test_blocks_of_any_cut_train_what_the_whole_graph_trains(links, tmp_path):
    """Negatives of the minibatch and all edges, so that the numbering of nodes cannot show."""
    table = {**JOB, "fanout": [-1, -1], "link": {"width": 8, "negatives": "batch"}, "epochs": 1}
    table |= {"model": {**JOB["model"], "dropout": 0.0}, "batch_size": 60}  # the last minibatch has several pairs
    whole = mr.run(links, config=table, out=tmp_path / "1", verbose=False)
    cut = {**table, "ranks": 2, "bulk": CUT, "partition": {"method": "ldg"}}
    reports = train_phases(links, tmp_path / "2", cut)
    for key, value in last_parameters(tmp_path / "2").items():
        torch.testing.assert_close(value, last_parameters(tmp_path / "1")[key], rtol=1e-8, atol=1e-9)
    for report in reports:
        assert report["test_metrics"] == pytest.approx(whole.test_metrics, abs=1e-9)


def test_with_times_nothing_later_tells_of_a_pair(tmp_path):
    """Scores at a time stay the same if all later edges, of the relation and of its reverse, are others."""
    rng, buys = np.random.default_rng(0), ("user", "buys", "item")
    user, item, time = (rng.integers(0, n, 300) for n in (20, 15, 40))
    x = {"item": rng.standard_normal((15, 4)), "user": rng.standard_normal((20, 3))}

    def links(items, reverse=True):
        edges, times = {buys: (user, items)}, {buys: time}
        if not reverse:
            edges["item", "by", "user"] = items, user
        data = mr.from_relations(edges, features=x, edge_times=times, add_reverse=reverse)
        return mr.link_dataset(data, relation="buys", split="time:0.7,0.1")

    options = {k: v for k, v in JOB.items() if k != "fanout"} | {"epochs": 1}
    options["sampler"] = {"name": "temporal", "fanout": [-1, -1]}
    result = mr.run(links(item), out=tmp_path / "run", verbose=False, **options)
    assert np.isfinite([*result.test_metrics.values()]).all()
    asked, other = [[u, i] for u in range(20) for i in range(15)], links(np.where(time >= 20, (item + 1) % 15, item))
    at = [mr.predict_links(result, asked, data, times=np.full(300, 20)).scores for data in (None, other)]
    late = mr.predict_links(result, asked, other, times=np.full(300, 30)).scores
    assert np.array_equal(*at) and (late != at[0]).any()
    with pytest.raises(InputError, match="edges of item,by,user, their reverses, have none, so they would reveal"):
        links(item, reverse=False)


@pytest.mark.parametrize("model", ["rsage", "rgat", "hgt"])
def test_the_other_models(links, tmp_path, model):
    options = {**JOB, "epochs": 1, "model": {"name": model, "hidden": 8, "layers": 2}}
    found = mr.run(links, out=tmp_path / "run", verbose=False, **options)
    assert np.isfinite([found.train_loss, *found.test_metrics.values()]).all()


def test_pairs_are_scored_by_ids_within_their_types(result, links, tmp_path):
    run = mr.load(result)
    pairs, ids = links.labels[links.split.test, :2], links.labels[links.split.test, :2] - [ITEMS, 0]
    rows = torch.from_numpy(mr.embed(run).rows)
    found = mr.predict_links(run, ids)
    assert rows.shape == (links.num_nodes, 8) and np.array_equal(found.pairs, ids)
    np.testing.assert_allclose(found.scores, (rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(1), rtol=1e-6, atol=1e-8)
    users = mr.embed(run, nodes="user")
    assert users.nodes.tolist() == list(range(60)) and np.array_equal(users.rows, rows[ITEMS:180])
    # Other data of the same types need not say of which relation pairs are.
    plain = mr.predict_links(run, ids, mr.open_dataset(SPEC))
    assert plain.scores.shape == found.scores.shape and (plain.scores != found.scores).any()
    with pytest.raises(InputError, match=r"expected \[0, 60\) and \[0, 120\)"):
        mr.predict_links(run, [[60, 0]])
    (tmp_path / "ask.csv").write_text("src,dst,relation\n3,5,likes\n3,5,dislikes\n")
    with pytest.raises(InputError, match="relation is 'dislikes', whose pairs are not predicted"):
        mr.predict_links(run, tmp_path / "ask.csv")
    other = mr.link_dataset(mr.open_dataset(SPEC), relation="dislikes")
    with pytest.raises(InputError, match=r"has pairs of user,dislikes,item, but rgcn of .* those of user,likes,item"):
        mr.predict_links(run, ids, other)


def test_the_command_line_from_tables_to_scores_by_name(tmp_path, monkeypatch):
    folder, run, scores = tmp_path / "shop", tmp_path / "run", tmp_path / "scores.csv"
    folder.mkdir()
    rng = np.random.default_rng(0)
    ends = np.unique(np.stack([rng.integers(0, 15, 150), rng.integers(0, 20, 150)]), axis=1).T.tolist()
    for name, head, rows in (
        ("edges-user-buys-item", "src,dst", [f"ann{u},{v}" for u, v in ends]),
        ("edges-user-knows-user", "src,dst", [f"ann{u},ann{(u + 1) % 15}" for u in range(15)]),
        ("nodes-user", "id,x0", [f"ann{u},{u % 3}" for u in range(15)]),
        ("nodes-item", "id,x0,x1,label", [f"{v},1,{v % 3},{v % 2}" for v in range(20)]),
    ):
        (folder / f"{name}.csv").write_text("\n".join([head, *rows, ""]))
    job = ["--set", "task=link", "--set", "relation=buys", "--set", "read.direction=undirected"]
    store = tmp_path / "store"
    code, _, error = command("convert", folder, "--out", store, *job)
    assert code == 0, error
    described = " ".join(command("inspect", store)[1].split())
    assert "pairs of user buys item, reversed by item rev_buys user" in described
    model = ["--model", "rgcn", "--fanout", "3,2", "--epochs", "2", "--set", "link.width=4", "--set", "threads=1"]
    code, out, error = command("run", "--dataset", store, *model, "--out", run, "--json")
    assert code == 0 and json.loads(out)["task"] == "link", error
    report = json.loads(command("evaluate", run, "--json")[1])
    assert set(report["metrics"]["test"]) == {"mrr", "auc", "average_precision", "hits@10"}
    asked = tmp_path / "pairs.csv"
    asked.write_text("src,dst\nann3,7\nann14,0\n")
    code, _, error = command("predict", run, "--pairs", asked, "--out", scores)
    assert code == 0, error
    lines = [line.replace('"', "").split(",") for line in scores.read_text().splitlines()]
    assert [line[:2] for line in lines] == [["src", "dst"], ["ann3", "7"], ["ann14", "0"]]
    rows = tmp_path / "users.npy"
    assert command("predict", run, "--embeddings", "--nodes", "user", "--out", rows)[0] == 0
    assert np.load(rows).shape == (15, 4)
    plain, again = tmp_path / "plain", tmp_path / "again.npy"  # of the classes of items, with the same types
    assert command("convert", folder, "--out", plain, "--set", "read.direction=undirected")[0] == 0
    code, _, error = command("predict", run, "--embeddings", "--nodes", "user", "--dataset", plain, "--out", again)
    assert code == 0 and np.load(again).shape == (15, 4), error
    asked.write_text("src,dst\n7,ann3\n")
    new = ["--out", tmp_path / "n.csv"]
    for arguments, said in (
        (["predict", run, "--pairs", asked, *new], "1 name (first: '7') is no node's"),
        (["run", "--dataset", folder, "--set", "task=link", "--out", tmp_path / "b"], "set relation, to user,buys"),
        (["run", "--dataset", folder, "--set", "relation=buys", "--out", tmp_path / "b"], "the task is not link"),
    ):
        code, out, error = command(*arguments)
        assert (code, out) == (2, "") and said in error.splitlines()[-1], error
    draw_only(monkeypatch, "curves")
    assert command("report", run)[0] == 0 and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"system": "sar"}, "system 'sar' trains all pairs at once, each of which would see its own edge; use bulk$"),
        ({"system": "retexo"}, "system 'retexo' trains each layer on aggregates of all in-edges, .*; use bulk$"),
        ({"system": "grappa"}, "system 'grappa' corrects for the in-edges that a rank lacks by .*; use bulk$"),
        ({"bulk": CUT, "link": {"negatives": "degree"}}, "no rank has the degrees of all nodes"),
        ({"bulk": {**CUT, "algorithm": "1.5d"}}, "whose rows travel without relations; use owners"),
        ({"model": "sage"}, "the model is 'sage', which knows no relations"),
        ({"sampler": {"name": "temporal", "fanout": [2, 2]}}, "times"),
        ({"kernel": "cuda", "sampler": {"name": "ladies", "sizes": [9, 9]}}, "ladies draws no relations"),
        ({"link": {"negatives": "given"}}, "no negatives are given for train"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(links, tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        mr.run(links, out=tmp_path / "run", verbose=False, config={"epochs": 1, "model": "rgcn", **options})
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
