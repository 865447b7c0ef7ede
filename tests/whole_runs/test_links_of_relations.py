"""Links of several relations in whole runs: against plain torch, over ranks, blocks, queues, stores and devices, after
a kill, with times, in prediction, and on the command line; and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.stages.evaluate.links import KnownPairs
from millrace.stages.evaluate.temporal import _with_negatives
from millrace.stages.models.base import as_model
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.killed_run import check_goes_on_after_a_kill
from millrace.tests.contracts.phase_ranks import train_phases
from millrace.tests.contracts.seed_plan import seed_plan
from millrace.tests.whole_runs.test_typed_links import CUT, ITEMS, JOB, SPEC, Own, dense_edges

NAMES = ["dislikes", "sells", "likes"]
STARTS = {"dislikes": (ITEMS, 0), "sells": (180, 0), "likes": (ITEMS, 0)}
SHARED = {"negative_ends": "either", "num_negatives": 7, "shared_negatives": True, "exclude_known": True}
TYPED = {**JOB, "link": {**JOB["link"], "decoder": "distmult"}}


@pytest.fixture(scope="module")
def links():
    return mr.link_dataset(mr.open_dataset(SPEC), relation=NAMES, seed=3)


@pytest.fixture(scope="module")
def store(links, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "links"
    write_dataset(path, links)
    return str(path)


@pytest.fixture(scope="module")
def result(store, tmp_path_factory):
    return mr.run(store, out=tmp_path_factory.mktemp("runs") / "run", verbose=False, **TYPED)


def ranks_by_hand(links, model, rows):
    """Rank of each test pair among all items that its relation is not known to link to its source."""
    types, found = links.graph.types, {}
    for place, r in enumerate(types.predicted):
        name = ",".join(types.relations[r])
        linked = set(map(tuple, links.labels[links.labels[:, 3] == r, :2].tolist()))
        test = links.labels[links.split.test]
        for u, v in test[test[:, 3] == r, :2].tolist():
            others = [w for w in range(ITEMS) if (u, w) not in linked]
            of = torch.tensor([place] * ITEMS)
            scores = model.decoder(rows[u].expand(ITEMS, -1), rows[:ITEMS], of)
            own = scores[v]
            above, same = (scores[others] > own).sum(), (scores[others] == own).sum()
            found.setdefault(name, []).append(1 + float(above) + float(same) / 2)
    return found


@pytest.mark.parametrize(
    ("negatives", "decoder"),
    [("degree", "distmult"), ("uniform", "mlp"), ("batch", "complex"), ("shared", "mlp"), ("shared", "complex")],
)
def test_a_run_is_that_of_dense_torch(links, tmp_path, negatives, decoder):
    options = {k: v for k, v in JOB.items() if k not in ("model", "minibatches_per_step")}
    options |= {"fanout": [-1, -1], "train": {"evaluate_every": 0}}
    options |= {
        "link": {**JOB["link"], "decoder": decoder, **(SHARED if negatives == "shared" else {"negatives": negatives})}
    }
    result = mr.run(links, model=Own(), out=tmp_path / "run", verbose=False, **options)
    start = mr.load(tmp_path / "run", model=Own())
    model = as_model(Own()).double()
    from millrace.stages.random import Purpose, stream, torch_seed

    torch.manual_seed(torch_seed(stream(3, Purpose.INIT)))
    model.decoder = type(start.model.decoder)(8, 3).double()
    plan, edges = seed_plan(start.config, links), dense_edges(links.graph)
    x = torch.from_numpy(links.features.gather(np.arange(links.num_nodes))).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    kinds, types = links.graph.types.types_of(np.arange(links.num_nodes)), links.graph.types
    trained, excluded = set(map(tuple, links.labels[links.split.train][:, [0, 1, 3]].tolist())), 0
    for epoch in range(2):
        for index in range(plan.num_minibatches):
            pairs, numbers = plan.pairs(index, epoch), plan.numbers(index, epoch)
            relation = links.labels[numbers, 3]
            for column in (0, 1):
                assert (kinds[pairs[..., column]] == types.ends[relation, column][:, None]).all()
            left, (u, v) = edges.clone(), pairs[:, 0].T
            # Of the pair's relation, and of its reverse the other way; likes and dislikes join the same types.
            left[relation, v, u], left[relation + 1, u, v] = 0, 0
            rows = model.dense(x, left)
            place = torch.tensor([types.predicted.index(r) for r in relation.tolist()])
            scores = model.decoder(rows[pairs[..., 0]], rows[pairs[..., 1]], place)
            losses = -torch.nn.functional.logsigmoid(torch.cat([scores[:, :1], -scores[:, 1:]], 1))
            if negatives == "shared":
                known = [
                    [(u, v, r) in trained for u, v in row] for row, r in zip(pairs[:, 1:].tolist(), relation.tolist())
                ]
                losses[:, 1:][torch.tensor(known)] = 0
                excluded += np.sum(known)
            adam.zero_grad()
            losses.mean().backward()
            adam.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(start.model.state_dict()[name], value, rtol=1e-8, atol=1e-9)
    with torch.no_grad():
        ranks = ranks_by_hand(links, model, model.dense(x, edges))
    assert result.per_relation.keys() == ranks.keys() and (excluded > 0) == (negatives == "shared")
    for name, own in ranks.items():
        assert result.per_relation[name]["mrr"] == pytest.approx(np.mean(1 / np.array(own)), abs=1e-6)
    every = np.concatenate([*ranks.values()])
    assert result.test_metrics["mrr"] == pytest.approx(np.mean(1 / every), abs=1e-6)
    assert result.test_metrics["hits@10"] == pytest.approx(np.mean(every <= 10), abs=1e-6)


def same_as(result, out, reports):
    for key, value in last_parameters(out).items():
        torch.testing.assert_close(value, last_parameters(Path(result.out))[key], rtol=1e-8, atol=1e-9)
    for report in reports:
        assert report["test_metrics"] == pytest.approx(result.test_metrics, abs=1e-9)
    assert reports[0]["by_relation"].keys() == result.per_relation.keys()
    for name, own in result.per_relation.items():
        assert reports[0]["by_relation"][name] == pytest.approx(own, abs=1e-9)


def test_two_ranks_that_own_the_features_train_the_same(store, result, tmp_path):
    owned = {"ranks": 2, "features": "owned", "bulk": {"cache_fraction": 0.2}}
    same_as(result, tmp_path / "2", train_bulk(store, tmp_path / "2", {**TYPED, **owned}))


def test_ranks_as_dask_tasks_over_blocks(store, result, tmp_path, scheduler):
    cluster = {"ranks": 2, "bulk": CUT, "cluster": {"scheduler": scheduler}}
    found = mr.run(store, out=tmp_path / "2", verbose=False, **{**TYPED, **cluster})
    same_as(result, tmp_path / "2", [{"test_metrics": found.test_metrics, "by_relation": found.per_relation}])


def test_shared_negatives_without_known_pairs_train_the_same_on_any_ranks_and_after_a_kill(links, store, tmp_path):
    table = {**TYPED, "link": {**TYPED["link"], **SHARED}}
    found = mr.run(store, out=tmp_path / "1", verbose=False, **table)
    owned = train_bulk(store, tmp_path / "owned", {**table, "ranks": 2, "features": "owned"})
    same_as(found, tmp_path / "owned", owned)
    blocks = train_phases(links, tmp_path / "blocks", {**table, "ranks": 2, "bulk": CUT})
    same_as(found, tmp_path / "blocks", blocks)
    check_goes_on_after_a_kill(store, tmp_path / "run", found, table)


def test_blocks_of_any_cut_train_what_the_whole_graph_trains(links, tmp_path):
    """Negatives of the minibatch and all edges, so that the numbering of nodes cannot show."""
    table = {**TYPED, "fanout": [-1, -1], "link": {**TYPED["link"], "negatives": "batch"}, "epochs": 1}
    half = -(-len(links.split.train) // 2)  # both minibatches have several pairs of each relation
    table |= {"model": {**JOB["model"], "dropout": 0.0}, "batch_size": half}
    whole = mr.run(links, config=table, out=tmp_path / "1", verbose=False)
    cut = {**table, "ranks": 2, "bulk": CUT, "partition": {"method": "ldg"}}
    reports = train_phases(links, tmp_path / "2", cut)
    same_as(whole, tmp_path / "2", reports)


def test_queues_and_stored_samples_train_the_same_bits(store, result, tmp_path):
    queued = mr.run(store, out=tmp_path / "queue", verbose=False, **{**TYPED, "queue": {"kind": "zarr"}})
    precompute(resolve({**TYPED, "dataset": store}), tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    found = mr.run(store, samples=tmp_path / "samples", out=tmp_path / "run", verbose=False, **TYPED)
    assert {found.parameters_sha256, queued.parameters_sha256} == {result.parameters_sha256}


def test_a_killed_run_goes_on_to_the_same_bits(store, tmp_path, result):
    check_goes_on_after_a_kill(store, tmp_path / "run", result, TYPED)


def test_pairs_are_scored_by_their_relations(result, links, tmp_path):
    run = mr.load(result)
    rows, decoder = torch.from_numpy(mr.embed(run).rows), run.model.decoder
    asked, names = [[3, 5], [0, 5], [3, 5]], ["likes", "sells", "dislikes"]
    found = mr.predict_links(run, asked, relation=names)
    assert found.relations.tolist() == names and found.pairs.tolist() == asked
    for (u, v), name, score in zip(asked, names, found.scores):
        wanted = decoder(rows[[STARTS[name][0] + u]], rows[[STARTS[name][1] + v]], NAMES.index(name))
        assert score == pytest.approx(float(wanted), abs=1e-9)
    all_of = mr.predict_links(run, asked, relation=np.array(["user", "likes", "item"]))
    assert all_of.scores[0] == pytest.approx(found.scores[0], abs=1e-12) and set(all_of.relations) == {"likes"}
    best = mr.recommend(run, 4, relation="sells", nodes=[0, 7])
    with torch.no_grad():
        scores = torch.stack([decoder.against(rows[180:192], rows[:ITEMS], NAMES.index("sells"))[u] for u in (0, 7)])
    number = links.graph.types.relation("sells")
    for u, v in links.labels[links.labels[:, 3] == number, :2].tolist():
        if u - 180 in (0, 7):
            scores[[0, 7].index(u - 180), v] = -torch.inf
    dst = np.repeat(np.arange(links.num_nodes), links.graph.in_degree)
    own = links.graph.edge_type == number
    for u, v in zip(links.graph.indices[own].tolist(), dst[own].tolist()):
        if u - 180 in (0, 7):
            scores[[0, 7].index(u - 180), v] = -torch.inf
    wanted = scores.topk(4)
    assert best.destinations.tolist() == wanted.indices.tolist()
    assert best.scores == pytest.approx(wanted.values.numpy(), abs=1e-9)
    tested = links.labels[links.split.test]
    sources = np.unique(tested[tested[:, 3] == number, 0]) - 180
    assert mr.recommend(run, 1, relation="sells", nodes="test").sources.tolist() == sources.tolist()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda run: mr.predict_links(run, [[0, 1]]),
            "of several relations; say which, as relation: dislikes",
        ),
        (
            lambda run: mr.recommend(run, 2),
            "say which, as relation: dislikes, sells, likes",
        ),
        (lambda run: mr.recommend(run, 2, relation="sold_in"), "is 'sold_in', whose pairs are not predicted"),
        (lambda run: mr.predict_links(run, [[0, 1]], relation="no"), "there is no relation 'no'"),
        (lambda run: mr.predict_links(run, [[0, 1]], relation=5), "there is no relation '5'"),
        (lambda run: mr.predict_links(run, [[0, 1]], relation=[None]), "relation is None; expected its name"),
        (lambda run: mr.predict_links(run, [[0, 1]], relation=np.array([["likes", "x"]])), "no relation 'likes,x'"),
        (lambda run: mr.recommend(run, 2, relation={"likes"}), "relation is {'likes'}; expected its name"),
        (lambda run: mr.predict_links(run, [[0, 1]], relation=["likes"] * 2), "relation has 2 names for 1 pairs"),
        (lambda run: mr.predict_links(run, [[0, 500]], relation="likes"), r"\(0, 500\) with an end that is no node"),
    ],
)
def test_a_relation_must_be_named(result, call, said):
    with pytest.raises(InputError, match=said):
        call(result)


def test_one_relation_beside_those_of_a_file_is_refused(result, tmp_path):
    (tmp_path / "pairs.csv").write_text("src,dst,relation\n0,1,likes\n0,1,dislikes\n")
    with pytest.raises(InputError, match=r"relation is 'likes', but .*pairs\.csv has a column relation; leave one"):
        mr.predict_links(result, tmp_path / "pairs.csv", relation="likes")
    assert mr.predict_links(result, tmp_path / "pairs.csv").relations.tolist() == ["likes", "dislikes"]


def test_other_data_must_have_the_same_relations(result, links):
    other = mr.link_dataset(mr.open_dataset(SPEC), relation=["likes", "sells"], seed=3)
    with pytest.raises(InputError, match="has pairs of user,likes,item; shop,sells,item, but"):
        mr.predict_links(result, [[0, 1]], other, relation="likes")
    again = mr.predict_links(result, [[0, 1]], links, relation="likes")
    assert again.scores == mr.predict_links(result, [[0, 1]], relation="likes").scores


def test_the_command_line(tmp_path):
    run = tmp_path / "run"
    job = ["--model", "rgcn", "--layers", 2, "--hidden", 8, "--fanout", "3,2", "--epochs", 1]
    of = ["--set", "task=link", "--set", "relation=likes;sells", "--set", "decoder=distmult", "--set", "link.width=8"]
    code, _, error = command("run", "--dataset", SPEC, *job, *of, "--out", run)
    assert code == 0, error
    record = json.loads((run / "result.json").read_text())
    assert set(record["per_relation"]) == {"user,likes,item", "shop,sells,item"}
    assert record["types"]["pair_relations"] == [[0, 1], [4, 5]]
    (tmp_path / "ask.csv").write_text("src,dst,relation\n3,5,likes\n0,5,sells\n")
    code, _, error = command("predict", run, "--pairs", tmp_path / "ask.csv", "--out", tmp_path / "scores.csv")
    lines = (tmp_path / "scores.csv").read_text().splitlines()
    assert code == 0 and lines[0] == '"src","dst","relation","score"' and lines[1].startswith('3,5,"likes",')
    best = ["predict", run, "--top", 2, "--out", tmp_path / "best.csv"]
    code, _, error = command(*best)
    assert code == 2 and "say which, as relation" in error
    assert command(*best, "--relation", "sells")[0] == 0
    assert len((tmp_path / "best.csv").read_text().splitlines()) == 1 + 2 * 12
    code, _, error = command("predict", run, "--relation", "sells", "--out", tmp_path / "no.csv")
    assert code == 2 and "--relation is given without --top or --pairs" in error
    scored = json.loads(command("evaluate", run, "--json")[1])["per_relation"]["test"]
    for name, values in record["per_relation"].items():
        assert scored[name] == pytest.approx(values, abs=1e-6)


def test_with_times_pairs_of_all_are_ranked_at_their_time(tmp_path):
    rng = np.random.default_rng(0)
    edges, times = {}, {}
    for name in ("buys", "views"):
        edges["user", name, "item"] = rng.integers(0, 20, 200), rng.integers(0, 15, 200)
        times["user", name, "item"] = rng.integers(0, 40, 200)
    x = {"item": rng.standard_normal((15, 4)), "user": rng.standard_normal((20, 3))}
    data = mr.from_relations(edges, features=x, edge_times=times, add_reverse=True)
    links = mr.link_dataset(data, relation=["buys", "views"], split="time:0.7,0.1")
    options = {k: v for k, v in TYPED.items() if k != "fanout"} | {"epochs": 1}
    options["sampler"] = {"name": "temporal", "fanout": [-1, -1]}
    result = mr.run(links, out=tmp_path / "run", verbose=False, **options)
    two = train_bulk(links, tmp_path / "2", {**options, "ranks": 2})
    same_as(result, tmp_path / "2", two)
    # By hand, one relation at a time: the score of each pair and of its negatives at the pair's time.
    run, types, ranks = mr.load(result), links.graph.types, []
    first = np.array(types.offsets)[types.ends[types.predicted[0]]]
    for number, name in zip(types.predicted, ("buys", "views")):
        own = links.labels[:, 3] == number
        test = links.split.test[own[links.split.test]]
        known = KnownPairs.from_graph(links.graph, links.labels[own], types=types.predicting(number))
        every, valid = _with_negatives(links.labels[test, :2], np.unique(links.labels[own, 1]), known, "test")
        moments = np.repeat(links.pair_time[test], every.shape[1])
        found = mr.predict_links(run, every.reshape(-1, 2) - first, relation=name, times=moments).scores
        found = found.reshape(every.shape[:2])
        others = np.where(valid, found[:, 1:], -np.inf)
        above, same = ((f(others, found[:, :1])).sum(1) for f in (np.greater, np.equal))
        ranks.append(1 + above + same / 2)
        wanted = result.per_relation[f"user,{name},item"]
        assert wanted["mrr"] == pytest.approx(np.mean(1 / ranks[-1]), abs=1e-9) and wanted["pairs"] == len(test)
    assert result.test_metrics["mrr"] == pytest.approx(np.mean(1 / np.concatenate(ranks)), abs=1e-9)


def test_a_loop_of_ones_own_knows_the_relation_of_each_pair(links):
    types = links.graph.types
    for batch in mr.minibatches(links, config={**TYPED, "epochs": 1}):
        seeds = torch.from_numpy(batch.seeds.astype(np.int64))
        ends = types.ends[np.array(types.predicted)[batch.pair_relations.numpy()]]
        for column in (0, 1):
            found = types.types_of(seeds[batch.pairs[..., column]].numpy())
            assert (found == ends[:, column, None]).all()
    one = mr.link_dataset(mr.open_dataset(SPEC), relation="likes", seed=3)
    assert next(iter(mr.minibatches(one, config=JOB))).pair_relations is None


class OwnDecoder(torch.nn.Module):
    """A weight of each relation."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, source, destination, relation):
        of = self.weight[relation]
        return (source * destination).sum(-1) * of.view(-1, *[1] * (source.ndim - 2))


