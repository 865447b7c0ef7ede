"""Runs on graphs with several types of nodes and edges: what they learn, on any number of ranks, from any queue, after
a resume; predictions by the user's ids; and what is refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.stages.partition.stage import open_part
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.phase_ranks import train_phases

SPEC = "hsbm:nodes=240,classes=3,degree=4,features=6"
JOB = {"epochs": 3, "seed": 3, "lr": 0.02, "threads": 1, "dtype": "float64", "batch_size": 16}
SAMPLER = {"name": "neighbor", "fanout": [3, 2], "relations": {"dislikes": [2, 1], "sells": 0}}
MODEL = {"name": "rgcn", "hidden": 8, "layers": 2, "dropout": 0.1, "bases": 2}
TABLE = {**JOB, "sampler": SAMPLER, "model": MODEL, "system": "bulk", "minibatches_per_step": 2}


@pytest.fixture(scope="module")
def data():
    return mr.open_dataset(SPEC)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Parameters and report of a run on one rank."""
    out = tmp_path_factory.mktemp("typed") / "run"
    report = train_bulk(SPEC, out, TABLE)[0]
    return last_parameters(out), report


def same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, **{"rtol": 0, "atol": 0, **tolerance})


@pytest.mark.parametrize("features", ["shared", "owned"])
def test_any_number_of_ranks_trains_the_same_parameters(trained, tmp_path, features):
    owned = {"features": "owned", "bulk": {"cache_fraction": 0.1}} if features == "owned" else {}
    reports = train_bulk(SPEC, tmp_path / "2", {**TABLE, "ranks": 2, **owned})
    same(trained[0], last_parameters(tmp_path / "2"), rtol=1e-8, atol=1e-9)
    if features == "owned":
        assert reports[0]["bytes"]["network"]["features"] > 0
        return
    assert reports[0]["test_accuracy"] == trained[1]["test_accuracy"]
    assert {k for k, v in reports[0]["bytes"]["network"].items() if v} == {"gradients", "control"}


PARTITIONED = {"bulk": {"topology": "partitioned"}}


def test_blocks_of_rows_train_the_parameters_of_the_whole_graph(trained, data, tmp_path):
    """Ranges keep the ids, so that minibatches are those of one rank."""
    report = train_phases(data, tmp_path / "2", {**TABLE, **PARTITIONED, "ranks": 2})[0]
    same(trained[0], last_parameters(tmp_path / "2"), rtol=1e-8, atol=1e-9)
    assert report["test_accuracy"] == trained[1]["test_accuracy"]
    assert report["bytes"]["network"]["graph"] > 0


@pytest.mark.parametrize(("ranks", "method"), [(4, "ldg"), (2, "metis")])
def test_any_cut_over_all_types_trains_the_same_parameters(data, tmp_path, ranks, method):
    """All edges of all seeds at once: nothing is drawn, so that the numbering of nodes cannot show."""
    if method == "metis":
        pytest.importorskip("pymetis")
    table = {**JOB, "batch_size": 100, "fanout": [-1, -1], "epochs": 2, "model": {**MODEL, "dropout": 0.0}}
    train_bulk(SPEC, tmp_path / "1", table)
    cut = {**table, **PARTITIONED, "system": "bulk", "ranks": ranks, "partition": {"method": method}}
    train_phases(data, tmp_path / "cut", {**cut, "sampler": {"name": "labor"} if ranks == 4 else {}})
    same(last_parameters(tmp_path / "1"), last_parameters(tmp_path / "cut"), rtol=1e-8, atol=1e-9)


def test_sar_trains_the_same_parameters_on_any_number_of_ranks(data, tmp_path):
    table = {k: v for k, v in JOB.items() if k != "batch_size"} | {"system": "sar", "partition": {"method": "ldg"}}
    table["model"] = {**MODEL, "name": "hgt", "heads": 2}
    del table["model"]["bases"]
    table |= {"epochs": 4}
    one = mr.run(data, config=table, out=tmp_path / "1", verbose=False)
    report = train_phases(data, tmp_path / "2", {**table, "ranks": 2})[0]
    same(last_parameters(tmp_path / "1"), last_parameters(tmp_path / "2"), rtol=1e-8, atol=1e-9)
    assert report["test_accuracy"] == one.test_accuracy


