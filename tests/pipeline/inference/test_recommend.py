"""The best destinations by finished runs, against scores of all pairs in float64; on the command line; refusals."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.inference import recommend as recommending
from millrace.pipeline.inference.pairs import scale_of
from millrace.stages.evaluate import links
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

SPEC = "sbm:nodes=120,classes=4,degree=8,features=6"
JOB = {
    "epochs": 1, "seed": 3, "lr": 0.02, "threads": 1, "fanout": [4, 3], "batch_size": 64, "dtype": "float64",
    "link": {"width": 8},
}  # fmt: skip
SMALL = {**JOB, "hidden": 8}


@pytest.fixture(scope="module")
def data():
    return mr.link_dataset(mr.open_dataset(SPEC), seed=3)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    result = mr.run(data, out=tmp_path_factory.mktemp("runs") / "run", verbose=False, **SMALL)
    return mr.load(result)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Many blocks of sources and of candidates, the last ones not full."""
    monkeypatch.setattr(links, "PAIRS", 50)
    monkeypatch.setattr(links, "NODES", 32)


def linked_in(data):
    """Pairs of ids that are linked by an edge or a positive pair, in either direction."""
    graph = data.graph
    edges = zip(graph.indices.tolist(), np.repeat(np.arange(graph.num_nodes), graph.in_degree).tolist())
    pairs = data.labels[data.labels[:, 2] == 0, :2].tolist()
    return {*edges, *((v, u) for u, v in pairs), *map(tuple, pairs)}


def best(decoder, rows, sources, candidates, left_out, k):
    """[n, k] ids and scores by all scores in float64 and a sort of each row."""
    ids, scores = np.full((len(sources), k), -1), np.full((len(sources), k), -np.inf)
    decoder = copy.deepcopy(decoder).double()
    for i, u in enumerate(sources):
        ends = [w for w in candidates if w != u and (u, w) not in left_out]
        with torch.no_grad():
            values = decoder(rows[[u] * len(ends)].double(), rows[ends].double()).tolist()
        for place, (score, w) in enumerate(sorted((-s, w) for s, w in zip(values, ends))[:k]):
            ids[i, place], scores[i, place] = w, -score
    return ids, scores


def agree(found, want, atol=1e-12):
    assert np.array_equal(found.destinations, want[0])
    np.testing.assert_allclose(found.scores, want[1], rtol=1e-9, atol=atol)


class OwnDecoder(nn.Module):
    """Scores pairs, and has no products."""

    def forward(self, source, destination):
        return -(source - destination).square().sum(-1)