def test_a_decoder_of_ones_own(links, tmp_path):
    options = {k: v for k, v in JOB.items() if k != "model"}
    model = Own()
    model.decoder = OwnDecoder()
    result = mr.run(links, model=model, out=tmp_path / "own", verbose=False, **options)
    trained = Own()
    trained.decoder = OwnDecoder()
    run = mr.load(result, model=trained)
    weight = run.model.decoder.weight.detach()
    assert len(weight.unique()) == 3  # each relation has trained its own
    rows = torch.from_numpy(mr.embed(run).rows)
    scores = mr.predict_links(run, [[0, 5]], relation="sells").scores
    assert scores == pytest.approx(float((rows[180] * rows[5]).sum() * weight[NAMES.index("sells")]), abs=1e-9)
    assert mr.recommend(run, 2, relation="sells").destinations.shape == (12, 2)
    blind = Own()
    blind.decoder = lambda source, destination: (source * destination).sum(-1)
    with pytest.raises(InputError, match="of 3 relations, but the decoder of Own takes source and"):
        mr.run(links, model=blind, out=tmp_path / "blind", verbose=False, **options)


def test_the_report_has_a_row_for_each_relation(result, tmp_path):
    mr.report(result.out, out=tmp_path / "report.html")
    (page,) = (path.read_text() for path in (tmp_path / "report.html").rglob("*.html"))
    for name, values in result.per_relation.items():
        assert f"<th>{name}</th>" in page and f"{values['mrr']:.4f}" in page
    assert sum(values["pairs"] for values in result.per_relation.values()) > 50