@pytest.mark.parametrize("changed", [{"queue": {"bulk_size": 5}}, {"threads": 2}], ids=str)
def test_bulk_size_and_threads_change_no_bit(trained, tmp_path, changed):
    train_bulk(SPEC, tmp_path / "run", {**TABLE, **changed})
    same(trained[0], last_parameters(tmp_path / "run"))


def test_a_queue_on_disk_changes_no_bit(trained, data, tmp_path):
    mr.run(data, config={**TABLE, "queue": {"kind": "zarr"}}, out=tmp_path / "run", verbose=False)
    same(trained[0], last_parameters(tmp_path / "run"))


def test_a_stopped_run_goes_on_to_the_same_bits(trained, tmp_path):
    table = {**TABLE, "checkpoint": {"every_steps": 1}}
    train_bulk(SPEC, tmp_path / "run", table, steps=4)
    train_bulk(SPEC, tmp_path / "run", table)
    same(trained[0], last_parameters(tmp_path / "run"))


def test_samples_are_made_once_for_any_model(data, tmp_path):
    config = {k: v for k, v in TABLE.items() if k not in ("model", "minibatches_per_step")}
    mr.write_dataset(tmp_path / "data", data)
    store = {"dataset": str(tmp_path / "data")}
    job = {**config, **store, "model": MODEL}
    (tmp_path / "job.toml").write_text(_toml(job))
    code, _, error = command("sample", tmp_path / "job.toml", "--out", tmp_path / "samples")
    assert code == 0, error
    found = {}
    for model in ("rgcn", "rsage"):
        options = {**job, "model": {"name": model, "hidden": 8, "layers": 2}}
        for samples in (None, tmp_path / "samples"):
            out = tmp_path / f"{model}-{samples is None}"
            found[samples is None] = mr.run(config=options, out=out, samples=samples, verbose=False)
        assert found[True].parameters_sha256 == found[False].parameters_sha256


def _toml(job):
    lines, tables = [], []
    for key, value in job.items():
        if isinstance(value, dict):
            tables += [f"[{key}]", *(f"{k} = {_value(v)}" for k, v in value.items())]
        else:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join([*lines, *tables])