class Own(nn.Module):
    """A layer over the mean of in-neighbours."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.decoder = nn.Linear(12, 8), OwnDecoder()

    def layer(self, i, neighbourhood, h):
        return self.linear(torch.cat([mr.destinations(neighbourhood, h), neighbourhood.mean(h)], 1))


@pytest.mark.parametrize("options", [
    {"link": {"width": 8, "decoder": "dot"}, "learned": {"width": 4}}, {"link": {"width": 8, "decoder": "distmult"}},
    {"link": {"width": 8, "decoder": "complex"}}, {"link": {"width": 8, "decoder": "mlp"}, "dtype": "float32"},
    {"system": "grappa"}, {"model": Own(), "fanout": [3]},
], ids=str)  # fmt: skip
def test_decoders_and_systems(data, options, tmp_path):
    options = {**SMALL, **options}
    if isinstance(model := options.get("model"), Own):
        del options["hidden"]
    result = mr.run(data, out=tmp_path / "run", verbose=False, **options)
    assert np.isfinite([*result.test_metrics.values()]).all()
    trained = mr.load(result, model=model if isinstance(model, Own) else None)
    rows = torch.from_numpy(mr.embed(trained).rows)
    exclude = "learned" not in options
    found = mr.recommend(trained, 7, exclude_known=exclude)
    assert np.array_equal(found.sources, np.arange(120)) and found.scores.dtype == options["dtype"]
    want = best(trained.model.decoder, rows, range(120), range(120), linked_in(data) if exclude else set(), 7)
    agree(found, want, atol=1e-12 if options["dtype"] == "float64" else 1e-6)


def test_nodes_in_every_form(run, data):
    whole = mr.recommend(run, 3)
    mask = np.zeros(120, bool)
    mask[[5, 7]] = True
    for nodes, ids in (
        ([7, 5, 7], [7, 5, 7]), (torch.tensor([3]), [3]), (mask, [5, 7]), (9, [9]), ([], []), ("all", range(120)),
        ("test", sorted(set(data.labels[data.split.test, 0].tolist()))),
        ("train", sorted(set(data.labels[data.split.train, 0].tolist()))),
    ):  # fmt: skip
        found = mr.recommend(run.folder, 3, nodes)
        assert found.sources.tolist() == list(ids) and found.destinations.shape == (len(ids), 3)
        assert np.array_equal(found.destinations, whole.destinations[list(ids)])
        np.testing.assert_allclose(found.scores, whole.scores[list(ids)], rtol=1e-12)
    assert found.source_names is None and len(found) == len(ids)


def test_other_data_has_edges_and_no_pairs(run):
    plain = mr.open_dataset(SPEC)
    rows, other = torch.from_numpy(mr.embed(run, plain).rows), mr.recommend(run, 4, dataset=plain)
    graph = plain.graph
    edges = set(zip(graph.indices.tolist(), np.repeat(np.arange(120), graph.in_degree).tolist()))
    agree(other, best(run.model.decoder, rows, range(120), range(120), edges, 4))
    with pytest.raises(InputError, match=r"nodes is 'test', but sbm.* has no pairs"):
        mr.recommend(run, 4, "test", plain)


def test_where_rows_come_from_does_not_show(run, data, tmp_path):
    """A store whose graph and features are mapped, and worker processes."""
    mr.write_dataset(tmp_path / "store", data, graph_format="npy", features_format="npy")
    mapped = {"graph": "mapped", "features": "mapped"}
    result = mr.run(tmp_path / "store", out=tmp_path / "run", verbose=False, **SMALL, **mapped)
    want = mr.recommend(run, 5)
    for found in (mr.recommend(result, 5), mr.recommend(run, 5, dataset=tmp_path / "store")):
        agree(found, (want.destinations, want.scores))


@pytest.mark.usefixtures("forked_workers")
def test_workers_compute_rows(run):
    want = mr.recommend(run, 5, "val")
    agree(mr.recommend(run, 5, "val", workers=2), (want.destinations, want.scores))


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A graph of users and items with names that both have, and its run."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("shop")
    ends = np.unique(np.stack([rng.integers(0, 15, 150), rng.integers(0, 20, 150)]), axis=1)
    ends = np.concatenate([ends, [[3] * 20, range(20)]], axis=1)  # user 3 buys all that anybody buys
    for name, head, rows in (
        ("edges-user-buys-item", "src,dst", [f"n{u},n{v}" for u, v in ends.T]),
        ("edges-item-like-item", "src,dst", [f"n{v},n{(v + 1) % 22}" for v in range(22)]),
        ("nodes-user", "id,x0", [f"n{u},{u % 3}" for u in range(15)]),
        ("nodes-item", "id,x0,x1,label", [f"n{v},1,{v % 3},{v % 2}" for v in range(22)]),
    ):
        (folder / f"{name}.csv").write_text("\n".join([head, *rows, ""]))
    job = {**JOB, "epochs": 2, "model": {"name": "rgcn", "hidden": 8, "layers": 2}}
    read = {"task": "link", "relation": "buys", "read": {"direction": "undirected"}}
    result = mr.run(folder, out=folder / "run", verbose=False, **job, **read)
    return mr.load(result)


def test_with_types_ids_and_names_are_those_within_them(shop):
    run, data = shop, shop.open_dataset()
    types = data.graph.types
    users, items = (range(*types.offsets[(t := types.node_type(name)) : t + 2]) for name in ("user", "item"))
    assert users.start and (len(users), len(items)) == (15, 22)
    rows = torch.from_numpy(mr.embed(run).rows)
    own = data.graph.edge_type == types.one_predicted
    dst = np.repeat(np.arange(data.num_nodes), data.graph.in_degree)
    linked = {*zip(data.graph.indices[own].tolist(), dst[own].tolist()), *map(tuple, data.labels[:, :2].tolist())}
    ids, scores = best(run.model.decoder, rows, users, items, linked, 6)
    found = mr.recommend(run, 6)
    agree(found, (np.where(ids < 0, -1, ids - items.start), scores))
    assert (ids[3] >= 0).sum() == 2, "the items that nobody buys"
    assert found.destination_names[3].tolist() == [f"n{v - items.start}" for v in ids[3, :2]] + [""] * 4
    few = mr.recommend(run, 6, ["n4", "n3"])
    assert few.sources.tolist() == [4, 3] and few.source_names.tolist() == ["n4", "n3"]
    assert np.array_equal(few.destinations, found.destinations[[4, 3]])
    by_id = mr.recommend(run, 2, [14])
    assert np.array_equal(by_id.destinations, found.destinations[[14], :2])
    for nodes, said in (([15], r"expected \[0, 15\)"), (["n21"], "1 name .*'n21'.* no node's")):
        with pytest.raises(InputError, match=said):
            mr.recommend(run, 2, nodes)
    with pytest.raises(InputError, match=r"k \(--top\) is 23, but .* has 22 nodes that can be destinations"):
        mr.recommend(run, 23)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    ratings = mr.open_dataset("ratings:users=20,items=30,genres=4,degree=6,days=9,features=5")
    job = {k: v for k, v in SMALL.items() if k != "fanout"} | {"sampler": {"name": "temporal", "fanout": [-1, -1]}}
    data = mr.link_dataset(ratings, split="time:0.7,0.1")
    return data, mr.load(mr.run(data, out=tmp_path_factory.mktemp("timed") / "run", verbose=False, **job))


@pytest.mark.parametrize("when", [None, 4, 2.5])
def test_at_a_time_only_what_lies_before_counts(timed, when):
    data, run = timed
    graph, u, w = data.graph, *(ends.reshape(-1) for ends in np.indices((50, 50)))
    times = None if when is None else np.full(2500, when)
    scores = mr.predict_links(run, np.stack([u, w], 1), times=times).scores.reshape(50, 50)
    before = np.ones(graph.num_edges, bool) if when is None else graph.edge_time < when
    edges = graph.indices[before], np.repeat(np.arange(50), graph.in_degree)[before]
    pairs = data.labels[:, :2] if when is None else data.labels[data.pair_time < when, :2]
    scores[edges], scores[tuple(pairs.T)], scores[np.diag_indices(50)] = -np.inf, -np.inf, -np.inf
    if links.is_symmetric(graph):
        scores[tuple(pairs[:, ::-1].T)] = -np.inf
    found = mr.recommend(run, 8, time=when)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :8]
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, order, 1), rtol=1e-9)
    assert np.array_equal(found.destinations, order)
    with pytest.raises(InputError, match=r"time is 'x'; expected a number, or a date"):
        mr.recommend(run, time="x")


def test_the_command_line(run, tmp_path, monkeypatch):
    """In pieces of few sources."""
    monkeypatch.setattr(recommending, "PIECE_PAIRS", 50)
    out, want = tmp_path / "r.parquet", mr.recommend(run, 4)
    code, said, error = command("predict", run.folder, "--top", 4, "--out", out, "--json")
    assert code == 0, error
    report = json.loads(said)
    assert (report["top"], report["sources"], report["pairs"]) == (4, 120, 480) and report["out"] == str(out)
    assert pyarrow.parquet.read_table(out).equals(want.table())
    code, said, error = command("predict", run.folder, "--top", 4, "--nodes", "7,3", "--out", tmp_path / "r.npy")
    assert code == 0 and np.array_equal(np.load(tmp_path / "r.npy"), want.destinations[[7, 3]]), error
    assert said.startswith("8 pairs of 2 sources of sbm:") and "sigmoid(score)" in said
    more = ["--include-known", "--nodes", "test"]
    assert command("predict", run.folder, "--top", 4, *more, "--out", tmp_path / "known.npy")[0] == 0
    known = mr.recommend(run, 4, "test", exclude_known=False)
    assert np.array_equal(np.load(tmp_path / "known.npy"), known.destinations)
    assert not np.array_equal(known.destinations, mr.recommend(run, 4, "test").destinations)


def test_the_command_line_at_a_time(timed, tmp_path):
    _, run = timed
    for time in ("4", "4.0"):
        out = tmp_path / f"{time}.npy"
        code, _, error = command("predict", run.folder, "--top", 3, "--time", time, "--out", out)
        assert code == 0 and np.array_equal(np.load(out), mr.recommend(run, 3, time=4).destinations), error


def test_rows_that_are_not_finite_are_refused(run, monkeypatch):
    monkeypatch.setattr(recommending, "ROWS_AT_ONCE", 7)  # in pieces
    broken = mr.load(run.folder)
    broken.model.requires_grad_(False)
    for parameter in broken.model.parameters():
        parameter.fill_(float("nan"))
    with pytest.raises(InputError, match="gives for node 0 holds numbers that are not finite"):
        mr.recommend(broken, 2)


def test_refusals(run, tmp_path):
    nodes = mr.run("sbm:nodes=60", epochs=1, fanout=[2], out=tmp_path / "nodes", verbose=False)
    with pytest.raises(InputError, match="is multiclass, and only links have destinations"):
        mr.recommend(nodes)
    with pytest.raises(InputError, match="trained without times"):
        mr.recommend(run, time=3)
    with pytest.raises(InputError, match=r"k \(--top\) is 2.5"):
        mr.recommend(run, 2.5)
    (tmp_path / "pairs.csv").write_text("src,dst\n0,1\n")
    (tmp_path / "there.csv").write_text("")
    new = ["--out", tmp_path / "n.csv"]
    top = ["predict", run.folder, "--top", 3]
    for words, said in (
        ([*top, "--pairs", tmp_path / "pairs.csv", *new], "--top and --pairs are given; expected one of them"),
        ([*top, "--embeddings", *new], "--top and --embeddings are given; expected one of them"),
        ([*top, "--all-probabilities", *new], "--top and --all-probabilities are given; expected one of them"),
        ([*top, "--time", "monday", *new], "--time is 'monday'; expected a number, or a date such as"),
        ([*top, "--time", "3", *new], "was trained without times; leave it out"),
        ([*top, "--nodes", "3,120", *new], "nodes lie in [3, 120]; expected [0, 120)"),
        ([*top, "--nodes", "nobody", *new], "nodes are 'nobody'; expected ids of nodes"),
        ([*top, "--out", tmp_path / "there.csv"], "already exists; choose another --out"),
        ([*top, "--out", tmp_path / "n.txt"], "ends in '.txt'"),
        (["predict", run.folder, "--top", 0, *new], "k (--top) is 0; expected a whole number, 1 or more"),
        (["predict", run.folder, "--top", 121, *new], "has 120 nodes that can be destinations; give as many at most"),
        (["predict", run.folder, "--include-known", *new], "--include-known is given without --top; give --top K"),
        (["predict", run.folder, "--time", "3", *new], "--time is given without --top; give --top K"),
        (["predict", tmp_path / "nodes", "--top", 3, *new], "is multiclass, and only links have destinations"),
    ):
        code, out, error = command(*words)
        assert (code, out) == (2, "") and said in error.splitlines()[-1], error
    assert not (tmp_path / "n.csv").exists()


@pytest.mark.parametrize(
    ("loss", "says"),
    [({}, "sigmoid"), ({"pos_weight": "balanced"}, "no probabilities"), ({"name": "infonce"}, "no probabilities")],
)
def test_only_unweighted_bce_gives_shares(loss, says, tmp_path):
    assert says in scale_of(SimpleNamespace(folder=tmp_path, config=resolve({"train": {"loss": loss}})))