def test_rows_that_nodes_learn(links, tmp_path):
    """Of several relations, where nodes have no other features."""
    options = {**TYPED, "learned": {"width": 4, "beside": False}}
    two = train_bulk(links, tmp_path / "2", {**options, "ranks": 2})[0]
    one = mr.run(links, out=tmp_path / "1", verbose=False, **options)
    assert two["test_metrics"] == pytest.approx(one.test_metrics, abs=1e-9)


def test_names_of_relations_may_have_semicolons(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("x;y", "z"):
        rows = [f"{u},{v}" for u, v in zip(rng.integers(0, 20, 60), rng.integers(0, 9, 60))]
        (tmp_path / f"edges-a-{name}-b.csv").write_text("\n".join(["src,dst", *rows, ""]))
    for kind, count in (("a", 20), ("b", 9)):
        (tmp_path / f"nodes-{kind}.csv").write_text("\n".join(["id", *map(str, range(count)), ""]))
    data = mr.open_dataset(tmp_path, options=mr.ReadOptions(task="link", relation=("x;y", "z")))
    result = mr.run(data, model="rgcn", hidden=4, layers=1, fanout=[3], epochs=1, verbose=False)
    found = mr.predict_links(result, [[0, 1]], dataset=tmp_path, relation="x;y")
    assert found.scores == mr.predict_links(result, [[0, 1]], relation="x;y").scores


def test_relations_of_numbered_triples_are_asked_for_by_number():
    rng = np.random.default_rng(0)
    data = mr.from_triples(np.stack([rng.integers(0, 20, 90), np.arange(90) % 3, rng.integers(0, 20, 90)], 1))
    result = mr.run(data, model="rgcn", hidden=4, layers=1, fanout=[3], epochs=1, decoder="distmult", verbose=False)
    of_each = mr.predict_links(result, [[0, 1], [0, 1]], relation=np.array([2, 1]))
    assert of_each.relations.tolist() == ["2", "1"]
    assert of_each.scores[0] == mr.predict_links(result, [[0, 1]], relation=2).scores[0]