def _value(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


BEST = "hsbm:nodes=600,noise=0.1,train=0.5"
SMALL = {"hidden": 16, "layers": 2, "dropout": 0.1}


def test_the_best_answer_by_the_command_line_and_predictions_by_the_users_ids(tmp_path):
    out = tmp_path / "run"
    flags = [word for key, value in SMALL.items() for word in ("--set", f"model.{key}={value}")]
    code, _, error = command(
        "run", "--dataset", BEST, "--model", "rgcn", "--fanout", "8,4", *flags, "--epochs", 8, "--batch-size", 32,
        "--lr", 0.02, "--set", "threads=1", "--out", out,
    )  # fmt: skip
    assert code == 0, error
    result = json.loads((out / "result.json").read_text())
    assert result["test_accuracy"] > 0.85
    assert result["types"]["node_types"] == ["item", "user", "shop"] and result["types"]["widths"] == [8, 16, 0]
    code, _, error = command("predict", out, "--out", tmp_path / "found.csv")
    assert code == 0, error
    rows = (tmp_path / "found.csv").read_text().splitlines()
    # The ids of items are those that users gave; other types are not predicted.
    assert len(rows) == 601 and rows[1].startswith("0,") and rows[-1].startswith("599,")
    data, found = mr.open_dataset(BEST), mr.predict(out, nodes="test")
    assert np.mean(found.classes == data.labels[found.nodes]) == pytest.approx(result["test_accuracy"])
    logits = mr.infer(mr.load(out).model, data, nodes="test").numpy()
    np.testing.assert_allclose(found.logits, logits, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="nodes lie in"):
        mr.predict(out, nodes=[600])
    edges, features = {("a", "r", "b"): ([0], [0])}, {"b": np.ones((2, 16))}
    other = mr.from_relations(edges, [0, 1], target="b", num_nodes={"a": 1}, features=features, split="fraction:0.5,0")
    with pytest.raises(InputError, match="has the node types"):
        mr.predict(out, other)
    with pytest.raises(InputError, match="has one type of nodes and edges"):
        mr.predict(out, "sbm:nodes=100,features=16")


@pytest.mark.parametrize("model", ["rsage", "hgt"])
def test_the_other_models_reach_it_too(tmp_path, model):
    sampler = mr.NeighborSampler((8, 4))
    options = {"epochs": 6, "batch_size": 32, "lr": 0.02, "threads": 1, "seed": 1}
    config = {"model": {"name": model, **SMALL}}
    found = mr.run(BEST, system=mr.bulk(sampler), config=config, out=tmp_path / "run", verbose=False, **options)
    assert found.test_accuracy > 0.85


def test_tables_train_and_predictions_name_the_users_ids(tmp_path):
    folder, rng = tmp_path / "shops", np.random.default_rng(0)
    folder.mkdir()
    wanted = np.arange(60) % 2
    src = [f"u{2 * rng.integers(0, 10) + c}" for c in np.repeat(wanted, 3)]
    lines = [f"{u},i{i},{w:.2f}" for u, i, w in zip(src, np.repeat(np.arange(60), 3), rng.random(180) + 0.1)]
    _csv(folder / "edges-user-likes-item.csv", "src,dst,weight", lines)
    _csv(folder / "nodes-user.csv", "id,x0,x1", [f"u{u},{u % 2},1" for u in range(20)])
    _csv(folder / "nodes-item.csv", "id,label", [f"i{i},{'ab'[c] if i < 50 else ''}" for i, c in enumerate(wanted)])
    out = tmp_path / "run"
    code, _, error = command(
        "run", "--dataset", folder, "--model", "rgcn", "--fanout", "2", "--epochs", 30, "--lr", 0.05, "--split",
        "fraction:0.6,0.2", "--set", "model.layers=1", "--set", "threads=1", "--out", out,
    )  # fmt: skip
    assert code == 0, error
    code, _, error = command("predict", out, "--nodes", "i7,i58,i3", "--out", tmp_path / "found.csv")
    assert code == 0, error
    rows = [row.replace('"', "").split(",")[:2] for row in (tmp_path / "found.csv").read_text().splitlines()[1:]]
    assert rows == [["i7", "b"], ["i58", "a"], ["i3", "b"]]
    code, _, error = command("predict", out, "--nodes", "u3", "--out", tmp_path / "x.csv")
    assert code == 2 and "1 name (first: 'u3') is no node's; expected names such as 'i0'" in error


def _csv(path, head, lines):
    path.write_text("\n".join([head, *lines, ""]))


class Own(nn.Module):
    num_layers = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.by_relation = nn.ModuleDict({name: nn.Linear(6, 3) for name in ("likes", "dislikes")})

    def layer(self, i, neighbourhood, h):
        out = h.new_zeros(neighbourhood.num_dst, 3)
        for relation in neighbourhood.relations():
            if relation.name in self.by_relation:
                out = out.index_add(0, relation.targets, self.by_relation[relation.name](relation.mean(h[:, :6])))
        return out


def test_a_users_module_and_samplers_over_all_edges(data, tmp_path):
    for i, sampler in enumerate(
        [mr.NeighborSampler((5,)), mr.LaborSampler((8,)), mr.LadiesSampler((200,)), mr.FastGCNSampler((300,))]
    ):
        out = tmp_path / str(i)
        result = mr.run(data, model=Own(), system=mr.bulk(sampler), out=out, verbose=False, **{**JOB, "epochs": 10})
        assert result.test_accuracy > 0.7, sampler
    assert mr.load(out, model=Own()).result.model == "Own"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "sage"}, "the model is 'sage', which knows no relations"),
        ({"system": "grappa", "model": "rgcn"}, "system 'grappa' corrects for the in-edges that a rank lacks by their"),
        ({"system": "retexo", "model": "rgcn"}, "system 'retexo' trains each layer on aggregates of all in-edges"),
        (
            {"model": "rgcn", **PARTITIONED, "sampler": {"name": "ladies"}},
            "the sampler ladies does not draw relation by relation",
        ),
        (
            {"model": "rgcn", "bulk": {"topology": "partitioned", "algorithm": "1.5d"}},
            "bulk.algorithm is '1.5d', whose rows travel without relations",
        ),
        (
            {"model": "rgcn", "system": "sar", "ranks": 2, "sar": {"mode": "keep"}},
            'sar.mode is "keep", but the model reads the rows of all ranks in one block',
        ),
        (
            {"model": Own(), "system": "sar", "ranks": 2, "sar": {"mode": "keep"}},
            'sar.mode is "keep", but the model reads the rows of all ranks in one block',
        ),
        ({"model": "rgcn", "train": {"compile": True}}, "train.compile is true"),
        (
            {"model": "rgcn", "sampler": {"relations": {"lkes": [1, 1]}, "fanout": [1, 1]}},
            "there is no relation 'lkes'",
        ),
    ],
    ids=str,
)
def test_what_does_not_run_is_refused_in_a_sentence(data, tmp_path, changed, said):
    config = {"epochs": 1, **changed}
    model = config.pop("model")
    with pytest.raises(InputError, match=said):
        mr.run(data, model=model, out=tmp_path / "run", verbose=False, config=config)
    assert not (tmp_path / "run").exists()


def test_a_pyg_model_and_a_typed_model_on_one_type_are_refused(data, tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    with pytest.raises(InputError, match="the model is a PyGModel"):
        mr.run(data, model=[pyg.SAGEConv(6, 3)], out=tmp_path / "run", verbose=False)
    code, _, error = command("run", "--dataset", "digits", "--model", "rgcn", "--out", tmp_path / "run")
    assert code == 2 and "the model rgcn reads relations, but the graph has one type of nodes and edges" in error


def test_bad_input_on_the_command_line_is_one_sentence(tmp_path):
    code, _, error = command(
        "run",
        "--dataset",
        SPEC,
        "--model",
        "rgcn",
        "--set",
        "sampler.relations={likse=[1,1,1]}",
        "--out",
        tmp_path / "x",
    )
    assert (
        code == 2
        and "a fanout for relation 'likse', but there is no relation 'likse'" in error
        and "did you mean 'likes'?" in error
    )


def test_inspect_describes_types(data, tmp_path):
    mr.write_dataset(tmp_path / "data", data)
    for source in (tmp_path / "data", SPEC):
        code, out, error = command("inspect", source)
        assert code == 0, error
        assert "240 (6 features" not in out
        assert "item 240 (3 features), user 120 (6 features), shop 24 (no features)" in " ".join(out.split())
        assert "user likes item" in " ".join(out.split())


def test_minibatches_for_a_loop_of_ones_own(data):
    batches = list(mr.minibatches(data, batch_size=20, epochs=1, fanout=[3, 2], seed=1, threads=1))
    assert sum(len(b.y) for b in batches) == len(data.split.train)
    assert {r.name for r in batches[0].neighbourhoods[0].relations()} >= {"likes", "sells"}


def test_modules_of_pyg_train_the_same_parameters_over_ranks(data, tmp_path, scheduler):
    pyg = pytest.importorskip("torch_geometric.nn")
    types, many = data.graph.types, {"ranks": 2, "cluster": {"scheduler": scheduler}}
    sampled = {"fanout": [-1, -1], "batch_size": 16, "minibatches_per_step": 100}  # steps of all train nodes
    named = list(types.node_types), list(types.relations)
    common = {k: v for k, v in JOB.items() if k != "batch_size"} | {"optimizer": "sgd", "verbose": False}
    for name, options in {"one": sampled, "owned": {**sampled, **many, "features": "owned"}, "sar": many}.items():
        torch.manual_seed(0)
        model = [pyg.HGTConv(-1, width, named, 2) for width in (8, 4)]
        system = "sar" if name == "sar" else "bulk"
        mr.run(data, model=model, system=system, out=tmp_path / name, **common, **options)
        same(last_parameters(tmp_path / "one"), last_parameters(tmp_path / name), rtol=1e-8, atol=1e-9)


def test_what_knows_one_type_only_is_refused(data, tmp_path):
    store = tmp_path / "data"
    mr.write_dataset(store, data)
    said = "has 3 node types and 6 relations, and"
    with pytest.raises(InputError, match=said):
        mr.reorder(data, np.arange(384))
    with pytest.raises(InputError, match="the model is 'sage', which knows no relations"):
        mr.plan(data, verbose=False)
    code, _, error = command("partition", store, "--parts", 2, "--into", tmp_path / "cut")
    assert code == 2 and said in error, error


def test_parts_hold_the_relations_of_their_edges(data, tmp_path):
    mr.write_dataset(tmp_path / "data", data)
    for source, out in ((tmp_path / "data", "stored"), (SPEC, "memory")):
        code, _, error = command("partition", source, "--parts", 3, "--method", "ldg", "--out", tmp_path / out)
        assert code == 0, error
    graph = data.graph
    for p in range(3):
        found, other = (open_part(tmp_path / out, p)[0] for out in ("stored", "memory"))
        np.testing.assert_array_equal(found.edge_type, other.edge_type)
        rows = graph.take(found.owned)
        np.testing.assert_array_equal(found.edge_type, rows.edge_type)
        np.testing.assert_array_equal(found.nodes[found.indices], rows.indices)
